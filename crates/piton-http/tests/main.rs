//! The HTTP API on a real socket, with a real client.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails where it should")]

mod auth;
mod errors;
mod hooks;
mod openapi;
mod paging;
mod routes;
mod safety;
mod support;
#[cfg(feature = "webhook")]
mod webhook;
