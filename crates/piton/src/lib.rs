//! Durable workflows as ordinary async functions.
#![warn(missing_docs)]

mod error;
pub mod runtime;
pub mod store;

pub use error::{Error, ErrorKind, Result, non_retryable};
