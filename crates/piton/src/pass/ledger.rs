//! The bookkeeping of a pass: how ended bodies, due timers and answers of the store change the slots,
//! and what has to be written next. No I/O here; the driver does that.

use std::mem;
use std::sync::Arc;

use piton_core::boundary::Next;
use piton_core::planted::{Bug, planted};
use piton_core::record::{LogLine, RunKey, StepRecord};
use piton_core::{Code, Limits, Span, StepName, StepStatus, StepType, TaskKind, Timestamp, story};

use super::{Ask, Phase, SleepUntil, Slot, SlotId, State, timed_out};
use crate::Error;
use crate::error::refusal_name;
use crate::store::{Boundary, Mutation, MutationError, RowState, StepWrite, WaitLook};

/// A row on its way to the store, with the mutations that must be committed with it.
pub(super) struct Outgoing {
    slot: SlotId,
    write: StepWrite,
    mutations: Vec<Mutation>,
}

/// What the next boundary will consist of, except what becomes of the run.
pub(super) struct Content {
    pub(super) mutations: Vec<Mutation>,
    pub(super) steps: Vec<StepWrite>,
    pub(super) waits: Vec<WaitLook>,
    pub(super) logs: Vec<LogLine>,
    /// More rows are waiting behind a step transaction: the run cannot end or suspend yet.
    pub(super) more: bool,
    /// The step whose transaction this is.
    pub(super) committing: Option<SlotId>,
}

impl Content {
    /// What to go back to if the step transaction in it fails; `None` if there is none in it.
    pub(super) fn rolled_back(&self) -> Option<RolledBack> {
        let committing = self.committing?;
        let waits = self.waits.iter().map(|wait| (wait.record.name.clone(), wait.row));
        Some(RolledBack {
            committing,
            steps: self.steps.clone(),
            waits: waits.collect(),
            logs: self.logs.clone(),
        })
    }

    pub(super) fn into_boundary(self, key: RunKey, next: Next) -> Boundary {
        let Content { mutations, steps, waits, logs, .. } = self;
        Boundary { key, mutations, steps, waits, logs, next }
    }
}

impl State {
    /// The code asks for a step that nobody asked for before, or whose asker went away.
    pub(super) fn begin(&mut self, id: SlotId, ask: Ask, limits: &Limits) {
        let slot = &mut self.slots[id];
        if slot.record.is_none() && slot.step_type == StepType::Do {
            slot.phase = Phase::Wanting;
            return self.wanting.push(id);
        }
        if slot.record.is_none() {
            let now = self.clock.latest();
            let position = take_seq(&mut self.next_seq);
            let record = first_record(slot, ask, position, now);
            let span = record.wake_at.map_or(Span::ZERO, |wake_at| wake_at.since(now));
            slot.record = Some(Arc::new(record));
            let too_long = limits.check_sleep(span).map_err(Error::from).err();
            if let Some(error) = too_long.filter(|_| slot.step_type == StepType::Sleep) {
                return self.refuse(id, &error);
            }
        }
        let record = slot.record.as_mut().expect("made above");
        if record.status == StepStatus::Pending {
            Arc::make_mut(record).status = StepStatus::Waiting;
            slot.row = RowState::Changed;
        }
        slot.phase = Phase::Waiting;
        self.waiting.push(id);
    }

    /// Ends a step with an error that depends on the time: recorded, so that a replay sees it again.
    fn refuse(&mut self, id: SlotId, error: &Error) {
        if let Some(record) = &mut self.slots[id].record {
            let record = Arc::make_mut(record);
            (record.status, record.error) = (StepStatus::Errored, Some(error.to_record()));
        }
        self.queue(id, Vec::new());
    }

    /// Takes note of the attempts that ended since the last look, and of those that took too long.
    pub(super) fn collect(&mut self, limits: &Limits) {
        self.time_out_attempts();
        while let Some(id) = self.ended.pop_front() {
            self.record_attempt(id, limits);
        }
    }

    fn time_out_attempts(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let now_us = self.clock.monotonic_us();
        let State { running, ended, slots, .. } = self;
        running.retain(|id| {
            let slot = &mut slots[*id];
            let Phase::Running { attempt, started_at, deadline_us } = slot.phase else {
                return true;
            };
            if now_us <= deadline_us {
                return true;
            }
            let (outcome, mutations) = (Err(timed_out(slot.plan.timeout)), Vec::new());
            slot.phase = Phase::Ended { attempt, started_at, outcome, mutations };
            slot.spent = !slot.plan.repeatable;
            slot.wake();
            ended.push_back(*id);
            false
        });
    }

    /// An attempt ended: completed, to be retried, or failed for good.
    fn record_attempt(&mut self, id: SlotId, limits: &Limits) {
        let now = self.clock.latest();
        let slot = &mut self.slots[id];
        let Phase::Ended { attempt, started_at, outcome, mutations } =
            mem::replace(&mut slot.phase, Phase::Idle)
        else {
            return;
        };
        let outcome = outcome.and_then(|result| {
            limits.check_payload(|| format!("the result of step {:?}", slot.name), &result)?;
            Ok(result)
        });
        let seq = take_seq(&mut self.next_seq);
        let mut record = match slot.record.take() {
            Some(record) => Arc::unwrap_or_clone(record),
            None => StepRecord::new(slot.name.clone(), StepType::Do, seq, now),
        };
        record.attempts = attempt;
        record.attempts_max = slot.plan.retries.attempts_max();
        record.timeout_ms = Some(slot.plan.timeout.as_millis());
        record.started_at = started_at;
        record.updated_at = now;
        record.seq = seq;
        record.next_retry_at = None;
        record.error = None;
        match outcome {
            Ok(result) => {
                record.status = StepStatus::Completed;
                record.result = Some(result);
            }
            Err(error) => fail(&mut record, slot, &error, now, limits, &mut self.log),
        }
        slot.record = Some(Arc::new(record));
        self.queue(id, mutations);
    }

    /// Puts a step's row into the outbox and moves its slot on.
    fn queue(&mut self, id: SlotId, mutations: Vec<Mutation>) {
        let slot = &mut self.slots[id];
        let record = Arc::clone(slot.record.as_ref().expect("set by the caller"));
        let row = match mem::replace(&mut slot.row, RowState::Stored) {
            RowState::New => RowState::New,
            RowState::Changed | RowState::Stored => RowState::Changed,
        };
        self.log.went_live();
        if !mutations.is_empty() {
            slot.phase = Phase::Committing;
        } else if record.status.is_settled() {
            self.settle(id);
        } else {
            slot.phase = if slot.asker.is_some() { Phase::Waiting } else { Phase::Idle };
            if slot.asker.is_some() {
                self.waiting.push(id);
            }
        }
        self.outbox.push_back(Outgoing { slot: id, write: StepWrite { record, row }, mutations });
    }

    /// A step has its outcome: it is revealed when its turn comes, if the code asks for it.
    fn settle(&mut self, id: SlotId) {
        let slot = &mut self.slots[id];
        slot.phase = Phase::Settled;
        if slot.asker.is_some() {
            let seq = slot.record.as_ref().expect("a settled step is recorded").seq;
            self.revealable.insert(seq, id);
        }
    }

    /// Ends sleeps that are over and lets retries that are due ask for their body again. `false` if no sleep
    /// is over.
    pub(super) fn settle_due(&mut self) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let now = match planted(Bug::TimerEarly) {
            true => self.clock.latest(),
            false => self.clock.earliest(),
        };
        let mut over = Vec::new();
        let State { waiting, wanting, slots, .. } = self;
        waiting.retain(|id| {
            let slot = &mut slots[*id];
            let due = slot.due_at().is_some_and(|at| at <= now);
            match slot.step_type {
                StepType::Sleep if due => over.push(*id),
                StepType::Do if (due || planted(Bug::RetryGapIgnored)) && !slot.spent => {
                    slot.phase = Phase::Wanting;
                    wanting.push(*id);
                }
                // Only the store can say whether a wait got its event in time.
                StepType::WaitForEvent | StepType::Sleep | StepType::Do => return true,
            }
            false
        });
        let any = !over.is_empty();
        for id in over {
            let seq = take_seq(&mut self.next_seq);
            let updated_at = self.clock.latest();
            let record = self.slots[id].record.as_mut();
            let record = record.expect("a sleep is recorded when it is asked for");
            let record = Arc::make_mut(record);
            (record.status, record.seq) = (StepStatus::Completed, seq);
            record.updated_at = updated_at;
            self.queue(id, Vec::new());
        }
        any
    }

    /// Reveals the oldest recorded result that the code asks for. `false` if there is none, or if an older
    /// one is still on its way through a transaction: on replay that one comes first.
    pub(super) fn reveal_next(&mut self) -> bool {
        let transaction = self.transaction_seq();
        let Some(first) = self.revealable.first_entry() else { return false };
        if transaction.is_some_and(|seq| seq < *first.key()) {
            return false;
        }
        let slot = &mut self.slots[first.remove()];
        slot.phase = Phase::Revealed;
        if mem::take(&mut slot.replayed) {
            self.log.passed();
        }
        slot.wake();
        true
    }

    /// Lets every step that wants to start its body do so. `false` if there is none.
    pub(super) fn grant_all(&mut self) -> bool {
        let any = !self.wanting.is_empty();
        for id in &self.wanting {
            let slot = &mut self.slots[*id];
            slot.phase = Phase::Granted;
            if mem::take(&mut slot.replayed) {
                self.log.passed();
            }
            slot.wake();
        }
        if any {
            self.log.went_live();
        }
        self.running.append(&mut self.wanting);
        any
    }

    /// The place in the record of the oldest step transaction that is not on its way yet.
    pub(super) fn transaction_seq(&self) -> Option<u32> {
        let transaction = self.outbox.iter().find(|outgoing| !outgoing.mutations.is_empty());
        transaction.map(|outgoing| outgoing.write.record.seq)
    }

    /// Something must be written: results, or a wait that is not registered. A dropped wait goes with the next.
    pub(super) fn has_news(&self) -> bool {
        let unwritten = |slot: &Slot| slot.row != RowState::Stored;
        !self.outbox.is_empty() || self.waiting_slots().any(unwritten)
    }

    /// The code waits for an event.
    pub(super) fn awaits_event(&self) -> bool {
        self.waiting_slots().any(|slot| slot.step_type == StepType::WaitForEvent)
    }

    /// A wait for an event is past its deadline: the store has to say which outcome it has.
    pub(super) fn wait_is_due(&self) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let now = self.clock.earliest();
        self.waiting_slots().any(|slot| {
            slot.step_type == StepType::WaitForEvent && slot.due_at().is_some_and(|at| at <= now)
        })
    }

    /// When the run has to be advanced next, if nothing else happens; `None` while something else can, as when
    /// a step transaction is committed.
    pub(super) fn suspension(&self) -> Option<(Timestamp, TaskKind)> {
        if self.outbox.iter().any(|outgoing| !outgoing.mutations.is_empty()) {
            return None;
        }
        let due = self.waiting_slots().filter_map(|slot| Some((slot.due_at()?, slot.step_type)));
        let (at, step_type) = due.min_by_key(|(at, _)| *at)?;
        let kind = match step_type {
            StepType::Do => TaskKind::Retry,
            StepType::Sleep | StepType::WaitForEvent => TaskKind::Wake,
        };
        Some((at, kind))
    }

    /// The earliest moment, on our own clock, at which a timer of this pass has to be looked at.
    pub(super) fn next_timer_us(&self) -> Option<u64> {
        let (now, now_us) = (self.clock.earliest(), self.clock.monotonic_us());
        let deadlines = self.running.iter().filter_map(|id| {
            let Phase::Running { deadline_us, .. } = self.slots[*id].phase else {
                return None;
            };
            Some(deadline_us.saturating_add(1))
        });
        let wakes = self.waiting_slots().filter_map(|slot| {
            let ahead = slot.due_at()?.since(now).as_millis();
            // A retry whose body is used up needs a new pass: no timer of this one can help it.
            (!slot.spent)
                .then(|| now_us.saturating_add(ahead.max(0).unsigned_abs().saturating_mul(1_000)))
        });
        deadlines.chain(wakes).min()
    }

    /// Takes what the next boundary writes: everything up to and including one step transaction.
    pub(super) fn take_content(&mut self) -> Content {
        let (mut steps, mut mutations, mut committing) = (Vec::new(), Vec::new(), None);
        while let Some(outgoing) = self.outbox.pop_front() {
            put_row(&mut steps, outgoing.write);
            if !outgoing.mutations.is_empty() {
                (mutations, committing) = (outgoing.mutations, Some(outgoing.slot));
                break;
            }
        }
        let more = !self.outbox.is_empty();
        let waits = self.take_waits(&mut steps);
        // The row of an abandoned step may still be in the outbox.
        if !more {
            self.take_abandoned(&mut steps);
        }
        Content { mutations, steps, waits, logs: self.log.take(), more, committing }
    }

    fn take_waits(&mut self, steps: &mut Vec<StepWrite>) -> Vec<WaitLook> {
        let mut looks = Vec::new();
        for id in &self.waiting {
            let slot = &mut self.slots[*id];
            let record = Arc::clone(slot.record.as_ref().expect("a waiting step is recorded"));
            let row = mem::replace(&mut slot.row, RowState::Stored);
            if row != RowState::Stored {
                self.log.went_live();
            }
            if slot.step_type == StepType::WaitForEvent {
                looks.push(WaitLook { record, row, seq: take_seq(&mut self.next_seq) });
            } else if row != RowState::Stored {
                put_row(steps, StepWrite { record, row });
            }
        }
        looks
    }

    fn take_abandoned(&mut self, steps: &mut Vec<StepWrite>) {
        for id in self.abandoned.drain(..) {
            let slot = &mut self.slots[id];
            if !matches!(slot.phase, Phase::Idle) {
                continue;
            }
            if slot.row == RowState::New {
                slot.record = None;
            } else if let Some(record) = &mut slot.record
                && record.status == StepStatus::Waiting
            {
                Arc::make_mut(record).status = StepStatus::Pending;
                // Asked for and given up since the last boundary: the row says so already. Written again, it would
                // count as progress in every pass of a run that gets nowhere.
                if mem::replace(&mut slot.row, RowState::Stored) == RowState::Stored {
                    let record = Arc::clone(record);
                    put_row(steps, StepWrite { record, row: RowState::Changed });
                }
            }
        }
    }

    /// The store committed: waits that got their outcome, and a step transaction, may be seen now.
    pub(super) fn committed(&mut self, settled: Vec<StepRecord>, committing: Option<SlotId>) {
        for record in settled {
            let id = self.slots.id(&record.name).expect("a looked-at wait has a slot");
            self.slots[id].record = Some(Arc::new(record));
            self.waiting.retain(|waiting| *waiting != id);
            self.settle(id);
        }
        if let Some(id) = committing {
            self.settle(id);
        }
    }

    /// A step transaction was rolled back: the attempt failed after all. Nothing of the boundary was
    /// written, so everything else in it is queued again, in the same order.
    pub(super) fn rolled_back(
        &mut self,
        content: RolledBack,
        error: &MutationError,
        limits: &Limits,
    ) {
        let now = self.clock.latest();
        let RolledBack { steps, waits, logs, committing } = content;
        self.log.put_back(logs);
        for (name, row) in waits {
            let id = self.slots.id(&name).expect("a looked-at wait has a slot");
            self.slots[id].row = row;
        }
        let mut again = std::collections::VecDeque::new();
        for mut write in steps {
            let id = self.slots.id(&write.record.name).expect("a written step has a slot");
            if id == committing {
                let slot = &mut self.slots[id];
                let error = mutation_failure(error);
                let record = Arc::make_mut(&mut write.record);
                record.result = None;
                fail(record, slot, &error, now, limits, &mut self.log);
                slot.record = Some(Arc::clone(&write.record));
            }
            again.push_back(Outgoing { slot: id, write, mutations: Vec::new() });
        }
        again.append(&mut self.outbox);
        self.outbox = again;
        self.after_failed_transaction(committing);
    }

    fn after_failed_transaction(&mut self, id: SlotId) {
        let slot = &mut self.slots[id];
        let settled = slot.record.as_ref().is_some_and(|record| record.status.is_settled());
        if settled {
            self.settle(id);
        } else if slot.asker.is_some() {
            slot.phase = Phase::Waiting;
            self.waiting.push(id);
        } else {
            slot.phase = Phase::Idle;
        }
    }

    fn waiting_slots(&self) -> impl Iterator<Item = &Slot> {
        self.waiting.iter().map(|id| &self.slots[*id])
    }
}

/// What a boundary with a step transaction consisted of, kept until the transaction is known to stand.
pub(super) struct RolledBack {
    pub(super) steps: Vec<StepWrite>,
    /// The waits that were looked at, and how their rows stood before.
    pub(super) waits: Vec<(StepName, RowState)>,
    pub(super) logs: Vec<LogLine>,
    pub(super) committing: SlotId,
}

impl Slot {
    fn wake(&self) {
        if let Some(asker) = &self.asker {
            asker.wake_by_ref();
        }
    }

    fn due_at(&self) -> Option<Timestamp> {
        let record = self.record.as_ref()?;
        record.next_retry_at.or(record.wake_at)
    }
}

/// An attempt failed: its step waits for a retry, or has errored for good.
fn fail(
    record: &mut StepRecord,
    slot: &Slot,
    error: &Error,
    now: Timestamp,
    limits: &Limits,
    log: &mut super::Logbook,
) {
    let attempt = record.attempts;
    let retry_at = slot.plan.retries.next_retry_at(attempt, now, limits);
    let recorded = error.to_record();
    match retry_at.filter(|_| error.is_retryable()) {
        Some(at) => {
            log.system(story::retrying(&record.name, attempt, at.since(now), &recorded), now);
            let asked = slot.asker.is_some();
            record.status = if asked { StepStatus::Waiting } else { StepStatus::Pending };
            record.next_retry_at = Some(at);
        }
        None => {
            log.system(story::step_failed(&record.name, attempt, &recorded), now);
            record.status = StepStatus::Errored;
        }
    }
    record.error = Some(recorded);
}

/// A unique violation, or an event or instance that was refused, cannot be helped by a retry.
fn mutation_failure(error: &MutationError) -> Error {
    let failure = Error::new(error.message.clone()).coded(error.code);
    let failure = failure.named(refusal_name(error.code));
    if error.code == Code::StepTransaction { failure } else { failure.into_non_retryable() }
}

/// A boundary has one row per step: a newer state replaces the older one, which was never stored.
fn put_row(steps: &mut Vec<StepWrite>, newer: StepWrite) {
    let same = |older: &&mut StepWrite| older.record.position == newer.record.position;
    match steps.iter_mut().find(same) {
        Some(older) => older.record = newer.record,
        None => steps.push(newer),
    }
}

fn take_seq(next: &mut u32) -> u32 {
    let seq = *next;
    *next += 1;
    seq
}

/// The record of a sleep or a wait that the code reaches for the first time.
fn first_record(slot: &Slot, ask: Ask, position: u32, now: Timestamp) -> StepRecord {
    let mut record = StepRecord::new(slot.name.clone(), slot.step_type, position, now);
    match ask {
        Ask::Do { .. } => {}
        Ask::Sleep { wake: SleepUntil::At(at) } => record.wake_at = Some(at),
        Ask::Sleep { wake: SleepUntil::After(span) } => record.wake_at = Some(now.plus(span)),
        Ask::Wait { event_type, timeout } => {
            record.wake_at = Some(now.plus(timeout));
            record.event_type = Some(event_type);
        }
    }
    record
}
