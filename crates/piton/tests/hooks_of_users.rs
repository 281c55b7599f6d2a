//! Hooks in transactions of the user's own, on both databases, and a hook's way over a restart of its process.

use std::sync::Arc;

use piton::hooks::{HookStatus, Hooks, Processor, trigger};
use piton::prelude::*;
use piton::runtime::TokioRuntime;
use piton::rusqlite::Connection as Sqlite;
use piton::store::{PostgresStore, SqliteStore};
use piton::{EngineBuilder, Span};
use piton_testing::postgres::Scratch;
use piton_testing::{Harness, VirtualRuntime};

use crate::support::{Gate, Trail, engine_on, flow, tick_until_arrived, until};

fn witness(trail: &Trail) -> Hooks {
    let trail = trail.clone();
    Hooks::new().on("user.created", move |email: String, cx| {
        trail.mark(format!("{email} {}", cx.attempt()));
        async { Ok(()) }
    })
}

async fn sqlite_engine(
    path: &std::path::Path,
    clock: &Arc<VirtualRuntime>,
    hooks: Hooks,
) -> Result<Engine> {
    let store = SqliteStore::open(path, Arc::clone(clock) as _)?;
    let builder = Engine::builder_with_store(store).runtime(Arc::clone(clock) as _);
    builder.no_runner().hooks(hooks).start().await
}

#[tokio::test]
async fn a_hook_is_there_exactly_if_the_users_own_sqlite_transaction_commits() -> Result<()> {
    let (directory, clock, trail) =
        (tempfile::tempdir()?, VirtualRuntime::new(1), Trail::default());
    let path = directory.path().join("app.db");
    let engine = sqlite_engine(&path, &clock, witness(&trail)).await?;
    let mut database = Sqlite::open(&path)?;
    database.execute("CREATE TABLE users (email TEXT UNIQUE)", [])?;
    let hooks = engine.hooks();
    let mut sign_up = |email: &str, commit: bool| -> Result<()> {
        let tx = database.transaction()?;
        tx.execute("INSERT INTO users (email) VALUES (?1)", [email])?;
        let later = clock.now().plus(Span::from_millis(60_000));
        hooks.trigger(&tx, "user.created", email).process_at(later).store()?;
        trigger(&tx, "user.created", &format!("{email} by the wall clock")).store()?;
        if commit {
            tx.commit()?
        } else {
            tx.rollback()?
        }
        Ok(())
    };
    use piton::runtime::Runtime;
    sign_up("ada", true)?;
    sign_up("bob", false)?;
    assert!(sign_up("ada", true).is_err(), "rolled back by its constraint");
    assert_eq!(engine.hooks().list().await?.items.len(), 2);
    let processor = engine.hooks().processor().unwrap();
    assert_eq!(processor.process().await?, 0, "not before their time");
    clock.advance(Span::from_millis(60_000));
    assert_eq!(processor.process().await?, 1);
    assert_eq!(trail.seen(), ["ada 1"]);
    let refused = trigger(&database, "not a name", &1).store().unwrap_err();
    assert_eq!(refused.code(), Some("INVALID_HOOK_NAME"));
    Ok(())
}

#[tokio::test]
async fn a_hook_is_there_exactly_if_the_users_own_postgres_transaction_commits() -> Result<()> {
    use piton::sqlx::{Connection, Executor};
    let Some(scratch) = Scratch::new() else { return Ok(()) };
    let trail = Trail::default();
    let store = PostgresStore::open(scratch.options(), TokioRuntime::current()?).await?;
    let builder = Engine::builder_with_store(store).no_runner().hooks(witness(&trail));
    let engine = builder.start().await?;
    let mut conn = scratch.connect().await?;
    conn.execute("CREATE TABLE users (email TEXT)").await?;
    for (email, commit) in [("ada", true), ("bob", false)] {
        let mut tx = conn.begin().await?;
        tx.execute("INSERT INTO users (email) VALUES ('somebody')").await?;
        engine.hooks().trigger(&mut *tx, "user.created", email).store().await?;
        let again = format!("{email} again");
        let alone = trigger(&mut *tx, "user.created", &again).schema(scratch.schema());
        alone.retry(Retries::none()).store().await?;
        if commit { tx.commit().await? } else { tx.rollback().await? }
    }
    let injection = trigger(&mut conn, "user.created", &1).schema("x; DROP TABLE users").store();
    assert!(injection.await.is_err());
    let processor = engine.hooks().processor().unwrap();
    assert_eq!(processor.process().await?, 2);
    let mut seen = trail.seen();
    seen.sort();
    assert_eq!(seen, ["ada 1", "ada again 1"]);
    Ok(())
}

/// The lock file proves that the process is gone: no need to wait for its leases.
#[test]
fn a_sqlite_database_without_hooks_is_told_what_to_do() -> Result<()> {
    let error = trigger(&Sqlite::open_in_memory()?, "user.created", &1).store().unwrap_err();
    assert_eq!(error.code(), Some("STORE_UNUSABLE"));
    assert!(error.message().contains("start an engine on it once"), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_postgres_database_without_hooks_is_told_what_to_do() -> Result<()> {
    use piton::sqlx::{AssertSqlSafe, Connection, Executor};
    let Some(scratch) = Scratch::new() else { return Ok(()) };
    let schema = scratch.schema();
    let mut conn = scratch.connect().await?;
    for there_is_a_schema in [false, true] {
        if there_is_a_schema {
            conn.execute(AssertSqlSafe(format!("CREATE SCHEMA {schema}"))).await?;
        }
        let mut tx = conn.begin().await?;
        let error = trigger(&mut *tx, "user.created", &1).schema(schema).store().await.unwrap_err();
        assert_eq!(error.code(), Some("STORE_UNUSABLE"));
        for part in [schema, "start an engine on it once", "`.schema(..)`"] {
            assert!(error.message().contains(part), "{error}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn hooks_of_a_dead_sqlite_process_are_taken_again_at_once() -> Result<()> {
    let (directory, clock, gate) = (tempfile::tempdir()?, VirtualRuntime::new(1), Gate::new());
    let path = directory.path().join("app.db");
    let door = gate.clone();
    let held = Hooks::new().on("user.created", move |_: String, _| {
        let door = door.clone();
        async move { door.pass().await }
    });
    let engine = sqlite_engine(&path, &clock, held).await?;
    let id = engine.hooks().send("user.created", "ada").await?;
    let processor = engine.hooks().processor().unwrap();
    tokio::select! {
        done = processor.process() => panic!("the handler is held: {done:?}"),
        () = gate.arrived() => {}
    }
    drop((processor, engine));
    let trail = Trail::default();
    let free = async || Ok(SqliteStore::open(&path, Arc::clone(&clock) as _).is_ok());
    until("the file is free", free).await?;
    let engine = sqlite_engine(&path, &clock, witness(&trail)).await?;
    let processor = engine.hooks().processor().unwrap();
    assert_eq!(processor.process().await?, 1);
    assert_eq!(trail.seen(), ["ada 2"], "the attempt that was cut off counts");
    assert_eq!(engine.hooks().get(&id).await?.status, HookStatus::Completed);
    Ok(())
}

/// A host that dispatches by itself: the engine tells it what can go on, and it ticks.
#[tokio::test]
async fn a_host_without_a_runner_is_driven_by_its_hooks_alone() -> Result<()> {
    let harness = Harness::memory([]).await?;
    let nap = flow("nap", &(), |(), _: Event<()>, step| {
        Box::pin(async move { step.sleep("a while", "1 hour").await })
    });
    let engine: Arc<std::sync::OnceLock<Engine>> = Arc::default();
    let host = Arc::clone(&engine);
    let hooks = Hooks::new().on_workflow_enqueued(move |news, _| {
        let engine = host.get().unwrap().clone();
        async move {
            let workflow =
                engine.workflow::<serde_json::Value, serde_json::Value>(&news.workflow_name)?;
            workflow.get(&news.instance_id).await?.tick().await?;
            Ok(())
        }
    });
    let no_runner = |builder: EngineBuilder| builder.no_runner().hooks(hooks);
    let started = engine_on(harness.store(), &harness, [nap], no_runner).await?;
    assert!(engine.set(started.clone()).is_ok());
    let instance = started.workflow::<(), ()>("nap")?.create(()).await?;
    let processor = started.hooks().processor().unwrap();
    while let Some(at) = processor.next_wake_at().await? {
        harness.runtime().advance(at.since(harness.now()).max(Span::ZERO));
        processor.process().await?;
    }
    instance.result().await
}

/// Nothing is committed when a lease runs out: a host without a runner follows `next_wake_at` for that.
#[tokio::test]
async fn a_run_whose_process_died_is_told_by_next_wake_at_and_by_no_hook() -> Result<()> {
    let (harness, gate, trail) = (Harness::memory([]).await?, Gate::new(), Trail::default());
    let start = async || {
        let held = flow("held", &gate, |gate, _: Event<()>, step| {
            Box::pin(async move { step.run("wait", async { gate.pass().await }).await })
        });
        let told = trail.clone();
        let hooks = Hooks::new().on_workflow_enqueued(move |news, _| {
            told.mark(news.reason);
            async { Ok(()) }
        });
        let no_runner = |builder: EngineBuilder| builder.no_runner().hooks(hooks);
        engine_on(harness.store(), &harness, [held], no_runner).await
    };
    let first = start().await?;
    let id = first.workflow::<(), ()>("held")?.create(()).await?.id().to_owned();
    drop(tick_until_arrived(&first, &gate).await?);
    drop(first);

    let second = start().await?;
    let processor = second.hooks().processor().unwrap();
    assert_eq!(processor.process().await?, 1);
    let lease_ends = second.next_wake_at().await?.unwrap();
    harness.runtime().advance(lease_ends.since(harness.now()));
    assert_eq!(processor.process().await?, 0);
    assert_eq!(trail.seen(), ["create"]);
    gate.open();
    assert_eq!(second.tick(1).await?.processed, 1);
    second.workflow::<(), ()>("held")?.get(&id).await?.result().await
}
