//! The rows of `piton_event`, and what the arrival of an event does.

use piton_core::boundary::TaskChange;
use piton_core::hook::{EngineNews, EnqueueReason};
use piton_core::record::{EventRecord, InstanceKey, RunKey, RunNumber};
use piton_core::{EventType, StepName, Timestamp, claim, lifecycle};
use rusqlite::{Row, params};

use super::batch::Batch;
use super::cells::Cells;
use super::claim::lease;
use super::statements::Statements;
use super::trouble::{Outcome, Trouble};
use super::{hook, instance, step, task};
use crate::store::{Claimant, ClaimedRun, NewEvent, PageQuery, Sent};

const TABLE: &str = "piton_event";

/// Which column of `select_event` it is.
const CREATED_AT: usize = 5;

macro_rules! select_event {
    ($index:literal) => {
        concat!(
            "SELECT instance_key, run_number, seq, id, type, created_at, delivered_at, consumed_by, payload
            FROM piton_event ",
            $index,
            " WHERE instance_key = ?1"
        )
    };
}

pub(super) const EVENT_BY_IDEMPOTENCY_KEY: &str = concat!(
    select_event!("INDEXED BY piton_event_by_idempotency_key"),
    " AND idempotency_key = ?2"
);

/// The buffer of a type, oldest first.
pub(super) const EVENT_BUFFER: &str = concat!(
    select_event!("INDEXED BY piton_event_buffer"),
    " AND run_number = ?2 AND type = ?3 AND delivered_at IS NULL ORDER BY seq LIMIT ?4"
);

pub(super) const EVENT_PAGE: &str =
    concat!(select_event!(""), " AND run_number = ?2 AND seq > ?3 ORDER BY seq LIMIT ?4");

pub(super) const EVENT_PAGE_DESCENDING: &str =
    concat!(select_event!(""), " AND run_number = ?2 AND seq < ?3 ORDER BY seq DESC LIMIT ?4");

pub(super) const EVENT_LAST_SEQ: &str =
    "SELECT max(seq) FROM piton_event WHERE instance_key = ?1 AND run_number = ?2";

pub(super) const EVENT_INSERT: &str = "\
    INSERT INTO piton_event (instance_key, run_number, seq, id, type, idempotency_key, created_at, payload)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

pub(super) const EVENT_DELIVER: &str = "\
    UPDATE piton_event SET delivered_at = ?4, consumed_by = ?5
    WHERE instance_key = ?1 AND run_number = ?2 AND seq = ?3";

fn decode(row: &Row<'_>) -> Outcome<EventRecord> {
    let cells = Cells::keyed(row, TABLE)?;
    Ok(EventRecord {
        run: cells.number(1)?,
        seq: cells.number(2)?,
        id: cells.shared(3)?,
        event_type: EventType::from_stored(cells.shared(4)?),
        created_at: cells.time(CREATED_AT)?,
        delivered_at: cells.opt_time(6)?,
        consumed_by: cells.opt_text(7)?.map(StepName::from_stored),
        payload: cells.json(8)?,
    })
}

/// Buffered events that a wait looks at. Events arrive in the order of the clock, so that the first one tells; only
/// a clock that was set back can have put one in time behind others that are late.
const LATE_EVENTS_PASSED_MAX: i64 = 1000;

/// The event a wait of this type takes next, if one arrived by the deadline.
pub(super) fn oldest(
    db: &mut Statements<'_>,
    key: &RunKey,
    event_type: &EventType,
    deadline: Option<Timestamp>,
) -> Outcome<Option<EventRecord>> {
    let event_type = event_type.as_str();
    let params = params![key.instance.0, key.run, event_type, LATE_EVENTS_PASSED_MAX];
    db.find(EVENT_BUFFER, params, |row| {
        let arrived = Cells::keyed(row, TABLE)?.time(CREATED_AT)?;
        let in_time = deadline.is_none_or(|deadline| arrived <= deadline);
        in_time.then(|| decode(row)).transpose()
    })
}

/// Marks an event as taken, so that no other wait finds it.
pub(super) fn deliver(
    db: &mut Statements<'_>,
    key: &RunKey,
    event: &EventRecord,
    to: &StepName,
    now: Timestamp,
) -> Outcome<()> {
    let (now, to) = (now.as_millis(), to.as_str());
    let params = params![key.instance.0, key.run, seq_of(event.seq), now, to];
    db.execute(EVENT_DELIVER, params)?;
    Ok(())
}

pub(super) fn page(db: &mut Statements<'_>, page: &PageQuery) -> Outcome<Vec<EventRecord>> {
    let sql = if page.descending { EVENT_PAGE_DESCENDING } else { EVENT_PAGE };
    let params = params![page.instance.0, page.run, page.behind(), page.limit];
    db.all(sql, params, decode)
}

/// Stores an event and wakes the run that hibernates for it, in one transaction (rule R5). The claimant gets that run at
/// once, if there is one.
pub(super) fn send(
    batch: &mut Batch<'_, '_>,
    new: &NewEvent,
    claimant: Option<&Claimant>,
) -> Outcome<Sent> {
    let standing = instance::standing(batch.db, &new.workflow, &new.id)?;
    let (key, run) = (standing.key, standing.run);
    if let Some(idempotency_key) = &new.idempotency_key {
        let params = params![key.0, idempotency_key];
        let first = batch.db.one(EVENT_BY_IDEMPOTENCY_KEY, params, decode)?;
        if let Some(first) = first {
            return Ok(Sent { event: first, claimed: None });
        }
    }
    let task = task::get(batch, key)?;
    let waits = step::waits_for(batch.db, key, run, &new.event_type)?;
    let change = lifecycle::event_arrived(standing.status, task.as_ref(), waits, batch.now)?;

    let event = EventRecord {
        id: batch.ids.next("evt"),
        run,
        seq: last_seq(batch.db, key, run)? + 1,
        event_type: new.event_type.clone(),
        payload: new.payload.clone(),
        created_at: batch.now,
        delivered_at: None,
        consumed_by: None,
    };
    insert(batch.db, key, &event, new)?;
    let mut claimed = None;
    if let Some(task) = &task {
        task::apply(batch, key, task, &change)?;
        claimed = claim_woken(batch, key, new, &change, claimant)?;
        if claimed.is_none() {
            batch.hint_task(key, &new.workflow, task, &change);
        }
    }
    hook::trigger_all(batch, &new.hooks)?;
    let woken = EngineNews::of_task(&change, EnqueueReason::Event);
    hook::news(batch, &new.workflow, &new.id, woken)?;
    Ok(Sent { event, claimed })
}

fn claim_woken(
    batch: &mut Batch<'_, '_>,
    key: InstanceKey,
    new: &NewEvent,
    woken: &TaskChange,
    claimant: Option<&Claimant>,
) -> Outcome<Option<ClaimedRun>> {
    let (TaskChange::Put(before), Some(Claimant { runner, rules })) = (woken, claimant) else {
        return Ok(None);
    };
    let Some(task) = claim::claim_woken(woken, rules, batch.now) else { return Ok(None) };
    match lease(batch, key, &new.workflow, before, task, runner) {
        // The event is stored by now. A row that cannot be read is for the next claim to set aside.
        Err(Trouble::Answer(error)) => {
            tracing::error!(%error, "a run that was woken cannot be leased");
            Ok(None)
        }
        leased => leased.map(Some),
    }
}

fn insert(
    db: &mut Statements<'_>,
    key: InstanceKey,
    event: &EventRecord,
    new: &NewEvent,
) -> Outcome<()> {
    db.execute(
        EVENT_INSERT,
        params![
            key.0,
            event.run,
            seq_of(event.seq),
            event.id,
            event.event_type.as_str(),
            new.idempotency_key,
            event.created_at.as_millis(),
            event.payload.as_str(),
        ],
    )?;
    Ok(())
}

fn last_seq(db: &mut Statements<'_>, key: InstanceKey, run: RunNumber) -> Outcome<u64> {
    let last = db.one(EVENT_LAST_SEQ, params![key.0, run], |row| {
        Cells::new(row, TABLE, key).opt_number(0)
    })?;
    Ok(last.flatten().unwrap_or(0))
}

/// SQLite's integers are signed; no run gets that many events.
fn seq_of(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}
