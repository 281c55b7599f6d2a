//! The rows of `piton_instance`.

use piton_core::boundary::InstanceChange;
use piton_core::record::{InstanceKey, InstanceRecord, RunNumber};
use piton_core::{InstanceId, InstanceStatus, Json, Timestamp, WorkflowName};
use sqlx::postgres::PgRow;

use super::cells::{Cells, error_text, int};
use super::statements::{Db, params};
use super::step;
use super::trouble::{Failure, Outcome};
use crate::store::{InstanceQuery, InstanceView, ListPlace, NewInstance};

const TABLE: &str = "piton_instance";

macro_rules! columns {
    () => {
        "i.key, i.workflow_name, i.instance_id, i.status, i.run_number, i.created_at, i.updated_at, i.started_at,
        i.completed_at, i.params, i.output, i.error, coalesce(t.pause_requested, false)"
    };
}

macro_rules! select_instance {
    () => {
        concat!(
            "SELECT ",
            columns!(),
            " FROM piton_instance AS i LEFT JOIN piton_task AS t ON t.instance_key = i.key"
        )
    };
}

const INSTANCE_BY_KEYS: &str = concat!(select_instance!(), " WHERE i.key = ANY($1)");

/// The lists of all the statuses asked for are merged: places first, which the index has, and then the rows.
const INSTANCE_PAGE: &str = concat!(
    "SELECT ", columns!(), " FROM (
        SELECT p.created_at, p.key FROM unnest($6) AS s(status)
        CROSS JOIN LATERAL (
            SELECT created_at, key FROM piton_instance
            WHERE workflow_name = $1 AND status = s.status AND created_at >= $2 AND (created_at, key) < ($3, $4)
            ORDER BY created_at DESC, key DESC LIMIT $5) AS p
        ORDER BY p.created_at DESC, p.key DESC LIMIT $5) AS p
    JOIN piton_instance AS i ON i.key = p.key
    LEFT JOIN piton_task AS t ON t.instance_key = i.key
    ORDER BY p.created_at DESC, p.key DESC"
);

/// In one statement, so that it is one state of the database. A boundary in the middle of a pass leaves the instance's row
/// alone; the end of a run does not.
const INSTANCE_VIEW: &str = concat!(
    "SELECT ", columns!(), ", n.newest, s.*
    FROM piton_instance AS i
    LEFT JOIN piton_task AS t ON t.instance_key = i.key
    LEFT JOIN LATERAL (SELECT max(updated_at) AS newest FROM piton_step
        WHERE instance_key = i.key AND run_number = i.run_number AND t.instance_key IS NOT NULL) AS n ON true
    LEFT JOIN LATERAL (SELECT ", step::columns!(), " FROM piton_step
        WHERE instance_key = i.key AND run_number = i.run_number AND status = 'waiting' AND t.instance_key IS NOT NULL
        ORDER BY coalesce(next_retry_at, wake_at) IS NULL, coalesce(next_retry_at, wake_at), position LIMIT 1) AS s
        ON true
    WHERE i.workflow_name = $1 AND i.instance_id = $2"
);

const INSTANCE_KEYS: &str = "\
    SELECT i.key, n.n FROM unnest($1, $2) WITH ORDINALITY AS n(workflow_name, instance_id, n)
    CROSS JOIN LATERAL (SELECT key FROM piton_instance AS i
        WHERE i.workflow_name = n.workflow_name AND i.instance_id = n.instance_id LIMIT 1) AS i";

const INSTANCE_EXISTING: &str = "\
    SELECT i.key, i.instance_id FROM piton_instance AS i WHERE i.workflow_name = $1 AND i.instance_id = ANY($2)";

const INSTANCE_ENDED: &str = "\
    SELECT key FROM piton_instance WHERE key = ANY($1) AND status IN ('complete', 'errored', 'terminated')";

/// Each step of the recursion is one look into the index, however many instances a workflow has.
const INSTANCE_WORKFLOWS: &str = "\
    WITH RECURSIVE w(name) AS (
        (SELECT workflow_name FROM piton_instance ORDER BY workflow_name LIMIT 1)
        UNION ALL
        SELECT (SELECT i.workflow_name FROM piton_instance AS i WHERE i.workflow_name > w.name
            ORDER BY i.workflow_name LIMIT 1)
        FROM w WHERE w.name IS NOT NULL)
    SELECT name FROM w WHERE name IS NOT NULL";

const INSTANCE_CHANGE: &str = "\
    UPDATE piton_instance AS i SET status = a.status, updated_at = $2, completed_at = a.completed_at,
        output = a.output, error = a.error
    FROM unnest($1, $3, $4, $5, $6)
        AS a(key, status, completed_at, output, error)
    WHERE i.key = a.key";

const INSTANCE_RESTART: &str = "\
    UPDATE piton_instance SET status = 'active', run_number = $2, updated_at = $3, started_at = NULL,
        completed_at = NULL, output = NULL, error = NULL
    WHERE key = $1";

/// The keys of named instances, each at the place of its name; `None` where there is no such instance.
pub(super) async fn keys(
    db: &mut Db<'_>,
    names: &[(&WorkflowName, &InstanceId)],
) -> Outcome<Vec<Option<InstanceKey>>> {
    let params = params![
        names.iter().map(|(workflow, _)| workflow.as_str()).collect::<Vec<&str>>(),
        names.iter().map(|(_, id)| id.as_str()).collect::<Vec<&str>>(),
    ];
    let found = db
        .all(INSTANCE_KEYS, params, |row| {
            let cells = Cells::keyed(row, TABLE)?;
            Ok((cells.key(), cells.u64(1)?))
        })
        .await?;
    let mut keys = vec![None; names.len()];
    for (key, place) in found {
        let place = usize::try_from(place).unwrap_or_default();
        if let Some(found) = place.checked_sub(1).and_then(|place| keys.get_mut(place)) {
            *found = Some(key);
        }
    }
    Ok(keys)
}

/// The first of these ids that exists already.
pub(super) async fn find_existing<'i>(
    db: &mut Db<'_>,
    workflow: &WorkflowName,
    new: &'i [NewInstance],
) -> Outcome<Option<&'i InstanceId>> {
    let ids: Vec<&str> = new.iter().map(|new| new.id.as_str()).collect();
    let params = params![workflow.as_str(), ids];
    let existing =
        db.all(INSTANCE_EXISTING, params, |row| Cells::keyed(row, TABLE)?.text(1)).await?;
    Ok(new
        .iter()
        .map(|new| &new.id)
        .find(|id| existing.iter().any(|known| &**known == id.as_str())))
}

pub(super) async fn by_keys(db: &mut Db<'_>, keys: &[InstanceKey]) -> Outcome<Vec<InstanceRecord>> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<i64> = keys.iter().map(|key| key.0).collect();
    db.all(INSTANCE_BY_KEYS, params![keys], decode).await
}

pub(super) async fn page(db: &mut Db<'_>, query: &InstanceQuery) -> Outcome<Vec<InstanceRecord>> {
    let workflow = query.workflow.as_str();
    let after = query.created_after.map_or(i64::MIN, Timestamp::as_millis);
    let ListPlace { created_at, key } = query.below();
    let (created_at, limit) = (created_at.as_millis(), i64::from(query.limit));
    let statuses = query.status.as_ref().map_or(InstanceStatus::ALL, std::slice::from_ref);
    let statuses: Vec<&str> = statuses.iter().map(|status| status.as_str()).collect();
    let params = params![workflow, after, created_at, key.0, limit, statuses];
    db.all(INSTANCE_PAGE, params, decode).await
}

/// An instance with the step it waits for.
pub(super) async fn view(
    db: &mut Db<'_>,
    workflow: &WorkflowName,
    id: &InstanceId,
) -> Outcome<Option<InstanceView>> {
    db.one(INSTANCE_VIEW, params![workflow.as_str(), id.as_str()], |row| {
        let mut record = decode(row)?;
        let cells = Cells::keyed(row, TABLE)?;
        let newest = cells.opt_time(13)?;
        record.updated_at = newest.map_or(record.updated_at, |at| at.max(record.updated_at));
        let waiting_for = match cells.is_null(14)? {
            true => None,
            false => Some(step::decode_from(&cells, 14)?),
        };
        Ok(InstanceView { record, waiting_for })
    })
    .await
}

/// Which of these instances have ended.
pub(super) async fn ended(db: &mut Db<'_>, keys: &[InstanceKey]) -> Outcome<Vec<InstanceKey>> {
    let wanted: Vec<i64> = keys.iter().map(|key| key.0).collect();
    let ended =
        db.all(INSTANCE_ENDED, params![wanted], |row| Ok(Cells::keyed(row, TABLE)?.key())).await?;
    Ok(keys.iter().copied().filter(|key| ended.contains(key)).collect())
}

/// The names of all workflows that ever had an instance.
pub(super) async fn workflows(db: &mut Db<'_>) -> Outcome<Vec<WorkflowName>> {
    db.all(INSTANCE_WORKFLOWS, params![], |row| {
        let name: &str = sqlx::Row::try_get(row, 0).map_err(Failure::from)?;
        Ok(WorkflowName::from_stored(name))
    })
    .await
}

fn decode(row: &PgRow) -> Outcome<InstanceRecord> {
    let cells = Cells::keyed(row, TABLE)?;
    Ok(InstanceRecord {
        key: cells.key(),
        workflow: WorkflowName::from_stored(cells.text(1)?),
        id: InstanceId::from_stored(cells.text(2)?),
        status: cells.word(3)?,
        run: cells.u32(4)?,
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

pub(super) async fn change(
    db: &mut Db<'_>,
    changes: &[(InstanceKey, InstanceChange)],
    now: Timestamp,
) -> Result<(), Failure> {
    if changes.is_empty() {
        return Ok(());
    }
    let params = params![
        changes.iter().map(|(key, _)| key.0).collect::<Vec<i64>>(),
        now.as_millis(),
        changes.iter().map(|(_, change)| change.status.as_str()).collect::<Vec<&str>>(),
        changes
            .iter()
            .map(|(_, change)| change.completed_at.map(Timestamp::as_millis))
            .collect::<Vec<Option<i64>>>(),
        changes
            .iter()
            .map(|(_, change)| change.output.as_ref().map(Json::as_str))
            .collect::<Vec<Option<&str>>>(),
        changes
            .iter()
            .map(|(_, change)| error_text(change.error.as_ref()))
            .collect::<Vec<Option<String>>>(),
    ];
    db.execute(INSTANCE_CHANGE, params).await?;
    Ok(())
}

pub(super) async fn restart(
    db: &mut Db<'_>,
    key: InstanceKey,
    run: RunNumber,
    now: Timestamp,
) -> Result<(), Failure> {
    db.execute(INSTANCE_RESTART, params![key.0, int(run), now.as_millis()]).await?;
    Ok(())
}
