//! What travels to the writer thread and back.

use piton_core::record::{EventRecord, InstanceKey, InstanceRecord, LogLine, RunKey, RunNumber};
use piton_core::{Code, InstanceId, Json, Span, WorkflowName};
use tokio::sync::oneshot;

use super::batch::Batch;
use super::trouble::{Failure, Outcome, Trouble};
use super::{claim, commit, create, event, lease, log, steer};
use crate::store::{
    Action, Boundary, ClaimAnswer, ClaimRequest, Committed, CreateRequest, Created, MutationError,
    NewEvent, Renewed, StoreError,
};

/// One request, from its arrival to its answer.
pub(super) struct Job<I, O> {
    input: I,
    output: Option<Result<O, StoreError>>,
    answer: oneshot::Sender<Answered<I, O>>,
}

/// The answer, and what is left of the request: the caller's thread allocated it and is the best to free it.
pub(super) struct Answered<I, O> {
    pub(super) output: Result<O, StoreError>,
    _spent: I,
}

impl<I, O> Job<I, O> {
    pub(super) fn new(input: I) -> (Self, oneshot::Receiver<Answered<I, O>>) {
        let (answer, answered) = oneshot::channel();
        let job = Self {
            input,
            output: None,
            answer,
        };
        (job, answered)
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
    fn answer(self, failure: Option<&Failure>) {
        let output = match (failure, self.output) {
            (Some(failure), _) => Err(failure.to_error()),
            (None, Some(output)) => output,
            (None, None) => Err(StoreError::Failed("the request was never run".to_owned())),
        };
        let _ = self.answer.send(Answered {
            output,
            _spent: self.input,
        });
    }
}

/// A request to close the store.
pub(super) type Closing = Job<(), ()>;

impl Closing {
    /// Answers after everything is closed.
    pub(super) fn finish(mut self, failure: Option<&Failure>) {
        self.output = Some(Ok(()));
        self.answer(failure);
    }
}

/// What a steering request names.
pub(super) struct Steering {
    pub(super) workflow: WorkflowName,
    pub(super) id: InstanceId,
    pub(super) action: Action,
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
    Create(Job<CreateRequest, Vec<Created>>),
    SendEvent(Job<NewEvent, EventRecord>),
    Steer(Job<Steering, InstanceRecord>),
    Claim(Job<ClaimRequest, ClaimAnswer>),
    Commit(Job<Boundary, Committed>, HasMutations),
    Renew(Job<(Vec<RunKey>, Span), Vec<Renewed>>),
    Release(Job<Vec<RunKey>, ()>),
    AppendLogs(Job<Lines, ()>),
    /// Ends the thread once everything accepted before it is done.
    Close(Closing),
}

/// Does the same to the job inside, whatever it is.
macro_rules! with_job {
    ($request:expr, $job:ident => $do:expr) => {
        match $request {
            Request::Create($job) => $do,
            Request::SendEvent($job) => $do,
            Request::Steer($job) => $do,
            Request::Claim($job) => $do,
            Request::Commit($job, _) => $do,
            Request::Renew($job) => $do,
            Request::Release($job) => $do,
            Request::AppendLogs($job) => $do,
            Request::Close($job) => $do,
        }
    };
}

impl Request {
    pub(super) fn commit(job: Job<Boundary, Committed>) -> Self {
        let mutations = !job.input.mutations.is_empty();
        Self::Commit(job, HasMutations(mutations))
    }

    /// Runs the request inside the batch's transaction.
    pub(super) fn run(&mut self, batch: &mut Batch<'_, '_>) -> Result<(), Failure> {
        match self {
            Request::Create(job) => job.run(|request| create::create(batch, request)),
            Request::SendEvent(job) => job.run(|new| event::send(batch, new)),
            Request::Steer(job) => {
                job.run(|to| steer::steer(batch, &to.workflow, &to.id, to.action))
            }
            Request::Claim(job) => job.run(|request| claim::claim(batch, request)),
            Request::Commit(job, _) => job.run(|boundary| commit::commit(batch, boundary)),
            Request::Renew(job) => job.run(|(keys, span)| lease::renew(batch, keys, *span)),
            Request::Release(job) => job.run(|keys| lease::release(batch, keys)),
            Request::AppendLogs(job) => {
                job.run(|to| log::append(batch, to.instance, to.run, &to.lines))
            }
            Request::Close(job) => job.run(|()| Ok(())),
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
            Request::SendEvent(job) => job.input.payload.len_bytes(),
            Request::Commit(job, _) => boundary_bytes(&job.input),
            Request::AppendLogs(job) => lines_bytes(&job.input.lines),
            Request::Steer(_)
            | Request::Claim(_)
            | Request::Renew(_)
            | Request::Release(_)
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
