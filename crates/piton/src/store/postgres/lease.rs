//! Keeping leases and handing them back.

use piton_core::boundary::TaskChange;
use piton_core::hook::{EngineNews, EnqueueReason};
use piton_core::record::{RunKey, Task};
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
