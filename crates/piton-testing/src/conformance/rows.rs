//! What cases put in: names, requests, boundaries, steps.

use std::sync::Arc;

use piton::store::{
    Boundary, ClaimRequest, CreateRequest, Existing, NewEvent, NewInstance, PageQuery, RowState,
    StepWrite, WaitLook,
};
use piton_core::boundary::Next;
use piton_core::claim::ClaimRules;
use piton_core::record::{LogLine, RecordedError, RunKey, StepRecord};
use piton_core::{
    EventType, InstanceId, Json, LogLevel, Span, StepName, StepStatus, StepType, TaskKind,
    Timestamp, WorkflowName,
};

use super::stage::Stage;

/// How long claims last.
pub(crate) const LEASE: Span = Span::from_millis(30_000);

/// Claims without progress after which a claim quarantines.
pub(crate) const CLAIMS_MAX: u32 = 3;

/// More than any case creates.
pub(crate) const ALL: usize = 10_000;

pub(crate) fn checkout() -> WorkflowName {
    workflow("checkout")
}

pub(crate) fn workflow(name: &str) -> WorkflowName {
    WorkflowName::from_stored(name)
}

pub(crate) fn id(id: &str) -> InstanceId {
    InstanceId::from_stored(id)
}

pub(crate) fn json(text: &str) -> Json {
    Json::from_valid_text(text)
}

pub(crate) fn new_instance(name: &str) -> NewInstance {
    NewInstance { id: id(name), params: json("{\"cents\":100}") }
}

pub(crate) fn create_request(ids: &[&str], existing: Existing) -> CreateRequest {
    CreateRequest {
        workflow: checkout(),
        instances: ids.iter().map(|id| new_instance(id)).collect(),
        existing,
        lease: None,
        hooks: Vec::new(),
    }
}

pub(crate) fn event(receiver: &str, event_type: &str) -> NewEvent {
    NewEvent {
        workflow: checkout(),
        id: id(receiver),
        event_type: EventType::from_stored(event_type),
        payload: Json::null(),
        idempotency_key: None,
        hooks: Vec::new(),
    }
}

/// A claim of up to `wanted` runs of `checkout`.
pub(crate) fn claim_request(runner: &str, wanted: usize) -> ClaimRequest {
    ClaimRequest {
        runner: runner.into(),
        workflows: [checkout()].into(),
        wanted,
        suspects: true,
        rules: ClaimRules { lease: LEASE, claims_without_progress_max: CLAIMS_MAX },
    }
}

/// The whole of a run in one page.
pub(crate) fn whole(key: RunKey) -> PageQuery {
    PageQuery {
        instance: key.instance,
        run: key.run,
        after: None,
        descending: false,
        limit: u32::MAX,
    }
}

/// A boundary that writes nothing; cases say what it writes with `..boundary(key)`.
pub(crate) fn boundary(key: RunKey) -> Boundary {
    Boundary {
        key,
        mutations: Vec::new(),
        steps: Vec::new(),
        waits: Vec::new(),
        logs: Vec::new(),
        next: Next::Continue { bodies_running: false },
    }
}

/// A boundary in the middle of which other bodies run.
pub(crate) fn boundary_with_bodies_running(key: RunKey) -> Boundary {
    Boundary { next: Next::Continue { bodies_running: true }, ..boundary(key) }
}

pub(crate) fn suspend(run_at: Timestamp) -> Next {
    Next::Suspend { run_at, kind: TaskKind::Wake }
}

pub(crate) fn suspend_for_retry(run_at: Timestamp) -> Next {
    Next::Suspend { run_at, kind: TaskKind::Retry }
}

pub(crate) fn complete(key: RunKey) -> Boundary {
    let output = json("\"done\"");
    Boundary { next: Next::Complete { output }, ..boundary(key) }
}

pub(crate) fn fail(key: RunKey) -> Boundary {
    let error = RecordedError::new("CardDeclined", "no money");
    Boundary { next: Next::Fail { error }, ..boundary(key) }
}

impl Stage {
    fn step(&self, name: &str, position: u32, step_type: StepType) -> StepRecord {
        StepRecord::new(StepName::from_stored(name), step_type, position, self.now())
    }

    /// A `do` that is done.
    pub(crate) fn completed_step(&self, name: &str, position: u32) -> StepWrite {
        let record = StepRecord {
            status: StepStatus::Completed,
            attempts: 1,
            attempts_max: Some(6),
            result: Some(json("1")),
            ..self.step(name, position, StepType::Do)
        };
        new_row(record)
    }

    /// A `do` whose first attempt failed.
    pub(crate) fn failed_attempt(&self, name: &str, position: u32, retry: Timestamp) -> StepWrite {
        let record = StepRecord {
            attempts: 1,
            attempts_max: Some(6),
            next_retry_at: Some(retry),
            error: Some(RecordedError::new("Error", "busy")),
            ..self.step(name, position, StepType::Do)
        };
        new_row(record)
    }

    pub(crate) fn sleep(&self, name: &str, position: u32, wake_at: Timestamp) -> StepWrite {
        let record =
            StepRecord { wake_at: Some(wake_at), ..self.step(name, position, StepType::Sleep) };
        new_row(record)
    }

    /// A wait that is reached for the first time; its outcome is recorded as `position + 100`.
    pub(crate) fn wait(
        &self,
        name: &str,
        position: u32,
        event_type: &str,
        timeout_ms: i64,
    ) -> WaitLook {
        WaitLook {
            record: Arc::new(StepRecord {
                wake_at: Some(self.in_ms(timeout_ms)),
                event_type: Some(EventType::from_stored(event_type)),
                ..self.step(name, position, StepType::WaitForEvent)
            }),
            row: RowState::New,
            seq: position + 100,
        }
    }

    pub(crate) fn log_line(&self, level: LogLevel, category: &str, message: &str) -> LogLine {
        LogLine {
            id: format!("log_{message}").into(),
            step: None,
            attempt: None,
            level,
            category: category.into(),
            message: message.into(),
            data: None,
            is_replay: false,
            created_at: self.now(),
        }
    }
}

fn new_row(record: StepRecord) -> StepWrite {
    StepWrite { record: Arc::new(record), row: RowState::New }
}

/// The same wait on a later look: its row is stored.
pub(crate) fn look_again(wait: WaitLook) -> WaitLook {
    WaitLook { row: RowState::Stored, ..wait }
}
