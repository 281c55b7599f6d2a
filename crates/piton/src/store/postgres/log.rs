//! The rows of `piton_log`.

use std::borrow::Cow;

use piton_core::record::{InstanceKey, LogLine, LogRecord, RunKey, RunNumber};
use piton_core::{Json, StepName};
use sqlx::Arguments;
use sqlx::postgres::{PgArguments, PgRow};

use super::cells::{Cells, int};
use super::statements::{Db, params};
use super::text;
use super::trouble::{Failure, Outcome};
use crate::store::{LogFilter, PageQuery};

const TABLE: &str = "piton_log";

/// Without seq: the sequence is asked while the run's lock is held, so that lines become visible in its order.
macro_rules! columns {
    () => {
        "instance_key, run_number, id, step_name, attempt, level, category, is_replay, created_at, message, data"
    };
}
pub(super) use columns;

/// The rows that [`bind`] adds, as these eleven parameters.
macro_rules! rows {
    ($params:literal) => {
        concat!("unnest(", $params, ") AS l(", $crate::store::postgres::log::columns!(), ")")
    };
}
pub(super) use rows;

const LOG_INSERT: &str = concat!(
    "INSERT INTO piton_log (",
    columns!(),
    ") SELECT ",
    columns!(),
    " FROM ",
    rows!("$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11")
);

const LOG_IS_THERE: &str =
    "SELECT count(*) FROM piton_log WHERE instance_key = $1 AND run_number = $2 AND id = $3";

macro_rules! select_log {
    () => {
        "SELECT instance_key, run_number, seq, id, step_name, attempt, level, category, is_replay, created_at, message,
            data
        FROM piton_log WHERE instance_key = $1 AND run_number = $2
            AND ($5::text IS NULL OR level = $5) AND ($6::text IS NULL OR category = $6)"
    };
}

const LOG_PAGE: &str = concat!(select_log!(), " AND seq > $3 ORDER BY seq LIMIT $4");

const LOG_PAGE_DESCENDING: &str =
    concat!(select_log!(), " AND seq < $3 ORDER BY seq DESC LIMIT $4");

/// A line that is about to be stored, and where.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) instance: InstanceKey,
    pub(super) run: RunNumber,
    pub(super) line: LogLine,
}

/// Adds rows to the parameters of a statement, column by column.
pub(super) fn bind<'r>(
    params: &mut PgArguments,
    lines: impl Iterator<Item = (InstanceKey, RunNumber, &'r LogLine)> + Clone,
) -> Result<(), Failure> {
    macro_rules! column {
        ($type:ty, |$instance:pat_param, $run:pat_param, $line:pat_param| $value:expr) => {
            params
                .add(lines.clone().map(|($instance, $run, $line)| $value).collect::<Vec<$type>>())
                .map_err(|error| Failure::of_parameter(&*error))?
        };
    }
    column!(i64, |instance, _, _| instance.0);
    column!(i32, |_, run, _| int(run));
    column!(&str, |_, _, line| &*line.id);
    column!(Option<Cow<'_, str>>, |_, _, line| line
        .step
        .as_ref()
        .map(|step| text::stored(step.as_str())));
    column!(Option<i32>, |_, _, line| line.attempt.map(int));
    column!(&str, |_, _, line| line.level.as_str());
    column!(Cow<'_, str>, |_, _, line| text::stored(&line.category));
    column!(bool, |_, _, line| line.is_replay);
    column!(i64, |_, _, line| line.created_at.as_millis());
    column!(Cow<'_, str>, |_, _, line| text::stored(&line.message));
    column!(Option<&str>, |_, _, line| line.data.as_ref().map(Json::as_str));
    Ok(())
}

pub(super) async fn insert(db: &mut Db<'_>, lines: &[Line]) -> Result<(), Failure> {
    if lines.is_empty() {
        return Ok(());
    }
    let mut params = PgArguments::default();
    bind(&mut params, lines.iter().map(|line| (line.instance, line.run, &line.line)))?;
    db.execute(LOG_INSERT, params).await?;
    Ok(())
}

/// Whether a line was stored. Reads the whole log of the run: for what almost never happens.
pub(super) async fn is_there(db: &mut Db<'_>, key: &RunKey, line: &LogLine) -> Outcome<bool> {
    let found = db
        .one(LOG_IS_THERE, params![key.instance.0, int(key.run), &*line.id], |row| {
            Ok(sqlx::Row::try_get::<i64, _>(row, 0).map_err(Failure::from)?)
        })
        .await?;
    Ok(found.is_some_and(|count| count > 0))
}

pub(super) async fn page(
    db: &mut Db<'_>,
    page: &PageQuery,
    filter: &LogFilter,
) -> Outcome<Vec<LogRecord>> {
    let sql = if page.descending { LOG_PAGE_DESCENDING } else { LOG_PAGE };
    let params = params![
        page.instance.0,
        int(page.run),
        page.behind(),
        i64::from(page.limit),
        filter.level.map(piton_core::LogLevel::as_str),
        filter.category.as_ref().map(|category| text::stored(category)),
    ];
    db.all(sql, params, decode).await
}

fn decode(row: &PgRow) -> Outcome<LogRecord> {
    let cells = Cells::keyed(row, TABLE)?;
    let line = LogLine {
        id: cells.text(3)?,
        step: cells.opt_text(4)?.map(StepName::from_stored),
        attempt: cells.opt_u32(5)?,
        level: cells.word(6)?,
        category: cells.text(7)?,
        is_replay: cells.flag(8)?,
        created_at: cells.time(9)?,
        message: cells.text(10)?,
        data: cells.opt_json(11)?,
    };
    Ok(LogRecord { run: cells.u32(1)?, seq: cells.u64(2)?, line })
}
