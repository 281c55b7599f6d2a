//! What Piton promises, told as tests: each module is one chapter.

mod events;
mod lifecycle;
mod logs;
mod runners;
mod support2;
mod transactions;
