//! Keeping leases, handing them back, and taking them from a process that died.

use piton_core::hook::{EngineNews, EnqueueReason};
use piton_core::record::{InstanceKey, RunKey, Task};
use piton_core::{Span, boundary, lifecycle, story};

use super::batch::Batch;
use super::trouble::Outcome;
use super::{hook, instance, log, task};
use crate::store::Renewed;

/// Extends the leases that are still held under the given epochs.
pub(super) fn renew(
    batch: &mut Batch<'_, '_>,
    keys: &[RunKey],
    span: Span,
) -> Outcome<Vec<Renewed>> {
    let until = batch.now.plus(span);
    let mut renewed = Vec::with_capacity(keys.len());
    for key in keys {
        let task = task::get_readable(batch, key.instance)?;
        let Ok(task) = boundary::guard(task.as_ref(), key) else {
            continue;
        };
        task::renew(batch, key.instance, &task, until)?;
        renewed.push(Renewed { key: *key, pause_requested: task.pause_requested });
    }
    Ok(renewed)
}

/// Hands back the leases that are still held.
pub(super) fn release(batch: &mut Batch<'_, '_>, keys: &[RunKey]) -> Outcome<()> {
    for key in keys {
        let task = task::get_readable(batch, key.instance)?;
        let Ok(before) = boundary::guard(task.as_ref(), key) else {
            continue;
        };
        log::tell(batch, key.instance, key.run, story::released())?;
        let change = lifecycle::release(&before, batch.now);
        apply(batch, key.instance, &before, &change)?;
        hook::news_by_key(batch, key.instance, || {
            EngineNews::of_task(&change.task, EnqueueReason::Wake)
        })?;
    }
    Ok(())
}

/// Releases every lease there is: the lock file proves that whoever held them is gone.
///
/// Unlike a release that a runner asks for, this one follows a crash, and the claim counts against the run: code
/// that kills its process must end in quarantine and not in a loop.
pub(super) fn release_all(batch: &mut Batch<'_, '_>) -> Outcome<()> {
    for key in task::leased(batch.db)? {
        let Some(before) = task::get_readable(batch, key)? else {
            task::set_aside(batch, key)?;
            continue;
        };
        let mut change = lifecycle::release(&before, batch.now);
        if let boundary::TaskChange::Put(task) = &mut change.task {
            task.claims_without_progress = before.claims_without_progress;
        }
        apply(batch, key, &before, &change)?;
    }
    Ok(())
}

fn apply(
    batch: &mut Batch<'_, '_>,
    key: InstanceKey,
    before: &Task,
    change: &lifecycle::Change,
) -> Outcome<()> {
    task::apply(batch, key, before, &change.task)?;
    if let Some(paused) = &change.instance {
        instance::apply(batch.db, key, paused, batch.now)?;
        return log::tell(batch, key, before.run, story::paused());
    }
    if let boundary::TaskChange::Put(task) = &change.task
        && let Some(workflow) = task::workflow(batch.db, key)?
    {
        batch.hint_due(&workflow, task.run_at);
    }
    Ok(())
}
