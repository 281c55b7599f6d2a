//! Keeping leases and handing them back.

use piton_core::boundary::TaskChange;
use piton_core::hook::{EngineNews, EnqueueReason};
use piton_core::record::{InstanceKey, RunKey, Task};
use piton_core::{Span, boundary, lifecycle, story};

use super::transaction::Transaction;
use crate::store::Renewed;

/// Extends the leases that are still held under the given epochs.
pub(super) fn renew(tx: &mut Transaction<'_>, keys: &[RunKey], span: Span) -> Vec<Renewed> {
    let lease_until = Some(tx.now.plus(span));
    let mut renewed = Vec::with_capacity(keys.len());
    for key in keys {
        let Ok(task) = boundary::guard(tx.task(key.instance).as_ref(), key) else {
            continue;
        };
        tx.change_task(key.instance, &TaskChange::Put(Task { lease_until, ..task }));
        renewed.push(Renewed { key: *key, pause_requested: task.pause_requested });
    }
    renewed
}

/// A lease that a claim or a round has made, or would have made: nobody knows whether it was committed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lent {
    pub(super) instance: InstanceKey,
    /// The task as it is then.
    pub(super) task: Task,
}

/// Hands back leases whose commit was never answered. If it did not take place, somebody else may have made the
/// same claim under the same epoch since then: what he holds differs in when it ends.
pub(super) fn take_back(tx: &mut Transaction<'_>, all: &[Lent]) {
    for Lent { instance, task } in all {
        if tx.task(*instance).as_ref() == Some(task) {
            release(tx, &[RunKey { instance: *instance, run: task.run, epoch: task.epoch }]);
        }
    }
}

/// Hands back the leases that are still held.
pub(super) fn release(tx: &mut Transaction<'_>, keys: &[RunKey]) {
    for key in keys {
        let Ok(task) = boundary::guard(tx.task(key.instance).as_ref(), key) else {
            continue;
        };
        let change = lifecycle::release(&task, tx.now);
        tx.tell(key.instance, key.run, story::released());
        if change.instance.is_some() {
            tx.tell(key.instance, key.run, story::paused());
        }
        if let (TaskChange::Put(task), None) = (&change.task, &change.instance)
            && let Some(workflow) = tx.workflow(key.instance).cloned()
        {
            tx.hint_due(&workflow, task.run_at);
        }
        tx.news(key.instance, EngineNews::of_task(&change.task, EnqueueReason::Wake));
        tx.change_task(key.instance, &change.task);
        if let Some(paused) = change.instance {
            tx.change_instance(key.instance, paused);
        }
    }
}
