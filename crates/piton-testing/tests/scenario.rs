//! The scenario DSL: its eleven steps, its example, and each of its decisions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use piton::prelude::*;
use piton::{History, Instance, InstanceStatus, Span, StepRecord, StepStatus};
use piton_core::record::InstanceRecord;
use piton_testing::runtime::START;
use piton_testing::scenario::steps::*;
use piton_testing::scenario::{
    HookOptions, Order, Reason, RowOptions, Scenario, TickPayload, Utils, Var, given, later,
};
use piton_testing::{Harness, Progress, StoreKind, on_every_store};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

on_every_store!(
    the_example_with_all_features,
    a_sleep_ends_when_its_time_has_come,
    a_wait_gets_its_event,
    a_retry_comes_when_the_clock_says_so,
    a_history_is_captured,
    everything_is_cleaned_up_on_success_error_and_panic,
    only_what_is_named_is_ticked,
    a_payload_of_another_run_or_of_the_future_advances_nothing,
    a_batch_skips_what_exists,
    the_utilities_look_up_rows,
    hooks_can_be_looked_at,
);

#[derive(Debug, Serialize, Deserialize)]
struct Note {
    note: String,
}

async fn sleep(event: Event<Note>, step: &Step) -> Result<Note> {
    step.sleep("sleep", "1 hour").await?;
    Ok(event.payload)
}

/// Fails once.
struct Retry(AtomicU32);

impl Workflow for Retry {
    const NAME: &'static str = "retry-workflow";
    type Params = ();
    type Output = bool;

    async fn run(&self, _: Event<()>, step: &Step) -> Result<bool> {
        let maybe_fail = step.run("maybe-fail", async {
            match self.0.fetch_add(1, Ordering::SeqCst) {
                0 => Err(Error::new("RETRY_ME")),
                _ => Ok(true),
            }
        });
        maybe_fail.retries(Retries::constant(1, "10 minutes")).await
    }
}

fn retry() -> Retry {
    Retry(AtomicU32::new(0))
}

async fn approval(_: Event<Value>, step: &Step) -> Result<Value> {
    let approval = step.wait_for_event("await approval", "approved").timeout("2 hours");
    let approval: Value = approval.await?;
    step.run("finish", async { Ok(json!({ "approval": approval })) }).await
}

const SLEEP_ID: Var<String> = Var::new("sleep id");
const SLEEP_STATUS: Var<Instance> = Var::new("sleep status");
const RETRY_STATUS: Var<Instance> = Var::new("retry status");
const APPROVAL_FINAL: Var<Instance> = Var::new("approval final status");
const SLEEP_HISTORY: Var<History> = Var::new("sleep history");
const SLEEP_STEPS: Var<Vec<StepRecord>> = Var::new("sleep steps");

// Spec 003, 6.4.
async fn the_example_with_all_features(kind: StoreKind) -> Result<()> {
    let finished = Scenario::new("all-features")
        .workflow(workflow("sleep-workflow", sleep))
        .workflow(retry())
        .workflow(workflow("approval-workflow", approval))
        .store(kind)
        .start_at(Timestamp::from_millis(0))
        .step(set_time(0).store_as("start time"))
        .step(
            create("sleep-workflow")
                .id("sleep-1")
                .params(json!({ "note": "alpha" }))
                .store_as(SLEEP_ID),
        )
        .step(
            create_batch(
                "approval-workflow",
                [("approval-1", json!({ "note": "a" })), ("approval-2", json!({ "note": "b" }))],
            )
            .store_as("approval batch"),
        )
        .step(create("retry-workflow").id("retry-1").store_as("retry id"))
        .step(
            read(async |cx| cx.utils().require_instance("sleep-workflow", "sleep-1").await)
                .store_as("sleep row"),
        )
        .step(
            tick_payload(later(async |cx| {
                cx.utils().build_payload("sleep-workflow", "sleep-1", Reason::Create).await
            }))
            .store_as("sleep tick processed"),
        )
        .step(
            run_until_idle("approval-workflow", "approval-1")
                .reason(Reason::Create)
                .store_as("approval first run"),
        )
        .step(
            run_until_idle("retry-workflow", "retry-1")
                .reason(Reason::Create)
                .max_ticks(10)
                .store_as("retry first run"),
        )
        .step(status("retry-workflow", "retry-1").store_as(RETRY_STATUS))
        .step(advance_time("10 minutes").store_as("after retry delay"))
        .step(
            run_until_idle("retry-workflow", "retry-1")
                .reason(Reason::Retry)
                .store_as("retry second run"),
        )
        .step(run_until_idle("sleep-workflow", SLEEP_ID).store_as("sleep first run"))
        .step(status("sleep-workflow", SLEEP_ID).store_as(SLEEP_STATUS))
        .step(advance_time("1 hour").store_as("after sleep"))
        .step(
            run_until_idle("sleep-workflow", given(|cx| cx.var(SLEEP_ID).clone()))
                .reason(Reason::Wake)
                .store_as("sleep final run"),
        )
        .step(
            event("approval-workflow", "approval-1", "approved")
                .payload(json!({ "ok": true }))
                .store_as("approval status"),
        )
        .step(
            run_until_idle("approval-workflow", "approval-1")
                .reason(Reason::Event)
                .store_as("approval second run"),
        )
        .step(status("approval-workflow", "approval-1").store_as(APPROVAL_FINAL))
        .step(
            history("sleep-workflow", "sleep-1")
                .query(|query| query.page_size(50))
                .store_as(SLEEP_HISTORY),
        )
        .step(
            read(async |cx| {
                let options = RowOptions::default();
                cx.utils().get_steps("sleep-workflow", "sleep-1", options).await
            })
            .store_as(SLEEP_STEPS),
        )
        .step(assert(|cx| {
            assert_eq!(cx.var(SLEEP_STATUS).status, InstanceStatus::Waiting);
            assert_eq!(cx.var(APPROVAL_FINAL).status, InstanceStatus::Complete);
            assert!(!cx.var(SLEEP_HISTORY).steps.items.is_empty());
            assert!(!cx.var(SLEEP_STEPS).is_empty());
        }))
        .run()
        .await?;
    assert_eq!(finished.name(), "all-features");
    assert_eq!(finished.var(SLEEP_ID), "sleep-1");
    assert_eq!(finished.var::<Timestamp>("start time"), &Timestamp::from_millis(0));
    assert_eq!(finished.var::<Vec<String>>("approval batch"), &["approval-1", "approval-2"]);
    assert_eq!(finished.var::<InstanceRecord>("sleep row").status, InstanceStatus::Active);
    assert_eq!(finished.var::<usize>("sleep tick processed"), &1);
    let once = Progress { processed: 1, ticks: 2 };
    for run in ["approval first run", "retry first run", "retry second run", "sleep final run"] {
        assert_eq!(finished.var::<Progress>(run), &once, "{run}");
    }
    assert_eq!(finished.var::<Progress>("sleep first run").processed, 0, "it sleeps");
    assert_eq!(finished.var(RETRY_STATUS).status, InstanceStatus::Waiting);
    assert_eq!(finished.now(), finished.var::<Timestamp>("after sleep").to_owned());
    Ok(())
}

// Spec 003, 9: sleep and wake.
async fn a_sleep_ends_when_its_time_has_come(kind: StoreKind) -> Result<()> {
    let look = |key: &'static str| status("nap", "n").store_as(key);
    Scenario::new("sleep and wake")
        .workflow(workflow("nap", sleep))
        .store(kind)
        .step(create("nap").id("n").params(json!({ "note": "zzz" })))
        .step(run_until_idle("nap", "n"))
        .step(look("asleep"))
        .step(advance_time(Span::literal("1 hour").as_millis() - 1))
        .step(tick("nap", "n").store_as("too early"))
        .step(advance_time(1))
        .step(tick("nap", "n").store_as("in time"))
        .step(look("awake"))
        .step(assert(|cx| {
            assert_eq!(cx.var::<Instance>("asleep").status, InstanceStatus::Waiting);
            assert_eq!((cx.var::<usize>("too early"), cx.var::<usize>("in time")), (&0, &1));
            let awake = cx.var::<Instance>("awake");
            assert_eq!(awake.output.as_ref().unwrap().as_str(), r#"{"note":"zzz"}"#);
        }))
        .run()
        .await?;
    Ok(())
}

// Spec 003, 9: event wait and resume.
async fn a_wait_gets_its_event(kind: StoreKind) -> Result<()> {
    Scenario::new("event")
        .workflow(workflow("approval", approval))
        .store(kind)
        .step(create("approval").store_as("id"))
        .step(run_all_until_idle())
        .step(event("approval", Var::new("id"), "approved").payload(json!("yes")))
        .step(tick_all().store_as("ticked"))
        .step(status("approval", Var::new("id")).store_as("after"))
        .step(assert(|cx| {
            assert_eq!(cx.var::<usize>("ticked"), &1);
            assert_eq!(cx.var::<Instance>("after").status, InstanceStatus::Complete);
        }))
        .run()
        .await?;
    Ok(())
}

// Spec 003, 9: retry scheduling with clock advance.
async fn a_retry_comes_when_the_clock_says_so(kind: StoreKind) -> Result<()> {
    let look = |key: &'static str| {
        let steps = async |cx: &piton_testing::scenario::Context| {
            cx.utils().get_steps("retry-workflow", "r", RowOptions::default()).await
        };
        read(steps).store_as(key)
    };
    Scenario::new("retry")
        .workflow(retry())
        .store(kind)
        .step(create("retry-workflow").id("r"))
        .step(run_all_until_idle())
        .step(look("failed"))
        .step(advance_time(given(|cx| {
            let failed = &cx.var::<Vec<StepRecord>>("failed")[0];
            failed.next_retry_at.unwrap().since(cx.now())
        })))
        .step(run_all_until_idle())
        .step(look("retried"))
        .step(assert(|cx| {
            let outline = |key: &'static str| {
                let step = &cx.var::<Vec<StepRecord>>(key)[0];
                (step.status, step.attempts)
            };
            assert_eq!(outline("failed"), (StepStatus::Waiting, 1));
            assert_eq!(outline("retried"), (StepStatus::Completed, 2));
            assert_eq!(cx.now().since(START), Span::literal("10 minutes"));
        }))
        .run()
        .await?;
    Ok(())
}

// Spec 003, 9: history capture.
async fn a_history_is_captured(kind: StoreKind) -> Result<()> {
    Scenario::new("history")
        .workflow(workflow("approval", approval))
        .store(kind)
        .step(create("approval").id("a"))
        .step(run_all_until_idle())
        .step(event("approval", "a", "approved").payload(json!(1)))
        .step(run_all_until_idle())
        .step(history("approval", "a").store_as("whole"))
        .step(
            history("approval", "a")
                .query(|query| query.newest_first().page_size(1).with_logs())
                .store_as("newest"),
        )
        .step(assert(|cx| {
            let names = |key: &'static str| -> Vec<_> {
                let steps = &cx.var::<History>(key).steps.items;
                steps.iter().map(|step| step.name.to_string()).collect()
            };
            assert_eq!(names("whole"), ["await approval", "finish"]);
            assert_eq!(names("newest"), ["finish"]);
            assert_eq!(cx.var::<History>("whole").events.items.len(), 1);
            assert!(cx.var::<History>("newest").logs.is_some());
        }))
        .run()
        .await?;
    Ok(())
}

/// A workflow that can be asked whether anybody still has it.
struct Held(#[expect(dead_code, reason = "it is only counted")] Arc<()>);

impl Workflow for Held {
    const NAME: &'static str = "held";
    type Params = ();
    type Output = ();

    async fn run(&self, _: Event<()>, step: &Step) -> Result<()> {
        step.sleep("long", "1 day").await
    }
}

// Spec 003, 11: clean-up on success, and on every error.
async fn everything_is_cleaned_up_on_success_error_and_panic(kind: StoreKind) -> Result<()> {
    let scenario = |held: &Arc<()>| {
        Scenario::new("clean up")
            .workflow(Held(Arc::clone(held)))
            .store(kind)
            .step(create("held").id("h"))
            .step(run_all_until_idle())
    };
    let held = Arc::new(());
    scenario(&held).run().await?;
    gone(&held).await;

    let error = scenario(&held).step(tick("held", "nobody")).run().await.unwrap_err();
    assert_eq!((error.step_number(), error.step_kind()), (Some(3), Some("tick")));
    assert_eq!(error.error().and_then(Error::code), Some("INSTANCE_NOT_FOUND"));
    gone(&held).await;

    let error = scenario(&held).step(assert(|_| panic!("as it should"))).run().await.unwrap_err();
    let told = "scenario \"clean up\", step 3 (assert) panicked: as it should";
    assert_eq!(error.to_string(), told);
    gone(&held).await;
    Ok(())
}

/// Waits until nobody but the test holds it any more.
async fn gone(held: &Arc<()>) {
    for _ in 0..1_000_000 {
        if Arc::strong_count(held) == 1 {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("something of the scenario is still there");
}

// Spec 003, 7: a tick is for one instance.
async fn only_what_is_named_is_ticked(kind: StoreKind) -> Result<()> {
    Scenario::new("one of two")
        .workflow(workflow("nap", sleep))
        .store(kind)
        .step(create("nap").id("one").params(json!({ "note": "" })))
        .step(create("nap").id("two").params(json!({ "note": "" })))
        .step(run_until_idle("nap", "one").store_as("run"))
        .step(status("nap", "one").store_as("one"))
        .step(status("nap", "two").store_as("two"))
        .step(assert(|cx| {
            assert_eq!(cx.var::<Progress>("run").processed, 1);
            assert_eq!(cx.var::<Instance>("one").status, InstanceStatus::Waiting);
            let two = cx.var::<Instance>("two");
            assert_eq!((two.status, two.started_at), (InstanceStatus::Active, None));
        }))
        .run()
        .await?;
    Ok(())
}

async fn a_payload_of_another_run_or_of_the_future_advances_nothing(kind: StoreKind) -> Result<()> {
    const PAYLOAD: Var<TickPayload> = Var::new("payload");
    Scenario::new("payloads")
        .workflow(workflow("nap", sleep))
        .store(kind)
        .step(create("nap").id("n").params(json!({ "note": "" })))
        .step(
            read(async |cx| cx.utils().build_payload("nap", "n", Reason::Create).await)
                .store_as(PAYLOAD),
        )
        .step(read(async |cx| cx.harness().instance("nap", "n").await?.restart().await))
        .step(tick_payload(PAYLOAD).store_as("of the run before"))
        .step(tick("nap", "n").timestamp(START.plus(Span::from_millis(1))).store_as("too early"))
        .step(
            run_until_idle_payload(given(|cx| TickPayload {
                run_number: 1,
                ..cx.var(PAYLOAD).clone()
            }))
            .store_as("of this run"),
        )
        .step(assert(|cx| {
            assert_eq!(cx.var::<usize>("of the run before"), &0);
            assert_eq!(cx.var::<usize>("too early"), &0);
            assert_eq!(cx.var::<Progress>("of this run").processed, 1);
        }))
        .run()
        .await?;
    Ok(())
}

async fn a_batch_skips_what_exists(kind: StoreKind) -> Result<()> {
    let finished = Scenario::new("batch")
        .workflow(workflow("approval", approval))
        .store(kind)
        .step(create("approval").id("a"))
        .step(create_batch("approval", [("a", 1), ("b", 2), ("c", 3)]).store_as("created"))
        .step(create_batch("approval", given(|_| vec![("d".to_owned(), json!(4))])))
        .step(status("approval", "d"))
        .run()
        .await?;
    assert_eq!(finished.var::<Vec<String>>("created"), &["b", "c"]);
    Ok(())
}

// Spec 003, 6.2 and 11: utilities.
async fn the_utilities_look_up_rows(kind: StoreKind) -> Result<()> {
    async fn check(utils: Utils<'_>) -> Result<()> {
        assert_eq!(utils.get_instance("approval", "nobody").await?, None);
        let missing = utils.require_instance("approval", "nobody").await.unwrap_err();
        assert_eq!(missing.code(), Some("INSTANCE_NOT_FOUND"));
        let unknown = utils.get_instance("aproval", "a").await.unwrap_err();
        assert_eq!(unknown.code(), Some("WORKFLOW_NOT_FOUND"));
        assert!(unknown.message().contains("\"aproval\""), "{unknown}");
        assert_eq!(utils.require_instance("approval", "a").await?.run, 1);
        let steps = utils.get_steps("approval", "a", RowOptions::default()).await?;
        assert_eq!(steps.len(), 1, "of the current run");
        let newest_first = RowOptions { run_number: Some(0), order: Order::Descending };
        let steps = utils.get_steps("approval", "a", newest_first).await?;
        let names: Vec<_> = steps.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(names, ["finish", "await approval"]);
        let events = utils.get_events("approval", "a", newest_first).await?;
        let payloads: Vec<_> = events.iter().map(|event| event.payload.as_str()).collect();
        assert_eq!(payloads, ["2", "1"]);
        assert!(utils.get_events("approval", "a", RowOptions::default()).await?.is_empty());
        let payload = utils.build_payload("approval", "a", Reason::Wake).await?;
        assert_eq!((payload.run_number, payload.reason), (1, Reason::Wake));
        assert_eq!(payload.timestamp, START);
        Ok(())
    }
    Scenario::new("utilities")
        .workflow(workflow("approval", approval))
        .store(kind)
        .step(create("approval").id("a"))
        .step(event("approval", "a", "approved").payload(1))
        .step(event("approval", "a", "approved").payload(2))
        .step(run_all_until_idle())
        .step(read(async |cx| cx.harness().instance("approval", "a").await?.restart().await))
        .step(run_all_until_idle())
        .step(assert_later(async |cx| check(cx.utils()).await))
        .run()
        .await?;
    Ok(())
}

// Spec 003, 11: steps run one after the other, and inputs are looked at when their step is reached.
#[tokio::test]
async fn inputs_are_resolved_when_their_step_is_reached() -> Result<()> {
    let finished = Scenario::new("in order")
        .workflow(workflow("nap", sleep))
        .step(create("nap").id("first").params(Note { note: "typed".into() }).store_as("id"))
        .step(read(async |cx| Ok(cx.now())).store_as("time"))
        .step(advance_time("1 day"))
        .step(read(async |cx| Ok((*cx.var::<Timestamp>("time"), cx.now()))).store_as("times"))
        .step(
            create("nap")
                .id(given(|cx| format!("after-{}", cx.var::<String>("id"))))
                .params(given(|cx| json!({ "note": cx.var::<String>("id") })))
                .store_as("id"),
        )
        .run()
        .await?;
    assert_eq!(finished.var::<String>("id"), "after-first", "a variable is overwritten");
    let (before, after) = finished.var::<(Timestamp, Timestamp)>("times");
    assert_eq!(after.since(*before), Span::from_days(1));
    Ok(())
}

// Spec 003, 11: explicit ticking.
#[tokio::test]
async fn nothing_is_advanced_that_no_step_advances() -> Result<()> {
    let finished = Scenario::new("explicit")
        .workflow(workflow("nap", sleep))
        .step(create("nap").id("n").params(json!({ "note": "" })))
        .step(advance_time("1 day"))
        .step(event("nap", "n", "hello"))
        .step(status("nap", "n").store_as(SLEEP_STATUS))
        .run()
        .await?;
    assert_eq!(finished.var(SLEEP_STATUS).started_at, None);
    Ok(())
}

// Spec 003, 11: in memory, and the harness of everyone.
#[tokio::test]
async fn a_scenario_is_a_harness_in_memory_unless_it_says_otherwise() -> Result<()> {
    for (kind, name) in [(None, "memory"), (Some(StoreKind::Sqlite), "sqlite")] {
        let scenario = Scenario::new("where");
        let scenario = kind.into_iter().fold(scenario, Scenario::store);
        let store = read(async |cx| {
            let harness: &Harness = cx.harness();
            assert_eq!(cx.name(), "where");
            Ok(harness.store().kind())
        });
        let finished = scenario.step(store.store_as("store")).run().await?;
        assert_eq!(finished.var::<&str>("store"), &name);
        assert!(finished.get::<&str>("nothing").is_none());
    }
    Ok(())
}

// Spec 003, 11: one path to it.
#[test]
fn the_dsl_is_exported_under_one_path() {
    let library = include_str!("../src/lib.rs");
    assert!(library.contains("pub mod scenario;") && !library.contains("pub use scenario"));
}

// Spec 003, 8.
#[tokio::test]
async fn errors_name_the_number_and_the_kind_of_their_step() {
    let scenario = || Scenario::new("bad").workflow(workflow("nap", sleep));
    let unknown = |step: piton_testing::scenario::steps::ScenarioStep| async {
        scenario().step(tick_all()).step(step).run().await.unwrap_err().to_string()
    };
    for (step, kind) in [
        (create("doze").into(), "create"),
        (create_batch("doze", [("a", 1)]).into(), "create_batch"),
        (event("doze", "a", "x").into(), "event"),
        (tick("doze", "a").into(), "tick"),
        (run_until_idle("doze", "a").into(), "run_until_idle"),
        (status("doze", "a").into(), "status"),
        (history("doze", "a").into(), "history"),
    ] {
        let error = unknown(step).await;
        let told = format!("scenario \"bad\", step 2 ({kind}): no workflow \"doze\" is registered");
        assert!(error.starts_with(&told), "{error}");
        assert!(error.ends_with("[WORKFLOW_NOT_FOUND]"), "{error}");
    }
    let error = unknown(advance_time("soon").into()).await;
    assert!(error.starts_with("scenario \"bad\", step 2 (advance_time): "), "{error}");
    let error = unknown(create("nap").params(7).into()).await;
    assert!(error.ends_with("[WORKFLOW_PARAMS_INVALID]"), "{error}");
    let error = unknown(tick("nap", Var::new("id")).into()).await;
    assert!(
        error.contains("step 2 (tick) panicked: no step has stored variable \"id\""),
        "{error}"
    );
    let error = scenario().workflow(workflow("nap", sleep)).run().await.unwrap_err();
    assert!(error.to_string().contains("could not be started"), "{error}");
    assert_eq!(error.step_number(), None);
}

async fn hooks_can_be_looked_at(kind: StoreKind) -> Result<()> {
    use piton::hooks::{HookRecord, HookStatus, Hooks};
    const HOOKS: Var<Vec<HookRecord>> = Var::new("hooks");
    let enqueued = |status| HookOptions {
        hook_name: Some("on_workflow_enqueued".to_owned()),
        instance_id: Some("s-1".to_owned()),
        workflow: Some("sleep".to_owned()),
        status,
        ..HookOptions::default()
    };
    let hooks = Hooks::new().on_workflow_enqueued(|_, _| async { Ok(()) });
    let finished = Scenario::new("a sleep is told of when it ends")
        .workflow(workflow("sleep", sleep))
        .store(kind)
        .configure(move |engine| engine.hooks(hooks.clone()))
        .step(create("sleep").id("s-1").params(json!({ "note": "zzz" })))
        .step(tick_all())
        .step(
            read(async move |cx| {
                let pending = enqueued(Some(HookStatus::Pending));
                cx.utils().internal().get_hooks(pending).await
            })
            .store_as(HOOKS),
        )
        .run()
        .await?;
    let hooks = finished.var(HOOKS);
    assert_eq!(hooks.len(), 1, "the one of the creation is done");
    let due_at = hooks[0].due_at.expect("it is pending");
    assert_eq!(due_at.since(hooks[0].created_at), Span::from_millis(3_600_000));
    Ok(())
}
