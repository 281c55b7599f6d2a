//! The workflows of the demo server.

mod alarm;
mod tools;
mod workflows;

use std::sync::Arc;

use piton::EngineBuilder;
use piton::hooks::Hooks;

pub use alarm::{AlarmHost, HostAlarm, Later, advance_by_hooks, arm_after};
pub use tools::{Tools, Witness};
pub use workflows::{NightlyReport, Onboarding, Order, Playground};

/// Registers all workflows of the demo, and a hook that tells of every instance that failed.
pub fn register(builder: EngineBuilder, tools: &Arc<Tools>) -> EngineBuilder {
    builder
        .register(Order(Arc::clone(tools)))
        .register(NightlyReport(Arc::clone(tools)))
        .register(Onboarding(Arc::clone(tools)))
        .register(Playground(Arc::clone(tools)))
        .hooks(Hooks::new().on_instance_errored(|news, _| async move {
            let message = news.error.map(|error| error.message).unwrap_or_default();
            tracing::warn!(
                workflow = news.workflow_name,
                id = news.instance_id,
                message,
                "an instance failed"
            );
            Ok(())
        }))
}
