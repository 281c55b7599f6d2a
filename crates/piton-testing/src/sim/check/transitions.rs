//! What one transaction may change.

use std::collections::BTreeMap;

use piton::store::{DumpedInstance, DumpedRun};
use piton_core::record::{InstanceKey, StepRecord};
use piton_core::{StepStatus, StepType, TaskState, Timestamp};

use super::{Call, Violation, ensure};

pub(super) fn check(
    before: &BTreeMap<InstanceKey, DumpedInstance>,
    after: &BTreeMap<InstanceKey, DumpedInstance>,
    call: &Call,
    accepted: bool,
    now: Timestamp,
) -> Result<(), Violation> {
    if let (Call::Commit { key, .. }, true) = (call, accepted) {
        let task = before.get(&key.instance).and_then(|instance| instance.task);
        let current = task.is_some_and(|task| {
            task.run == key.run && task.epoch == key.epoch && task.state == TaskState::Leased
        });
        ensure(current, "I2", || {
            format!("a commit under {key:?} was accepted; the task was {task:?}")
        })?;
    }
    if !accepted {
        ensure(before == after, "I8", || format!("`{call}` was refused but changed something"))?;
    }
    for (key, old) in before {
        let Some(new) = after.get(key) else {
            return ensure(false, "I18", || format!("{} is gone", old.record.id));
        };
        instance(old, new, now)?;
    }
    Ok(())
}

fn instance(old: &DumpedInstance, new: &DumpedInstance, now: Timestamp) -> Result<(), Violation> {
    let id = &old.record.id;
    let restarted = new.record.run != old.record.run;
    ensure(!restarted || new.record.run == old.record.run + 1, "I12", || {
        format!("{id} skipped a run")
    })?;
    if old.record.status.is_terminal() && !restarted {
        ensure(old == new, "I5", || format!("{id} changed after it was {}", old.record.status))?;
    }
    if let (Some(before), Some(after)) = (old.task, new.task) {
        ensure(after.epoch >= before.epoch, "I2", || format!("{id}: the epoch went back"))?;
        let taken = after.epoch > before.epoch && !restarted;
        let lease_runs = before.state == TaskState::Leased
            && before.lease_until.is_some_and(|until| until > now);
        ensure(!taken || !lease_runs, "I2", || format!("{id}: claimed while its lease still ran"))?;
        let early = before.state == TaskState::Pending && before.run_at > now;
        ensure(!taken || !early || is_woken(old, new), "I10", || {
            format!("{id}: claimed before it was due")
        })?;
        ensure(!taken || before.state != TaskState::Held, "I7", || {
            format!("{id}: claimed while paused")
        })?;
    }
    for (number, old_run) in old.runs.iter().enumerate() {
        let new_run = &new.runs[number];
        if restarted {
            ensure(old_run == new_run, "I12", || {
                format!("{id}: run {number} changed by a restart")
            })?;
        }
        rows(old, old_run, new_run)?;
        outcomes(old, old_run, new_run, now)?;
    }
    let last = old.runs.len() - 1;
    for number in 0..last {
        ensure(old.runs[number] == new.runs[number], "I12", || {
            format!("{id}: old run {number} changed")
        })?;
    }
    Ok(())
}

/// Whether an event was stored that the run has waited for: a claim may share its transaction.
fn is_woken(old: &DumpedInstance, new: &DumpedInstance) -> bool {
    let (Some(before), Some(after)) = (old.runs.last(), new.runs.last()) else { return false };
    let waits = |event_type| {
        before.steps.iter().any(|step| {
            step.status == StepStatus::Waiting && step.event_type.as_ref() == Some(event_type)
        })
    };
    after.events.iter().skip(before.events.len()).any(|event| waits(&event.event_type))
}

/// Rows never disappear; settled steps and consumed events never change.
fn rows(instance: &DumpedInstance, old: &DumpedRun, new: &DumpedRun) -> Result<(), Violation> {
    let id = &instance.record.id;
    for step in &old.steps {
        let now = new.steps.iter().find(|other| other.position == step.position);
        let Some(now) = now else {
            return ensure(false, "I18", || format!("{id}: the row of {} is gone", step.name));
        };
        step_change(id.as_str(), step, now)?;
    }
    for event in &old.events {
        let now = new.events.iter().find(|other| other.seq == event.seq);
        let kept = now.is_some_and(|now| event.consumed_by.is_none() || now == event);
        ensure(kept, "I3", || format!("{id}: event {} was taken twice or lost", event.seq))?;
    }
    let kept = new.logs.get(..old.logs.len()) == Some(&old.logs[..]);
    ensure(kept, "I18", || format!("{id}: log lines changed"))
}

/// A sleep or a wait gets its outcome at its time: no timer is early, and an event that came in time counts.
fn outcomes(
    instance: &DumpedInstance,
    old: &DumpedRun,
    new: &DumpedRun,
    now: Timestamp,
) -> Result<(), Violation> {
    let id = &instance.record.id;
    let was_settled = |step: &StepRecord| {
        let row = old.steps.iter().find(|row| row.position == step.position);
        row.is_some_and(|row| row.status.is_settled())
    };
    for step in new.steps.iter().filter(|step| step.status.is_settled() && !was_settled(step)) {
        let due = step.wake_at.is_none_or(|at| at <= now);
        let mut events = new.events.iter();
        match (step.step_type, step.status) {
            (StepType::Sleep, StepStatus::Completed) => {
                ensure(due, "I10", || format!("{id}: {} ended before its time", step.name))?;
            }
            (StepType::WaitForEvent, StepStatus::Completed) => {
                let taken = events.find(|event| event.consumed_by.as_ref() == Some(&step.name));
                let late = taken.is_some_and(|event| Some(event.created_at) > step.wake_at);
                ensure(!late, "I10", || format!("{id}: {} took an event too late", step.name))?;
            }
            (StepType::WaitForEvent, _) => {
                ensure(due, "I10", || format!("{id}: {} timed out early", step.name))?;
                let in_time = events.any(|event| {
                    event.consumed_by.is_none()
                        && Some(&event.event_type) == step.event_type.as_ref()
                        && Some(event.created_at) <= step.wake_at
                });
                ensure(!in_time, "I10", || {
                    format!("{id}: {} timed out, but its event had come in time", step.name)
                })?;
            }
            (StepType::Do | StepType::Sleep, _) => {}
        }
    }
    Ok(())
}

fn step_change(id: &str, old: &StepRecord, new: &StepRecord) -> Result<(), Violation> {
    if old.status.is_settled() {
        ensure(old == new, "I1", || {
            format!("{id}: {} changed after it was {}", old.name, old.status)
        })?;
    }
    ensure(old.name == new.name, "I1", || format!("{id}: {} became {}", old.name, new.name))?;
    ensure(new.attempts >= old.attempts, "I11", || {
        format!("{id}: attempts of {} went back", old.name)
    })?;
    let retried = new.attempts > old.attempts;
    let gap = old.next_retry_at.is_none_or(|at| new.started_at >= at);
    ensure(!retried || gap, "I11", || {
        format!("{id}: {} was retried at {}, due {:?}", old.name, new.started_at, old.next_retry_at)
    })?;
    // The wake time is fixed when the step is first reached.
    ensure(old.wake_at == new.wake_at, "I10", || {
        format!("{id}: the wake time of {} moved", old.name)
    })
}
