//! The examples of docs/testing.md, as they are shown there.

use piton::prelude::*;
use piton_testing::Harness;

async fn checkout(order: Event<String>, step: &Step) -> Result<String> {
    let payment: String = step
        .run("charge card", async { Ok(format!("payment of {}", *order)) })
        .retries(Retries::constant(3, "1 minute"))
        .timeout("30 seconds")
        .await?;

    step.sleep("cooling-off period", "14 days").await?;

    let by: String = step.wait_for_event("approval", "approved").timeout("24 hours").await?;

    step.run("send mail", async { Ok(format!("{payment}, approved by {by}")) }).await
}

#[tokio::test]
async fn an_order_is_sent_after_two_weeks() -> Result<()> {
    let harness = Harness::memory([workflow("checkout", checkout)]).await?;
    let order = harness.create::<_, String>("checkout", "order-123".to_owned()).await?;

    harness.run_until_idle().await?; // charges the card, then sleeps
    harness.advance("14 days");
    harness.run_until_idle().await?; // waits for the approval
    order.send_event("approved", "Ada").await?;
    harness.run_until_idle().await?;

    assert_eq!(harness.result(&order).await?, "payment of order-123, approved by Ada");
    Ok(())
}

#[tokio::test]
async fn nobody_approves() -> Result<()> {
    let harness = Harness::memory([workflow("checkout", checkout)]).await?;
    let order = harness.create::<_, String>("checkout", "order-123".to_owned()).await?;

    harness.run_to_end().await?; // jumps over fourteen days and twenty-four hours

    assert_eq!(harness.result(&order).await.unwrap_err().name(), "WaitForEventTimeout");
    Ok(())
}

#[tokio::test]
async fn the_mail_waits_for_its_moment() -> Result<()> {
    let harness = Harness::memory([workflow("checkout", checkout)]).await?;
    let order = harness.create::<_, String>("checkout", "order-123".to_owned()).await?;

    let created = harness.now();
    assert_eq!(harness.tick().await?, 1); // one run was advanced
    let woke = harness.advance_to_next_wake().await?; // to the end of the sleep
    assert_eq!(woke, Some(created.plus(piton::Span::literal("14 days"))));

    harness.set_time(created); // the wall clock, back too
    let progress = harness.run_until_idle().await?;
    assert_eq!((progress.processed, progress.ticks), (0, 1)); // no timer fires early
    assert_eq!(order.status().await?, piton::InstanceStatus::Waiting);
    Ok(())
}

#[tokio::test]
async fn a_paused_order_goes_on_after_the_resume() -> Result<()> {
    let harness = Harness::memory([workflow("checkout", checkout)]).await?;
    let orders = harness.workflow::<String, String>("checkout")?;
    orders.create("order-123".to_owned()).id("order-123").await?;

    let order = harness.instance("checkout", "order-123").await?; // by name
    order.pause().await?;
    harness.run_to_end().await?;
    assert!(harness.rows(&order).await?.steps.is_empty());

    order.resume().await?;
    harness.run_until_idle().await?;
    let rows = harness.rows(&order).await?; // the instance, its steps, its events, its log lines
    assert_eq!(rows.step("charge card").unwrap().attempts, 1);

    order.terminate().await?;
    assert_eq!(order.restart().await?.run_number, 1);
    Ok(())
}

#[tokio::test]
async fn a_busy_gateway_is_asked_again() -> Result<()> {
    let harness = Harness::memory([workflow("checkout", checkout)]).await?;
    harness.mock("charge card").attempt(1).fails(Error::new("the gateway is busy"));
    harness.mock("charge card").attempt(2).times_out();
    harness.mock("charge card").attempt(3).returns("payment 7");
    harness.mock_wait("approval").receives("Ada");

    let order = harness.create::<_, String>("checkout", "order-123".to_owned()).await?;
    harness.run_to_end().await?;

    assert_eq!(harness.result(&order).await?, "payment 7, approved by Ada");
    assert_eq!(harness.executions("charge card"), 0); // each of its attempts was mocked
    assert_eq!(harness.executions("send mail"), 1);
    assert!(harness.unused_mocks().is_empty()); // no name was misspelt
    Ok(())
}

#[tokio::test]
async fn a_declined_card_ends_the_order() -> Result<()> {
    let harness = Harness::memory([workflow("checkout", checkout)]).await?;
    harness.mock("charge card").fails(Error::non_retryable("card declined").named("Declined"));

    let order = harness.create::<_, String>("checkout", "order-123".to_owned()).await?;
    harness.run_to_end().await?;

    assert_eq!(harness.result(&order).await.unwrap_err().name(), "Declined");
    Ok(())
}

#[tokio::test]
async fn an_order_survives_a_deploy() -> Result<()> {
    let harness = Harness::memory([workflow("checkout", checkout)]).await?;
    let order = harness.create::<_, String>("checkout", "order-123".to_owned()).await?;
    harness.run_until_idle().await?;

    let harness = harness.crash_and_restart([workflow("checkout", checkout)]).await?;
    harness.mock_wait("approval").receives("Ada");
    harness.run_to_end().await?;

    let order = harness.instance("checkout", order.id()).await?;
    assert_eq!(harness.result(&order).await?, "payment of order-123, approved by Ada");
    assert_eq!(harness.executions("charge card"), 1); // over both processes
    Ok(())
}

#[tokio::test]
async fn an_order_survives_every_crash() -> Result<()> {
    use piton_testing::CrashTest;

    let survived = CrashTest::new(workflow("checkout", checkout), "order-123")
        .prepare(|harness| harness.mock_wait("approval").receives("Ada"))
        .run()
        .await?;
    assert!(survived.crashes > 6);
    Ok(())
}

#[tokio::test]
async fn a_recorded_order_replays_the_same() -> Result<()> {
    use piton_testing::replays_the_same;

    let recorded = include_str!("order-123.json"); // `instance.export().await?`, written with serde_json
    replays_the_same(workflow("checkout", checkout), &serde_json::from_str(recorded)?).await?;
    Ok(())
}

#[tokio::test]
async fn the_cooling_off_period_lasts_two_weeks() -> Result<()> {
    use piton::{Instance, InstanceStatus};
    use piton_testing::scenario::{Scenario, Var, steps::*};

    const ID: Var<String> = Var::new("id");
    const COOLING: Var<Instance> = Var::new("cooling");
    const DONE: Var<Instance> = Var::new("done");

    Scenario::new("two weeks")
        .workflow(workflow("checkout", checkout))
        .step(create("checkout").params("order-123").store_as(ID))
        .step(run_until_idle("checkout", ID))
        .step(status("checkout", ID).store_as(COOLING))
        .step(event("checkout", ID, "approved").payload("Ada"))
        .step(advance_time("14 days"))
        .step(run_until_idle("checkout", ID))
        .step(status("checkout", ID).store_as(DONE))
        .step(assert(|cx| {
            let waits_for = cx.var(COOLING).current_step.as_ref().unwrap();
            assert_eq!(waits_for.name, "cooling-off period");
            assert_eq!(cx.var(DONE).status, InstanceStatus::Complete);
        }))
        .run()
        .await?;
    Ok(())
}

#[tokio::test]
async fn the_same_seed_gives_the_same_ids() -> Result<()> {
    use piton_testing::StoreKind;

    let mut ids = Vec::new();
    for _ in 0..2 {
        let harness = Harness::builder()
            .register(workflow("checkout", checkout))
            .store(StoreKind::Sqlite) // a file in a temporary directory
            .seed(7)
            .start_at(Timestamp::from_millis(0))
            .configure(|engine| engine.parked_runs(0)) // every pass is a replay
            .start()
            .await?;
        let order = harness.create::<_, String>("checkout", "order-123".to_owned()).await?;
        ids.push(order.id().to_owned());
    }
    assert_eq!(ids[0], ids[1]);
    Ok(())
}

mod on_stores {
    use super::checkout;
    use piton::prelude::*;
    use piton_testing::{Harness, StoreKind, on_every_store};

    on_every_store!(an_order_is_charged_at_once);

    async fn an_order_is_charged_at_once(kind: StoreKind) -> Result<()> {
        let harness = Harness::on(kind, [workflow("checkout", checkout)]).await?;
        harness.create::<_, String>("checkout", "order-123".to_owned()).await?;
        harness.run_until_idle().await?;
        assert_eq!(harness.executions("charge card"), 1);
        Ok(())
    }
}

#[test]
fn every_example_of_the_page_is_a_test_here() {
    let page = include_str!("../../../docs/testing.md");
    let examples: Vec<_> = page.split("```rust\n").skip(1).collect();
    assert!(examples.len() > 10, "the page has {} examples", examples.len());
    for example in examples {
        let code = example.split("```").next().expect("an example ends");
        assert!(include_str!("page.rs").contains(code), "not in tests/page.rs:\n{code}");
    }
}
