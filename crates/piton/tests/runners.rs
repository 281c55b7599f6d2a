//! Many runners, crashes and stalls: one executes, a lost runner is replaced, a stale one changes nothing.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use futures_util::future::{join_all, try_join_all};
use piton::prelude::*;
use piton::store::SqliteStore;
use piton::{Engine, EngineBuilder, ErrorKind, InstanceHandle, InstanceStatus, Registration, Span};
use piton_testing::{Access, Harness, NextCommit, StoreKind, VirtualRuntime, on_every_store};

use crate::support::{
    Gate, Trail, UnderWay, another_engine, ended, engine_on, eventually, flow, steps_of,
    system_lines, tick_until_arrived, until, until_status, until_told,
};

on_every_store!(
    of_two_runners_and_one_due_task_one_executes,
    of_three_runners_and_many_tasks_each_is_executed_once,
    twenty_concurrent_ticks_double_nothing_and_strand_nobody,
    a_runner_stalled_past_its_lease_commits_nothing_and_its_run_was_taken_over,
    a_stalled_runner_cannot_write_while_the_next_one_is_in_the_middle_of_its_body,
    a_runner_stalled_past_its_lease_goes_on_if_nobody_took_its_run,
    a_step_cut_off_by_a_crash_is_tried_again_without_help,
    a_crash_leaves_no_line_that_the_runner_was_fenced,
    a_body_longer_than_the_lease_keeps_its_lease,
    clocks_ten_minutes_apart_run_nothing_twice_or_early,
    a_boundary_whose_answer_was_lost_is_not_done_again,
    a_boundary_that_was_lost_is_done_again_after_the_lease,
    a_shutdown_stops_claiming_and_lets_bodies_be_recorded,
    a_shutdown_hands_back_what_does_not_end_in_time,
    a_shutdown_with_nothing_to_do_closes_the_store_at_once,
    lost_hints_cost_a_poll_interval,
    lost_hints_do_not_lose_an_event_for_a_running_pass,
    lost_hints_do_not_keep_a_terminated_body_running,
    a_new_run_starts_at_once_where_there_is_room,
    more_work_than_room_is_all_done,
    an_instance_that_kills_its_runners_is_quarantined_and_can_be_restarted,
    only_the_run_that_kills_its_process_is_quarantined,
    progress_and_polite_shutdowns_do_not_count_towards_quarantine,
    a_wait_given_up_again_in_every_pass_is_no_progress,
);

/// A step behind a gate that tells who ran it, then an hour of sleep.
fn gated(gate: &Gate, who: &'static str) -> Registration {
    flow("work", &(gate.clone(), who), |(gate, who), _: Event<()>, step| {
        Box::pin(async move {
            let by = step
                .run("work", async {
                    gate.pass().await?;
                    Ok(who.to_owned())
                })
                .await?;
            step.sleep("rest", "1 hour").await?;
            Ok(by)
        })
    })
}

/// One step that leaves a mark.
fn marked(trail: &Trail) -> Registration {
    flow("mark", trail, |trail, event: Event<()>, step| {
        Box::pin(async move {
            step.run("mark", async {
                trail.mark(event.instance_id.as_str());
                tokio::task::yield_now().await;
                Ok(())
            })
            .await
        })
    })
}

// ---- 40, 46: who executes ----

async fn of_two_runners_and_one_due_task_one_executes(kind: StoreKind) -> Result<()> {
    let trail = Trail::default();
    let harness = Harness::on(kind, [marked(&trail)]).await?;
    let other = another_engine(&harness, [marked(&trail)]).await?;
    let instance = harness.create::<_, ()>("mark", ()).await?;
    let (one, two) = join!(harness.engine().tick(10), other.tick(10));
    assert_eq!(one?.processed + two?.processed, 1);
    ended(&instance).await?;
    assert_eq!(trail.seen().len(), 1);
    Ok(())
}

/// Creates instances, lets all these ticks run at once, and says how many runs were processed by them.
async fn race(
    harness: &Harness,
    trail: &Trail,
    instances: usize,
    ticks: &[(&Engine, usize)],
) -> Result<usize> {
    let mut created = Vec::new();
    for _ in 0..instances {
        created.push(harness.create::<_, ()>("mark", ()).await?);
    }
    let ticks = join_all(ticks.iter().map(|(engine, runs)| engine.tick(*runs))).await;
    let mut processed = 0;
    for tick in ticks {
        processed += tick?.processed;
    }
    for instance in &created {
        ended(instance).await?;
        assert_eq!(trail.count(instance.id()), 1, "executed once");
    }
    Ok(processed)
}

async fn of_three_runners_and_many_tasks_each_is_executed_once(kind: StoreKind) -> Result<()> {
    let trail = Trail::default();
    let harness = Harness::on(kind, [marked(&trail)]).await?;
    let second = another_engine(&harness, [marked(&trail)]).await?;
    let third = another_engine(&harness, [marked(&trail)]).await?;
    let ticks = [(harness.engine(), 40), (&second, 40), (&third, 40)];
    assert_eq!(race(&harness, &trail, 60, &ticks).await?, 60);
    Ok(())
}

async fn twenty_concurrent_ticks_double_nothing_and_strand_nobody(kind: StoreKind) -> Result<()> {
    let trail = Trail::default();
    let harness = Harness::on(kind, [marked(&trail)]).await?;
    let other = another_engine(&harness, [marked(&trail)]).await?;
    let ticks: Vec<_> =
        (0..20).map(|n| (if n % 2 == 0 { harness.engine() } else { &other }, 5)).collect();
    assert_eq!(race(&harness, &trail, 50, &ticks).await?, 50);
    assert_eq!(harness.run_until_idle().await?.processed, 0);
    Ok(())
}

/// A healthy engine, and one beside it whose way to the store can be blocked.
struct Stalling {
    gate: Gate,
    harness: Harness,
    access: Arc<Access>,
    stalled: Engine,
    instance: InstanceHandle<String>,
}

impl Stalling {
    async fn on(kind: StoreKind) -> Result<Self> {
        let gate = Gate::new();
        let harness = Harness::on(kind, [gated(&gate, "healthy")]).await?;
        let access = Access::to(harness.store());
        let stalled = [gated(&gate, "stalled")];
        let stalled =
            engine_on(access.clone(), &harness, stalled, EngineBuilder::no_runner).await?;
        let instance = harness.create::<_, String>("work", ()).await?;
        Ok(Self { gate, harness, access, stalled, instance })
    }
}

/// Lets the engine's body end and holds its result up on the way to the store.
async fn result_held_up<'e>(
    engine: &'e Engine,
    gate: &Gate,
    access: &Access,
) -> Result<UnderWay<'e>> {
    let tick = tick_until_arrived(engine, gate).await?;
    access.stall();
    gate.open();
    access.holds_a_write().await;
    Ok(tick)
}

async fn a_runner_stalled_past_its_lease_commits_nothing_and_its_run_was_taken_over(
    kind: StoreKind,
) -> Result<()> {
    let Stalling { gate, harness, access, stalled, instance } = Stalling::on(kind).await?;
    let stale = result_held_up(&stalled, &gate, &access).await?;

    harness.advance(29_999);
    assert_eq!(harness.run_until_idle().await?.processed, 0, "the lease still runs");
    harness.advance(1);
    gate.open();
    assert_eq!(harness.run_until_idle().await?.processed, 1, "taken over");
    assert_eq!(instance.status().await?, InstanceStatus::Waiting);
    let before = steps_of(&instance, None).await?;

    access.go_on();
    stale.await?;
    assert_eq!(steps_of(&instance, None).await?, before, "its result came too late");
    let told = system_lines(&instance, None).await?;
    assert!(told.iter().any(|line| line.starts_with("lease ran out; claimed by")), "{told:?}");
    assert!(told.iter().any(|line| line.contains("was fenced")), "{told:?}");
    harness.advance("1 hour");
    harness.run_until_idle().await?;
    assert_eq!(ended(&instance).await?, "healthy");
    assert_eq!(gate.arrivals(), 2);
    Ok(())
}

async fn a_stalled_runner_cannot_write_while_the_next_one_is_in_the_middle_of_its_body(
    kind: StoreKind,
) -> Result<()> {
    let Stalling { gate, harness, access, stalled, instance } = Stalling::on(kind).await?;
    let stale = result_held_up(&stalled, &gate, &access).await?;
    harness.advance("30 seconds");
    let fresh = tick_until_arrived(harness.engine(), &gate).await?;

    // The run is leased again, of the same number: only the epoch tells the two apart.
    access.go_on();
    stale.await?;
    assert_eq!(steps_of(&instance, None).await?, [""; 0]);
    gate.open();
    fresh.await?;
    harness.run_to_end().await?;
    assert_eq!(ended(&instance).await?, "healthy");
    Ok(())
}

async fn a_runner_stalled_past_its_lease_goes_on_if_nobody_took_its_run(
    kind: StoreKind,
) -> Result<()> {
    let Stalling { gate, harness, access, stalled, instance } = Stalling::on(kind).await?;
    let late = result_held_up(&stalled, &gate, &access).await?;
    harness.advance("1 minute");
    access.go_on();
    late.await?;
    assert_eq!(steps_of(&instance, None).await?, ["work completed", "rest waiting"]);
    assert_eq!(gate.arrivals(), 1, "the epoch decides, and nobody moved it");
    Ok(())
}

// ---- 41, 42: crashes and long bodies ----

/// What has to pass before another process may take over: nothing on SQLite, where the lock proves that the old
/// one is gone.
fn wait_for_takeover(kind: StoreKind, harness: &Harness) {
    match kind {
        StoreKind::Memory | StoreKind::Postgres => harness.advance("30 seconds"),
        StoreKind::Sqlite => {}
    }
}

async fn a_step_cut_off_by_a_crash_is_tried_again_without_help(kind: StoreKind) -> Result<()> {
    let (gate, trail) = (Gate::new(), Trail::default());
    let work = || {
        flow("work", &(gate.clone(), trail.clone()), |(gate, trail), _: Event<()>, step| {
            Box::pin(async move {
                step.run("before", async { trail.note("before") }).await?;
                step.run_with("cut off", |cx| {
                    trail.mark(format!("attempt {} {}", cx.attempt(), cx.idempotency_key()));
                    gate.pass()
                })
                .await
            })
        })
    };
    let harness = Harness::on(kind, [work()]).await?;
    let instance = harness.workflow::<(), ()>("work")?.create(()).id("one").await?;
    drop(tick_until_arrived(harness.engine(), &gate).await?);
    drop(instance);
    let harness = harness.crash_and_restart([work()]).await?;
    wait_for_takeover(kind, &harness);
    gate.open();
    harness.run_until_idle().await?;
    let instance = harness.workflow::<(), ()>("work")?.get("one").await?;
    ended(&instance).await?;
    let again = "attempt 1 work/one/0/cut off";
    assert_eq!(trail.seen(), ["before", again, again], "recorded work is not repeated");
    Ok(())
}

async fn a_crash_leaves_no_line_that_the_runner_was_fenced(kind: StoreKind) -> Result<()> {
    let gate = Gate::new();
    let harness = Harness::on(kind, [gated(&gate, "second")]).await?;
    let first = another_engine(&harness, [gated(&gate, "first")]).await?;
    let instance = harness.create::<_, String>("work", ()).await?;
    drop(tick_until_arrived(&first, &gate).await?);
    drop(first);
    harness.advance("30 seconds");
    gate.open();
    harness.run_until_idle().await?;
    let told = system_lines(&instance, None).await?;
    assert_eq!(told.len(), 2, "claimed, and claimed again: {told:?}");
    Ok(())
}

async fn a_body_longer_than_the_lease_keeps_its_lease(kind: StoreKind) -> Result<()> {
    let gate = Gate::new();
    let harness = Harness::on(kind, [gated(&gate, "other")]).await?;
    let access = Access::to(harness.store());
    let holder = [gated(&gate, "holder")];
    let holder = engine_on(access.clone(), &harness, holder, EngineBuilder::no_runner).await?;
    let instance = harness.create::<_, String>("work", ()).await?;
    let tick = tick_until_arrived(&holder, &gate).await?;
    for renewals in 1..=9 {
        harness.advance("10 seconds");
        access.renewed(renewals).await;
        assert_eq!(harness.run_until_idle().await?.processed, 0, "after {renewals} renewals");
    }
    gate.open();
    tick.await?;
    harness.run_to_end().await?;
    assert_eq!((ended(&instance).await?, gate.arrivals()), ("holder".to_owned(), 1));
    Ok(())
}

async fn clocks_ten_minutes_apart_run_nothing_twice_or_early(kind: StoreKind) -> Result<()> {
    let trail = Trail::default();
    let nap = |trail: &Trail| {
        flow("nap", trail, |trail, event: Event<()>, step| {
            Box::pin(async move {
                step.sleep("nap", "5 minutes").await?;
                step.run("mark", async { trail.note(event.instance_id.as_str()) }).await
            })
        })
    };
    let harness = Harness::on(kind, [nap(&trail)]).await?;
    let mut engines = Vec::new();
    for minutes in [-10, 10] {
        let skewed = harness.runtime().offset_view(Span::from_millis(minutes * 60_000));
        let builder = Engine::builder_with_store(harness.store()).runtime(skewed).no_runner();
        engines.push(builder.register(nap(&trail)).start().await?);
    }
    let [behind, ahead] = &engines[..] else { unreachable!() };
    let one = behind.workflow::<(), ()>("nap")?.create(()).id("one").await?;
    let two = ahead.workflow::<(), ()>("nap")?.create(()).id("two").await?;
    assert_eq!(behind.tick(1).await?.processed, 1);
    assert_eq!(ahead.tick(1).await?.processed, 1);
    harness.advance(299_999);
    for engine in &engines {
        assert_eq!(engine.tick(10).await?.processed, 0, "not a millisecond early");
    }
    harness.advance(1);
    let ticks = try_join_all(engines.iter().map(|engine| engine.tick(10))).await?;
    assert_eq!(ticks.iter().map(|tick| tick.processed).sum::<usize>(), 2);
    ended(&one).await?;
    ended(&two).await?;
    assert_eq!((trail.count("one"), trail.count("two")), (1, 1));
    Ok(())
}

async fn a_boundary_whose_answer_was_lost_is_not_done_again(kind: StoreKind) -> Result<()> {
    let trail = Trail::default();
    let harness = Harness::on(kind, [marked(&trail)]).await?;
    let access = Access::to(harness.store());
    let engine =
        engine_on(access.clone(), &harness, [marked(&trail)], EngineBuilder::no_runner).await?;
    let instance = harness.create::<_, ()>("mark", ()).await?;
    access.next_commit(NextCommit::LosesItsAnswer);
    engine.tick(1).await?;
    harness.advance("30 seconds");
    harness.run_until_idle().await?;
    ended(&instance).await?;
    assert_eq!(trail.seen().len(), 1);
    Ok(())
}

async fn a_boundary_that_was_lost_is_done_again_after_the_lease(kind: StoreKind) -> Result<()> {
    let trail = Trail::default();
    let harness = Harness::on(kind, [marked(&trail)]).await?;
    let access = Access::to(harness.store());
    let engine =
        engine_on(access.clone(), &harness, [marked(&trail)], EngineBuilder::no_runner).await?;
    let instance = harness.create::<_, ()>("mark", ()).await?;
    access.next_commit(NextCommit::IsLost);
    engine.tick(1).await?;
    assert_eq!(instance.status().await?, InstanceStatus::Active, "nothing was acknowledged");
    harness.advance("30 seconds");
    engine.tick(1).await?;
    ended(&instance).await?;
    assert_eq!(trail.seen().len(), 2);
    Ok(())
}

// ---- 45: one process per file ----

#[tokio::test]
async fn a_second_store_on_the_same_sqlite_file_refuses_and_says_why() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("app.db");
    let runtime = VirtualRuntime::new(1);
    let open = || SqliteStore::open(&path, Arc::clone(&runtime) as _);
    let first = open()?;
    let second = open().unwrap_err();
    assert_eq!(second.code(), Some("STORE_UNUSABLE"));
    assert!(second.message().contains("in use") && second.message().contains("app.db"), "{second}");
    let url = format!("sqlite:{}", path.display());
    let engine = Engine::builder(url).runtime(Arc::clone(&runtime) as _).start().await;
    assert_eq!(engine.unwrap_err().code(), Some("STORE_UNUSABLE"));
    drop(first);
    open().map(drop)
}

// ---- 47: graceful shutdown ----

/// A gated step, then one that leaves a mark.
fn gated_then_marked(gate: &Gate, trail: &Trail) -> Registration {
    flow("work", &(gate.clone(), trail.clone()), |(gate, trail), event: Event<()>, step| {
        Box::pin(async move {
            step.run("gated", gate.pass()).await?;
            let mark = || trail.note(event.instance_id.as_str());
            step.run("marked", async { mark() }).await
        })
    })
}

async fn a_shutdown_stops_claiming_and_lets_bodies_be_recorded(kind: StoreKind) -> Result<()> {
    let (gate, trail) = (Gate::new(), Trail::default());
    let harness = Harness::on(kind, [gated_then_marked(&gate, &trail)]).await?;
    let access = Access::to(harness.store());
    let leaving = [gated_then_marked(&gate, &trail)];
    let leaving = engine_on(access.clone(), &harness, leaving, |builder| builder).await?;
    let running = harness.create::<_, ()>("work", ()).await?;
    gate.arrived().await;

    let meanwhile = async {
        tokio::task::yield_now().await;
        let late = harness.create::<_, ()>("work", ()).await;
        gate.open();
        late
    };
    let (stopped, late) = join!(leaving.shutdown("1 minute"), meanwhile);
    stopped?;
    let late = late?;
    assert!(access.is_closed());
    assert_eq!(steps_of(&running, None).await?, ["gated completed"], "recorded, and no further");
    assert_eq!((gate.arrivals(), trail.seen().len()), (1, 0), "and nothing new was started");

    // No time has passed: what it held is free for others at once.
    gate.open();
    assert_eq!(harness.run_until_idle().await?.processed, 2);
    ended(&running).await?;
    ended(&late).await?;
    assert_eq!((gate.arrivals(), trail.seen().len()), (2, 2));
    Ok(())
}

async fn a_shutdown_hands_back_what_does_not_end_in_time(kind: StoreKind) -> Result<()> {
    let (gate, trail) = (Gate::new(), Trail::default());
    let harness = Harness::on(kind, [gated_then_marked(&gate, &trail)]).await?;
    let access = Access::to(harness.store());
    let leaving = [gated_then_marked(&gate, &trail)];
    let leaving = engine_on(access.clone(), &harness, leaving, |builder| builder).await?;
    let instance = harness.create::<_, ()>("work", ()).await?;
    gate.arrived().await;

    let time_passes = async {
        tokio::task::yield_now().await;
        assert!(!access.is_closed(), "it waits for the body");
        harness.advance("5 seconds");
    };
    let (stopped, ()) = join!(leaving.shutdown("5 seconds"), time_passes);
    stopped?;
    gate.open();
    assert_eq!(
        harness.run_until_idle().await?.processed,
        1,
        "at once, without waiting for the lease"
    );
    ended(&instance).await?;
    assert_eq!((gate.arrivals(), trail.seen().len()), (2, 1));
    let told = system_lines(&instance, None).await?;
    assert!(told.contains(&"released by its runner".to_owned()), "{told:?}");
    assert!(!told.iter().any(|line| line.contains("fenced")), "{told:?}");
    Ok(())
}

async fn a_shutdown_with_nothing_to_do_closes_the_store_at_once(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [marked(&Trail::default())]).await?;
    let instance = harness.create::<_, ()>("mark", ()).await?;
    harness.run_until_idle().await?;
    harness.engine().shutdown("1 hour").await?;
    let closed = instance.status().await.unwrap_err();
    assert_eq!((closed.kind(), closed.code()), (ErrorKind::ShuttingDown, Some("SHUTTING_DOWN")));
    assert!(closed.message().contains("start another"), "{closed}");
    let closed = harness.engine().tick(1).await.unwrap_err();
    assert_eq!(closed.code(), Some("SHUTTING_DOWN"));
    Ok(())
}

// ---- hints ----

async fn lost_hints_cost_a_poll_interval(kind: StoreKind) -> Result<()> {
    let trail = Trail::default();
    let harness = Harness::on(kind, [marked(&trail)]).await?;
    let deaf = Access::deaf(harness.store());
    let runner = engine_on(deaf, &harness, [marked(&trail)], |builder| builder).await?;
    // The runner has looked once, found nothing, and sleeps.
    eventually("the runner sleeps", || async {
        Ok(harness.runtime().next_sleep_at().filter(|at| at.since(harness.now()) <= SECOND))
    })
    .await?;
    let instance = harness.create::<_, ()>("mark", ()).await?;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(instance.status().await?, InstanceStatus::Active, "nobody told it");
    harness.advance(SECOND);
    until_status(&instance, InstanceStatus::Complete).await?;
    drop(runner);
    Ok(())
}

const SECOND: Span = Span::from_millis(1_000);

async fn lost_hints_do_not_lose_an_event_for_a_running_pass(kind: StoreKind) -> Result<()> {
    let gate = Gate::new();
    let work = || {
        flow("work", &gate, |gate, _: Event<()>, step| {
            Box::pin(async move {
                select! {
                    worked = step.run("long", gate.pass()) => worked.map(|()| 0),
                    told = step.wait_for_event::<u32>("told", "told") => told,
                }
            })
        })
    };
    let harness = Harness::on(kind, [work()]).await?;
    let access = Access::deaf(harness.store());
    let engine = engine_on(access.clone(), &harness, [work()], EngineBuilder::no_runner).await?;
    let instance = harness.create::<_, u32>("work", ()).await?;
    let tick = tick_until_arrived(&engine, &gate).await?;
    eventually("the wait is registered", || async {
        Ok((steps_of(&instance, None).await? == ["told waiting"]).then_some(()))
    })
    .await?;
    instance.send_event("told", &7).await?;
    harness.advance("10 seconds");
    tick.await?;
    assert_eq!(ended(&instance).await?, 7);
    Ok(())
}

async fn lost_hints_do_not_keep_a_terminated_body_running(kind: StoreKind) -> Result<()> {
    let gate = Gate::new();
    let harness = Harness::on(kind, [gated(&gate, "any")]).await?;
    let access = Access::deaf(harness.store());
    let work = [gated(&gate, "deaf")];
    let engine = engine_on(access.clone(), &harness, work, EngineBuilder::no_runner).await?;
    let instance = harness.create::<_, String>("work", ()).await?;
    let tick = tick_until_arrived(&engine, &gate).await?;
    instance.terminate().await?;
    harness.advance("10 seconds");
    // Its lease is missing from the answer to the renewal: the body is dropped although its gate is shut.
    tick.await?;
    assert_eq!(instance.status().await?, InstanceStatus::Terminated);
    Ok(())
}

async fn a_new_run_starts_at_once_where_there_is_room(kind: StoreKind) -> Result<()> {
    let gate = Gate::new();
    let harness = Harness::on(kind, [gated(&gate, "nobody")]).await?;
    let runner = [gated(&gate, "runner")];
    let runner = engine_on(harness.store(), &harness, runner, |builder| builder).await?;
    eventually("the runner sleeps", || async {
        Ok(harness.runtime().next_sleep_at().filter(|at| at.since(harness.now()) <= SECOND))
    })
    .await?;
    let instance = runner.workflow::<(), String>("work")?.create(()).await?;
    gate.arrived().await;
    let state = instance.describe().await?;
    assert_eq!((state.status, state.started_at), (InstanceStatus::Active, Some(harness.now())));
    let step = state.current_step.unwrap();
    assert_eq!((step.name.as_str(), step.status, step.attempts), ("work", "running", 1));
    gate.open();
    until_status(&instance, InstanceStatus::Waiting).await
}

async fn more_work_than_room_is_all_done(kind: StoreKind) -> Result<()> {
    let trail = Trail::default();
    let harness = Harness::on(kind, [marked(&trail)]).await?;
    let configure = |builder: EngineBuilder| builder.concurrency(3);
    let runner = engine_on(harness.store(), &harness, [marked(&trail)], configure).await?;
    let workflow = runner.workflow::<(), ()>("mark")?;
    let created = try_join_all((0..40).map(|_| workflow.create(()).into_future())).await?;
    try_join_all(created.iter().map(|instance| instance.result())).await?;
    assert_eq!(trail.seen().len(), 40);
    Ok(())
}

// ---- quarantine ----

/// Starts the run in a process that dies in the middle of the body, and waits for the lease to run out.
async fn die_in_the_body(harness: &Harness, gate: &Gate, workflow: Registration) -> Result<()> {
    let dying = another_engine(harness, [workflow]).await?;
    drop(tick_until_arrived(&dying, gate).await?);
    drop(dying);
    harness.advance("30 seconds");
    Ok(())
}

async fn an_instance_that_kills_its_runners_is_quarantined_and_can_be_restarted(
    kind: StoreKind,
) -> Result<()> {
    let gate = Gate::new();
    let configure = |builder: EngineBuilder| builder.quarantine_after(3);
    let harness = Harness::with(kind, [gated(&gate, "fixed")], configure).await?;
    let instance = harness.create::<_, String>("work", ()).await?;
    for _ in 0..3 {
        die_in_the_body(&harness, &gate, gated(&gate, "deadly")).await?;
    }
    assert_eq!(harness.run_until_idle().await?.processed, 0);
    let state = instance.describe().await?;
    assert_eq!((state.status, state.completed_at), (InstanceStatus::Errored, Some(harness.now())));
    let error = ended(&instance).await.unwrap_err();
    assert_eq!(error.name(), "Quarantined");
    assert!(error.message().contains("3 times"), "{error}");
    until_told(&instance, "quarantined: ").await?;

    instance.restart().await?;
    gate.open();
    harness.run_to_end().await?;
    assert_eq!(ended(&instance).await?, "fixed");
    Ok(())
}

async fn only_the_run_that_kills_its_process_is_quarantined(kind: StoreKind) -> Result<()> {
    let (deadly, slow) = (Gate::new(), Gate::new());
    let works = || {
        let of = |name: &'static str, gate: &Gate| {
            flow(name, gate, |gate, _: Event<()>, step| {
                Box::pin(async move { step.run("work", gate.pass()).await })
            })
        };
        [of("deadly", &deadly), of("slow", &slow)]
    };
    let harness = Harness::on(kind, works()).await?;
    let culprit = harness.create::<_, ()>("deadly", ()).await?;
    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(harness.create::<_, ()>("slow", ()).await?);
    }
    for deaths in 1..=10 {
        let dying = another_engine(&harness, works()).await?;
        let tick = tick_until_arrived(&dying, &deadly).await?;
        for _ in others.iter().filter(|_| deaths <= 5) {
            slow.arrived().await;
        }
        drop(tick);
        drop(dying);
        harness.advance("30 seconds");
    }
    assert_eq!(slow.arrivals(), 15, "in flight beside it five times, no more");
    others.iter().for_each(|_| slow.open());
    harness.run_until_idle().await?;
    assert_eq!(ended(&culprit).await.unwrap_err().name(), "Quarantined");
    for other in others {
        ended(&other).await?;
    }
    Ok(())
}

async fn progress_and_polite_shutdowns_do_not_count_towards_quarantine(
    kind: StoreKind,
) -> Result<()> {
    let (first, second) = (Gate::new(), Gate::new());
    let work = || {
        flow("work", &(first.clone(), second.clone()), |(first, second), _: Event<()>, step| {
            Box::pin(async move {
                step.run("first", first.pass()).await?;
                step.run("second", second.pass()).await
            })
        })
    };
    let configure = |builder: EngineBuilder| builder.quarantine_after(3);
    let harness = Harness::with(kind, [work()], configure).await?;
    let instance = harness.create::<_, ()>("work", ()).await?;
    for _ in 0..2 {
        die_in_the_body(&harness, &first, work()).await?;
    }
    for _ in 0..4 {
        let access = Access::to(harness.store());
        let polite = engine_on(access, &harness, [work()], EngineBuilder::no_runner).await?;
        drop(tick_until_arrived(&polite, &first).await?);
        polite.shutdown(0).await?;
    }
    first.open();
    for _ in 0..2 {
        die_in_the_body(&harness, &second, work()).await?;
    }
    second.open();
    harness.run_until_idle().await?;
    ended(&instance).await?;
    assert_eq!((first.arrivals(), second.arrivals()), (7, 3));
    Ok(())
}

async fn a_wait_given_up_again_in_every_pass_is_no_progress(kind: StoreKind) -> Result<()> {
    let gate = Gate::new();
    let work = || {
        flow("work", &gate, |gate, event: Event<()>, step| {
            Box::pin(async move {
                let id = event.instance_id.to_string();
                select! {
                    lost = step.wait_for_event::<()>("loser", "never") => lost?,
                    won = step.run_with("winner", |cx| {
                        let sent = cx.transaction().send_event("work", &id, "other", &());
                        async move { sent }
                    }) => won?,
                }
                // What looks for an event is a boundary, before and after.
                let last = step.wait_for_event::<()>("last", "never");
                let (waited, worked) = join!(last, step.run("deadly", gate.pass()));
                waited.and(worked)
            })
        })
    };
    let configure = |builder: EngineBuilder| builder.quarantine_after(3);
    let harness = Harness::with(kind, [work()], configure).await?;
    let instance = harness.create::<_, ()>("work", ()).await?;
    // The first process gets as far as it can.
    let first = another_engine(&harness, [work()]).await?;
    let tick = tick_until_arrived(&first, &gate).await?;
    until("the last wait", async || {
        let steps = steps_of(&instance, None).await?;
        Ok(["loser pending", "last waiting"].iter().all(|row| steps.iter().any(|step| step == row)))
    })
    .await?;
    drop(tick);
    drop(first);
    harness.advance("30 seconds");
    for _ in 0..3 {
        die_in_the_body(&harness, &gate, work()).await?;
    }
    gate.open();
    harness.run_until_idle().await?;
    let error = instance.describe().await?.error;
    assert_eq!(error.map(|error| error.name).as_deref(), Some("Quarantined"));
    Ok(())
}
