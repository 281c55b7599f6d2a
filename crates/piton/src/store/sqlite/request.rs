//! What travels to the writer thread and back.

use std::sync::Arc;

use piton_core::hook::{HookRecord, NewHook};
use piton_core::record::{InstanceKey, InstanceRecord, LogLine, RunKey, RunNumber};
use piton_core::{Code, InstanceId, Json, Span, WorkflowName};
use tokio::sync::oneshot;

use super::batch::Batch;
use super::trouble::{Failure, Outcome, Trouble};
use super::{claim, commit, create, event, hook, lease, log, steer};
use crate::store::{
    Action, Boundary, ClaimAnswer, ClaimRequest, Claimant, Committed, CreateRequest, Created,
    HookWork, HooksWorked, MutationError, NewEvent, Renewed, Sent, StoreError,
};

/// One request, from its arrival to its answer.
///
/// The job itself travels to the writer and back, as one pointer: nothing in it is copied on the way, and what is
/// left of it is freed by the thread that allocated it.
pub(super) struct Job<I, O> {
    input: I,
    output: Option<Result<O, StoreError>>,
    caller: Option<oneshot::Sender<Box<Self>>>,
}

impl<I, O> Job<I, O> {
    pub(super) fn new(input: I) -> (Box<Self>, oneshot::Receiver<Box<Self>>) {
        let (caller, answered) = oneshot::channel();
        let job = Box::new(Self { input, output: None, caller: Some(caller) });
        (job, answered)
    }

    /// What the writer answered, for the caller to take.
    pub(super) fn into_output(self) -> Result<O, StoreError> {
        let never_run = || Err(StoreError::Failed("the request was never run".to_owned()));
        self.output.unwrap_or_else(never_run)
    }

    /// Runs inside the transaction and keeps the outcome for after the commit.
    fn run(&mut self, work: impl FnOnce(&mut I) -> Outcome<O>) -> Result<(), Failure> {
        self.output = Some(match work(&mut self.input) {
            Ok(output) => Ok(output),
            Err(Trouble::Answer(error)) => Err(error),
            Err(Trouble::Batch(failure)) => return Err(failure),
        });
        Ok(())
    }

    fn is_refused(&self) -> bool {
        matches!(self.output, Some(Err(_)))
    }

    /// Answers; nobody may be listening any more.
    fn answer(mut self: Box<Self>, failure: Option<&Failure>) {
        if let Some(failure) = failure {
            self.output = Some(Err(failure.to_error()));
        }
        if let Some(caller) = self.caller.take() {
            let _ = caller.send(self);
        }
    }
}

/// A request to close the store.
pub(super) type Closing = Job<(), ()>;

impl Closing {
    /// It has no part in a transaction: it is answered when everything is closed.
    pub(super) fn accept(&mut self) {
        self.output = Some(Ok(()));
    }
}

/// Leases to extend.
pub(super) struct Renewal {
    pub(super) keys: Vec<RunKey>,
    pub(super) lease: Span,
}

/// A claim of one instance.
pub(super) struct OneClaim {
    pub(super) instance: InstanceKey,
    pub(super) request: ClaimRequest,
}

/// What a steering request names.
pub(super) struct Steering {
    pub(super) workflow: WorkflowName,
    pub(super) id: InstanceId,
    pub(super) action: Action,
}

/// An event, and who would advance the run that it wakes.
pub(super) struct Sending {
    pub(super) event: NewEvent,
    pub(super) claimant: Option<Claimant>,
}

/// Lines for a run that the caller does not hold.
pub(super) struct Lines {
    pub(super) instance: InstanceKey,
    pub(super) run: RunNumber,
    pub(super) lines: Vec<LogLine>,
}

/// Whether a boundary runs code of the user's.
pub(super) struct HasMutations(bool);

/// Everything the writer thread does.
pub(super) enum Request {
    Create(Box<Job<CreateRequest, Vec<Created>>>),
    SendEvent(Box<Job<Sending, Sent>>),
    Steer(Box<Job<Steering, InstanceRecord>>),
    Claim(Box<Job<ClaimRequest, ClaimAnswer>>),
    ClaimInstance(Box<Job<OneClaim, ClaimAnswer>>),
    Commit(Box<Job<Boundary, Committed>>, HasMutations),
    Renew(Box<Job<Renewal, Vec<Renewed>>>),
    Release(Box<Job<Vec<RunKey>, ()>>),
    AppendLogs(Box<Job<Lines, ()>>),
    TriggerHooks(Box<Job<Vec<NewHook>, ()>>),
    WorkHooks(Box<Job<HookWork, HooksWorked>>),
    RetryHook(Box<Job<Arc<str>, HookRecord>>),
    /// Ends the thread once everything accepted before it is done.
    Close(Box<Closing>),
}

/// Does the same to the job inside, whatever it is.
macro_rules! with_job {
    ($request:expr, $job:ident => $do:expr) => {
        match $request {
            Request::Create($job) => $do,
            Request::SendEvent($job) => $do,
            Request::Steer($job) => $do,
            Request::Claim($job) => $do,
            Request::ClaimInstance($job) => $do,
            Request::Commit($job, _) => $do,
            Request::Renew($job) => $do,
            Request::Release($job) => $do,
            Request::AppendLogs($job) => $do,
            Request::TriggerHooks($job) => $do,
            Request::WorkHooks($job) => $do,
            Request::RetryHook($job) => $do,
            Request::Close($job) => $do,
        }
    };
}

impl Request {
    pub(super) fn commit(job: Box<Job<Boundary, Committed>>) -> Self {
        let mutations = !job.input.mutations.is_empty();
        Self::Commit(job, HasMutations(mutations))
    }

    /// Runs the request inside the batch's transaction.
    pub(super) fn run(&mut self, batch: &mut Batch<'_, '_>) -> Result<(), Failure> {
        match self {
            Request::Create(job) => job.run(|request| create::create(batch, request)),
            Request::SendEvent(job) => {
                job.run(|to| event::send(batch, &to.event, to.claimant.as_ref()))
            }
            Request::Steer(job) => {
                job.run(|to| steer::steer(batch, &to.workflow, &to.id, to.action))
            }
            Request::Claim(job) => job.run(|request| claim::claim(batch, request)),
            Request::ClaimInstance(job) => {
                job.run(|one| claim::claim_instance(batch, one.instance, &one.request))
            }
            Request::Commit(job, _) => job.run(|boundary| commit::commit(batch, boundary)),
            Request::Renew(job) => job.run(|to| lease::renew(batch, &to.keys, to.lease)),
            Request::Release(job) => job.run(|keys| lease::release(batch, keys)),
            Request::AppendLogs(job) => {
                job.run(|to| log::append(batch, to.instance, to.run, &to.lines))
            }
            Request::TriggerHooks(job) => job.run(|hooks| hook::trigger_all(batch, hooks)),
            Request::WorkHooks(job) => job.run(|work| hook::work(batch, work)),
            Request::RetryHook(job) => job.run(|id| hook::retry(batch, id)),
            Request::Close(job) => job.run(|()| Ok(())),
        }
    }

    /// Whether it is a processor's, which runs after those that trigger hooks.
    pub(super) fn takes_hooks(&self) -> bool {
        matches!(self, Request::WorkHooks(_))
    }

    /// Whether both are work of one processor.
    pub(super) fn is_of_the_same_processor(&self, other: &Self) -> bool {
        match (self, other) {
            (Request::WorkHooks(one), Request::WorkHooks(other)) => {
                (&one.input.owner, &one.input.namespace)
                    == (&other.input.owner, &other.input.namespace)
            }
            _ => false,
        }
    }

    /// Whether the rules refused it.
    pub(super) fn is_refused(&self) -> bool {
        with_job!(self, job => job.is_refused())
    }

    /// Tells the caller: its own outcome, or why the whole batch failed.
    pub(super) fn answer(self, failure: Option<&Failure>) {
        match (self, failure) {
            (Request::Commit(mut job, HasMutations(true)), Some(failure))
                if failure.by_mutations =>
            {
                job.output = Some(Err(StoreError::Mutation(MutationError {
                    code: Code::StepTransaction,
                    message: failure.message.clone(),
                })));
                job.answer(None);
            }
            (request, failure) => with_job!(request, job => job.answer(failure)),
        }
    }

    /// Bytes of payload it brings, roughly: what bounds a transaction beside the number of requests.
    pub(super) fn payload_bytes(&self) -> usize {
        match self {
            Request::Create(job) => {
                let params = job.input.instances.iter().map(|new| &new.params);
                params.map(Json::len_bytes).sum()
            }
            Request::SendEvent(job) => job.input.event.payload.len_bytes(),
            Request::Commit(job, _) => boundary_bytes(&job.input),
            Request::AppendLogs(job) => lines_bytes(&job.input.lines),
            Request::TriggerHooks(job) => {
                job.input.iter().map(|hook| hook.payload.len_bytes()).sum()
            }
            Request::Steer(_)
            | Request::Claim(_)
            | Request::ClaimInstance(_)
            | Request::Renew(_)
            | Request::Release(_)
            | Request::WorkHooks(_)
            | Request::RetryHook(_)
            | Request::Close(_) => 0,
        }
    }
}

fn boundary_bytes(boundary: &Boundary) -> usize {
    let results: usize = boundary
        .steps
        .iter()
        .filter_map(|step| step.record.result.as_ref())
        .map(Json::len_bytes)
        .sum();
    results + lines_bytes(&boundary.logs)
}

fn lines_bytes(lines: &[LogLine]) -> usize {
    lines
        .iter()
        .map(|line| line.message.len() + line.data.as_ref().map_or(0, Json::len_bytes))
        .sum()
}
