//! What only the PostgreSQL store has: migrations, several processes, lost connections, the user's own `sqlx` code.
//!
//! These tests run by the database's clock, on real time; none of them waits for a length of time, only for things to
//! happen. What every store does is proven by the conformance suite and the behaviour tests.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::try_join_all;
use piton::prelude::*;
use piton::runtime::{Runtime, TokioRuntime};
use piton::sqlx::{self, AssertSqlSafe, ConnectOptions, Executor, PgConnection, Row};
use piton::store::{
    Boundary, ClaimRequest, CreateRequest, Existing, Lease, LogFilter, NewInstance, PageQuery,
    PostgresOptions, PostgresStore, Store, StoreError,
};
use piton::{EngineBuilder, InstanceHandle, InstanceStatus, Span, WorkflowHandle};
use piton_core::boundary::Next;
use piton_core::claim::ClaimRules;
use piton_core::record::RunKey;
use piton_core::{InstanceId, Json, WorkflowName, story};
use piton_testing::VirtualRuntime;
use piton_testing::postgres::{Scratch, ScratchDatabase};
use piton_testing::proxy::Proxy;
use private_postgres::Stop;
use tokio::sync::Notify;

async fn open(options: PostgresOptions) -> Result<Arc<dyn Store>> {
    Ok(PostgresStore::open(options, TokioRuntime::current()?).await?)
}

async fn engine(options: PostgresOptions) -> Result<EngineBuilder> {
    Ok(Engine::builder_with_store(open(options).await?))
}

/// Everything the catalogue knows about the tables of a schema.
async fn catalogue(conn: &mut PgConnection, schema: &str) -> Result<BTreeSet<String>> {
    let queries = [
        "SELECT format('column %s.%s %s %s %s %s', table_name, column_name, ordinal_position, data_type, is_nullable,
            coalesce(collation_name, '')) FROM information_schema.columns WHERE table_schema = $1",
        "SELECT replace(indexdef, schemaname || '.', '') FROM pg_indexes WHERE schemaname = $1",
        "SELECT format('options %s %s', relname, reloptions) FROM pg_class JOIN pg_namespace AS n ON n.oid = relnamespace
            WHERE nspname = $1 AND relkind IN ('r', 'S')",
        "SELECT format('constraint %s %s', conname, pg_get_constraintdef(c.oid)) FROM pg_constraint AS c
            JOIN pg_namespace AS n ON n.oid = connamespace WHERE nspname = $1",
    ];
    let mut known = BTreeSet::new();
    for query in queries {
        for row in sqlx::query(query).bind(schema).fetch_all(&mut *conn).await? {
            known.insert(row.try_get(0)?);
        }
    }
    Ok(known)
}

#[tokio::test]
async fn the_migrations_lead_to_the_schema_that_people_read() -> Result<()> {
    let (Some(migrated), Some(written)) = (Scratch::new(), Scratch::new()) else { return Ok(()) };
    open(migrated.options()).await?.close().await?;
    let mut conn = written.connect().await?;
    let schema = written.schema();
    let sql = format!(
        "CREATE SCHEMA {schema}; SET search_path TO {schema}; {}",
        include_str!("../src/store/postgres/schema.sql")
    );
    conn.execute(AssertSqlSafe(sql)).await?;
    let expected = catalogue(&mut conn, schema).await?;
    assert!(expected.iter().any(|entry| entry.contains("piton_task_resuming")), "{expected:#?}");
    assert_eq!(catalogue(&mut conn, migrated.schema()).await?, expected);
    Ok(())
}

#[tokio::test]
async fn ten_processes_that_start_at_once_migrate_once() -> Result<()> {
    let Some(scratch) = Scratch::new() else { return Ok(()) };
    let mut opening = tokio::task::JoinSet::new();
    for _ in 0..10 {
        opening.spawn(open(scratch.options().connections(1)));
    }
    while let Some(opened) = opening.join_next().await {
        opened??;
    }
    let mut conn = scratch.connect().await?;
    let rows = sqlx::query("SELECT version FROM piton_schema").fetch_all(&mut conn).await?;
    assert_eq!(rows.len(), 1);
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_used_is_refused_with_advice() -> Result<()> {
    let Some(scratch) = Scratch::new() else { return Ok(()) };
    open(scratch.options()).await?.close().await?;
    let mut conn = scratch.connect().await?;
    conn.execute("UPDATE piton_schema SET version = 99").await?;
    for (options, advice) in [
        (scratch.options(), "upgrade"),
        (scratch.options().schema("no-such; DROP TABLE x"), "lowercase"),
        (scratch.options().connections(0), "at least one connection"),
        (PostgresOptions::new("postgres://localhost:1/nowhere"), "check the URL"),
        (PostgresOptions::new("postgres:// /"), "postgres://user:password@host/database"),
    ] {
        let error = open(options).await.err().expect(advice);
        assert_eq!(error.code(), Some("STORE_UNUSABLE"));
        assert!(error.to_string().contains(advice), "{error}");
    }
    Ok(())
}

async fn add(numbers: Event<(u32, u32)>, step: &Step) -> Result<u32> {
    let first = step.run("first", async { Ok(numbers.0) }).await?;
    step.sleep("a moment", "1 ms").await?;
    step.run("second", async { Ok(first + numbers.1) }).await
}

/// A poll so rare that nothing but a notification explains what happens in a test.
const NEVER: &str = "1 hour";

#[tokio::test]
async fn an_instance_created_in_one_process_runs_in_another_which_is_told() -> Result<()> {
    let Some(scratch) = Scratch::new() else { return Ok(()) };
    let (options, cut) = cuttable(&scratch);
    let api = engine(options.clone()).await?.register(workflow("add", add));
    let api = api.no_runner().poll_interval(NEVER).start().await?;
    let worker = engine(options).await?.register(workflow("add", add));
    let worker = worker.poll_interval(NEVER).start().await?;
    see_one_end(&api, &scratch).await?;
    // Those who listen come back when they were cut off.
    scratch.connect().await?.execute(AssertSqlSafe(cut)).await?;
    see_one_end(&api, &scratch).await?;
    worker.shutdown("5 seconds").await?;
    api.shutdown("5 seconds").await
}

async fn see_one_end(api: &Engine, scratch: &Scratch) -> Result<()> {
    let adds = api.workflow::<(u32, u32), u32>("add")?;
    // A hint may be lost while the worker is only beginning to listen: somebody creates another one then.
    for n in 0.. {
        // What is cut off is tried again.
        let Ok(instance) = adds.create((n, 1)).await else { continue };
        tokio::select! {
            result = instance.result() => match result {
                Ok(sum) => {
                    assert_eq!(sum, n + 1);
                    break;
                }
                Err(error) => assert_eq!(error.code(), Some("STORE_UNAVAILABLE"), "{error}"),
            },
            () = worker_listens(scratch) => {}
        }
    }
    Ok(())
}

/// Options by which connections can be told from those of other tests, and the statement that cuts them.
pub(crate) fn cuttable(scratch: &Scratch) -> (PostgresOptions, String) {
    let mine = format!("piton-{}", scratch.schema());
    let join = if scratch.url().contains('?') { '&' } else { '?' };
    let url = format!("{}{join}application_name={mine}", scratch.url());
    let cut = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{mine}'"
    );
    (PostgresOptions::new(url).schema(scratch.schema()), cut)
}

/// Ends when both processes listen and some time was given to a hint.
async fn worker_listens(scratch: &Scratch) {
    let mut conn = scratch.connect().await.expect("connected");
    for _ in 0..50 {
        let _ = conn.execute("SELECT pg_sleep(0.1)").await;
    }
}

#[tokio::test]
async fn without_notifications_the_poll_finds_everything() -> Result<()> {
    let Some(scratch) = Scratch::new() else { return Ok(()) };
    let silent = || scratch.options().notify(false);
    let api = engine(silent()).await?.register(workflow("add", add));
    let api = api.no_runner().poll_interval("20 ms").start().await?;
    let worker = engine(silent()).await?.register(workflow("add", add));
    let worker = worker.poll_interval("20 ms").start().await?;
    let adds = api.workflow::<(u32, u32), u32>("add")?;
    assert_eq!(adds.create((2, 3)).await?.result().await?, 5);
    worker.shutdown("5 seconds").await?;
    api.shutdown("5 seconds").await
}

/// Notifications off, on a virtual clock: work of another process is found by the poll, neither sooner nor later.
#[tokio::test]
async fn without_notifications_the_latency_is_the_poll_interval() -> Result<()> {
    let Some(scratch) = Scratch::new() else { return Ok(()) };
    let clock = VirtualRuntime::new(7);
    let api = Engine::builder_with_store(scratch.open(clock.clone()).await?);
    let api = api.runtime(clock.clone()).register(workflow("one", one_step));
    let api = api.no_runner().poll_interval(NEVER).start().await?;
    let worker = Engine::builder_with_store(scratch.open(clock.clone()).await?);
    let worker = worker.runtime(clock.clone()).register(workflow("one", one_step));
    let worker = worker.lease("1 hour").poll_interval("10 seconds").start().await?;
    // The poll has a jitter of up to a quarter, which is not nothing for this seed. Nothing else sleeps that long.
    let polls = Span::literal("7.5 seconds")..Span::literal("10 seconds");
    let asleep = || clock.next_sleep_at().is_some_and(|at| polls.contains(&at.since(clock.now())));
    while !asleep() {
        tokio::task::yield_now().await;
    }
    let instance = api.workflow::<(), u32>("one")?.create(()).await?;
    let created_at = clock.now();
    clock.advance(Span::literal("7.4 seconds"));
    for _ in 0..5 {
        assert_eq!(instance.describe().await?.started_at, None, "nobody was told");
    }
    clock.advance(Span::literal("2.6 seconds"));
    while instance.status().await? != InstanceStatus::Complete {
        tokio::task::yield_now().await;
    }
    let started_at = instance.describe().await?.started_at.expect("it has ended");
    assert_eq!(started_at.since(created_at), Span::literal("10 seconds"));
    assert_eq!(instance.result().await?, 1);
    worker.shutdown("5 seconds").await?;
    api.shutdown("5 seconds").await
}

async fn one_step(_: Event<()>, step: &Step) -> Result<u32> {
    step.run("one", async { Ok(1) }).await
}

#[tokio::test]
async fn a_shutdown_hands_its_runs_to_the_others_at_once() -> Result<()> {
    let Some(scratch) = Scratch::new() else { return Ok(()) };
    let starts = Arc::new(AtomicU32::new(0));
    let long = |starts: Arc<AtomicU32>| {
        crate::support::flow("long", &starts, |starts, _: Event<()>, step| {
            Box::pin(async move {
                step.run("quick", async { Ok(()) }).await?;
                step.run("long", async {
                    // The first one never ends by itself.
                    if starts.fetch_add(1, Ordering::SeqCst) == 0 {
                        std::future::pending::<()>().await;
                    }
                    Ok(7_u32)
                })
                .await
            })
        })
    };
    let first = engine(scratch.options())
        .await?
        .register(long(starts.clone()))
        .lease(NEVER)
        .start()
        .await?;
    let instance = first.workflow::<(), u32>("long")?.create(()).id("one").await?;
    while starts.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let second = engine(scratch.options())
        .await?
        .register(long(starts.clone()))
        .lease(NEVER)
        .start()
        .await?;
    first.shutdown("10 ms").await?;
    drop(instance);
    let taken_over = second.workflow::<(), u32>("long")?.get("one").await?;
    assert_eq!(taken_over.result().await?, 7);
    second.shutdown("5 seconds").await
}

async fn five_steps(n: Event<u32>, step: &Step) -> Result<u32> {
    let mut sum = *n;
    for i in 0..5 {
        sum += step.run(format!("step {i}"), async { Ok(i) }).await?;
        if i == 2 {
            step.sleep("nap", "5 ms").await?;
        }
    }
    Ok(sum)
}

/// Instances that are run while something goes wrong.
struct Load {
    instances: u32,
    /// How many are created together. Several dozens are written over two connections.
    at_once: u32,
    /// After how many instances something goes wrong.
    harm_every: u32,
}

const LIGHT: Load = Load { instances: 60, at_once: 1, harm_every: 10 };
const HEAVY: Load = Load { instances: 300, at_once: 50, harm_every: 50 };

/// Creates an instance. Whether a create that was not answered took place is for its caller to find out.
async fn create_surely(fives: &WorkflowHandle<u32, u32>, n: u32) -> Result<InstanceHandle<u32>> {
    let id = format!("i-{n}");
    loop {
        match fives.create(n).id(&id).await {
            Ok(instance) => return Ok(instance),
            Err(error) if error.code() == Some("INSTANCE_ID_ALREADY_EXISTS") => {
                return fives.get(&id).await;
            }
            Err(error) => assert_eq!(error.code(), Some("STORE_UNAVAILABLE"), "{error}"),
        }
    }
}

/// Runs instances to their end while something goes wrong again and again, and then checks what is stored.
async fn survive(
    options: PostgresOptions,
    scratch: &Scratch,
    load: Load,
    mut harm: impl AsyncFnMut(u32) -> Result<()>,
) -> Result<()> {
    let Load { instances, at_once, harm_every } = load;
    let engine = engine(options.connections(4)).await?.register(workflow("five", five_steps));
    let engine =
        engine.lease("1 second").poll_interval("50 ms").quarantine_after(1_000).start().await?;
    let fives = engine.workflow::<u32, u32>("five")?;
    let mut created = Vec::new();
    for first in (0..instances).step_by(at_once as usize) {
        if first % harm_every == harm_every / 2 || at_once == harm_every {
            harm(first).await?;
        }
        let together = (first..first + at_once).map(|n| create_surely(&fives, n));
        created.extend((first..).zip(try_join_all(together).await?));
    }
    for (n, instance) in created {
        let result = loop {
            match instance.result().await {
                Ok(result) => break result,
                Err(error) => assert_eq!(error.code(), Some("STORE_UNAVAILABLE"), "{error}"),
            }
        };
        assert_eq!(result, n + 10);
    }
    let mut conn = scratch.connect().await?;
    let audit = "SELECT (SELECT count(*) FROM piton_instance WHERE status = 'complete'),
        (SELECT count(*) FROM piton_step WHERE status = 'completed'), (SELECT count(*) FROM piton_task)";
    let row = sqlx::query(audit).fetch_one(&mut conn).await?;
    let counts: [i64; 3] = [row.try_get(0)?, row.try_get(1)?, row.try_get(2)?];
    assert_eq!(counts, [instances.into(), i64::from(instances) * 6, 0]);
    engine.shutdown("5 seconds").await
}

async fn survive_cuts(load: Load) -> Result<()> {
    let Some(scratch) = Scratch::new() else { return Ok(()) };
    let (options, cut) = cuttable(&scratch);
    survive(options, &scratch, load, async |_| {
        scratch.connect().await?.execute(AssertSqlSafe(cut.clone())).await?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_by_the_server_lose_and_double_nothing() -> Result<()> {
    survive_cuts(LIGHT).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_under_load_lose_and_double_nothing() -> Result<()> {
    survive_cuts(HEAVY).await
}

async fn survive_silence(load: Load) -> Result<()> {
    let Some(scratch) = Scratch::new() else { return Ok(()) };
    let proxy = Proxy::before(scratch.url()).await?;
    let options = PostgresOptions::new(proxy.url()).schema(scratch.schema());
    survive(options, &scratch, load, async |n| {
        // What was asked reaches the server; the answer does not come back.
        proxy.swallow_answers(1 + n % 3);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_that_are_never_answered_lose_and_double_nothing() -> Result<()> {
    survive_silence(LIGHT).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_that_are_never_answered_under_load_lose_and_double_nothing() -> Result<()> {
    survive_silence(HEAVY).await
}

fn claim_one(workflow: &WorkflowName) -> ClaimRequest {
    let rules = ClaimRules { lease: Span::literal("1 hour"), claims_without_progress_max: 100 };
    let workflows = Arc::from([workflow.clone()]);
    ClaimRequest { runner: "runner".into(), workflows, wanted: 1, suspects: true, rules }
}

/// Each answer that a claim gets from the server is lost once, that of its commit among them. The lease is endless: what was
/// claimed by a call that was not answered must be handed back.
#[tokio::test]
async fn a_claim_that_is_never_answered_costs_no_lease() -> Result<()> {
    let Some(scratch) = Scratch::new() else { return Ok(()) };
    let proxy = Proxy::before(scratch.url()).await?;
    let options = PostgresOptions::new(proxy.url()).schema(scratch.schema());
    let store = open(options.notify(false).connections(1)).await?;
    let workflow = WorkflowName::from_stored("claimed");
    let created = store.create(CreateRequest {
        workflow: workflow.clone(),
        instances: vec![NewInstance { id: InstanceId::from_stored("a"), params: Json::null() }],
        existing: Existing::Refuse,
        lease: None,
        hooks: Vec::new(),
    });
    created.await.expect("created");
    let mut failed = 0;
    for passed in 0..12 {
        let before = proxy.swallowed();
        proxy.swallow_answer_after(passed);
        let run = loop {
            match store.claim(claim_one(&workflow)).await {
                Ok(answer) => match answer.claimed.first() {
                    Some(run) => break run.run_key(),
                    None => tokio::task::yield_now().await,
                },
                Err(error) => assert!(matches!(error, StoreError::Unavailable(_)), "{error}"),
            }
        };
        failed += proxy.swallowed() - before;
        // What an earlier claim may have taken is handed back by now; this one is not.
        let renewed = store.renew(vec![run], Span::literal("1 hour")).await.expect("renewed");
        assert_eq!(renewed.len(), 1, "still held");
        // The steps of a run that is claimed are read however often that takes.
        proxy.swallow_answer_after(passed % 3);
        assert_eq!(store.load_steps(run.instance, run.run).await.expect("loaded"), []);
        store.release(vec![run]).await.expect("released");
    }
    assert!(failed >= 5, "a claim has several answers, and each was lost: {failed}");
    Ok(store.close().await?)
}

/// What a step's transaction does can be done once only. But it is not begun while the server is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_transaction_waits_for_a_server_that_is_away() -> Result<()> {
    if !piton_testing::postgres::is_available() || private_postgres::Programs::find().is_none() {
        return Ok(());
    }
    let server = private_postgres::Server::start(private_postgres::Place::Memory);
    let mut server = server.expect("a server can be started");
    let scratch = Scratch::on(server.url());
    let (reached, gate) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let state = (Arc::clone(&reached), Arc::clone(&gate), format!("{}.note", scratch.schema()));
    let noting =
        crate::support::flow("note", &state, |(reached, gate, table), _: Event<()>, step| {
            Box::pin(async move {
                let (reached, gate, table) = (&reached, &gate, &table);
                step.run_with("note", |cx| async move {
                    cx.transaction().execute(format!("INSERT INTO {table} VALUES (1)"), ());
                    reached.notify_one();
                    gate.notified().await;
                    Ok(())
                })
                .await
            })
        });
    let engine = engine(scratch.options()).await?.register(noting).lease(NEVER).start().await?;
    let table = format!("CREATE TABLE {}.note (n BIGINT PRIMARY KEY)", scratch.schema());
    scratch.connect().await?.execute(AssertSqlSafe(table)).await?;
    let instance = engine.workflow::<(), ()>("note")?.create(()).await?;
    reached.notified().await;
    server.stop(Stop::Fast).expect("stopped");
    gate.notify_one();
    // It asks for its transaction meanwhile. Should the machine be so slow that it does not, there is less to see.
    TokioRuntime::current()?.sleep(Span::literal("500 ms")).await;
    server.launch().expect("started again");
    // With an endless lease this ends only if the run was not given up.
    instance.result().await?;
    let rows = sqlx::query("SELECT n FROM note").fetch_all(&mut scratch.connect().await?).await?;
    assert_eq!(rows.len(), 1);
    engine.shutdown("5 seconds").await
}

/// Nobody can hand leases back to a server that is away, and a polite end does not wait for it as long as work does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_does_not_wait_for_a_server_that_is_away() -> Result<()> {
    if !piton_testing::postgres::is_available() || private_postgres::Programs::find().is_none() {
        return Ok(());
    }
    let server = private_postgres::Server::start(private_postgres::Place::Memory);
    let mut server = server.expect("a server can be started");
    let scratch = Scratch::on(server.url());
    let reached = Arc::new(Notify::new());
    let endless = crate::support::flow("endless", &reached, |reached, _: Event<()>, step| {
        Box::pin(async move {
            step.run("endless", async {
                reached.notify_one();
                std::future::pending::<Result<()>>().await
            })
            .await
        })
    });
    let engine = engine(scratch.options()).await?.register(endless).start().await?;
    engine.workflow::<(), ()>("endless")?.create(()).await?;
    reached.notified().await;
    server.stop(Stop::Fast).expect("stopped");
    let runtime = TokioRuntime::current()?;
    let began_us = runtime.monotonic_us();
    engine.shutdown("10 ms").await?;
    // Without a bound it is minutes.
    assert!(runtime.monotonic_us() - began_us < 50_000_000);
    Ok(())
}

/// After a failover the old primary may still be found under its name, as a standby: it is as good as away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_only_reads_is_waited_for() -> Result<()> {
    let Some(database) = ScratchDatabase::new() else { return Ok(()) };
    let (reached, gate) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let state = (Arc::clone(&reached), Arc::clone(&gate));
    let two_steps = crate::support::flow("two", &state, |(reached, gate), _: Event<()>, step| {
        Box::pin(async move {
            step.run("first", async {
                reached.notify_one();
                gate.notified().await;
                Ok(())
            })
            .await?;
            step.sleep("nap", "5 ms").await?;
            step.run("second", async { Ok(()) }).await
        })
    });
    let engine = Engine::builder(database.url()).register(two_steps).lease(NEVER).parked_runs(0);
    let engine = engine.start().await?;
    let instance = engine.workflow::<(), ()>("two")?.create(()).await?;
    reached.notified().await;
    let name = database.options().get_database().expect("it has one").to_owned();
    let mut conn = database.options().connect().await?;
    let demote = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
    conn.execute(AssertSqlSafe(demote)).await?;
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    conn.execute(cut).await?;
    gate.notify_one();
    // Boundaries and claims are tried meanwhile. Should the machine be so slow that they are not, there is less to see.
    TokioRuntime::current()?.sleep(Span::literal("1 second")).await;
    let promote = format!("ALTER DATABASE {name} RESET default_transaction_read_only");
    conn.execute(AssertSqlSafe(promote)).await?;
    instance.result().await?;
    engine.shutdown("5 seconds").await
}

/// A boundary that has nothing but log lines leaves no other trace by which it could be known again.
#[tokio::test]
async fn log_lines_of_a_commit_that_was_never_answered_are_there_once() -> Result<()> {
    let Some(scratch) = Scratch::new() else { return Ok(()) };
    let proxy = Proxy::before(scratch.url()).await?;
    let options = PostgresOptions::new(proxy.url()).schema(scratch.schema()).notify(false);
    let store = open(options).await?;
    let workflow = WorkflowName::from_stored("talk");
    let created = store.create(CreateRequest {
        workflow: workflow.clone(),
        instances: vec![NewInstance { id: InstanceId::from_stored("a"), params: Json::null() }],
        existing: Existing::Refuse,
        lease: Some(Lease { runner: "runner".into(), span: Span::literal("1 hour") }),
        hooks: Vec::new(),
    });
    let created = created.await.expect("created").remove(0);
    let key = RunKey { instance: created.instance.key, run: 0, epoch: created.epoch };
    let say = |id: &str| Boundary {
        key,
        mutations: Vec::new(),
        steps: Vec::new(),
        waits: Vec::new(),
        logs: vec![story::released().written(id.into(), created.instance.created_at)],
        next: Next::Continue { bodies_running: true },
    };
    // The first makes the statement known to the connection: then there is one answer, that of the commit.
    store.commit(say("first")).await.expect("committed");
    for message in ["second", "third", "fourth"] {
        proxy.swallow_answers(1);
        store.commit(say(message)).await.expect("looked up");
        store.commit(say(&format!("after {message}"))).await.expect("committed");
    }
    let page =
        PageQuery { instance: key.instance, run: 0, after: None, limit: 100, descending: false };
    let logs = store.logs(page, LogFilter::default()).await.expect("read");
    let ids: Vec<&str> = logs.iter().skip(1).map(|log| &*log.line.id).collect();
    let expected =
        ["first", "second", "after second", "third", "after third", "fourth", "after fourth"];
    assert_eq!(ids, expected);
    Ok(store.close().await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_crashes_and_comes_back_loses_and_doubles_nothing() -> Result<()> {
    if !piton_testing::postgres::is_available() || private_postgres::Programs::find().is_none() {
        return Ok(());
    }
    // One of its own: the others would not like it to be restarted.
    let server = private_postgres::Server::start(private_postgres::Place::Memory);
    let mut server = server.expect("a server can be started");
    let scratch = Scratch::on(server.url());
    survive(scratch.options(), &scratch, LIGHT, async |n| {
        let how = if n % 20 == 5 { Stop::Immediate } else { Stop::Fast };
        server.stop(how).expect("stopped");
        server.launch().expect("started again");
        Ok(())
    })
    .await
}

/// Step transactions, claims and reads that all need the only connection of the pool wait for each other, and end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_is_always_exhausted_delays_and_loses_nothing() -> Result<()> {
    let Some(scratch) = Scratch::new() else { return Ok(()) };
    let slow = workflow("slow", async |n: Event<u32>, step: &Step| -> Result<u32> {
        for i in 0..3 {
            step.run_with(format!("step {i}"), |cx| async move {
                cx.transaction().execute("SELECT pg_sleep(0.002)", ());
                Ok(())
            })
            .await?;
        }
        Ok(*n)
    });
    let engine = engine(scratch.options().connections(1)).await?.register(slow).start().await?;
    let slow = engine.workflow::<u32, u32>("slow")?;
    let mut created = Vec::new();
    for n in 0..40 {
        created.push(slow.create(n).await?);
    }
    for (n, instance) in (0..40).zip(created) {
        assert_eq!(instance.result().await?, n);
    }
    engine.shutdown("5 seconds").await
}

// ---- the user's own SQL in a step's transaction ----

#[tokio::test]
async fn user_sql_is_committed_with_its_step_exactly_once() -> Result<()> {
    let Some(scratch) = Scratch::new() else { return Ok(()) };
    let table = format!("{}.visit", scratch.schema());
    let visits = crate::support::flow("visit", &table, |table, event: Event<u32>, step| {
        Box::pin(async move {
            let (n, table) = (i64::from(*event), &table);
            step.run_with("record", |cx| async move {
                let tx = cx.transaction();
                tx.execute(
                    format!("INSERT INTO {table} (n, seen, note, score) VALUES ($1, $2, $3, $4)"),
                    (n, true, None::<&str>, 0.5),
                );
                let update = format!("UPDATE {table} SET note = $2 WHERE n = $1");
                tx.postgres(move |conn| {
                    Box::pin(async move {
                        let update = sqlx::query(AssertSqlSafe(update)).bind(n).bind("twice");
                        assert_eq!(update.execute(conn).await?.rows_affected(), 1);
                        Ok(())
                    })
                });
                if cx.attempt() == 1 {
                    return Err(Error::new("what a failed attempt asked for is discarded"));
                }
                Ok(())
            })
            .retries(Retries::constant(1, 0))
            .await
        })
    });
    let engine = engine(scratch.options()).await?.register(visits).start().await?;
    let mut conn = scratch.connect().await?;
    let create = format!(
        "CREATE TABLE {table} (n BIGINT PRIMARY KEY, seen BOOLEAN, note TEXT, score FLOAT8)"
    );
    conn.execute(AssertSqlSafe(create)).await?;
    let visits = engine.workflow::<u32, ()>("visit")?;
    visits.create(1).await?.result().await?;
    let error = visits.create(1).await?.result().await.expect_err("it is there already");
    assert_eq!(error.name(), "UniqueConstraint", "{error}");
    visits.create(2).await?.result().await?;
    let rows = format!("SELECT n, seen, note, score FROM {table} ORDER BY n");
    let rows = sqlx::query(AssertSqlSafe(rows)).fetch_all(&mut conn).await?;
    let rows: Vec<(i64, bool, String, f64)> =
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect();
    assert_eq!(rows, [(1, true, "twice".into(), 0.5), (2, true, "twice".into(), 0.5)]);
    engine.shutdown("5 seconds").await
}

#[tokio::test]
async fn user_sql_that_fails_in_any_way_fails_its_step_alone() -> Result<()> {
    let Some(scratch) = Scratch::new() else { return Ok(()) };
    let bad = crate::support::flow("bad", &(), |(), how: Event<String>, step| {
        Box::pin(async move {
            let how = how.as_str();
            step.run_with("try", |cx| async move {
                let tx = cx.transaction();
                match how {
                    "syntax" => tx.execute("SELEKT 1", ()),
                    "panic" => tx.postgres(|_| Box::pin(async { panic!("ouch") })),
                    "commit" => tx.postgres(|conn| {
                        Box::pin(async move {
                            conn.execute("COMMIT").await?;
                            Ok(())
                        })
                    }),
                    "swallow" => tx.postgres(|conn| {
                        Box::pin(async move {
                            let _ = conn.execute("SELECT 1 / 0").await;
                            Ok(())
                        })
                    }),
                    "sqlite" => tx.sqlite(|_| Ok(())),
                    _ => tx.execute("SELECT 1", ()),
                }
                Ok(())
            })
            .retries(Retries::none())
            .await
        })
    });
    let engine = engine(scratch.options()).await?.register(bad).start().await?;
    let bad = engine.workflow::<String, ()>("bad")?;
    for (how, why) in [
        ("syntax", "SELEKT"),
        ("panic", "ouch"),
        ("commit", "must not COMMIT"),
        ("swallow", "aborted"),
        ("sqlite", "`postgres`"),
    ] {
        let instance = bad.create(how.to_owned()).await?;
        let error = instance.result().await.expect_err(how);
        assert!(error.to_string().contains(why), "{how}: {error}");
        assert_eq!(instance.status().await?, InstanceStatus::Errored);
    }
    bad.create("well".to_owned()).await?.result().await?;
    engine.shutdown("5 seconds").await
}
