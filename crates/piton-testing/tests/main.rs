//! The integration tests of the testing crate: one binary, a module per subject.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails where it should")]

mod crash;
mod harness;
mod mocks;
mod page;
mod reliability;
mod replay;
mod scenario;
mod stores;
