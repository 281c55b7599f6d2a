//! Creating instances inside a transaction: several that must all be new, and those that a step creates.

use std::collections::HashSet;

use piton_core::Refusal;

use super::task::Row;
use super::transaction::Transaction;
use super::trouble::Outcome;
use super::{group, instance};
use crate::store::{CreateRequest, Created, Existing};

/// Creates what the request asks for, all or nothing.
pub(super) async fn create(
    tx: &mut Transaction<'_>,
    request: &CreateRequest,
) -> Outcome<Vec<Created>> {
    let workflow = &request.workflow;
    if request.existing == Existing::Refuse {
        let mut seen = HashSet::new();
        if let Some(twice) = request.instances.iter().find(|new| !seen.insert(&new.id)) {
            return Err(Refusal::id_exists(workflow, &twice.id).into());
        }
        if let Some(id) = instance::find_existing(&mut tx.db, workflow, &request.instances).await? {
            return Err(Refusal::id_exists(workflow, id).into());
        }
    }
    let done = group::commit(&mut tx.db, tx.ids, Some(tx.now), &[], &[request]).await?;
    let created = done.created(request);
    if request.existing == Existing::Refuse && created.len() != request.instances.len() {
        // Somebody else created one of them in between: look again.
        return Err(super::trouble::Failure::conflict(
            "an instance was created at this very moment",
        )
        .into());
    }
    if !created.is_empty() {
        tx.hooks.extend(request.hooks.iter().cloned());
        tx.created(workflow, &created);
    }
    let task = done.first_task(request);
    if !group::is_claimable(&task) {
        let key = |created: &Created| created.instance.key;
        let rows =
            created.iter().map(|new| Row { key: key(new), workflow: workflow.clone(), task });
        tx.leased.extend(rows);
    } else if !created.is_empty() {
        tx.hint_due(workflow, tx.now);
    }
    Ok(created)
}
