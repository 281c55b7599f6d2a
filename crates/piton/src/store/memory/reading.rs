//! What readers see. Nothing here changes anything.

use std::collections::BTreeMap;
use std::ops::Bound;

use piton_core::planted::{Bug, planted};
use piton_core::record::{InstanceKey, InstanceRecord, StepRecord};
use piton_core::{InstanceId, WorkflowName};

use super::state::{Instance, State};
use crate::store::{InstanceQuery, InstanceView, PageQuery};

/// The instance's row as readers see it: joined with what its task and its steps know.
pub(super) fn record(instance: &Instance) -> InstanceRecord {
    let steps = instance.current_run().steps.values();
    let updated_at = steps.map(|step| step.updated_at).fold(instance.record.updated_at, Ord::max);
    InstanceRecord {
        updated_at,
        pause_requested: instance.task().is_some_and(|task| task.pause_requested),
        ..instance.record.clone()
    }
}

/// Of the steps the run waits for, the one that will wake first.
fn waiting_for(instance: &Instance) -> Option<&StepRecord> {
    if instance.record.status.is_terminal() {
        return None;
    }
    let wakes_at = |step: &&StepRecord| {
        let at = step.next_retry_at.or(step.wake_at);
        (at.is_none(), at)
    };
    instance.current_run().waiting_steps().min_by_key(wakes_at)
}

pub(super) fn instance(
    state: &State,
    workflow: &WorkflowName,
    id: &InstanceId,
) -> Option<InstanceView> {
    let instance = &state.instances[&state.key_of(workflow, id)?];
    Some(InstanceView { record: record(instance), waiting_for: waiting_for(instance).cloned() })
}

pub(super) fn instances(state: &State, query: &InstanceQuery) -> Vec<InstanceRecord> {
    let Some(workflow) = state.workflows.get(&query.workflow) else {
        return Vec::new();
    };
    let newest_first = workflow.listed.range(..query.below()).rev();
    newest_first
        .take_while(|place| query.created_after.is_none_or(|after| place.created_at >= after))
        .map(|place| &state.instances[&place.key])
        .filter(|instance| query.status.is_none_or(|status| instance.record.status == status))
        .take(query.limit as usize)
        .map(record)
        .collect()
}

pub(super) fn ended(state: &State, keys: Vec<InstanceKey>) -> Vec<InstanceKey> {
    let has_ended = |key: &InstanceKey| {
        let instance = state.instances.get(key);
        instance.is_some_and(|instance| instance.record.status.is_terminal())
    };
    keys.into_iter().filter(has_ended).collect()
}

pub(super) fn backlog(state: &State, known: &[WorkflowName]) -> Vec<(WorkflowName, u64)> {
    let workflows = state.workflows.iter();
    workflows
        .filter(|(name, workflow)| workflow.live_tasks > 0 && !known.contains(name))
        .map(|(name, workflow)| (name.clone(), workflow.live_tasks))
        .collect()
}

/// One page of a run's rows.
pub(super) fn page<T: Clone>(
    rows: &BTreeMap<u64, T>,
    page: PageQuery,
    keep: impl Fn(&T) -> bool,
) -> Vec<T> {
    let after = page.after.map(|after| after + u64::from(planted(Bug::PageSkipsRow)));
    let behind = match after {
        None => rows.range(..),
        Some(after) if page.descending => rows.range(..after),
        Some(after) => rows.range((Bound::Excluded(after), Bound::Unbounded)),
    };
    let limit = page.limit as usize;
    let kept = |(_, row): &(&u64, &T)| keep(row);
    let pick = |(_, row): (&u64, &T)| row.clone();
    if page.descending {
        behind.rev().filter(kept).take(limit).map(pick).collect()
    } else {
        behind.filter(kept).take(limit).map(pick).collect()
    }
}
