//! Bad input is refused where it enters, with a stable code and a sentence that names the limit and the value; and
//! every limit can be configured.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::HashMap;

use piton::prelude::*;
use piton::{BatchItem, EngineBuilder, IntoSpan, Registration, Span, StepStatus};
use piton_testing::{Harness, StoreKind, on_every_store};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::support::{Trail, ended, flow, steps_of, system_lines};

on_every_store!(
    workflow_names_are_checked_where_they_are_registered_and_looked_up,
    instance_ids_are_checked_at_every_entrance,
    event_types_are_checked_at_every_entrance,
    step_names_are_checked_for_every_kind_of_step,
    step_names_are_trimmed,
    a_payload_at_its_limit_passes_and_one_byte_more_is_refused,
    an_output_over_the_limit_fails_the_run_for_good,
    values_that_are_no_json_are_refused,
    idempotency_keys_are_bounded,
    a_run_has_so_many_steps_and_sleeps_and_waits_do_not_count,
    a_batch_has_so_many_instances,
    a_sleep_is_so_long_and_a_retry_delay_is_capped_at_that,
    a_sleep_until_a_moment_has_the_same_limit_and_replays_the_same_way,
    a_wait_is_so_short_and_so_long,
    the_default_timeout_of_waits_is_configurable_and_keeps_to_the_limits,
    a_page_has_so_many_rows,
    a_page_has_so_many_bytes,
    log_messages_and_categories_are_bounded,
    log_lines_between_two_boundaries_are_bounded,
    durations_that_are_none_are_refused_where_they_are_used,
    an_engine_with_a_senseless_configuration_does_not_start,
);

/// A harness with other limits.
async fn limited(
    kind: StoreKind,
    workflows: impl IntoIterator<Item = Registration>,
    change: impl FnOnce(&mut Limits),
) -> Result<Harness> {
    let mut limits = Limits::default();
    change(&mut limits);
    Harness::with(kind, workflows, move |builder| builder.limits(limits.clone())).await
}

/// The error has this code, and its message has all of these in it.
#[track_caller]
fn assert_refused<T>(result: Result<T>, code: &str, parts: &[&str]) {
    let Err(error) = result else { panic!("not refused: {code} {parts:?}") };
    assert_eq!(error.code(), Some(code), "{error}");
    assert!(!error.is_retryable(), "trying again cannot help: {error}");
    for part in parts {
        assert!(error.message().contains(part), "no {part:?} in {:?}", error.message());
    }
}

/// Identifiers that nothing may be called; the last is one byte longer than the limit of 8.
const BAD_IDENTIFIERS: [&str; 9] = ["", " ", "-a", "a b", "a/b", "ä", "a\0", "a\n", "123456789"];

/// What the message about each of them has to say.
fn says(bad: &str) -> Vec<&str> {
    match bad.len() {
        0 => vec!["empty"],
        9 => vec!["123456789", "9 bytes", "limit of 8"],
        _ => vec!["letters, digits"],
    }
}

fn noop(name: &str) -> Registration {
    flow(name, &(), |(), _: Event<()>, _| Box::pin(async { Ok(()) }))
}

// ---- names ----

async fn workflow_names_are_checked_where_they_are_registered_and_looked_up(
    kind: StoreKind,
) -> Result<()> {
    let short = |limits: &mut Limits| limits.workflow_name_bytes_max = 8;
    let harness = limited(kind, [noop("12345678")], short).await?;
    for bad in BAD_IDENTIFIERS {
        let started = limited(kind, [noop(bad)], short).await;
        assert_refused(started, "INVALID_WORKFLOW_NAME", &says(bad));
        let found = harness.workflow::<(), ()>(bad);
        assert_refused(found, "INVALID_WORKFLOW_NAME", &says(bad));
    }
    let twice = Harness::on(kind, [noop("same"), noop("same")]).await;
    assert_refused(twice, "INVALID_WORKFLOW_NAME", &["same", "twice"]);
    Harness::on(kind, [noop(&"w".repeat(64))]).await?;
    let long = Harness::on(kind, [noop(&"w".repeat(65))]).await;
    assert_refused(long, "INVALID_WORKFLOW_NAME", &["65 bytes", "limit of 64"]);
    Ok(())
}

async fn instance_ids_are_checked_at_every_entrance(kind: StoreKind) -> Result<()> {
    let harness = limited(kind, [noop("noop")], |limits| limits.instance_id_bytes_max = 8).await?;
    let workflow = harness.workflow::<(), ()>("noop")?;
    for bad in BAD_IDENTIFIERS {
        let created = workflow.create(()).id(bad).await;
        assert_refused(created, "INVALID_INSTANCE_ID", &says(bad));
        let batch = workflow.create_batch([BatchItem::new(bad, ())]).await;
        assert_refused(batch, "INVALID_INSTANCE_ID", &says(bad));
        assert_refused(workflow.get(bad).await, "INVALID_INSTANCE_ID", &says(bad));
    }
    for good in ["a", "_", "0-_", "12345678"] {
        assert_eq!(workflow.create(()).id(good).await?.id(), good);
    }
    assert!(workflow.list().await?.items.len() == 4, "nothing else was created");
    let own = workflow.create(()).await?;
    assert!(own.id().starts_with("inst_"), "the engine's own ids need no limit: {own:?}");
    Ok(())
}

async fn event_types_are_checked_at_every_entrance(kind: StoreKind) -> Result<()> {
    let waits = flow("waits", &(), |(), event_type: Event<String>, step| {
        Box::pin(async move {
            step.wait_for_event::<()>("wait", event_type.as_str()).timeout("1 second").await
        })
    });
    let harness = limited(kind, [waits], |limits| limits.event_type_bytes_max = 8).await?;
    for bad in BAD_IDENTIFIERS {
        let instance = harness.create::<_, ()>("waits", bad.to_owned()).await?;
        let sent = instance.send_event(bad, &()).await;
        assert_refused(sent, "INVALID_EVENT_TYPE", &says(bad));
        assert!(instance.history().await?.events.items.is_empty());
        harness.run_until_idle().await?;
        assert_refused(ended(&instance).await, "INVALID_EVENT_TYPE", &says(bad));
    }
    let instance = harness.create::<_, ()>("waits", "12345678".to_owned()).await?;
    instance.send_event("12345678", &()).await?;
    harness.run_until_idle().await?;
    ended(&instance).await
}

async fn step_names_are_checked_for_every_kind_of_step(kind: StoreKind) -> Result<()> {
    let trail = Trail::default();
    let any = flow("any", &trail, |trail, event: Event<(String, String)>, step| {
        Box::pin(async move {
            let (what, name) = (event.0.as_str(), event.1.as_str());
            match what {
                "run" => step.run(name, async { trail.note("body") }).await,
                "run_with" => step.run_with(name, |_| async { trail.note("body") }).await,
                "sleep" => step.sleep(name, "1 second").await,
                "sleep_until" => step.sleep_until(name, event.timestamp).await,
                _ => step.wait_for_event(name, "go").timeout("1 second").await,
            }
        })
    });
    let harness = limited(kind, [any], |limits| limits.step_name_bytes_max = 8).await?;
    for what in ["run", "run_with", "sleep", "sleep_until", "wait"] {
        for (bad, parts) in [
            ("", vec!["empty"]),
            (" \t\n", vec!["empty"]),
            ("123456789", vec!["123456789", "9 bytes", "limit of 8"]),
            ("ääääö", vec!["10 bytes", "limit of 8"]),
        ] {
            let params = (what.to_owned(), bad.to_owned());
            let instance = harness.create::<_, ()>("any", params).await?;
            harness.run_until_idle().await?;
            assert_refused(ended(&instance).await, "INVALID_STEP_NAME", &parts);
            assert_eq!(steps_of(&instance, None).await?, [""; 0]);
        }
    }
    assert_eq!(trail.seen(), [""; 0], "no body ran");
    Ok(())
}

async fn step_names_are_trimmed(kind: StoreKind) -> Result<()> {
    let trimmed = flow("trimmed", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            let first = step.run("  charge\n", async { Ok(1) }).await?;
            let second = step.run("charge", async { Ok(2) }).await?;
            Ok((first, second))
        })
    });
    let harness = Harness::on(kind, [trimmed]).await?;
    let instance = harness.create::<_, (i32, i32)>("trimmed", ()).await?;
    harness.run_until_idle().await?;
    assert_eq!(ended(&instance).await?, (1, 1), "one name, one step");
    assert_eq!(steps_of(&instance, None).await?, ["charge completed"]);
    Ok(())
}

// ---- payloads ----

/// Text whose JSON has so many bytes.
fn json_of(bytes: usize) -> String {
    "x".repeat(bytes - 2)
}

async fn a_payload_at_its_limit_passes_and_one_byte_more_is_refused(kind: StoreKind) -> Result<()> {
    let echo = flow("echo", &(), |(), text: Event<String>, step| {
        Box::pin(async move {
            let told = step.wait_for_event::<String>("more", "more").await?;
            Ok((text.len(), told.len()))
        })
    });
    let harness = limited(kind, [echo], |limits| limits.payload_bytes_max = 64).await?;
    let workflow = harness.workflow::<String, (usize, usize)>("echo")?;
    let too_large = ["65 bytes", "limit of 64", "payload_bytes_max"];
    let with = |what| [&too_large[..], &[what]].concat();
    let refused = workflow.create(json_of(65)).id("one").await;
    assert_refused(refused, "PAYLOAD_TOO_LARGE", &with("params"));
    let refused = workflow.create_batch([BatchItem::new("one", json_of(65))]).await;
    assert_refused(refused, "PAYLOAD_TOO_LARGE", &with("params"));
    let instance = workflow.create(json_of(64)).id("one").await?;

    let refused = instance.send_event("more", &json_of(65)).await;
    assert_refused(refused, "PAYLOAD_TOO_LARGE", &with("payload of event"));
    instance.send_event("more", &json_of(64)).await?;
    harness.run_until_idle().await?;
    assert_eq!(ended(&instance).await?, (62, 62));
    Ok(())
}

async fn an_output_over_the_limit_fails_the_run_for_good(kind: StoreKind) -> Result<()> {
    let produce = flow("produce", &(), |(), event: Event<(bool, usize)>, step| {
        Box::pin(async move {
            let (in_step, bytes) = *event;
            if in_step {
                step.run_with("large one", |_| async move { Ok(json_of(bytes)) }).await?;
                return Ok("fine".to_owned());
            }
            Ok(json_of(bytes))
        })
    });
    let harness = limited(kind, [produce], |limits| limits.payload_bytes_max = 64).await?;
    for (in_step, what) in [(true, "large one"), (false, "output")] {
        let instance = harness.create::<_, String>("produce", (in_step, 64_usize)).await?;
        harness.run_until_idle().await?;
        ended(&instance).await?;
        let instance = harness.create::<_, String>("produce", (in_step, 65_usize)).await?;
        harness.run_until_idle().await?;
        let parts = ["65 bytes", "limit of 64", "payload_bytes_max", what];
        assert_refused(ended(&instance).await, "PAYLOAD_TOO_LARGE", &parts);
        let steps = instance.history().await?.steps.items;
        if in_step {
            assert_eq!((steps[0].status, steps[0].attempts), (StepStatus::Errored, 1));
            assert_eq!(steps[0].result, None);
        }
    }
    Ok(())
}

/// Serde can write it, JSON cannot: its keys are no text.
#[derive(Serialize, Deserialize, Clone, Default)]
struct NoJson(HashMap<(u8, u8), u8>);

impl NoJson {
    fn new() -> Self {
        Self(HashMap::from([((1, 2), 3)]))
    }
}

async fn values_that_are_no_json_are_refused(kind: StoreKind) -> Result<()> {
    let odd = flow("odd", &(), |(), _: Event<NoJson>, step| {
        Box::pin(async move { step.run("odd step", async { Ok(NoJson::new()) }).await.map(drop) })
    });
    let output = flow("output", &(), |(), _: Event<()>, _| Box::pin(async { Ok(NoJson::new()) }));
    let harness = Harness::on(kind, [odd, output]).await?;
    let workflow = harness.workflow::<NoJson, ()>("odd")?;
    let created = workflow.create(NoJson::new()).await;
    assert_refused(created, "ENCODE_FAILED", &["params", "cannot be written as JSON"]);
    let instance = workflow.create(NoJson::default()).await?;
    let sent = instance.send_event("go", &NoJson::new()).await;
    assert_refused(sent, "ENCODE_FAILED", &["go", "cannot be written as JSON"]);
    harness.run_until_idle().await?;
    assert_refused(ended(&instance).await, "ENCODE_FAILED", &["odd step"]);
    let instance = harness.create::<_, NoJson>("output", ()).await?;
    harness.run_until_idle().await?;
    assert_refused(ended(&instance).await, "ENCODE_FAILED", &["output"]);
    Ok(())
}

async fn idempotency_keys_are_bounded(kind: StoreKind) -> Result<()> {
    let change = |limits: &mut Limits| limits.idempotency_key_bytes_max = 8;
    let harness = limited(kind, [noop("noop")], change).await?;
    let instance = harness.create::<_, ()>("noop", ()).await?;
    for (bad, bytes) in [("", "0 bytes"), ("123456789", "9 bytes")] {
        let sent = instance.send_event("go", &()).idempotency_key(bad).await;
        let parts = [bytes, "1..=8", "idempotency_key_bytes_max"];
        assert_refused(sent, "VALIDATION_ERROR", &parts);
    }
    instance.send_event("go", &()).idempotency_key("any t€xt").await.unwrap_err();
    instance.send_event("go", &()).idempotency_key("any\0 €").await?;
    assert_eq!(instance.history().await?.events.items.len(), 1);
    Ok(())
}

// ---- counts ----

async fn a_run_has_so_many_steps_and_sleeps_and_waits_do_not_count(kind: StoreKind) -> Result<()> {
    let trail = Trail::default();
    let many = flow("many", &trail, |trail, steps: Event<u32>, step| {
        Box::pin(async move {
            for n in 0..*steps {
                let mark = || trail.note(n.to_string());
                step.run(format!("step {n}"), async { mark() }).await?;
                step.run(format!("step {n}"), async { mark() }).await?;
                step.sleep(format!("sleep {n}"), "1 second").await?;
                step.wait_for_event::<()>(format!("wait {n}"), "go").outcome().await?;
            }
            Ok(())
        })
    });
    let harness = limited(kind, [many], |limits| limits.steps_max = 3).await?;
    let instance = harness.create::<_, ()>("many", 3_u32).await?;
    harness.run_to_end().await?;
    ended(&instance).await?;
    let instance = harness.create::<_, ()>("many", 4_u32).await?;
    harness.run_to_end().await?;
    let parts = ["step 3", "limit of 3", "steps_max"];
    assert_refused(ended(&instance).await, "TOO_MANY_STEPS", &parts);
    assert_eq!(trail.count("3"), 0, "its body did not run");
    Ok(())
}

async fn a_batch_has_so_many_instances(kind: StoreKind) -> Result<()> {
    let harness = limited(kind, [noop("noop")], |limits| limits.batch_max = 3).await?;
    let workflow = harness.workflow::<(), ()>("noop")?;
    let batch = |n| (0..n).map(|n| BatchItem::new(format!("{n}"), ()));
    let refused = workflow.create_batch(batch(4)).await;
    assert_refused(refused, "VALIDATION_ERROR", &["more than 3", "batch_max"]);
    assert_eq!(workflow.create_batch(batch(3)).await?.len(), 3);
    Ok(())
}

async fn a_page_has_so_many_rows(kind: StoreKind) -> Result<()> {
    let harness = limited(kind, [noop("noop")], |limits| limits.page_size_max = 250).await?;
    let workflow = harness.workflow::<(), ()>("noop")?;
    let instance = workflow.create(()).await?;
    instance.history().page_size(250).await?;
    workflow.list().page_size(250).await?;
    let parts = ["251", "1..=250", "page_size_max"];
    assert_refused(instance.history().page_size(251).await, "VALIDATION_ERROR", &parts);
    assert_refused(workflow.list().page_size(251).await, "VALIDATION_ERROR", &parts);
    Ok(())
}

/// Writes a line of a hundred bytes and returns a hundred bytes, three times.
fn verbose() -> Registration {
    flow("verbose", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            for n in 0..3 {
                step.log().info("x".repeat(100));
                step.run(format!("step {n}"), async { Ok("x".repeat(98)) }).await?;
            }
            Ok("x".repeat(98))
        })
    })
}

async fn a_page_has_so_many_bytes(kind: StoreKind) -> Result<()> {
    let harness = limited(kind, [verbose()], |limits| limits.page_bytes_max = 250).await?;
    let workflow = harness.workflow::<(), String>("verbose")?;
    let instance = workflow.create(()).id("first").await?;
    for _ in 0..3 {
        instance.send_event("hello", &"x".repeat(98)).await?;
        workflow.create(()).await?;
    }
    harness.run_to_end().await?;
    let mut page = workflow.list().await?;
    let mut seen = page.items.len();
    assert!(seen < 4 && page.has_next_page, "it ends early");
    while let Some(cursor) = page.cursor {
        page = workflow.list().after(cursor).await?;
        seen += page.items.len();
    }
    assert_eq!(seen, 4, "and the next ones have the rest");

    let history = instance.history().log_category("workflow").await?;
    let logs = history.logs.expect("they were asked for");
    let rows = [history.steps.items.len(), history.events.items.len(), logs.items.len()];
    assert_eq!(rows, [2, 2, 2]);
    assert!(history.steps.has_next_page && history.events.has_next_page && logs.has_next_page);
    let rest = instance.history().steps_after(history.steps.cursor.expect("there is more")).await?;
    assert_eq!((rest.steps.items.len(), rest.steps.has_next_page), (1, false));

    let harness = limited(kind, [verbose()], |limits| limits.page_bytes_max = 1).await?;
    let instance = harness.create::<_, String>("verbose", ()).await?;
    harness.run_to_end().await?;
    assert_eq!(instance.history().await?.steps.items.len(), 1, "one row at least");
    Ok(())
}

// ---- lengths of time ----

/// Sleeps as long as the params say.
fn sleeper() -> Registration {
    flow("sleeper", &(), |(), span: Event<String>, step| {
        Box::pin(async move { step.sleep("sleep", span.as_str()).await })
    })
}

async fn a_sleep_is_so_long_and_a_retry_delay_is_capped_at_that(kind: StoreKind) -> Result<()> {
    let flaky = flow("flaky", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            step.run("flaky", async { Err::<(), _>(Error::new("busy")) })
                .retries(Retries::constant(1, "1 day"))
                .await
        })
    });
    let hour = |limits: &mut Limits| limits.sleep_max = Span::literal("1 hour");
    let harness = limited(kind, [sleeper(), flaky], hour).await?;
    let instance = harness.create::<_, ()>("sleeper", "1 hour".to_owned()).await?;
    harness.run_to_end().await?;
    ended(&instance).await?;
    let instance = harness.create::<_, ()>("sleeper", "61 minutes".to_owned()).await?;
    harness.run_until_idle().await?;
    let parts = ["61 minutes", "1 hour", "sleep_max"];
    assert_refused(ended(&instance).await, "INVALID_DURATION", &parts);

    let instance = harness.create::<_, ()>("flaky", ()).await?;
    harness.run_until_idle().await?;
    let retry_at = instance.describe().await?.current_step.unwrap().next_retry_at;
    assert_eq!(retry_at, Some(harness.now().plus(Span::literal("1 hour"))));
    let harness = Harness::on(kind, [sleeper()]).await?;
    for (span, fits) in [("365 days", true), ("31536000001 ms", false)] {
        let instance = harness.create::<_, ()>("sleeper", span.to_owned()).await?;
        harness.run_to_end().await?;
        assert_eq!(ended(&instance).await.is_ok(), fits, "{span}: the default is a year");
    }
    Ok(())
}

async fn a_sleep_until_a_moment_has_the_same_limit_and_replays_the_same_way(
    kind: StoreKind,
) -> Result<()> {
    let trail = Trail::default();
    let until = flow("until", &trail, |trail, at: Event<Timestamp>, step| {
        Box::pin(async move {
            let refused = step.sleep_until("far", *at).await;
            trail.mark(refused.as_ref().err().and_then(Error::code).unwrap_or("slept"));
            step.sleep("near", "30 days").await?;
            refused
        })
    });
    let configure = |builder: EngineBuilder| builder.parked_runs(0);
    let harness = Harness::with(kind, [until], configure).await?;
    let far = harness.now().plus(Span::from_days(366));
    let instance = harness.create::<_, ()>("until", far).await?;
    harness.run_to_end().await?;
    let parts = ["366 days", "365 days", "sleep_max"];
    assert_refused(ended(&instance).await, "INVALID_DURATION", &parts);
    // After 30 days the moment would be near enough; but what was decided stays decided.
    assert_eq!(trail.seen(), ["INVALID_DURATION"; 2]);
    assert_eq!(steps_of(&instance, None).await?, ["far errored", "near completed"]);
    Ok(())
}

/// Waits as long as the params say, or the default time if they say nothing.
fn waiter() -> Registration {
    flow("waiter", &(), |(), timeout: Event<Option<String>>, step| {
        Box::pin(async move {
            let wait = step.wait_for_event::<()>("wait", "go");
            match timeout.as_deref() {
                Some(timeout) => wait.timeout(timeout).outcome().await,
                None => wait.outcome().await,
            }
        })
    })
}

async fn a_wait_is_so_short_and_so_long(kind: StoreKind) -> Result<()> {
    let limits = Limits {
        wait_timeout_min: Span::literal("2 seconds"),
        wait_timeout_max: Span::literal("1 hour"),
        ..Limits::default()
    };
    let configure =
        move |builder: EngineBuilder| builder.limits(limits.clone()).default_wait_timeout("1 hour");
    let harness = Harness::with(kind, [waiter()], configure).await?;
    for timeout in ["2 seconds", "1 hour"] {
        let instance = harness.create::<_, Option<()>>("waiter", Some(timeout.to_owned())).await?;
        harness.run_to_end().await?;
        assert_eq!(ended(&instance).await?, None);
    }
    for timeout in ["1999 ms", "0 ms", "-1 ms", "3600001 ms"] {
        let instance = harness.create::<_, Option<()>>("waiter", Some(timeout.to_owned())).await?;
        harness.run_until_idle().await?;
        let parts = [timeout, "2 seconds", "1 hour"];
        assert_refused(ended(&instance).await, "INVALID_DURATION", &parts);
    }
    let harness = Harness::on(kind, [waiter()]).await?;
    for (timeout, fits) in
        [("1 second", true), ("999 ms", false), ("365 days", true), ("31536000001 ms", false)]
    {
        let instance = harness.create::<_, Option<()>>("waiter", Some(timeout.to_owned())).await?;
        harness.run_to_end().await?;
        assert_eq!(ended(&instance).await.is_ok(), fits, "{timeout}: the defaults");
    }
    Ok(())
}

async fn the_default_timeout_of_waits_is_configurable_and_keeps_to_the_limits(
    kind: StoreKind,
) -> Result<()> {
    let minute = |builder: EngineBuilder| builder.default_wait_timeout("1 minute");
    let harness = Harness::with(kind, [waiter()], minute).await?;
    let instance = harness.create::<_, Option<()>>("waiter", None::<String>).await?;
    harness.run_until_idle().await?;
    let deadline = instance.describe().await?.current_step.unwrap().wake_at;
    assert_eq!(deadline, Some(harness.now().plus(Span::literal("1 minute"))));

    // The default of 24 hours would break this limit with every wait that says nothing.
    let hour = |limits: &mut Limits| limits.wait_timeout_max = Span::literal("1 hour");
    let started = limited(kind, [waiter()], hour).await;
    assert_refused(started, "INVALID_DURATION", &["1 day", "1 hour"]);
    Ok(())
}

async fn durations_that_are_none_are_refused_where_they_are_used(kind: StoreKind) -> Result<()> {
    let timed = flow("timed", &(), |(), event: Event<(String, String)>, step| {
        Box::pin(async move {
            let (what, span) = (event.0.as_str(), event.1.as_str());
            match what {
                "sleep" => step.sleep("s", span).await,
                "wait" => step.wait_for_event::<()>("s", "go").timeout(span).await,
                "timeout" => step.run("s", async { Ok(()) }).timeout(span).await,
                _ => {
                    let retries = Retries::constant(1, span);
                    step.run("s", async { Ok(()) }).retries(retries).await
                }
            }
        })
    });
    let harness = Harness::on(kind, [timed]).await?;
    for what in ["sleep", "wait", "timeout", "retries"] {
        for bad in ["", "soon", "10 parsecs", "1..5s", "s", "99999999999999999999 days"] {
            let params = (what.to_owned(), bad.to_owned());
            let instance = harness.create::<_, ()>("timed", params).await?;
            harness.run_until_idle().await?;
            let shown = format!("{bad:?}");
            assert_refused(ended(&instance).await, "INVALID_DURATION", &[&shown, "10 seconds"]);
            assert_eq!(steps_of(&instance, None).await?, [""; 0], "{what} {bad}");
        }
    }
    for (what, bad) in [("timeout", "0 ms"), ("timeout", "-1 s"), ("retries", "-1 s")] {
        let instance = harness.create::<_, ()>("timed", (what.to_owned(), bad.to_owned())).await?;
        harness.run_until_idle().await?;
        let shown = bad.into_span()?.to_string();
        assert_refused(ended(&instance).await, "INVALID_DURATION", &[&shown]);
    }
    Ok(())
}

// ---- logs ----

async fn log_messages_and_categories_are_bounded(kind: StoreKind) -> Result<()> {
    let talker = flow("talker", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            step.log().info("123456789");
            step.log().info("short").category("12345");
            Ok(())
        })
    });
    let harness = limited(kind, [talker], |limits| {
        limits.log_message_bytes_max = 8;
        limits.log_category_bytes_max = 4;
    })
    .await?;
    let instance = harness.create::<_, ()>("talker", ()).await?;
    harness.run_until_idle().await?;
    let lines = instance.history().log_category("workflow").await?.logs.unwrap().items;
    let lines: Vec<_> = lines.iter().map(|log| &*log.line.message).collect();
    assert_eq!(lines, ["12345678", "short"]);
    Ok(())
}

async fn log_lines_between_two_boundaries_are_bounded(kind: StoreKind) -> Result<()> {
    let talker = flow("talker", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            for part in ["a", "b"] {
                step.run(part, async {
                    for n in 0..10 {
                        step.log().info(format!("{part}{n}"));
                    }
                    Ok(())
                })
                .await?;
            }
            Ok(())
        })
    });
    let harness = limited(kind, [talker], |limits| limits.log_lines_pending_max = 5).await?;
    let instance = harness.create::<_, ()>("talker", ()).await?;
    harness.run_until_idle().await?;
    ended(&instance).await?;
    let lines = instance.history().log_category("workflow").await?.logs.unwrap().items;
    let lines: Vec<_> = lines.iter().map(|log| &*log.line.message).collect();
    assert_eq!(lines, ["a0", "a1", "a2", "a3", "a4", "b0", "b1", "b2", "b3", "b4"]);
    let system = system_lines(&instance, None).await?;
    let dropped: Vec<_> = system.iter().filter(|line| line.contains("dropped")).collect();
    assert_eq!(dropped.len(), 2, "told once each: {system:?}");
    assert!(dropped[0].contains("5 log lines") && dropped[0].contains("log_lines_pending_max"));
    Ok(())
}

// ---- the engine itself ----

async fn an_engine_with_a_senseless_configuration_does_not_start(kind: StoreKind) -> Result<()> {
    type Configure = fn(EngineBuilder) -> EngineBuilder;
    let senseless: [(&str, &str, Configure); 9] = [
        ("VALIDATION_ERROR", "concurrency of 0", |builder| builder.concurrency(0)),
        ("VALIDATION_ERROR", "999 ms", |builder| builder.lease("999 ms")),
        ("VALIDATION_ERROR", "0 ms", |builder| builder.poll_interval(0)),
        ("VALIDATION_ERROR", "quarantine_after(0)", |builder| builder.quarantine_after(0)),
        ("VALIDATION_ERROR", "0 ms", |builder| builder.default_timeout(0)),
        ("INVALID_DURATION", "soon", |builder| builder.lease("soon")),
        ("INVALID_DURATION", "often", |builder| builder.poll_interval("often")),
        ("INVALID_DURATION", "long", |builder| builder.default_timeout("long")),
        ("INVALID_DURATION", "later", |builder| {
            builder.default_retries(Retries::constant(1, "later"))
        }),
    ];
    for (code, part, configure) in senseless {
        let started = Harness::with(kind, [noop("noop")], configure).await;
        assert_refused(started, code, &[part]);
    }
    Ok(())
}

#[tokio::test]
async fn a_database_that_is_none_is_refused_and_says_what_to_write() {
    for (url, part) in [
        ("", "sqlite:app.db"),
        ("orders.db", "sqlite:app.db"),
        ("mysql://localhost/orders", "sqlite:app.db"),
        ("sqlite:", "names no file"),
        ("sqlite:/no/such/directory/app.db", "/no/such/directory"),
    ] {
        let started = Engine::builder(url).start().await;
        assert_refused(started, "STORE_UNUSABLE", &[part]);
    }
}

#[tokio::test]
async fn untyped_params_keep_numbers_and_nesting() -> Result<()> {
    let echo = flow("echo", &(), |(), value: Event<Value>, _| {
        Box::pin(async move { Ok(value.payload.clone()) })
    });
    let harness = Harness::memory([echo]).await?;
    let value = json!({ "max": u64::MAX, "nul": "a\0b", "deep": [[[{}]]], "none": null });
    let instance = harness.create::<_, Value>("echo", value.clone()).await?;
    harness.run_until_idle().await?;
    assert_eq!(ended(&instance).await?, value);
    Ok(())
}
