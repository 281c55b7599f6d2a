//! Steps and replay: BEHAVIOURS 1 to 9, and what makes a step's name its identity.

use std::collections::BTreeMap;

use piton::prelude::*;
use piton::{InstanceStatus, Json, LogLevel, Registration, StepStatus, StepType};
use piton_testing::{Harness, StoreKind, on_every_store};
use serde::{Deserialize, Serialize};

use crate::support::{Probe, find, log_lines, outline, settle, step, steps, until_step};

/// What one MiB of JSON leaves for the text between the quotes.
const TEXT_OF_ONE_MIB: usize = 1024 * 1024 - 2;

fn order(probe: &'static Probe) -> [Registration; 1] {
    [workflow("order", async |_: Event<u32>, step: &Step| -> Result<u32> {
        let probe = probe.here();
        let a = step.run("a", async { Ok(probe.hit("a")) }).await?;
        step.sleep("nap", "1 hour").await?;
        let b = step
            .run_with("b", |cx| async move {
                probe.hit("b");
                if cx.attempt() < 3 { Err(Error::new("not yet")) } else { Ok(cx.attempt()) }
            })
            .await?;
        let c: u32 = step.wait_for_event("c", "go").await?;
        let d = step.run("d", async { Ok(probe.hit("d")) }).await?;
        Ok(a * 1_000 + b * 100 + c * 10 + d)
    })]
}

on_every_store!(
    a_completed_step_never_runs_again,
    a_completed_step_never_runs_again_after_a_crash,
    a_crash_in_a_body_repeats_that_body_and_no_other,
    results_survive_with_full_fidelity,
    floats_come_back_to_the_last_bit,
    one_mib_passes_and_one_byte_more_names_the_step_and_the_size,
    a_result_that_no_longer_decodes_errs_with_step_and_type_and_can_be_restarted,
    the_event_is_the_same_on_every_pass,
    an_error_that_was_handled_is_handled_the_same_way_on_replay,
    a_loop_of_a_thousand_steps_works_and_replays,
    the_1025th_step_is_refused_and_sleeps_and_waits_do_not_count,
    a_step_over_the_limit_stays_refused,
    a_workflow_that_returns_an_error_is_errored_with_its_name_and_message,
    a_panic_in_the_workflow_errs_the_instance_with_its_message,
    a_panic_in_a_step_body_is_a_failed_attempt,
    instances_of_an_unregistered_workflow_wait_untouched_and_block_nobody,
    code_between_steps_may_run_again_and_is_not_recorded,
    the_same_name_again_returns_the_recorded_result_and_warns_once,
    the_same_name_at_the_same_time_is_refused,
    the_same_name_with_another_type_is_refused,
    a_step_that_changed_its_type_with_a_deploy_is_refused,
    an_empty_or_overlong_name_is_refused,
    the_first_pass_sees_the_value_as_a_replay_will,
    a_running_step_is_described,
);

// 1: after a wait and a retry elsewhere, with the run in memory or replayed each time.
async fn a_completed_step_never_runs_again(kind: StoreKind) -> Result<()> {
    for parked in [0, 100] {
        let probe = Probe::new();
        let harness =
            Harness::with(kind, order(probe), move |engine| engine.parked_runs(parked)).await?;
        let instance = harness.create::<_, u32>("order", 1_u32).await?;
        instance.send_event("go", &7).await?;
        harness.run_to_end().await?;
        assert_eq!(instance.result().await?, 1_371);
        assert_eq!((probe.count("a"), probe.count("b"), probe.count("d")), (1, 3, 1));
    }
    Ok(())
}

// 1: after a crash and a deploy between any two passes.
async fn a_completed_step_never_runs_again_after_a_crash(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let mut harness = Harness::on(kind, order(probe)).await?;
    let mut instance = harness.create::<_, u32>("order", 1_u32).await?;
    instance.send_event("go", &7).await?;
    while !instance.status().await?.is_terminal() {
        harness.tick().await?;
        harness = harness.crash_and_restart(order(probe)).await?;
        harness.advance("10 minutes");
        instance = find(&harness, &instance).await?;
    }
    assert_eq!(instance.result().await?, 1_371);
    assert_eq!((probe.count("a"), probe.count("b"), probe.count("d")), (1, 3, 1));
    Ok(())
}

// 1: a crash in the middle of a body loses that attempt only.
async fn a_crash_in_a_body_repeats_that_body_and_no_other(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flows = || {
        [workflow("two", async |_: Event<()>, step: &Step| -> Result<u32> {
            step.run("first", async { Ok(probe.hit("first")) }).await?;
            step.run("second", async {
                if probe.hit("second") == 1 {
                    probe.hold("crash").await;
                }
                Ok(())
            })
            .await?;
            Ok(probe.count("second"))
        })]
    };
    let harness = Harness::on(kind, flows()).await?;
    let instance = harness.create::<_, u32>("two", ()).await?;
    select! {
        _ = harness.tick() => panic!("the body is held"),
        () = probe.held("crash") => {}
    }
    let harness = harness.crash_and_restart(flows()).await?;
    harness.advance("31 seconds");
    harness.run_until_idle().await?;
    let instance = find(&harness, &instance).await?;
    assert_eq!(instance.result().await?, 2);
    assert_eq!(probe.count("first"), 1);
    assert_eq!(step(&instance, "second").await?.attempts, 1, "a cut-off attempt leaves no record");
    Ok(())
}

// 2
async fn results_survive_with_full_fidelity(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flows = || {
        [workflow("keep", async |_: Event<()>, step: &Step| -> Result<bool> {
            let values = Values::example();
            let kept = step.run("values", async { Ok(values.clone()) }).await?;
            let same = kept == values;
            step.run("unit", async { Ok(()) }).await?;
            let none: Option<u8> = step.run("none", async { Ok(None) }).await?;
            let null: serde_json::Value =
                step.run("null", async { Ok(serde_json::Value::Null) }).await?;
            let empty: Vec<u8> = step.run("empty", async { Ok(Vec::new()) }).await?;
            let max: u64 = step.run("max", async { Ok(u64::MAX) }).await?;
            let text: String =
                step.run("nul", async { Ok("a\0b\u{10FFFF}\r\n\"\\".to_owned()) }).await?;
            probe.hit("seen");
            step.sleep("replay after this", 1).await?;
            Ok(same
                && none.is_none()
                && null.is_null()
                && empty.is_empty()
                && max == u64::MAX
                && text == "a\0b\u{10FFFF}\r\n\"\\")
        })]
    };
    let harness = Harness::on(kind, flows()).await?;
    let instance = harness.create::<_, bool>("keep", ()).await?;
    harness.run_until_idle().await?;
    let harness = harness.crash_and_restart(flows()).await?;
    harness.run_to_end().await?;
    let instance = find(&harness, &instance).await?;
    assert!(instance.result().await?, "some value changed on its way through the store");
    assert_eq!(probe.count("seen"), 2, "both the first pass and a replay saw the values");
    assert_eq!(step(&instance, "unit").await?.result, Some(Json::null()));
    assert_eq!(step(&instance, "max").await?.result.unwrap().as_str(), "18446744073709551615");
    Ok(())
}

// 2: a float that comes back off by one in the last place is another float.
async fn floats_come_back_to_the_last_bit(kind: StoreKind) -> Result<()> {
    let floats: Vec<f64> = (0..500)
        .map(|n: u64| f64::from_bits(n.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
        .chain([f64::MIN_POSITIVE, f64::MAX, -0.0, 0.1 + 0.2, 5e-324])
        .filter(|float| float.is_finite())
        .collect();
    let expected: &'static [f64] = floats.leak();
    let flow = workflow("floats", async |_: Event<()>, step: &Step| -> Result<u32> {
        let kept = step.run("floats", async { Ok(expected.to_vec()) }).await?;
        let bits = |floats: &[f64]| floats.iter().map(|f| f.to_bits()).collect::<Vec<_>>();
        let (kept, expected) = (bits(&kept), bits(expected));
        Ok(kept.iter().zip(&expected).filter(|(kept, expected)| kept != expected).count() as u32)
    });
    let harness = Harness::on(kind, [flow]).await?;
    let instance = harness.create::<_, u32>("floats", ()).await?;
    harness.run_to_end().await?;
    assert_eq!(instance.result().await?, 0, "floats that changed");
    Ok(())
}

// 2
async fn one_mib_passes_and_one_byte_more_names_the_step_and_the_size(
    kind: StoreKind,
) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("big", async |extra: Event<usize>, step: &Step| -> Result<usize> {
        let text = step
            .run("fetch page", async {
                probe.hit("fetch");
                Ok("x".repeat(TEXT_OF_ONE_MIB + *extra))
            })
            .await?;
        Ok(text.len())
    });
    let harness = Harness::on(kind, [flow]).await?;
    let fits = harness.create::<_, usize>("big", 0_usize).await?;
    let too_big = harness.create::<_, usize>("big", 1_usize).await?;
    harness.run_to_end().await?;
    assert_eq!(fits.result().await?, TEXT_OF_ONE_MIB);
    let error = too_big.result().await.unwrap_err();
    assert_eq!(error.code(), Some("PAYLOAD_TOO_LARGE"));
    for part in ["the result of step \"fetch page\"", "1048577 bytes", "limit of 1048576"] {
        assert!(error.message().contains(part), "{part:?} is missing in {error}");
    }
    let recorded = step(&too_big, "fetch page").await?;
    assert_eq!((recorded.status, recorded.attempts), (StepStatus::Errored, 1), "not retried");
    assert_eq!(probe.count("fetch"), 2);
    Ok(())
}

// 3
async fn a_result_that_no_longer_decodes_errs_with_step_and_type_and_can_be_restarted(
    kind: StoreKind,
) -> Result<()> {
    let v1 = workflow("shape", async |_: Event<()>, step: &Step| -> Result<String> {
        let point = step.run("locate", async { Ok("1, 2".to_owned()) }).await?;
        step.sleep("deploy meanwhile", "1 hour").await?;
        Ok(format!("{point:?}"))
    });
    let v2 = workflow("shape", async |_: Event<()>, step: &Step| -> Result<String> {
        let point = step.run("locate", async { Ok(Point { x: 1, y: 2 }) }).await?;
        step.sleep("deploy meanwhile", "1 hour").await?;
        Ok(format!("{point:?}"))
    });
    let harness = Harness::on(kind, [v1]).await?;
    let instance = harness.create::<_, String>("shape", ()).await?;
    harness.run_until_idle().await?;
    let harness = harness.crash_and_restart([v2]).await?;
    harness.run_to_end().await?;
    let instance = find(&harness, &instance).await?;
    let description = instance.describe().await?;
    assert_eq!(description.status, InstanceStatus::Errored);
    let error = description.error.unwrap();
    assert_eq!(error.code.as_deref(), Some("DECODE_FAILED"));
    for part in ["\"locate\"", "Point"] {
        assert!(error.message.contains(part), "{part:?} is missing in {:?}", error.message);
    }
    instance.restart().await?;
    harness.run_to_end().await?;
    assert_eq!(instance.result().await?, "Point { x: 1, y: 2 }");
    assert_eq!(instance.describe().await?.run_number, 1);
    Ok(())
}

// 4
async fn the_event_is_the_same_on_every_pass(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flows = || {
        [workflow("same", async |event: Event<String>, step: &Step| -> Result<()> {
            probe.note(format!("{} {} {}", event.timestamp, event.instance_id, *event));
            step.sleep("an hour", "1 hour").await?;
            step.sleep("another hour", "1 hour").await
        })]
    };
    let harness = Harness::on(kind, flows()).await?;
    let created_at = harness.now();
    let handle = harness.workflow::<String, ()>("same")?;
    let instance = handle.create("params".into()).id("order-1").await?;
    harness.advance("5 minutes");
    harness.run_until_idle().await?;
    for _ in 0..2 {
        harness.advance("1 hour");
        harness.run_until_idle().await?;
    }
    // The run was parked; a restart of the process makes it a replay.
    instance.restart().await?;
    harness.run_until_idle().await?;
    let harness = harness.crash_and_restart(flows()).await?;
    harness.run_to_end().await?;
    let notes = probe.notes();
    assert!(notes.len() >= 3, "{notes:?}");
    for note in notes {
        assert_eq!(note, format!("{created_at} order-1 params"));
    }
    Ok(())
}

// 5
async fn an_error_that_was_handled_is_handled_the_same_way_on_replay(
    kind: StoreKind,
) -> Result<()> {
    let probe = Probe::new();
    let flows = || {
        [workflow("caught", async |_: Event<()>, step: &Step| -> Result<String> {
            let charge = step.run("charge", async {
                probe.hit("charge");
                Err::<(), _>(Error::non_retryable("card declined").named("CardDeclined"))
            });
            let told = match charge.await {
                Ok(()) => "charged".to_owned(),
                Err(error) => format!("{}: {}", error.name(), error.message()),
            };
            probe.note(&told);
            step.sleep("cool off", "1 day").await?;
            step.run("apologise", async { Ok(told) }).await
        })]
    };
    let harness = Harness::on(kind, flows()).await?;
    let instance = harness.create::<_, String>("caught", ()).await?;
    harness.run_until_idle().await?;
    let harness = harness.crash_and_restart(flows()).await?;
    harness.run_to_end().await?;
    let instance = find(&harness, &instance).await?;
    assert_eq!(instance.result().await?, "CardDeclined: card declined");
    assert_eq!(probe.notes(), ["CardDeclined: card declined"; 2]);
    assert_eq!(probe.count("charge"), 1);
    Ok(())
}

// 6
async fn a_loop_of_a_thousand_steps_works_and_replays(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flows = || {
        [workflow("loop", async |_: Event<()>, step: &Step| -> Result<u64> {
            let mut sum = 0;
            for n in 0..1_000_u64 {
                sum += step
                    .run(format!("step {n}"), async {
                        probe.hit("body");
                        Ok(n)
                    })
                    .await?;
                if n == 500 {
                    step.sleep("half-way", "1 hour").await?;
                }
            }
            Ok(sum)
        })]
    };
    let harness = Harness::on(kind, flows()).await?;
    let instance = harness.create::<_, u64>("loop", ()).await?;
    harness.run_until_idle().await?;
    let harness = harness.crash_and_restart(flows()).await?;
    harness.run_to_end().await?;
    let instance = find(&harness, &instance).await?;
    assert_eq!(instance.result().await?, 499_500);
    assert_eq!(probe.count("body"), 1_000);
    assert_eq!(steps(&instance).await?.len(), 1_001);
    Ok(())
}

// 6
async fn the_1025th_step_is_refused_and_sleeps_and_waits_do_not_count(
    kind: StoreKind,
) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("many", async |count: Event<u32>, step: &Step| -> Result<()> {
        for n in 0..30 {
            step.sleep(format!("sleep {n}"), 0).await?;
            step.wait_for_event::<()>(format!("wait {n}"), "go").outcome().await?;
        }
        for n in 1..=*count {
            step.run(format!("step {n}"), async { Ok(probe.hit("body")) }).await?;
        }
        Ok(())
    });
    let harness = Harness::on(kind, [flow]).await?;
    let fits = harness.create::<u32, ()>("many", 1_024).await?;
    let too_many = harness.create::<u32, ()>("many", 1_025).await?;
    for _ in 0..30 {
        fits.send_event("go", &()).await?;
        too_many.send_event("go", &()).await?;
    }
    harness.run_to_end().await?;
    fits.result().await?;
    let error = too_many.result().await.unwrap_err();
    assert_eq!(error.code(), Some("TOO_MANY_STEPS"));
    for part in ["\"step 1025\"", "limit of 1024"] {
        assert!(error.message().contains(part), "{part:?} is missing in {error}");
    }
    assert_eq!(probe.count("body"), 2_048);
    Ok(())
}

// 6: a refusal that is caught is a refusal still, however often it is asked for.
async fn a_step_over_the_limit_stays_refused(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("over", async |_: Event<()>, step: &Step| -> Result<Vec<bool>> {
        step.run("one", async { Ok(()) }).await?;
        let mut refused = Vec::new();
        for _ in 0..3 {
            refused.push(step.run("two", async { Ok(probe.hit("two")) }).await.is_err());
        }
        step.run("one", async { Ok(()) }).await?;
        Ok(refused)
    });
    let limits = Limits { steps_max: 1, ..Limits::default() };
    let harness = Harness::with(kind, [flow], move |engine| engine.limits(limits.clone())).await?;
    let instance = harness.create::<_, Vec<bool>>("over", ()).await?;
    harness.run_to_end().await?;
    assert_eq!(instance.result().await?, [true; 3]);
    assert_eq!(probe.count("two"), 0);
    Ok(())
}

// 7
async fn a_workflow_that_returns_an_error_is_errored_with_its_name_and_message(
    kind: StoreKind,
) -> Result<()> {
    let flow = workflow("fail", async |_: Event<()>, _: &Step| -> Result<()> {
        Err(Error::new("no stock\0left").named("OutOfStock"))
    });
    let harness = Harness::on(kind, [flow]).await?;
    let instance = harness.create::<_, ()>("fail", ()).await?;
    harness.run_to_end().await?;
    let described = instance.describe().await?;
    assert_eq!(described.status, InstanceStatus::Errored);
    assert_eq!(described.completed_at, Some(harness.now()));
    let error = described.error.unwrap();
    assert_eq!((error.name.as_str(), error.message.as_str()), ("OutOfStock", "no stock\0left"));
    let error = instance.result().await.unwrap_err();
    assert_eq!((error.name(), error.message()), ("OutOfStock", "no stock\0left"));
    Ok(())
}

// 7
async fn a_panic_in_the_workflow_errs_the_instance_with_its_message(kind: StoreKind) -> Result<()> {
    let flow = workflow("panics", async |n: Event<u32>, step: &Step| -> Result<()> {
        step.run("before", async { Ok(()) }).await?;
        panic!("number {} is up", *n);
    });
    let fine = workflow("fine", async |_: Event<()>, _: &Step| -> Result<()> { Ok(()) });
    let harness = Harness::on(kind, [flow, fine]).await?;
    let instance = harness.create::<_, ()>("panics", 7_u32).await?;
    let other = harness.create::<_, ()>("fine", ()).await?;
    harness.run_to_end().await?;
    let error = instance.describe().await?.error.unwrap();
    assert_eq!((error.name.as_str(), error.message.as_str()), ("Panic", "number 7 is up"));
    assert_eq!(step(&instance, "before").await?.status, StepStatus::Completed);
    other.result().await?;
    Ok(())
}

// 7: in the future, in the closure that makes it, and while its result is encoded.
async fn a_panic_in_a_step_body_is_a_failed_attempt(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("panics", async |_: Event<()>, step: &Step| -> Result<u32> {
        let future = step.run("future", async {
            if probe.hit("future") == 1 {
                panic!("in the future");
            }
            Ok(1)
        });
        let future = future.await?;
        let closure = step.run_with("closure", |_| {
            if probe.hit("closure") == 1 {
                panic!("in the closure");
            }
            async { Ok(20) }
        });
        let closure = closure.await?;
        let result =
            step.run("result", async { Ok(PanicsOnce { first: probe.hit("result") == 1 }) });
        result.await?;
        Ok(future + closure + 300)
    });
    let harness = Harness::on(kind, [flow]).await?;
    let instance = harness.create::<_, u32>("panics", ()).await?;
    for (name, message) in [
        ("future", "in the future"),
        ("closure", "in the closure"),
        ("result", "while it is encoded"),
    ] {
        harness.run_until_idle().await?;
        let failed = step(&instance, name).await?;
        assert_eq!((failed.status, failed.attempts), (StepStatus::Waiting, 1), "{name}");
        let error = failed.error.unwrap();
        assert_eq!((error.name.as_str(), error.message.as_str()), ("Panic", message));
        harness.advance("10 seconds");
    }
    harness.run_to_end().await?;
    assert_eq!(instance.result().await?, 321);
    Ok(())
}

// 8
async fn instances_of_an_unregistered_workflow_wait_untouched_and_block_nobody(
    kind: StoreKind,
) -> Result<()> {
    let probe = Probe::new();
    let old = || {
        workflow("old", async |_: Event<()>, step: &Step| -> Result<u32> {
            let first = step.run("first", async { Ok(probe.hit("first")) }).await?;
            step.sleep("nap", "1 hour").await?;
            Ok(first)
        })
    };
    let new = || {
        workflow("new", async |_: Event<()>, step: &Step| -> Result<u32> {
            step.run("only", async { Ok(7) }).await
        })
    };
    let harness = Harness::on(kind, [old()]).await?;
    let sleeping = harness.create::<_, u32>("old", ()).await?;
    harness.run_until_idle().await?;
    for _ in 0..50 {
        harness.create::<(), u32>("old", ()).await?;
    }
    let before = sleeping.describe().await?;

    let harness = harness.crash_and_restart([new()]).await?;
    assert_eq!(harness.engine().unregistered().await?, [("old".to_owned(), 51)]);
    let fresh = harness.create::<_, u32>("new", ()).await?;
    harness.advance("2 hours");
    assert_eq!(harness.run_until_idle().await?.processed, 1, "only what is registered is advanced");
    assert_eq!(fresh.result().await?, 7);
    assert_eq!(harness.engine().next_wake_at().await?, None);

    let harness = harness.crash_and_restart([old(), new()]).await?;
    let sleeping = find(&harness, &sleeping).await?;
    let after = sleeping.describe().await?;
    assert_eq!((after.status, after.updated_at), (before.status, before.updated_at));
    harness.run_to_end().await?;
    assert_eq!(sleeping.result().await?, 1);
    assert_eq!(probe.count("first"), 51);
    assert_eq!(harness.engine().unregistered().await?, []);
    Ok(())
}

// 9
async fn code_between_steps_may_run_again_and_is_not_recorded(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("between", async |_: Event<()>, step: &Step| -> Result<u32> {
        probe.hit("before");
        step.sleep("nap", "1 hour").await?;
        probe.hit("after");
        tokio::task::yield_now().await;
        step.run("last", async { Ok(7) }).await
    });
    let harness = Harness::with(kind, [flow], |engine| engine.parked_runs(0)).await?;
    let instance = harness.create::<_, u32>("between", ()).await?;
    harness.run_to_end().await?;
    assert_eq!((probe.count("before"), probe.count("after")), (2, 1));
    assert_eq!(
        outline(&steps(&instance).await?),
        [
            ("nap", StepType::Sleep, StepStatus::Completed),
            ("last", StepType::Do, StepStatus::Completed),
        ]
    );
    Ok(())
}

// Spec, point 1: the name is the identity.
async fn the_same_name_again_returns_the_recorded_result_and_warns_once(
    kind: StoreKind,
) -> Result<()> {
    let probe = Probe::new();
    let flows = || {
        [workflow("again", async |_: Event<()>, step: &Step| -> Result<Vec<u32>> {
            let mut seen = Vec::new();
            for _ in 0..3 {
                seen.push(step.run("  charge ", async { Ok(probe.hit("charge")) }).await?);
            }
            step.sleep("nap", "1 hour").await?;
            seen.push(step.run("charge", async { Ok(probe.hit("charge")) }).await?);
            step.sleep("nap", "1 hour").await?;
            Ok(seen)
        })]
    };
    let harness = Harness::on(kind, flows()).await?;
    let instance = harness.create::<_, Vec<u32>>("again", ()).await?;
    harness.run_until_idle().await?;
    let harness = harness.crash_and_restart(flows()).await?;
    harness.run_to_end().await?;
    let instance = find(&harness, &instance).await?;
    assert_eq!(instance.result().await?, [1; 4]);
    assert_eq!(probe.count("charge"), 1);
    let lines = log_lines(&instance, None).await?;
    let warnings = lines.iter().filter(|line| {
        line.level == LogLevel::Warn
            && line.step.as_ref().is_some_and(|step| step.as_str() == "charge")
    });
    let warnings: Vec<_> = warnings.collect();
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert_eq!(&*warnings[0].category, "system");
    assert!(warnings[0].message.contains("used before"), "{:?}", warnings[0]);
    Ok(())
}

async fn the_same_name_at_the_same_time_is_refused(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("twice", async |_: Event<()>, step: &Step| -> Result<String> {
        let (first, second) = join!(
            step.run("charge", async { Ok(probe.hit("charge")) }),
            step.run("charge", async { Ok(probe.hit("charge")) }),
        );
        assert_eq!(first?, 1);
        Err(second.unwrap_err())
    });
    let harness = Harness::on(kind, [flow]).await?;
    let instance = harness.create::<_, String>("twice", ()).await?;
    harness.run_to_end().await?;
    let error = instance.result().await.unwrap_err();
    assert_eq!((error.name(), error.code()), ("DuplicateStepKey", Some("DUPLICATE_STEP_KEY")));
    assert!(error.message().contains("\"charge\""), "{error}");
    assert_eq!(probe.count("charge"), 1);
    Ok(())
}

async fn the_same_name_with_another_type_is_refused(kind: StoreKind) -> Result<()> {
    let flow = workflow("mixed", async |kind: Event<u32>, step: &Step| -> Result<()> {
        step.run("x", async { Ok(()) }).await?;
        match *kind {
            0 => step.sleep("x", 1).await,
            _ => step.wait_for_event("x", "go").await,
        }
    });
    let harness = Harness::on(kind, [flow]).await?;
    for (kind, now) in [(0, "`sleep`"), (1, "`waitForEvent`")] {
        let instance = harness.create::<u32, ()>("mixed", kind).await?;
        harness.run_to_end().await?;
        let error = instance.result().await.unwrap_err();
        assert_eq!(error.code(), Some("STEP_TYPE_MISMATCH"));
        for part in ["step \"x\"", "recorded as `do`", now] {
            assert!(error.message().contains(part), "{part:?} is missing in {error}");
        }
    }
    Ok(())
}

async fn a_step_that_changed_its_type_with_a_deploy_is_refused(kind: StoreKind) -> Result<()> {
    let v1 = workflow("typed", async |_: Event<()>, step: &Step| -> Result<()> {
        step.sleep("x", "1 hour").await
    });
    let v2 = workflow("typed", async |_: Event<()>, step: &Step| -> Result<()> {
        step.run("x", async { Ok(()) }).await
    });
    let harness = Harness::on(kind, [v1]).await?;
    let instance = harness.create::<_, ()>("typed", ()).await?;
    harness.run_until_idle().await?;
    let harness = harness.crash_and_restart([v2]).await?;
    harness.run_to_end().await?;
    let error = find(&harness, &instance).await?.result().await.unwrap_err();
    assert_eq!(error.code(), Some("STEP_TYPE_MISMATCH"));
    Ok(())
}

async fn an_empty_or_overlong_name_is_refused(kind: StoreKind) -> Result<()> {
    let flow = workflow("names", async |name: Event<String>, step: &Step| -> Result<()> {
        step.run(name.as_str(), async { Ok(()) }).await
    });
    let harness = Harness::on(kind, [flow]).await?;
    for (name, code) in [
        ("  ".to_owned(), Some("INVALID_STEP_NAME")),
        ("x".repeat(257), Some("INVALID_STEP_NAME")),
        ("x".repeat(256), None),
    ] {
        let instance = harness.create::<_, ()>("names", name).await?;
        harness.run_to_end().await?;
        let error = instance.result().await.err();
        assert_eq!(error.as_ref().and_then(|error| error.code()), code);
    }
    Ok(())
}

// Spec, point 12: the value as it decodes from storage, on the first pass too.
async fn the_first_pass_sees_the_value_as_a_replay_will(kind: StoreKind) -> Result<()> {
    let flow = workflow("lossy", async |_: Event<()>, step: &Step| -> Result<u32> {
        let kept = step.run("lossy", async { Ok(Lossy { kept: 1, lost: 2 }) }).await?;
        Ok(kept.kept * 10 + kept.lost)
    });
    let harness = Harness::on(kind, [flow]).await?;
    let instance = harness.create::<_, u32>("lossy", ()).await?;
    harness.run_to_end().await?;
    assert_eq!(instance.result().await?, 10);
    Ok(())
}

// While a body runs, it is what the instance is doing.
async fn a_running_step_is_described(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("busy", async |_: Event<()>, step: &Step| -> Result<()> {
        step.run("done", async { Ok(()) }).await?;
        let work = step.run("work", async {
            probe.hold("work").await;
            Ok(())
        });
        work.retries(Retries::constant(2, "1 second")).timeout("1 minute").await
    });
    let harness = Harness::on(kind, [flow]).await?;
    let instance = harness.create::<_, ()>("busy", ()).await?;
    let look = async {
        probe.held("work").await;
        settle(&harness).await?;
        until_step(&instance, "done", StepStatus::Completed).await?;
        let step = instance.describe().await?.current_step.unwrap();
        probe.open("work");
        Ok(step)
    };
    let (current, _) = try_join!(look, harness.tick())?;
    assert_eq!((current.name.as_str(), current.status), ("work", "running"));
    assert_eq!((current.attempts, current.attempts_max), (1, Some(3)));
    assert_eq!(current.timeout_ms, Some(60_000));
    assert_eq!(instance.describe().await?.current_step, None);
    Ok(())
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Values {
    numbers: (i8, i64, u64, u128),
    nested: BTreeMap<String, Vec<Option<Shape>>>,
    text: String,
    nothing: Option<()>,
    floats: [f64; 2],
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Shape {
    Unit,
    Newtype(Box<Shape>),
    Struct { id: u64, tags: Vec<String> },
}

impl Values {
    fn example() -> Self {
        let shape = Shape::Struct { id: u64::MAX, tags: vec![String::new(), "\0".into()] };
        let shapes = vec![None, Some(Shape::Unit), Some(Shape::Newtype(Box::new(shape)))];
        Self {
            numbers: (i8::MIN, i64::MIN, u64::MAX, u128::MAX),
            nested: BTreeMap::from([("".into(), vec![]), ("schöne\n\"Grüße\"".into(), shapes)]),
            text: "\u{0}\u{1F600}\u{FEFF}".into(),
            nothing: None,
            floats: [0.1 + 0.2, f64::MIN_POSITIVE],
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Point {
    x: i32,
    y: i32,
}

/// Half of it is never written.
#[derive(Serialize, Deserialize)]
struct Lossy {
    kept: u32,
    #[serde(skip)]
    lost: u32,
}

#[derive(Deserialize)]
struct PanicsOnce {
    first: bool,
}

impl Serialize for PanicsOnce {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        assert!(!self.first, "while it is encoded");
        serializer.collect_map([("first", self.first)])
    }
}
