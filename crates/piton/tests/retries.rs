//! Retries and timeouts: BEHAVIOURS 15 to 20.

use std::sync::{Arc, OnceLock};

use piton::prelude::*;
use piton::{InstanceHandle, InstanceStatus, Registration, Span, StepStatus};
use piton_testing::{Harness, StoreKind, VirtualRuntime, on_every_store};

use crate::support::{Alive, Probe, find, find_step, log_lines, settle, step, steps, until_step};

/// A workflow whose only step, `work`, always fails.
fn failing(probe: &'static Probe, retries: &'static (dyn Fn() -> Retries + Sync)) -> Registration {
    workflow("failing", async |_: Event<()>, step: &Step| -> Result<()> {
        let work = step.run("work", async {
            let attempt = probe.hit("work");
            Err(Error::new(format!("failure {attempt}")).named("Broken"))
        });
        work.retries(retries()).await
    })
}

/// The delays between attempts, in seconds, until the instance has ended.
async fn delays(harness: &Harness, instance: &InstanceHandle<()>) -> Result<Vec<i64>> {
    let mut delays = Vec::new();
    loop {
        harness.run_until_idle().await?;
        let Some(at) = step(instance, "work").await?.next_retry_at else { return Ok(delays) };
        let delay = at.since(harness.now());
        delays.push(delay.as_millis() / 1_000);
        harness.advance(delay.as_millis() - 1);
        assert_eq!(harness.tick().await?, 0, "a retry is not due one millisecond early");
        let attempts = step(instance, "work").await?.attempts;
        instance.pause().await?;
        instance.resume().await?;
        assert_eq!(harness.tick().await?, 1);
        assert_eq!(
            step(instance, "work").await?.attempts,
            attempts,
            "nor if something else wakes it"
        );
        harness.advance(1);
    }
}

on_every_store!(
    retries_follow_their_schedule_to_the_millisecond,
    steps_without_a_policy_have_the_one_of_the_engine,
    nothing_that_wakes_the_instance_makes_a_retry_early,
    recorded_attempts_never_exceed_the_limit_whatever_crashes,
    the_delay_counts_from_the_failure_also_after_a_body_of_five_minutes,
    infinite_retries_go_on_and_show_as_such,
    a_non_retryable_error_ends_the_step_on_that_attempt,
    a_body_that_outlives_its_timeout_is_dropped_and_the_attempt_failed,
    timeouts_use_up_the_retries_like_any_failure,
    a_result_that_comes_after_the_timeout_changes_nothing,
    the_idempotency_key_is_the_same_on_every_attempt_and_nowhere_else,
    each_failed_attempt_is_in_the_log,
    a_policy_or_timeout_that_makes_no_sense_is_refused,
);

// 15, and spec, point 3.
async fn retries_follow_their_schedule_to_the_millisecond(kind: StoreKind) -> Result<()> {
    let policies: [(&(dyn Fn() -> Retries + Sync), &[i64]); 5] = [
        (&|| Retries::constant(3, "7 seconds"), &[7, 7, 7]),
        (&|| Retries::linear(3, "7 seconds"), &[7, 14, 21]),
        (&|| Retries::exponential(4, "7 seconds"), &[7, 14, 28, 56]),
        (&Retries::default, &[10, 20, 40, 80, 160]),
        (&Retries::none, &[]),
    ];
    for (policy, expected) in policies {
        let probe = Probe::new();
        let harness = Harness::on(kind, [failing(probe, policy)]).await?;
        let instance = harness.create::<_, ()>("failing", ()).await?;
        assert_eq!(delays(&harness, &instance).await?, expected);
        let attempts = expected.len() as u32 + 1;
        let failed = step(&instance, "work").await?;
        assert_eq!((failed.status, failed.attempts), (StepStatus::Errored, attempts));
        assert_eq!(failed.attempts_max, Some(attempts));
        assert_eq!(probe.count("work"), attempts);
        let error = instance.describe().await?.error.unwrap();
        let last = format!("failure {attempts}");
        assert_eq!((error.name.as_str(), error.message), ("Broken", last));
    }
    Ok(())
}

async fn steps_without_a_policy_have_the_one_of_the_engine(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("failing", async |_: Event<()>, step: &Step| -> Result<()> {
        step.run("work", async {
            probe.hit("work");
            Err(Error::new("no"))
        })
        .await
    });
    let harness = Harness::with(kind, [flow], |engine| {
        engine.default_retries(Retries::constant(2, "3 seconds"))
    })
    .await?;
    let instance = harness.create::<_, ()>("failing", ()).await?;
    assert_eq!(delays(&harness, &instance).await?, [3, 3]);
    Ok(())
}

// 15: events, a pause and resume, ticks and a crash, all before the retry is due.
async fn nothing_that_wakes_the_instance_makes_a_retry_early(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flows = || {
        [workflow("patient", async |_: Event<()>, step: &Step| -> Result<u32> {
            let probe = probe.here();
            let mail = async {
                let mut sum = 0;
                for n in 0..3 {
                    sum += step.wait_for_event::<u32>(format!("mail {n}"), "mail").await?;
                }
                Ok(sum)
            };
            let work = step.run_with("work", |cx| async move {
                probe.hit("work");
                if cx.attempt() == 1 { Err(Error::new("once more")) } else { Ok(100) }
            });
            let (mail, work) = try_join!(mail, work.retries(Retries::constant(1, "1 hour")))?;
            Ok(mail + work)
        })]
    };
    let mut harness = Harness::on(kind, flows()).await?;
    let mut instance = harness.create::<_, u32>("patient", ()).await?;
    harness.run_until_idle().await?;
    let due = step(&instance, "work").await?.next_retry_at.unwrap();
    assert_eq!(due.since(harness.now()), Span::literal("1 hour"));
    for n in 1..=3 {
        harness.advance("10 minutes");
        harness.run_until_idle().await?;
        instance.send_event("mail", &n).await?;
        assert_eq!(harness.run_until_idle().await?.processed, 1, "the event woke it");
        instance.pause().await?;
        harness.run_until_idle().await?;
        instance.resume().await?;
        assert_eq!(harness.run_until_idle().await?.processed, 1, "the resume woke it");
        harness = harness.crash_and_restart(flows()).await?;
        instance = find(&harness, &instance).await?;
        harness.run_until_idle().await?;
        assert_eq!(probe.count("work"), 1, "after event {n}");
        assert_eq!(step(&instance, "work").await?.next_retry_at, Some(due));
    }
    harness.run_to_end().await?;
    assert_eq!(instance.result().await?, 106);
    assert_eq!(harness.now(), due);
    assert_eq!(probe.count("work"), 2);
    Ok(())
}

// 15
async fn recorded_attempts_never_exceed_the_limit_whatever_crashes(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flows = || {
        [workflow("crashing", async |_: Event<()>, step: &Step| -> Result<()> {
            let probe = probe.here();
            let work = step.run_with("work", |cx| async move {
                probe.note(cx.attempt().to_string());
                // Every other execution is cut off by a crash.
                if probe.hit("work") % 2 == 1 {
                    probe.hold("crash").await;
                }
                Err(Error::new("no"))
            });
            work.retries(Retries::constant(2, "10 seconds")).await
        })]
    };
    let mut harness = Harness::on(kind, flows()).await?;
    let mut instance = harness.create::<_, ()>("crashing", ()).await?;
    while !instance.status().await?.is_terminal() {
        select! {
            ticked = harness.tick() => { ticked?; }
            () = probe.held("crash") => {}
        }
        harness = harness.crash_and_restart(flows()).await?;
        harness.advance("31 seconds");
        instance = find(&harness, &instance).await?;
        if let Some(work) = find_step(&instance, "work").await? {
            assert!(work.attempts <= 3);
        }
    }
    assert_eq!(step(&instance, "work").await?.attempts, 3);
    assert_eq!(probe.notes(), ["1", "1", "2", "2", "3", "3"], "a cut-off attempt is repeated");
    Ok(())
}

// 16
async fn the_delay_counts_from_the_failure_also_after_a_body_of_five_minutes(
    kind: StoreKind,
) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("slow", async |_: Event<()>, step: &Step| -> Result<u32> {
        let probe = probe.here();
        let work = step.run_with("work", |cx| async move {
            if cx.attempt() == 1 {
                probe.hold("work").await;
                return Err(Error::new("after all that"));
            }
            Ok(cx.attempt())
        });
        work.retries(Retries::constant(1, "1 minute")).await
    });
    let harness = Harness::on(kind, [flow]).await?;
    let instance = harness.create::<_, u32>("slow", ()).await?;
    let began = harness.now();
    let fail = async {
        probe.held("work").await;
        for _ in 0..5 {
            harness.advance("1 minute");
            settle(&harness).await?;
        }
        probe.open("work");
        Ok(())
    };
    try_join!(harness.tick(), fail)?;
    let failed = step(&instance, "work").await?;
    assert_eq!(failed.started_at, began);
    assert_eq!(failed.updated_at.since(began), Span::literal("5 minutes"));
    assert_eq!(failed.next_retry_at.unwrap().since(began), Span::literal("6 minutes"));
    harness.advance(59_999);
    assert_eq!(harness.tick().await?, 0);
    harness.advance(1);
    harness.run_until_idle().await?;
    assert_eq!(instance.result().await?, 2);
    Ok(())
}

// 17
async fn infinite_retries_go_on_and_show_as_such(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("stubborn", async |_: Event<()>, step: &Step| -> Result<u32> {
        let probe = probe.here();
        let work = step.run_with("work", |cx| async move {
            probe.hit("work");
            if cx.attempt() < 70 { Err(Error::new("no")) } else { Ok(cx.attempt()) }
        });
        work.retries(Retries::exponential(RetryLimit::Infinite, "10 seconds")).await
    });
    let harness = Harness::on(kind, [flow]).await?;
    let instance = harness.create::<_, u32>("stubborn", ()).await?;
    for attempt in 1..70 {
        harness.run_until_idle().await?;
        let work = step(&instance, "work").await?;
        assert_eq!((work.attempts, work.attempts_max), (attempt, None));
        let delay = work.next_retry_at.unwrap().since(harness.now());
        assert!(delay <= Span::from_days(365), "attempt {attempt}: {delay}");
        assert_eq!(instance.describe().await?.current_step.unwrap().attempts_max, None);
        harness.advance(delay);
    }
    harness.run_until_idle().await?;
    assert_eq!(instance.result().await?, 70);
    assert_eq!(probe.count("work"), 70);
    Ok(())
}

// 18
async fn a_non_retryable_error_ends_the_step_on_that_attempt(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("declined", async |_: Event<()>, step: &Step| -> Result<()> {
        let charge = step.run("charge", async {
            if probe.hit("charge") == 1 {
                return Err(Error::new("busy"));
            }
            let parsed = "twelve".parse::<u32>().map_err(non_retryable);
            parsed.map_err(|error| error.named("BadNumber"))?;
            Ok(())
        });
        charge.retries(Retries::constant(RetryLimit::Infinite, "1 second")).await
    });
    let harness = Harness::on(kind, [flow]).await?;
    let instance = harness.create::<_, ()>("declined", ()).await?;
    harness.run_to_end().await?;
    let charge = step(&instance, "charge").await?;
    assert_eq!((charge.status, charge.attempts), (StepStatus::Errored, 2));
    assert_eq!(charge.next_retry_at, None);
    let described = instance.describe().await?;
    assert_eq!(described.status, InstanceStatus::Errored);
    for error in [charge.error.unwrap(), described.error.unwrap()] {
        assert_eq!(error.name, "BadNumber");
        assert_eq!(error.message, "invalid digit found in string");
    }
    assert_eq!(probe.count("charge"), 2);
    Ok(())
}

// 19
async fn a_body_that_outlives_its_timeout_is_dropped_and_the_attempt_failed(
    kind: StoreKind,
) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("late", async |_: Event<()>, step: &Step| -> Result<u32> {
        let probe = probe.here();
        let work = step.run_with("work", |cx| async move {
            let _alive = Alive::new(probe);
            probe.hold("work").await;
            probe.hit("finished");
            Ok(cx.attempt())
        });
        work.timeout("30 seconds").retries(Retries::constant(1, "1 minute")).await
    });
    let harness = Harness::on(kind, [flow]).await?;
    let instance = harness.create::<_, u32>("late", ()).await?;
    let time_out = async {
        probe.held("work").await;
        settle(&harness).await?;
        harness.advance("30 seconds");
        settle(&harness).await?;
        assert_eq!(find_step(&instance, "work").await?, None, "it has 30 seconds, and uses them");
        harness.advance(1);
        until_step(&instance, "work", StepStatus::Waiting).await
    };
    let (_, failed) = try_join!(harness.tick(), time_out)?;
    assert_eq!(probe.count("alive now"), 0, "the body is gone");
    let error = failed.error.unwrap();
    assert_eq!(error.name, "StepTimeout");
    assert!(error.message.contains("30 seconds"), "{}", error.message);
    assert_eq!((failed.attempts, failed.timeout_ms), (1, Some(30_000)));
    assert_eq!(failed.next_retry_at.unwrap().since(harness.now()), Span::literal("1 minute"));

    // The second attempt is in time.
    harness.advance("1 minute");
    probe.open("work");
    harness.run_until_idle().await?;
    assert_eq!(instance.result().await?, 2);
    assert_eq!(probe.count("finished"), 1);
    Ok(())
}

// 19
async fn timeouts_use_up_the_retries_like_any_failure(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("late", async |_: Event<()>, step: &Step| -> Result<()> {
        let work = step.run("work", async {
            probe.hold("work").await;
            Ok(())
        });
        work.timeout("30 seconds").retries(Retries::constant(1, 0)).await
    });
    let harness = Harness::on(kind, [flow]).await?;
    let instance = harness.create::<_, ()>("late", ()).await?;
    for _ in 0..2 {
        let time_out = async {
            probe.held("work").await;
            settle(&harness).await?;
            harness.advance("31 seconds");
            Ok(())
        };
        try_join!(harness.tick(), time_out)?;
    }
    let error = instance.result().await.unwrap_err();
    assert_eq!(error.name(), "StepTimeout");
    assert_eq!(step(&instance, "work").await?.attempts, 2);
    Ok(())
}

// 19: a body that blocks its thread cannot be dropped; what it returns too late is thrown away, and so
// is what it wanted to write.
async fn a_result_that_comes_after_the_timeout_changes_nothing(kind: StoreKind) -> Result<()> {
    let clock: &'static OnceLock<Arc<VirtualRuntime>> = Box::leak(Box::default());
    let flow = workflow("blocking", async |_: Event<()>, step: &Step| -> Result<u32> {
        let clock = clock.get().unwrap();
        let work = step.run_with("work", |cx| async move {
            cx.transaction().send_event("mailbox", "box", "mail", &cx.attempt())?;
            if cx.attempt() == 1 {
                clock.advance(Span::literal("31 seconds"));
            }
            Ok(cx.attempt())
        });
        work.timeout("30 seconds").retries(Retries::constant(1, "1 minute")).await
    });
    let mailbox = workflow("mailbox", async |_: Event<()>, step: &Step| -> Result<u32> {
        step.wait_for_event("mail", "mail").await
    });
    let harness = Harness::on(kind, [flow, mailbox]).await?;
    clock.set(Arc::clone(harness.runtime())).unwrap();
    let mailbox = harness.workflow::<(), u32>("mailbox")?.create(()).id("box").await?;
    let instance = harness.create::<_, u32>("blocking", ()).await?;
    harness.run_until_idle().await?;
    let failed = step(&instance, "work").await?;
    assert_eq!((failed.status, failed.attempts), (StepStatus::Waiting, 1));
    assert_eq!((failed.result, failed.error.unwrap().name.as_str()), (None, "StepTimeout"));
    assert_eq!(mailbox.status().await?, InstanceStatus::Waiting);
    harness.run_to_end().await?;
    assert_eq!(instance.result().await?, 2);
    assert_eq!(mailbox.result().await?, 2);
    Ok(())
}

// 20
async fn the_idempotency_key_is_the_same_on_every_attempt_and_nowhere_else(
    kind: StoreKind,
) -> Result<()> {
    let probe = Probe::new();
    let flows = || {
        [workflow("keyed", async |_: Event<()>, step: &Step| -> Result<()> {
            let probe = probe.here();
            for name in ["a", "b"] {
                step.run_with(name, |cx| async move {
                    probe.note(cx.idempotency_key());
                    if cx.attempt() < 3 { Err(Error::new("again")) } else { Ok(()) }
                })
                .await?;
            }
            Ok(())
        })]
    };
    let mut harness = Harness::on(kind, flows()).await?;
    let handle = harness.workflow::<(), ()>("keyed")?;
    let instances = [handle.create(()).id("one").await?, handle.create(()).id("two").await?];
    for run in 0..2 {
        // Also over a crash between two attempts.
        harness.run_until_idle().await?;
        harness = harness.crash_and_restart(flows()).await?;
        harness.run_to_end().await?;
        for instance in &instances {
            let instance = find(&harness, instance).await?;
            instance.result().await?;
            if run == 0 {
                instance.restart().await?;
            }
        }
    }
    let mut keys = probe.notes();
    assert_eq!(keys.len(), 2 * 2 * 2 * 3, "instances, runs, steps, attempts");
    keys.sort_unstable();
    let groups: Vec<_> = keys.chunk_by(|a, b| a == b).map(<[String]>::len).collect();
    assert_eq!(groups, [3; 8], "{keys:#?}");
    Ok(())
}

// The story of a retry is told: which attempt, how long until the next, and why.
async fn each_failed_attempt_is_in_the_log(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flow = failing(probe, &|| Retries::linear(1, "90 seconds"));
    let harness = Harness::on(kind, [flow]).await?;
    let instance = harness.create::<_, ()>("failing", ()).await?;
    harness.run_to_end().await?;
    let lines = log_lines(&instance, None).await?;
    let told: Vec<_> = lines
        .iter()
        .filter(|line| line.step.is_some())
        .map(|line| (line.attempt, &*line.category, &*line.message))
        .collect();
    assert_eq!(
        told,
        [
            (Some(1), "system", "attempt 1 failed, next in 90 seconds: Broken: failure 1"),
            (Some(2), "system", "failed for good after attempt 2: Broken: failure 2"),
        ]
    );
    Ok(())
}

async fn a_policy_or_timeout_that_makes_no_sense_is_refused(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("nonsense", async |case: Event<u32>, step: &Step| -> Result<()> {
        let work = step.run("work", async {
            probe.hit("work");
            Ok(())
        });
        match *case {
            0 => work.retries(Retries::constant(1, "soon")).await,
            1 => work.retries(Retries::constant(1, -1)).await,
            2 => work.timeout("whenever").await,
            3 => work.timeout(0).await,
            _ => work.timeout("-1 second").await,
        }
    });
    let harness = Harness::on(kind, [flow]).await?;
    for case in 0..5 {
        let instance = harness.create::<u32, ()>("nonsense", case).await?;
        harness.run_to_end().await?;
        let error = instance.result().await.unwrap_err();
        assert_eq!(error.code(), Some("INVALID_DURATION"), "case {case}: {error}");
        assert_eq!(steps(&instance).await?, []);
    }
    assert_eq!(probe.count("work"), 0);
    Ok(())
}
