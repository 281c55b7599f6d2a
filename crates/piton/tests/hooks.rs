//! Hooks: there exactly if their transaction committed, processed at least once, retried as they say.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use piton::hooks::{Hook, HookRecord, HookStatus, Hooks, Processor};
use piton::prelude::*;
use piton::{EngineBuilder, Registration, Span};
use piton_testing::{Access, Harness, StoreKind, on_every_store};

use crate::support::{Gate, Trail, engine_on, eventually, flow, until};

on_every_store!(
    a_hook_of_a_step_is_there_exactly_if_the_step_completed,
    a_hook_goes_with_the_create_and_the_event_it_was_given_to,
    a_hook_is_retried_as_it_says_and_kept_with_its_last_error,
    a_failed_hook_is_retried_by_hand_with_the_same_key,
    what_cannot_work_fails_and_says_why,
    a_hook_whose_process_died_is_taken_again_after_its_lease,
    a_hook_is_not_processed_before_its_time,
    next_wake_at_is_now_or_the_earliest_or_none_and_counts_stuck_hooks,
    a_handler_that_takes_its_time_keeps_its_lease_and_holds_up_nobody,
    a_handler_past_its_timeout_is_dropped_and_retried,
    a_handler_that_panics_as_it_is_dropped_has_failed,
    what_is_in_hand_outlives_failures_of_the_store,
    engine_hooks_are_retried_as_their_namespace_says,
    old_hooks_are_removed_without_a_runner_too,
    two_processes_share_the_hooks_and_run_none_twice,
    completed_hooks_are_removed_after_a_while_and_failed_ones_are_kept,
    namespaces_are_processed_by_themselves,
    lists_are_newest_first_and_pages_miss_nothing,
    the_engine_tells_of_every_end_once,
    the_engine_tells_of_every_run_that_can_go_on,
    nothing_is_stored_where_nobody_asked,
    a_dispatcher_in_the_same_process_needs_no_poll,
);

/// Says what it was given, and fails as long as it is told to.
fn witness(trail: &Trail, failures: u32) -> Hooks {
    let trail = trail.clone();
    Hooks::new().on("greet", move |name: String, cx| {
        let trail = trail.clone();
        async move {
            trail.mark(format!("{name} {}", cx.attempt()));
            if cx.attempt() <= failures {
                return Err(Error::new(format!("no luck {}", cx.attempt())));
            }
            Ok(())
        }
    })
}

async fn harness_with(kind: StoreKind, hooks: Hooks) -> Result<Harness> {
    Harness::with(kind, [], move |builder| builder.hooks(hooks.clone())).await
}

async fn all(engine: &Engine) -> Result<Vec<HookRecord>> {
    Ok(engine.hooks().list().all_namespaces().page_size(100).await?.items)
}

async fn process(engine: &Engine) -> Result<usize> {
    engine.hooks().processor().unwrap().process().await
}

// ---- what is stored ----

async fn a_hook_of_a_step_is_there_exactly_if_the_step_completed(kind: StoreKind) -> Result<()> {
    let trail = Trail::default();
    let order = flow("order", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            step.run_with("pay", |cx| async move {
                let attempt = cx.attempt();
                cx.transaction().trigger_hook(Hook::new("greet", &format!("paid {attempt}")))?;
                if attempt == 1 {
                    return Err(Error::new("the first one fails"));
                }
                Ok(())
            })
            .await?;
            step.sleep("replay", "1 hour").await
        })
    });
    let hooks = witness(&trail, 0);
    let configure = move |builder: EngineBuilder| builder.hooks(hooks.clone()).parked_runs(0);
    let harness = Harness::with(kind, [order], configure).await?;
    harness.create::<_, ()>("order", ()).await?;
    harness.run_to_end().await?;
    assert_eq!(trail.seen(), ["paid 2 1"], "one hook, of the attempt that succeeded");
    assert_eq!(all(harness.engine()).await?.len(), 1);
    Ok(())
}

fn waiter() -> Registration {
    flow("waiter", &(), |(), _: Event<()>, step| {
        Box::pin(async move { step.wait_for_event::<u32>("go", "go").await })
    })
}

async fn a_hook_goes_with_the_create_and_the_event_it_was_given_to(kind: StoreKind) -> Result<()> {
    let trail = Trail::default();
    let hooks = witness(&trail, 0);
    let harness =
        Harness::with(kind, [waiter()], move |builder| builder.hooks(hooks.clone())).await?;
    let waiters = harness.workflow::<(), u32>("waiter")?;
    let created = waiters.create(()).id("a").hook(Hook::new("greet", "created")).await?;
    let again = waiters.create(()).id("a").hook(Hook::new("greet", "created again")).await;
    assert_eq!(again.unwrap_err().code(), Some("INSTANCE_ID_ALREADY_EXISTS"));
    for _ in 0..2 {
        let event = created.send_event("go", &1).idempotency_key("k");
        event.hook(Hook::new("greet", "sent")).await?;
    }
    harness.run_to_end().await?;
    let late = created.send_event("go", &1).hook(Hook::new("greet", "too late")).await;
    assert_eq!(late.unwrap_err().code(), Some("INSTANCE_TERMINAL"));
    harness.run_to_end().await?;
    assert_eq!(trail.seen(), ["created 1", "sent 1"]);
    let wrong = created.send_event("go", &1).hook(Hook::new("no spaces", "x")).await;
    assert_eq!(wrong.unwrap_err().code(), Some("INVALID_HOOK_NAME"));
    Ok(())
}

// ---- retries ----

async fn a_hook_is_retried_as_it_says_and_kept_with_its_last_error(kind: StoreKind) -> Result<()> {
    let keys = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&keys);
    let hooks = Hooks::new().on("doomed", move |(): (), cx| {
        noted.lock().unwrap().push((cx.idempotency_key().to_owned(), cx.attempt()));
        async move { Err(Error::new(format!("attempt {}", cx.attempt())).named("Doomed")) }
    });
    let harness = harness_with(kind, hooks).await?;
    let client = harness.engine().hooks();
    let id = client.send("doomed", &()).retry(Retries::linear(2, "10 s").cap("15 s")).await?;
    let began = harness.now();
    let mut moments = Vec::new();
    while let Some(at) = harness.advance_to_next_wake().await? {
        moments.push(at.max(began).since(began).as_millis());
        harness.run_until_idle().await?;
    }
    assert_eq!(moments, [0, 10_000, 25_000], "10 seconds, then 20 cut to 15");
    let failed = client.get(&id).await?;
    assert_eq!((failed.status, failed.attempts, failed.due_at), (HookStatus::Failed, 3, None));
    let error = failed.error.unwrap();
    assert_eq!((&*error.name, &*error.message), ("Doomed", "attempt 3"));
    let listed = client.list().status(HookStatus::Failed).await?.items;
    assert_eq!(listed.len(), 1);
    let expected: Vec<_> = (1..=3).map(|attempt| (id.clone(), attempt)).collect();
    assert_eq!(*keys.lock().unwrap(), expected, "one key");
    Ok(())
}

async fn a_failed_hook_is_retried_by_hand_with_the_same_key(kind: StoreKind) -> Result<()> {
    let trail = Trail::default();
    let marks = trail.clone();
    let hooks = Hooks::new().on("greet", move |fails: u32, cx| {
        let count = marks.count(cx.idempotency_key());
        marks.mark(cx.idempotency_key());
        async move { if count < fails as usize { Err(Error::new("not yet")) } else { Ok(()) } }
    });
    let harness = harness_with(kind, hooks).await?;
    let client = harness.engine().hooks();
    let id = client.send("greet", &1).retry(Retries::none()).await?;
    harness.run_until_idle().await?;
    assert_eq!(client.get(&id).await?.status, HookStatus::Failed);
    let retried = client.retry(&id).await?;
    assert_eq!((retried.status, retried.attempts), (HookStatus::Pending, 0));
    harness.run_until_idle().await?;
    let done = client.get(&id).await?;
    assert_eq!((done.status, done.error), (HookStatus::Completed, None));
    assert_eq!(trail.count(&id), 2, "the same key both times");
    let refused = client.retry(&id).await.unwrap_err();
    assert_eq!(refused.code(), Some("HOOK_NOT_RETRIABLE"));
    assert_eq!(client.retry("hook_none").await.unwrap_err().code(), Some("HOOK_NOT_FOUND"));
    let later = harness.now().plus(Span::from_millis(60_000));
    let waiting = client.send("greet", &0).process_at(later).await?;
    client.retry(&waiting).await?;
    harness.run_until_idle().await?;
    assert_eq!(client.get(&waiting).await?.status, HookStatus::Completed, "need not wait");
    Ok(())
}

async fn what_cannot_work_fails_and_says_why(kind: StoreKind) -> Result<()> {
    let hooks = Hooks::new()
        .on("number", |_: u32, _| async { Ok(()) })
        .on("panics", |(): (), _| async { panic!("oh no") })
        .on("panics.early", |(): (), _| -> std::future::Ready<Result<()>> { panic!("at once") })
        .on("declined", |(): (), _| async { Err(Error::non_retryable("card declined")) });
    let harness = harness_with(kind, hooks).await?;
    let client = harness.engine().hooks();
    let once = || Retries::none();
    let ids = [
        (client.send("nobody", &()).retry(once()).await?, "no handler for hook \"nobody\""),
        (client.send("number", "text").await?, "the payload of hook \"number\" does not decode"),
        (client.send("panics", &()).retry(once()).await?, "oh no"),
        (client.send("panics.early", &()).retry(once()).await?, "at once"),
        (client.send("declined", &()).await?, "card declined"),
    ];
    harness.run_until_idle().await?;
    for (id, why) in ids {
        let hook = client.get(&id).await?;
        assert_eq!((hook.status, hook.attempts), (HookStatus::Failed, 1), "{hook:?}");
        let message = hook.error.unwrap().message;
        assert!(message.contains(why), "{message}");
    }
    let unknown = client.send("nobody", &()).retry(Retries::constant(1, "1 s")).await?;
    harness.run_until_idle().await?;
    let waits = client.get(&unknown).await?;
    assert_eq!(waits.status, HookStatus::Pending, "a deploy may bring the handler");
    assert_eq!(waits.error.unwrap().name, "UnknownHook");
    Ok(())
}

// ---- leases ----

async fn a_hook_whose_process_died_is_taken_again_after_its_lease(kind: StoreKind) -> Result<()> {
    let (trail, gate) = (Trail::default(), Gate::new());
    let held = |gate: &Gate, trail: &Trail| {
        let (gate, trail) = (gate.clone(), trail.clone());
        Hooks::new().lease("30 s").on("greet", move |(): (), cx| {
            let (gate, trail) = (gate.clone(), trail.clone());
            async move {
                trail.mark(format!("attempt {}", cx.attempt()));
                gate.pass().await
            }
        })
    };
    let harness = harness_with(kind, held(&gate, &trail)).await?;
    let client = harness.engine().hooks();
    let id = client.send("greet", &()).retry(Retries::none()).await?;
    let processor = client.processor().unwrap();
    tokio::select! {
        done = processor.process() => panic!("the handler is held: {done:?}"),
        () = gate.arrived() => {}
    }
    let (hooks, no_runner) = (held(&gate, &trail), EngineBuilder::no_runner);
    let other =
        engine_on(harness.store(), &harness, [], |builder| no_runner(builder).hooks(hooks)).await?;
    harness.advance("29 s");
    assert_eq!(process(&other).await?, 0, "the lease has not run out");
    harness.advance("1 s");
    gate.open();
    assert_eq!(process(&other).await?, 1);
    let done = client.get(&id).await?;
    assert_eq!((done.status, done.attempts), (HookStatus::Completed, 2), "the lost one counts");
    assert_eq!(trail.seen(), ["attempt 1", "attempt 2"]);
    Ok(())
}

async fn a_handler_that_takes_its_time_keeps_its_lease_and_holds_up_nobody(
    kind: StoreKind,
) -> Result<()> {
    let (trail, gate) = (Trail::default(), Gate::new());
    let (marks, door) = (trail.clone(), gate.clone());
    let hooks = Hooks::new().lease("6 s").timeout("1 hour").on("greet", move |slow: bool, _| {
        let (marks, door) = (marks.clone(), door.clone());
        async move {
            if slow {
                door.pass().await?;
            }
            marks.note(if slow { "slow" } else { "quick" })
        }
    });
    let harness = harness_with(kind, hooks).await?;
    let client = harness.engine().hooks();
    client.send("greet", &true).await?;
    let processor = client.processor().unwrap();
    let mut round = std::pin::pin!(processor.process());
    tokio::select! {
        done = &mut round => panic!("the handler is held: {done:?}"),
        () = gate.arrived() => {}
    }
    let beside = async {
        client.send("greet", &false).await?;
        until("the quick one is done", async || Ok(trail.count("quick") == 1)).await?;
        for _ in 0..20 {
            harness.advance("1 s");
            eventually("a renewal", || async {
                let store = harness.store();
                let (now, next) = store.hooks().unwrap().next_hook_at(app()).await?;
                let renewed = next.filter(|at| at.since(now) > Span::from_millis(2_000));
                // The round may have begun to wait only now: its time must come, too.
                harness.advance("1 ms");
                Ok(renewed)
            })
            .await?;
        }
        gate.open();
        Ok::<_, Error>(())
    };
    let (processed, beside) = tokio::join!(&mut round, beside);
    beside?;
    assert_eq!(processed?, 2);
    assert_eq!(trail.seen(), ["quick", "slow"]);
    let attempts: Vec<_> = all(harness.engine()).await?.iter().map(|hook| hook.attempts).collect();
    assert_eq!(attempts, [1, 1], "nobody took it over");
    Ok(())
}

fn app() -> Arc<[piton::hooks::HookNamespace]> {
    [piton::hooks::HookNamespace::from_stored("app")].into()
}

async fn a_handler_past_its_timeout_is_dropped_and_retried(kind: StoreKind) -> Result<()> {
    let gate = Gate::new();
    let door = gate.clone();
    let hooks = Hooks::new().timeout("5 s").on("hang", move |(): (), _| {
        let door = door.clone();
        async move { door.pass().await }
    });
    let harness = harness_with(kind, hooks).await?;
    let client = harness.engine().hooks();
    let id = client.send("hang", &()).retry(Retries::constant(1, "1 s")).await?;
    let processor = client.processor().unwrap();
    let (processed, ()) = tokio::join!(processor.process(), async {
        gate.arrived().await;
        harness.advance("5 s");
    });
    assert_eq!(processed?, 1);
    let waiting = client.get(&id).await?;
    assert_eq!(waiting.status, HookStatus::Pending);
    assert_eq!(waiting.error.unwrap().name, "HookTimeout");
    Ok(())
}

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("a handler that cannot be dropped");
    }
}

async fn a_handler_that_panics_as_it_is_dropped_has_failed(kind: StoreKind) -> Result<()> {
    let gate = Gate::new();
    let door = gate.clone();
    let hooks = Hooks::new().timeout("5 s").on("hang", move |(): (), _| {
        let door = door.clone();
        async move {
            let _bomb = Bomb;
            door.pass().await
        }
    });
    let harness = harness_with(kind, hooks).await?;
    let client = harness.engine().hooks();
    let id = client.send("hang", &()).retry(Retries::none()).await?;
    let processor = client.processor().unwrap();
    let (processed, ()) = tokio::join!(processor.process(), async {
        gate.arrived().await;
        harness.advance("5 s");
    });
    assert_eq!(processed?, 1);
    let failed = client.get(&id).await?;
    assert_eq!(failed.status, HookStatus::Failed);
    assert_eq!(failed.error.unwrap().name, "HookBrokeOff");
    Ok(())
}

async fn what_is_in_hand_outlives_failures_of_the_store(kind: StoreKind) -> Result<()> {
    let (trail, gate) = (Trail::default(), Gate::new());
    let (marks, door) = (trail.clone(), gate.clone());
    let hooks =
        Hooks::new().lease("1 hour").timeout("1 day").on("greet", move |name: String, _| {
            let (marks, door) = (marks.clone(), door.clone());
            async move {
                door.pass().await?;
                marks.note(name)
            }
        });
    let harness = harness_with(kind, Hooks::new()).await?;
    let access = Access::to(harness.store());
    let no_runner = |builder: EngineBuilder| builder.no_runner().hooks(hooks);
    let engine = engine_on(Arc::clone(&access) as _, &harness, [], no_runner).await?;
    let client = engine.hooks();
    access.fail_hooks(1);
    assert!(process(&engine).await.is_err(), "nothing is in hand: whoever asked tries again");
    client.send("greet", "ada").await?;
    client.send("greet", "bob").await?;
    let rest = async {
        gate.arrived().await;
        gate.arrived().await;
        access.fail_hooks(3);
        gate.open();
        until("one is recorded", async || {
            harness.advance("100 ms");
            let done = |hook: &HookRecord| hook.status == HookStatus::Completed;
            Ok(all(&engine).await?.iter().any(done))
        })
        .await?;
        gate.open();
        Ok::<_, Error>(())
    };
    let (processed, rested) = tokio::join!(process(&engine), rest);
    rested?;
    assert_eq!(processed?, 2);
    assert_eq!(trail.seen().len(), 2);
    assert!(all(&engine).await?.iter().all(|hook| hook.attempts == 1));
    Ok(())
}

async fn engine_hooks_are_retried_as_their_namespace_says(kind: StoreKind) -> Result<()> {
    let ok = |_, _| std::future::ready(Ok(()));
    let many = Hooks::named("many").engine_retries(Retries::constant(7, "1 s"));
    let few = Hooks::named("few").engine_retries(Retries::none());
    let (many, few) = (many.on_instance_completed(ok), few.on_instance_terminated(ok));
    let both = move |builder: EngineBuilder| builder.hooks(many.clone()).hooks(few.clone());
    let harness = Harness::with(kind, [waiter()], both).await?;
    let waiters = harness.workflow::<(), u32>("waiter")?;
    waiters.create(()).id("a").await?.send_event("go", &1).await?;
    waiters.create(()).id("b").await?.terminate().await?;
    harness.run_to_end().await?;
    let hooks = all(harness.engine()).await?;
    let mut attempts: Vec<_> = hooks
        .iter()
        .map(|hook| (hook.namespace.to_string(), hook.retries.attempts_max()))
        .collect();
    attempts.sort();
    assert_eq!(attempts, [("few".to_owned(), Some(1)), ("many".to_owned(), Some(8))]);
    Ok(())
}

async fn old_hooks_are_removed_without_a_runner_too(kind: StoreKind) -> Result<()> {
    let trail = Trail::default();
    let harness = harness_with(kind, Hooks::new()).await?;
    let hooks = witness(&trail, 0).keep_completed("1 hour");
    let no_runner = |builder: EngineBuilder| builder.no_runner().hooks(hooks);
    let engine = engine_on(harness.store(), &harness, [], no_runner).await?;
    engine.hooks().send("greet", "old").await?;
    assert_eq!(engine.tick(10).await?.hooks, 1);
    harness.advance("1 hour");
    engine.hooks().send("greet", "new").await?;
    assert_eq!(engine.tick(10).await?.hooks, 1);
    assert_eq!(all(&engine).await?.len(), 1, "the new one");
    Ok(())
}

async fn two_processes_share_the_hooks_and_run_none_twice(kind: StoreKind) -> Result<()> {
    let trail = Trail::default();
    let harness = harness_with(kind, witness(&trail, 0).concurrency(7)).await?;
    let (hooks, no_runner) = (witness(&trail, 0).concurrency(5), EngineBuilder::no_runner);
    let other =
        engine_on(harness.store(), &harness, [], |builder| no_runner(builder).hooks(hooks)).await?;
    for number in 0..100 {
        harness.engine().hooks().send("greet", &format!("{number}")).await?;
    }
    let (mine, theirs) = tokio::join!(process(harness.engine()), process(&other));
    assert_eq!(mine? + theirs?, 100);
    let mut seen = trail.seen();
    seen.sort();
    seen.dedup();
    assert_eq!((seen.len(), trail.seen().len()), (100, 100));
    Ok(())
}

// ---- time ----

async fn a_hook_is_not_processed_before_its_time(kind: StoreKind) -> Result<()> {
    let trail = Trail::default();
    let harness = harness_with(kind, witness(&trail, 1)).await?;
    let client = harness.engine().hooks();
    let (past, future) = (harness.now().plus(Span::from_millis(-5_000)), harness.now());
    let future = future.plus(Span::from_millis(60_000));
    client.send("greet", "past").process_at(past).retry(Retries::none()).await?;
    client.send("greet", "future").process_at(future).retry(Retries::constant(1, "1 s")).await?;
    harness.run_until_idle().await?;
    assert_eq!(trail.seen(), ["past 1"]);
    harness.advance("59999 ms");
    harness.run_until_idle().await?;
    assert_eq!(trail.seen(), ["past 1"]);
    harness.advance("1 ms");
    harness.run_until_idle().await?;
    assert_eq!(trail.seen(), ["past 1", "future 1"]);
    harness.advance("1 s");
    harness.run_until_idle().await?;
    assert_eq!(trail.seen(), ["past 1", "future 1", "future 2"], "a retry has its own delay");
    Ok(())
}

async fn next_wake_at_is_now_or_the_earliest_or_none_and_counts_stuck_hooks(
    kind: StoreKind,
) -> Result<()> {
    let gate = Gate::new();
    let door = gate.clone();
    let hooks = Hooks::new().lease("30 s").on("greet", move |(): (), _| {
        let door = door.clone();
        async move { door.pass().await }
    });
    let harness = harness_with(kind, hooks).await?;
    let client = harness.engine().hooks();
    let processor = client.processor().unwrap();
    assert_eq!(processor.next_wake_at().await?, None);
    let at = |ms| harness.now().plus(Span::from_millis(ms));
    client.send("greet", &()).process_at(at(90_000)).await?;
    client.send("greet", &()).process_at(at(60_000)).await?;
    assert_eq!(processor.next_wake_at().await?, Some(at(60_000)));
    assert_eq!(harness.engine().next_wake_at().await?, Some(at(60_000)), "the engine knows too");
    client.send("greet", &()).await?;
    assert_eq!(processor.next_wake_at().await?, Some(harness.now()));
    tokio::select! {
        done = processor.process() => panic!("the handler is held: {done:?}"),
        () = gate.arrived() => {}
    }
    assert_eq!(processor.next_wake_at().await?, Some(at(30_000)), "the lease of a stuck one");
    Ok(())
}

// ---- keeping and listing ----

async fn completed_hooks_are_removed_after_a_while_and_failed_ones_are_kept(
    kind: StoreKind,
) -> Result<()> {
    let trail = Trail::default();
    let harness = harness_with(kind, witness(&trail, 0).keep_completed("1 hour")).await?;
    let client = harness.engine().hooks();
    client.send("greet", "done").await?;
    client.send("nobody", &()).retry(Retries::none()).await?;
    harness.run_until_idle().await?;
    let processor = client.processor().unwrap();
    harness.advance("59 minutes");
    assert_eq!(processor.prune().await?, 0);
    harness.advance("1 minute");
    assert_eq!(processor.prune().await?, 1);
    let left: Vec<_> = all(harness.engine()).await?.iter().map(|hook| hook.status).collect();
    assert_eq!(left, [HookStatus::Failed]);

    let at_once = harness_with(kind, witness(&trail, 0).keep_completed(0)).await?;
    at_once.engine().hooks().send("greet", "gone").await?;
    at_once.run_until_idle().await?;
    assert!(all(at_once.engine()).await?.is_empty());
    assert_eq!(trail.count("gone 1"), 1);
    Ok(())
}

async fn namespaces_are_processed_by_themselves(kind: StoreKind) -> Result<()> {
    let trail = Trail::default();
    let named = |namespace: &str| {
        let trail = trail.clone();
        Hooks::named(namespace).on("greet", move |name: String, cx| {
            trail.mark(format!("{name} {}", cx.namespace()));
            async { Ok(()) }
        })
    };
    let (mail, audit) = (named("mail"), named("audit"));
    let harness =
        Harness::with(kind, [], move |builder| builder.hooks(mail.clone()).hooks(audit.clone()))
            .await?;
    let client = harness.engine().hooks();
    let (mail, audit) = (client.namespace("mail")?, client.namespace("audit")?);
    mail.send("greet", "a").await?;
    client.send("greet", "b").namespace("audit").await?;
    assert!(client.processor().is_none(), "nobody handles `app` here");
    assert_eq!(mail.processor().unwrap().process().await?, 1);
    assert_eq!(trail.seen(), ["a mail"]);
    let group = client.processors().unwrap();
    assert_eq!(group.namespace(), "mail,audit");
    assert_eq!(group.process().await?, 1);
    assert_eq!(trail.seen(), ["a mail", "b audit"]);
    assert_eq!(mail.list().await?.items.len(), 1);
    assert_eq!(audit.list().await?.items.len(), 1);
    let refused = client.send("greet", "c").namespace("no name").await.unwrap_err();
    assert_eq!(refused.code(), Some("INVALID_HOOK_NAME"));
    Ok(())
}

async fn lists_are_newest_first_and_pages_miss_nothing(kind: StoreKind) -> Result<()> {
    let harness = harness_with(kind, witness(&Trail::default(), 0)).await?;
    let client = harness.engine().hooks();
    let mut ids = Vec::new();
    for number in 0..7 {
        let name = if number % 2 == 0 { "greet" } else { "other" };
        ids.push(client.send(name, &format!("{number}")).await?);
    }
    ids.reverse();
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let mut list = client.list().page_size(3);
        if let Some(cursor) = cursor.take() {
            list = list.after(cursor);
        }
        let page = list.await?;
        seen.extend(page.items.iter().map(|hook| hook.id.to_string()));
        if !page.has_next_page {
            break;
        }
        cursor = page.cursor;
    }
    assert_eq!(seen, ids);
    assert_eq!(client.list().name("other").await?.items.len(), 3);
    assert_eq!(client.list().status(HookStatus::Failed).await?.items.len(), 0);
    let cursor = client.list().page_size(1).await?.cursor.unwrap();
    let foreign = client.list().name("greet").after(cursor).await.unwrap_err();
    assert_eq!(foreign.code(), Some("INVALID_CURSOR"));
    Ok(())
}

// ---- what the engine tells ----

/// The names of all hooks with how many there are.
async fn counts(engine: &Engine) -> Result<BTreeMap<String, usize>> {
    let mut counts = BTreeMap::new();
    for hook in all(engine).await? {
        *counts.entry(hook.name.to_string()).or_default() += 1;
    }
    Ok(counts)
}

async fn the_engine_tells_of_every_end_once(kind: StoreKind) -> Result<()> {
    let trail = Trail::default();
    let note = |what: &'static str| {
        let trail = trail.clone();
        move |news: piton::hooks::InstanceNews, _| {
            let error = news.error.map_or(String::new(), |error| format!(" {}", error.message));
            trail.mark(format!("{what} {} {}{error}", news.instance_id, news.run_number));
            std::future::ready(Ok(()))
        }
    };
    let hooks = Hooks::new()
        .on_instance_completed(note("completed"))
        .on_instance_errored(note("errored"))
        .on_instance_terminated(note("terminated"))
        .on_instance_restarted(note("restarted"));
    let job = flow("job", &(), |(), fails: Event<bool>, step| {
        Box::pin(async move {
            step.sleep("wait", "1 hour").await?;
            if *fails { Err(Error::non_retryable("as asked")) } else { Ok(()) }
        })
    });
    let harness =
        Harness::with(kind, [job], move |builder| builder.hooks(hooks.clone()).parked_runs(0))
            .await?;
    let jobs = harness.workflow::<bool, ()>("job")?;
    let good = jobs.create(false).id("good").await?;
    jobs.create(true).id("bad").await?;
    let ended = jobs.create(false).id("ended").await?;
    harness.run_until_idle().await?;
    ended.terminate().await?;
    assert!(ended.terminate().await.is_err());
    harness.run_to_end().await?;
    good.restart().await?;
    harness.run_to_end().await?;
    let mut seen = trail.seen();
    seen.sort();
    let expected = [
        "completed good 0",
        "completed good 1",
        "errored bad 0 as asked",
        "restarted good 1",
        "terminated ended 0",
    ];
    assert_eq!(seen, expected);
    assert_eq!(all(harness.engine()).await?.len(), expected.len(), "one record each");
    Ok(())
}

async fn the_engine_tells_of_every_run_that_can_go_on(kind: StoreKind) -> Result<()> {
    let job = flow("job", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            step.run_with("flaky", |cx| async move {
                if cx.attempt() == 1 { Err(Error::new("once")) } else { Ok(()) }
            })
            .retries(Retries::constant(1, "10 s"))
            .await?;
            step.wait_for_event::<u32>("go", "go").timeout("1 hour").await
        })
    });
    let hooks = Hooks::new().on_workflow_enqueued(|_, _| async { Ok(()) });
    let harness =
        Harness::with(kind, [job], move |builder| builder.hooks(hooks.clone()).parked_runs(0))
            .await?;
    let jobs = harness.workflow::<(), u32>("job")?;
    let instance = jobs.create(()).id("a").await?;
    let seen = async || -> Result<Vec<(String, i64)>> {
        let mut hooks = all(harness.engine()).await?;
        hooks.reverse();
        let outline = |hook: &HookRecord| {
            let payload: serde_json::Value = serde_json::from_str(hook.payload.as_str()).unwrap();
            assert_eq!(
                (&payload["workflowName"], &payload["instanceId"]),
                (&"job".into(), &"a".into())
            );
            let due = hook.due_at.map_or(0, |at| at.since(hook.created_at).as_millis());
            (payload["reason"].as_str().unwrap().to_owned(), due)
        };
        Ok(hooks.iter().map(outline).collect())
    };
    let tick = async || instance.tick().await;
    let entry = |reason: &str, due: i64| (reason.to_owned(), due);
    assert_eq!(seen().await?, [entry("create", 0)]);
    tick().await?;
    assert_eq!(seen().await?.last(), Some(&entry("retry", 10_000)), "told of when it is due");
    harness.advance("10 s");
    tick().await?;
    assert_eq!(seen().await?.last(), Some(&entry("wake", 3_600_000)));
    instance.pause().await?;
    instance.resume().await?;
    assert_eq!(seen().await?.last(), Some(&entry("resume", 0)));
    tick().await?;
    assert_eq!(seen().await?.last(), Some(&entry("wake", 3_600_000)));
    instance.send_event("go", &7).await?;
    assert_eq!(seen().await?.last(), Some(&entry("event", 0)));
    tick().await?;
    instance.restart().await?;
    assert_eq!(seen().await?.last(), Some(&entry("create", 0)));
    assert_eq!(counts(harness.engine()).await?, [("on_workflow_enqueued".to_owned(), 7)].into());
    Ok(())
}

async fn nothing_is_stored_where_nobody_asked(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [waiter()]).await?;
    let instance = harness.create::<_, u32>("waiter", ()).await?;
    harness.run_until_idle().await?;
    instance.restart().await?;
    instance.terminate().await?;
    assert!(all(harness.engine()).await?.is_empty());
    Ok(())
}

async fn a_dispatcher_in_the_same_process_needs_no_poll(kind: StoreKind) -> Result<()> {
    let trail = Trail::default();
    let harness = Harness::on(kind, []).await?;
    let hooks = witness(&trail, 0);
    let engine =
        engine_on(harness.store(), &harness, [], move |builder| builder.hooks(hooks.clone()))
            .await?;
    for name in ["a", "b"] {
        engine.hooks().send("greet", name).await?;
        let done = format!("{name} 1");
        // Time stands still: only a hint can have told of it.
        until(&done, async || Ok(trail.count(&done) == 1)).await?;
    }
    let later = harness.now().plus(Span::from_millis(2_000));
    engine.hooks().send("greet", "c").process_at(later).await?;
    until("it knows when to wake", async || {
        harness.advance("1 ms");
        Ok(trail.count("c 1") == 1)
    })
    .await?;
    assert!(harness.now() >= later);
    Ok(())
}

#[tokio::test]
async fn what_is_configured_wrongly_is_refused() {
    let start = async |hooks: Vec<Hooks>| {
        let builder = Engine::builder("memory:");
        let started = hooks.into_iter().fold(builder, EngineBuilder::hooks).start().await;
        started.unwrap_err().to_string()
    };
    let on = |name: &str| Hooks::new().on(name, |(): (), _| async { Ok(()) });
    let ended = || Hooks::named("other").on_instance_completed(|_, _| async { Ok(()) });
    for (hooks, why) in [
        (vec![on("a").concurrency(0)], "concurrency of 0"),
        (vec![on("a").lease("10 ms")], "outside 1 second to 1 hour"),
        (vec![on("a").timeout("soon")], "soon"),
        (vec![on("a b")], "hook name"),
        (vec![on("a").on("a", |(): (), _| async { Ok(()) })], "two handlers"),
        (vec![on("a"), on("b")], "registered twice"),
        (vec![on("a").on_instance_completed(|_, _| async { Ok(()) }), ended()], "registered twice"),
    ] {
        let message = start(hooks).await;
        assert!(message.contains(why), "{message}");
    }
}

/// Ten thousand hooks, one in a hundred of which fails at first: every one runs, and none is left behind.
#[tokio::test]
async fn ten_thousand_hooks_with_failures_drain() -> Result<()> {
    const HOOKS: usize = 10_000;
    let ran = Arc::new(Mutex::new(BTreeMap::<usize, u32>::new()));
    let noted = Arc::clone(&ran);
    let hooks = Hooks::new().on("count", move |number: usize, cx| {
        *noted.lock().unwrap().entry(number).or_default() += 1;
        let fails = number.is_multiple_of(100) && cx.attempt() == 1;
        async move { if fails { Err(Error::new("one in a hundred")) } else { Ok(()) } }
    });
    let harness = harness_with(StoreKind::Sqlite, hooks.keep_completed(0)).await?;
    let store = harness.store();
    let client = harness.engine().hooks();
    for batch in 0..100 {
        let sends = (0..HOOKS / 100).map(|number| client.send("count", &(batch * 100 + number)));
        futures_util::future::try_join_all(sends.map(IntoFuture::into_future)).await?;
    }
    harness.run_to_end().await?;
    let ran = ran.lock().unwrap().clone();
    assert_eq!(ran.len(), HOOKS);
    assert_eq!(ran.values().filter(|times| **times == 2).count(), HOOKS / 100);
    assert_eq!(ran.values().map(|times| *times as usize).sum::<usize>(), HOOKS + HOOKS / 100);
    let left = store.hooks().unwrap().next_hook_at(app()).await?.1;
    assert_eq!(left, None);
    Ok(())
}
