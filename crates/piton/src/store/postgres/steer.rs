//! Pause, resume, terminate, restart.

use piton_core::hook::{EngineHook, EngineNews, EnqueueReason};
use piton_core::record::{InstanceKey, InstanceRecord, Task};
use piton_core::story::SystemLine;
use piton_core::{InstanceId, Refusal, WorkflowName, lifecycle, story};

use super::task::Row;
use super::transaction::Transaction;
use super::trouble::{Outcome, damaged_row};
use super::{instance, task};
use crate::store::{Action, Hint};

/// What a steering request names.
#[derive(Debug)]
pub(super) struct Steering {
    pub(super) workflow: WorkflowName,
    pub(super) id: InstanceId,
    pub(super) action: Action,
}

/// Does `action` to an instance and returns how it stands then. The run must be locked by now, if it is alive.
pub(super) async fn steer(
    tx: &mut Transaction<'_>,
    key: Option<InstanceKey>,
    to: &Steering,
) -> Outcome<InstanceRecord> {
    let key = key.ok_or_else(|| Refusal::no_instance(&to.workflow, &to.id))?;
    let before = by_key(tx, key).await?;
    tx.check_lock(key, before.status)?;
    let task = tx.task(key);
    let changed = match to.action {
        Action::Pause => {
            let change = lifecycle::pause(before.status, task.as_ref(), tx.now)?;
            let line = match &change {
                Some(change) if change.instance.is_some() => story::paused(),
                Some(_) | None => story::pause_requested(),
            };
            apply(tx, &before, task, change, line)
        }
        Action::Resume => {
            let change = lifecycle::resume(before.status, task.as_ref(), tx.now);
            let resumed = change
                .as_ref()
                .and_then(|change| EngineNews::of_task(&change.task, EnqueueReason::Resume));
            tx.news(key, resumed);
            apply(tx, &before, task, change, story::resumed())
        }
        Action::Terminate => {
            let change = lifecycle::terminate(before.status, tx.now)?;
            tx.hints.push(Hint::Ended(key));
            tx.news(key, Some(EngineNews::of_run(EngineHook::InstanceTerminated, before.run)));
            apply(tx, &before, task, Some(change), story::terminated())
        }
        Action::Restart => {
            restart(tx, &before, task).await?;
            true
        }
    };
    if !changed {
        return Ok(before);
    }
    tx.flush().await?;
    by_key(tx, key).await
}

async fn by_key(tx: &mut Transaction<'_>, key: InstanceKey) -> Outcome<InstanceRecord> {
    let found = instance::by_keys(&mut tx.db, &[key]).await?.into_iter().next();
    found.ok_or_else(|| damaged_row("piton_instance", key.0, "it is gone"))
}

fn apply(
    tx: &mut Transaction<'_>,
    before: &InstanceRecord,
    task: Option<Task>,
    change: Option<lifecycle::Change>,
    line: SystemLine,
) -> bool {
    let (Some(change), Some(task)) = (change, task) else {
        return false;
    };
    tx.hint_task(before.key, &task, &change.task);
    tx.change_task(before.key, &change.task);
    if let Some(instance) = change.instance {
        tx.change_instance(before.key, instance);
    }
    tx.tell(before.key, before.run, line);
    true
}

async fn restart(
    tx: &mut Transaction<'_>,
    before: &InstanceRecord,
    task: Option<Task>,
) -> Outcome<()> {
    let next = lifecycle::restart(before.run, task.as_ref(), tx.now);
    let key = before.key;
    match task {
        Some(task) => {
            let change = piton_core::boundary::TaskChange::Put(next);
            tx.hint_task(key, &task, &change);
            tx.change_task(key, &change);
        }
        None => {
            let row = Row { key, workflow: before.workflow.clone(), task: next };
            task::insert(&mut tx.db, &row, None).await?;
            tx.hint_due(&before.workflow, next.run_at);
        }
    }
    instance::restart(&mut tx.db, key, next.run, tx.now).await?;
    tx.news(key, Some(EngineNews::of_run(EngineHook::InstanceRestarted, next.run)));
    tx.news(key, Some(EngineNews::enqueued(next.run, EnqueueReason::Create, next.run_at)));
    tx.tell(key, next.run, story::restarted(next.run, before.status, before.error.as_ref()));
    Ok(())
}
