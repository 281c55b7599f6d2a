//! Durable logs and history: every line knows where it was written, the engine tells what it did, and paging loses
//! and repeats nothing.

#![allow(clippy::unwrap_used, reason = "tests")]

use piton::prelude::*;
use piton::{
    Cursor, EngineBuilder, HistoryQuery, InstanceHandle, InstanceStatus, LogLevel, LogLine, Page,
    Registration,
};
use piton_testing::{Harness, StoreKind};
use serde_json::{Value, json};
use tracing_subscriber::prelude::*;

use crate::support2::{
    Gate, ended, eventually, flow, log_lines, on_both_stores, steps_of, system_lines,
    tick_until_arrived,
};

on_both_stores!(
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
    history_forwards_loses_and_repeats_nothing_while_rows_are_added,
    history_backwards_loses_and_repeats_nothing_while_rows_are_added,
    a_follower_goes_on_from_the_last_page_of_logs,
    log_lines_are_filtered_by_level_and_category,
    history_shows_any_run_and_refuses_one_that_never_was,
    lists_of_instances_lose_and_repeat_nothing_while_some_are_created,
    damaged_and_foreign_cursors_are_refused,
    page_sizes_have_bounds,
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

// ---- 52: paging ----

/// One step and one log line for every event it gets.
fn busy() -> Registration {
    flow("busy", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            for n in 0.. {
                let told = step.wait_for_event::<u32>(format!("{n}"), "more").await?;
                step.log().info(format!("{told}")).category("count");
            }
            Ok(())
        })
    })
}

async fn feed(
    harness: &Harness,
    instance: &InstanceHandle<()>,
    numbers: std::ops::Range<u32>,
) -> Result<()> {
    for n in numbers {
        instance.send_event("more", &n).await?;
    }
    harness.run_until_idle().await?;
    Ok(())
}

/// Reads page after page of steps, events and log lines, and lets `between` add rows after each.
async fn scan<F: Future<Output = Result<()>>>(
    query: impl Fn() -> HistoryQuery,
    mut between: impl FnMut() -> F,
) -> Result<[Vec<String>; 3]> {
    fn take<T>(
        page: Page<T>,
        name: impl Fn(T) -> String,
        into: &mut Vec<String>,
    ) -> (Option<Cursor>, bool) {
        into.extend(page.items.into_iter().map(name));
        (page.cursor, page.has_next_page)
    }
    let mut read = [Vec::new(), Vec::new(), Vec::new()];
    let (mut steps, mut events, mut logs) = (None, None, None);
    loop {
        let mut query = query().page_size(3).log_category("count");
        if let Some(cursor) = steps.clone() {
            query = query.steps_after(cursor);
        }
        if let Some(cursor) = events.clone() {
            query = query.events_after(cursor);
        }
        if let Some(cursor) = logs.clone() {
            query = query.logs_after(cursor);
        }
        let page = query.await?;
        let (cursor, more_steps) = take(page.steps, |step| step.name.to_string(), &mut read[0]);
        steps = cursor.or(steps);
        let payload = |event: piton::EventRecord| event.payload.as_str().to_owned();
        let (cursor, more_events) = take(page.events, payload, &mut read[1]);
        events = cursor.or(events);
        let message = |log: piton::LogRecord| log.line.message.to_string();
        let (cursor, more_logs) = take(page.logs.unwrap(), message, &mut read[2]);
        logs = cursor.or(logs);
        if !(more_steps || more_events || more_logs) {
            return Ok(read);
        }
        between().await?;
    }
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

async fn history_forwards_loses_and_repeats_nothing_while_rows_are_added(
    kind: StoreKind,
) -> Result<()> {
    let harness = Harness::on(kind, [busy()]).await?;
    let instance = harness.create::<_, ()>("busy", ()).await?;
    feed(&harness, &instance, 0..10).await?;
    let next = std::cell::Cell::new(10);
    let [steps, events, logs] = scan(
        || instance.history(),
        || {
            let n = next.get();
            // At first more than a page holds, then nothing, so that the scan can catch up.
            let more = if n < 22 { 4 } else { 0 };
            next.set(n + more);
            feed(&harness, &instance, n..n + more)
        },
    )
    .await?;
    let total = next.get();
    assert_eq!(total, 22);
    assert_eq!(steps, numbers(0..total + 1), "the open wait is a step too");
    assert_eq!(events, numbers(0..total));
    assert_eq!(logs, numbers(0..total));
    Ok(())
}

async fn history_backwards_loses_and_repeats_nothing_while_rows_are_added(
    kind: StoreKind,
) -> Result<()> {
    let harness = Harness::on(kind, [busy()]).await?;
    let instance = harness.create::<_, ()>("busy", ()).await?;
    feed(&harness, &instance, 0..10).await?;
    let next = std::cell::Cell::new(10);
    let [steps, events, logs] = scan(
        || instance.history().newest_first(),
        || {
            let n = next.replace(next.get() + 2);
            feed(&harness, &instance, n..n + 2)
        },
    )
    .await?;
    let backwards = |range| numbers(range).into_iter().rev().collect::<Vec<_>>();
    assert_eq!(steps, backwards(0..11), "what was there when the scan began, once each");
    assert_eq!(events, backwards(0..10));
    assert_eq!(logs, backwards(0..10));
    Ok(())
}

async fn a_follower_goes_on_from_the_last_page_of_logs(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [busy()]).await?;
    let instance = harness.create::<_, ()>("busy", ()).await?;
    feed(&harness, &instance, 0..2).await?;
    let read = |cursor: Option<Cursor>| {
        let mut query = instance.history().log_category("count");
        if let Some(cursor) = cursor {
            query = query.logs_after(cursor);
        }
        async move {
            let page = query.await?.logs.unwrap();
            assert!(!page.has_next_page);
            let lines: Vec<_> =
                page.items.iter().map(|record| record.line.message.to_string()).collect();
            Ok::<_, Error>((lines, page.cursor))
        }
    };
    let (lines, cursor) = read(None).await?;
    assert_eq!(lines, ["0", "1"]);
    let (lines, cursor) = read(cursor).await?;
    assert_eq!(lines, [""; 0], "nothing new");
    feed(&harness, &instance, 2..4).await?;
    // The cursor survives as text, as it does over HTTP.
    let cursor = cursor.unwrap().to_string().parse().unwrap();
    let (lines, _) = read(Some(cursor)).await?;
    assert_eq!(lines, ["2", "3"]);
    Ok(())
}

async fn log_lines_are_filtered_by_level_and_category(kind: StoreKind) -> Result<()> {
    let levels = flow("levels", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            step.log().info("i");
            step.log().warn("w").category("payments");
            step.log().info("ip").category("payments");
            Ok(())
        })
    });
    let harness = Harness::on(kind, [levels]).await?;
    let instance = harness.create::<_, ()>("levels", ()).await?;
    harness.run_until_idle().await?;
    let lines = async |query: HistoryQuery| {
        let items = query.await?.logs.unwrap().items;
        Ok::<_, Error>(items.iter().map(|log| log.line.message.to_string()).collect::<Vec<_>>())
    };
    assert_eq!(lines(instance.history().log_level(LogLevel::Warn)).await?, ["w"]);
    assert_eq!(lines(instance.history().log_category("payments")).await?, ["w", "ip"]);
    let both = instance.history().log_category("payments").log_level(LogLevel::Info);
    assert_eq!(lines(both).await?, ["ip"]);
    assert_eq!(lines(instance.history().log_category("none")).await?, [""; 0]);
    assert!(instance.history().await?.logs.is_none(), "only when asked for");
    Ok(())
}

async fn history_shows_any_run_and_refuses_one_that_never_was(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [busy()]).await?;
    let instance = harness.create::<_, ()>("busy", ()).await?;
    feed(&harness, &instance, 0..3).await?;
    instance.restart().await?;
    feed(&harness, &instance, 10..12).await?;
    for (run, expected) in [(0, numbers(0..3)), (1, numbers(10..12))] {
        let history = instance.history().run_number(run).log_category("count").await?;
        assert_eq!(history.run_number, run);
        let logs = history.logs.unwrap().items;
        assert!(logs.iter().all(|log| log.run == run));
        let logs: Vec<_> = logs.iter().map(|log| log.line.message.to_string()).collect();
        assert_eq!(logs, expected);
        assert_eq!(history.steps.items.len(), expected.len() + 1);
        assert_eq!(history.events.items.len(), expected.len());
    }
    assert_eq!(instance.history().await?.run_number, 1, "the current one if nothing is said");
    let refused = instance.history().run_number(2).await.unwrap_err();
    assert_eq!(refused.code(), Some("INVALID_RUN_NUMBER"));
    assert!(refused.message().contains('2') && refused.message().contains('1'), "{refused}");
    Ok(())
}

async fn lists_of_instances_lose_and_repeat_nothing_while_some_are_created(
    kind: StoreKind,
) -> Result<()> {
    let harness = Harness::on(kind, [busy()]).await?;
    let workflow = harness.workflow::<(), ()>("busy")?;
    // All in one millisecond: no list may depend on times that differ.
    for n in 0..10 {
        let instance = workflow.create(()).id(format!("{n}")).await?;
        if n % 2 == 0 {
            instance.pause().await?;
        }
    }
    for (status, expected) in [
        (None, vec!["9", "8", "7", "6", "5", "4", "3", "2", "1", "0"]),
        (Some(InstanceStatus::Paused), vec!["8", "6", "4", "2", "0"]),
    ] {
        let (mut seen, mut cursor) = (Vec::new(), None);
        for round in 0.. {
            let mut list = workflow.list().page_size(3);
            if let Some(status) = status {
                list = list.status(status);
            }
            if let Some(cursor) = cursor.take() {
                list = list.after(cursor);
            }
            let page = list.await?;
            seen.extend(page.items.iter().map(|instance| instance.id.to_string()));
            let new = format!("new-{}-{round}", status.is_some());
            workflow.create(()).id(new).await?.pause().await?;
            if !page.has_next_page {
                assert!(page.cursor.is_none());
                break;
            }
            cursor = page.cursor;
        }
        seen.retain(|id| !id.starts_with("new-false"));
        assert_eq!(seen, expected);
    }
    Ok(())
}

async fn damaged_and_foreign_cursors_are_refused(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [busy()]).await?;
    let workflow = harness.workflow::<(), ()>("busy")?;
    let one = workflow.create(()).id("one").await?;
    let two = workflow.create(()).id("two").await?;
    feed(&harness, &one, 0..3).await?;
    feed(&harness, &two, 0..3).await?;
    let page = one.history().page_size(1).log_category("count").await?;
    let (steps, events) = (page.steps.cursor.unwrap(), page.events.cursor.unwrap());
    let logs = page.logs.unwrap().cursor.unwrap();
    let list = workflow.list().page_size(1).await?.cursor.unwrap();

    one.history().steps_after(steps.clone()).events_after(events.clone()).await?;
    one.restart().await?;
    let foreign = [
        ("another list", one.history().run_number(0).steps_after(events.clone())),
        ("another list", one.history().run_number(0).events_after(steps.clone())),
        ("another list", one.history().run_number(0).steps_after(list.clone())),
        ("another instance", two.history().steps_after(steps.clone())),
        ("another run", one.history().steps_after(steps.clone())),
        ("another order", one.history().run_number(0).newest_first().steps_after(steps.clone())),
        ("another filter", one.history().run_number(0).with_logs().logs_after(logs)),
    ];
    for (what, query) in foreign {
        assert_eq!(query.await.unwrap_err().code(), Some("INVALID_CURSOR"), "{what}");
    }
    let filtered = workflow.list().status(InstanceStatus::Paused).after(list.clone()).await;
    assert_eq!(filtered.unwrap_err().code(), Some("INVALID_CURSOR"), "another status");
    let foreign = workflow.list().after(events).await;
    assert_eq!(foreign.unwrap_err().code(), Some("INVALID_CURSOR"), "another list");

    let text = steps.to_string();
    let mut damaged = vec![String::new(), "x".into(), text[1..].into(), format!("{text}0")];
    damaged.extend((0..text.len()).map(|at| {
        let other = if &text[at..=at] == "0" { "1" } else { "0" };
        format!("{}{other}{}", &text[..at], &text[at + 1..])
    }));
    for damaged in damaged {
        let error: Error = damaged.parse::<Cursor>().unwrap_err().into();
        assert_eq!(error.code(), Some("INVALID_CURSOR"), "{damaged}");
    }
    Ok(())
}

async fn page_sizes_have_bounds(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [busy()]).await?;
    let workflow = harness.workflow::<(), ()>("busy")?;
    let instance = workflow.create(()).await?;
    for size in [0, 101, u32::MAX] {
        let history = instance.history().page_size(size).await.unwrap_err();
        let list = workflow.list().page_size(size).await.unwrap_err();
        for refused in [history, list] {
            assert_eq!(refused.code(), Some("VALIDATION_ERROR"));
            assert!(refused.message().contains("1..=100"), "{refused}");
            assert!(refused.message().contains(&size.to_string()), "{refused}");
        }
    }
    feed(&harness, &instance, 0..101).await?;
    for (size, expected) in [(1, 1), (100, 100)] {
        let page = instance.history().page_size(size).with_logs().await?;
        assert_eq!(page.events.items.len(), expected);
        assert!(page.events.has_next_page && page.steps.has_next_page);
    }
    assert_eq!(instance.history().await?.events.items.len(), 25, "the default");
    Ok(())
}
