//! The integration tests of the testing crate: one binary, a module per subject.

mod reliability;
mod stores;
