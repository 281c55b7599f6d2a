//! What answers look like. Absent optional fields are left out, except where `null` says something.

use piton::hooks::HookRecord;
use piton::{
    CurrentStep, EventRecord, History, Instance, InstanceStatus, Json, LogRecord, RecordedError,
    StepRecord, StepType, Timestamp,
};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

/// A moment, in ISO-8601 with milliseconds.
#[derive(Debug)]
pub(crate) struct Moment(Timestamp);

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

fn moment(time: Option<Timestamp>) -> Option<Moment> {
    time.map(Moment)
}

/// The workflows of this server.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"workflows": [{"name": "order"}, {"name": "playground"}]}))]
pub(crate) struct Workflows {
    /// By name.
    pub(crate) workflows: Vec<WorkflowItem>,
}

/// A workflow.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkflowItem {
    /// Its name.
    pub(crate) name: String,
}

/// What went wrong.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Failure {
    /// Its name, such as `StepTimeout`.
    name: String,
    /// What happened, for people.
    message: String,
    /// A stable code, if the engine made the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
}

impl From<RecordedError> for Failure {
    fn from(error: RecordedError) -> Self {
        Self { name: error.name, message: error.message, code: error.code }
    }
}

/// How an instance stands.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({"status": "complete", "output": {"paid": true}}))]
pub(crate) struct Details {
    /// Its status.
    #[schema(value_type = Status)]
    status: &'static str,
    /// Why it failed, once errored.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failure>,
    /// What it returned, once complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Value>)]
    output: Option<Json>,
    /// True while a pause waits for the running step to end.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pause_requested: bool,
}

/// The six statuses.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "the schema of a word that is written from the engine's own enum")]
pub(crate) enum Status {
    Active,
    Waiting,
    Paused,
    Complete,
    Errored,
    Terminated,
}

impl Details {
    /// Of an instance that was created a moment ago.
    pub(crate) fn fresh() -> Self {
        let status = InstanceStatus::Active.as_str();
        Self { status, error: None, output: None, pause_requested: false }
    }

    pub(crate) fn of(instance: &mut Instance) -> Self {
        Self {
            status: instance.status.as_str(),
            error: instance.error.take().map(Failure::from),
            output: instance.output.take(),
            pause_requested: instance.pause_requested,
        }
    }
}

/// An instance in an answer.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"id": "order-7", "details": {"status": "active"}}))]
pub(crate) struct InstanceItem {
    /// Its id.
    pub(crate) id: String,
    /// How it stands.
    pub(crate) details: Details,
}

impl InstanceItem {
    pub(crate) fn fresh(id: &str) -> Self {
        Self { id: id.to_owned(), details: Details::fresh() }
    }

    pub(crate) fn of(mut instance: Instance) -> Self {
        Self { details: Details::of(&mut instance), id: instance.id.to_string() }
    }
}

/// An instance in a list.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({
    "id": "order-7",
    "details": {"status": "active"},
    "createdAt": "2026-11-15T12:00:00.000Z"
}))]
pub(crate) struct ListedInstance {
    /// Its id.
    id: String,
    /// How it stands.
    details: Details,
    /// When it was created.
    #[schema(value_type = String, format = DateTime)]
    created_at: Moment,
}

impl From<Instance> for ListedInstance {
    fn from(mut instance: Instance) -> Self {
        Self {
            details: Details::of(&mut instance),
            id: instance.id.to_string(),
            created_at: Moment(instance.created_at),
        }
    }
}

/// Instances that were created.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Batch {
    /// In the order they were asked for, without those that existed.
    pub(crate) instances: Vec<InstanceItem>,
}

/// A page of instances, newest first.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InstancePage {
    /// What is on the page.
    pub(crate) instances: Vec<ListedInstance>,
    /// Where the next page starts, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cursor: Option<String>,
    /// Whether there is a next page.
    pub(crate) has_next_page: bool,
}

/// All about an instance.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct InstanceAnswer {
    /// Its id.
    id: String,
    /// How it stands.
    details: Details,
    /// The rest.
    meta: Meta,
}

/// What is known about an instance beside its status.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Meta {
    /// Its workflow.
    workflow_name: String,
    /// The current run: 0, plus one for each restart.
    run_number: u32,
    /// What it was created with.
    #[schema(value_type = Value)]
    params: Json,
    /// True while a pause waits for the running step to end.
    pause_requested: bool,
    /// When it was created.
    #[schema(value_type = String, format = DateTime)]
    created_at: Moment,
    /// When it last changed.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Moment,
    /// When the code of this run first ran.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    started_at: Option<Moment>,
    /// When this run ended.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    completed_at: Option<Moment>,
    /// What the run is doing or waiting for now; with several, the one that will wake first.
    #[serde(skip_serializing_if = "Option::is_none")]
    current_step: Option<StepFacts>,
}

impl From<Instance> for InstanceAnswer {
    fn from(mut instance: Instance) -> Self {
        Self {
            details: Details::of(&mut instance),
            id: instance.id.to_string(),
            meta: Meta {
                workflow_name: instance.workflow.to_string(),
                run_number: instance.run_number,
                params: instance.params,
                pause_requested: instance.pause_requested,
                created_at: Moment(instance.created_at),
                updated_at: Moment(instance.updated_at),
                started_at: moment(instance.started_at),
                completed_at: moment(instance.completed_at),
                current_step: instance.current_step.map(StepFacts::from),
            },
        }
    }
}

/// What is known about a step, recorded or not.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StepFacts {
    /// The name, which is the step's identity in its run.
    step_key: String,
    /// The name.
    name: String,
    /// `do`, `sleep` or `waitForEvent`.
    #[serde(rename = "type")]
    step_type: &'static str,
    /// `pending`, `waiting`, `completed` or `errored`; of the step that a run is at, `running` or `waiting`.
    status: &'static str,
    /// Attempts so far, the running one included.
    attempts: u32,
    /// How many attempts there may be; `null` is no limit. A sleep or a wait has one.
    #[schema(required)]
    max_attempts: Option<u32>,
    /// The timeout of an attempt.
    #[schema(required)]
    timeout_ms: Option<i64>,
    /// When a failed attempt is tried again.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    next_retry_at: Option<Moment>,
    /// When a sleep ends or a wait times out.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    wake_at: Option<Moment>,
    /// The type of event it waits for.
    #[schema(required)]
    wait_event_type: Option<String>,
    /// The error of the last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failure>,
}

/// Sleeps and waits have no attempts: they are tried once.
fn max_attempts(step_type: StepType, attempts_max: Option<u32>) -> Option<u32> {
    match step_type {
        StepType::Do => attempts_max,
        StepType::Sleep | StepType::WaitForEvent => Some(1),
    }
}

impl From<CurrentStep> for StepFacts {
    fn from(step: CurrentStep) -> Self {
        Self {
            step_key: step.name.clone(),
            name: step.name,
            step_type: step.step_type.as_str(),
            status: step.status,
            attempts: step.attempts,
            max_attempts: max_attempts(step.step_type, step.attempts_max),
            timeout_ms: step.timeout_ms,
            next_retry_at: moment(step.next_retry_at),
            wake_at: moment(step.wake_at),
            wait_event_type: step.event_type,
            error: step.error.map(Failure::from),
        }
    }
}

/// It is done.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"ok": true}))]
pub(crate) struct Done {
    /// Always true.
    pub(crate) ok: bool,
}

/// How the instance stands after an event was stored.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"status": {"status": "waiting"}}))]
pub(crate) struct EventAnswer {
    /// How it stands.
    pub(crate) status: Details,
}

/// What a tick did.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"processed": 3}))]
pub(crate) struct TickAnswer {
    /// How many runs were advanced.
    pub(crate) processed: usize,
    /// How many hooks were processed; left out if none were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hooks: Option<usize>,
}

/// A page of the history of a run.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HistoryAnswer {
    /// The run.
    run_number: u32,
    /// Its steps, in the order they were first recorded.
    steps: Vec<StepItem>,
    /// Its events, in the order they arrived.
    events: Vec<EventItem>,
    /// Where the next page of steps starts, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    steps_cursor: Option<String>,
    /// Whether there are more steps.
    steps_has_next_page: bool,
    /// Where the next page of events starts, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    events_cursor: Option<String>,
    /// Whether there are more events.
    events_has_next_page: bool,
    /// Its log lines, with `includeLogs=true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    logs: Option<Vec<LogItem>>,
    /// Where the log goes on; there on the last page too, for those who follow it.
    #[serde(skip_serializing_if = "Option::is_none")]
    logs_cursor: Option<String>,
    /// Whether there are more log lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    logs_has_next_page: Option<bool>,
}

impl From<History> for HistoryAnswer {
    fn from(history: History) -> Self {
        let History { run_number, steps, events, logs, .. } = history;
        let cursor =
            |cursor: Option<piton::Cursor>, more| cursor.filter(|_| more).map(|c| c.to_string());
        let logs_has_next_page = logs.as_ref().map(|page| page.has_next_page);
        let logs_cursor =
            logs.as_ref().and_then(|page| page.cursor.as_ref().map(ToString::to_string));
        Self {
            run_number,
            steps_cursor: cursor(steps.cursor, steps.has_next_page),
            steps_has_next_page: steps.has_next_page,
            steps: steps.items.into_iter().map(|step| StepItem::new(run_number, step)).collect(),
            events_cursor: cursor(events.cursor, events.has_next_page),
            events_has_next_page: events.has_next_page,
            events: events.items.into_iter().map(EventItem::from).collect(),
            logs: logs.map(|page| page.items.into_iter().map(LogItem::from).collect()),
            logs_cursor,
            logs_has_next_page,
        }
    }
}

/// A recorded step.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StepItem {
    /// The run.
    run_number: u32,
    #[serde(flatten)]
    facts: StepFacts,
    /// The result, once completed.
    #[schema(value_type = Option<Value>, required)]
    result: Option<Json>,
    /// When it was first recorded.
    #[schema(value_type = String, format = DateTime)]
    created_at: Moment,
    /// When the last recorded attempt started; for a wait, when it was first reached.
    #[schema(value_type = String, format = DateTime)]
    started_at: Moment,
    /// When it was last recorded.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Moment,
}

impl StepItem {
    fn new(run_number: u32, mut step: StepRecord) -> Self {
        Self {
            run_number,
            result: step.result.take(),
            created_at: Moment(step.created_at),
            started_at: Moment(step.started_at),
            updated_at: Moment(step.updated_at),
            facts: StepFacts::from(CurrentStep::from(step)),
        }
    }
}

/// An event.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventItem {
    /// Its id.
    id: String,
    /// The run it belongs to.
    run_number: u32,
    /// Its type.
    #[serde(rename = "type")]
    event_type: String,
    /// What it carries.
    #[schema(value_type = Value)]
    payload: Json,
    /// When it arrived.
    #[schema(value_type = String, format = DateTime)]
    created_at: Moment,
    /// When a wait took it.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    delivered_at: Option<Moment>,
    /// The wait that took it.
    #[schema(required)]
    consumed_by_step_key: Option<String>,
}

impl From<EventRecord> for EventItem {
    fn from(event: EventRecord) -> Self {
        Self {
            id: event.id.to_string(),
            run_number: event.run,
            event_type: event.event_type.to_string(),
            payload: event.payload,
            created_at: Moment(event.created_at),
            delivered_at: moment(event.delivered_at),
            consumed_by_step_key: event.consumed_by.map(|step| step.to_string()),
        }
    }
}

/// A log line.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LogItem {
    /// Its id.
    id: String,
    /// The run it belongs to.
    run_number: u32,
    /// The step it was written in.
    #[schema(required)]
    step_key: Option<String>,
    /// The attempt it was written in.
    #[schema(required)]
    attempt: Option<u32>,
    /// `debug`, `info`, `warn` or `error`.
    level: &'static str,
    /// Its category; `system` is the engine's own.
    category: String,
    /// What it says.
    message: String,
    /// Structured data.
    #[schema(value_type = Option<Value>, required)]
    data: Option<Json>,
    /// Written while the run was still passing steps recorded before.
    is_replay: bool,
    /// When it was written.
    #[schema(value_type = String, format = DateTime)]
    created_at: Moment,
}

impl From<LogRecord> for LogItem {
    fn from(record: LogRecord) -> Self {
        let line = record.line;
        Self {
            id: line.id.to_string(),
            run_number: record.run,
            step_key: line.step.map(|step| step.to_string()),
            attempt: line.attempt,
            level: line.level.as_str(),
            category: line.category.to_string(),
            message: line.message.to_string(),
            data: line.data,
            is_replay: line.is_replay,
            created_at: Moment(line.created_at),
        }
    }
}

/// A page of hooks.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HookPage {
    /// Newest first.
    pub(crate) hooks: Vec<HookItem>,
    /// Where the next page starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cursor: Option<String>,
    /// Whether there is more.
    pub(crate) has_next_page: bool,
}

/// A hook: a durable callback and what became of it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HookItem {
    /// Its id, which is also the idempotency key that its handler is given.
    id: String,
    /// Whose handlers run for it.
    namespace: String,
    /// Which of them.
    name: String,
    /// Where it stands.
    #[schema(value_type = HookStanding)]
    status: &'static str,
    /// How often it was taken.
    attempts: u32,
    /// How many attempts it has; `null` is no limit.
    max_attempts: Option<u32>,
    /// What the handler is given.
    #[schema(value_type = Value)]
    payload: Json,
    /// When it was triggered.
    #[schema(value_type = String, format = DateTime)]
    created_at: Moment,
    /// When it last changed.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Moment,
    /// When it was last taken.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_attempt_at: Option<Moment>,
    /// When it can be taken next: its start, its retry, when it was handed back, or the end of the lease of whoever
    /// has it in hand.
    #[schema(value_type = Option<String>, format = DateTime)]
    due_at: Option<Moment>,
    /// Why the last attempt failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failure>,
}

/// The four statuses of a hook.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "the schema of a word that is written from the engine's own enum")]
pub(crate) enum HookStanding {
    Pending,
    Processing,
    Completed,
    Failed,
}

impl HookItem {
    pub(crate) fn of(hook: HookRecord) -> Self {
        Self {
            id: hook.id.to_string(),
            namespace: hook.namespace.to_string(),
            name: hook.name.to_string(),
            status: hook.status.as_str(),
            attempts: hook.attempts,
            max_attempts: hook.retries.attempts_max(),
            payload: hook.payload,
            created_at: Moment(hook.created_at),
            updated_at: Moment(hook.updated_at),
            last_attempt_at: moment(hook.last_attempt_at),
            due_at: moment(hook.due_at),
            error: hook.error.map(Failure::from),
        }
    }
}
