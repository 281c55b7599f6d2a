//! Mocks stand in for step bodies and for senders of events, and for nothing else.

use piton::prelude::*;
use piton::{InstanceStatus, StepStatus};
use piton_testing::{Harness, StoreKind, on_every_store};

on_every_store!(
    a_mocked_step_returns_what_it_is_told,
    a_mocked_attempt_fails_and_the_next_one_is_real,
    a_mock_for_one_attempt_goes_before_one_for_all,
    a_mocked_error_that_no_retry_helps_ends_the_step,
    a_forced_timeout_is_a_timeout_like_any_other,
    a_mock_is_only_for_its_workflow,
    a_reached_wait_gets_its_event,
    each_run_that_reaches_a_mocked_wait_gets_one_event,
    an_event_is_delivered_while_a_body_is_running,
    a_mocked_wait_times_out,
    a_mocked_result_of_the_wrong_type_names_the_step,
    bodies_are_counted_and_mocks_are_not,
    a_mock_that_nothing_met_is_told,
    mocks_outlive_a_crash,
);

/// Charges a card, with two retries.
async fn pay(_: Event<()>, step: &Step) -> Result<String> {
    step.run("charge", async { Ok("real".to_owned()) })
        .retries(Retries::constant(2, "1 minute"))
        .timeout("30 seconds")
        .await
}

async fn approve(_: Event<()>, step: &Step) -> Result<String> {
    let by = step.wait_for_event("approval", "approved").timeout("1 day").outcome().await?;
    step.run("note", async { Ok(by.unwrap_or_else(|| "nobody".to_owned())) }).await
}

async fn a_mocked_step_returns_what_it_is_told(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [workflow("pay", pay)]).await?;
    harness.mock("charge").returns("mocked");
    let instance = harness.create::<_, String>("pay", ()).await?;
    harness.run_until_idle().await?;
    assert_eq!(instance.result().await?, "mocked");
    let rows = harness.rows(&instance).await?;
    let charge = rows.step("charge").expect("recorded like any other");
    assert_eq!((charge.status, charge.attempts), (StepStatus::Completed, 1));
    Ok(())
}

async fn a_mocked_attempt_fails_and_the_next_one_is_real(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [workflow("pay", pay)]).await?;
    harness.mock("charge").attempt(1).fails(Error::new("busy").named("Busy"));
    let instance = harness.create::<_, String>("pay", ()).await?;
    harness.run_until_idle().await?;
    let rows = harness.rows(&instance).await?;
    let charge = rows.step("charge").expect("recorded");
    assert_eq!(charge.status, StepStatus::Waiting);
    let error = charge.error.as_ref().map(|error| (&*error.name, &*error.message));
    assert_eq!(error, Some(("Busy", "busy")));
    harness.advance("1 minute");
    harness.run_until_idle().await?;
    assert_eq!(instance.result().await?, "real");
    Ok(())
}

async fn a_mock_for_one_attempt_goes_before_one_for_all(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [workflow("pay", pay)]).await?;
    harness.mock("charge").attempt(1).fails(Error::new("busy"));
    harness.mock("charge").returns("first said");
    harness.mock("charge").returns("last said");
    let instance = harness.create::<_, String>("pay", ()).await?;
    harness.run_to_end().await?;
    assert_eq!(instance.result().await?, "last said");
    assert_eq!(harness.rows(&instance).await?.steps[0].attempts, 2);
    Ok(())
}

async fn a_mocked_error_that_no_retry_helps_ends_the_step(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [workflow("pay", pay)]).await?;
    harness.mock("charge").fails(Error::non_retryable("declined").named("CardDeclined"));
    let instance = harness.create::<_, String>("pay", ()).await?;
    harness.run_until_idle().await?;
    let error = instance.result().await.unwrap_err();
    assert_eq!((error.name(), error.message()), ("CardDeclined", "declined"));
    assert_eq!(harness.rows(&instance).await?.steps[0].attempts, 1);
    Ok(())
}

async fn a_forced_timeout_is_a_timeout_like_any_other(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [workflow("pay", pay)]).await?;
    harness.mock("charge").times_out();
    let instance = harness.create::<_, String>("pay", ()).await?;
    harness.run_to_end().await?;
    let error = instance.result().await.unwrap_err();
    assert_eq!(error.name(), "StepTimeout");
    assert!(error.message().contains("30 seconds"), "{error}");
    assert_eq!(harness.rows(&instance).await?.steps[0].attempts, 3, "it is retried");
    Ok(())
}

async fn a_mock_is_only_for_its_workflow(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [workflow("pay", pay), workflow("tip", pay)]).await?;
    harness.mock("charge").of("tip").returns("mocked");
    let pay = harness.create::<_, String>("pay", ()).await?;
    let tip = harness.create::<_, String>("tip", ()).await?;
    harness.run_until_idle().await?;
    assert_eq!((pay.result().await?, tip.result().await?), ("real".into(), "mocked".into()));
    Ok(())
}

async fn a_reached_wait_gets_its_event(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [workflow("approve", approve)]).await?;
    harness.mock_wait("approval").receives("Ada");
    let instance = harness.create::<_, String>("approve", ()).await?;
    harness.run_until_idle().await?;
    assert_eq!(instance.result().await?, "Ada");
    let rows = harness.rows(&instance).await?;
    assert_eq!(rows.events.len(), 1);
    let taker = rows.events[0].consumed_by.as_ref().map(|step| step.as_str());
    assert_eq!(taker, Some("approval"));
    Ok(())
}

async fn each_run_that_reaches_a_mocked_wait_gets_one_event(kind: StoreKind) -> Result<()> {
    // Without parked runs the wait is reached again by every replay.
    let flows = [workflow("approve", approve)];
    let harness = Harness::with(kind, flows, |engine| engine.parked_runs(0)).await?;
    harness.mock_wait("approval").receives("Ada");
    harness.mock("note").attempt(1).fails(Error::new("not yet"));
    let one = harness.create::<_, String>("approve", ()).await?;
    let two = harness.create::<_, String>("approve", ()).await?;
    harness.run_to_end().await?;
    for instance in [&one, &two] {
        assert_eq!(instance.result().await?, "Ada");
        assert_eq!(harness.rows(instance).await?.events.len(), 1);
    }
    one.restart().await?;
    harness.run_to_end().await?;
    assert_eq!(one.result().await?, "Ada", "the next run is sent one of its own");
    Ok(())
}

async fn an_event_is_delivered_while_a_body_is_running(kind: StoreKind) -> Result<()> {
    async fn race(_: Event<()>, step: &Step) -> Result<String> {
        select! {
            () = async { step.run("hangs", std::future::pending()).await.unwrap_or(()) } => Ok("body".to_owned()),
            by = step.wait_for_event("approval", "approved") => by,
        }
    }
    let harness = Harness::on(kind, [workflow("race", race)]).await?;
    harness.mock_wait("approval").receives("Ada");
    let instance = harness.create::<_, String>("race", ()).await?;
    harness.run_until_idle().await?;
    assert_eq!(instance.result().await?, "Ada");
    Ok(())
}

async fn a_mocked_wait_times_out(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [workflow("approve", approve)]).await?;
    harness.mock_wait("approval").times_out();
    let (before, instance) = (harness.now(), harness.create::<_, String>("approve", ()).await?);
    harness.run_until_idle().await?;
    assert_eq!(instance.result().await?, "nobody");
    assert_eq!(harness.now(), before, "without a day passing");
    Ok(())
}

async fn a_mocked_result_of_the_wrong_type_names_the_step(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [workflow("pay", pay)]).await?;
    harness.mock("charge").returns(&7);
    let instance = harness.create::<_, String>("pay", ()).await?;
    harness.run_until_idle().await?;
    let error = instance.result().await.unwrap_err();
    assert_eq!(error.code(), Some("DECODE_FAILED"));
    assert!(error.message().contains("\"charge\""), "{error}");
    Ok(())
}

async fn bodies_are_counted_and_mocks_are_not(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [workflow("pay", pay)]).await?;
    harness.mock("charge").attempt(1).fails(Error::new("busy"));
    for _ in 0..3 {
        harness.create::<_, String>("pay", ()).await?;
    }
    harness.run_until_idle().await?;
    assert_eq!(harness.executions("charge"), 0);
    harness.run_to_end().await?;
    assert_eq!(harness.executions("charge"), 3);
    assert_eq!(harness.executions("refund"), 0);
    Ok(())
}

async fn a_mock_that_nothing_met_is_told(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [workflow("pay", pay)]).await?;
    harness.mock("charge").returns("mocked");
    harness.mock("chargé").returns("mocked");
    harness.mock_wait("approval").receives(&());
    harness.create::<_, String>("pay", ()).await?;
    harness.run_to_end().await?;
    assert_eq!(harness.unused_mocks(), ["chargé", "approval"]);
    Ok(())
}

async fn mocks_outlive_a_crash(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [workflow("approve", approve)]).await?;
    harness.mock_wait("approval").receives("Ada");
    let instance = harness.create::<_, String>("approve", ()).await?;
    harness.tick().await?;
    assert_eq!(harness.rows(&instance).await?.events.len(), 1, "its event is there");
    let harness = harness.crash_and_restart([workflow("approve", approve)]).await?;
    harness.run_to_end().await?;
    let rows = harness.rows(&instance).await?;
    assert_eq!((rows.instance.status, rows.events.len()), (InstanceStatus::Complete, 1));
    Ok(())
}

#[tokio::test]
#[should_panic(expected = "counted from 1")]
async fn there_is_no_attempt_zero() {
    let harness = Harness::memory([workflow("pay", pay)]).await.expect("started");
    harness.mock("charge").attempt(0).times_out();
}
