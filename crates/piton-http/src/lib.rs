//! The HTTP API of Piton, as an [`axum::Router`] that you mount where you like.
//!
//! [`Api`] makes the router, [`health`] the two routes that tell whether the process is well, and [`serve`] serves them
//! with bounds on connections and time. Who may do what is decided by [`Policy`] hooks; [`BearerTokens`] is one.

/// The guide, so that its examples compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/http.md")]
struct Guide;

mod api;
mod auth;
mod body;
mod call;
mod error;
mod guard;
mod health;
mod hooks;
mod host;
mod openapi;
mod query;
mod routes;
mod server;
mod shapes;
#[cfg(feature = "webhook")]
mod webhook;

pub use api::Api;
pub use auth::{AuthRequest, BearerTokens, Decision, Permission, Policy, Verdict, policy};
pub use health::health;
pub use openapi::openapi;
pub use routes::not_found;
pub use server::{ServerLimits, serve};
#[cfg(feature = "webhook")]
pub use webhook::{Webhook, signature, verify};
