//! The rows of `piton_task`. Each is also the lock of its run.

use std::sync::Arc;

use piton_core::record::{InstanceKey, Task};
use piton_core::{Timestamp, WorkflowName};
use sqlx::postgres::PgRow;

use super::cells::{Cells, bigint, int};
use super::clock::clock_ms;
use super::instance;
use super::statements::{Db, params};
use super::trouble::{Failure, Outcome};

const TABLE: &str = "piton_task";

macro_rules! columns {
    () => {
        "instance_key, workflow_name, run_number, kind, state, run_at, lease_until, epoch, claims_without_progress,
        pause_requested"
    };
}

/// The clock is read as each row is locked, so that the last reading comes after every lock. Always in ascending
/// order: two transactions that want the same rows never wait for each other in a circle.
const TASK_LOCK: &str = concat!(
    "SELECT ",
    columns!(),
    ", ",
    clock_ms!(),
    " FROM (SELECT * FROM piton_task WHERE instance_key = ANY($1) ORDER BY instance_key FOR NO KEY UPDATE) AS l"
);

const TASK_GET: &str = concat!("SELECT ", columns!(), " FROM piton_task WHERE instance_key = $1");

/// A task that is not leased has no owner.
const TASK_PUT: &str = "\
    UPDATE piton_task AS t SET run_number = a.run_number, kind = a.kind, state = a.state, run_at = a.run_at,
        lease_until = a.lease_until, lease_owner = CASE WHEN a.state = 'leased' THEN t.lease_owner END,
        epoch = a.epoch, claims_without_progress = a.claims_without_progress, pause_requested = a.pause_requested
    FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9)
        AS a(instance_key, run_number, kind, state, run_at, lease_until, epoch, claims_without_progress,
            pause_requested)
    WHERE t.instance_key = a.instance_key";

const TASK_INSERT: &str = "\
    INSERT INTO piton_task (instance_key, workflow_name, run_number, kind, state, run_at, lease_until, lease_owner,
        epoch, claims_without_progress, pause_requested)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";

const TASK_DELETE: &str = "DELETE FROM piton_task WHERE instance_key = ANY($1)";

/// A row that cannot be read leaves the indexes, so that claims do not stumble over it for ever.
const TASK_SET_ASIDE: &str = "UPDATE piton_task SET state = 'held' WHERE instance_key = $1";

/// The oldest due tasks of each workflow, each skipped if somebody else has it in hand.
macro_rules! due {
    ($class:literal, $moment:literal) => {
        concat!(
            "SELECT ",
            columns!(),
            " FROM unnest($1) AS w(name) CROSS JOIN LATERAL (
                SELECT * FROM piton_task AS t WHERE t.workflow_name = w.name AND ",
            $class,
            " ORDER BY ",
            $moment,
            ", t.instance_key LIMIT $3 FOR NO KEY UPDATE OF t SKIP LOCKED) AS d"
        )
    };
}

const TASK_DUE_RESUMING: &str =
    due!("t.state = 'pending' AND t.kind <> 'run' AND t.run_at <= $2", "t.run_at");
const TASK_DUE_NEW: &str =
    due!("t.state = 'pending' AND t.kind = 'run' AND t.run_at <= $2", "t.run_at");
const TASK_SUSPECT: &str = due!("t.state = 'suspect' AND $2::bigint IS NOT NULL", "t.run_at");
const TASK_EXPIRED: &str = due!("t.state = 'leased' AND t.lease_until <= $2", "t.lease_until");

const TASK_BACKLOG: &str = "\
    SELECT workflow_name, count(*) FROM piton_task WHERE workflow_name = ANY($1) GROUP BY workflow_name";

/// When the earliest task can be claimed; suspects count only if asked for.
const TASK_NEXT_DUE: &str = "\
    SELECT min(d.at) FROM unnest($1) AS w(name) CROSS JOIN LATERAL (
        (SELECT run_at AS at FROM piton_task WHERE workflow_name = w.name AND state = 'pending' AND kind <> 'run'
            ORDER BY run_at LIMIT 1)
        UNION ALL
        (SELECT run_at FROM piton_task WHERE workflow_name = w.name AND state = 'pending' AND kind = 'run'
            ORDER BY run_at LIMIT 1)
        UNION ALL
        (SELECT run_at FROM piton_task WHERE $2 AND workflow_name = w.name AND state = 'suspect'
            ORDER BY run_at LIMIT 1)
        UNION ALL
        (SELECT lease_until FROM piton_task WHERE workflow_name = w.name AND state = 'leased'
            ORDER BY lease_until LIMIT 1)) AS d";

/// A task, and whose it is.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) key: InstanceKey,
    pub(super) workflow: WorkflowName,
    pub(super) task: Task,
}

fn decode(row: &PgRow) -> Outcome<Row> {
    let cells = Cells::keyed(row, TABLE)?;
    let task = Task {
        run: cells.u32(2)?,
        kind: cells.word(3)?,
        state: cells.word(4)?,
        run_at: cells.time(5)?,
        lease_until: cells.opt_time(6)?,
        epoch: cells.u64(7)?,
        claims_without_progress: cells.u32(8)?,
        pause_requested: cells.flag(9)?,
    };
    Ok(Row { key: cells.key(), workflow: WorkflowName::from_stored(cells.text(1)?), task })
}

/// Decodes a row; one that cannot be read is reported and passed over, so that it cannot keep the others from going on.
fn decode_readable(row: &PgRow) -> Outcome<Result<Row, InstanceKey>> {
    Ok(decode(row).map_err(|trouble| {
        let error = crate::store::StoreError::from(trouble);
        tracing::error!(%error, "a task cannot be read and is passed over");
        InstanceKey(sqlx::Row::try_get(row, 0).unwrap_or_default())
    }))
}

/// Locks the tasks of these instances, as far as there are any, and reads the clock if there was one.
pub(super) async fn lock(
    db: &mut Db<'_>,
    keys: &[InstanceKey],
) -> Outcome<(Vec<Row>, Option<Timestamp>)> {
    let keys: Vec<i64> = keys.iter().map(|key| key.0).collect();
    let locked = db
        .all(TASK_LOCK, params![keys], |row| {
            let read_at = Cells::keyed(row, TABLE)?.time(10)?;
            Ok((decode_readable(row)?.ok(), read_at))
        })
        .await?;
    let now = locked.iter().map(|(_, at)| *at).max();
    Ok((locked.into_iter().filter_map(|(row, _)| row).collect(), now))
}

/// A task as it stands, without a lock: it may be another one by the time it is looked at.
pub(super) async fn get(db: &mut Db<'_>, key: InstanceKey) -> Outcome<Option<Task>> {
    let found = db.one(TASK_GET, params![key.0], decode).await?;
    Ok(found.map(|row| row.task))
}

/// Makes rows what they are to be.
pub(super) async fn put(db: &mut Db<'_>, rows: &[(InstanceKey, Task)]) -> Result<(), Failure> {
    if rows.is_empty() {
        return Ok(());
    }
    let params = params![
        rows.iter().map(|(key, _)| key.0).collect::<Vec<i64>>(),
        rows.iter().map(|(_, task)| int(task.run)).collect::<Vec<i32>>(),
        rows.iter().map(|(_, task)| task.kind.as_str()).collect::<Vec<&str>>(),
        rows.iter().map(|(_, task)| task.state.as_str()).collect::<Vec<&str>>(),
        rows.iter().map(|(_, task)| task.run_at.as_millis()).collect::<Vec<i64>>(),
        rows.iter()
            .map(|(_, task)| task.lease_until.map(Timestamp::as_millis))
            .collect::<Vec<Option<i64>>>(),
        rows.iter().map(|(_, task)| bigint(task.epoch)).collect::<Vec<i64>>(),
        rows.iter().map(|(_, task)| int(task.claims_without_progress)).collect::<Vec<i32>>(),
        rows.iter().map(|(_, task)| task.pause_requested).collect::<Vec<bool>>(),
    ];
    db.execute(TASK_PUT, params).await?;
    Ok(())
}

pub(super) async fn insert(
    db: &mut Db<'_>,
    row: &Row,
    owner: Option<&Arc<str>>,
) -> Result<(), Failure> {
    let task = &row.task;
    let params = params![
        row.key.0,
        row.workflow.as_str(),
        int(task.run),
        task.kind.as_str(),
        task.state.as_str(),
        task.run_at.as_millis(),
        task.lease_until.map(Timestamp::as_millis),
        owner.map(|owner| &**owner),
        bigint(task.epoch),
        int(task.claims_without_progress),
        task.pause_requested,
    ];
    db.execute(TASK_INSERT, params).await?;
    Ok(())
}

pub(super) async fn delete(db: &mut Db<'_>, keys: &[i64]) -> Result<(), Failure> {
    if !keys.is_empty() {
        db.execute(TASK_DELETE, params![keys]).await?;
    }
    Ok(())
}

/// Which of the due tasks are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Resuming,
    Expired,
    New,
    Suspect,
}

/// Locks the oldest due tasks of a class. Rows that cannot be read are set aside.
pub(super) async fn take_due(
    db: &mut Db<'_>,
    class: Class,
    workflows: &[&str],
    now: Timestamp,
    limit: usize,
) -> Outcome<Vec<Row>> {
    if limit == 0 {
        return Ok(Vec::new());
    }
    let sql = match class {
        Class::Resuming => TASK_DUE_RESUMING,
        Class::Expired => TASK_EXPIRED,
        Class::New => TASK_DUE_NEW,
        Class::Suspect => TASK_SUSPECT,
    };
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let found = db.all(sql, params![workflows, now.as_millis(), limit], decode_readable).await?;
    let mut rows = Vec::with_capacity(found.len());
    for row in found {
        match row {
            Ok(row) => rows.push(row),
            Err(key) => {
                db.execute(TASK_SET_ASIDE, params![key.0]).await?;
            }
        }
    }
    rows.sort_unstable_by_key(|row| (row.task.run_at, row.key));
    Ok(rows)
}

/// When the earliest task of these workflows can be claimed, with or without the suspects.
pub(super) async fn next_due_at(
    db: &mut Db<'_>,
    workflows: &[WorkflowName],
    suspects: bool,
) -> Outcome<Option<Timestamp>> {
    let names: Vec<&str> = workflows.iter().map(WorkflowName::as_str).collect();
    let found = db
        .one(TASK_NEXT_DUE, params![names, suspects], |row| {
            Ok(sqlx::Row::try_get(row, 0).map_err(Failure::from)?)
        })
        .await?;
    Ok(found.flatten().map(Timestamp::from_millis))
}

/// How many live tasks each workflow has that is not among the known ones.
pub(super) async fn backlog(
    db: &mut Db<'_>,
    known: &[WorkflowName],
) -> Outcome<Vec<(WorkflowName, u64)>> {
    let names = instance::workflows(db).await?;
    let unknown: Vec<&str> =
        names.iter().filter(|name| !known.contains(name)).map(WorkflowName::as_str).collect();
    if unknown.is_empty() {
        return Ok(Vec::new());
    }
    let mut backlog = db
        .all(TASK_BACKLOG, params![unknown], |row| {
            let name: &str = sqlx::Row::try_get(row, 0).map_err(Failure::from)?;
            let tasks: i64 = sqlx::Row::try_get(row, 1).map_err(Failure::from)?;
            Ok((WorkflowName::from_stored(name), tasks.unsigned_abs()))
        })
        .await?;
    backlog.sort_unstable();
    Ok(backlog)
}
