//! The rows of `piton_hook`, and what is done to them.
//!
//! Processors work on connections of the pool, each call in a transaction of its own; hooks that the engine's own
//! transactions trigger are written by them (`transaction.rs`). The clock is the database's.

use std::collections::HashSet;
use std::sync::Arc;

use piton_core::hook::{self, HookKey, HookRecord, NewHook};
use piton_core::{Code, HookName, HookNamespace, HookStatus, Refusal, Retries, Span, Timestamp};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use super::cells::{Cells, bigint, error_text};
use super::clock::clock_ms;
use super::options;
use super::shared::Shared;
use super::statements::{Db, Statements, params};
use super::trouble::{Failure, Fate, Outcome, Trouble};
use crate::store::{Hint, HookQuery, HookWork, HooksWorked, PRUNED_MAX, TAKEN_MAX};

const TABLE: &str = "piton_hook";

/// How often a transaction is tried again because somebody else was faster.
const CONFLICTS_MAX: usize = 8;

/// The first column is a number that says nothing: cells belong to an instance elsewhere.
macro_rules! select_hook {
    ($from:literal) => {
        concat!(
            "SELECT 0::bigint, id, namespace, name, status, attempts, attempts_max, retry_delay_ms,
                retry_delay_max_ms, retry_backoff, due_at, epoch, lease_owner, created_at, updated_at,
                last_attempt_at, payload, error, failures, claims
            FROM piton_hook ",
            $from
        )
    };
}

const HOOK_INSERT: &str = concat!(
    "WITH clock AS MATERIALIZED (SELECT coalesce($1, ", clock_ms!(), ") AS now)
    INSERT INTO piton_hook (id, namespace, name, status, attempts, attempts_max, retry_delay_ms, retry_delay_max_ms,
        retry_backoff, due_at, epoch, created_at, updated_at, payload)
    SELECT n.id, n.namespace, n.name, 'pending', 0, n.attempts_max, n.retry_delay_ms, n.retry_delay_max_ms,
        n.retry_backoff, greatest(n.process_at, now), 0, now, now, n.payload
    FROM clock, unnest($2, $3, $4, $5, $6, $7, $8, $9, $10)
        AS n(id, namespace, name, attempts_max, retry_delay_ms, retry_delay_max_ms, retry_backoff, process_at, payload)
    RETURNING due_at"
);

const HOOK_GET: &str = select_hook!("WHERE id = $1");
const HOOK_LOCK: &str = select_hook!("WHERE id = $1 FOR UPDATE");

// The number of `SUSPECT_CLAIMS` is part of two indexes.
const _: () = assert!(hook::SUSPECT_CLAIMS == 3);

/// One look at all lanes: `$3` hooks at most, `$4` of them suspects. No lane locks more than it is asked for.
const HOOK_DUE: &str = concat!(
    "WITH suspect AS MATERIALIZED (",
    select_hook!(
        "WHERE namespace = $1 AND due_at <= $2 AND status = 'processing' AND claims >= 3
        ORDER BY due_at, id LIMIT $4 FOR UPDATE SKIP LOCKED"
    ),
    "), in_hand AS MATERIALIZED (",
    select_hook!(
        "WHERE namespace = $1 AND due_at <= $2 AND status = 'processing' AND claims < 3
        ORDER BY due_at, id LIMIT $3 - (SELECT count(*) FROM suspect) FOR UPDATE SKIP LOCKED"
    ),
    "), pending AS MATERIALIZED (",
    select_hook!(
        "WHERE namespace = $1 AND due_at <= $2 AND status = 'pending'
        ORDER BY due_at, id LIMIT $3 - (SELECT count(*) FROM suspect) - (SELECT count(*) FROM in_hand)
        FOR UPDATE SKIP LOCKED"
    ),
    ") SELECT * FROM suspect UNION ALL SELECT * FROM in_hand UNION ALL SELECT * FROM pending"
);

macro_rules! next_due {
    ($lane:literal) => {
        concat!(
            "(SELECT due_at FROM piton_hook AS h WHERE h.namespace = n.namespace AND h.due_at IS NOT NULL AND ",
            $lane,
            " ORDER BY due_at LIMIT 1)"
        )
    };
}

const HOOK_NEXT_DUE: &str = concat!(
    "SELECT coalesce($1, ",
    clock_ms!(),
    "), (
        SELECT min(least(",
    next_due!("h.status = 'pending'"),
    ", ",
    next_due!("h.status = 'processing' AND h.claims < 3"),
    ", ",
    next_due!("h.status = 'processing' AND h.claims >= 3"),
    ")) FROM unnest($2) AS n(namespace))"
);

const HOOK_TAKE: &str = "\
    UPDATE piton_hook AS h SET status = 'processing', attempts = a.attempts, due_at = a.due_at, epoch = a.epoch,
        claims = a.claims, lease_owner = $6, updated_at = $7, last_attempt_at = $7
    FROM unnest($1, $2, $3, $4, $5) AS a(id, attempts, due_at, epoch, claims) WHERE h.id = a.id";

/// The guard of `piton_core::hook::is_held` is part of the statement, here and below.
const HOOK_SETTLE: &str = "\
    UPDATE piton_hook AS h SET status = a.status, due_at = a.due_at, updated_at = $8, error = a.error,
        failures = a.failures, claims = a.claims, lease_owner = NULL
    FROM unnest($1, $2, $3, $4, $5, $6, $7) AS a(id, epoch, status, due_at, error, failures, claims)
    WHERE h.id = a.id AND h.epoch = a.epoch AND h.status = 'processing' AND h.lease_owner IS NOT NULL
    RETURNING h.epoch, h.id";

const HOOK_FORGET: &str = "\
    DELETE FROM piton_hook AS h USING unnest($1, $2) AS a(id, epoch)
    WHERE h.id = a.id AND h.epoch = a.epoch AND h.status = 'processing' AND h.lease_owner IS NOT NULL
    RETURNING h.epoch, h.id";

const HOOK_RENEW: &str = "\
    UPDATE piton_hook AS h SET due_at = $3 FROM unnest($1, $2) AS a(id, epoch)
    WHERE h.id = a.id AND h.epoch = a.epoch AND h.status = 'processing' AND h.lease_owner IS NOT NULL
    RETURNING h.epoch, h.id";

const HOOK_PUT: &str = "\
    UPDATE piton_hook SET status = $2, attempts = $3, due_at = $4, updated_at = $5, error = $6, failures = $7,
        claims = $8, lease_owner = NULL
    WHERE id = $1";

/// A row that cannot be read leaves the index, so that processors do not stumble over it for ever.
const HOOK_SET_ASIDE: &str = "UPDATE piton_hook SET status = 'failed', due_at = NULL WHERE id = $1";

const HOOK_PRUNE: &str = "\
    DELETE FROM piton_hook WHERE id IN (
        SELECT id FROM piton_hook WHERE namespace = $1 AND status = 'completed' AND updated_at <= $2
        ORDER BY updated_at LIMIT $3 FOR UPDATE SKIP LOCKED)";

macro_rules! page {
    ($status:literal) => {
        concat!(
            select_hook!(""),
            "WHERE ($1::text IS NULL OR id < $1) AND ($2::text IS NULL OR namespace = $2)
                AND ($3::text IS NULL OR name = $3) AND ",
            $status,
            " ORDER BY id DESC LIMIT $5"
        )
    };
}

const HOOK_PAGE: &str = page!("$4::text IS NULL");
// The index of each status is there for those who name it.
const HOOK_PAGE_PENDING: &str = page!("status = 'pending' AND $4::text IS NOT NULL");
const HOOK_PAGE_PROCESSING: &str = page!("status = 'processing' AND $4::text IS NOT NULL");
const HOOK_PAGE_COMPLETED: &str = page!("status = 'completed' AND $4::text IS NOT NULL");
const HOOK_PAGE_FAILED: &str = page!("status = 'failed' AND $4::text IS NOT NULL");

fn bind_new(hooks: &[NewHook], fixed: Option<Timestamp>) -> Result<PgArguments, Failure> {
    let longest = |new: &NewHook| new.retries.longest_delay().map(Span::as_millis);
    let attempts = |new: &NewHook| new.retries.attempts_max().map(i64::from);
    let delay = |new: &NewHook| new.retries.base_delay().as_millis();
    Ok(params![
        fixed.map(Timestamp::as_millis),
        hooks.iter().map(|new| &*new.id).collect::<Vec<&str>>(),
        hooks.iter().map(|new| new.namespace.as_str()).collect::<Vec<&str>>(),
        hooks.iter().map(|new| new.name.as_str()).collect::<Vec<&str>>(),
        hooks.iter().map(attempts).collect::<Vec<Option<i64>>>(),
        hooks.iter().map(delay).collect::<Vec<i64>>(),
        hooks.iter().map(longest).collect::<Vec<Option<i64>>>(),
        hooks.iter().map(|new| new.retries.backoff().as_str()).collect::<Vec<&str>>(),
        hooks
            .iter()
            .map(|new| new.process_at.map(Timestamp::as_millis))
            .collect::<Vec<Option<i64>>>(),
        hooks.iter().map(|new| new.payload.as_str()).collect::<Vec<&str>>(),
    ])
}

/// Stores hooks; what observers are to be told of them.
pub(super) async fn insert(
    db: &mut Db<'_>,
    hooks: &[NewHook],
    fixed: Option<Timestamp>,
) -> Result<Vec<Hint>, Failure> {
    if hooks.is_empty() {
        return Ok(Vec::new());
    }
    let due: Vec<Timestamp> = db
        .all(HOOK_INSERT, bind_new(hooks, fixed)?, |row| Cells::keyed(row, TABLE)?.time(0))
        .await
        .map_err(Trouble::into_failure)?;
    let first = due.into_iter().min().unwrap_or(Timestamp::from_millis(0));
    let namespaces: HashSet<&HookNamespace> = hooks.iter().map(|new| &new.namespace).collect();
    let hint =
        |namespace: &HookNamespace| Hint::HookDue { namespace: namespace.clone(), at: first };
    Ok(namespaces.into_iter().map(hint).collect())
}

/// Stores a hook in a transaction of the user's.
pub(crate) async fn insert_in(
    conn: &mut PgConnection,
    new: &NewHook,
    schema: &str,
) -> crate::Result<()> {
    options::check_schema(schema)?;
    let text = Statements::new(schema).text(HOOK_INSERT);
    let params = bind_new(std::slice::from_ref(new), None)
        .map_err(|failure| crate::Error::store(failure.message()))?;
    let stored = sqlx::query_with(AssertSqlSafe(text), params).execute(conn).await;
    Ok(stored.map(drop)?)
}

/// Stores hooks in a transaction of their own.
pub(super) async fn trigger(
    conn: &mut PgConnection,
    shared: &Shared,
    hooks: &[NewHook],
) -> Outcome<()> {
    let mut db = Db { conn, statements: &shared.statements };
    let hints = insert(&mut db, hooks, shared.time.fixed()).await?;
    shared.tell(hints);
    Ok(())
}

/// Does what a processor asks for, however often somebody else is faster.
pub(super) async fn work(
    conn: &mut PgConnection,
    shared: &Shared,
    work: &HookWork,
) -> Outcome<HooksWorked> {
    let mut tries = 0;
    loop {
        match try_work(conn, shared, work).await {
            Err(Trouble::Database(failure))
                if failure.fate == Fate::Conflict && tries < CONFLICTS_MAX =>
            {
                tries += 1;
            }
            done => return done,
        }
    }
}

async fn try_work(
    conn: &mut PgConnection,
    shared: &Shared,
    work: &HookWork,
) -> Outcome<HooksWorked> {
    let mut database = conn.begin().await.map_err(Failure::from)?;
    let mut db = Db { conn: &mut database, statements: &shared.statements };
    let now = shared.time.now(&mut db, None).await?;
    let mut hints = Vec::new();
    let mut lost = settle(&mut db, work, now, &mut hints).await?;
    lost.extend(renew(&mut db, work, now).await?);
    let taken = take(&mut db, work, now).await?;
    let pruned = prune(&mut db, work, now).await?;
    database.commit().await.map_err(Failure::from)?;
    shared.tell(hints);
    Ok(HooksWorked { now, taken, lost, pruned })
}

/// Those of `keys` that are not among `held`. The same hook may be there under an older epoch, too.
fn missing(keys: Vec<HookKey>, held: Vec<HookKey>) -> Vec<HookKey> {
    let held: HashSet<HookKey> = held.into_iter().collect();
    keys.into_iter().filter(|key| !held.contains(key)).collect()
}

/// Records what became of hooks; those that were somebody else's by now.
async fn settle(
    db: &mut Db<'_>,
    work: &HookWork,
    now: Timestamp,
    hints: &mut Vec<Hint>,
) -> Outcome<Vec<HookKey>> {
    let settled = work.settled.iter().map(|(claimed, outcome)| hook::settle(claimed, outcome, now));
    let forgotten =
        |hook: &HookRecord| work.forget_completed && hook.status == HookStatus::Completed;
    let (forget, mut put): (Vec<HookRecord>, Vec<HookRecord>) = settled.partition(forgotten);
    // Always in one order: two processors that settle the same hooks do not wait for each other in a circle.
    put.sort_unstable_by(|a, b| a.id.cmp(&b.id));
    let mut held = Vec::new();
    if !put.is_empty() {
        let due_at = |hook: &HookRecord| hook.due_at.map(Timestamp::as_millis);
        let params = params![
            put.iter().map(|hook| &*hook.id).collect::<Vec<&str>>(),
            put.iter().map(|hook| bigint(hook.epoch)).collect::<Vec<i64>>(),
            put.iter().map(|hook| hook.status.as_str()).collect::<Vec<&str>>(),
            put.iter().map(due_at).collect::<Vec<Option<i64>>>(),
            put.iter().map(|hook| error_text(hook.error.as_ref())).collect::<Vec<Option<String>>>(),
            put.iter().map(|hook| i64::from(hook.failures)).collect::<Vec<i64>>(),
            put.iter().map(|hook| i64::from(hook.claims)).collect::<Vec<i64>>(),
            now.as_millis(),
        ];
        held.extend(db.all(HOOK_SETTLE, params, key_of).await?);
        hints.extend(put.iter().filter_map(|hook| {
            Some(Hint::HookDue { namespace: hook.namespace.clone(), at: hook.due_at? })
        }));
    }
    if !forget.is_empty() {
        let params = params![
            forget.iter().map(|hook| &*hook.id).collect::<Vec<&str>>(),
            forget.iter().map(|hook| bigint(hook.epoch)).collect::<Vec<i64>>(),
        ];
        held.extend(db.all(HOOK_FORGET, params, key_of).await?);
    }
    let keys = work.settled.iter().map(|(claimed, _)| claimed.key()).collect();
    Ok(missing(keys, held))
}

async fn renew(db: &mut Db<'_>, work: &HookWork, now: Timestamp) -> Outcome<Vec<HookKey>> {
    if work.renewed.is_empty() {
        return Ok(Vec::new());
    }
    let params = params![
        work.renewed.iter().map(|key| &*key.id).collect::<Vec<&str>>(),
        work.renewed.iter().map(|key| bigint(key.epoch)).collect::<Vec<i64>>(),
        now.plus(work.lease).as_millis(),
    ];
    let held = db.all(HOOK_RENEW, params, key_of).await?;
    Ok(missing(work.renewed.clone(), held))
}

async fn take(db: &mut Db<'_>, work: &HookWork, now: Timestamp) -> Outcome<Vec<HookRecord>> {
    let mut taken = Vec::new();
    let mut looked_at = 0;
    while taken.len() < work.wanted && looked_at < TAKEN_MAX {
        let limit = (work.wanted - taken.len()).min(TAKEN_MAX - looked_at);
        let suspects = i64::from(work.suspect && !taken.iter().any(hook::is_suspect));
        let (namespace, limit) = (work.namespace.as_str(), bigint(limit as u64));
        let params = params![namespace, now.as_millis(), limit, suspects.min(limit)];
        let found = db.all(HOOK_DUE, params, readable).await?;
        if found.is_empty() {
            break;
        }
        looked_at += found.len();
        let mut chosen = Vec::new();
        for stored in found {
            match stored {
                Err(id) => drop(db.execute(HOOK_SET_ASIDE, params![&*id]).await?),
                Ok(stored) => match hook::claim(&stored, &work.owner, work.lease, now) {
                    Some(after) if after.status == HookStatus::Processing => chosen.push(after),
                    Some(after) => put(db, &after).await?,
                    None => {}
                },
            }
        }
        mark_taken(db, &chosen, work, now).await?;
        taken.extend(chosen);
    }
    Ok(taken)
}

async fn mark_taken(
    db: &mut Db<'_>,
    chosen: &[HookRecord],
    work: &HookWork,
    now: Timestamp,
) -> Outcome<()> {
    if chosen.is_empty() {
        return Ok(());
    }
    let due_at = |hook: &HookRecord| hook.due_at.map(Timestamp::as_millis);
    let params = params![
        chosen.iter().map(|hook| &*hook.id).collect::<Vec<&str>>(),
        chosen.iter().map(|hook| i64::from(hook.attempts)).collect::<Vec<i64>>(),
        chosen.iter().map(due_at).collect::<Vec<Option<i64>>>(),
        chosen.iter().map(|hook| bigint(hook.epoch)).collect::<Vec<i64>>(),
        chosen.iter().map(|hook| i64::from(hook.claims)).collect::<Vec<i64>>(),
        &*work.owner,
        now.as_millis(),
    ];
    db.execute(HOOK_TAKE, params).await?;
    Ok(())
}

async fn put(db: &mut Db<'_>, hook: &HookRecord) -> Outcome<()> {
    let params = params![
        &*hook.id,
        hook.status.as_str(),
        i64::from(hook.attempts),
        hook.due_at.map(Timestamp::as_millis),
        hook.updated_at.as_millis(),
        error_text(hook.error.as_ref()),
        i64::from(hook.failures),
        i64::from(hook.claims),
    ];
    db.execute(HOOK_PUT, params).await?;
    Ok(())
}

async fn prune(db: &mut Db<'_>, work: &HookWork, now: Timestamp) -> Outcome<usize> {
    let Some(age) = work.prune else { return Ok(0) };
    let before = now.as_millis().saturating_sub(age.as_millis());
    let params = params![work.namespace.as_str(), before, bigint(PRUNED_MAX as u64)];
    let removed = db.execute(HOOK_PRUNE, params).await?;
    Ok(usize::try_from(removed).unwrap_or(usize::MAX))
}

/// Makes a failed or waiting hook due now.
pub(super) async fn retry(
    conn: &mut PgConnection,
    shared: &Shared,
    id: &str,
) -> Outcome<HookRecord> {
    let mut database = conn.begin().await.map_err(Failure::from)?;
    let mut db = Db { conn: &mut database, statements: &shared.statements };
    let unknown = || Refusal::new(Code::HookNotFound, format!("there is no hook {id:?}"));
    let stored = db.one(HOOK_LOCK, params![id], decode).await?.ok_or_else(unknown)?;
    let now = shared.time.now(&mut db, None).await?;
    let after = hook::retry(&stored, now)?;
    put(&mut db, &after).await?;
    database.commit().await.map_err(Failure::from)?;
    let (namespace, at) = (after.namespace.clone(), after.due_at.unwrap_or(now));
    shared.tell(vec![Hint::HookDue { namespace, at }]);
    Ok(after)
}

/// The time, and when the earliest hook can be taken.
pub(super) async fn next_due_at(
    db: &mut Db<'_>,
    namespaces: &[HookNamespace],
    fixed: Option<Timestamp>,
) -> Outcome<(Timestamp, Option<Timestamp>)> {
    let names: Vec<&str> = namespaces.iter().map(HookNamespace::as_str).collect();
    let params = params![fixed.map(Timestamp::as_millis), names];
    let found = db.one(HOOK_NEXT_DUE, params, |row| {
        let cells = Cells::keyed(row, TABLE)?;
        Ok((cells.time(0)?, cells.opt_time(1)?))
    });
    Ok(found.await?.unwrap_or((Timestamp::from_millis(0), None)))
}

pub(super) async fn get(db: &mut Db<'_>, id: &str) -> Outcome<Option<HookRecord>> {
    db.one(HOOK_GET, params![id], decode).await
}

pub(super) async fn page(db: &mut Db<'_>, query: &HookQuery) -> Outcome<Vec<HookRecord>> {
    let sql = match query.status {
        None => HOOK_PAGE,
        Some(HookStatus::Pending) => HOOK_PAGE_PENDING,
        Some(HookStatus::Processing) => HOOK_PAGE_PROCESSING,
        Some(HookStatus::Completed) => HOOK_PAGE_COMPLETED,
        Some(HookStatus::Failed) => HOOK_PAGE_FAILED,
    };
    let params = params![
        query.behind.as_deref(),
        query.namespace.as_ref().map(HookNamespace::as_str),
        query.name.as_ref().map(HookName::as_str),
        query.status.map(HookStatus::as_str),
        i64::from(query.limit),
    ];
    db.all(sql, params, shown).await
}

/// A row for a list: one that cannot be read is shown as that, and does not keep the others from being shown.
fn shown(row: &PgRow) -> Outcome<HookRecord> {
    match decode(row) {
        Err(Trouble::Answer(error)) => {
            let text = |column| row.try_get::<String, _>(column).unwrap_or_else(|_| "?".to_owned());
            let (namespace, name) = (text(2), text(3));
            Ok(HookRecord::damaged(
                text(1).into(),
                HookNamespace::from_stored(namespace),
                HookName::from_stored(name),
                error.to_string(),
            ))
        }
        decoded => decoded,
    }
}

fn key_of(row: &PgRow) -> Outcome<HookKey> {
    let cells = Cells::keyed(row, TABLE)?;
    Ok(HookKey { id: cells.text(1)?, epoch: cells.u64(0)? })
}

fn id_of(row: &PgRow) -> Outcome<Arc<str>> {
    Cells::keyed(row, TABLE)?.text(1)
}

/// A row, or the id of one that cannot be read.
fn readable(row: &PgRow) -> Outcome<Result<HookRecord, Arc<str>>> {
    match decode(row) {
        Ok(hook) => Ok(Ok(hook)),
        Err(Trouble::Answer(error)) => {
            tracing::error!(%error, "a hook cannot be read and is set aside");
            id_of(row).map(Err)
        }
        Err(trouble @ Trouble::Database(_)) => Err(trouble),
    }
}

fn decode(row: &PgRow) -> Outcome<HookRecord> {
    decode_cells(row).map_err(|trouble| match trouble {
        Trouble::Answer(crate::store::StoreError::Refused(refusal)) => {
            let id: String = row.try_get(1).unwrap_or_default();
            Refusal::new(refusal.code, format!("hook {id}: {}", refusal.message)).into()
        }
        trouble @ (Trouble::Answer(_) | Trouble::Database(_)) => trouble,
    })
}

fn decode_cells(row: &PgRow) -> Outcome<HookRecord> {
    let cells = Cells::keyed(row, TABLE)?;
    let span = |ms: i64| Span::from_millis(ms);
    let retries = Retries::from_stored(
        cells.opt_long_u32(6)?,
        span(cells.i64(7)?),
        cells.word(9)?,
        cells.opt_i64(8)?.map(span),
    );
    Ok(HookRecord {
        id: cells.text(1)?,
        namespace: HookNamespace::from_stored(cells.text(2)?),
        name: HookName::from_stored(cells.text(3)?),
        status: cells.word(4)?,
        attempts: cells.long_u32(5)?,
        retries,
        due_at: cells.opt_time(10)?,
        epoch: cells.u64(11)?,
        lease_owner: cells.opt_text(12)?,
        created_at: cells.time(13)?,
        updated_at: cells.time(14)?,
        last_attempt_at: cells.opt_time(15)?,
        payload: cells.json(16)?,
        error: cells.opt_error(17)?,
        failures: cells.long_u32(18)?,
        claims: cells.long_u32(19)?,
    })
}
