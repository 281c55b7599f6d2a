//! The rows of the data model as plain data. What they mean is in the modules that change them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    EventType, InstanceId, InstanceStatus, Json, LogLevel, StepName, StepStatus, StepType,
    TaskKind, TaskState, Timestamp, WorkflowName,
};

/// The key of an instance's row inside one database. Never shown to users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceKey(pub i64);

/// A run of an instance; the first is 0, each restart adds one.
pub type RunNumber = u32;

/// The number that fences stale runners: it grows with every claim, restart and terminate, and with
/// nothing else.
pub type Epoch = u64;

/// What a runner must prove with every write: which run it advances and under which claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RunKey {
    /// The instance.
    pub instance: InstanceKey,
    /// The run the runner works on.
    pub run: RunNumber,
    /// The epoch its claim was given.
    pub epoch: Epoch,
}

/// An error as it is recorded on a step or an instance.
///
/// ```
/// use piton_core::record::RecordedError;
/// let error = RecordedError::new("CardDeclined", "card declined");
/// assert_eq!(error.code, None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedError {
    /// Its name, such as `StepTimeout`; `Error` when nobody gave it one.
    pub name: String,
    /// What happened, for people.
    pub message: String,
    /// A stable code, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The chain of causes, one per line, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<String>,
}

impl RecordedError {
    /// An error with a name and a message only.
    ///
    /// ```
    /// let error = piton_core::record::RecordedError::new("Error", "no luck");
    /// assert_eq!((error.name.as_str(), error.message.as_str()), ("Error", "no luck"));
    /// ```
    pub fn new(name: impl Into<String>, message: impl Into<String>) -> Self {
        Self { name: name.into(), message: message.into(), code: None, stack: None }
    }
}

/// One execution of a workflow.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceRecord {
    /// Row key.
    pub key: InstanceKey,
    /// Its workflow.
    pub workflow: WorkflowName,
    /// Its id within the workflow.
    pub id: InstanceId,
    /// Its status now.
    pub status: InstanceStatus,
    /// The current run.
    pub run: RunNumber,
    /// What it was created with.
    pub params: Json,
    /// What it returned, once complete.
    pub output: Option<Json>,
    /// Why it ended, once errored.
    pub error: Option<RecordedError>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When user code of this run first ran.
    pub started_at: Option<Timestamp>,
    /// When this run ended; set exactly on terminal statuses.
    pub completed_at: Option<Timestamp>,
    /// A pause was asked for while a body runs and takes effect at the next boundary.
    pub pause_requested: bool,
}

impl InstanceRecord {
    /// An instance that was created a moment ago; it has started if it was leased at once.
    pub fn created(
        key: InstanceKey,
        workflow: WorkflowName,
        id: InstanceId,
        params: Json,
        now: Timestamp,
        started_at: Option<Timestamp>,
    ) -> Self {
        Self {
            key,
            workflow,
            id,
            status: InstanceStatus::Active,
            run: 0,
            params,
            output: None,
            error: None,
            created_at: now,
            updated_at: now,
            started_at,
            completed_at: None,
            pause_requested: false,
        }
    }
}

/// One durable step of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct StepRecord {
    /// Where it stands in the run's history: the order in which steps were first recorded.
    pub position: u32,
    /// The order in which outcomes were recorded: replay reveals results in this order. Taken from the
    /// same counter as `position`; renewed when a waiting step gets its outcome.
    pub seq: u32,
    /// Its name: its identity within the run.
    pub name: StepName,
    /// What kind of step it is.
    pub step_type: StepType,
    /// Where it stands.
    pub status: StepStatus,
    /// Recorded attempts of a `do`; 0 for the others.
    pub attempts: u32,
    /// How many attempts it may have; `None` is no limit (and for sleeps and waits).
    pub attempts_max: Option<u32>,
    /// Timeout of one attempt in milliseconds.
    pub timeout_ms: Option<i64>,
    /// When a failed attempt is tried again.
    pub next_retry_at: Option<Timestamp>,
    /// When a sleep ends or a wait times out.
    pub wake_at: Option<Timestamp>,
    /// What a wait waits for.
    pub event_type: Option<EventType>,
    /// The result, once completed.
    pub result: Option<Json>,
    /// The last error, while waiting for a retry or once errored.
    pub error: Option<RecordedError>,
    /// When it was first recorded.
    pub created_at: Timestamp,
    /// When the last recorded attempt started; for a wait, when it was first reached.
    pub started_at: Timestamp,
    /// When it was last recorded.
    pub updated_at: Timestamp,
}

impl StepRecord {
    /// A step that the code reaches now, without an outcome: it waits.
    pub fn new(name: StepName, step_type: StepType, position: u32, now: Timestamp) -> Self {
        Self {
            position,
            seq: position,
            name,
            step_type,
            status: StepStatus::Waiting,
            attempts: 0,
            attempts_max: None,
            timeout_ms: None,
            next_retry_at: None,
            wake_at: None,
            event_type: None,
            result: None,
            error: None,
            created_at: now,
            started_at: now,
            updated_at: now,
        }
    }
}

/// An event sent to an instance.
#[derive(Clone, Debug, PartialEq)]
pub struct EventRecord {
    /// Its public id, `evt_…`.
    pub id: Arc<str>,
    /// The run it belongs to.
    pub run: RunNumber,
    /// Arrival order within the run.
    pub seq: u64,
    /// Its type.
    pub event_type: EventType,
    /// Its payload.
    pub payload: Json,
    /// When it arrived.
    pub created_at: Timestamp,
    /// When a wait took it.
    pub delivered_at: Option<Timestamp>,
    /// The wait that took it.
    pub consumed_by: Option<StepName>,
}

/// A log line that is about to be stored.
#[derive(Clone, Debug, PartialEq)]
pub struct LogLine {
    /// Its public id, `log_…`.
    pub id: Arc<str>,
    /// The step it was written in.
    pub step: Option<StepName>,
    /// The attempt it was written in.
    pub attempt: Option<u32>,
    /// Its level.
    pub level: LogLevel,
    /// Its category; `system` is the engine's own.
    pub category: Arc<str>,
    /// What it says.
    pub message: Arc<str>,
    /// Structured data.
    pub data: Option<Json>,
    /// Written while the run was still passing steps recorded before this claim.
    pub is_replay: bool,
    /// When it was written.
    pub created_at: Timestamp,
}

/// A stored log line.
#[derive(Clone, Debug, PartialEq)]
pub struct LogRecord {
    /// The run it belongs to.
    pub run: RunNumber,
    /// Insertion order within the run.
    pub seq: u64,
    /// The line.
    pub line: LogLine,
}

/// The category of the engine's own log lines; refused to users.
pub const SYSTEM_CATEGORY: &str = "system";

/// The one task row of a live run, as a transaction sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// The run it advances.
    pub run: RunNumber,
    /// Why it is due.
    pub kind: TaskKind,
    /// Who may touch it.
    pub state: TaskState,
    /// When it must next be advanced.
    pub run_at: Timestamp,
    /// Until when the runner's claim lasts, while leased.
    pub lease_until: Option<Timestamp>,
    /// The fence.
    pub epoch: Epoch,
    /// Claims since the run last got anywhere.
    pub claims_without_progress: u32,
    /// A pause waits for the next boundary.
    pub pause_requested: bool,
}
