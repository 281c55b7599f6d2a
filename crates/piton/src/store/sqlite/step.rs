//! The rows of `piton_step`.

use piton_core::boundary::Fenced;
use piton_core::record::{InstanceKey, RunKey, RunNumber, StepRecord};
use piton_core::{EventType, Json, StepName, StepStatus, StepType, Timestamp};
use rusqlite::{Row, params};

use super::cells::{Cells, error_text};
use super::statements::Statements;
use super::trouble::{Outcome, is_unique_violation};
use crate::store::{PageQuery, RowState};

const TABLE: &str = "piton_step";

macro_rules! select_step {
    ($index:literal) => {
        concat!(
            "SELECT instance_key, position, seq, name, type, status, attempts, attempts_max, timeout_ms,
                next_retry_at, wake_at, event_type, created_at, started_at, updated_at, result, error
            FROM piton_step ",
            $index,
            " WHERE instance_key = ?1 AND run_number = ?2"
        )
    };
}

pub(super) const STEP_INSERT: &str = "\
    INSERT INTO piton_step (instance_key, run_number, position, seq, name, type, status, attempts, attempts_max,
        timeout_ms, next_retry_at, wake_at, event_type, created_at, started_at, updated_at, result, error)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)";

/// A body that succeeded, with nothing to say about timers: what nearly every step is. Parameters that are not bound
/// are a tenth of its cost.
pub(super) const STEP_INSERT_DONE: &str = "\
    INSERT INTO piton_step (instance_key, run_number, position, seq, name, type, status, attempts, attempts_max,
        created_at, started_at, updated_at, result)
    VALUES (?1, ?2, ?3, ?4, ?5, 'do', 'completed', ?6, ?7, ?8, ?9, ?10, ?11)";

/// A settled step never changes (rule R2), whoever asks.
pub(super) const STEP_UPDATE: &str = "\
    UPDATE piton_step SET seq = ?4, name = ?5, type = ?6, status = ?7, attempts = ?8, attempts_max = ?9,
        timeout_ms = ?10, next_retry_at = ?11, wake_at = ?12, event_type = ?13, created_at = ?14, started_at = ?15,
        updated_at = ?16, result = ?17, error = ?18
    WHERE instance_key = ?1 AND run_number = ?2 AND position = ?3 AND status NOT IN ('completed', 'errored')";

pub(super) const STEP_OF_RUN: &str = concat!(select_step!(""), " ORDER BY position");

pub(super) const STEP_PAGE: &str = concat!(
    select_step!(""),
    " AND position > ?3 ORDER BY position LIMIT ?4"
);

pub(super) const STEP_PAGE_DESCENDING: &str = concat!(
    select_step!(""),
    " AND position < ?3 ORDER BY position DESC LIMIT ?4"
);

/// Of the steps the run waits for, the one that wakes first.
pub(super) const STEP_WAKING_FIRST: &str = concat!(
    select_step!("INDEXED BY piton_step_waiting"),
    " AND status = 'waiting'
    ORDER BY coalesce(next_retry_at, wake_at) IS NULL, coalesce(next_retry_at, wake_at), position LIMIT 1"
);

pub(super) const STEP_WAITS_FOR: &str = "\
    SELECT 1 FROM piton_step INDEXED BY piton_step_waiting
    WHERE instance_key = ?1 AND run_number = ?2 AND status = 'waiting' AND type = 'waitForEvent' AND event_type = ?3";

pub(super) const STEP_NEWEST: &str =
    "SELECT max(updated_at) FROM piton_step WHERE instance_key = ?1 AND run_number = ?2";

/// Writes a step's row.
///
/// A row that is not as the caller believes (a new position is taken, a changed step is gone or settled) means
/// that somebody else advanced the run: the caller is fenced, whatever its epoch says.
pub(super) fn write(
    db: &mut Statements<'_>,
    key: &RunKey,
    step: &StepRecord,
    row: RowState,
) -> Outcome<()> {
    let sql = match row {
        RowState::New => STEP_INSERT,
        RowState::Changed => STEP_UPDATE,
        RowState::Stored if step.status.is_settled() => STEP_UPDATE,
        RowState::Stored => return Ok(()),
    };
    let written = if row == RowState::New && is_plainly_done(step) {
        insert_done(db, key, step)
    } else {
        write_all(db, sql, key, step)
    };
    match written {
        Ok(1) => Ok(()),
        Ok(_) => Err(Fenced.into()),
        Err(error) if is_unique_violation(&error) => Err(Fenced.into()),
        Err(error) => Err(error.into()),
    }
}

fn is_plainly_done(step: &StepRecord) -> bool {
    step.step_type == StepType::Do
        && step.status == StepStatus::Completed
        && step.timeout_ms.is_none()
        && step.next_retry_at.is_none()
        && step.wake_at.is_none()
        && step.event_type.is_none()
        && step.error.is_none()
}

fn insert_done(
    db: &mut Statements<'_>,
    key: &RunKey,
    step: &StepRecord,
) -> rusqlite::Result<usize> {
    db.execute(
        STEP_INSERT_DONE,
        params![
            key.instance.0,
            key.run,
            step.position,
            step.seq,
            step.name.as_str(),
            step.attempts,
            step.attempts_max,
            step.created_at.as_millis(),
            step.started_at.as_millis(),
            step.updated_at.as_millis(),
            step.result.as_ref().map(Json::as_str),
        ],
    )
}

fn write_all(
    db: &mut Statements<'_>,
    sql: &'static str,
    key: &RunKey,
    step: &StepRecord,
) -> rusqlite::Result<usize> {
    let time = |time: Option<Timestamp>| time.map(Timestamp::as_millis);
    db.execute(
        sql,
        params![
            key.instance.0,
            key.run,
            step.position,
            step.seq,
            step.name.as_str(),
            step.step_type.as_str(),
            step.status.as_str(),
            step.attempts,
            step.attempts_max,
            step.timeout_ms,
            time(step.next_retry_at),
            time(step.wake_at),
            step.event_type.as_ref().map(EventType::as_str),
            step.created_at.as_millis(),
            step.started_at.as_millis(),
            step.updated_at.as_millis(),
            step.result.as_ref().map(Json::as_str),
            error_text(step.error.as_ref()),
        ],
    )
}

fn decode(row: &Row<'_>) -> Outcome<StepRecord> {
    let cells = Cells::keyed(row, TABLE)?;
    Ok(StepRecord {
        position: cells.number(1)?,
        seq: cells.number(2)?,
        name: StepName::from_stored(cells.shared(3)?),
        step_type: cells.word(4)?,
        status: cells.word(5)?,
        attempts: cells.number(6)?,
        attempts_max: cells.opt_number(7)?,
        timeout_ms: cells.opt_i64(8)?,
        next_retry_at: cells.opt_time(9)?,
        wake_at: cells.opt_time(10)?,
        event_type: cells.opt_text(11)?.map(EventType::from_stored),
        created_at: cells.time(12)?,
        started_at: cells.time(13)?,
        updated_at: cells.time(14)?,
        result: cells.opt_json(15)?,
        error: cells.opt_error(16)?,
    })
}

/// All steps of a run by position.
pub(super) fn of_run(
    db: &mut Statements<'_>,
    instance: InstanceKey,
    run: RunNumber,
) -> Outcome<Vec<StepRecord>> {
    db.all(STEP_OF_RUN, params![instance.0, run], decode)
}

pub(super) fn page(db: &mut Statements<'_>, page: &PageQuery) -> Outcome<Vec<StepRecord>> {
    let sql = if page.descending {
        STEP_PAGE_DESCENDING
    } else {
        STEP_PAGE
    };
    let params = params![page.instance.0, page.run, page.behind(), page.limit];
    db.all(sql, params, decode)
}

/// Of the steps the run waits for, the one that wakes first.
pub(super) fn waking_first(
    db: &mut Statements<'_>,
    instance: InstanceKey,
    run: RunNumber,
) -> Outcome<Option<StepRecord>> {
    db.one(STEP_WAKING_FIRST, params![instance.0, run], decode)
}

/// Whether the run has registered a wait for this type.
pub(super) fn waits_for(
    db: &mut Statements<'_>,
    instance: InstanceKey,
    run: RunNumber,
    event_type: &EventType,
) -> Outcome<bool> {
    let params = params![instance.0, run, event_type.as_str()];
    Ok(db.one(STEP_WAITS_FOR, params, |_| Ok(()))?.is_some())
}

/// When a step of the run was last recorded.
pub(super) fn newest(
    db: &mut Statements<'_>,
    instance: InstanceKey,
    run: RunNumber,
) -> Outcome<Option<Timestamp>> {
    let newest = db.one(STEP_NEWEST, params![instance.0, run], |row| {
        Cells::new(row, TABLE, instance).opt_time(0)
    })?;
    Ok(newest.flatten())
}
