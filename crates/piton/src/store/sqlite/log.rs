//! The rows of `piton_log`.

use piton_core::StepName;
use piton_core::record::{InstanceKey, LogLine, LogRecord, RunNumber};
use piton_core::story::SystemLine;
use rusqlite::{Row, params};

use super::batch::Batch;
use super::cells::Cells;
use super::statements::Statements;
use super::task;
use super::trouble::Outcome;
use crate::store::{LogFilter, PageQuery};

const TABLE: &str = "piton_log";

/// The number is given here, inside the one writer's transaction, so that lines become visible in its order.
pub(super) const LOG_INSERT: &str = "\
    INSERT INTO piton_log (instance_key, run_number, seq, id, step_name, attempt, level, category, is_replay,
        created_at, message, data)
    VALUES (?1, ?2,
        (SELECT coalesce(max(seq), 0) + 1 FROM piton_log WHERE instance_key = ?1 AND run_number = ?2),
        ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";

macro_rules! select_log {
    () => {
        "SELECT instance_key, run_number, seq, id, step_name, attempt, level, category, is_replay, created_at,
            message, data
        FROM piton_log WHERE instance_key = ?1 AND run_number = ?2
            AND (?5 IS NULL OR level = ?5) AND (?6 IS NULL OR category = ?6)"
    };
}

pub(super) const LOG_PAGE: &str = concat!(select_log!(), " AND seq > ?3 ORDER BY seq LIMIT ?4");

pub(super) const LOG_PAGE_DESCENDING: &str =
    concat!(select_log!(), " AND seq < ?3 ORDER BY seq DESC LIMIT ?4");

pub(super) fn insert(
    db: &mut Statements<'_>,
    instance: InstanceKey,
    run: RunNumber,
    line: &LogLine,
) -> Outcome<()> {
    db.execute(
        LOG_INSERT,
        params![
            instance.0,
            run,
            line.id,
            line.step.as_ref().map(StepName::as_str),
            line.attempt,
            line.level.as_str(),
            line.category,
            line.is_replay,
            line.created_at.as_millis(),
            line.message,
            line.data.as_ref().map(piton_core::Json::as_str),
        ],
    )?;
    Ok(())
}

/// Writes a line of the engine's own.
pub(super) fn tell(
    batch: &mut Batch<'_, '_>,
    instance: InstanceKey,
    run: RunNumber,
    line: SystemLine,
) -> Outcome<()> {
    let line = line.written(batch.ids.next("log"), batch.now);
    insert(batch.db, instance, run, &line)
}

/// Appends lines to a run that the caller does not hold. A run that never was gets none.
pub(super) fn append(
    batch: &mut Batch<'_, '_>,
    key: InstanceKey,
    run: RunNumber,
    lines: &[LogLine],
) -> Outcome<()> {
    // Ended and superseded runs never change.
    let live = task::get(batch, key)?.is_some_and(|task| task.run == run);
    if !live {
        return Ok(());
    }
    for line in lines {
        insert(batch.db, key, run, line)?;
    }
    Ok(())
}

pub(super) fn page(
    db: &mut Statements<'_>,
    page: &PageQuery,
    filter: &LogFilter,
) -> Outcome<Vec<LogRecord>> {
    let sql = if page.descending { LOG_PAGE_DESCENDING } else { LOG_PAGE };
    let params = params![
        page.instance.0,
        page.run,
        page.behind(),
        page.limit,
        filter.level.map(piton_core::LogLevel::as_str),
        filter.category,
    ];
    db.all(sql, params, decode)
}

fn decode(row: &Row<'_>) -> Outcome<LogRecord> {
    let cells = Cells::keyed(row, TABLE)?;
    let line = LogLine {
        id: cells.shared(3)?,
        step: cells.opt_text(4)?.map(StepName::from_stored),
        attempt: cells.opt_number(5)?,
        level: cells.word(6)?,
        category: cells.shared(7)?,
        is_replay: cells.flag(8)?,
        created_at: cells.time(9)?,
        message: cells.shared(10)?,
        data: cells.opt_json(11)?,
    };
    Ok(LogRecord { run: cells.number(1)?, seq: cells.number(2)?, line })
}
