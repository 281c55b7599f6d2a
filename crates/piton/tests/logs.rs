//! Durable logs: every line knows where it was written, and the engine tells what it did.

#![allow(clippy::unwrap_used, reason = "tests")]

use piton::prelude::*;
use piton::{EngineBuilder, InstanceHandle, LogLevel, LogLine};
use piton_testing::{Harness, StoreKind, on_every_store};
use serde_json::{Value, json};
use tracing_subscriber::prelude::*;

use crate::support::{
    Gate, ended, eventually, flow, log_lines, steps_of, system_lines, tick_until_arrived,
};

on_every_store!(
    lines_of_failed_attempts_are_kept_with_their_attempt,
    lines_carry_level_category_data_and_time,
    lines_outside_a_step_have_no_step,
    lines_of_parallel_steps_carry_their_own_step_and_attempt,
    the_category_system_is_refused_and_that_is_told,
    a_long_message_is_cut_and_that_is_told,
    data_that_is_too_large_or_no_json_is_left_out_and_that_is_told,
    is_replay_is_true_exactly_while_recorded_steps_are_passed,
    is_replay_is_true_before_a_retry_and_false_in_it,
    is_replay_is_false_behind_the_last_recorded_step,
    a_run_that_stays_in_memory_writes_each_line_once,
    lines_of_a_body_that_is_still_running_are_readable_after_a_second,
    tracing_events_are_stored_with_step_and_attempt,
    the_log_tells_the_story_of_a_run,
    the_log_tells_of_pauses_and_of_the_end,
    the_log_warns_once_when_a_step_name_is_used_again,
);

/// What the user's lines of a run say, as `message step attempt replay`.
async fn told<O>(instance: &InstanceHandle<O>) -> Result<Vec<String>> {
    let lines = log_lines(instance, None).await?;
    Ok(lines.iter().filter(|line| &*line.category != "system").map(tell).collect())
}

fn tell(line: &LogLine) -> String {
    let step = line.step.as_ref().map_or("-", |step| step.as_str());
    let attempt = line.attempt.map_or("-".to_owned(), |attempt| attempt.to_string());
    let replay = if line.is_replay { " replay" } else { "" };
    format!("{} {step} {attempt}{replay}", line.message)
}

fn no_parking(builder: EngineBuilder) -> EngineBuilder {
    builder.parked_runs(0)
}

// ---- 50: what a line knows ----

async fn lines_of_failed_attempts_are_kept_with_their_attempt(kind: StoreKind) -> Result<()> {
    let flaky = flow("flaky", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            step.run_with("charge", |cx| async move {
                step.log().info("trying");
                tokio::task::yield_now().await;
                step.log().info("tried");
                match cx.attempt() {
                    1 => Err(Error::new("busy")),
                    2 => panic!("worse"),
                    _ => Ok(()),
                }
            })
            .await
        })
    });
    let harness = Harness::on(kind, [flaky]).await?;
    let instance = harness.create::<_, ()>("flaky", ()).await?;
    harness.run_to_end().await?;
    ended(&instance).await?;
    let attempts =
        (1..=3).flat_map(|n| ["trying", "tried"].map(|what| format!("{what} charge {n}")));
    assert_eq!(told(&instance).await?, attempts.collect::<Vec<_>>());
    Ok(())
}

async fn lines_carry_level_category_data_and_time(kind: StoreKind) -> Result<()> {
    let levels = flow("levels", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            step.log().debug("d");
            step.log().info("i").category("payments").data(json!({ "cents": 125 }));
            step.log().warn("w").data("text");
            step.log().error("e");
            Ok(())
        })
    });
    let harness = Harness::on(kind, [levels]).await?;
    let instance = harness.create::<_, ()>("levels", ()).await?;
    harness.advance("1 minute");
    harness.run_until_idle().await?;
    let lines = log_lines(&instance, None).await?;
    let user: Vec<_> = lines.iter().filter(|line| &*line.category != "system").collect();
    let seen: Vec<_> = user
        .iter()
        .map(|line| (line.level, &*line.category, line.data.as_ref().map(|data| data.as_str())))
        .collect();
    let expected = [
        (LogLevel::Debug, "workflow", None),
        (LogLevel::Info, "payments", Some(r#"{"cents":125}"#)),
        (LogLevel::Warn, "workflow", Some(r#""text""#)),
        (LogLevel::Error, "workflow", None),
    ];
    assert_eq!(seen, expected);
    assert!(
        user.iter().all(|line| line.created_at == harness.now() && line.id.starts_with("log_"))
    );
    Ok(())
}

async fn lines_outside_a_step_have_no_step(kind: StoreKind) -> Result<()> {
    let plain = flow("plain", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            step.log().info("before");
            step.run("work", async {
                step.log().info("inside");
                Ok(())
            })
            .await?;
            step.log().info("after");
            Ok(())
        })
    });
    let harness = Harness::on(kind, [plain]).await?;
    let instance = harness.create::<_, ()>("plain", ()).await?;
    harness.run_until_idle().await?;
    ended(&instance).await?;
    assert_eq!(told(&instance).await?, ["before - -", "inside work 1", "after - -"]);
    Ok(())
}

async fn lines_of_parallel_steps_carry_their_own_step_and_attempt(kind: StoreKind) -> Result<()> {
    let parallel = flow("parallel", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            let work = |name: &'static str, fails: u32| {
                step.run_with(name, move |cx| async move {
                    for n in 0..3 {
                        step.log().info(format!("{name} {} {n}", cx.attempt()));
                        // Lets the sibling in between.
                        tokio::task::yield_now().await;
                    }
                    if cx.attempt() <= fails { Err(Error::new("again")) } else { Ok(()) }
                })
                .retries(Retries::constant(2, "1 minute"))
            };
            try_join!(work("left", 0), work("right", 2))?;
            Ok(())
        })
    });
    let harness = Harness::on(kind, [parallel]).await?;
    let instance = harness.create::<_, ()>("parallel", ()).await?;
    harness.run_to_end().await?;
    ended(&instance).await?;
    let lines = log_lines(&instance, None).await?;
    let user: Vec<_> = lines.iter().filter(|line| &*line.category != "system").collect();
    assert_eq!(user.len(), 3 + 9);
    for line in user {
        let place = format!("{} {}", line.step.as_ref().unwrap(), line.attempt.unwrap());
        assert!(line.message.starts_with(&place), "{:?} was written in {place}", line.message);
    }
    Ok(())
}

async fn the_category_system_is_refused_and_that_is_told(kind: StoreKind) -> Result<()> {
    let sly = flow("sly", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            step.log().info("all is well").category("system");
            step.log().info("nameless").category("");
            Ok(())
        })
    });
    let harness = Harness::on(kind, [sly]).await?;
    let instance = harness.create::<_, ()>("sly", ()).await?;
    harness.run_until_idle().await?;
    let system = system_lines(&instance, None).await?;
    assert!(!system.contains(&"all is well".to_owned()));
    assert!(system.iter().any(|line| line.contains("`system` is reserved")), "{system:?}");
    assert!(system.iter().any(|line| line.contains("0 bytes")), "{system:?}");
    assert_eq!(told(&instance).await?, ["all is well - -", "nameless - -"], "but not lost");
    Ok(())
}

async fn a_long_message_is_cut_and_that_is_told(kind: StoreKind) -> Result<()> {
    let talker = flow("talker", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            step.log().info("x".repeat(2_048));
            step.log().info("€".repeat(1_000));
            Ok(())
        })
    });
    let harness = Harness::on(kind, [talker]).await?;
    let instance = harness.create::<_, ()>("talker", ()).await?;
    harness.run_until_idle().await?;
    ended(&instance).await?;
    let lines = log_lines(&instance, None).await?;
    let user: Vec<_> = lines.iter().filter(|line| &*line.category == "workflow").collect();
    assert_eq!(user[0].message.len(), 2_048, "what fits is left alone");
    assert_eq!(*user[1].message, *"€".repeat(682), "cut between characters");
    let cut: Vec<_> = lines.iter().filter(|line| line.message.contains("was cut")).collect();
    assert_eq!(cut.len(), 1);
    assert!(cut[0].message.contains("3000") && cut[0].message.contains("2048"), "{cut:?}");
    Ok(())
}

async fn data_that_is_too_large_or_no_json_is_left_out_and_that_is_told(
    kind: StoreKind,
) -> Result<()> {
    let configure = |builder: EngineBuilder| {
        builder.limits(Limits { payload_bytes_max: 100, ..Limits::default() })
    };
    let talker = flow("talker", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            step.log().info("large").data("x".repeat(99));
            let no_json = std::collections::HashMap::from([((1, 2), 3)]);
            step.log().info("odd").data(no_json);
            Ok(())
        })
    });
    let harness = Harness::with(kind, [talker], configure).await?;
    let instance = harness.create::<_, ()>("talker", ()).await?;
    harness.run_until_idle().await?;
    ended(&instance).await?;
    let lines = log_lines(&instance, None).await?;
    let user: Vec<_> = lines.iter().filter(|line| &*line.category == "workflow").collect();
    assert!(user.len() == 2 && user.iter().all(|line| line.data.is_none()));
    assert!(user[1].message.contains("cannot be written as JSON"), "{:?}", user[1].message);
    let system = system_lines(&instance, None).await?;
    assert!(system.iter().any(|line| line.contains("101 bytes")), "{system:?}");
    Ok(())
}

// ---- spec map 13: is_replay ----

async fn is_replay_is_true_exactly_while_recorded_steps_are_passed(kind: StoreKind) -> Result<()> {
    let napper = flow("napper", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            step.log().info("start");
            step.run("work", async {
                step.log().info("inside");
                Ok(())
            })
            .await?;
            step.log().info("between");
            step.sleep("nap", "1 hour").await?;
            step.log().info("after");
            step.run("more", async { Ok(()) }).await?;
            step.log().info("end");
            Ok(())
        })
    });
    let harness = Harness::with(kind, [napper], no_parking).await?;
    let instance = harness.create::<_, ()>("napper", ()).await?;
    harness.run_to_end().await?;
    ended(&instance).await?;
    let expected = [
        "start - -",
        "inside work 1",
        "between - -",
        "start - - replay",
        "between - - replay",
        "after - -",
        "end - -",
    ];
    assert_eq!(told(&instance).await?, expected);
    Ok(())
}

async fn is_replay_is_true_before_a_retry_and_false_in_it(kind: StoreKind) -> Result<()> {
    let flaky = flow("flaky", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            step.log().info("before");
            step.run_with("work", |cx| async move {
                step.log().info("inside");
                if cx.attempt() == 1 { Err(Error::new("busy")) } else { Ok(()) }
            })
            .await?;
            step.log().info("after");
            Ok(())
        })
    });
    let harness = Harness::with(kind, [flaky], no_parking).await?;
    let instance = harness.create::<_, ()>("flaky", ()).await?;
    harness.run_to_end().await?;
    ended(&instance).await?;
    let expected =
        ["before - -", "inside work 1", "before - - replay", "inside work 2", "after - -"];
    assert_eq!(told(&instance).await?, expected);
    Ok(())
}

async fn is_replay_is_false_behind_the_last_recorded_step(kind: StoreKind) -> Result<()> {
    let gate = Gate::new();
    let work = || {
        flow("work", &gate, |gate, _: Event<()>, step| {
            Box::pin(async move {
                step.log().info("start");
                step.run("recorded", async { Ok(()) }).await?;
                step.log().info("between");
                step.run("cut off", gate.pass()).await
            })
        })
    };
    let harness = Harness::on(kind, [work()]).await?;
    let instance = harness.workflow::<(), ()>("work")?.create(()).id("one").await?;
    drop(tick_until_arrived(harness.engine(), &gate).await?);
    drop(instance);
    let harness = harness.crash_and_restart([work()]).await?;
    harness.advance("30 seconds");
    gate.open();
    harness.run_until_idle().await?;
    let instance = harness.workflow::<(), ()>("work")?.get("one").await?;
    ended(&instance).await?;
    let told = told(&instance).await?;
    assert_eq!(told[told.len() - 2..], ["start - - replay", "between - -"], "{told:?}");
    Ok(())
}

async fn a_run_that_stays_in_memory_writes_each_line_once(kind: StoreKind) -> Result<()> {
    let napper = flow("napper", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            step.log().info("start");
            step.sleep("nap", "1 hour").await?;
            step.log().info("after");
            Ok(())
        })
    });
    let harness = Harness::on(kind, [napper]).await?;
    let instance = harness.create::<_, ()>("napper", ()).await?;
    harness.run_to_end().await?;
    ended(&instance).await?;
    assert_eq!(told(&instance).await?, ["start - -", "after - -"]);
    Ok(())
}

async fn lines_of_a_body_that_is_still_running_are_readable_after_a_second(
    kind: StoreKind,
) -> Result<()> {
    let gate = Gate::new();
    let work = flow("work", &gate, |gate, _: Event<()>, step| {
        Box::pin(async move {
            let gate = &gate;
            step.run("long", async move {
                step.log().info("half way");
                gate.pass().await
            })
            .await
        })
    });
    let harness = Harness::on(kind, [work]).await?;
    let instance = harness.create::<_, ()>("work", ()).await?;
    let tick = tick_until_arrived(harness.engine(), &gate).await?;
    harness.advance("1 second");
    eventually("the line", || async {
        Ok((told(&instance).await? == ["half way long 1"]).then_some(()))
    })
    .await?;
    assert_eq!(steps_of(&instance, None).await?, [""; 0], "the body is still running");
    gate.open();
    tick.await?;
    ended(&instance).await?;
    assert_eq!(told(&instance).await?, ["half way long 1"], "and stored once");
    Ok(())
}

async fn tracing_events_are_stored_with_step_and_attempt(kind: StoreKind) -> Result<()> {
    let subscriber = tracing_subscriber::registry().with(piton::durable_log_layer());
    let _guard = tracing::subscriber::set_default(subscriber);
    let traced = flow("traced", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            tracing::warn!("outside");
            step.run_with("charge", |cx| async move {
                tracing::info!(cents = 125, card = "visa", attempt = cx.attempt(), "charging");
                tracing::debug!("too much detail");
                if cx.attempt() == 1 { Err(Error::new("busy")) } else { Ok(()) }
            })
            .await
        })
    });
    let harness = Harness::on(kind, [traced]).await?;
    let instance = harness.create::<_, ()>("traced", ()).await?;
    harness.run_to_end().await?;
    ended(&instance).await?;
    assert_eq!(told(&instance).await?, ["outside - -", "charging charge 1", "charging charge 2"]);
    let lines = log_lines(&instance, None).await?;
    let charging = lines.iter().find(|line| &*line.message == "charging").unwrap();
    assert_eq!((charging.level, &*charging.category), (LogLevel::Info, module_path!()));
    let data: Value = serde_json::from_str(charging.data.as_ref().unwrap().as_str())?;
    assert_eq!(data, json!({ "cents": 125, "card": "visa", "attempt": 1 }));
    Ok(())
}

// ---- 51: the story ----

/// The engine's own lines without the names of runners.
async fn story<O>(instance: &InstanceHandle<O>, run: u32) -> Result<Vec<String>> {
    let lines = system_lines(instance, Some(run)).await?;
    let anonymous = |line: String| {
        let words = line.split(' ').filter(|word| !word.starts_with("runner_"));
        words.collect::<Vec<_>>().join(" ")
    };
    Ok(lines.into_iter().map(anonymous).collect())
}

async fn the_log_tells_the_story_of_a_run(kind: StoreKind) -> Result<()> {
    let eventful = flow("eventful", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            step.run_with("charge", |cx| async move {
                if cx.attempt() == 1 {
                    Err(Error::new("gateway busy").named("Busy"))
                } else {
                    Ok(())
                }
            })
            .retries(Retries::constant(1, "1 minute"))
            .await?;
            step.wait_for_event::<u32>("answer", "answer").timeout("1 hour").outcome().await?;
            step.run("last", async { Err::<(), _>(Error::non_retryable("no more")) }).await
        })
    });
    let harness = Harness::on(kind, [eventful]).await?;
    let instance = harness.create::<_, ()>("eventful", ()).await?;
    harness.run_to_end().await?;
    assert_eq!(ended(&instance).await.unwrap_err().message(), "no more");
    let expected = [
        "claimed by (epoch 1)",
        "attempt 1 failed, next in 1 minute: Busy: gateway busy",
        "claimed by (epoch 2)",
        "claimed by (epoch 3)",
        "timed out: no event of type `answer` arrived within 1 hour",
        "failed for good after attempt 1: Error: no more",
    ];
    assert_eq!(story(&instance, 0).await?, expected);
    let lines = log_lines(&instance, None).await?;
    let retry = lines.iter().find(|line| line.message.contains("next in")).unwrap();
    assert_eq!((retry.step.as_ref().unwrap().as_str(), retry.attempt), ("charge", Some(1)));
    let timeout = lines.iter().find(|line| line.message.contains("timed out")).unwrap();
    assert_eq!((timeout.step.as_ref().unwrap().as_str(), timeout.attempt), ("answer", None));

    instance.restart().await?;
    let expected = ["restarted as run 1; run 0 was errored: Error: no more"];
    assert_eq!(story(&instance, 1).await?, expected);
    Ok(())
}

async fn the_log_tells_of_pauses_and_of_the_end(kind: StoreKind) -> Result<()> {
    let gate = Gate::new();
    let work = flow("work", &gate, |gate, _: Event<()>, step| {
        Box::pin(async move {
            step.run("work", gate.pass()).await?;
            step.sleep("nap", "1 hour").await
        })
    });
    let harness = Harness::on(kind, [work]).await?;
    let instance = harness.create::<_, ()>("work", ()).await?;
    instance.pause().await?;
    instance.resume().await?;
    let tick = tick_until_arrived(harness.engine(), &gate).await?;
    instance.pause().await?;
    gate.open();
    tick.await?;
    instance.resume().await?;
    harness.run_until_idle().await?;
    instance.terminate().await?;
    let expected = [
        "paused",
        "resumed",
        "claimed by (epoch 1)",
        "pause requested; takes effect at the next boundary",
        "paused",
        "resumed",
        "claimed by (epoch 2)",
        "terminated",
    ];
    assert_eq!(story(&instance, 0).await?, expected);
    Ok(())
}

async fn the_log_warns_once_when_a_step_name_is_used_again(kind: StoreKind) -> Result<()> {
    let forgetful = flow("forgetful", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            let mut sum = 0;
            for n in 1..=3 {
                sum += step.run("same", async { Ok(n) }).await?;
            }
            step.sleep("nap", "1 hour").await?;
            Ok(sum)
        })
    });
    let harness = Harness::with(kind, [forgetful], no_parking).await?;
    let instance = harness.create::<_, i32>("forgetful", ()).await?;
    harness.run_to_end().await?;
    assert_eq!(ended(&instance).await?, 3);
    let story = story(&instance, 0).await?;
    let warnings = story.iter().filter(|line| line.contains("was used before")).count();
    assert_eq!(warnings, 1, "{story:?}");
    Ok(())
}
