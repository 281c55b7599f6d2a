//! One pass over a workflow's function: the state that the code's steps and the driver share.
//!
//! ```text
//!   the workflow's future                         Pass                              Driver
//!   step.run(..).poll  ── ask / poll / finish ──> slots, one per step name <── collect, reveal, grant ──>  Store
//! ```
//!
//! The life of a step, which is the [`Phase`] of its slot:
//!
//! ```text
//!   not asked for ── ask ──> recorded? ── yes ──> Settled ── its turn ──> Revealed
//!                               │ no
//!                               ├─ do ────> Wanting ── granted ──> Running ── body ended ──> Ended ── committed ──> Settled
//!                               │              ^                                               │
//!                               │              └──── its retry is due ──── Waiting <── failed, may retry
//!                               └─ sleep, wait ──────────────────────────> Waiting ── due / event ──> Settled
//! ```
//!
//! **A result is revealed to the code one at a time, in the order in which results were recorded.** So the
//! branch of a `select!` that won once wins on every replay. Suspension never appears here: a step that
//! must wait is simply pending.

mod bell;
mod clock;
mod driver;
mod ledger;
mod logbook;
pub(crate) mod scope;
mod slots;

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use piton_core::planted::{Bug, planted};
use piton_core::record::{RecordedError, StepRecord};
use piton_core::{
    Code, EventType, InstanceId, Json, Limits, Refusal, Retries, Span, StepName, StepStatus,
    StepType, Timestamp, WorkflowName, story,
};

use crate::intercept::Interceptor;
use crate::store::{Mutation, RowState};
use crate::{Error, Result};

pub(crate) use bell::{Bell, Order};
pub(crate) use clock::{Asked, PassClock};
pub(crate) use driver::{Departure, Driver, Parkable, tell_fenced};
use ledger::Outgoing;
pub(crate) use logbook::{Draft, Logbook};
pub(crate) use slots::SlotId;
use slots::Slots;

/// Which run this is, for keys, errors and log lines.
#[derive(Clone, Debug)]
pub(crate) struct RunInfo {
    pub(crate) workflow: WorkflowName,
    pub(crate) id: InstanceId,
    pub(crate) run: u32,
}

/// What the workflow's code and its driver share.
pub(crate) struct Pass {
    pub(crate) info: RunInfo,
    pub(crate) limits: Arc<Limits>,
    pub(crate) step_defaults: Arc<StepDefaults>,
    pub(crate) check_created: Arc<dyn CheckCreated>,
    pub(crate) interceptor: Option<Arc<dyn Interceptor>>,
    state: Mutex<State>,
}

/// What a step gets when its code says nothing.
#[derive(Clone, Debug)]
pub(crate) struct StepDefaults {
    pub(crate) retries: Arc<Retries>,
    pub(crate) timeout: Span,
    pub(crate) wait_timeout: Span,
}

/// Refuses params that a workflow of this engine could not decode.
pub(crate) trait CheckCreated: Send + Sync {
    fn check_created(&self, workflow: &str, params: &Json) -> Result<WorkflowName>;
}

struct State {
    clock: PassClock,
    slots: Slots,
    /// Settled, asked for and not yet revealed, by the order of recording.
    revealable: BTreeMap<u32, SlotId>,
    /// Steps that want their body started, in the order in which the code asked.
    wanting: Vec<SlotId>,
    /// Asked for and waiting: sleeps, waits for events, retry delays.
    waiting: Vec<SlotId>,
    /// Bodies that ended and are not yet on their way to the store.
    ended: VecDeque<SlotId>,
    /// Waits, and steps between two attempts, that the code dropped: the losers of a `select!`.
    abandoned: Vec<SlotId>,
    /// Bodies that were granted and have not ended.
    running: Vec<SlotId>,
    /// Rows on their way to the store, in the order of their seq.
    outbox: VecDeque<Outgoing>,
    steps_asked: u32,
    next_seq: u32,
    log: Logbook,
}

/// Everything known about one step name in this pass.
struct Slot {
    name: StepName,
    step_type: StepType,
    phase: Phase,
    /// The row as it is, or as it will be with the next commit: shared with the boundary that writes it.
    record: Option<Arc<StepRecord>>,
    row: RowState,
    /// The waker of the future that asks for this step, while there is one.
    asker: Option<Waker>,
    /// The code has asked for it in this pass.
    asked: bool,
    /// The retry policy and timeout the code asked with.
    plan: DoPlan,
    /// The body is used up, so that a retry needs a new pass.
    spent: bool,
    /// Recorded before this claim and not yet passed by the code.
    replayed: bool,
    reuse_told: bool,
}

#[derive(Clone, Debug)]
struct DoPlan {
    retries: Arc<Retries>,
    timeout: Span,
    /// The body can be made again for another attempt in the same pass.
    repeatable: bool,
}

enum Phase {
    /// Nobody asks for it.
    Idle,
    /// Its outcome is recorded; the code has not seen it in this pass.
    Settled,
    /// The code may have it.
    Revealed,
    /// Its body wants to start.
    Wanting,
    /// Its body may start at the next poll.
    Granted,
    /// Its body is being polled.
    Running { attempt: u32, started_at: Timestamp, deadline_us: u64 },
    /// Its body ended; the driver has not taken note yet.
    Ended { attempt: u32, started_at: Timestamp, outcome: Result<Json>, mutations: Vec<Mutation> },
    /// Its outcome is on the way to the store and must not be seen before it is committed.
    Committing,
    /// A sleep, a wait for an event, or a failed attempt until its retry.
    Waiting,
}

/// What a step's future asks for when it is first polled.
pub(crate) enum Ask {
    Do { retries: Arc<Retries>, timeout: Span, repeatable: bool },
    Sleep { wake: SleepUntil },
    Wait { event_type: EventType, timeout: Span },
}

/// When a sleep ends, as the code says it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SleepUntil {
    After(Span),
    At(Timestamp),
}

/// What a step's future does next.
pub(crate) enum StepPoll {
    /// Nothing. If it has a body, drop it: the attempt is over.
    Pending,
    /// Start the body with this attempt number, and poll it.
    Start { attempt: u32 },
    /// Poll the body.
    Run { attempt: u32 },
    /// Return this.
    Done(std::result::Result<Json, RecordedError>),
}

impl Ask {
    pub(crate) fn step_type(&self) -> StepType {
        match self {
            Ask::Do { .. } => StepType::Do,
            Ask::Sleep { .. } => StepType::Sleep,
            Ask::Wait { .. } => StepType::WaitForEvent,
        }
    }
}

impl Pass {
    pub(crate) fn new(
        info: RunInfo,
        shared: &crate::engine::Shared,
        clock: PassClock,
        steps: Vec<StepRecord>,
    ) -> Self {
        let next_seq = steps.iter().map(|s| s.position.max(s.seq) + 1).max().unwrap_or(1);
        let replayed = steps.iter().filter(|s| s.status != StepStatus::Pending).count();
        let slots = steps.into_iter().map(Slot::recorded).collect();
        let log = Logbook::new(Arc::clone(&shared.limits), Arc::clone(&shared.ids), replayed);
        Self {
            info,
            limits: Arc::clone(&shared.limits),
            step_defaults: Arc::clone(&shared.step_defaults),
            check_created: Arc::clone(&shared.registry) as Arc<dyn CheckCreated>,
            interceptor: shared.interceptor.clone(),
            state: Mutex::new(State {
                clock,
                slots,
                revealable: BTreeMap::new(),
                wanting: Vec::new(),
                waiting: Vec::new(),
                ended: VecDeque::new(),
                abandoned: Vec::new(),
                running: Vec::new(),
                outbox: VecDeque::new(),
                steps_asked: 0,
                next_seq,
                log,
            }),
        }
    }

    /// A new id.
    pub(crate) fn new_id(&self, prefix: &str) -> Arc<str> {
        self.lock().log.new_id(prefix)
    }

    /// A step's future is polled for the first time.
    ///
    /// # Errors
    ///
    /// Misuse that only depends on the code, so that every replay sees the same error.
    pub(crate) fn ask(&self, name: &StepName, ask: Ask, waker: &Waker) -> Result<SlotId> {
        let mut state = self.lock();
        let state = &mut *state;
        let step_type = ask.step_type();
        let id = state.slots.id_or_insert(name, || Slot::new(name.clone(), step_type));
        let slot = &mut state.slots[id];
        slot.check_ask(step_type)?;
        if matches!(slot.phase, Phase::Revealed) && !mem::replace(&mut slot.reuse_told, true) {
            state.log.system(story::step_name_reused(name), state.clock.latest());
        }
        if step_type == StepType::Do && !slot.asked {
            if state.steps_asked >= self.limits.steps_max {
                return Err(too_many_steps(name, self.limits.steps_max));
            }
            state.steps_asked += 1;
        }
        slot.asked = true;
        slot.asker = Some(waker.clone());
        if let Ask::Do { retries, timeout, repeatable } = &ask {
            let retries = Arc::clone(retries);
            slot.plan = DoPlan { retries, timeout: *timeout, repeatable: *repeatable };
            slot.spent = false;
        }
        if matches!(slot.phase, Phase::Idle) {
            state.begin(id, ask, &self.limits);
        } else if matches!(slot.phase, Phase::Settled) {
            let seq = slot.record.as_ref().expect("a settled step is recorded").seq;
            state.revealable.insert(seq, id);
        }
        Ok(id)
    }

    /// A step's future is polled again.
    pub(crate) fn poll(&self, id: SlotId, waker: &Waker) -> StepPoll {
        let mut state = self.lock();
        let state = &mut *state;
        let slot = &mut state.slots[id];
        match &slot.asker {
            Some(known) if known.will_wake(waker) => {}
            _ => slot.asker = Some(waker.clone()),
        }
        match &slot.phase {
            Phase::Revealed => StepPoll::Done(slot.outcome()),
            Phase::Running { attempt, .. } => StepPoll::Run { attempt: *attempt },
            Phase::Granted => {
                let attempt = slot.record.as_ref().map_or(0, |r| r.attempts) + 1;
                let timeout_us =
                    slot.plan.timeout.as_millis().max(0).unsigned_abs().saturating_mul(1_000);
                let now_us = state.clock.monotonic_us();
                slot.phase = Phase::Running {
                    attempt,
                    started_at: state.clock.latest_at(now_us),
                    deadline_us: now_us.saturating_add(timeout_us),
                };
                StepPoll::Start { attempt }
            }
            Phase::Idle
            | Phase::Settled
            | Phase::Wanting
            | Phase::Ended { .. }
            | Phase::Committing
            | Phase::Waiting => StepPoll::Pending,
        }
    }

    /// A body ended. Refused (and thereby forgotten) if its attempt is over already.
    pub(crate) fn body_ended(&self, id: SlotId, outcome: Result<Json>, mutations: Vec<Mutation>) {
        let mut state = self.lock();
        let state = &mut *state;
        let slot = &mut state.slots[id];
        if let Phase::Running { attempt, started_at, deadline_us } = slot.phase {
            // A body that blocked its thread past its deadline has timed out all the same.
            let late = state.clock.monotonic_us() > deadline_us;
            let outcome = if late { Err(timed_out(slot.plan.timeout)) } else { outcome };
            let kept = outcome.is_ok() || planted(Bug::FailedAttemptMutates);
            let mutations = if kept { mutations } else { Vec::new() };
            slot.phase = Phase::Ended { attempt, started_at, outcome, mutations };
            slot.spent = !slot.plan.repeatable;
            state.running.retain(|running| *running != id);
            state.ended.push_back(id);
        }
    }

    /// An attempt is over as if its body had taken too long.
    pub(crate) fn time_out(&self, id: SlotId) {
        let timeout = self.lock().slots[id].plan.timeout;
        self.body_ended(id, Err(timed_out(timeout)), Vec::new());
    }

    /// The code dropped a step's future.
    pub(crate) fn drop_ask(&self, id: SlotId) {
        let mut state = self.lock();
        let state = &mut *state;
        let slot = &mut state.slots[id];
        slot.asker = None;
        match &slot.phase {
            Phase::Wanting | Phase::Granted | Phase::Running { .. } => {
                // This attempt was never recorded; an earlier one, if there was one, waits for nobody now.
                slot.phase = Phase::Idle;
                state.wanting.retain(|wanting| *wanting != id);
                state.running.retain(|running| *running != id);
                if slot.record.is_some() {
                    state.abandoned.push(id);
                }
            }
            Phase::Waiting => {
                slot.phase = Phase::Idle;
                state.waiting.retain(|waiting| *waiting != id);
                state.abandoned.push(id);
            }
            Phase::Settled => {
                let seq = slot.record.as_ref().expect("a settled step is recorded").seq;
                state.revealable.remove(&seq);
            }
            Phase::Idle | Phase::Revealed | Phase::Ended { .. } | Phase::Committing => {}
        }
    }

    pub(crate) fn write_log(&self, line: Draft) {
        let mut state = self.lock();
        let now = state.clock.latest();
        state.log.write(line, now);
    }

    /// What the run is doing now: a running step, if there is one.
    pub(crate) fn running_step(&self) -> Option<RunningStep> {
        let state = self.lock();
        let slot = &state.slots[*state.running.first()?];
        let Phase::Running { attempt, started_at, .. } = slot.phase else { return None };
        let (name, attempts_max) = (slot.name.clone(), slot.plan.retries.attempts_max());
        Some(RunningStep { name, attempt, attempts_max, timeout: slot.plan.timeout, started_at })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of user code never happens under this lock; if one of ours did, the state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A step whose body is running in this process.
pub(crate) struct RunningStep {
    pub(crate) name: StepName,
    pub(crate) attempt: u32,
    pub(crate) attempts_max: Option<u32>,
    pub(crate) timeout: Span,
    pub(crate) started_at: Timestamp,
}

impl Slot {
    fn new(name: StepName, step_type: StepType) -> Self {
        let plan = DoPlan { retries: Arc::default(), timeout: Span::ZERO, repeatable: false };
        Self {
            name,
            step_type,
            phase: Phase::Idle,
            record: None,
            row: RowState::New,
            asker: None,
            asked: false,
            plan,
            spent: false,
            replayed: false,
            reuse_told: false,
        }
    }

    fn recorded(record: StepRecord) -> Self {
        let phase = if record.status.is_settled() { Phase::Settled } else { Phase::Idle };
        let replayed = record.status != StepStatus::Pending;
        let new = Self::new(record.name.clone(), record.step_type);
        Self { phase, row: RowState::Stored, replayed, record: Some(Arc::new(record)), ..new }
    }

    fn check_ask(&self, step_type: StepType) -> Result<()> {
        let name = &self.name;
        let refuse = |code, message: String| Err(Refusal::new(code, message).into());
        if self.step_type != step_type {
            let was = self.step_type;
            return refuse(
                Code::StepTypeMismatch,
                format!(
                    "step {name:?} was recorded as `{was}` and is now used as `{step_type}`; give it a new name"
                ),
            );
        }
        if self.asker.is_some() {
            return refuse(
                Code::DuplicateStepKey,
                format!(
                    "two steps named {name:?} are awaited at the same time; give each its own name"
                ),
            );
        }
        Ok(())
    }

    fn outcome(&self) -> std::result::Result<Json, RecordedError> {
        let record = self.record.as_ref().expect("a revealed step is recorded");
        match record.status {
            StepStatus::Errored => Err(record
                .error
                .clone()
                .unwrap_or_else(|| RecordedError::new("Error", "no error was recorded"))),
            StepStatus::Completed | StepStatus::Waiting | StepStatus::Pending => {
                Ok(record.result.clone().unwrap_or_else(Json::null))
            }
        }
    }
}

fn too_many_steps(name: &StepName, max: u32) -> Error {
    let message =
        format!("step {name:?} is one more than the limit of {max} steps per run (steps_max)");
    Refusal::new(Code::TooManySteps, message).into()
}

/// The error of an attempt that took longer than its timeout.
fn timed_out(timeout: Span) -> Error {
    Error::new(format!("the attempt took longer than its timeout of {timeout}"))
        .named("StepTimeout")
}
