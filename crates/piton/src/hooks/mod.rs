//! Durable hooks: callbacks that are stored with a transaction and run at least once after it has committed.
//!
//! ```text
//!  trigger ── in a step, with a create or an event, in a transaction of your own ──> piton_hook
//!                                                                                       │ due
//!  dispatcher (poll, alarm, tick) ──> processor ── take (lease, epoch) ──> handler ── settle
//! ```
//!
//! **A hook exists exactly if its transaction committed.** It then runs until its handler returns or its attempts are
//! used up, on whichever process takes it. A process that dies while it has a hook in hand loses its lease, and the
//! hook is taken again: so handlers may run more than once, always with the same [`HookContext::idempotency_key`].
//!
//! No notification is authoritative here either: with every hint lost the poll finds all hooks that are due.
//!
//! ```
//! use piton::hooks::Hooks;
//! use piton::prelude::*;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> piton::Result<()> {
//! let (told, mut welcomed) = tokio::sync::mpsc::channel(1);
//! let hooks = Hooks::new().on("user.created", move |email: String, cx| {
//!     let told = told.clone();
//!     async move {
//!         told.send(format!("{email}, attempt {}", cx.attempt())).await?;
//!         Ok(())
//!     }
//! });
//! let engine = Engine::builder("memory:").hooks(hooks).start().await?;
//! engine.hooks().send("user.created", &"ada@example.org").await?;
//! assert_eq!(welcomed.recv().await.unwrap(), "ada@example.org, attempt 1");
//! # Ok(())
//! # }
//! ```

mod alarm;
mod client;
mod context;
mod handler;
mod polling;
mod processor;
mod registry;
mod round;
mod rounds;
mod suspects;
mod trigger;

pub use alarm::{Alarm, AlarmDispatcher};
pub use client::{HookClient, HookList};
pub use context::HookContext;
pub use handler::{HookHandler, InstanceNews, WorkflowEnqueued};
pub use piton_core::hook::{HookRecord, NAMESPACE_DEFAULT};
pub use piton_core::{HookName, HookNamespace, HookStatus};
pub use polling::PollingDispatcher;
pub use processor::{HookProcessor, Processor, ProcessorGroup};
pub use registry::Hooks;
pub use trigger::{
    Hook, HookTransaction, OwnTransaction, PreparedHook, SendHook, Trigger, trigger,
};

pub(crate) use client::HookShared;
pub(crate) use registry::{Registered, register};
pub(crate) use trigger::prepare_all;
