//! The rows of `piton_hook`, and what is done to them.

use std::sync::Arc;

use piton_core::hook::{self, EngineNews, HookKey, HookOutcome, HookRecord, NewHook};
use piton_core::record::InstanceKey;
use piton_core::{
    Code, HookName, HookNamespace, HookStatus, InstanceId, Refusal, Retries, Span, Timestamp,
    WorkflowName,
};
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, Row, params, params_from_iter};

use super::batch::Batch;
use super::cells::{Cells, error_text};
use super::instance;
use super::statements::Statements;
use super::trouble::{Outcome, Trouble};
use crate::store::{HookQuery, HookWork, HooksWorked, PRUNED_MAX, StoreError, TAKEN_MAX};

const TABLE: &str = "piton_hook";

macro_rules! select_hook {
    ($index:literal) => {
        concat!(
            "SELECT id, namespace, name, status, attempts, attempts_max, retry_delay_ms, retry_delay_max_ms,
                retry_backoff, due_at, epoch, lease_owner, created_at, updated_at, last_attempt_at, payload, error,
                failures, claims
            FROM piton_hook ",
            $index
        )
    };
}

macro_rules! insert {
    ($($row:literal),+) => {
        concat!(
            "INSERT INTO piton_hook (id, namespace, name, status, attempts, attempts_max, retry_delay_ms,
                retry_delay_max_ms, retry_backoff, due_at, epoch, lease_owner, created_at, updated_at, last_attempt_at,
                payload, claims)
            VALUES ",
            $($row, "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"),+
        )
    };
}

pub(super) const HOOK_INSERT: &str = insert!("");

/// How many rows [`HOOK_INSERT_MANY`] writes: a good part of what a statement costs is its beginning and its end.
const MANY: usize = 8;

pub(super) const HOOK_INSERT_MANY: &str = insert!("", ",", ",", ",", ",", ",", ",", ",");

pub(super) const HOOK_GET: &str = concat!(select_hook!(""), " WHERE id = ?1");

// The number of `SUSPECT_CLAIMS` is part of two indexes.
const _: () = assert!(hook::SUSPECT_CLAIMS == 3);

macro_rules! due {
    ($index:literal, $lane:literal) => {
        concat!(
            select_hook!($index),
            " WHERE namespace = ?1 AND due_at <= ?2 AND ",
            $lane,
            " ORDER BY due_at, id LIMIT ?3"
        )
    };
}

pub(super) const HOOK_DUE: &str = due!("INDEXED BY piton_hook_due", "status = 'pending'");

pub(super) const HOOK_DUE_IN_HAND: &str =
    due!("INDEXED BY piton_hook_in_hand", "status = 'processing' AND claims < 3");

pub(super) const HOOK_DUE_SUSPECT: &str =
    due!("INDEXED BY piton_hook_suspect", "status = 'processing' AND claims >= 3");

pub(super) const HOOK_NEXT_DUE: &str = "\
    SELECT min(at) FROM (
        SELECT (SELECT due_at FROM piton_hook INDEXED BY piton_hook_due
            WHERE namespace = ?1 AND due_at IS NOT NULL AND status = 'pending' ORDER BY due_at LIMIT 1) AS at
        UNION ALL SELECT (SELECT due_at FROM piton_hook INDEXED BY piton_hook_in_hand
            WHERE namespace = ?1 AND due_at IS NOT NULL AND status = 'processing' AND claims < 3
            ORDER BY due_at LIMIT 1)
        UNION ALL SELECT (SELECT due_at FROM piton_hook INDEXED BY piton_hook_suspect
            WHERE namespace = ?1 AND due_at IS NOT NULL AND status = 'processing' AND claims >= 3
            ORDER BY due_at LIMIT 1))";

pub(super) const HOOK_TAKE: &str = "\
    UPDATE piton_hook SET status = 'processing', attempts = ?2, due_at = ?3, epoch = ?4, lease_owner = ?5,
        updated_at = ?6, last_attempt_at = ?6, claims = ?7
    WHERE id = ?1";

/// The guard of `piton_core::hook::is_held` is part of the statement, here and below.
pub(super) const HOOK_SETTLE: &str = "\
    UPDATE piton_hook SET status = ?3, due_at = ?4, updated_at = ?5, error = ?6, failures = ?7, claims = ?8,
        lease_owner = NULL
    WHERE id = ?1 AND epoch = ?2 AND status = 'processing' AND lease_owner IS NOT NULL";

pub(super) const HOOK_FORGET: &str = "DELETE FROM piton_hook WHERE id = ?1 AND epoch = ?2 AND status = 'processing' AND lease_owner IS NOT NULL";

pub(super) const HOOK_RENEW: &str = "UPDATE piton_hook SET due_at = ?3 WHERE id = ?1 AND epoch = ?2 AND status = 'processing' AND lease_owner IS NOT NULL";

pub(super) const HOOK_PUT: &str = "\
    UPDATE piton_hook SET status = ?2, attempts = ?3, due_at = ?4, updated_at = ?5, error = ?6, failures = ?7,
        claims = ?8, lease_owner = NULL
    WHERE id = ?1";

/// A row that cannot be read leaves the index, so that processors do not stumble over it for ever.
pub(super) const HOOK_SET_ASIDE: &str =
    "UPDATE piton_hook SET status = 'failed', due_at = NULL WHERE id = ?1";

pub(super) const HOOK_PRUNE: &str = "\
    DELETE FROM piton_hook WHERE id IN (
        SELECT id FROM piton_hook INDEXED BY piton_hook_completed
        WHERE namespace = ?1 AND status = 'completed' AND updated_at <= ?2 ORDER BY updated_at LIMIT ?3)";

/// However far ahead: the clock may have been set back since. Only hooks in hand are looked at.
pub(super) const HOOK_RELEASE: &str = "\
    UPDATE piton_hook INDEXED BY piton_hook_in_hand SET due_at = ?1
    WHERE status = 'processing' AND claims < 3 AND due_at > ?1";

pub(super) const HOOK_RELEASE_SUSPECT: &str = "\
    UPDATE piton_hook INDEXED BY piton_hook_suspect SET due_at = ?1
    WHERE status = 'processing' AND claims >= 3 AND due_at > ?1";

macro_rules! page {
    ($index:literal, $status:literal) => {
        concat!(
            select_hook!($index),
            " WHERE (?1 IS NULL OR id < ?1) AND (?2 IS NULL OR namespace = ?2) AND (?3 IS NULL OR name = ?3) AND ",
            $status,
            " ORDER BY id DESC LIMIT ?5"
        )
    };
}

pub(super) const HOOK_PAGE: &str = page!("", "(?4 IS NULL OR status = ?4)");

macro_rules! ids {
    ($index:literal, $lane:literal) => {
        concat!(
            "SELECT id FROM piton_hook INDEXED BY ",
            $index,
            " WHERE due_at IS NOT NULL AND ",
            $lane,
            " AND (?1 IS NULL OR id < ?1) AND (?2 IS NULL OR namespace = ?2)"
        )
    };
}

/// Finished hooks, in any number, are not looked at.
pub(super) const HOOK_PAGE_PENDING: &str = concat!(
    select_hook!(""),
    " WHERE id IN (",
    ids!("piton_hook_due", "status = 'pending'"),
    " ORDER BY id DESC LIMIT ?5) ORDER BY id DESC"
);

pub(super) const HOOK_PAGE_PROCESSING: &str = concat!(
    select_hook!(""),
    " WHERE id IN (",
    ids!("piton_hook_in_hand", "status = 'processing' AND claims < 3"),
    " UNION ALL ",
    ids!("piton_hook_suspect", "status = 'processing' AND claims >= 3"),
    ") ORDER BY id DESC LIMIT ?5"
);

pub(super) const HOOK_PAGE_FAILED: &str =
    page!("INDEXED BY piton_hook_failed", "status = 'failed' AND ?4 IS NOT NULL");

/// The columns of a hook that is triggered, and perhaps taken, at this moment.
fn cells(new: &HookRecord) -> [ToSqlOutput<'_>; 17] {
    let retries = &new.retries;
    [
        text(&new.id),
        text(new.namespace.as_str()),
        text(new.name.as_str()),
        text(new.status.as_str()),
        integer(new.attempts.into()),
        maybe(retries.attempts_max().map(i64::from)),
        integer(retries.base_delay().as_millis()),
        maybe(retries.longest_delay().map(Span::as_millis)),
        text(retries.backoff().as_str()),
        maybe(new.due_at.map(Timestamp::as_millis)),
        integer(number(new.epoch)),
        new.lease_owner.as_deref().map_or(NULL, text),
        integer(new.created_at.as_millis()),
        integer(new.updated_at.as_millis()),
        maybe(new.last_attempt_at.map(Timestamp::as_millis)),
        text(new.payload.as_str()),
        integer(new.claims.into()),
    ]
}

fn text(value: &str) -> ToSqlOutput<'_> {
    ToSqlOutput::Borrowed(ValueRef::Text(value.as_bytes()))
}

fn integer(value: i64) -> ToSqlOutput<'static> {
    ToSqlOutput::Owned(Value::Integer(value))
}

fn maybe(value: Option<i64>) -> ToSqlOutput<'static> {
    value.map_or(NULL, integer)
}

const NULL: ToSqlOutput<'static> = ToSqlOutput::Owned(Value::Null);

/// Stores a hook in a transaction of the user's.
pub(crate) fn insert(conn: &Connection, new: &NewHook, now: Timestamp) -> rusqlite::Result<()> {
    let new = new.clone().into_record(now);
    conn.prepare_cached(HOOK_INSERT)?.execute(params_from_iter(cells(&new))).map(drop)
}

fn insert_all(db: &mut Statements<'_>, all: &[HookRecord]) -> rusqlite::Result<()> {
    let (many, rest) = all.as_chunks::<MANY>();
    for many in many {
        db.execute(HOOK_INSERT_MANY, params_from_iter(many.iter().flat_map(cells)))?;
    }
    for one in rest {
        db.execute(HOOK_INSERT, params_from_iter(cells(one)))?;
    }
    Ok(())
}

/// Stores a hook in a transaction of ours. It is written when the requests of the batch have run: most are taken by then,
/// and a row that is written once is half the work of one that is written, found and changed.
pub(super) fn trigger(batch: &mut Batch<'_, '_>, new: &NewHook) -> Outcome<()> {
    batch.hooks.push(new.clone().into_record(batch.now));
    Ok(())
}

/// Writes the hooks that were triggered and that nobody has taken.
pub(super) fn write_new(batch: &mut Batch<'_, '_>) -> rusqlite::Result<()> {
    let hooks = std::mem::take(&mut batch.hooks);
    insert_all(batch.db, &hooks)?;
    for new in hooks {
        batch.hint_hook(&new.namespace, new.due_at.unwrap_or(batch.now));
    }
    Ok(())
}

pub(super) fn trigger_all(batch: &mut Batch<'_, '_>, hooks: &[NewHook]) -> Outcome<()> {
    hooks.iter().try_for_each(|new| trigger(batch, new))
}

/// Tells whoever wants to know of this instance, by a hook.
pub(super) fn news(
    batch: &mut Batch<'_, '_>,
    workflow: &WorkflowName,
    id: &InstanceId,
    news: Option<EngineNews>,
) -> Outcome<()> {
    let (Some(wanted), Some(news)) = (batch.engine_hooks, news) else { return Ok(()) };
    match wanted.hook(&news, workflow, id, batch.ids) {
        Some(new) => trigger(batch, &new),
        None => Ok(()),
    }
}

/// As [`news`], where only the key is at hand.
pub(super) fn news_by_key(
    batch: &mut Batch<'_, '_>,
    key: InstanceKey,
    told: impl FnOnce() -> Option<EngineNews>,
) -> Outcome<()> {
    let Some(wanted) = batch.engine_hooks else { return Ok(()) };
    let Some(told) = told().filter(|told| wanted.tells(told.hook)) else { return Ok(()) };
    match instance::by_key(batch.db, key)? {
        Some(record) => news(batch, &record.workflow, &record.id, Some(told)),
        None => Ok(()),
    }
}

/// Does what a processor asks for.
pub(super) fn work(batch: &mut Batch<'_, '_>, work: &HookWork) -> Outcome<HooksWorked> {
    let mut lost = settle_all(batch, work)?;
    let until = batch.now.plus(work.lease).as_millis();
    for HookKey { id, epoch } in &work.renewed {
        if batch.db.execute(HOOK_RENEW, params![id, number(*epoch), until])? == 0 {
            lost.push(HookKey { id: Arc::clone(id), epoch: *epoch });
        }
    }
    let taken = take(batch, work)?;
    let pruned = prune(batch, work)?;
    Ok(HooksWorked { now: batch.now, taken, lost, pruned })
}

/// Records what became of hooks; those that were not the claimant's any more.
fn settle_all(batch: &mut Batch<'_, '_>, work: &HookWork) -> Outcome<Vec<HookKey>> {
    let mut lost = Vec::new();
    for (claimed, outcome) in work.settled.iter() {
        if !settle(batch, claimed, outcome, work.forget_completed)? {
            lost.push(claimed.key());
        }
    }
    Ok(lost)
}

/// Whether it was still the claimant's.
fn settle(
    batch: &mut Batch<'_, '_>,
    claimed: &HookRecord,
    outcome: &HookOutcome,
    forget_completed: bool,
) -> Outcome<bool> {
    let after = hook::settle(claimed, outcome, batch.now);
    let (id, epoch) = (&after.id, number(after.epoch));
    if forget_completed && after.status == HookStatus::Completed {
        return Ok(batch.db.execute(HOOK_FORGET, params![id, epoch])? > 0);
    }
    let error = error_text(after.error.as_ref());
    let due_at = after.due_at.map(Timestamp::as_millis);
    let (status, now) = (after.status.as_str(), after.updated_at.as_millis());
    let params = params![id, epoch, status, due_at, now, error, after.failures, after.claims];
    let held = batch.db.execute(HOOK_SETTLE, params)? > 0;
    if let Some(at) = after.due_at.filter(|_| held) {
        batch.hint_hook(&after.namespace, at);
    }
    Ok(held)
}

fn take(batch: &mut Batch<'_, '_>, work: &HookWork) -> Outcome<Vec<HookRecord>> {
    let mut taken = Vec::new();
    if work.suspect {
        take_from(batch, HOOK_DUE_SUSPECT, work, work.wanted.min(1), &mut taken)?;
    }
    take_from(batch, HOOK_DUE_IN_HAND, work, work.wanted, &mut taken)?;
    take_from(batch, HOOK_DUE, work, work.wanted, &mut taken)?;
    take_new(batch, work, &mut taken)?;
    Ok(taken)
}

/// Takes hooks that this transaction triggers, after all that were there before it.
fn take_new(
    batch: &mut Batch<'_, '_>,
    work: &HookWork,
    taken: &mut Vec<HookRecord>,
) -> Outcome<()> {
    let room = work.wanted.min(TAKEN_MAX).saturating_sub(taken.len());
    if room == 0 {
        return Ok(());
    }
    let (owner, lease, now) = (&work.owner, work.lease, batch.now);
    let (mut claimed, mut left) = (Vec::new(), Vec::new());
    for new in std::mem::take(&mut batch.hooks) {
        let wanted = new.namespace == work.namespace && claimed.len() < room;
        match wanted.then(|| hook::claim(&new, owner, lease, now)).flatten() {
            Some(new) => claimed.push(new),
            None => left.push(new),
        }
    }
    batch.hooks = left;
    insert_all(batch.db, &claimed)?;
    taken.append(&mut claimed);
    Ok(())
}

/// Takes due hooks of one lane until there are as many as wanted.
fn take_from(
    batch: &mut Batch<'_, '_>,
    lane: &'static str,
    work: &HookWork,
    wanted: usize,
    taken: &mut Vec<HookRecord>,
) -> Outcome<()> {
    let mut looked_at = 0;
    while taken.len() < wanted && looked_at < TAKEN_MAX {
        let limit = (wanted - taken.len()).min(TAKEN_MAX - looked_at);
        let due = params![work.namespace.as_str(), batch.now.as_millis(), number(limit as u64)];
        let found = batch.db.all(lane, due, |row| readable(row, decode(row)))?;
        if found.is_empty() {
            break;
        }
        looked_at += found.len();
        for stored in found {
            taken.extend(take_one(batch, stored, work)?);
        }
    }
    Ok(())
}

/// A row, or the id of one that cannot be read.
fn readable(row: &Row<'_>, decoded: Outcome<HookRecord>) -> Outcome<Result<HookRecord, Arc<str>>> {
    match decoded {
        Ok(hook) => Ok(Ok(hook)),
        Err(Trouble::Answer(error)) => {
            tracing::error!(%error, "a hook cannot be read and is set aside");
            Ok(Err(row.get::<_, String>(0)?.into()))
        }
        Err(trouble @ Trouble::Batch(_)) => Err(trouble),
    }
}

fn take_one(
    batch: &mut Batch<'_, '_>,
    stored: Result<HookRecord, Arc<str>>,
    work: &HookWork,
) -> Outcome<Option<HookRecord>> {
    let stored = match stored {
        Ok(stored) => stored,
        Err(id) => {
            batch.db.execute(HOOK_SET_ASIDE, [id])?;
            return Ok(None);
        }
    };
    let Some(after) = hook::claim(&stored, &work.owner, work.lease, batch.now) else {
        return Ok(None);
    };
    if after.status != HookStatus::Processing {
        put(batch.db, &after)?;
        return Ok(None);
    }
    let (due_at, now) = (after.due_at.map(Timestamp::as_millis), batch.now.as_millis());
    let (attempts, epoch) = (after.attempts, number(after.epoch));
    let params = params![after.id, attempts, due_at, epoch, after.lease_owner, now, after.claims];
    batch.db.execute(HOOK_TAKE, params)?;
    Ok(Some(after))
}

fn put(db: &mut Statements<'_>, hook: &HookRecord) -> Outcome<()> {
    let due_at = hook.due_at.map(Timestamp::as_millis);
    let error = error_text(hook.error.as_ref());
    let (status, now) = (hook.status.as_str(), hook.updated_at.as_millis());
    let (attempts, failures, claims) = (hook.attempts, hook.failures, hook.claims);
    let params = params![hook.id, status, attempts, due_at, now, error, failures, claims];
    db.execute(HOOK_PUT, params)?;
    Ok(())
}

fn prune(batch: &mut Batch<'_, '_>, work: &HookWork) -> Outcome<usize> {
    let Some(age) = work.prune else { return Ok(0) };
    let before = batch.now.as_millis().saturating_sub(age.as_millis());
    let params = params![work.namespace.as_str(), before, number(PRUNED_MAX as u64)];
    Ok(batch.db.execute(HOOK_PRUNE, params)?)
}

/// Makes a failed or waiting hook due now.
pub(super) fn retry(batch: &mut Batch<'_, '_>, id: &str) -> Outcome<HookRecord> {
    let unknown = || Refusal::new(Code::HookNotFound, format!("there is no hook {id:?}"));
    let stored = get(batch.db, id)?.ok_or_else(unknown)?;
    let after = hook::retry(&stored, batch.now)?;
    put(batch.db, &after)?;
    batch.hint_hook(&after.namespace, after.due_at.unwrap_or(batch.now));
    Ok(after)
}

/// Lets go of every hook in hand: the lock file proves that whoever held them is gone. Their attempts count.
pub(super) fn release_all(batch: &mut Batch<'_, '_>) -> Outcome<()> {
    let now = batch.now.as_millis();
    for lane in [HOOK_RELEASE, HOOK_RELEASE_SUSPECT] {
        batch.db.execute(lane, [now])?;
    }
    Ok(())
}

pub(super) fn next_due_at(
    db: &mut Statements<'_>,
    namespaces: &[HookNamespace],
) -> Outcome<Option<Timestamp>> {
    let mut next: Option<Timestamp> = None;
    for namespace in namespaces {
        let at = db.one(HOOK_NEXT_DUE, [namespace.as_str()], |row| Ok(row.get(0)?))?;
        let at = at.flatten().map(Timestamp::from_millis);
        next = [next, at].into_iter().flatten().min();
    }
    Ok(next)
}

pub(super) fn get(db: &mut Statements<'_>, id: &str) -> Outcome<Option<HookRecord>> {
    db.one(HOOK_GET, [id], decode)
}

pub(super) fn page(db: &mut Statements<'_>, query: &HookQuery) -> Outcome<Vec<HookRecord>> {
    let sql = match query.status {
        Some(HookStatus::Failed) => HOOK_PAGE_FAILED,
        // Names are not in these indexes.
        Some(HookStatus::Pending) if query.name.is_none() => HOOK_PAGE_PENDING,
        Some(HookStatus::Processing) if query.name.is_none() => HOOK_PAGE_PROCESSING,
        Some(HookStatus::Pending | HookStatus::Processing | HookStatus::Completed) | None => {
            HOOK_PAGE
        }
    };
    let params = params![
        query.behind,
        query.namespace.as_ref().map(HookNamespace::as_str),
        query.name.as_ref().map(HookName::as_str),
        query.status.map(HookStatus::as_str),
        query.limit,
    ];
    db.all(sql, params, shown)
}

/// A row for a list: one that cannot be read is shown as that, and does not keep the others from being shown.
fn shown(row: &Row<'_>) -> Outcome<HookRecord> {
    match decode(row) {
        Err(Trouble::Answer(error)) => {
            let text = |column| row.get::<_, String>(column).unwrap_or_else(|_| "?".to_owned());
            let (namespace, name) = (text(1), text(2));
            Ok(HookRecord::damaged(
                text(0).into(),
                HookNamespace::from_stored(namespace),
                HookName::from_stored(name),
                error.to_string(),
            ))
        }
        decoded => decoded,
    }
}

fn decode(row: &Row<'_>) -> Outcome<HookRecord> {
    decode_cells(row).map_err(|trouble| match trouble {
        Trouble::Answer(StoreError::Refused(refusal)) => {
            let id: String = row.get(0).unwrap_or_default();
            Refusal::new(refusal.code, format!("hook {id}: {}", refusal.message)).into()
        }
        trouble @ (Trouble::Answer(_) | Trouble::Batch(_)) => trouble,
    })
}

fn decode_cells(row: &Row<'_>) -> Outcome<HookRecord> {
    let cells = Cells::new(row, TABLE, InstanceKey(0));
    let span = |ms: i64| Span::from_millis(ms);
    let retries = Retries::from_stored(
        cells.opt_number(5)?,
        span(cells.i64(6)?),
        cells.word(8)?,
        cells.opt_i64(7)?.map(span),
    );
    Ok(HookRecord {
        id: cells.shared(0)?,
        namespace: HookNamespace::from_stored(cells.shared(1)?),
        name: HookName::from_stored(cells.shared(2)?),
        status: cells.word(3)?,
        attempts: cells.number(4)?,
        retries,
        due_at: cells.opt_time(9)?,
        epoch: cells.number(10)?,
        lease_owner: cells.opt_text(11)?.map(Arc::from),
        created_at: cells.time(12)?,
        updated_at: cells.time(13)?,
        last_attempt_at: cells.opt_time(14)?,
        payload: cells.json(15)?,
        error: cells.opt_error(16)?,
        failures: cells.number(17)?,
        claims: cells.number(18)?,
    })
}

/// SQLite's integers are signed; nothing of ours gets that far.
fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
