//! Today's code against recorded runs.

use piton::prelude::*;
use piton::{Registration, RunExport};
use piton_testing::{Difference, Harness, StoreKind, on_every_store, replays_the_same};
use serde_json::json;

on_every_store!(
    the_same_code_replays_the_same_at_every_moment,
    a_restarted_run_replays_too,
    an_export_survives_its_form_as_text,
    an_export_is_of_one_moment,
);

async fn pay(cents: Event<u64>, step: &Step) -> Result<String> {
    let receipt: String = step.run("charge card", async { Ok(format!("paid {}", *cents)) }).await?;
    step.sleep("cooling-off", "2 weeks").await?;
    let by = step.wait_for_event::<String>("approval", "approved").timeout("1 day").outcome();
    let by = by.await?.unwrap_or_else(|| "nobody".to_owned());
    step.run("print label", async { Ok(()) }).await?;
    Ok(format!("{receipt}, approved by {by}"))
}

/// The record of a run of `pay` that has gone this far.
async fn record(kind: StoreKind, turns: usize) -> Result<RunExport> {
    let harness = Harness::on(kind, [workflow("pay", pay)]).await?;
    harness.mock_wait("approval").receives("Ada");
    let instance = harness.workflow::<u64, String>("pay")?.create(70).id("p-1").await?;
    for _ in 0..turns {
        harness.tick().await?;
        harness.advance_to_next_wake().await?;
    }
    instance.export().await
}

async fn ended() -> RunExport {
    let history = record(StoreKind::Memory, 9).await.expect("recorded");
    assert!(history.output.is_some(), "{history:?}");
    history
}

async fn the_same_code_replays_the_same_at_every_moment(kind: StoreKind) -> Result<()> {
    for turns in 0..6 {
        let history = record(kind, turns).await?;
        replays_the_same(workflow("pay", pay), &history).await?;
    }
    Ok(())
}

async fn a_restarted_run_replays_too(kind: StoreKind) -> Result<()> {
    async fn which(_: Event<()>, step: &Step) -> Result<u32> {
        let run = step.run_number();
        step.run(format!("run {run}"), async { Ok(run) }).await
    }
    let harness = Harness::on(kind, [workflow("which", which)]).await?;
    let instance = harness.create::<_, u32>("which", ()).await?;
    harness.run_to_end().await?;
    instance.restart().await?;
    harness.run_to_end().await?;
    for run in [0, 1] {
        let history = instance.export().run_number(run).await?;
        assert_eq!(history.steps[0].name, format!("run {run}"));
        assert_eq!(history.status.is_some(), run == 1);
        replays_the_same(workflow("which", which), &history).await?;
    }
    let missing = instance.export().run_number(2).await.unwrap_err();
    assert_eq!(missing.code(), Some("INVALID_RUN_NUMBER"));
    Ok(())
}

async fn an_export_survives_its_form_as_text(kind: StoreKind) -> Result<()> {
    async fn odd(_: Event<u128>, step: &Step) -> Result<Vec<f64>> {
        step.run("nothing", async { Ok(()) }).await?;
        step.run("large", async { Ok(u128::MAX) }).await?;
        let failed = step.run("failed", async { Err::<(), _>(Error::non_retryable("no")) });
        failed.await.unwrap_err();
        let _: Option<()> = step.wait_for_event("wait", "never").timeout("1 s").outcome().await?;
        step.run("floats", async { Ok(vec![0.1, f64::MAX, -0.0]) }).await
    }
    let harness = Harness::on(kind, [workflow("odd", odd)]).await?;
    let instance = harness.create::<_, Vec<f64>>("odd", u128::MAX).await?;
    instance.send_event("ignored", &json!({ "b": 1, "a": [null, 2.50] })).await?;
    harness.run_to_end().await?;
    let history = instance.export().await?;
    for text in [serde_json::to_string(&history)?, serde_json::to_string_pretty(&history)?] {
        let read: RunExport = serde_json::from_str(&text)?;
        assert_eq!(read, history);
        replays_the_same(workflow("odd", odd), &read).await?;
    }
    let value = serde_json::to_value(&history)?;
    assert_eq!(value["format"], 1);
    assert_eq!(value["status"], "complete");
    assert_eq!(value["steps"][0]["result"], json!(null), "a result that is null is there");
    assert_eq!(value["steps"][0]["type"], "do");
    assert_eq!(value["steps"][2]["error"]["message"], "no");
    assert_eq!(value["steps"][3]["type"], "waitForEvent");
    assert_eq!(value["events"][0]["type"], "ignored");
    Ok(())
}

/// How today's code differs from the record.
/// Writes as many lines as it has steps, and an event to itself in each.
async fn busy(_: Event<()>, step: &Step) -> Result<()> {
    let id = step.instance_id().to_string();
    for n in 0..200 {
        let id = id.as_str();
        step.run_with(format!("{n}"), |cx| async move {
            cx.transaction().send_event("busy", id, "hello", &n)
        })
        .await?;
    }
    Ok(())
}

async fn an_export_is_of_one_moment(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [workflow("busy", busy)]).await?;
    let instance = harness.create::<_, ()>("busy", ()).await?;
    let exporting = async {
        loop {
            // Each step and its event are one commit, so that at every moment there are as many.
            match instance.export().await {
                Ok(export) => assert_eq!(export.steps.len(), export.events.len()),
                Err(error) => assert!(error.message().contains("pause it"), "{error}"),
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        ended = harness.run_to_end() => { ended?; }
        () = exporting => {}
    }
    assert_eq!(instance.export().await?.steps.len(), 200);
    Ok(())
}

async fn difference(today: Registration, history: &RunExport) -> Difference {
    replays_the_same(today, history).await.unwrap_err()
}

#[tokio::test]
async fn a_record_of_another_format_is_refused() {
    let mut history = ended().await;
    history.format = 2;
    let difference = difference(workflow("pay", pay), &history).await;
    assert_eq!(difference.step(), None);
    let said = difference.to_string();
    assert!(said.contains("it has format 2, and this version reads 1"), "{said}");
}

#[tokio::test]
async fn a_renamed_step_is_named() {
    async fn renamed(cents: Event<u64>, step: &Step) -> Result<String> {
        let receipt: String = step.run("charge card", async { Ok(cents.to_string()) }).await?;
        step.sleep("cooling off", "2 weeks").await?;
        Ok(receipt)
    }
    let difference = difference(workflow("pay", renamed), &ended().await).await;
    assert_eq!(difference.step(), Some("cooling-off"));
    let told = difference.to_string();
    let parts = ["run 0 of pay/p-1", "\"cooling-off\" (sleep)", "asks for \"cooling off\" (sleep)"];
    assert!(parts.iter().all(|part| told.contains(part)), "{told}");
}

#[tokio::test]
async fn a_step_put_in_between_is_named() {
    async fn more(_: Event<u64>, step: &Step) -> Result<String> {
        step.run("check limit", async { panic!("no body is executed") }).await
    }
    let difference = difference(workflow("pay", more), &ended().await).await;
    assert_eq!(difference.step(), Some("charge card"));
    assert!(difference.to_string().contains("\"check limit\" (do)"), "{difference}");
}

#[tokio::test]
async fn a_step_that_is_gone_is_named() {
    async fn less(cents: Event<u64>, step: &Step) -> Result<String> {
        let receipt: String = step.run("charge card", async { Ok(cents.to_string()) }).await?;
        step.sleep("cooling-off", "2 weeks").await?;
        step.run("print label", async { Ok(()) }).await?;
        Ok(receipt)
    }
    let difference = difference(workflow("pay", less), &ended().await).await;
    assert_eq!(difference.step(), Some("approval"));
    assert!(difference.to_string().contains("ends before it"), "{difference}");
}

#[tokio::test]
async fn a_step_of_another_type_is_named() {
    async fn other(_: Event<u64>, step: &Step) -> Result<String> {
        step.sleep("charge card", "1 hour").await?;
        Ok(String::new())
    }
    let difference = difference(workflow("pay", other), &ended().await).await;
    assert_eq!(difference.step(), Some("charge card"));
    assert!(difference.to_string().contains("uses that name for a `sleep`"), "{difference}");
}

#[tokio::test]
async fn a_result_that_no_longer_decodes_is_told() {
    async fn typed(_: Event<u64>, step: &Step) -> Result<String> {
        let receipt: u64 = step.run("charge card", async { Ok(1) }).await?;
        Ok(receipt.to_string())
    }
    for turns in [1, 9] {
        let history = record(StoreKind::Memory, turns).await.expect("recorded");
        let difference = difference(workflow("pay", typed), &history).await.to_string();
        let told = "the recorded result of step \"charge card\" does not decode as u64";
        assert!(difference.contains(told), "{difference}");
    }
}

#[tokio::test]
async fn an_outcome_that_changes_is_told() {
    async fn shorter(cents: Event<u64>, step: &Step) -> Result<String> {
        pay(cents, step).await.map(|receipt| receipt.to_uppercase())
    }
    let difference = difference(workflow("pay", shorter), &ended().await).await;
    assert_eq!(difference.step(), None);
    let told = difference.to_string();
    assert!(told.contains("paid 70, approved by Ada") && told.contains("PAID 70"), "{told}");
}

#[tokio::test]
async fn a_step_behind_the_end_is_named() {
    async fn longer(cents: Event<u64>, step: &Step) -> Result<String> {
        let receipt = pay(cents, step).await?;
        step.run("thank", async { Ok(()) }).await?;
        Ok(receipt)
    }
    let difference = difference(workflow("pay", longer), &ended().await).await;
    assert_eq!(difference.step(), Some("thank"));
    // A run that has not come to its end may go on as it likes.
    for turns in 0..3 {
        let history = record(StoreKind::Memory, turns).await.expect("recorded");
        replays_the_same(workflow("pay", longer), &history).await.expect("the same so far");
    }
}

#[tokio::test]
async fn another_workflow_is_refused() {
    let difference = difference(workflow("paid", pay), &ended().await).await;
    assert!(difference.to_string().contains("as workflow \"paid\""), "{difference}");
}

#[tokio::test]
async fn parallel_steps_and_races_replay_the_same_in_the_middle() -> Result<()> {
    async fn race(_: Event<()>, step: &Step) -> Result<u32> {
        let (a, b) = try_join!(
            async {
                let one: u32 = step.run("a1", async { Ok(1) }).await?;
                step.sleep("a2", "1 hour").await?;
                step.run("a3", async { Ok(one + 1) }).await
            },
            async {
                let got: Option<u32> =
                    step.wait_for_event("b1", "go").timeout("2 hours").outcome().await?;
                select! {
                    won = step.run("b2", async { Ok(7) }) => won,
                    _ = step.sleep("b3", "5 hours") => Ok(got.unwrap_or(0)),
                }
            },
        )?;
        Ok(a + b)
    }
    let harness = Harness::memory([workflow("race", race)]).await?;
    let instance = harness.create::<_, u32>("race", ()).await?;
    for _ in 0..5 {
        replays_the_same(workflow("race", race), &instance.export().await?).await?;
        harness.tick().await?;
        harness.advance_to_next_wake().await?;
    }
    assert_eq!(instance.result().await?, 9);
    replays_the_same(workflow("race", race), &instance.export().await?).await?;
    Ok(())
}
