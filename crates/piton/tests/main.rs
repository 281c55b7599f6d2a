//! What Piton promises, told as tests: each module is one chapter.

mod events;
mod lifecycle;
mod runners;
mod support2;
mod transactions;
