//! Reads that put several tables together.

use piton_core::record::InstanceKey;
use piton_core::{InstanceId, WorkflowName};

use super::statements::Statements;
use super::trouble::Outcome;
use super::{instance, step, task};
use crate::store::InstanceView;

/// An instance with the step it waits for.
pub(super) fn instance(
    db: &mut Statements<'_>,
    workflow: &WorkflowName,
    id: &InstanceId,
) -> Outcome<Option<InstanceView>> {
    let Some(mut record) = instance::by_id(db, workflow, id)? else {
        return Ok(None);
    };
    let mut waiting_for = None;
    // A boundary in the middle of a pass leaves the instance's row alone; the end of a run does not.
    if !record.status.is_terminal() {
        let newest = step::newest(db, record.key, record.run)?;
        record.updated_at = newest.map_or(record.updated_at, |at| at.max(record.updated_at));
        waiting_for = step::waking_first(db, record.key, record.run)?;
    }
    Ok(Some(InstanceView { record, waiting_for }))
}

/// Which of these instances have ended.
pub(super) fn ended(db: &mut Statements<'_>, keys: &[InstanceKey]) -> Outcome<Vec<InstanceKey>> {
    let mut ended = Vec::new();
    for key in keys {
        if instance::has_ended(db, *key)? {
            ended.push(*key);
        }
    }
    Ok(ended)
}

/// How many live tasks each workflow has that is not among the known ones.
pub(super) fn backlog(
    db: &mut Statements<'_>,
    known: &[WorkflowName],
) -> Outcome<Vec<(WorkflowName, u64)>> {
    let mut backlog = Vec::new();
    let mut next = instance::workflow_behind(db, "")?;
    while let Some(workflow) = next {
        next = instance::workflow_behind(db, workflow.as_str())?;
        if known.contains(&workflow) {
            continue;
        }
        let tasks = task::count_of(db, &workflow)?;
        if tasks > 0 {
            backlog.push((workflow, tasks));
        }
    }
    Ok(backlog)
}
