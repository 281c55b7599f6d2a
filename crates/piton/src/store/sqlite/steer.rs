//! Pause, resume, terminate, restart.

use piton_core::boundary::TaskChange;
use piton_core::hook::{EngineHook, EngineNews, EnqueueReason};
use piton_core::record::{InstanceRecord, Task};
use piton_core::story::SystemLine;
use piton_core::{InstanceId, Refusal, WorkflowName, lifecycle, story};

use super::batch::Batch;
use super::trouble::{Outcome, damaged_row};
use super::{hook, instance, log, task};
use crate::store::{Action, Hint};

/// Does `action` to an instance and returns how it stands then.
pub(super) fn steer(
    batch: &mut Batch<'_, '_>,
    workflow: &WorkflowName,
    id: &InstanceId,
    action: Action,
) -> Outcome<InstanceRecord> {
    let found = instance::by_id(batch.db, workflow, id)?;
    let before = found.ok_or_else(|| Refusal::no_instance(workflow, id))?;
    let task = task::get(batch, before.key)?;
    let changed = match action {
        Action::Pause => pause(batch, &before, task.as_ref())?,
        Action::Resume => resume(batch, &before, task.as_ref())?,
        Action::Terminate => terminate(batch, &before, task.as_ref())?,
        Action::Restart => restart(batch, &before, task.as_ref())?,
    };
    if !changed {
        return Ok(before);
    }
    let after = instance::by_key(batch.db, before.key)?;
    after.ok_or_else(|| damaged_row("piton_instance", before.key.0, "it is gone"))
}

fn pause(batch: &mut Batch<'_, '_>, before: &InstanceRecord, task: Option<&Task>) -> Outcome<bool> {
    let change = lifecycle::pause(before.status, task, batch.now)?;
    let (Some(change), Some(task)) = (change, task) else {
        return Ok(false);
    };
    let line = if change.instance.is_some() { story::paused() } else { story::pause_requested() };
    apply(batch, before, task, &change, line)?;
    Ok(true)
}

fn resume(
    batch: &mut Batch<'_, '_>,
    before: &InstanceRecord,
    task: Option<&Task>,
) -> Outcome<bool> {
    let change = lifecycle::resume(before.status, task, batch.now);
    let (Some(change), Some(task)) = (change, task) else {
        return Ok(false);
    };
    apply(batch, before, task, &change, story::resumed())?;
    let resumed = EngineNews::of_task(&change.task, EnqueueReason::Resume);
    hook::news(batch, &before.workflow, &before.id, resumed)?;
    Ok(true)
}

fn apply(
    batch: &mut Batch<'_, '_>,
    before: &InstanceRecord,
    task: &Task,
    change: &lifecycle::Change,
    line: SystemLine,
) -> Outcome<()> {
    task::apply(batch, before.key, task, &change.task)?;
    if let Some(instance) = &change.instance {
        instance::apply(batch.db, before.key, instance, batch.now)?;
    }
    batch.hint_task(before.key, &before.workflow, task, &change.task);
    log::tell(batch, before.key, before.run, line)
}

fn terminate(
    batch: &mut Batch<'_, '_>,
    before: &InstanceRecord,
    task: Option<&Task>,
) -> Outcome<bool> {
    let change = lifecycle::terminate(before.status, batch.now)?;
    task::delete(batch, before.key)?;
    if let Some(instance) = &change.instance {
        instance::apply(batch.db, before.key, instance, batch.now)?;
    }
    log::tell(batch, before.key, before.run, story::terminated())?;
    if let Some(task) = task {
        batch.hint_task(before.key, &before.workflow, task, &change.task);
    }
    batch.hints.push(Hint::Ended(before.key));
    let ended = EngineNews::of_run(EngineHook::InstanceTerminated, before.run);
    hook::news(batch, &before.workflow, &before.id, Some(ended))?;
    Ok(true)
}

fn restart(
    batch: &mut Batch<'_, '_>,
    before: &InstanceRecord,
    task: Option<&Task>,
) -> Outcome<bool> {
    let next = lifecycle::restart(before.run, task, batch.now);
    task::delete(batch, before.key)?;
    task::insert(batch, before.key, &before.workflow, &next, None)?;
    instance::restart(batch.db, before.key, next.run, batch.now)?;
    let line = story::restarted(next.run, before.status, before.error.as_ref());
    log::tell(batch, before.key, next.run, line)?;
    match task {
        Some(task) => {
            let change = TaskChange::Put(next);
            batch.hint_task(before.key, &before.workflow, task, &change);
        }
        None => batch.hint_due(&before.workflow, next.run_at),
    }
    let restarted = EngineNews::of_run(EngineHook::InstanceRestarted, next.run);
    hook::news(batch, &before.workflow, &before.id, Some(restarted))?;
    let enqueued = EngineNews::enqueued(next.run, EnqueueReason::Create, next.run_at);
    hook::news(batch, &before.workflow, &before.id, Some(enqueued))?;
    Ok(true)
}
