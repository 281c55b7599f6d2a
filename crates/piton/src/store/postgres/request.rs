//! What travels to the committer and back.

use piton_core::record::{InstanceKey, InstanceRecord, LogLine, RunKey, RunNumber, StepRecord};
use piton_core::{Json, Span, StepStatus, StepType};
use tokio::sync::oneshot;

use super::lease::Lent;
use super::steer::Steering;
use crate::store::{
    Boundary, Claimant, Committed, CreateRequest, Created, Mutation, NewEvent, Renewed, RowState,
    Sent, StepWrite, StoreError, WaitLook,
};
use piton_core::boundary::Next;

/// A boundary without the user's work, which can be looked at from several threads and tried more than once.
#[derive(Debug)]
pub(super) struct PlainBoundary {
    pub(super) key: RunKey,
    pub(super) steps: Vec<StepWrite>,
    pub(super) waits: Vec<WaitLook>,
    pub(super) logs: Vec<LogLine>,
    pub(super) next: Next,
}

impl PlainBoundary {
    /// Takes a boundary apart.
    pub(super) fn split(boundary: Boundary) -> (Self, Vec<Mutation>) {
        let Boundary { key, mutations, steps, waits, logs, next } = boundary;
        (Self { key, steps, waits, logs, next }, mutations)
    }

    /// The step, if one completed `do` step is all that this boundary brings.
    pub(super) fn lone_step(&self) -> Option<&StepRecord> {
        let ([step], [], []) = (&*self.steps, &*self.waits, &*self.logs) else { return None };
        let record = &*step.record;
        let lone = step.row == RowState::New && matches!(self.next, Next::Continue { .. });
        let plain = (record.step_type, record.status) == (StepType::Do, StepStatus::Completed)
            && record.error.is_none()
            && record.event_type.is_none()
            && (record.next_retry_at, record.wake_at) == (None, None);
        (lone && plain).then_some(record)
    }
}

/// What is asked of the committer.
#[derive(Debug)]
pub(super) enum Ask {
    Create(CreateRequest),
    Commit(PlainBoundary),
    SendEvent(NewEvent, Option<Claimant>),
    Steer(Steering),
    Renew(Vec<RunKey>, Span),
    Release(Vec<RunKey>),
    TakeBack(Vec<Lent>),
    AppendLogs(InstanceKey, RunNumber, Vec<LogLine>),
}

/// What it answers, in the same order.
#[derive(Debug)]
pub(super) enum Reply {
    Created(Vec<Created>),
    Committed(Committed),
    Sent(Sent),
    Steered(InstanceRecord),
    Renewed(Vec<Renewed>),
    Done,
}

/// A reply of the kind that a request is answered with.
macro_rules! reply {
    ($($name:ident: $kind:ident => $type:ty),* $(,)?) => {
        impl Reply {
            $(pub(super) fn $name(self) -> Option<$type> {
                if let Self::$kind(reply) = self { Some(reply) } else { None }
            })*
        }
    };
}
reply!(
    created: Created => Vec<Created>,
    committed: Committed => Committed,
    sent: Sent => Sent,
    steered: Steered => InstanceRecord,
    renewed: Renewed => Vec<Renewed>,
);

/// One request, from its arrival to its answer.
pub(super) struct Request {
    pub(super) ask: Ask,
    caller: oneshot::Sender<Result<Reply, StoreError>>,
}

impl Request {
    pub(super) fn new(ask: Ask) -> (Self, oneshot::Receiver<Result<Reply, StoreError>>) {
        let (caller, answered) = oneshot::channel();
        (Self { ask, caller }, answered)
    }

    pub(super) fn boundary(&self) -> Option<&PlainBoundary> {
        if let Ask::Commit(boundary) = &self.ask { Some(boundary) } else { None }
    }

    pub(super) fn create(&self) -> Option<&CreateRequest> {
        if let Ask::Create(create) = &self.ask { Some(create) } else { None }
    }

    /// Whether it is a boundary that brings a step and nothing else.
    pub(super) fn is_lone_step(&self) -> bool {
        self.boundary().is_some_and(|boundary| boundary.lone_step().is_some())
    }

    /// Answers; nobody may be listening any more.
    pub(super) fn answer(self, reply: Result<Reply, StoreError>) {
        let _ = self.caller.send(reply);
    }

    /// Bytes of payload it brings, roughly: what bounds a batch beside the number of requests.
    pub(super) fn payload_bytes(&self) -> usize {
        match &self.ask {
            Ask::Create(request) => {
                request.instances.iter().map(|new| new.params.len_bytes()).sum()
            }
            Ask::SendEvent(event, _) => event.payload.len_bytes(),
            Ask::Commit(boundary) => boundary_bytes(boundary),
            Ask::AppendLogs(_, _, lines) => lines_bytes(lines),
            Ask::Steer(_) | Ask::Renew(..) | Ask::Release(_) | Ask::TakeBack(_) => 0,
        }
    }
}

fn boundary_bytes(boundary: &PlainBoundary) -> usize {
    let results = boundary.steps.iter().filter_map(|step| step.record.result.as_ref());
    results.map(Json::len_bytes).sum::<usize>() + lines_bytes(&boundary.logs)
}

fn lines_bytes(lines: &[LogLine]) -> usize {
    let data = |line: &LogLine| line.data.as_ref().map_or(0, Json::len_bytes);
    lines.iter().map(|line| line.message.len() + data(line)).sum()
}
