//! Rounds of hooks: what they take, when they look again, and how they end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use piton::hooks::{HookStatus, Hooks, PollingDispatcher, Processor};
use piton::prelude::*;
use piton::runtime::Runtime;
use piton::store::SqliteStore;
use piton::{EngineBuilder, Span};
use piton_testing::{Harness, StoreKind, VirtualRuntime, on_every_store};

use crate::support::{Gate, Trail, engine_on, settle, until};

on_every_store!(
    suspects_are_handled_one_at_a_time_beside_others,
    suspects_of_two_namespaces_are_handled_one_at_a_time,
    a_tick_takes_as_many_hooks_as_runs_and_comes_to_an_end,
    a_hook_that_falls_due_while_another_is_handled_is_found_at_once,
    a_dispatcher_that_was_woken_knows_what_comes_next,
    a_dispatcher_that_is_stopped_lets_its_handlers_finish,
    a_dispatcher_that_is_dropped_leaves_its_hooks_to_others,
    no_more_handlers_run_at_once_than_allowed,
    two_dispatchers_share_the_hooks_and_run_none_twice,
    twenty_ticks_at_once_run_every_hook_once,
);

/// Marks what it was given; a name that begins with `held` waits at the gate first.
fn held(gate: &Gate, trail: &Trail) -> Hooks {
    held_in("app", gate, trail)
}

fn held_in(namespace: &str, gate: &Gate, trail: &Trail) -> Hooks {
    let (gate, trail) = (gate.clone(), trail.clone());
    Hooks::named(namespace).lease("30 s").timeout("1 hour").on("greet", move |name: String, cx| {
        let (gate, trail) = (gate.clone(), trail.clone());
        async move {
            if name.starts_with("held") {
                gate.pass().await?;
            }
            trail.note(format!("{name} {}", cx.attempt()))
        }
    })
}

async fn harness_with(kind: StoreKind, hooks: Hooks) -> Result<Harness> {
    Harness::with(kind, [], move |builder| builder.hooks(hooks.clone())).await
}

/// Another process on the same store.
async fn other_engine(harness: &Harness, hooks: Hooks) -> Result<Engine> {
    let no_runner = |builder: EngineBuilder| builder.no_runner().hooks(hooks);
    engine_on(harness.store(), harness, [], no_runner).await
}

async fn suspects_are_handled_one_at_a_time_beside_others(kind: StoreKind) -> Result<()> {
    let (gate, trail) = (Gate::new(), Trail::default());
    let harness = harness_with(kind, held(&gate, &trail)).await?;
    let client = harness.engine().hooks();
    for name in ["held 1", "held 2", "held 3"] {
        client.send("greet", name).retry(Retries::none()).await?;
    }
    let processor = client.processor().unwrap();
    for _ in 0..3 {
        tokio::select! {
            done = processor.process() => panic!("the handlers are held: {done:?}"),
            () = async { for _ in 0..3 { gate.arrived().await } } => {}
        }
        // The process dies with all of them in hand.
        harness.advance("30 s");
    }
    client.send("greet", "quick").await?;
    let before = gate.arrivals();
    let (processed, ()) = tokio::join!(processor.process(), async {
        for taken in 1..=3 {
            gate.arrived().await;
            settle(&harness).await.unwrap();
            assert_eq!(gate.arrivals(), before + taken, "no other suspect is in hand");
            assert_eq!(trail.count("quick 1"), 1, "who is above suspicion does not wait");
            gate.open();
        }
    });
    assert_eq!(processed?, 4);
    assert_eq!(trail.seen(), ["quick 1", "held 1 4", "held 2 4", "held 3 4"]);
    Ok(())
}

async fn suspects_of_two_namespaces_are_handled_one_at_a_time(kind: StoreKind) -> Result<()> {
    let (gate, trail) = (Gate::new(), Trail::default());
    let [app, mail] = ["app", "mail"].map(|namespace| held_in(namespace, &gate, &trail));
    let with_both = move |builder: EngineBuilder| builder.hooks(app.clone()).hooks(mail.clone());
    let harness = Harness::with(kind, [], with_both).await?;
    let client = harness.engine().hooks();
    client.send("greet", "held by app").await?;
    client.namespace("mail")?.send("greet", "held by mail").await?;
    let processors = client.processors().unwrap();
    for _ in 0..3 {
        tokio::select! {
            done = processors.process() => panic!("the handlers are held: {done:?}"),
            () = async { for _ in 0..2 { gate.arrived().await } } => {}
        }
        // The process dies with both of them in hand.
        harness.advance("30 s");
    }
    let before = gate.arrivals();
    let opening = async {
        for taken in 1..=2 {
            gate.arrived().await;
            settle(&harness).await.unwrap();
            assert_eq!(gate.arrivals(), before + taken, "the other suspect is not in hand");
            gate.open();
        }
    };
    let processing = async {
        let mut processed = 0;
        // One call handles one of them or, if it is slow to look for the other, both.
        while processed < 2 {
            processed += processors.process().await?;
        }
        Ok::<_, Error>(processed)
    };
    let (processed, ()) = tokio::join!(processing, opening);
    assert_eq!(processed?, 2);
    let mut seen = trail.seen();
    seen.sort();
    assert_eq!(seen, ["held by app 4", "held by mail 4"]);
    Ok(())
}

async fn a_tick_takes_as_many_hooks_as_runs_and_comes_to_an_end(kind: StoreKind) -> Result<()> {
    let trail = Trail::default();
    let engine: Arc<std::sync::OnceLock<Engine>> = Arc::default();
    let (marks, own) = (trail.clone(), Arc::clone(&engine));
    // Each triggers the next, for ever.
    let chain = Hooks::new().on("next", move |number: u32, _| {
        let (marks, own) = (marks.clone(), Arc::clone(&own));
        async move {
            marks.mark(format!("{number}"));
            own.get().unwrap().hooks().send("next", &(number + 1)).await.map(drop)
        }
    });
    let harness = Harness::on(kind, []).await?;
    let ticking = other_engine(&harness, chain).await?;
    assert!(engine.set(ticking.clone()).is_ok());
    for _ in 0..5 {
        ticking.hooks().send("next", &0).await?;
    }
    assert_eq!(ticking.tick(3).await?.hooks, 3);
    assert_eq!(ticking.tick(7).await?.hooks, 7);
    assert_eq!(trail.seen().len(), 10);
    Ok(())
}

async fn a_hook_that_falls_due_while_another_is_handled_is_found_at_once(
    kind: StoreKind,
) -> Result<()> {
    let (gate, trail) = (Gate::new(), Trail::default());
    let harness = harness_with(kind, held(&gate, &trail)).await?;
    let client = harness.engine().hooks();
    client.send("greet", "held").await?;
    let processor = client.processor().unwrap();
    let beside = async {
        gate.arrived().await;
        let due = harness.now().plus(Span::from_millis(500));
        // A hint tells of it now, and nothing when it falls due.
        client.send("greet", "later").process_at(due).await?;
        settle(&harness).await?;
        assert_eq!(trail.count("later 1"), 0);
        harness.advance("500 ms");
        // The look that the hint led to may be under way still, and moments pass before the next: less than the second
        // after which a round looks without a reason.
        for _ in 0..400 {
            settle(&harness).await?;
            if trail.count("later 1") == 1 {
                break;
            }
            harness.advance("1 ms");
        }
        until("it is found", async || Ok(trail.count("later 1") == 1)).await?;
        gate.open();
        Ok::<_, Error>(())
    };
    let (processed, beside) = tokio::join!(processor.process(), beside);
    beside?;
    assert_eq!(processed?, 2);
    Ok(())
}

async fn a_dispatcher_that_was_woken_knows_what_comes_next(kind: StoreKind) -> Result<()> {
    let (gate, trail) = (Gate::new(), Trail::default());
    let harness = Harness::on(kind, []).await?;
    let engine = other_engine(&harness, held(&gate, &trail)).await?;
    let client = engine.hooks();
    let runtime = Arc::clone(harness.runtime()) as _;
    let dispatcher = PollingDispatcher::new(runtime, client.processor().unwrap());
    dispatcher.start();
    settle(&harness).await?;
    let due = harness.now().plus(Span::from_millis(500));
    client.send("greet", "later").process_at(due).await?;
    dispatcher.wake().await;
    harness.advance("500 ms");
    until("it is not left to the next poll", async || Ok(trail.count("later 1") == 1)).await
}

async fn a_dispatcher_that_is_stopped_lets_its_handlers_finish(kind: StoreKind) -> Result<()> {
    let (gate, trail) = (Gate::new(), Trail::default());
    let harness = harness_with(kind, held(&gate, &trail)).await?;
    let client = harness.engine().hooks();
    let id = client.send("greet", "held").await?;
    let runtime = Arc::clone(harness.runtime()) as _;
    let dispatcher = PollingDispatcher::new(runtime, client.processor().unwrap());
    dispatcher.start();
    gate.arrived().await;
    dispatcher.stop();
    gate.open();
    until("its outcome is recorded", async || {
        Ok(client.get(&id).await?.status == HookStatus::Completed)
    })
    .await?;
    let after = client.send("greet", "after the stop").await?;
    harness.advance("1 hour");
    settle(&harness).await?;
    assert_eq!(client.get(&after).await?.status, HookStatus::Pending);
    Ok(())
}

async fn a_dispatcher_that_is_dropped_leaves_its_hooks_to_others(kind: StoreKind) -> Result<()> {
    let (gate, trail) = (Gate::new(), Trail::default());
    let harness = harness_with(kind, held(&gate, &trail)).await?;
    let client = harness.engine().hooks();
    client.send("greet", "held").retry(Retries::none()).await?;
    let runtime = Arc::clone(harness.runtime()) as _;
    let dispatcher = PollingDispatcher::new(runtime, client.processor().unwrap());
    dispatcher.start();
    gate.arrived().await;
    drop(dispatcher);
    gate.open();
    let other = other_engine(&harness, held(&gate, &trail)).await?;
    harness.advance("30 s");
    assert_eq!(other.tick(1).await?.hooks, 1);
    assert_eq!(trail.seen(), ["held 2"], "the first attempt was cut off");
    Ok(())
}

async fn no_more_handlers_run_at_once_than_allowed(kind: StoreKind) -> Result<()> {
    let running = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let (counted, noted) = (Arc::clone(&running), Arc::clone(&most));
    let hooks = Hooks::new().on("greet", move |_: u32, _| {
        let (running, most) = (Arc::clone(&counted), Arc::clone(&noted));
        async move {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
    });
    let harness = harness_with(kind, hooks.concurrency(4)).await?;
    for number in 0..60_u32 {
        harness.engine().hooks().send("greet", &number).await?;
    }
    let processor = harness.engine().hooks().processor().unwrap();
    assert_eq!(processor.process().await?, 60);
    assert_eq!(running.load(Ordering::SeqCst), 0);
    assert!(most.load(Ordering::SeqCst) <= 4, "{most:?} at once");
    Ok(())
}

async fn two_dispatchers_share_the_hooks_and_run_none_twice(kind: StoreKind) -> Result<()> {
    let (gate, trail) = (Gate::new(), Trail::default());
    let harness = Harness::on(kind, []).await?;
    let hooks = |concurrency| held(&gate, &trail).concurrency(concurrency);
    let mut engines = Vec::new();
    for concurrency in [7, 5] {
        let with_hooks = |builder: EngineBuilder| builder.hooks(hooks(concurrency));
        engines.push(engine_on(harness.store(), &harness, [], with_hooks).await?);
    }
    for number in 0..100 {
        engines[number % 2].hooks().send("greet", &format!("{number}")).await?;
    }
    until("all are done", async || {
        // For what one of them was not told of: the next poll finds it.
        harness.advance("100 ms");
        Ok(engines[0].next_wake_at().await?.is_none())
    })
    .await?;
    let mut seen = trail.seen();
    seen.sort();
    seen.dedup();
    assert_eq!((seen.len(), trail.seen().len()), (100, 100));
    Ok(())
}

async fn twenty_ticks_at_once_run_every_hook_once(kind: StoreKind) -> Result<()> {
    let (gate, trail) = (Gate::new(), Trail::default());
    let harness = Harness::on(kind, []).await?;
    let engine = other_engine(&harness, held(&gate, &trail)).await?;
    for number in 0..100 {
        engine.hooks().send("greet", &format!("{number}")).await?;
    }
    let ticks = join_all((0..20).map(|_| engine.tick(10))).await;
    let mut processed = 0;
    for tick in ticks {
        processed += tick?.hooks;
    }
    // One that found the rest locked by others came back empty-handed.
    while engine.next_wake_at().await?.is_some() {
        processed += engine.tick(10).await?.hooks;
    }
    let mut seen = trail.seen();
    seen.sort();
    seen.dedup();
    assert_eq!((processed, seen.len(), trail.seen().len()), (100, 100, 100));
    Ok(())
}

#[tokio::test]
async fn a_hook_cannot_wait_until_after_the_year_9999() -> Result<()> {
    let engine = Engine::builder("memory:").start().await?;
    let send = async |at_ms| {
        let at = Timestamp::from_millis(at_ms);
        engine.hooks().send("greet", "later").process_at(at).await
    };
    send(253_402_300_799_999).await?;
    let refused = send(253_402_300_800_000).await.expect_err("too late");
    assert_eq!(refused.code(), Some("VALIDATION_ERROR"));
    assert!(refused.message().contains("hook \"greet\" cannot wait"), "{refused}");
    Ok(())
}

// ---- shutdown ----

/// An engine with dispatchers in a file of its own.
async fn engine_in(
    directory: &std::path::Path,
    clock: &Arc<VirtualRuntime>,
    hooks: Hooks,
) -> Result<Engine> {
    builder_in(directory, clock).await?.hooks(hooks).start().await
}

async fn builder_in(
    directory: &std::path::Path,
    clock: &Arc<VirtualRuntime>,
) -> Result<EngineBuilder> {
    let path = directory.join("app.db");
    let free = async || Ok(SqliteStore::open(&path, Arc::clone(clock) as _).is_ok());
    until("the file is free", free).await?;
    let store = SqliteStore::open(&path, Arc::clone(clock) as _)?;
    Ok(Engine::builder_with_store(store).runtime(Arc::clone(clock) as _))
}

#[tokio::test]
async fn a_shutdown_lets_handlers_finish_and_takes_nothing_more() -> Result<()> {
    let (directory, clock) = (tempfile::tempdir()?, VirtualRuntime::new(1));
    let (gate, trail) = (Gate::new(), Trail::default());
    let hooks = held(&gate, &trail).concurrency(1);
    let engine = engine_in(directory.path(), &clock, hooks).await?;
    let first = engine.hooks().send("greet", "held").await?;
    gate.arrived().await;
    let second = engine.hooks().send("greet", "not begun").await?;
    let (stopped, ()) = tokio::join!(engine.shutdown("10 s"), async { gate.open() });
    stopped?;
    drop(engine);
    assert_eq!(trail.seen(), ["held 1"]);
    let looking = Hooks::named("other").on("none", |(): (), _| async { Ok(()) });
    let engine = engine_in(directory.path(), &clock, looking).await?;
    assert_eq!(engine.hooks().get(&first).await?.status, HookStatus::Completed);
    let left = engine.hooks().get(&second).await?;
    assert_eq!((left.status, left.attempts), (HookStatus::Pending, 0));
    Ok(())
}

#[tokio::test]
async fn a_shutdown_hands_back_what_does_not_finish_in_time() -> Result<()> {
    let (directory, clock) = (tempfile::tempdir()?, VirtualRuntime::new(1));
    let (gate, trail) = (Gate::new(), Trail::default());
    let engine = engine_in(directory.path(), &clock, held(&gate, &trail)).await?;
    let id = engine.hooks().send("greet", "held").retry(Retries::none()).await?;
    gate.arrived().await;
    let (stopped, ()) = tokio::join!(engine.shutdown("10 s"), async {
        tokio::task::yield_now().await;
        clock.advance(Span::from_millis(10_000));
    });
    stopped?;
    drop(engine);
    assert!(trail.seen().is_empty(), "its handler was dropped");
    let looking = Hooks::named("other").on("none", |(): (), _| async { Ok(()) });
    let engine = engine_in(directory.path(), &clock, looking).await?;
    let left = engine.hooks().get(&id).await?;
    assert_eq!((left.status, left.claims, left.failures), (HookStatus::Pending, 0, 0));
    assert_eq!(left.due_at, Some(clock.now()), "nobody need wait for a lease");
    Ok(())
}

#[tokio::test]
async fn a_shutdown_waits_for_ticks_and_hands_back_what_they_do_not_finish_in_time() -> Result<()> {
    for finishes in [true, false] {
        let (directory, clock) = (tempfile::tempdir()?, VirtualRuntime::new(1));
        let (gate, trail) = (Gate::new(), Trail::default());
        let builder = builder_in(directory.path(), &clock).await?.no_runner();
        let engine = builder.hooks(held(&gate, &trail)).start().await?;
        let id = engine.hooks().send("greet", "held").await?;
        let shutdown = async {
            gate.arrived().await;
            let meanwhile = async {
                tokio::task::yield_now().await;
                match finishes {
                    true => gate.open(),
                    false => clock.advance(Span::from_millis(10_000)),
                }
            };
            tokio::join!(engine.shutdown("10 s"), meanwhile).0
        };
        let (ticked, stopped) = tokio::join!(engine.tick(1), shutdown);
        stopped?;
        assert_eq!(ticked?.hooks, 1, "its store was not closed under it");
        drop(engine);
        let looking = Hooks::named("other").on("none", |(): (), _| async { Ok(()) });
        let engine = engine_in(directory.path(), &clock, looking).await?;
        let left = engine.hooks().get(&id).await?;
        let expected = if finishes { HookStatus::Completed } else { HookStatus::Pending };
        assert_eq!((left.status, left.claims), (expected, 0));
    }
    Ok(())
}
