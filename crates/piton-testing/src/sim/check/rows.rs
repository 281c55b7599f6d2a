//! What must hold of the rows at any moment.

use std::collections::{BTreeMap, BTreeSet};

use piton::Workflow;
use piton::store::{DumpedInstance, DumpedRun};
use piton_core::record::{InstanceKey, StepRecord};
use piton_core::{InstanceStatus, StepStatus, StepType, TaskState, Timestamp};

use super::{Violation, ensure};
use crate::sim::program::{HOOKED, Interpreter, SENT};

pub(super) fn check(
    rows: &BTreeMap<InstanceKey, DumpedInstance>,
    now: Timestamp,
) -> Result<(), Violation> {
    let mut ids = BTreeSet::new();
    for instance in rows.values() {
        let name = (instance.record.workflow.to_string(), instance.record.id.to_string());
        ensure(ids.insert(name), "I13", || format!("{} exists twice", instance.record.id))?;
        lifecycle(instance)?;
        for (number, run) in instance.runs.iter().enumerate() {
            steps(instance, run)?;
            events(instance, number, run)?;
        }
        progress(instance, now)?;
    }
    sent_events(rows)
}

/// What a step sends in its transaction is there once if the step is completed, and else not at all.
fn sent_events(rows: &BTreeMap<InstanceKey, DumpedInstance>) -> Result<(), Violation> {
    let mut sent: BTreeMap<String, u32> = BTreeMap::new();
    let runs = rows.values().flat_map(|instance| &instance.runs);
    for event in runs.flat_map(|run| &run.events) {
        let payload = event.payload.as_str().trim_matches('"');
        if payload.starts_with(Interpreter::NAME) {
            *sent.entry(payload.to_owned()).or_default() += 1;
        }
    }
    for instance in rows.values() {
        for (number, run) in instance.runs.iter().enumerate() {
            for step in run.steps.iter().filter(|step| has_sent(step)) {
                let id = &instance.record.id;
                let key = format!("{}/{id}/{number}/{}", Interpreter::NAME, step.name);
                let times = sent.remove(&key).unwrap_or(0);
                ensure(times == 1, "I9", || {
                    format!("{key} is completed, and its event is there {times} times")
                })?;
            }
        }
    }
    ensure(sent.is_empty(), "I9", || {
        format!("events of steps that are not completed: {:?}", sent.keys())
    })
}

fn has_sent(step: &StepRecord) -> bool {
    let result = step.result.as_ref().map(|result| result.as_str().trim_matches('"'));
    let sent = result.is_some_and(|result| result.trim_end_matches(HOOKED) == SENT);
    step.status == StepStatus::Completed && sent
}

/// One task exactly while the run lives; `completed_at` exactly when it ended.
fn lifecycle(instance: &DumpedInstance) -> Result<(), Violation> {
    let (record, task) = (&instance.record, instance.task.as_ref());
    let id = &record.id;
    let ended = record.status.is_terminal();
    ensure(task.is_none() == ended, "I4", || {
        format!("{id} is {} and its task is {task:?}", record.status)
    })?;
    ensure(record.completed_at.is_some() == ended, "I6", || {
        format!("{id} is {} with completed_at {:?}", record.status, record.completed_at)
    })?;
    if let Some(task) = task {
        ensure(task.run == record.run, "I4", || format!("{id}: its task is of run {}", task.run))?;
        let paused = record.status == InstanceStatus::Paused;
        ensure((task.state == TaskState::Held) == paused, "I7", || {
            format!("{id} is {} and its task is {}", record.status, task.state)
        })?;
    }
    ensure(instance.runs.len() == record.run as usize + 1, "I12", || format!("{id} lost a run"))
}

fn steps(instance: &DumpedInstance, run: &DumpedRun) -> Result<(), Violation> {
    let id = &instance.record.id;
    let (mut names, mut seqs) = (BTreeSet::new(), BTreeSet::new());
    for step in &run.steps {
        ensure(names.insert(step.name.clone()), "I1", || {
            format!("{id}: {} has two rows", step.name)
        })?;
        if step.status.is_settled() {
            ensure(seqs.insert(step.seq), "I15", || format!("{id}: seq {} twice", step.seq))?;
        }
        let attempts_left = step.attempts_max.is_none_or(|max| step.attempts <= max);
        ensure(attempts_left, "I11", || {
            format!("{id}: {} has {} of {:?} attempts", step.name, step.attempts, step.attempts_max)
        })?;
        let due = step.wake_at.is_none_or(|wake_at| step.updated_at >= wake_at);
        let over = step.step_type == StepType::Sleep && step.status == StepStatus::Completed;
        ensure(!over || due, "I10", || format!("{id}: {} ended before its time", step.name))?;
        if step.step_type == StepType::WaitForEvent {
            let taken =
                run.events.iter().filter(|e| e.consumed_by.as_ref() == Some(&step.name)).count();
            let expected = usize::from(step.status == StepStatus::Completed);
            ensure(taken == expected, "I3", || {
                format!("{id}: {} is {} and took {taken} events", step.name, step.status)
            })?;
            let timed_out = step.status == StepStatus::Errored;
            ensure(!timed_out || due, "I10", || format!("{id}: {} timed out early", step.name))?;
        }
    }
    Ok(())
}

/// Consumed events of a type are a prefix of the accepted ones.
fn events(instance: &DumpedInstance, number: usize, run: &DumpedRun) -> Result<(), Violation> {
    let id = &instance.record.id;
    let mut waiting = BTreeSet::new();
    for event in &run.events {
        ensure(event.run as usize == number, "I12", || {
            format!("{id}: an event of run {} is in run {number}", event.run)
        })?;
        let taken = event.consumed_by.is_some();
        ensure(taken == event.delivered_at.is_some(), "I3", || {
            format!("{id}: {} half taken", event.id)
        })?;
        if taken {
            ensure(!waiting.contains(&event.event_type), "I3", || {
                format!("{id}: event {} overtook an older {}", event.seq, event.event_type)
            })?;
        } else {
            waiting.insert(event.event_type.clone());
        }
    }
    Ok(())
}

/// No lost wake-up: what can progress has a task that is due in time.
fn progress(instance: &DumpedInstance, now: Timestamp) -> Result<(), Violation> {
    let id = &instance.record.id;
    let Some(task) = instance.task.filter(|task| task.state == TaskState::Pending) else {
        return Ok(());
    };
    let run = instance.runs.last().expect("there is a run");
    let waiting = run.steps.iter().filter(|step| step.status == StepStatus::Waiting);
    for step in waiting {
        let due = step.next_retry_at.or(step.wake_at);
        ensure(due.is_none_or(|due| task.run_at <= due.max(now)), "I4", || {
            format!("{id}: {} is due at {due:?}, its task at {}", step.name, task.run_at)
        })?;
        let deadline = step.wake_at.unwrap_or(now);
        let arrived = run.events.iter().any(|event| {
            event.consumed_by.is_none()
                && Some(&event.event_type) == step.event_type.as_ref()
                && event.created_at <= deadline
        });
        ensure(!arrived || task.run_at <= now, "I4", || {
            format!("{id}: an event for {} arrived, its task is due at {}", step.name, task.run_at)
        })?;
    }
    Ok(())
}
