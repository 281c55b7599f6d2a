//! The rules of Piton, and nothing else.
//!
//! This crate answers questions of the form "given this state, this time and this input, what changes?".
//! It knows no clock, no randomness, no SQL, no HTTP and no async runtime: time is always an argument.
//! Every store and the runner ask the same functions, so live work, recovery and simulation cannot
//! disagree about what a command does to a run.
//!
//! Where to look:
//!
//! - [`boundary`]: what happens when a step becomes completed, waiting or errored; who is fenced.
//! - [`claim`]: which task runs next, when an instance is quarantined.
//! - [`hook`]: what becomes of a hook that is claimed, done, failed or retried.
//! - [`lifecycle`]: pause, resume, terminate, restart, and the arrival of an event.
//! - [`record`]: the rows, as plain data.
//! - [`name`], [`limits`], [`duration`], [`retry`]: what users write, checked once at the edge.

pub mod boundary;
pub mod claim;
pub mod duration;
pub mod hook;
pub mod json;
pub mod lifecycle;
pub mod limits;
pub mod name;
#[doc(hidden)]
pub mod planted;
pub mod record;
pub mod refusal;
pub mod retry;
pub mod status;
pub mod story;
pub mod time;

pub use duration::{DurationError, IntoSpan, Span};
pub use json::Json;
pub use limits::Limits;
pub use name::{EventType, HookName, HookNamespace, InstanceId, StepName, WorkflowName};
pub use refusal::{Code, Issue, Refusal};
pub use retry::{Backoff, Retries, RetryLimit};
pub use status::{HookStatus, InstanceStatus, LogLevel, StepStatus, StepType, TaskKind, TaskState};
pub use time::Timestamp;
