//! Committing a boundary.
//!
//! The common case, one completed step in the middle of a pass, is one insert, and one point read if the task is not
//! remembered (`leases.rs`).

use piton_core::boundary::{self, After, Next, TaskChange, Wait, Written};
use piton_core::hook::EngineNews;
use piton_core::record::{LogLine, RunKey, StepRecord, Task};
use piton_core::story::{self, SystemLine};

use super::batch::Batch;
use super::trouble::Outcome;
use super::{event, hook, instance, log, mutate, step, task};
use crate::store::{Boundary, Committed, Hint, WaitLook};

/// Commits a boundary: the guard, the mutations, the steps, the waits, the log, and what becomes of the run.
pub(super) fn commit(batch: &mut Batch<'_, '_>, boundary: &mut Boundary) -> Outcome<Committed> {
    let task = task::get(batch, boundary.key.instance)?;
    let task = boundary::guard(task.as_ref(), &boundary.key)?;
    // Only the first row can be refused without a trace; and user code can fail anywhere.
    let rows = boundary.steps.len() + boundary.waits.len();
    if boundary.mutations.is_empty() && rows <= 1 {
        write(batch, boundary, &task)
    } else {
        let runs_user_sql = boundary.mutations.iter().any(mutate::is_user_sql);
        let committed = batch.in_savepoint(|batch| write(batch, boundary, &task));
        // It can reach every table, ours among them.
        if runs_user_sql {
            batch.leases.forget_all();
        }
        committed
    }
}

fn write(batch: &mut Batch<'_, '_>, boundary: &mut Boundary, task: &Task) -> Outcome<Committed> {
    let key = boundary.key;
    let mutated = !boundary.mutations.is_empty();
    for mutation in boundary.mutations.drain(..) {
        mutate::apply(batch, mutation)?;
    }
    for written in &boundary.steps {
        step::write(batch.db, &key, &written.record, written.row)?;
    }
    let held_back = mutated && !boundary.waits.is_empty();
    let mut settled = Vec::new();
    let mut story = Vec::new();
    for wait in &boundary.waits {
        if boundary::may_settle_wait(mutated, settled.len()) {
            settle(batch, &key, wait, &mut settled, &mut story)?;
        } else {
            step::write(batch.db, &key, &wait.record, wait.row)?;
        }
    }
    write_logs(batch, &key, &boundary.logs, story)?;
    let written = Written {
        steps: !boundary.steps.is_empty(),
        wait_settled: held_back || !settled.is_empty(),
    };
    let after = conclude(batch, &key, task, &boundary.next, written)?;
    Ok(Committed { now: batch.now, after, settled })
}

/// Looks for the event a wait is after and records its outcome, or that it waits (rule R5).
fn settle(
    batch: &mut Batch<'_, '_>,
    key: &RunKey,
    wait: &WaitLook,
    settled: &mut Vec<StepRecord>,
    story: &mut Vec<SystemLine>,
) -> Outcome<()> {
    let found = match &wait.record.event_type {
        Some(event_type) => {
            let arrived_by = boundary::arrived_by(&wait.record, batch.now);
            event::oldest(batch.db, key, event_type, arrived_by)?
        }
        None => None,
    };
    match boundary::settle_wait(&wait.record, found.as_ref(), wait.seq, batch.now) {
        Wait::Open => step::write(batch.db, key, &wait.record, wait.row)?,
        Wait::Delivered(record) => {
            step::write(batch.db, key, &record, wait.row)?;
            if let Some(event) = &found {
                event::deliver(batch.db, key, event, &record.name, batch.now)?;
            }
            settled.push(record);
        }
        Wait::TimedOut(record) => {
            step::write(batch.db, key, &record, wait.row)?;
            if let Some(error) = &record.error {
                story.push(story::wait_timed_out(&record.name, error));
            }
            settled.push(record);
        }
    }
    Ok(())
}

fn write_logs(
    batch: &mut Batch<'_, '_>,
    key: &RunKey,
    lines: &[LogLine],
    story: Vec<SystemLine>,
) -> Outcome<()> {
    for line in lines {
        log::insert(batch.db, key.instance, key.run, line)?;
    }
    for line in story {
        log::tell(batch, key.instance, key.run, line)?;
    }
    Ok(())
}

/// Decides and writes what becomes of the task and the instance.
fn conclude(
    batch: &mut Batch<'_, '_>,
    key: &RunKey,
    task: &Task,
    next: &Next,
    written: Written,
) -> Outcome<After> {
    let (change, instance, after) = boundary::after(task, next, written, batch.now);
    task::apply(batch, key.instance, task, &change)?;
    if let Some(change) = &instance {
        instance::apply(batch.db, key.instance, change, batch.now)?;
    }
    match after {
        After::Continue | After::Drain => {}
        After::Paused => log::tell(batch, key.instance, key.run, story::paused())?,
        After::Ended => batch.hints.push(Hint::Ended(key.instance)),
        After::Suspended => hint_suspended(batch, key, &change)?,
    }
    hook::news_by_key(batch, key.instance, || {
        EngineNews::of_boundary(key.run, next, after, &change)
    })?;
    Ok(after)
}

fn hint_suspended(batch: &mut Batch<'_, '_>, key: &RunKey, change: &TaskChange) -> Outcome<()> {
    if let TaskChange::Put(task) = change
        && let Some(workflow) = task::workflow(batch.db, key.instance)?
    {
        batch.hint_due(&workflow, task.run_at);
    }
    Ok(())
}
