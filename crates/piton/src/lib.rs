//! Durable workflows as ordinary async functions.
//!
//! Write a function with `step.run`, `step.sleep` and `step.wait_for_event`. Piton records every step as it
//! completes, so that the function survives crashes, deploys and weeks of waiting: on an embedded SQLite
//! file, on PostgreSQL with any number of processes, in memory for tests.
//!
//! ```
//! use piton::prelude::*;
//!
//! async fn greet(name: Event<String>, step: &Step) -> Result<String> {
//!     let greeting = step.run("compose", async { Ok(format!("Hello, {}!", *name)) }).await?;
//!     step.sleep("be polite", "10 ms").await?;
//!     Ok(greeting)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> anyhow::Result<()> {
//! let engine = Engine::builder("memory:") // or "sqlite:app.db"
//!     .register(workflow("greet", greet))
//!     .start()
//!     .await?;
//! let instance = engine.workflow::<String, String>("greet")?.create("Ada".into()).await?;
//! assert_eq!(instance.result().await?, "Hello, Ada!");
//! # Ok(())
//! # }
//! ```
//!
//! # Rules of workflows
//!
//! - **Side effects belong into steps.** Code between steps runs again on every pass, and awaiting something
//!   that is not a step does not keep a run awake: beside a sleep or a wait it stops until the run wakes.
//! - **Make steps idempotent**: a body that was cut off by a crash runs again. [`StepContext`] hands out a key.
//! - **Name steps deterministically**, with the index in loops: the name is the identity.
//! - **Keep results small**: up to 1 MiB each; return references to anything larger.

/// The guide to hooks, so that its examples compile.
#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../../../docs/hooks.md")]
struct GuideToHooks;

mod client;
mod codec;
mod engine;
mod error;
mod event;
pub mod hooks;
pub mod intercept;
mod pass;
mod runner;
pub mod runtime;
mod step;
pub mod store;
mod trace;
mod workflow;

pub use client::{
    BatchItem, Create, CurrentStep, Cursor, Export, ExportedEvent, ExportedStep, History,
    HistoryQuery, Instance, InstanceHandle, List, Page, RunExport, SendEvent, WorkflowHandle,
};
pub use engine::{Engine, EngineBuilder, Tick};
pub use error::{Error, ErrorKind, Result, non_retryable};
pub use event::{Event, Received};
pub use piton_core::record::{EventRecord, LogLine, LogRecord, RecordedError, StepRecord};
pub use piton_core::{
    Backoff, Code, DurationError, EventType, InstanceId, InstanceStatus, IntoSpan, Issue, Json,
    Limits, LogLevel, Refusal, Retries, RetryLimit, Span, StepName, StepStatus, StepType,
    Timestamp, WorkflowName,
};
#[cfg(feature = "sqlite")]
pub use rusqlite;
#[cfg(feature = "postgres")]
pub use sqlx;
pub use step::{
    Bodies, Each, Log, LogBuilder, Once, Run, Sleep, Step, StepContext, StepTransaction,
    WaitForEvent, WaitForOutcome, WaitForReceived,
};
pub use trace::{DurableLogLayer, durable_log_layer};
pub use workflow::{Registration, Workflow, WorkflowFn, workflow};

/// Everything a workflow needs: `use piton::prelude::*;`.
pub mod prelude {
    pub use crate::{
        Engine, Error, Event, Limits, Result, Retries, RetryLimit, Step, Timestamp, Workflow,
        non_retryable, workflow,
    };
    pub use tokio::{join, select, try_join};
}
