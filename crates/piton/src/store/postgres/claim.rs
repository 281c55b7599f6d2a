//! Claiming due tasks.
//!
//! The candidates come from the partial indexes of `piton_task` alone: what is paused, sleeping, finished or of a workflow
//! nobody asked for is never looked at. A look without any lock tells whether there is something to claim, which is all
//! that an idle process ever does; only then are tasks locked, and those that another process has in hand are passed over.

use std::collections::BTreeMap;
use std::sync::Arc;

use piton_core::boundary::TaskChange;
use piton_core::claim::{self, Claim, Due};
use piton_core::hook::EngineNews;
use piton_core::record::{InstanceKey, Task};
use piton_core::{InstanceId, Json, Span, TaskState, Timestamp, WorkflowName, story};
use sqlx::{Connection, PgConnection};

use super::cells::{Cells, bigint, int};
use super::clock::clock_ms;
use super::lease::Lent;
use super::log;
use super::shared::Shared;
use super::statements::{Db, params};
use super::task::{self, Class, Row};
use super::transaction::{Transaction, roll_back};
use super::trouble::{Failure, Outcome, damaged_row};
use crate::store::{ClaimAnswer, ClaimRequest, Claimant, ClaimedRun, Hint};

/// Tasks that one claim may take: it bounds how long their rows are locked.
const CLAIM_MAX: usize = 1024;

/// Rounds of one claim: another one is needed only if tasks were held or quarantined instead of claimed, and each looks
/// at twice as many.
const ROUNDS_MAX: usize = 16;

/// How often a claim looks again when everything that is due is locked by somebody else, who may be about to leave it due.
/// Each time it waits twice as long as before, in milliseconds from one.
const BUSY_MAX: u32 = 6;

const CLAIM_PAUSE: &str = "SELECT 0::bigint FROM pg_sleep($1)";

/// What is due, as far as `$3` per workflow and class, how long the oldest has been, and when the next task that is not
/// due yet will be.
const CLAIM_LOOK: &str = concat!(
    "WITH clock AS MATERIALIZED (SELECT coalesce($1, ", clock_ms!(), ") AS now),
    workflow AS MATERIALIZED (SELECT name FROM unnest($2) AS w(name)),
    resuming AS MATERIALIZED (
        SELECT d.run_at FROM clock, workflow AS w CROSS JOIN LATERAL (
            SELECT run_at FROM piton_task AS t
            WHERE t.workflow_name = w.name AND t.state = 'pending' AND t.kind <> 'run' AND t.run_at <= now
            ORDER BY run_at LIMIT $3) AS d),
    expired AS MATERIALIZED (
        SELECT d.run_at FROM clock, workflow AS w CROSS JOIN LATERAL (
            SELECT run_at FROM piton_task AS t
            WHERE t.workflow_name = w.name AND t.state = 'leased' AND t.lease_until <= now
            ORDER BY lease_until LIMIT $3) AS d),
    new AS MATERIALIZED (
        SELECT d.run_at FROM clock, workflow AS w CROSS JOIN LATERAL (
            SELECT run_at FROM piton_task AS t
            WHERE t.workflow_name = w.name AND t.state = 'pending' AND t.kind = 'run' AND t.run_at <= now
            ORDER BY run_at LIMIT $3) AS d),
    later AS (
        SELECT min(d.at) AS at FROM clock, workflow AS w CROSS JOIN LATERAL (
            (SELECT run_at AS at FROM piton_task AS t
                WHERE t.workflow_name = w.name AND t.state = 'pending' AND t.kind <> 'run' AND t.run_at > now
                ORDER BY run_at LIMIT 1)
            UNION ALL
            (SELECT run_at FROM piton_task AS t
                WHERE t.workflow_name = w.name AND t.state = 'pending' AND t.kind = 'run' AND t.run_at > now
                ORDER BY run_at LIMIT 1)
            UNION ALL
            (SELECT lease_until FROM piton_task AS t
                WHERE t.workflow_name = w.name AND t.state = 'leased' AND t.lease_until > now
                ORDER BY lease_until LIMIT 1)) AS d)
    SELECT (SELECT now FROM clock), (SELECT count(*) FROM resuming), (SELECT count(*) FROM expired),
        (SELECT count(*) FROM new), (SELECT min(run_at) FROM (TABLE resuming UNION ALL TABLE expired) AS r),
        (SELECT min(run_at) FROM new), (SELECT at FROM later),
        EXISTS (SELECT FROM workflow AS w CROSS JOIN LATERAL (
            SELECT FROM piton_task AS t WHERE t.workflow_name = w.name AND t.state = 'suspect' LIMIT 1) AS s)"
);

/// Leases the tasks, makes their instances active, tells the log, and returns what a runner needs.
const CLAIM_LEASE: &str = concat!(
    "WITH leased AS MATERIALIZED (
        SELECT * FROM unnest($1, $2, $3, $4, $5, $6)
            AS a(instance_key, kind, run_at, lease_until, epoch, claims_without_progress)),
    tasks AS (
        UPDATE piton_task AS t SET state = 'leased', kind = a.kind, run_at = a.run_at, lease_until = a.lease_until,
            lease_owner = $7, epoch = a.epoch, claims_without_progress = a.claims_without_progress
        FROM leased AS a WHERE t.instance_key = a.instance_key),
    woken AS (
        UPDATE piton_instance AS i SET status = 'active', started_at = coalesce(i.started_at, $8), updated_at = $8
        FROM leased AS a WHERE i.key = a.instance_key AND (i.status <> 'active' OR i.started_at IS NULL)),
    lines AS (
        INSERT INTO piton_log (", log::columns!(), ") SELECT ", log::columns!(), " FROM ",
        log::rows!("$9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19"), ")
    SELECT i.key, i.instance_id, i.created_at, i.params
    FROM piton_instance AS i JOIN leased AS a ON i.key = a.instance_key"
);

/// What a look saw.
struct Seen {
    now: Timestamp,
    resuming: usize,
    expired: usize,
    new: usize,
    oldest_resuming: Option<Timestamp>,
    oldest_new: Option<Timestamp>,
    later: Option<Timestamp>,
    suspects: bool,
}

/// Claims for a runner, in the order of `piton_core::claim`: what is due, and then one suspect if the runner has none.
///
/// `taken` is what was leased, or may have been: if there is no answer, nobody advances it.
pub(super) async fn claim(
    conn: &mut PgConnection,
    shared: &Shared,
    request: &ClaimRequest,
    taken: &mut Vec<Lent>,
) -> Outcome<ClaimAnswer> {
    let names: Vec<&str> = request.workflows.iter().map(WorkflowName::as_str).collect();
    let mut claiming =
        Claiming { conn, shared, request, names: &names, claimed: Vec::new(), taken };
    let (seen, left) = claiming.take_due().await?;
    if request.suspects && seen.suspects && claiming.claimed.len() < request.wanted {
        claiming.take_suspect(seen.now).await?;
    }
    Ok(answer(&seen, claiming.claimed, left))
}

/// Claims one instance, if it is due.
pub(super) async fn claim_instance(
    conn: &mut PgConnection,
    shared: &Shared,
    instance: InstanceKey,
    request: &ClaimRequest,
    taken: &mut Vec<Lent>,
) -> Outcome<ClaimAnswer> {
    let names: Vec<&str> = request.workflows.iter().map(WorkflowName::as_str).collect();
    let mut claiming =
        Claiming { conn, shared, request, names: &names, claimed: Vec::new(), taken };
    // Once more, because it may have been set aside by this very claim.
    for _ in 0..2 {
        if claiming.claimed.is_empty() {
            claiming.take(Choice::Instance(instance), 1).await?;
        }
    }
    let seen = look(claiming.conn, shared, &names, 1).await?;
    let left = seen.resuming + seen.expired + seen.new;
    Ok(answer(&seen, claiming.claimed, left))
}

/// A claim under way.
struct Claiming<'c> {
    conn: &'c mut PgConnection,
    shared: &'c Shared,
    request: &'c ClaimRequest,
    names: &'c [&'c str],
    claimed: Vec<ClaimedRun>,
    taken: &'c mut Vec<Lent>,
}

/// Which tasks a round may take.
#[derive(Clone, Copy)]
enum Choice<'c> {
    /// What was seen to be due, in the order of the rules; so many are looked at.
    Due(&'c Seen, usize),
    /// The oldest suspect.
    Suspect(Timestamp),
    /// That of one instance.
    Instance(InstanceKey),
}

impl Claiming<'_> {
    /// Takes what is due; what was seen last, and how much of it is left.
    async fn take_due(&mut self) -> Outcome<(Seen, usize)> {
        let (mut rounds, mut unfit, mut busy) = (0, 0, 0);
        loop {
            rounds += 1;
            let wanted = (self.request.wanted - self.claimed.len()).min(CLAIM_MAX);
            // Behind tasks that are held or quarantined there may be more of them: they must not delay the others.
            let limit = if unfit > 0 { wanted.max(unfit * 2).min(CLAIM_MAX) } else { wanted };
            let mut seen = look(self.conn, self.shared, self.names, limit).await?;
            let due = seen.resuming + seen.expired + seen.new;
            // A suspect must not starve, however much other work there is.
            let wanted = wanted - usize::from(self.request.suspects && seen.suspects).min(wanted);
            if wanted == 0 || due == 0 {
                return Ok((seen, due));
            }
            let taken = self.take(Choice::Due(&seen, limit), wanted).await?;
            let done = taken.claimed + taken.unfit;
            if done == 0 && self.claimed.is_empty() && busy < BUSY_MAX {
                pause(self.conn, self.shared, busy).await?;
                busy += 1;
                continue;
            }
            if taken.unfit == 0 || rounds == ROUNDS_MAX {
                // One of those that were not fit may have become a suspect.
                seen.suspects |= taken.unfit > 0;
                return Ok((seen, due.saturating_sub(done)));
            }
            unfit += taken.unfit;
        }
    }

    /// Takes the oldest suspect, passing over those that are held or quarantined instead.
    async fn take_suspect(&mut self, now: Timestamp) -> Outcome<()> {
        for _ in 0..CLAIM_MAX {
            if self.take(Choice::Suspect(now), 1).await?.unfit == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Locks what may be taken, asks the rules about each, and commits what they say; at most `wanted` runs are leased.
    async fn take(&mut self, choice: Choice<'_>, wanted: usize) -> Outcome<Taken> {
        let (shared, request) = (self.shared, self.request);
        let mut database = self.conn.begin().await.map_err(Failure::from)?;
        let db = Db { conn: &mut database, statements: &shared.statements };
        let (taken, runs, hints) = match take(db, shared, request, self.names, choice, wanted).await
        {
            Ok(taken) => taken,
            Err(trouble) => {
                roll_back(database).await;
                return Err(trouble);
            }
        };
        self.taken.extend(runs.iter().map(|run| Lent { instance: run.key, task: run.task }));
        database.commit().await.map_err(Failure::from)?;
        note(shared, &runs, hints);
        self.claimed.extend(runs);
        Ok(taken)
    }
}

async fn take(
    mut db: Db<'_>,
    shared: &Shared,
    request: &ClaimRequest,
    names: &[&str],
    choice: Choice<'_>,
    wanted: usize,
) -> Outcome<(Taken, Vec<ClaimedRun>, Vec<Hint>)> {
    let (mut tx, chosen) = match choice {
        Choice::Due(seen, limit) => {
            let chosen = choose(&mut db, names, seen, limit).await?;
            (with_locks(db, shared, seen.now, &chosen), chosen)
        }
        Choice::Suspect(now) => {
            let mut chosen = task::take_due(&mut db, Class::Suspect, names, now, 1).await?;
            chosen.truncate(1);
            (with_locks(db, shared, now, &chosen), chosen)
        }
        Choice::Instance(key) => {
            let mut tx = Transaction::lock(db, &shared.ids, &shared.time, &[key]).await?;
            tx.tell_by_hooks(shared.engine_hooks());
            let may = |row: &&Row| request.suspects || row.task.state != TaskState::Suspect;
            let chosen = tx.row(key).filter(may).cloned().into_iter().collect();
            (tx, chosen)
        }
    };
    let (taken, runs) = claim_all(&mut tx, &chosen, request, wanted).await?;
    Ok((taken, runs, std::mem::take(&mut tx.hints)))
}

/// Remembers what was committed, and tells of it.
fn note(shared: &Shared, runs: &[ClaimedRun], hints: Vec<Hint>) {
    for run in runs {
        shared.leases.note(run.key, &run.workflow, &run.task);
    }
    shared.tell(hints);
}

async fn pause(conn: &mut PgConnection, shared: &Shared, busy: u32) -> Outcome<()> {
    let seconds = f64::from(1_u32 << busy) / 1_000.0;
    let mut db = Db { conn, statements: &shared.statements };
    db.all(CLAIM_PAUSE, params![seconds], |_| Ok(())).await?;
    Ok(())
}

fn answer(seen: &Seen, claimed: Vec<ClaimedRun>, left: usize) -> ClaimAnswer {
    let leased = claimed.iter().filter_map(|run| run.task.lease_until).min();
    let later = [seen.later, leased].into_iter().flatten().min();
    let next_due_at = if left > 0 { Some(seen.now) } else { later };
    let now = seen.now;
    ClaimAnswer { now, claimed, next_due_at }
}

async fn look(
    conn: &mut PgConnection,
    shared: &Shared,
    workflows: &[&str],
    wanted: usize,
) -> Outcome<Seen> {
    let fixed = shared.time.fixed().map(Timestamp::as_millis);
    // One more than wanted tells that there is more.
    let limit = i64::try_from(wanted).unwrap_or(i64::MAX).saturating_add(1);
    let mut db = Db { conn, statements: &shared.statements };
    let seen = db
        .one(CLAIM_LOOK, params![fixed, workflows, limit], |row| {
            let cells = Cells::keyed(row, "piton_task")?;
            let count = |column| -> Outcome<usize> {
                Ok(usize::try_from(cells.u64(column)?).unwrap_or(usize::MAX))
            };
            Ok(Seen {
                now: cells.time(0)?,
                resuming: count(1)?,
                expired: count(2)?,
                new: count(3)?,
                oldest_resuming: cells.opt_time(4)?,
                oldest_new: cells.opt_time(5)?,
                later: cells.opt_time(6)?,
                suspects: cells.flag(7)?,
            })
        })
        .await?;
    seen.ok_or_else(|| damaged_row("piton_task", 0, "a look at it returned nothing"))
}

/// What one round took.
struct Taken {
    claimed: usize,
    /// Tasks that were held, quarantined or set aside instead.
    unfit: usize,
}

fn with_locks<'t>(
    db: Db<'t>,
    shared: &'t Shared,
    now: Timestamp,
    locked: &[Row],
) -> Transaction<'t> {
    let tasks = locked.iter().map(|row| (row.key, row.clone())).collect();
    let mut tx = Transaction::begin(db, &shared.ids, now, tasks);
    tx.tell_by_hooks(shared.engine_hooks());
    tx
}

/// Asks the rules about locked tasks, in order, and writes what they say.
async fn claim_all(
    tx: &mut Transaction<'_>,
    chosen: &[Row],
    request: &ClaimRequest,
    wanted: usize,
) -> Outcome<(Taken, Vec<ClaimedRun>)> {
    let (mut leased, mut unfit) = (Vec::new(), 0);
    for row in chosen {
        if leased.len() == wanted {
            break;
        }
        match claim_one(tx, row.key, request) {
            Some(task) => leased.push(task),
            None => unfit += 1,
        }
    }
    let runs = lease_all(tx, &leased, &request.runner).await?;
    tx.flush().await?;
    Ok((Taken { claimed: runs.len(), unfit }, runs))
}

/// Locks resuming work first, then new work, each oldest first.
async fn choose(db: &mut Db<'_>, names: &[&str], seen: &Seen, wanted: usize) -> Outcome<Vec<Row>> {
    let waited = |oldest: Option<Timestamp>| oldest.map_or(Span::ZERO, |at| seen.now.since(at));
    let resuming = Due {
        count: (seen.resuming + seen.expired).min(wanted),
        oldest_waited: waited(seen.oldest_resuming),
    };
    let new = Due { count: seen.new.min(wanted), oldest_waited: waited(seen.oldest_new) };
    let (resuming_share, new_share) = claim::share(wanted, resuming, new);
    let mut chosen = Vec::new();
    if seen.resuming > 0 {
        chosen = task::take_due(db, Class::Resuming, names, seen.now, resuming_share).await?;
    }
    if seen.expired > 0 {
        chosen.extend(task::take_due(db, Class::Expired, names, seen.now, resuming_share).await?);
        chosen.sort_unstable_by_key(|row| (row.task.run_at, row.key));
    }
    chosen.truncate(resuming_share);
    if seen.new > 0 {
        let mut new = task::take_due(db, Class::New, names, seen.now, new_share).await?;
        new.truncate(new_share);
        chosen.extend(new);
    }
    Ok(chosen)
}

/// Asks the rules about a locked task. `None` if they do something else with it than to lease it.
fn claim_one(
    tx: &mut Transaction<'_>,
    key: InstanceKey,
    request: &ClaimRequest,
) -> Option<(InstanceKey, Task, Task)> {
    let before = tx.task(key)?;
    match claim::claim(&before, &request.rules, tx.now) {
        Claim::Lease(task) => return Some((key, before, task)),
        Claim::Skip => {}
        Claim::SetAside(change) => tx.change_task(key, &change),
        Claim::Hold(change, paused) => {
            tx.change_task(key, &change);
            tx.change_instance(key, paused);
            tx.tell(key, before.run, story::paused());
        }
        Claim::Quarantine(change, ended) => {
            if let Some(error) = &ended.error {
                tx.tell(key, before.run, story::quarantined(error));
            }
            tx.news(key, Some(EngineNews::errored(before.run, ended.error.as_ref())));
            tx.change_task(key, &change);
            tx.change_instance(key, ended);
            tx.hints.push(Hint::Ended(key));
        }
    }
    None
}

/// Leases a run that was just woken to the claimant, if there is one: the claim shares the transaction of the wake.
pub(super) async fn claim_woken(
    tx: &mut Transaction<'_>,
    key: InstanceKey,
    woken: &TaskChange,
    claimant: Option<&Claimant>,
) -> Outcome<Option<ClaimedRun>> {
    let (TaskChange::Put(before), Some(Claimant { runner, rules })) = (woken, claimant) else {
        return Ok(None);
    };
    let Some(task) = claim::claim_woken(woken, rules, tx.now) else { return Ok(None) };
    let runs = lease_all(tx, &[(key, *before, task)], runner).await?;
    tx.is_leased(key, task);
    Ok(runs.into_iter().next())
}

/// Leases tasks, each with what it was before.
async fn lease_all(
    tx: &mut Transaction<'_>,
    leased: &[(InstanceKey, Task, Task)],
    runner: &Arc<str>,
) -> Outcome<Vec<ClaimedRun>> {
    if leased.is_empty() {
        return Ok(Vec::new());
    }
    let lines: Vec<log::Line> = leased
        .iter()
        .map(|(key, before, task)| {
            let line = match before.state {
                TaskState::Leased => story::taken_over(runner, task.epoch),
                TaskState::Pending | TaskState::Held | TaskState::Suspect => {
                    story::claimed(runner, task.epoch)
                }
            };
            let line = line.written(tx.ids.next("log"), tx.now);
            log::Line { instance: *key, run: task.run, line }
        })
        .collect();
    let until = |task: &Task| task.lease_until.map(Timestamp::as_millis);
    let mut params = params![
        leased.iter().map(|(key, _, _)| key.0).collect::<Vec<i64>>(),
        leased.iter().map(|(_, _, task)| task.kind.as_str()).collect::<Vec<&str>>(),
        leased.iter().map(|(_, _, task)| task.run_at.as_millis()).collect::<Vec<i64>>(),
        leased.iter().map(|(_, _, task)| until(task)).collect::<Vec<Option<i64>>>(),
        leased.iter().map(|(_, _, task)| bigint(task.epoch)).collect::<Vec<i64>>(),
        leased.iter().map(|(_, _, task)| int(task.claims_without_progress)).collect::<Vec<i32>>(),
        &**runner,
        tx.now.as_millis(),
    ];
    log::bind(&mut params, lines.iter().map(|line| (line.instance, line.run, &line.line)))?;
    let found = tx.db.all(CLAIM_LEASE, params, decode_to_run).await?;
    let mut to_run: BTreeMap<InstanceKey, ToRun> = found.into_iter().collect();
    let mut claimed = Vec::with_capacity(leased.len());
    for (key, _, task) in leased {
        let (Some(ToRun { id, created_at, params }), Some(workflow)) =
            (to_run.remove(key), tx.workflow(*key).cloned())
        else {
            tracing::error!(
                instance = key.0,
                "a task without an instance was claimed; it runs nothing"
            );
            continue;
        };
        claimed.push(ClaimedRun { workflow, id, params, created_at, key: *key, task: *task });
    }
    Ok(claimed)
}

/// What a runner needs to know about an instance.
struct ToRun {
    id: InstanceId,
    created_at: Timestamp,
    params: Json,
}

fn decode_to_run(row: &sqlx::postgres::PgRow) -> Outcome<(InstanceKey, ToRun)> {
    let cells = Cells::keyed(row, "piton_instance")?;
    let to_run = ToRun {
        id: InstanceId::from_stored(cells.text(1)?),
        created_at: cells.time(2)?,
        params: cells.json(3)?,
    };
    Ok((cells.key(), to_run))
}
