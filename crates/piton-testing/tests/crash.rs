//! Crash tests for free: they pass for workflows that keep the rules, and tell the story of those that do not.

use std::sync::atomic::{AtomicU32, Ordering};

use piton::prelude::*;
use piton_testing::{CrashTest, StoreKind, on_every_store, survives_crash_at_every_boundary};
use serde::{Deserialize, Serialize};

on_every_store!(
    a_workflow_of_everything_survives,
    a_workflow_that_fails_fails_the_same,
    an_instance_that_a_step_creates_is_created_once,
    a_step_named_after_the_pass_is_found,
    a_body_that_cannot_be_repeated_is_found,
    an_outcome_that_depends_on_the_pass_is_found,
);

#[derive(Serialize, Deserialize)]
struct Order {
    id: String,
    cents: u64,
}

/// Retries, parallel steps, a sleep, an event, a race and a caught error.
async fn checkout(order: Event<Order>, step: &Step) -> Result<String> {
    let payment = step
        .run_with("charge", |cx| async move {
            match cx.attempt() {
                1 => Err(Error::new("the gateway is busy")),
                attempt => Ok(format!("paid at attempt {attempt}")),
            }
        })
        .retries(Retries::constant(2, "1 minute"))
        .await?;
    step.sleep("cooling-off", "2 weeks").await?;
    let by: String = step.wait_for_event("approval", "approved").timeout("1 day").await?;
    let (label, mail) = try_join!(
        step.run("label", async { Ok(format!("label of {}", order.id)) }),
        step.run("mail", async { Ok(order.cents) }),
    )?;
    let winner = select! {
        biased;
        done = step.run("quick", async { Ok(()) }) => done.map(|()| "quick")?,
        slept = step.sleep("slow", "1 hour") => slept.map(|()| "slow")?,
    };
    let declined = step.run("decline", async { Err::<(), _>(Error::non_retryable("declined")) });
    let declined = declined.await.unwrap_err();
    Ok(format!("{payment}, {by}, {label}, {mail}, {winner}, {declined}"))
}

async fn a_workflow_of_everything_survives(kind: StoreKind) -> Result<()> {
    let order = Order { id: "o-1".into(), cents: 4_200 };
    let test = CrashTest::new(workflow("checkout", checkout), order).store(kind);
    let test = test.prepare(|harness| {
        harness.mock_wait("approval").receives("Ada");
        harness.mock("quick").returns(&());
    });
    let survived = test.run().await?;
    assert!(survived.boundaries >= 7, "{survived:?}");
    assert_eq!(survived.crashes, survived.boundaries * 2);
    Ok(())
}

async fn a_workflow_that_fails_fails_the_same(kind: StoreKind) -> Result<()> {
    async fn fail(_: Event<()>, step: &Step) -> Result<()> {
        step.run("one", async { Ok(()) }).await?;
        step.run("two", async { Err(Error::new("no luck")) }).retries(Retries::constant(1, 5)).await
    }
    CrashTest::new(workflow("fail", fail), ()).store(kind).run().await?;
    Ok(())
}

async fn an_instance_that_a_step_creates_is_created_once(kind: StoreKind) -> Result<()> {
    async fn parent(_: Event<()>, step: &Step) -> Result<()> {
        let spawn = step
            .run_with("spawn", |cx| async move { cx.transaction().create("child", "c-1", &()) });
        spawn.await
    }
    async fn child(_: Event<()>, step: &Step) -> Result<()> {
        step.run("work", async { Ok(()) }).await
    }
    let test = CrashTest::new(workflow("parent", parent), ()).store(kind);
    test.register(workflow("child", child)).run().await?;
    Ok(())
}

/// Counts its passes, which no workflow should know.
struct Passes {
    count: AtomicU32,
    shows: fn(u32) -> String,
}

impl Workflow for Passes {
    const NAME: &'static str = "passes";
    type Params = ();
    type Output = String;

    async fn run(&self, _: Event<()>, step: &Step) -> Result<String> {
        let shown = (self.shows)(self.count.fetch_add(1, Ordering::SeqCst));
        let named = shown.strip_prefix("step ").unwrap_or("plain").to_owned();
        step.run("first", async { Ok(()) }).await?;
        step.run(named, async { Ok(()) }).await?;
        Ok(shown)
    }
}

async fn a_step_named_after_the_pass_is_found(kind: StoreKind) -> Result<()> {
    let passes = Passes { count: AtomicU32::new(0), shows: |pass| format!("step {pass}") };
    let story = CrashTest::new(passes, ()).store(kind).run().await.unwrap_err().to_string();
    let mut lines = story.lines();
    let title = "\"passes\" does not survive a crash just before boundary 1 of 2";
    assert_eq!(lines.next(), Some(title), "{story}");
    assert_eq!(lines.next(), Some("  boundary 1: \"first\" completed"), "{story}");
    assert!(story.contains("- step \"2\" is completed after 1 attempts"), "{story}");
    assert!(story.contains("- there is no step \"0\""), "{story}");
    Ok(())
}

async fn an_outcome_that_depends_on_the_pass_is_found(kind: StoreKind) -> Result<()> {
    let passes = Passes { count: AtomicU32::new(0), shows: |pass| format!("pass {pass}") };
    let story = CrashTest::new(passes, ()).store(kind).run().await.unwrap_err().to_string();
    assert!(story.contains("the run ended complete with \"pass 2\""), "{story}");
    assert!(story.contains("without a crash, complete with \"pass 0\""), "{story}");
    Ok(())
}

async fn a_body_that_cannot_be_repeated_is_found(kind: StoreKind) -> Result<()> {
    /// A shop that takes each order once, whatever the idempotency key.
    struct Shop(AtomicU32);
    impl Workflow for Shop {
        const NAME: &'static str = "shop";
        type Params = ();
        type Output = ();
        async fn run(&self, _: Event<()>, step: &Step) -> Result<()> {
            step.run("order", async {
                // The first world orders once; the second is the first that crashes.
                match self.0.fetch_add(1, Ordering::SeqCst) {
                    0 | 1 => Ok(()),
                    _ => Err(Error::non_retryable("ordered twice")),
                }
            })
            .await
        }
    }
    let shop = Shop(AtomicU32::new(0));
    let story = CrashTest::new(shop, ()).store(kind).run().await.unwrap_err().to_string();
    assert!(story.contains("just before boundary 1 of 1"), "{story}");
    assert!(story.contains("errored with Error: ordered twice"), "{story}");
    Ok(())
}

#[tokio::test]
async fn a_workflow_without_steps_has_one_boundary() -> Result<()> {
    async fn noop(_: Event<()>, _: &Step) -> Result<()> {
        Ok(())
    }
    let survived = survives_crash_at_every_boundary(workflow("noop", noop), ()).await?;
    assert_eq!((survived.boundaries, survived.crashes), (1, 2));
    Ok(())
}

#[tokio::test]
async fn params_that_do_not_fit_are_told() {
    let test = survives_crash_at_every_boundary(workflow("checkout", checkout), 7);
    let story = test.await.unwrap_err().to_string();
    assert!(story.contains("could not be run") && story.contains("params"), "{story}");
}
