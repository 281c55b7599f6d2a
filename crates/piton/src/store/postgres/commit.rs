//! Committing a boundary under its run's lock.
//!
//! Most boundaries never come here: one that only adds completed steps, or ends or suspends its run, is written by the
//! one statement of `group.rs`. Here is everything: waits that look for their events, steps that change, pauses.

use piton_core::boundary::{self, After, Next, TaskChange, Wait, Written};
use piton_core::hook::EngineNews;
use piton_core::record::{EventRecord, RunKey, StepRecord, Task};
use piton_core::story::{self, SystemLine};
use piton_core::{InstanceStatus, TaskState, Timestamp};

use super::event::{Delivery, Look};
use super::log::Line;
use super::request::PlainBoundary;
use super::transaction::Transaction;
use super::trouble::Outcome;
use super::{instance, log, step};
use crate::store::{Committed, Hint, RowState, WaitLook};

/// The looks that the waits of a boundary take, in their order. None beside a transaction: its result comes first.
pub(super) fn looks<'b>(
    boundary: &'b PlainBoundary,
    now: Timestamp,
) -> impl Iterator<Item = Look<'b>> {
    boundary.waits.iter().filter_map(move |wait| {
        Some(Look {
            key: &boundary.key,
            event_type: wait.record.event_type.as_ref()?,
            arrived_by: boundary::arrived_by(&wait.record, now),
        })
    })
}

/// Decides about a boundary and collects what it writes: the guard, the steps, the waits, the log, and what becomes of
/// the run. `found` are the events of its [`looks`].
pub(super) fn commit(
    tx: &mut Transaction<'_>,
    boundary: &PlainBoundary,
    mutated: bool,
    found: &mut impl Iterator<Item = Option<EventRecord>>,
) -> Outcome<Committed> {
    let key = boundary.key;
    let task = boundary::guard(tx.task(key.instance).as_ref(), &key)?;
    for written in &boundary.steps {
        write_step(tx, &key, &written.record, written.row);
    }
    let held_back = mutated && !boundary.waits.is_empty();
    let mut settled = Vec::new();
    let mut story = Vec::new();
    for wait in &boundary.waits {
        let event = wait.record.event_type.as_ref().and_then(|_| found.next().flatten());
        if boundary::may_settle_wait(mutated, settled.len()) {
            settle(tx, &key, wait, event.as_ref(), &mut settled, &mut story);
        } else {
            write_step(tx, &key, &wait.record, wait.row);
        }
    }
    let lines = boundary.logs.iter();
    tx.logs.extend(lines.map(|line| Line {
        instance: key.instance,
        run: key.run,
        line: line.clone(),
    }));
    for line in story {
        tx.tell(key.instance, key.run, line);
    }
    let written = Written {
        steps: !boundary.steps.is_empty(),
        wait_settled: held_back || !settled.is_empty(),
    };
    let after = conclude(tx, &key, &task, &boundary.next, written);
    Ok(Committed { now: tx.now, after, settled })
}

fn write_step(tx: &mut Transaction<'_>, key: &RunKey, step: &StepRecord, row: RowState) {
    match row {
        RowState::New => tx.steps_new.push((*key, step.clone())),
        RowState::Changed => tx.steps_changed.push((*key, step.clone())),
        RowState::Stored if step.status.is_settled() => {
            tx.steps_changed.push((*key, step.clone()));
        }
        RowState::Stored => {}
    }
}

/// Records the outcome of a wait, or that it waits (rule R5).
fn settle(
    tx: &mut Transaction<'_>,
    key: &RunKey,
    wait: &WaitLook,
    event: Option<&EventRecord>,
    settled: &mut Vec<StepRecord>,
    story: &mut Vec<SystemLine>,
) {
    match boundary::settle_wait(&wait.record, event, wait.seq, tx.now) {
        Wait::Open => write_step(tx, key, &wait.record, wait.row),
        Wait::Delivered(record) => {
            write_step(tx, key, &record, wait.row);
            if let Some(event) = event {
                let to = record.name.clone();
                tx.deliveries.push(Delivery { key: *key, seq: event.seq, to });
            }
            settled.push(record);
        }
        Wait::TimedOut(record) => {
            write_step(tx, key, &record, wait.row);
            if let Some(error) = &record.error {
                story.push(story::wait_timed_out(&record.name, error));
            }
            settled.push(record);
        }
    }
}

/// Decides what becomes of the task and the instance.
fn conclude(
    tx: &mut Transaction<'_>,
    key: &RunKey,
    task: &Task,
    next: &Next,
    written: Written,
) -> After {
    let (change, instance, after) = boundary::after(task, next, written, tx.now);
    match after {
        After::Continue | After::Drain => {}
        After::Paused => tx.tell(key.instance, key.run, story::paused()),
        After::Ended => tx.hints.push(Hint::Ended(key.instance)),
        After::Suspended => {
            if let (TaskChange::Put(task), Some(workflow)) =
                (&change, tx.workflow(key.instance).cloned())
            {
                tx.hint_due(&workflow, task.run_at);
            }
        }
    }
    tx.news(key.instance, EngineNews::of_boundary(key.run, next, after, &change));
    tx.change_task(key.instance, &change);
    if let Some(change) = instance {
        tx.change_instance(key.instance, change);
    }
    after
}

/// Whether a boundary whose commit was never answered took place, and if so what it did.
///
/// Only the holder of the epoch writes for the run, and what it writes next depends on this answer: so if its rows are
/// there, it was this boundary that wrote them. `None`: nothing of it is there, and it may be tried again.
pub(super) async fn recorded(
    tx: &mut Transaction<'_>,
    boundary: &PlainBoundary,
) -> Outcome<Option<Committed>> {
    let key = boundary.key;
    let stored = step::of_run(&mut tx.db, key.instance, key.run).await?;
    let at = |position| stored.iter().find(|step: &&StepRecord| step.position == position);
    let written = boundary
        .steps
        .iter()
        .filter(|step| step.row != RowState::Stored || step.record.status.is_settled());
    let steps: Vec<bool> = written
        .map(|step| {
            at(step.record.position).is_some_and(|stored| {
                (stored.seq, stored.status, stored.updated_at)
                    == (step.record.seq, step.record.status, step.record.updated_at)
            })
        })
        .collect();
    let settled: Vec<StepRecord> = boundary
        .waits
        .iter()
        .filter_map(|wait| {
            at(wait.record.position).filter(|step| step.status.is_settled() && step.seq == wait.seq)
        })
        .cloned()
        .collect();
    let registered = boundary
        .waits
        .iter()
        .any(|wait| wait.row == RowState::New && at(wait.record.position).is_some());
    let task = tx.task(key.instance);
    let told = match boundary.logs.first() {
        Some(line) => log::is_there(&mut tx.db, &key, line).await?,
        None => false,
    };
    // How the run stands tells something only of a boundary that left no row behind: somebody else may have made it stand
    // like that, who paused and resumed it meanwhile.
    let registers = boundary.waits.iter().any(|wait| wait.row == RowState::New);
    let traceless = steps.is_empty() && !registers && boundary.logs.is_empty();
    let took_place = steps.iter().any(|there| *there)
        || !settled.is_empty()
        || registered
        || told
        || traceless && has_left(tx, boundary, task.as_ref()).await?;
    let after = how_left(boundary, task.as_ref());
    Ok(took_place.then_some(Committed { now: tx.now, after, settled }))
}

/// What a boundary that took place did to the run, as far as that can still be seen.
fn how_left(boundary: &PlainBoundary, task: Option<&Task>) -> After {
    let key = &boundary.key;
    let same = task.filter(|task| (task.run, task.epoch) == (key.run, key.epoch));
    match (&boundary.next, same.map(|task| (task.state, task.pause_requested))) {
        (Next::Complete { .. } | Next::Fail { .. }, _) => After::Ended,
        (_, Some((TaskState::Pending | TaskState::Suspect, _))) => After::Suspended,
        (_, Some((TaskState::Held, _))) => After::Paused,
        (_, Some((TaskState::Leased, true))) => After::Drain,
        (_, Some((TaskState::Leased, false))) => After::Continue,
        // Somebody else has it since: it was left, or its next boundary is fenced.
        (Next::Suspend { .. }, None) => After::Suspended,
        (Next::Continue { .. }, None) => After::Continue,
    }
}

/// Whether the run stands as only this boundary can have left it.
async fn has_left(
    tx: &mut Transaction<'_>,
    boundary: &PlainBoundary,
    task: Option<&Task>,
) -> Outcome<bool> {
    let key = boundary.key;
    let (status, output) = match (&boundary.next, task) {
        (Next::Continue { .. }, _) => return Ok(false),
        (Next::Suspend { .. }, Some(task)) => {
            let left = matches!(task.state, TaskState::Pending | TaskState::Held);
            return Ok(left && (task.run, task.epoch) == (key.run, key.epoch));
        }
        (Next::Suspend { .. }, None) | (_, Some(_)) => return Ok(false),
        (Next::Complete { output }, None) => (InstanceStatus::Complete, Some(output)),
        (Next::Fail { .. }, None) => (InstanceStatus::Errored, None),
    };
    let records = instance::by_keys(&mut tx.db, &[key.instance]).await?;
    Ok(records.iter().any(|record| {
        record.run == key.run
            && record.status == status
            && (output.is_none() || record.output.as_ref() == output)
    }))
}
