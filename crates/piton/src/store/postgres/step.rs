//! The rows of `piton_step`.

use piton_core::record::{InstanceKey, RunKey, RunNumber, StepRecord};
use piton_core::{EventType, Json, StepName, Timestamp};
use sqlx::Arguments;
use sqlx::postgres::{PgArguments, PgRow};

use super::cells::{Cells, error_text, int};
use super::statements::{Db, params};
use super::text;
use super::trouble::{Failure, Outcome};
use crate::store::PageQuery;

const TABLE: &str = "piton_step";

macro_rules! columns {
    () => {
        "instance_key, run_number, position, seq, name, type, status, attempts, attempts_max, timeout_ms, next_retry_at,
        wake_at, event_type, created_at, started_at, updated_at, result, error"
    };
}
pub(super) use columns;

/// The rows that [`bind`] adds, as these eighteen parameters.
macro_rules! rows {
    ($params:literal) => {
        concat!("unnest(", $params, ") AS s(", $crate::store::postgres::step::columns!(), ")")
    };
}
pub(super) use rows;

const STEP_INSERT: &str = concat!(
    "INSERT INTO piton_step (",
    columns!(),
    ") SELECT ",
    columns!(),
    " FROM ",
    rows!("$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18")
);

/// A settled step never changes (rule R2), whoever asks.
const STEP_UPDATE: &str = concat!(
    "UPDATE piton_step AS t SET seq = s.seq, name = s.name, type = s.type, status = s.status, attempts = s.attempts,
        attempts_max = s.attempts_max, timeout_ms = s.timeout_ms, next_retry_at = s.next_retry_at, wake_at = s.wake_at,
        event_type = s.event_type, created_at = s.created_at, started_at = s.started_at, updated_at = s.updated_at,
        result = s.result, error = s.error
    FROM ", rows!("$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18"),
    " WHERE t.instance_key = s.instance_key AND t.run_number = s.run_number AND t.position = s.position
        AND t.status NOT IN ('completed', 'errored')"
);

const STEP_OF_RUN: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM piton_step WHERE instance_key = $1 AND run_number = $2 ORDER BY position"
);

const STEP_PAGE: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM piton_step WHERE instance_key = $1 AND run_number = $2 AND position > $3
    ORDER BY position LIMIT $4"
);

const STEP_PAGE_DESCENDING: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM piton_step WHERE instance_key = $1 AND run_number = $2 AND position < $3
    ORDER BY position DESC LIMIT $4"
);

/// Adds rows to the parameters of a statement, column by column.
pub(super) fn bind<'r>(
    params: &mut PgArguments,
    steps: impl Iterator<Item = (&'r RunKey, &'r StepRecord)> + Clone,
) -> Result<(), Failure> {
    let time = |time: Option<Timestamp>| time.map(Timestamp::as_millis);
    macro_rules! column {
        ($type:ty, |$key:pat_param, $step:pat_param| $value:expr) => {
            params
                .add(steps.clone().map(|($key, $step)| $value).collect::<Vec<$type>>())
                .map_err(|error| Failure::of_parameter(&*error))?
        };
    }
    column!(i64, |key, _| key.instance.0);
    column!(i32, |key, _| int(key.run));
    column!(i32, |_, step| int(step.position));
    column!(i32, |_, step| int(step.seq));
    column!(std::borrow::Cow<'_, str>, |_, step| text::stored(step.name.as_str()));
    column!(&str, |_, step| step.step_type.as_str());
    column!(&str, |_, step| step.status.as_str());
    column!(i64, |_, step| step.attempts.into());
    column!(Option<i64>, |_, step| step.attempts_max.map(Into::into));
    column!(Option<i64>, |_, step| step.timeout_ms);
    column!(Option<i64>, |_, step| time(step.next_retry_at));
    column!(Option<i64>, |_, step| time(step.wake_at));
    column!(Option<&str>, |_, step| step.event_type.as_ref().map(EventType::as_str));
    column!(i64, |_, step| step.created_at.as_millis());
    column!(i64, |_, step| step.started_at.as_millis());
    column!(i64, |_, step| step.updated_at.as_millis());
    column!(Option<&str>, |_, step| step.result.as_ref().map(Json::as_str));
    column!(Option<String>, |_, step| error_text(step.error.as_ref()));
    Ok(())
}

pub(super) fn decode(row: &PgRow) -> Outcome<StepRecord> {
    decode_from(&Cells::keyed(row, TABLE)?, 0)
}

/// Decodes a step whose columns begin at `first`.
pub(super) fn decode_from(cells: &Cells<'_>, first: usize) -> Outcome<StepRecord> {
    let at = |column: usize| first + column;
    Ok(StepRecord {
        position: cells.u32(at(2))?,
        seq: cells.u32(at(3))?,
        name: StepName::from_stored(cells.text(at(4))?),
        step_type: cells.word(at(5))?,
        status: cells.word(at(6))?,
        attempts: cells.long_u32(at(7))?,
        attempts_max: cells.opt_long_u32(at(8))?,
        timeout_ms: cells.opt_i64(at(9))?,
        next_retry_at: cells.opt_time(at(10))?,
        wake_at: cells.opt_time(at(11))?,
        event_type: cells.opt_text(at(12))?.map(EventType::from_stored),
        created_at: cells.time(at(13))?,
        started_at: cells.time(at(14))?,
        updated_at: cells.time(at(15))?,
        result: cells.opt_json(at(16))?,
        error: cells.opt_error(at(17))?,
    })
}

/// Inserts new rows. A position that is taken means that somebody else advanced the run.
pub(super) async fn insert(db: &mut Db<'_>, steps: &[(RunKey, StepRecord)]) -> Result<(), Failure> {
    if steps.is_empty() {
        return Ok(());
    }
    let mut params = PgArguments::default();
    bind(&mut params, steps.iter().map(|(key, step)| (key, step)))?;
    db.execute(STEP_INSERT, params).await?;
    Ok(())
}

/// Changes rows. One that is gone or settled means that somebody else advanced the run.
pub(super) async fn update(db: &mut Db<'_>, steps: &[(RunKey, StepRecord)]) -> Result<(), Failure> {
    if steps.is_empty() {
        return Ok(());
    }
    let mut params = PgArguments::default();
    bind(&mut params, steps.iter().map(|(key, step)| (key, step)))?;
    let changed = db.execute(STEP_UPDATE, params).await?;
    if usize::try_from(changed) == Ok(steps.len()) {
        return Ok(());
    }
    Err(Failure::contradiction("a step that was to change is gone or settled"))
}

/// All steps of a run by position.
pub(super) async fn of_run(
    db: &mut Db<'_>,
    instance: InstanceKey,
    run: RunNumber,
) -> Outcome<Vec<StepRecord>> {
    db.all(STEP_OF_RUN, params![instance.0, int(run)], decode).await
}

pub(super) async fn page(db: &mut Db<'_>, page: &PageQuery) -> Outcome<Vec<StepRecord>> {
    let sql = if page.descending { STEP_PAGE_DESCENDING } else { STEP_PAGE };
    let behind = page.behind();
    db.all(sql, params![page.instance.0, int(page.run), behind, i64::from(page.limit)], decode)
        .await
}
