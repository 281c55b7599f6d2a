//! The rows of `piton_instance`.

use std::cmp::Reverse;
use std::sync::Arc;

use piton_core::boundary::InstanceChange;
use piton_core::record::{InstanceKey, InstanceRecord, RunNumber};
use piton_core::{InstanceId, InstanceStatus, Json, Refusal, Timestamp, WorkflowName};
use rusqlite::{Row, params};

use super::cells::{Cells, error_text};
use super::statements::Statements;
use super::trouble::{Outcome, damaged_row};
use crate::store::{InstanceQuery, ListPlace};

const TABLE: &str = "piton_instance";

macro_rules! select_instance {
    ($index:literal) => {
        concat!(
            "SELECT i.key, i.workflow_name, i.instance_id, i.status, i.run_number, i.created_at, i.updated_at,
                i.started_at, i.completed_at, i.params, i.output, i.error, coalesce(t.pause_requested, 0)
            FROM piton_instance AS i ",
            $index,
            " LEFT JOIN piton_task AS t ON t.instance_key = i.key"
        )
    };
}

pub(super) const INSTANCE_BY_ID: &str =
    concat!(select_instance!(""), " WHERE i.workflow_name = ?1 AND i.instance_id = ?2");

pub(super) const INSTANCE_BY_KEY: &str = concat!(select_instance!(""), " WHERE i.key = ?1");

/// Places only: the index has them, and no row is read for nothing when the lists of all statuses are merged.
pub(super) const INSTANCE_PLACES: &str = "\
    SELECT created_at, key FROM piton_instance INDEXED BY piton_instance_by_status
    WHERE workflow_name = ?1 AND status = ?6 AND created_at >= ?2 AND (created_at, key) < (?3, ?4)
    ORDER BY created_at DESC, key DESC LIMIT ?5";

/// The next workflow by name: one look at the index, however many instances each has.
pub(super) const INSTANCE_NEXT_WORKFLOW: &str = "\
    SELECT workflow_name FROM piton_instance INDEXED BY piton_instance_by_status
    WHERE workflow_name > ?1 ORDER BY workflow_name LIMIT 1";

pub(super) const INSTANCE_STANDING: &str = "\
    SELECT key, status, run_number FROM piton_instance WHERE workflow_name = ?1 AND instance_id = ?2";

pub(super) const INSTANCE_STATUS: &str = "SELECT status FROM piton_instance WHERE key = ?1";

pub(super) const INSTANCE_TO_RUN: &str = "\
    SELECT key, status, started_at, created_at, instance_id, params FROM piton_instance WHERE key = ?1";

/// An id that exists is left alone: no row changes.
pub(super) const INSTANCE_INSERT: &str = "\
    INSERT INTO piton_instance (workflow_name, instance_id, status, run_number, created_at, updated_at, started_at,
        params)
    VALUES (?1, ?2, 'active', 0, ?3, ?3, ?4, ?5)
    ON CONFLICT (workflow_name, instance_id) DO NOTHING";

/// The first claim of a run that is active already: touches no index.
pub(super) const INSTANCE_START: &str =
    "UPDATE piton_instance SET started_at = ?2, updated_at = ?2 WHERE key = ?1";

pub(super) const INSTANCE_WAKE: &str = "\
    UPDATE piton_instance SET status = 'active', started_at = coalesce(started_at, ?2), updated_at = ?2
    WHERE key = ?1";

pub(super) const INSTANCE_CHANGE: &str =
    "UPDATE piton_instance SET status = ?2, updated_at = ?3 WHERE key = ?1";

pub(super) const INSTANCE_END: &str = "\
    UPDATE piton_instance SET status = ?2, updated_at = ?3, completed_at = ?4, output = ?5, error = ?6
    WHERE key = ?1";

pub(super) const INSTANCE_RESTART: &str = "\
    UPDATE piton_instance SET status = 'active', run_number = ?2, updated_at = ?3, started_at = NULL,
        completed_at = NULL, output = NULL, error = NULL
    WHERE key = ?1";

/// What the rules need to know about an instance.
pub(super) struct Standing {
    pub(super) key: InstanceKey,
    pub(super) status: InstanceStatus,
    pub(super) run: RunNumber,
}

/// What a runner needs to know about an instance.
pub(super) struct ToRun {
    pub(super) id: InstanceId,
    pub(super) params: Json,
    pub(super) created_at: Timestamp,
}

/// How an instance stands; refused if there is none.
pub(super) fn standing(
    db: &mut Statements<'_>,
    workflow: &WorkflowName,
    id: &InstanceId,
) -> Outcome<Standing> {
    let found = db.one(INSTANCE_STANDING, [workflow.as_str(), id.as_str()], |row| {
        let cells = Cells::keyed(row, TABLE)?;
        Ok(Standing { key: cells.key(), status: cells.word(1)?, run: cells.number(2)? })
    })?;
    found.ok_or_else(|| Refusal::no_instance(workflow, id).into())
}

pub(super) fn exists(
    db: &mut Statements<'_>,
    workflow: &WorkflowName,
    id: &InstanceId,
) -> Outcome<bool> {
    let params = [workflow.as_str(), id.as_str()];
    Ok(db.one(INSTANCE_STANDING, params, |_| Ok(()))?.is_some())
}

pub(super) fn by_id(
    db: &mut Statements<'_>,
    workflow: &WorkflowName,
    id: &InstanceId,
) -> Outcome<Option<InstanceRecord>> {
    db.one(INSTANCE_BY_ID, [workflow.as_str(), id.as_str()], decode)
}

pub(super) fn by_key(db: &mut Statements<'_>, key: InstanceKey) -> Outcome<Option<InstanceRecord>> {
    db.one(INSTANCE_BY_KEY, [key.0], decode)
}

pub(super) fn page(db: &mut Statements<'_>, query: &InstanceQuery) -> Outcome<Vec<InstanceRecord>> {
    let workflow = query.workflow.as_str();
    let after = query.created_after.map_or(i64::MIN, Timestamp::as_millis);
    let ListPlace { created_at, key } = query.below();
    let (created_at, limit) = (created_at.as_millis(), query.limit);
    let statuses = match &query.status {
        Some(status) => std::slice::from_ref(status),
        None => InstanceStatus::ALL,
    };
    let mut places = Vec::new();
    for status in statuses {
        let params = params![workflow, after, created_at, key.0, limit, status.as_str()];
        let place = |row: &Row<'_>| Ok(Reverse((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)));
        places.extend(db.all(INSTANCE_PLACES, params, place)?);
    }
    places.sort_unstable();
    places.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let mut page = Vec::with_capacity(places.len());
    for Reverse((_, key)) in places {
        page.extend(by_key(db, InstanceKey(key))?);
    }
    Ok(page)
}

/// The workflow that comes behind this name, of those that have or had an instance.
pub(super) fn workflow_behind(
    db: &mut Statements<'_>,
    name: &str,
) -> Outcome<Option<WorkflowName>> {
    db.one(INSTANCE_NEXT_WORKFLOW, [name], |row| {
        Ok(WorkflowName::from_stored(row.get::<_, Arc<str>>(0)?))
    })
}

fn decode(row: &Row<'_>) -> Outcome<InstanceRecord> {
    let cells = Cells::keyed(row, TABLE)?;
    Ok(InstanceRecord {
        key: cells.key(),
        workflow: WorkflowName::from_stored(cells.shared(1)?),
        id: InstanceId::from_stored(cells.shared(2)?),
        status: cells.word(3)?,
        run: cells.number(4)?,
        created_at: cells.time(5)?,
        updated_at: cells.time(6)?,
        started_at: cells.opt_time(7)?,
        completed_at: cells.opt_time(8)?,
        params: cells.json(9)?,
        output: cells.opt_json(10)?,
        error: cells.opt_error(11)?,
        pause_requested: cells.flag(12)?,
    })
}

pub(super) fn has_ended(db: &mut Statements<'_>, key: InstanceKey) -> Outcome<bool> {
    let status: Option<InstanceStatus> =
        db.one(INSTANCE_STATUS, [key.0], |row| Cells::new(row, TABLE, key).word(0))?;
    Ok(status.is_some_and(InstanceStatus::is_terminal))
}

/// Inserts an instance; `None` if the id exists already.
pub(super) fn insert(
    db: &mut Statements<'_>,
    workflow: &WorkflowName,
    id: &InstanceId,
    params: &Json,
    now: Timestamp,
    started_at: Option<Timestamp>,
) -> Outcome<Option<InstanceKey>> {
    let started_at = started_at.map(Timestamp::as_millis);
    let (workflow, id, params) = (workflow.as_str(), id.as_str(), params.as_str());
    let inserted =
        db.execute(INSTANCE_INSERT, params![workflow, id, now.as_millis(), started_at, params])?;
    Ok((inserted == 1).then(|| InstanceKey(db.conn().last_insert_rowid())))
}

/// Makes an instance active for a runner, and returns what the runner needs.
pub(super) fn wake(db: &mut Statements<'_>, key: InstanceKey, now: Timestamp) -> Outcome<ToRun> {
    let found = db.one(INSTANCE_TO_RUN, [key.0], |row| {
        let cells = Cells::keyed(row, TABLE)?;
        let to_run = ToRun {
            created_at: cells.time(3)?,
            id: InstanceId::from_stored(cells.shared(4)?),
            params: cells.json(5)?,
        };
        let status: InstanceStatus = cells.word(1)?;
        Ok((status, cells.opt_time(2)?, to_run))
    })?;
    let Some((status, started_at, to_run)) = found else {
        return Err(damaged_row(TABLE, key.0, "it is gone but its task is not"));
    };
    if status != InstanceStatus::Active {
        db.execute(INSTANCE_WAKE, params![key.0, now.as_millis()])?;
    } else if started_at.is_none() {
        db.execute(INSTANCE_START, params![key.0, now.as_millis()])?;
    }
    Ok(to_run)
}

pub(super) fn apply(
    db: &mut Statements<'_>,
    key: InstanceKey,
    change: &InstanceChange,
    now: Timestamp,
) -> Outcome<()> {
    let (status, now) = (change.status.as_str(), now.as_millis());
    let Some(completed_at) = change.completed_at else {
        db.execute(INSTANCE_CHANGE, params![key.0, status, now])?;
        return Ok(());
    };
    db.execute(
        INSTANCE_END,
        params![
            key.0,
            status,
            now,
            completed_at.as_millis(),
            change.output.as_ref().map(Json::as_str),
            error_text(change.error.as_ref()),
        ],
    )?;
    Ok(())
}

pub(super) fn restart(
    db: &mut Statements<'_>,
    key: InstanceKey,
    run: RunNumber,
    now: Timestamp,
) -> Outcome<()> {
    db.execute(INSTANCE_RESTART, params![key.0, run, now.as_millis()])?;
    Ok(())
}
