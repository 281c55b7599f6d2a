//! Takes note of rare states, and of pauses that a runner may not know of.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use piton::store::{Action, DumpedInstance};
use piton_core::record::{EventRecord, InstanceKey, StepRecord, Task};
use piton_core::{StepStatus, StepType, TaskKind, TaskState, Timestamp};

use super::{Call, Checker, State};
use crate::sim::sometimes::Rare;
use crate::sim::world::ProcessId;

type Rows = BTreeMap<InstanceKey, DumpedInstance>;

/// A boundary between its runner and the store; gone when it has arrived or its runner has died.
pub(in crate::sim) struct OnItsWay {
    checker: Weak<Checker>,
    call: Arc<Call>,
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        if let Some(checker) = self.checker.upgrade() {
            checker.lock().on_their_way.retain(|call| !Arc::ptr_eq(call, &self.call));
        }
    }
}

impl Checker {
    /// A process sends a call. What is returned is dropped when it arrives.
    pub(in crate::sim) fn sent(checker: &Arc<Self>, call: &Call) -> Option<OnItsWay> {
        if !matches!(call, Call::Commit { .. }) {
            return None;
        }
        let call = Arc::new(call.clone());
        checker.lock().on_their_way.push(Arc::clone(&call));
        Some(OnItsWay { checker: Arc::downgrade(checker), call })
    }

    /// A transaction is about to run.
    pub(in crate::sim) fn before(&self, _: ProcessId, call: &Call) {
        let body_runs = |id: &str| self.bodies.running(id);
        match call {
            Call::Steer { id, action } => {
                let (during, between) = match action {
                    Action::Restart => (Rare::RestartDuringBody, Rare::RestartBeforeCommit),
                    Action::Terminate => (Rare::TerminateDuringBody, Rare::TerminateBeforeCommit),
                    Action::Pause => (Rare::PauseDuringBody, Rare::PauseBeforeCommit),
                    Action::Resume => return,
                };
                if body_runs(id) {
                    self.sometimes(during);
                }
                if self.lock().result_on_its_way(id) {
                    self.sometimes(between);
                }
            }
            Call::Event { id, event } => {
                if self.lock().registration_on_its_way(id, event) {
                    self.sometimes(Rare::EventBeforeRegistration);
                }
            }
            Call::Create { .. }
            | Call::Claim { .. }
            | Call::Commit { .. }
            | Call::Renew
            | Call::Release
            | Call::AppendLogs
            | Call::TriggerHooks { .. }
            | Call::WorkHooks { .. }
            | Call::RetryHook { .. } => {}
        }
    }
}

impl State {
    /// Steps and waits of the boundaries of this instance's current holder that have not arrived.
    fn boundaries_of<'a>(
        &'a self,
        id: &'a str,
    ) -> impl Iterator<Item = (&'a [StepRecord], &'a [StepRecord])> {
        self.on_their_way.iter().filter_map(move |call| {
            let Call::Commit { key, steps, waits, .. } = &**call else { return None };
            let instance = self.rows.get(&key.instance)?;
            let held = instance.task.is_some_and(|task| task.epoch == key.epoch);
            (held && instance.record.id.as_str() == id).then_some((&steps[..], &waits[..]))
        })
    }

    fn result_on_its_way(&self, id: &str) -> bool {
        let result = |step: &StepRecord| step.step_type == StepType::Do && step.status.is_settled();
        self.boundaries_of(id).any(|(steps, _)| steps.iter().any(result))
    }

    fn registration_on_its_way(&self, id: &str, event: &str) -> bool {
        let waits_for = |wait: &StepRecord| {
            wait.event_type.as_ref().is_some_and(|event_type| event_type.as_str() == event)
        };
        self.boundaries_of(id).any(|(_, waits)| waits.iter().any(waits_for))
    }

    pub(super) fn notice(&mut self, before: &Rows, rows: &Rows, call: &Call, now: Timestamp) {
        if let Call::Create { leased: true, .. } = call
            && rows.len() > before.len()
        {
            self.sometimes.saw(Rare::CreatedLeased);
        }
        for (key, after) in rows {
            let Some(before) = before.get(key) else { continue };
            if let (Some(old), Some(new)) = (before.task, after.task)
                && new.run == old.run
            {
                self.notice_task(*key, &old, &new, call, now);
            }
            if after.runs.len() == before.runs.len() {
                self.notice_steps(before, after, call, now);
            }
        }
        if matches!(call, Call::Claim { .. }) && new_work_first(before, rows, now) {
            self.sometimes.saw(Rare::NewWorkFirst);
        }
    }

    fn notice_task(
        &mut self,
        key: InstanceKey,
        old: &Task,
        new: &Task,
        call: &Call,
        now: Timestamp,
    ) {
        if matches!(call, Call::Event { .. }) && new.epoch > old.epoch {
            self.sometimes.saw(Rare::WokenLeased);
        }
        let expired =
            old.state == TaskState::Leased && old.lease_until.is_none_or(|until| until <= now);
        if new.state == TaskState::Held && old.state != TaskState::Held {
            // What was set aside is a lease that had run out, too.
            self.paused_by_expiry.insert(key, expired || old.state == TaskState::Suspect);
            if expired {
                self.sometimes.saw(Rare::PausedByExpiry);
            }
        }
        if old.state == TaskState::Suspect && new.state == TaskState::Leased {
            self.sometimes.saw(Rare::SuspectClaimed);
        }
        if expired && new.epoch > old.epoch {
            self.sometimes.saw(Rare::ExpiredLeaseTakenOver);
        }
        if expired && matches!(call, Call::Renew) && new.lease_until > old.lease_until {
            self.sometimes.saw(Rare::ExpiredLeaseRenewed);
        }
        if matches!(call, Call::Release) && new.state != old.state {
            self.sometimes.saw(Rare::LeaseReleased);
        }
        if old.pause_requested && !new.pause_requested && new.state == TaskState::Leased {
            self.sometimes.saw(Rare::PauseTakenBack);
        }
    }

    fn notice_steps(
        &mut self,
        before: &DumpedInstance,
        after: &DumpedInstance,
        call: &Call,
        now: Timestamp,
    ) {
        let (Some(old), Some(new)) = (before.runs.last(), after.runs.last()) else { return };
        for step in &new.steps {
            let known = old.steps.iter().find(|known| known.position == step.position);
            let changed = known.is_none_or(|known| known.status != step.status);
            if changed && step.status == StepStatus::Pending {
                self.sometimes.saw(Rare::LoserGivenUp);
            }
            if step.step_type != StepType::WaitForEvent {
                continue;
            }
            if matches!(call, Call::Event { .. })
                && step.wake_at == Some(now)
                && new.events.len() > old.events.len()
            {
                self.sometimes.saw(Rare::EventAtTheDeadline);
            }
            if changed && step.status == StepStatus::Completed && step.wake_at < Some(now) {
                self.sometimes.saw(Rare::EventTakenAfterTheDeadline);
            }
            if changed
                && step.status == StepStatus::Errored
                && new.events.iter().any(|event| is_for(event, step))
            {
                self.sometimes.saw(Rare::EventTooLate);
            }
        }
    }
}

fn is_for(event: &EventRecord, wait: &StepRecord) -> bool {
    event.consumed_by.is_none() && Some(&event.event_type) == wait.event_type.as_ref()
}

/// A new run was claimed while work that could be resumed was left.
fn new_work_first(before: &Rows, after: &Rows, now: Timestamp) -> bool {
    let (mut new_claimed, mut resuming_left) = (false, false);
    for (key, old) in before {
        let (Some(old), Some(new)) = (old.task, after[key].task) else { continue };
        let claimed = new.epoch > old.epoch;
        new_claimed |= claimed && old.state == TaskState::Pending && old.kind == TaskKind::Run;
        resuming_left |= !claimed
            && old.state == TaskState::Pending
            && old.kind.is_resuming()
            && old.run_at <= now;
    }
    new_claimed && resuming_left
}
