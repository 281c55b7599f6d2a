//! The commit of lone steps: boundaries that bring one completed `do` step each and leave their runs as they are.
//!
//! Most boundaries are of this kind. A statement for nothing else costs the server two thirds of what `group.rs` costs it
//! for the same boundaries, and a third if it is only one: there is less to prepare, and fewer columns travel.

use std::borrow::Cow;

use piton_core::record::{InstanceKey, StepRecord};
use piton_core::{Json, Timestamp};
use sqlx::Row;
use sqlx::postgres::{PgArguments, PgRow};

use super::cells::{bigint, int};
use super::clock::clock_ms;
use super::group::{Decided, Done, add};
use super::statements::Db;
use super::text;
use super::trouble::{Failure, Outcome};

/// The task of each step is looked up by its key and locked, in the order of the parameters, which is that of the keys; the
/// step is inserted on the condition that the task is as remembered. As nobody writes a step of a run without its lock,
/// no insertion waits for anybody.
const LONE_STEPS_COMMIT: &str = concat!(
    "WITH clock AS MATERIALIZED (SELECT coalesce($1, ", clock_ms!(), ") AS now),
    steps AS (
        INSERT INTO piton_step (instance_key, run_number, position, seq, name, type, status, attempts, attempts_max,
            timeout_ms, created_at, started_at, updated_at, result)
        SELECT b.instance_key, b.run_number, b.position, b.seq, b.name, 'do', 'completed', b.attempts, b.attempts_max,
            b.timeout_ms, b.created_at, b.started_at, b.updated_at, b.result
        FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
            AS b(instance_key, run_number, epoch, claims_without_progress, position, seq, name, attempts, attempts_max,
                timeout_ms, created_at, started_at, updated_at, result)
        CROSS JOIN LATERAL (
            SELECT FROM piton_task AS t
            WHERE t.instance_key = b.instance_key AND t.run_number = b.run_number AND t.epoch = b.epoch
                AND coalesce(t.state, '') = 'leased' AND NOT t.pause_requested
                AND t.claims_without_progress = b.claims_without_progress
            FOR NO KEY UPDATE) AS locked
        RETURNING instance_key)
    SELECT coalesce(array_agg(instance_key), '{}'), (SELECT now FROM clock) FROM steps"
);

/// Boundaries that can all be written by the statement.
pub(super) struct LoneSteps<'b>(Vec<(&'b Decided<'b>, &'b StepRecord)>);

impl<'b> LoneSteps<'b> {
    /// `None` if one of them is of another kind.
    pub(super) fn all(boundaries: &'b [Decided<'b>]) -> Option<Self> {
        let steps = boundaries.iter().map(|decided| Some((decided, decided.lone_step()?)));
        steps.collect::<Option<Vec<_>>>().map(Self)
    }

    /// Runs the statement. Outside of a transaction it is committed when this returns.
    pub(super) async fn commit(&self, db: &mut Db<'_>, fixed: Option<Timestamp>) -> Outcome<Done> {
        let mut params = PgArguments::default();
        add(&mut params, fixed.map(Timestamp::as_millis))?;
        self.bind(&mut params)?;
        let done = db.one(LONE_STEPS_COMMIT, params, decode).await?;
        let (held, now) = done.ok_or_else(|| Failure::conflict("internal: no answer"))?;
        Ok(Done::of_boundaries(now, held))
    }

    fn bind(&self, params: &mut PgArguments) -> Result<(), Failure> {
        macro_rules! column {
            ($type:ty, |$decided:pat_param, $step:pat_param| $value:expr) => {
                add(params, self.0.iter().map(|($decided, $step)| $value).collect::<Vec<$type>>())?
            };
        }
        column!(i64, |decided, _| decided.key().instance.0);
        column!(i32, |decided, _| int(decided.key().run));
        column!(i64, |decided, _| bigint(decided.key().epoch));
        column!(i32, |decided, _| int(decided.claims_without_progress()));
        column!(i32, |_, step| int(step.position));
        column!(i32, |_, step| int(step.seq));
        column!(Cow<'_, str>, |_, step| text::stored(step.name.as_str()));
        column!(i64, |_, step| step.attempts.into());
        column!(Option<i64>, |_, step| step.attempts_max.map(Into::into));
        column!(Option<i64>, |_, step| step.timeout_ms);
        column!(i64, |_, step| step.created_at.as_millis());
        column!(i64, |_, step| step.started_at.as_millis());
        column!(i64, |_, step| step.updated_at.as_millis());
        column!(Option<&str>, |_, step| step.result.as_ref().map(Json::as_str));
        Ok(())
    }
}

fn decode(row: &PgRow) -> Outcome<(Vec<InstanceKey>, Timestamp)> {
    let keys: Vec<i64> = row.try_get(0).map_err(Failure::from)?;
    let now: i64 = row.try_get(1).map_err(Failure::from)?;
    Ok((keys.into_iter().map(InstanceKey).collect(), Timestamp::from_millis(now)))
}
