//! Sleep and time: BEHAVIOURS 21 to 25.

use std::sync::Arc;

use piton::prelude::*;
use piton::{BatchItem, InstanceStatus, Registration, Span, StepStatus, StepType};
use piton_testing::runtime::START;
use piton_testing::{Harness, StoreKind, on_every_store};

use crate::support::{Alive, Probe, find, outline, settle, step, steps, until, until_step};

const HOUR: Span = Span::literal("1 hour");

/// Sleeps for an hour between two steps.
fn nap(probe: &'static Probe) -> Registration {
    workflow("nap", async |_: Event<()>, step: &Step| -> Result<u32> {
        step.run("before", async { Ok(probe.hit("before")) }).await?;
        step.sleep("nap", "1 hour").await?;
        step.run("after", async { Ok(probe.hit("after")) }).await
    })
}

/// Sleeps for as long as this deploy says.
struct NapFor(&'static str);

impl Workflow for NapFor {
    const NAME: &'static str = "nap";
    type Params = ();
    type Output = ();

    async fn run(&self, _: Event<()>, step: &Step) -> Result<()> {
        step.sleep("nap", self.0).await
    }
}

on_every_store!(
    a_sleep_ends_at_its_millisecond_and_not_before,
    a_wake_for_another_reason_does_not_end_a_sleep,
    sleeps_side_by_side_end_one_after_the_other,
    a_wake_that_falls_due_while_paused_takes_effect_right_after_resume,
    a_pause_in_the_middle_of_a_sleep_does_not_make_it_longer,
    an_old_wake_never_ends_a_sleep_of_the_next_run,
    a_run_restarted_after_it_was_terminated_starts_clean,
    a_run_that_another_runner_advanced_goes_on_from_the_store,
    with_the_clock_set_back_an_hour_nothing_unfires_and_nothing_hangs,
    a_body_that_runs_while_the_clock_is_set_back_is_recorded_once,
    runners_with_clocks_ten_minutes_apart_run_nothing_twice_or_early,
    a_changed_duration_after_a_deploy_does_not_move_the_wake_time,
    no_time_at_all_completes_at_once_with_its_record,
    a_year_is_the_longest_sleep,
    a_sleep_until_too_far_ahead_is_refused_the_same_way_on_replay,
    many_sleeps_due_at_once_drain_in_bounded_memory_while_new_work_starts,
);

// 21
async fn a_sleep_ends_at_its_millisecond_and_not_before(kind: StoreKind) -> Result<()> {
    for parked in [0, 100] {
        let probe = Probe::new();
        let harness =
            Harness::with(kind, [nap(probe)], move |engine| engine.parked_runs(parked)).await?;
        let instance = harness.create::<_, u32>("nap", ()).await?;
        harness.run_until_idle().await?;
        assert_eq!(instance.status().await?, InstanceStatus::Waiting);
        let wake_at = step(&instance, "nap").await?.wake_at.unwrap();
        assert_eq!(wake_at.since(harness.now()), HOUR);
        assert_eq!(harness.engine().next_wake_at().await?, Some(wake_at));
        harness.advance(HOUR.as_millis() - 1);
        assert_eq!(harness.run_until_idle().await?.processed, 0);
        // Woken by something else in the last millisecond, it looks at its wake time again.
        instance.pause().await?;
        instance.resume().await?;
        assert_eq!(harness.run_until_idle().await?.processed, 1);
        assert_eq!(probe.count("after"), 0);
        harness.advance(1);
        assert_eq!(harness.run_until_idle().await?.processed, 1);
        assert_eq!(instance.result().await?, 1);
        let nap = step(&instance, "nap").await?;
        assert_eq!((nap.status, nap.wake_at), (StepStatus::Completed, Some(wake_at)));
        assert!(nap.updated_at >= wake_at);
    }
    Ok(())
}

// 21: events, resumes and a crash wake the instance; the sleep looks at its own wake time.
async fn a_wake_for_another_reason_does_not_end_a_sleep(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flows = || {
        [workflow("busy", async |_: Event<()>, step: &Step| -> Result<u32> {
            let mail = async {
                let mut sum = 0;
                for n in 0..3 {
                    sum += step.wait_for_event::<u32>(format!("mail {n}"), "mail").await?;
                }
                Ok(sum)
            };
            let nap = async {
                step.sleep("nap", "1 hour").await?;
                step.run("awake", async { Ok(probe.hit("awake")) }).await
            };
            let (sum, awake) = try_join!(mail, nap)?;
            Ok(sum * 10 + awake)
        })]
    };
    let mut harness = Harness::on(kind, flows()).await?;
    let mut instance = harness.create::<_, u32>("busy", ()).await?;
    harness.run_until_idle().await?;
    let wake_at = step(&instance, "nap").await?.wake_at.unwrap();
    for n in 1..=3 {
        harness.advance("15 minutes");
        instance.send_event("mail", &n).await?;
        harness.run_until_idle().await?;
        instance.pause().await?;
        instance.resume().await?;
        assert_eq!(harness.run_until_idle().await?.processed, 1);
        harness = harness.crash_and_restart(flows()).await?;
        instance = find(&harness, &instance).await?;
        let nap = step(&instance, "nap").await?;
        assert_eq!((nap.status, nap.wake_at), (StepStatus::Waiting, Some(wake_at)));
    }
    assert_eq!(probe.count("awake"), 0);
    harness.run_to_end().await?;
    assert_eq!((instance.result().await?, harness.now()), (61, wake_at));
    Ok(())
}

// 21: of several sleeps each ends at its own time.
async fn sleeps_side_by_side_end_one_after_the_other(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("dorm", async |_: Event<()>, step: &Step| -> Result<()> {
        let nap = async |minutes: i64| {
            step.sleep(format!("nap {minutes}"), minutes * 60_000).await?;
            probe.note(minutes.to_string());
            Ok::<_, Error>(())
        };
        try_join!(nap(30), nap(10), nap(20))?;
        Ok(())
    });
    let harness = Harness::on(kind, [flow]).await?;
    let instance = harness.create::<_, ()>("dorm", ()).await?;
    harness.run_until_idle().await?;
    assert_eq!(instance.describe().await?.current_step.unwrap().name, "nap 10");
    for awake in 1..=3 {
        harness.advance("10 minutes");
        harness.run_until_idle().await?;
        assert_eq!(probe.notes().len(), awake);
    }
    assert_eq!(probe.notes(), ["10", "20", "30"]);
    instance.result().await?;
    Ok(())
}

// 22
async fn a_wake_that_falls_due_while_paused_takes_effect_right_after_resume(
    kind: StoreKind,
) -> Result<()> {
    for parked in [0, 100] {
        let probe = Probe::new();
        let harness =
            Harness::with(kind, [nap(probe)], move |engine| engine.parked_runs(parked)).await?;
        let instance = harness.create::<_, u32>("nap", ()).await?;
        harness.run_until_idle().await?;
        assert_eq!(instance.pause().await?.status, InstanceStatus::Paused);
        harness.advance("3 hours");
        assert_eq!(harness.run_until_idle().await?.processed, 0);
        assert_eq!(probe.count("after"), 0);
        instance.resume().await?;
        assert_eq!(harness.run_until_idle().await?.processed, 1);
        assert_eq!(instance.result().await?, 1);
    }
    Ok(())
}

// 22: the timer counts on while paused.
async fn a_pause_in_the_middle_of_a_sleep_does_not_make_it_longer(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let harness = Harness::on(kind, [nap(probe)]).await?;
    let instance = harness.create::<_, u32>("nap", ()).await?;
    harness.run_until_idle().await?;
    let began = harness.now();
    harness.advance("20 minutes");
    instance.pause().await?;
    harness.advance("20 minutes");
    instance.resume().await?;
    harness.run_until_idle().await?;
    assert_eq!(probe.count("after"), 0, "the resume must not end the sleep early");
    harness.run_to_end().await?;
    assert_eq!(instance.result().await?, 1);
    assert_eq!(harness.now().since(began), HOUR);
    Ok(())
}

// 23: also when the old run is still in memory, and when its wake was due already.
async fn an_old_wake_never_ends_a_sleep_of_the_next_run(kind: StoreKind) -> Result<()> {
    for (parked, asleep) in [(0, "30 minutes"), (100, "30 minutes"), (0, "1 hour"), (100, "1 hour")]
    {
        let probe = Probe::new();
        let harness =
            Harness::with(kind, [nap(probe)], move |engine| engine.parked_runs(parked)).await?;
        let instance = harness.create::<_, u32>("nap", ()).await?;
        harness.run_until_idle().await?;
        harness.advance(asleep);
        instance.restart().await?;
        let restarted = harness.now();
        harness.run_until_idle().await?;
        harness.advance("30 minutes");
        harness.run_until_idle().await?;
        assert_eq!(probe.count("after"), 0, "the new run sleeps for an hour of its own");
        let nap = step(&instance, "nap").await?;
        assert_eq!(nap.wake_at.unwrap().since(restarted), HOUR);
        harness.run_to_end().await?;
        assert_eq!(instance.result().await?, 1);
        assert_eq!(harness.now().since(restarted), HOUR);
        assert_eq!(probe.count("before"), 2, "the new run starts clean");
        let old = instance.history().run_number(0).await?;
        assert_eq!(
            outline(&old.steps.items),
            [
                ("before", StepType::Do, StepStatus::Completed),
                ("nap", StepType::Sleep, StepStatus::Waiting),
            ]
        );
    }
    Ok(())
}

// 23: a terminated run starts its numbers over; one that is still in memory must not be taken for it.
async fn a_run_restarted_after_it_was_terminated_starts_clean(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let harness = Harness::on(kind, [nap(probe)]).await?;
    let instance = harness.create::<_, u32>("nap", ()).await?;
    harness.run_until_idle().await?;
    instance.terminate().await?;
    harness.advance("30 minutes");
    instance.restart().await?;
    let restarted = harness.now();
    harness.run_to_end().await?;
    assert_eq!(instance.result().await?, 1);
    assert_eq!((probe.count("before"), probe.count("after")), (2, 1));
    assert_eq!(harness.now().since(restarted), HOUR);
    Ok(())
}

// 24: what a runner remembers of a run is worth nothing once another one has advanced it.
async fn a_run_that_another_runner_advanced_goes_on_from_the_store(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flows = || {
        [workflow("relay", async |_: Event<()>, step: &Step| -> Result<u32> {
            for leg in 0..6 {
                step.run(format!("leg {leg}"), async { Ok(probe.hit("leg")) }).await?;
                step.sleep(format!("rest {leg}"), "1 hour").await?;
            }
            Ok(probe.count("leg"))
        })]
    };
    let harness = Harness::on(kind, flows()).await?;
    let other = Engine::builder_with_store(harness.store())
        .runtime(Arc::clone(harness.runtime()) as _)
        .no_runner();
    let other = flows().into_iter().fold(other, piton::EngineBuilder::register).start().await?;
    let instance = harness.create::<_, u32>("relay", ()).await?;
    let (this, other) = (harness.engine(), &other);
    for (leg, engine) in (1..).zip([this, other, other, this, other, this, this]) {
        assert_eq!(engine.tick(10).await?.processed, 1);
        assert_eq!(probe.count("leg"), leg.min(6), "each wake brings the run one leg further");
        harness.advance("1 hour");
    }
    assert_eq!(instance.result().await?, 6);
    Ok(())
}

// 24
async fn with_the_clock_set_back_an_hour_nothing_unfires_and_nothing_hangs(
    kind: StoreKind,
) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("timers", async |_: Event<()>, step: &Step| -> Result<u32> {
        step.sleep("done", "10 minutes").await?;
        let (slept, retried, waited) = join!(
            step.sleep("nap", "1 hour"),
            step.run("retry", async {
                if probe.hit("retry") == 1 { Err(Error::new("once more")) } else { Ok(1) }
            })
            .retries(Retries::constant(1, "1 hour")),
            step.wait_for_event::<()>("wait", "never").timeout("1 hour").outcome(),
        );
        slept?;
        assert_eq!(waited?, None);
        step.run("last", async { Ok(probe.hit("last")) }).await?;
        retried
    });
    let harness = Harness::on(kind, [flow, nap(probe)]).await?;
    let instance = harness.create::<_, u32>("timers", ()).await?;
    harness.run_until_idle().await?;
    harness.advance("10 minutes");
    harness.run_until_idle().await?;
    let began = harness.now();

    harness.runtime().set_time(began.plus(Span::literal("-1 hour")));
    harness.run_until_idle().await?;
    assert_eq!(step(&instance, "done").await?.status, StepStatus::Completed);
    assert_eq!((probe.count("retry"), probe.count("last")), (1, 0));
    // New work is not held up, and its timers count from the clock as it is now.
    let fresh = harness.create::<_, u32>("nap", ()).await?;
    harness.run_until_idle().await?;
    harness.advance("1 hour");
    harness.run_until_idle().await?;
    assert_eq!(fresh.result().await?, 1);
    assert_eq!(
        instance.status().await?,
        InstanceStatus::Waiting,
        "not early by the clock on the wall"
    );
    harness.advance("1 hour");
    harness.run_until_idle().await?;
    assert_eq!(instance.result().await?, 1);
    assert_eq!(probe.count("retry"), 2);
    Ok(())
}

// 24: the pass in flight measures by the clock that cannot be set.
async fn a_body_that_runs_while_the_clock_is_set_back_is_recorded_once(
    kind: StoreKind,
) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("running", async |_: Event<()>, step: &Step| -> Result<u32> {
        let nap = async {
            step.sleep("nap", "30 minutes").await?;
            step.run("awake", async { Ok(probe.hit("awake")) }).await
        };
        let long = step.run("long", async {
            probe.hold("long").await;
            Ok(probe.hit("long"))
        });
        let (_, long) = try_join!(nap, long.timeout("3 hours"))?;
        step.run("last", async { Ok(long) }).await
    });
    let harness = Harness::on(kind, [flow]).await?;
    let instance = harness.create::<_, u32>("running", ()).await?;
    let began = harness.now();
    let meddle = async {
        probe.held("long").await;
        until_step(&instance, "nap", StepStatus::Waiting).await?;
        settle(&harness).await?;
        harness.runtime().set_time(began.plus(Span::literal("-1 hour")));
        settle(&harness).await?;
        assert_eq!(probe.count("awake"), 0);
        for _ in 0..9 {
            harness.advance("10 minutes");
            settle(&harness).await?;
        }
        until_step(&instance, "awake", StepStatus::Completed).await?;
        probe.open("long");
        Ok(())
    };
    try_join!(harness.tick(), meddle)?;
    harness.run_until_idle().await?;
    assert_eq!(instance.result().await?, 1);
    assert_eq!((probe.count("awake"), probe.count("long")), (1, 1));
    Ok(())
}

// 24
async fn runners_with_clocks_ten_minutes_apart_run_nothing_twice_or_early(
    kind: StoreKind,
) -> Result<()> {
    let probe = Probe::new();
    let harness = Harness::on(kind, [nap(probe)]).await?;
    let mut engines = Vec::new();
    for minutes in [-10, 10] {
        let runtime = harness.runtime().offset_view(Span::from_millis(minutes * 60_000));
        let engine = Engine::builder_with_store(harness.store()).runtime(runtime);
        engines.push(engine.no_runner().register(nap(probe)).start().await?);
    }
    let mut instances = Vec::new();
    for engine in &engines {
        instances.push(engine.workflow::<(), u32>("nap")?.create(()).await?);
    }
    let began = harness.now();
    // The one behind starts them, the one ahead looks after them, then the other way round.
    engines[0].tick(1).await?;
    engines[1].tick(1).await?;
    for minute in 1..=60 {
        harness.advance("1 minute");
        let due = minute == 60;
        for engine in [&engines[minute % 2], &engines[(minute + 1) % 2]] {
            engine.tick(10).await?;
        }
        let after = if due { 2 } else { 0 };
        assert_eq!((probe.count("before"), probe.count("after")), (2, after), "minute {minute}");
    }
    for instance in &instances {
        assert!(instance.result().await? <= 2);
        let nap = step(instance, "nap").await?;
        assert_eq!(nap.wake_at.unwrap().since(began), HOUR);
        assert_eq!(instance.describe().await?.completed_at.unwrap().since(began), HOUR);
    }
    Ok(())
}

// Spec, point 6.
async fn a_changed_duration_after_a_deploy_does_not_move_the_wake_time(
    kind: StoreKind,
) -> Result<()> {
    for changed in ["1 minute", "30 days", "0 ms"] {
        let harness = Harness::on(kind, [NapFor("1 hour").into()]).await?;
        let instance = harness.create::<_, ()>("nap", ()).await?;
        let began = harness.now();
        harness.run_until_idle().await?;
        let harness = harness.crash_and_restart([NapFor(changed).into()]).await?;
        let instance = find(&harness, &instance).await?;
        // Something makes the new code run before the wake.
        instance.pause().await?;
        instance.resume().await?;
        harness.run_until_idle().await?;
        assert_eq!(instance.status().await?, InstanceStatus::Waiting);
        harness.run_to_end().await?;
        instance.result().await?;
        assert_eq!(harness.now().since(began), HOUR, "changed to {changed}");
    }
    Ok(())
}

// Spec, point 6.
async fn no_time_at_all_completes_at_once_with_its_record(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("instant", async |past: Event<Timestamp>, step: &Step| -> Result<()> {
        probe.hit("pass");
        step.sleep("zero", 0).await?;
        step.sleep("negative", "-5 minutes").await?;
        step.sleep_until("past", *past).await?;
        step.sleep_until("now", past.plus(HOUR)).await
    });
    let harness = Harness::with(kind, [flow], |engine| engine.parked_runs(0)).await?;
    let past = harness.now();
    harness.advance("1 hour");
    let instance = harness.create::<_, ()>("instant", past).await?;
    assert_eq!(harness.run_until_idle().await?.processed, 1);
    instance.result().await?;
    assert_eq!(probe.count("pass"), 1);
    let recorded = steps(&instance).await?;
    assert_eq!(
        outline(&recorded),
        ["zero", "negative", "past", "now"].map(|name| (
            name,
            StepType::Sleep,
            StepStatus::Completed
        )),
    );
    let wakes: Vec<_> = recorded
        .iter()
        .map(|step| step.wake_at.unwrap().since(harness.now()).as_millis())
        .collect();
    assert_eq!(wakes, [0, -300_000, -3_600_000, 0]);
    Ok(())
}

// Spec, point 6.
async fn a_year_is_the_longest_sleep(kind: StoreKind) -> Result<()> {
    let flow = workflow("long", async |case: Event<u32>, step: &Step| -> Result<()> {
        let year = Span::from_days(365);
        match *case {
            0 => step.sleep("nap", year).await,
            1 => step.sleep_until("nap", case.timestamp.plus(year)).await,
            2 => step.sleep("nap", year.as_millis() + 1).await,
            3 => {
                step.sleep_until("nap", case.timestamp.plus(year).plus(Span::from_millis(1))).await
            }
            _ => step.sleep("nap", "soon").await,
        }
    });
    let harness = Harness::on(kind, [flow]).await?;
    for (case, refused) in [(0, false), (1, false), (2, true), (3, true), (4, true)] {
        let instance = harness.create::<u32, ()>("long", case).await?;
        let began = harness.now();
        harness.run_to_end().await?;
        let error = instance.result().await.err();
        let code = error.as_ref().and_then(|error| error.code());
        assert_eq!(code, refused.then_some("INVALID_DURATION"), "case {case}");
        let slept = if refused { Span::ZERO } else { Span::from_days(365) };
        assert_eq!(harness.now().since(began), slept, "case {case}");
    }
    Ok(())
}

// A refusal that depends on the time of day must not turn into consent on replay.
async fn a_sleep_until_too_far_ahead_is_refused_the_same_way_on_replay(
    kind: StoreKind,
) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("far", async |_: Event<()>, step: &Step| -> Result<String> {
        let far = START.plus(Span::from_days(365)).plus(Span::from_millis(60_000));
        let refused = match step.sleep_until("far", far).await {
            Ok(()) => "accepted".to_owned(),
            Err(error) => error.code().unwrap_or("?").to_owned(),
        };
        probe.note(&refused);
        step.sleep("nap", "1 hour").await?;
        Ok(refused)
    });
    let harness = Harness::with(kind, [flow], |engine| engine.parked_runs(0)).await?;
    let instance = harness.create::<_, String>("far", ()).await?;
    harness.run_to_end().await?;
    assert_eq!(instance.result().await?, "INVALID_DURATION");
    assert_eq!(probe.notes(), ["INVALID_DURATION"; 2]);
    Ok(())
}

// 25, with fewer of them.
async fn many_sleeps_due_at_once_drain_in_bounded_memory_while_new_work_starts(
    kind: StoreKind,
) -> Result<()> {
    const SLEEPERS: u32 = 2_500;
    const CONCURRENCY: usize = 64;
    const PARKED: usize = 32;
    let probe = Probe::new();
    let flows = || {
        [
            workflow("sleeper", async |_: Event<()>, step: &Step| -> Result<()> {
                let _alive = Alive::new(probe);
                step.sleep("nap", "1 hour").await?;
                probe.hit("awake");
                Ok(())
            }),
            workflow("fresh", async |_: Event<()>, _: &Step| -> Result<()> { Ok(()) }),
        ]
    };
    let harness = Harness::on(kind, []).await?;
    let engine = Engine::builder_with_store(harness.store())
        .runtime(Arc::clone(harness.runtime()) as _)
        .concurrency(CONCURRENCY)
        .parked_runs(PARKED);
    let engine = flows().into_iter().fold(engine, |engine, flow| engine.register(flow));
    let engine = engine.start().await?;
    let sleepers = engine.workflow::<(), ()>("sleeper")?;
    for batch in 0..SLEEPERS / 100 {
        let ids = (0..100).map(|n| BatchItem::new(format!("s-{batch}-{n}"), ()));
        assert_eq!(sleepers.create_batch(ids).await?.len(), 100);
    }
    until("all sleep", async || {
        let page = sleepers.list().status(InstanceStatus::Active).page_size(1).await?;
        Ok(page.items.is_empty())
    })
    .await?;
    assert_eq!(probe.count("awake"), 0);

    harness.advance("1 hour");
    let fresh = engine.workflow::<(), ()>("fresh")?.create(()).await?;
    // New work has a right to its share once it has waited for half a second.
    harness.advance("1 second");
    until("new work is done", async || Ok(fresh.status().await?.is_terminal())).await?;
    let drained = probe.count("awake");
    assert!(drained < SLEEPERS / 2, "new work waited for {drained} of {SLEEPERS} sleepers");
    until("all are awake", async || Ok(probe.count("awake") == SLEEPERS)).await?;
    let most = probe.count("alive at most") as usize;
    assert!(most <= CONCURRENCY + PARKED, "{most} runs were in memory");
    engine.shutdown("1 second").await?;
    Ok(())
}
