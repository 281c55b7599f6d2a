//! The rows of `piton_event`, and what the arrival of an event does.

use piton_core::hook::{EngineNews, EnqueueReason};
use piton_core::record::{EventRecord, InstanceKey, RunKey, RunNumber};
use piton_core::{EventType, InstanceStatus, Refusal, StepName, Timestamp, lifecycle};
use sqlx::postgres::PgRow;

use super::cells::{Cells, bigint, int};
use super::statements::{Db, params};
use super::transaction::Transaction;
use super::trouble::{Failure, Outcome};
use super::{claim, text};
use crate::store::{Claimant, NewEvent, PageQuery, Sent};

const TABLE: &str = "piton_event";

macro_rules! columns {
    () => {
        "instance_key, run_number, seq, id, type, created_at, delivered_at, consumed_by, payload"
    };
}

const EVENT_BY_IDEMPOTENCY_KEY: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM piton_event WHERE instance_key = $1 AND idempotency_key = $2"
);

/// For each wait the first of its buffer that arrived by its deadline, if there is one.
const EVENT_OLDEST: &str = concat!(
    "SELECT ",
    columns!(),
    ", w.n
    FROM unnest($1, $2, $3, $4) WITH ORDINALITY
        AS w(of_instance, of_run, of_type, arrived_by, n)
    CROSS JOIN LATERAL (
        SELECT * FROM piton_event AS b
        WHERE b.instance_key = w.of_instance AND b.run_number = w.of_run AND b.type = w.of_type
            AND b.delivered_at IS NULL AND (w.arrived_by IS NULL OR b.created_at <= w.arrived_by)
        ORDER BY b.seq LIMIT 1) AS e"
);

const EVENT_PAGE: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM piton_event WHERE instance_key = $1 AND run_number = $2 AND seq > $3
    ORDER BY seq LIMIT $4"
);

const EVENT_PAGE_DESCENDING: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM piton_event WHERE instance_key = $1 AND run_number = $2 AND seq < $3
    ORDER BY seq DESC LIMIT $4"
);

/// How the receiver stands, read under its lock, and whether it waits for this type.
const EVENT_RECEIVER: &str = "\
    SELECT i.key, i.status, i.run_number, EXISTS (SELECT FROM piton_step AS s
        WHERE s.instance_key = i.key AND s.run_number = i.run_number AND s.status = 'waiting'
            AND s.type = 'waitForEvent' AND s.event_type = $2)
    FROM piton_instance AS i WHERE i.key = $1";

const EVENT_INSERT: &str = "\
    INSERT INTO piton_event (instance_key, run_number, id, type, idempotency_key, created_at, payload)
    VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING instance_key, seq";

const EVENT_DELIVER: &str = "\
    UPDATE piton_event AS e SET delivered_at = $4, consumed_by = a.consumed_by
    FROM unnest($1, $2, $3, $5) AS a(instance_key, run_number, seq, consumed_by)
    WHERE e.instance_key = a.instance_key AND e.run_number = a.run_number AND e.seq = a.seq";

fn decode(row: &PgRow) -> Outcome<EventRecord> {
    let cells = Cells::keyed(row, TABLE)?;
    Ok(EventRecord {
        run: cells.u32(1)?,
        seq: cells.u64(2)?,
        id: cells.text(3)?,
        event_type: EventType::from_stored(cells.text(4)?),
        created_at: cells.time(5)?,
        delivered_at: cells.opt_time(6)?,
        consumed_by: cells.opt_text(7)?.map(StepName::from_stored),
        payload: cells.json(8)?,
    })
}

/// A wait that looks for its event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look<'w> {
    pub(super) key: &'w RunKey,
    pub(super) event_type: &'w EventType,
    pub(super) arrived_by: Option<Timestamp>,
}

/// The event each wait takes next, at the place of the wait.
pub(super) async fn oldest(
    db: &mut Db<'_>,
    looks: &[Look<'_>],
) -> Outcome<Vec<Option<EventRecord>>> {
    let mut oldest = vec![None; looks.len()];
    if looks.is_empty() {
        return Ok(oldest);
    }
    let params = params![
        looks.iter().map(|look| look.key.instance.0).collect::<Vec<i64>>(),
        looks.iter().map(|look| int(look.key.run)).collect::<Vec<i32>>(),
        looks.iter().map(|look| look.event_type.as_str()).collect::<Vec<&str>>(),
        looks
            .iter()
            .map(|look| look.arrived_by.map(Timestamp::as_millis))
            .collect::<Vec<Option<i64>>>(),
    ];
    let found = db
        .all(EVENT_OLDEST, params, |row| Ok((Cells::keyed(row, TABLE)?.u64(9)?, decode(row)?)))
        .await?;
    for (place, event) in found {
        let place = usize::try_from(place).unwrap_or_default();
        if let Some(found) = place.checked_sub(1).and_then(|place| oldest.get_mut(place)) {
            *found = Some(event);
        }
    }
    Ok(oldest)
}

/// An event that was taken, and by whom.
#[derive(Clone, Debug)]
pub(super) struct Delivery {
    pub(super) key: RunKey,
    pub(super) seq: u64,
    pub(super) to: StepName,
}

/// Marks events as taken, so that no other wait finds them.
pub(super) async fn deliver(
    db: &mut Db<'_>,
    deliveries: &[Delivery],
    now: Timestamp,
) -> Result<(), Failure> {
    if deliveries.is_empty() {
        return Ok(());
    }
    let params = params![
        deliveries.iter().map(|event| event.key.instance.0).collect::<Vec<i64>>(),
        deliveries.iter().map(|event| int(event.key.run)).collect::<Vec<i32>>(),
        deliveries.iter().map(|event| bigint(event.seq)).collect::<Vec<i64>>(),
        now.as_millis(),
        deliveries.iter().map(|event| text::stored(event.to.as_str())).collect::<Vec<_>>(),
    ];
    db.execute(EVENT_DELIVER, params).await?;
    Ok(())
}

pub(super) async fn page(db: &mut Db<'_>, page: &PageQuery) -> Outcome<Vec<EventRecord>> {
    let sql = if page.descending { EVENT_PAGE_DESCENDING } else { EVENT_PAGE };
    let limit = i64::from(page.limit);
    db.all(sql, params![page.instance.0, int(page.run), page.behind(), limit], decode).await
}

/// How the receiver of an event stands.
struct Receiver {
    status: InstanceStatus,
    run: RunNumber,
    waits: bool,
}

async fn receiver(
    db: &mut Db<'_>,
    key: InstanceKey,
    event_type: &EventType,
) -> Outcome<Option<Receiver>> {
    db.one(EVENT_RECEIVER, params![key.0, event_type.as_str()], |row| {
        let cells = Cells::keyed(row, TABLE)?;
        Ok(Receiver { status: cells.word(1)?, run: cells.u32(2)?, waits: cells.flag(3)? })
    })
    .await
}

/// Stores an event and wakes the run that hibernates for it, under the lock of the run (rule R5). The receiver must
/// be locked by now, if it has a task. The claimant gets a run that was woken at once, if there is one.
pub(super) async fn send(
    tx: &mut Transaction<'_>,
    key: Option<InstanceKey>,
    new: &NewEvent,
    claimant: Option<&Claimant>,
) -> Outcome<Sent> {
    let unknown = || Refusal::no_instance(&new.workflow, &new.id);
    let key = key.ok_or_else(unknown)?;
    if let Some(idempotency_key) = &new.idempotency_key {
        let params = params![key.0, text::stored(idempotency_key)];
        if let Some(first) = tx.db.one(EVENT_BY_IDEMPOTENCY_KEY, params, decode).await? {
            return Ok(Sent { event: first, claimed: None });
        }
    }
    let receiver = receiver(&mut tx.db, key, &new.event_type).await?.ok_or_else(unknown)?;
    tx.check_lock(key, receiver.status)?;
    let task = tx.task(key);
    let change = lifecycle::event_arrived(receiver.status, task.as_ref(), receiver.waits, tx.now)?;
    let event = EventRecord {
        id: tx.ids.next("evt"),
        run: receiver.run,
        seq: 0,
        event_type: new.event_type.clone(),
        payload: new.payload.clone(),
        created_at: tx.now,
        delivered_at: None,
        consumed_by: None,
    };
    let seq = insert(&mut tx.db, key, &event, new).await?;
    tx.hooks.extend(new.hooks.iter().cloned());
    tx.news(key, EngineNews::of_task(&change, EnqueueReason::Event));
    let mut claimed = None;
    if let Some(before) = task {
        claimed = claim::claim_woken(tx, key, &change, claimant).await?;
        if claimed.is_none() {
            tx.hint_task(key, &before, &change);
            tx.change_task(key, &change);
        }
    }
    Ok(Sent { event: EventRecord { seq, ..event }, claimed })
}

async fn insert(
    db: &mut Db<'_>,
    key: InstanceKey,
    event: &EventRecord,
    new: &NewEvent,
) -> Outcome<u64> {
    let params = params![
        key.0,
        int(event.run),
        &*event.id,
        event.event_type.as_str(),
        new.idempotency_key.as_ref().map(|key| text::stored(key)),
        event.created_at.as_millis(),
        event.payload.as_str(),
    ];
    let seq = db.one(EVENT_INSERT, params, |row| Cells::keyed(row, TABLE)?.u64(1)).await?;
    Ok(seq.unwrap_or_default())
}
