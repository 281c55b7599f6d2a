//! The promises of the engine, one test each, on every store.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails where it should")]

mod compile_fail;
mod dispatchers;
mod events;
mod history;
mod hooks;
mod hooks_of_users;
mod lifecycle;
mod limits;
mod logs;
mod parallel;
mod postgres;
mod postgres_lanes;
mod processors;
mod programs;
mod races;
mod results;
mod retries;
mod runners;
mod sharing;
mod sleep;
mod steps;
mod support;
mod transactions;
