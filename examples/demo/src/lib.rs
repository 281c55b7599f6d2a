//! The workflows of the demo server.

mod tools;
mod workflows;

use std::sync::Arc;

use piton::EngineBuilder;

pub use tools::{Tools, Witness};
pub use workflows::{NightlyReport, Onboarding, Order, Playground};

/// Registers all workflows of the demo.
pub fn register(builder: EngineBuilder, tools: &Arc<Tools>) -> EngineBuilder {
    builder
        .register(Order(Arc::clone(tools)))
        .register(NightlyReport(Arc::clone(tools)))
        .register(Onboarding(Arc::clone(tools)))
        .register(Playground(Arc::clone(tools)))
}
