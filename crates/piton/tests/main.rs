//! The promises of the engine, one test each, on every store.

mod compile_fail;
mod parallel;
mod programs;
mod retries;
mod sleep;
mod steps;
mod support;
