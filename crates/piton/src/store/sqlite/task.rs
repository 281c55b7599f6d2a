//! The rows of `piton_task`.

use std::sync::Arc;

use piton_core::boundary::TaskChange;
use piton_core::record::{InstanceKey, Task};
use piton_core::{Timestamp, WorkflowName};
use rusqlite::{Params, Row, params};

use super::batch::Batch;
use super::cells::Cells;
use super::statements::Statements;
use super::trouble::{Outcome, Trouble};

const TABLE: &str = "piton_task";

/// The guard's one point read.
pub(super) const TASK_GET: &str = "\
    SELECT run_number, kind, state, run_at, lease_until, epoch, claims_without_progress, pause_requested
    FROM piton_task WHERE instance_key = ?1";

pub(super) const TASK_WORKFLOW: &str =
    "SELECT workflow_name FROM piton_task WHERE instance_key = ?1";

pub(super) const TASK_INSERT: &str = "\
    INSERT INTO piton_task (instance_key, workflow_name, run_number, kind, state, run_at, lease_until, lease_owner,
        epoch, claims_without_progress, pause_requested)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";

/// A task that is not leased has no owner.
pub(super) const TASK_PUT: &str = "\
    UPDATE piton_task SET run_number = ?2, kind = ?3, state = ?4, run_at = ?5, lease_until = ?6,
        lease_owner = iif(?4 = 'leased', lease_owner, NULL), epoch = ?7, claims_without_progress = ?8,
        pause_requested = ?9
    WHERE instance_key = ?1";

/// Touches no index: what a boundary in the middle of a pass and a requested pause may change.
pub(super) const TASK_NOTE: &str = "\
    UPDATE piton_task SET claims_without_progress = ?2, pause_requested = ?3 WHERE instance_key = ?1";

pub(super) const TASK_CLAIM: &str = "\
    UPDATE piton_task SET state = 'leased', lease_until = ?2, lease_owner = ?3, epoch = ?4,
        claims_without_progress = ?5
    WHERE instance_key = ?1";

pub(super) const TASK_RENEW: &str =
    "UPDATE piton_task SET lease_until = ?2 WHERE instance_key = ?1";

pub(super) const TASK_DELETE: &str = "DELETE FROM piton_task WHERE instance_key = ?1";

/// A row that cannot be read leaves the indexes, so that claims do not stumble over it for ever.
pub(super) const TASK_SET_ASIDE: &str =
    "UPDATE piton_task SET state = 'held' WHERE instance_key = ?1";

/// Ties by key, the order of creation. INDEXED BY, here and elsewhere: no statistics may ever change the plan.
pub(super) const TASK_DUE: &str = "\
    SELECT run_at, instance_key FROM piton_task INDEXED BY piton_task_due
    WHERE workflow_name = ?1 AND resuming = ?2 AND state = 'pending' AND run_at <= ?3
    ORDER BY run_at, instance_key LIMIT ?4";

pub(super) const TASK_EXPIRED: &str = "\
    SELECT run_at, instance_key FROM piton_task INDEXED BY piton_task_leased
    WHERE workflow_name = ?1 AND state = 'leased' AND lease_until <= ?2
    ORDER BY lease_until, instance_key LIMIT ?3";

pub(super) const TASK_SUSPECT: &str = "\
    SELECT run_at, instance_key FROM piton_task INDEXED BY piton_task_suspect
    WHERE workflow_name = ?1 AND state = 'suspect' ORDER BY run_at, instance_key LIMIT 1";

pub(super) const TASK_NEXT_PENDING: &str = "\
    SELECT run_at FROM piton_task INDEXED BY piton_task_due
    WHERE workflow_name = ?1 AND resuming = ?2 AND state = 'pending' ORDER BY run_at LIMIT 1";

pub(super) const TASK_NEXT_EXPIRY: &str = "\
    SELECT lease_until FROM piton_task INDEXED BY piton_task_leased
    WHERE workflow_name = ?1 AND state = 'leased' ORDER BY lease_until LIMIT 1";

pub(super) const TASK_LEASED: &str =
    "SELECT instance_key FROM piton_task INDEXED BY piton_task_leased WHERE state = 'leased'";

/// Through the whole table: only for workflows that nobody runs.
pub(super) const TASK_COUNT: &str = "SELECT count(*) FROM piton_task WHERE workflow_name = ?1";

/// A task that a claim may take.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    pub(super) run_at: Timestamp,
    pub(super) key: InstanceKey,
    /// Which of the workflows asked for it belongs to.
    pub(super) workflow: usize,
}

/// The task of an instance, if its run is alive.
pub(super) fn get(batch: &mut Batch<'_, '_>, key: InstanceKey) -> Outcome<Option<Task>> {
    if let Some(task) = batch.leases.get(key) {
        debug_assert_eq!(read(batch.db, key).ok(), Some(Some(task)), "a stale lease");
        return Ok(Some(task));
    }
    let task = read(batch.db, key)?;
    if let Some(task) = &task {
        batch.leases.note(key, task);
    }
    Ok(task)
}

fn read(db: &mut Statements<'_>, key: InstanceKey) -> Outcome<Option<Task>> {
    db.one(TASK_GET, [key.0], |row| decode(row, key))
}

/// Like [`get`], for those who work through many tasks: one that cannot be read is reported and passed over, so
/// that it cannot keep the others from going on.
pub(super) fn get_readable(batch: &mut Batch<'_, '_>, key: InstanceKey) -> Outcome<Option<Task>> {
    match get(batch, key) {
        Err(Trouble::Answer(error)) => {
            tracing::error!(%error, "a task cannot be read and is passed over");
            Ok(None)
        }
        outcome => outcome,
    }
}

fn decode(row: &Row<'_>, key: InstanceKey) -> Outcome<Task> {
    let cells = Cells::new(row, TABLE, key);
    Ok(Task {
        run: cells.number(0)?,
        kind: cells.word(1)?,
        state: cells.word(2)?,
        run_at: cells.time(3)?,
        lease_until: cells.opt_time(4)?,
        epoch: cells.number(5)?,
        claims_without_progress: cells.number(6)?,
        pause_requested: cells.flag(7)?,
    })
}

/// The workflow of a live task.
pub(super) fn workflow(db: &mut Statements<'_>, key: InstanceKey) -> Outcome<Option<WorkflowName>> {
    db.one(TASK_WORKFLOW, [key.0], |row| {
        let name = Cells::new(row, TABLE, key).shared(0)?;
        Ok(WorkflowName::from_stored(name))
    })
}

/// Writes a row, and notes what it is then; `None` is "no longer there, or not to be believed". The only way.
fn write(
    batch: &mut Batch<'_, '_>,
    key: InstanceKey,
    row: Option<&Task>,
    sql: &'static str,
    params: impl Params,
) -> Outcome<()> {
    batch.db.execute(sql, params)?;
    match row {
        Some(task) => batch.leases.note(key, task),
        None => batch.leases.forget(key),
    }
    Ok(())
}

pub(super) fn insert(
    batch: &mut Batch<'_, '_>,
    key: InstanceKey,
    workflow: &WorkflowName,
    task: &Task,
    owner: Option<&Arc<str>>,
) -> Outcome<()> {
    let params = params![
        key.0,
        workflow.as_str(),
        task.run,
        task.kind.as_str(),
        task.state.as_str(),
        task.run_at.as_millis(),
        task.lease_until.map(Timestamp::as_millis),
        owner,
        signed(task.epoch),
        task.claims_without_progress,
        task.pause_requested,
    ];
    write(batch, key, Some(task), TASK_INSERT, params)
}

/// Makes the row what `change` says; `before` is what it is now.
pub(super) fn apply(
    batch: &mut Batch<'_, '_>,
    key: InstanceKey,
    before: &Task,
    change: &TaskChange,
) -> Outcome<()> {
    match change {
        TaskChange::Keep => Ok(()),
        TaskChange::Delete => delete(batch, key),
        TaskChange::Put(task) => put(batch, key, before, task),
    }
}

fn put(batch: &mut Batch<'_, '_>, key: InstanceKey, before: &Task, task: &Task) -> Outcome<()> {
    let noted = Task {
        claims_without_progress: task.claims_without_progress,
        pause_requested: task.pause_requested,
        ..*before
    };
    if noted == *task {
        let params = params![key.0, task.claims_without_progress, task.pause_requested];
        return write(batch, key, Some(task), TASK_NOTE, params);
    }
    let params = params![
        key.0,
        task.run,
        task.kind.as_str(),
        task.state.as_str(),
        task.run_at.as_millis(),
        task.lease_until.map(Timestamp::as_millis),
        signed(task.epoch),
        task.claims_without_progress,
        task.pause_requested,
    ];
    write(batch, key, Some(task), TASK_PUT, params)
}

/// Leases the row to `owner` as `task` says.
pub(super) fn lease(
    batch: &mut Batch<'_, '_>,
    key: InstanceKey,
    task: &Task,
    owner: &Arc<str>,
) -> Outcome<()> {
    let until = task.lease_until.map(Timestamp::as_millis);
    let (epoch, claims) = (signed(task.epoch), task.claims_without_progress);
    let params = params![key.0, until, owner, epoch, claims];
    write(batch, key, Some(task), TASK_CLAIM, params)
}

/// Extends the lease of a task that is leased.
pub(super) fn renew(
    batch: &mut Batch<'_, '_>,
    key: InstanceKey,
    task: &Task,
    until: Timestamp,
) -> Outcome<()> {
    let renewed = Task { lease_until: Some(until), ..*task };
    let params = params![key.0, until.as_millis()];
    write(batch, key, Some(&renewed), TASK_RENEW, params)
}

pub(super) fn delete(batch: &mut Batch<'_, '_>, key: InstanceKey) -> Outcome<()> {
    write(batch, key, None, TASK_DELETE, [key.0])
}

pub(super) fn set_aside(batch: &mut Batch<'_, '_>, key: InstanceKey) -> Outcome<()> {
    write(batch, key, None, TASK_SET_ASIDE, [key.0])
}

/// The oldest due tasks of a workflow that resume something, or that are new.
pub(super) fn due(
    db: &mut Statements<'_>,
    (index, workflow): (usize, &WorkflowName),
    resuming: bool,
    now: Timestamp,
    limit: usize,
) -> Outcome<Vec<Candidate>> {
    let params = params![workflow.as_str(), resuming, now.as_millis(), count(limit)];
    db.all(TASK_DUE, params, |row| candidate(row, index))
}

/// Tasks of a workflow whose runner let its lease run out.
pub(super) fn expired(
    db: &mut Statements<'_>,
    (index, workflow): (usize, &WorkflowName),
    now: Timestamp,
    limit: usize,
) -> Outcome<Vec<Candidate>> {
    let params = params![workflow.as_str(), now.as_millis(), count(limit)];
    db.all(TASK_EXPIRED, params, |row| candidate(row, index))
}

/// The oldest suspect of these workflows.
pub(super) fn suspect(
    db: &mut Statements<'_>,
    workflows: &[WorkflowName],
) -> Outcome<Option<Candidate>> {
    let mut oldest = None;
    for (index, workflow) in workflows.iter().enumerate() {
        let found = db.one(TASK_SUSPECT, [workflow.as_str()], |row| candidate(row, index))?;
        oldest = [oldest, found].into_iter().flatten().min();
    }
    Ok(oldest)
}

fn candidate(row: &Row<'_>, workflow: usize) -> Outcome<Candidate> {
    Ok(Candidate {
        run_at: Timestamp::from_millis(row.get(0)?),
        key: InstanceKey(row.get(1)?),
        workflow,
    })
}

/// When the earliest task of these workflows can be claimed, suspects included.
pub(super) fn next_due_at(
    db: &mut Statements<'_>,
    workflows: &[WorkflowName],
) -> Outcome<Option<Timestamp>> {
    let suspect = suspect(db, workflows)?.map(|candidate| candidate.run_at);
    Ok([next_claimable_at(db, workflows)?, suspect].into_iter().flatten().min())
}

/// When the earliest task of these workflows that is no suspect can be claimed.
pub(super) fn next_claimable_at(
    db: &mut Statements<'_>,
    workflows: &[WorkflowName],
) -> Outcome<Option<Timestamp>> {
    let mut earliest = None;
    let mut consider = |found: Option<Timestamp>| {
        earliest = [earliest, found].into_iter().flatten().min();
    };
    for workflow in workflows {
        for resuming in [false, true] {
            let params = params![workflow.as_str(), resuming];
            consider(db.one(TASK_NEXT_PENDING, params, time)?);
        }
        consider(db.one(TASK_NEXT_EXPIRY, [workflow.as_str()], time)?);
    }
    Ok(earliest)
}

fn time(row: &Row<'_>) -> Outcome<Timestamp> {
    Ok(Timestamp::from_millis(row.get(0)?))
}

pub(super) fn leased(db: &mut Statements<'_>) -> Outcome<Vec<InstanceKey>> {
    db.all(TASK_LEASED, [], |row| Ok(InstanceKey(row.get(0)?)))
}

/// How many live tasks a workflow has.
pub(super) fn count_of(db: &mut Statements<'_>, workflow: &WorkflowName) -> Outcome<u64> {
    let tasks = db.one(TASK_COUNT, [workflow.as_str()], |row| Ok(row.get::<_, i64>(0)?))?;
    Ok(tasks.unwrap_or(0).unsigned_abs())
}

/// SQLite's integers are signed; an epoch counts claims and never gets that far.
fn signed(epoch: u64) -> i64 {
    i64::try_from(epoch).unwrap_or(i64::MAX)
}

fn count(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
