//! The committer of the PostgreSQL store: requests of many runs at once, which go over two connections, and connections
//! that are lost.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::join_all;
use piton::Span;
use piton::prelude::*;
use piton::runtime::{Runtime, TokioRuntime};
use piton::sqlx::{self, AssertSqlSafe, Executor};
use piton::store::{
    Boundary, ClaimRequest, Claimant, Clock, CreateRequest, Created, Existing, Lease, NewEvent,
    NewInstance, PostgresOptions, PostgresStore, RowState, StepWrite, Store, StoreError, WaitLook,
};
use piton_core::boundary::{After, Next};
use piton_core::claim::ClaimRules;
use piton_core::hook::NewHook;
use piton_core::record::{RunKey, StepRecord};
use piton_core::{
    EventType, HookName, HookNamespace, InstanceId, Json, StepName, StepStatus, StepType, TaskKind,
    Timestamp, WorkflowName,
};
use piton_testing::VirtualRuntime;
use piton_testing::postgres::Scratch;
use piton_testing::proxy::Proxy;

use crate::postgres::cuttable;

/// A step that a run completed.
fn completed(position: u32, at: Timestamp) -> StepWrite {
    let name = StepName::from_stored(format!("step {position}"));
    let record = StepRecord {
        status: StepStatus::Completed,
        attempts: 1,
        attempts_max: Some(6),
        result: Some(Json::null()),
        ..StepRecord::new(name, StepType::Do, position, at)
    };
    StepWrite { record: Arc::new(record), row: RowState::New }
}

/// A request for one instance, leased to a runner.
fn create(id: &str, hooks: Vec<NewHook>) -> CreateRequest {
    CreateRequest {
        workflow: WorkflowName::from_stored("many"),
        instances: vec![NewInstance { id: InstanceId::from_stored(id), params: Json::null() }],
        existing: Existing::Refuse,
        lease: Some(Lease { runner: "runner".into(), span: Span::literal("1 hour") }),
        hooks,
    }
}

fn boundary(key: RunKey, steps: Vec<StepWrite>, next: Next) -> Boundary {
    Boundary { key, mutations: Vec::new(), steps, waits: Vec::new(), logs: Vec::new(), next }
}

const RULES: ClaimRules =
    ClaimRules { lease: Span::literal("1 hour"), claims_without_progress_max: 100 };

fn claim_one() -> ClaimRequest {
    let workflows = Arc::from([WorkflowName::from_stored("many")]);
    ClaimRequest { runner: "runner".into(), workflows, wanted: 1, suspects: true, rules: RULES }
}

const GOES_ON: Next = Next::Continue { bodies_running: false };

fn run_key(created: &Created) -> RunKey {
    RunKey { instance: created.instance.key, run: 0, epoch: created.epoch }
}

/// On a virtual clock a batch takes no time, so that a second connection pays from the first batch of some size on.
#[tokio::test]
async fn a_close_under_load_waits_for_what_both_connections_commit() -> Result<()> {
    const RUNS: i64 = 100;
    let Some(scratch) = Scratch::new() else { return Ok(()) };
    let (options, _) = cuttable(&scratch);
    let options = options.notify(false).clock(Clock::Runtime);
    let store: Arc<dyn Store> = PostgresStore::open(options, VirtualRuntime::new(1)).await?;
    let creating = (0..RUNS).map(|n| store.create(create(&format!("i-{n}"), Vec::new())));
    let created = join_all(creating).await.into_iter();
    let created: Vec<_> = created.map(|created| created.expect("created").remove(0)).collect();
    // Each run goes on until the store is closed.
    let runs = join_all(created.iter().map(async |created| {
        for position in 0.. {
            let steps = vec![completed(position, created.instance.created_at)];
            match store.commit(boundary(run_key(created), steps, GOES_ON)).await {
                Ok(committed) => assert_eq!(committed.after, After::Continue),
                Err(StoreError::Closed) => return i64::from(position),
                Err(error) => panic!("{error}"),
            }
        }
        unreachable!("the store is closed")
    }));
    let mut conn = scratch.connect().await?;
    let close = async {
        let count = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'piton-{}' AND query LIKE 'WITH clock%'",
            scratch.schema()
        );
        while sqlx::query_scalar::<_, i64>(AssertSqlSafe(&*count)).fetch_one(&mut conn).await? < 2 {
            tokio::task::yield_now().await;
        }
        Result::<()>::Ok(store.close().await?)
    };
    let (answered, closed) = tokio::join!(runs, close);
    closed?;
    let stored: i64 =
        sqlx::query_scalar("SELECT count(*) FROM piton_step").fetch_one(&mut conn).await?;
    assert_eq!(answered.iter().sum::<i64>(), stored, "what got in is committed and answered");
    Ok(())
}

/// Requests of one batch wait for a server that is away together, and not one after the other.
#[tokio::test]
async fn a_batch_waits_once_for_a_server_that_is_away() -> Result<()> {
    let Some(scratch) = Scratch::new() else { return Ok(()) };
    let proxy = Proxy::before(scratch.url()).await?;
    let options = PostgresOptions::new(proxy.url()).schema(scratch.schema());
    let clock = VirtualRuntime::new(1);
    let options = options.notify(false).clock(Clock::Runtime);
    let store: Arc<dyn Store> = PostgresStore::open(options, Arc::clone(&clock) as _).await?;
    let created = store.create(create("one", Vec::new())).await.expect("created").remove(0);
    let began = clock.now();
    drop(proxy);
    let send = |_| {
        let workflow = WorkflowName::from_stored("many");
        let event_type = EventType::from_stored("news");
        let event = NewEvent {
            workflow,
            id: InstanceId::from_stored("one"),
            event_type,
            payload: Json::null(),
            idempotency_key: None,
            hooks: Vec::new(),
        };
        store.send_event(event, None)
    };
    let steps = vec![completed(0, created.instance.created_at)];
    let asking = async {
        let commit = store.commit(boundary(run_key(&created), steps, GOES_ON));
        let (committed, sent) = tokio::join!(commit, join_all((0..3).map(send)));
        assert!(matches!(committed, Err(StoreError::Unavailable(_))), "{committed:?}");
        assert!(sent.iter().all(|sent| matches!(sent, Err(StoreError::Unavailable(_)))));
    };
    let waiting = async {
        loop {
            match clock.next_sleep_at() {
                Some(at) => clock.advance(at.since(clock.now())),
                None => tokio::task::yield_now().await,
            }
        }
    };
    tokio::select! {
        () = asking => {}
        () = waiting => {}
    }
    let waited = clock.now().since(began);
    let patience = Span::literal("60 seconds");
    assert!(waited >= patience && waited < Span::literal("110 seconds"), "{waited}");
    Ok(())
}

/// What a boundary wrote tells whether it took place. How its run stands does not: others change that, too.
#[tokio::test]
async fn a_suspension_in_doubt_is_not_taken_for_one_that_others_left() -> Result<()> {
    let Some(scratch) = Scratch::new() else { return Ok(()) };
    let (options, cut) = cuttable(&scratch);
    let options = options.notify(false).clock(Clock::Runtime);
    let store: Arc<dyn Store> = PostgresStore::open(options, VirtualRuntime::new(1)).await?;
    let created = store.create(create("one", Vec::new())).await.expect("created").remove(0);
    let (key, at) = (run_key(&created), created.instance.created_at);
    let mut conn = scratch.connect().await?;
    conn.execute("BEGIN; SELECT FROM piton_task FOR UPDATE").await?;
    let suspend = Next::Suspend { run_at: at, kind: TaskKind::Wake };
    let suspending = store.commit(boundary(key, vec![completed(0, at)], suspend));
    let meanwhile = async {
        let mut other = scratch.connect().await?;
        let waits = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'piton-{}' AND wait_event_type = 'Lock'",
            scratch.schema()
        );
        while sqlx::query_scalar::<_, i64>(AssertSqlSafe(&*waits)).fetch_one(&mut other).await? == 0
        {
            tokio::task::yield_now().await;
        }
        other.execute(AssertSqlSafe(cut)).await?;
        // As if its lease had run out, and it was paused and resumed.
        conn.execute("UPDATE piton_task SET state = 'pending', lease_until = NULL, lease_owner = NULL; COMMIT")
            .await?;
        Result::<()>::Ok(())
    };
    let (suspended, done) = tokio::join!(suspending, meanwhile);
    done?;
    assert!(matches!(suspended, Err(StoreError::Fenced)), "{suspended:?}");
    Ok(store.close().await?)
}

/// The steps of a run that was created together with a hook are committed by one statement, as those of all others.
#[tokio::test]
async fn a_run_that_was_created_with_a_hook_is_remembered() -> Result<()> {
    let Some(scratch) = Scratch::new() else { return Ok(()) };
    let (options, _) = cuttable(&scratch);
    let options = options.notify(false).clock(Clock::Runtime).connections(1);
    let store: Arc<dyn Store> = PostgresStore::open(options, VirtualRuntime::new(1)).await?;
    let hook = NewHook {
        id: "hook".into(),
        namespace: HookNamespace::from_stored("app"),
        name: HookName::from_stored("created"),
        payload: Json::null(),
        retries: Retries::none(),
        process_at: None,
    };
    let created = store.create(create("one", vec![hook])).await.expect("created").remove(0);
    let steps = vec![completed(0, created.instance.created_at)];
    store.commit(boundary(run_key(&created), steps, GOES_ON)).await.expect("committed");
    let last = format!(
        "SELECT query FROM pg_stat_activity WHERE application_name = 'piton-{}'",
        scratch.schema()
    );
    let mut conn = scratch.connect().await?;
    let last: Vec<String> = sqlx::query_scalar(AssertSqlSafe(last)).fetch_all(&mut conn).await?;
    assert!(last.iter().any(|query| query.starts_with("WITH clock")), "{last:?}");
    Ok(store.close().await?)
}

/// Nobody is told that the store is closed who asked before it was.
#[tokio::test]
async fn what_many_runs_asked_before_a_close_is_served() -> Result<()> {
    let Some(scratch) = Scratch::new() else { return Ok(()) };
    let options = scratch.options().notify(false).clock(Clock::Runtime);
    let store: Arc<dyn Store> = PostgresStore::open(options, VirtualRuntime::new(1)).await?;
    let creating = (0..100).map(|n| store.create(create(&format!("i-{n}"), Vec::new())));
    let created = join_all(creating).await.into_iter();
    let created: Vec<_> = created.map(|created| created.expect("created").remove(0)).collect();
    for position in 0..3 {
        let commits = created.iter().map(|created| {
            let steps = vec![completed(position, created.instance.created_at)];
            store.commit(boundary(run_key(created), steps, GOES_ON))
        });
        let mut commits: Vec<_> = commits.map(FutureExt::fuse).collect();
        // Each is in the queue once it was polled.
        for commit in &mut commits {
            assert!(futures_util::poll!(commit).is_pending(), "nothing is committed yet");
        }
        let close = async { if position == 2 { store.close().await } else { Ok(()) } };
        let (closed, committed) = tokio::join!(close, join_all(commits));
        closed?;
        for committed in committed {
            assert_eq!(committed.expect("served").after, After::Continue);
        }
    }
    Ok(())
}

/// A claim whose commit was never answered is handed back, unless somebody else has made the same claim since.
#[tokio::test]
async fn a_lease_that_somebody_else_holds_by_now_is_not_taken_back() -> Result<()> {
    let Some(scratch) = Scratch::new() else { return Ok(()) };
    let proxy = Proxy::before(scratch.url()).await?;
    let options = PostgresOptions::new(proxy.url()).schema(scratch.schema()).connections(1);
    let store: Arc<dyn Store> =
        PostgresStore::open(options.notify(false), TokioRuntime::current()?).await?;
    let first = store.create(create("first", Vec::new())).await.expect("created").remove(0);
    let due = CreateRequest { lease: None, ..create("due", Vec::new()) };
    let due = store.create(due).await.expect("created").remove(0).instance.key;

    // The committer is held up, so that what is to be taken back waits.
    let mut holder = scratch.connect().await?;
    let first_key = first.instance.key.0;
    let hold = format!("BEGIN; SELECT FROM piton_task WHERE instance_key = {first_key} FOR UPDATE");
    holder.execute(AssertSqlSafe(hold)).await?;
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut holder).await?;
    let steps = vec![completed(0, first.instance.created_at)];
    let held_up = store.commit(boundary(run_key(&first), steps, GOES_ON));
    let meanwhile = async {
        let mut conn = scratch.connect().await?;
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))";
        while sqlx::query_scalar::<_, i64>(waits).bind(pid).fetch_one(&mut conn).await? == 0 {
            tokio::task::yield_now().await;
        }
        // Each answer to a claim is lost once, until it is that to its commit.
        for passed in 0.. {
            // With a connection that is there already.
            while store.load_steps(due, 0).await.is_err() {}
            proxy.swallow_answer_after(passed);
            let answered = store.claim(claim_one()).await.is_ok();
            let other = "UPDATE piton_task SET lease_until = lease_until + 1, lease_owner = 'other'
                WHERE instance_key = $1 AND state = 'leased'";
            let taken = sqlx::query(other).bind(due.0).execute(&mut conn).await?.rows_affected();
            if !answered && taken == 1 {
                break;
            }
            let again =
                "UPDATE piton_task SET state = 'pending', lease_until = NULL, lease_owner = NULL
                WHERE instance_key = $1";
            sqlx::query(again).bind(due.0).execute(&mut conn).await?;
        }
        holder.execute("COMMIT").await?;
        Result::<()>::Ok(())
    };
    let (_, done) = tokio::join!(held_up, meanwhile);
    done?;
    let epoch = "SELECT epoch FROM piton_task WHERE instance_key = $1";
    let epoch: i64 =
        sqlx::query_scalar(epoch).bind(due.0).fetch_one(&mut scratch.connect().await?).await?;
    let key = RunKey { instance: due, run: 0, epoch: epoch.unsigned_abs() };
    let renewed = store.renew(vec![key], Span::literal("1 hour")).await.expect("renewed");
    assert_eq!(renewed.len(), 1, "the other one still holds it");
    Ok(store.close().await?)
}

/// Each answer that the sender of an event gets from the server is lost once, that of its commit among them. The lease is
/// endless: what was leased with an event that was not answered must be handed back.
#[tokio::test]
async fn an_event_that_is_never_answered_costs_no_lease() -> Result<()> {
    let Some(scratch) = Scratch::new() else { return Ok(()) };
    let proxy = Proxy::before(scratch.url()).await?;
    let options = PostgresOptions::new(proxy.url()).schema(scratch.schema()).notify(false);
    let store: Arc<dyn Store> = PostgresStore::open(options, TokioRuntime::current()?).await?;
    let created = store.create(create("one", Vec::new())).await.expect("created").remove(0);
    let (mut run, mut lost) = (run_key(&created), 0);
    for number in 0..12 {
        let later = created.instance.created_at.plus(Span::literal("1 hour"));
        let name = StepName::from_stored(format!("wait {number}"));
        let event_type = EventType::from_stored(format!("news {number}"));
        let record = StepRecord {
            wake_at: Some(later),
            event_type: Some(event_type.clone()),
            ..StepRecord::new(name, StepType::WaitForEvent, number, created.instance.created_at)
        };
        let next = Next::Suspend { run_at: later, kind: TaskKind::Wake };
        let look = WaitLook { record: Arc::new(record), row: RowState::New, seq: number };
        let waits = Boundary { waits: vec![look], ..boundary(run, Vec::new(), next) };
        assert_eq!(store.commit(waits).await.expect("committed").after, After::Suspended);

        let before = proxy.swallowed();
        proxy.swallow_answer_after(number);
        let event = NewEvent {
            workflow: WorkflowName::from_stored("many"),
            id: InstanceId::from_stored("one"),
            event_type,
            payload: Json::null(),
            idempotency_key: None,
            hooks: Vec::new(),
        };
        let mut sent = Vec::new();
        while sent.is_empty() {
            let claimant = Claimant { runner: "sender".into(), rules: RULES };
            match store.send_event(event.clone(), Some(claimant)).await {
                Ok(answer) => sent.push(answer.claimed),
                Err(error) => assert!(matches!(error, StoreError::Unavailable(_)), "{error}"),
            }
        }
        lost += proxy.swallowed() - before;
        // The sender has it or, if the first answer was lost, whoever claims it.
        run = match sent.remove(0) {
            Some(claimed) => claimed.run_key(),
            None => loop {
                let answer = store.claim(claim_one()).await.expect("answered");
                match answer.claimed.first() {
                    Some(claimed) => break claimed.run_key(),
                    None => tokio::task::yield_now().await,
                }
            },
        };
    }
    assert!(lost >= 5, "an event has several answers, and each was lost: {lost}");
    Ok(store.close().await?)
}
