//! Creating instances with their tasks.

use std::collections::HashSet;

use piton_core::hook::{EngineNews, EnqueueReason};
use piton_core::record::InstanceRecord;
use piton_core::{Refusal, WorkflowName, lifecycle, story};

use super::batch::Batch;
use super::trouble::Outcome;
use super::{hook, instance, log, task};
use crate::store::{CreateRequest, Created, Existing, Lease, NewInstance};

/// Creates what the request asks for, all or nothing.
pub(super) fn create(
    batch: &mut Batch<'_, '_>,
    request: &mut CreateRequest,
) -> Outcome<Vec<Created>> {
    // One insert checks itself; several must all be known to succeed before the first is written.
    if request.existing == Existing::Refuse && request.instances.len() > 1 {
        refuse_existing(batch, request)?;
    }
    let mut all = Vec::with_capacity(request.instances.len());
    for new in request.instances.drain(..) {
        let id = new.id.clone();
        let created = create_one(batch, &request.workflow, new, request.lease.as_ref())?;
        match (created, request.existing) {
            (Some(created), _) => all.push(created),
            (None, Existing::Skip) => {}
            (None, Existing::Refuse) => {
                return Err(Refusal::id_exists(&request.workflow, &id).into());
            }
        }
    }
    if !all.is_empty() {
        hook::trigger_all(batch, &request.hooks)?;
    }
    Ok(all)
}

fn refuse_existing(batch: &mut Batch<'_, '_>, request: &CreateRequest) -> Outcome<()> {
    let mut seen = HashSet::with_capacity(request.instances.len());
    for new in &request.instances {
        if !seen.insert(&new.id) || instance::exists(batch.db, &request.workflow, &new.id)? {
            return Err(Refusal::id_exists(&request.workflow, &new.id).into());
        }
    }
    Ok(())
}

/// `None` if the id exists already.
fn create_one(
    batch: &mut Batch<'_, '_>,
    workflow: &WorkflowName,
    new: NewInstance,
    lease: Option<&Lease>,
) -> Outcome<Option<Created>> {
    let now = batch.now;
    let started_at = lease.map(|_| now);
    let inserted = instance::insert(batch.db, workflow, &new.id, &new.params, now, started_at)?;
    let Some(key) = inserted else {
        return Ok(None);
    };
    let first = lifecycle::first_task(now, lease.map(|lease| now.plus(lease.span)));
    let owner = lease.map(|lease| &lease.runner);
    task::insert(batch, key, workflow, &first, owner)?;
    match lease {
        Some(lease) => {
            let line = story::claimed(&lease.runner, first.epoch);
            log::tell(batch, key, first.run, line)?;
        }
        None => batch.hint_due(workflow, first.run_at),
    }
    let enqueued = || EngineNews::enqueued(first.run, EnqueueReason::Create, now);
    hook::news(batch, workflow, &new.id, batch.engine_hooks.map(|_| enqueued()))?;
    Ok(Some(Created {
        instance: InstanceRecord::created(
            key,
            workflow.clone(),
            new.id,
            new.params,
            now,
            started_at,
        ),
        epoch: first.epoch,
    }))
}
