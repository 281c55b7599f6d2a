//! What Piton promises, told as tests: each module is one chapter.

mod events;
mod lifecycle;
mod limits;
mod logs;
mod runners;
mod support2;
mod transactions;
