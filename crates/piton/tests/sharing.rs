//! Steps that share: two waits one buffer of events, a body that never rests its thread.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use piton::prelude::*;
use piton::{InstanceStatus, StepStatus};
use piton_testing::{Harness, StoreKind, on_every_store};

use crate::support::{Probe, until_step};

on_every_store!(
    the_loser_of_two_waits_leaves_its_event_for_a_later_wait,
    two_joined_waits_both_get_their_events_while_a_body_runs,
    a_body_that_wakes_itself_lets_others_run,
);

// 13, 27
async fn the_loser_of_two_waits_leaves_its_event_for_a_later_wait(kind: StoreKind) -> Result<()> {
    let flow = workflow("choice", async |_: Event<()>, step: &Step| -> Result<String> {
        let first: String = select! {
            yes = step.wait_for_event("yes", "approved") => yes?,
            no = step.wait_for_event("no", "rejected") => no?,
        };
        let (left, wanted) = if first == "yes" { ("rejected", "no") } else { ("approved", "yes") };
        let second: String = step.wait_for_event("the other", left).await?;
        assert_eq!(second, wanted);
        Ok(format!("{first} then {second}"))
    });
    let harness = Harness::on(kind, [flow]).await?;
    let instance = harness.create::<_, String>("choice", ()).await?;
    instance.send_event("approved", "yes").await?;
    instance.send_event("rejected", "no").await?;
    harness.run_until_idle().await?;
    assert_eq!(instance.status().await?, InstanceStatus::Complete);
    let events = instance.history().await?.events.items;
    let takers: Vec<_> = events.iter().filter_map(|event| event.consumed_by.clone()).collect();
    assert_eq!(takers.len(), 2, "each event fed one wait: {takers:?}");
    Ok(())
}

// 11, 26
async fn two_joined_waits_both_get_their_events_while_a_body_runs(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("both", async |_: Event<()>, step: &Step| -> Result<u32> {
        let (a, b, ()) = try_join!(
            step.wait_for_event::<u32>("a", "a"),
            step.wait_for_event::<u32>("b", "b"),
            step.run("long", async {
                probe.hold("long").await;
                Ok(())
            }),
        )?;
        Ok(a + b)
    });
    let harness = Harness::on(kind, [flow]).await?;
    let instance = harness.create::<_, u32>("both", ()).await?;
    instance.send_event("a", &1).await?;
    instance.send_event("b", &2).await?;
    let meet = async {
        probe.held("long").await;
        until_step(&instance, "a", StepStatus::Completed).await?;
        until_step(&instance, "b", StepStatus::Completed).await?;
        probe.open("long");
        Ok(())
    };
    try_join!(harness.tick(), meet)?;
    assert_eq!(instance.result().await?, 3);
    Ok(())
}

// A body that wakes itself, as spinning futures do, shares its thread.
async fn a_body_that_wakes_itself_lets_others_run(kind: StoreKind) -> Result<()> {
    let flow = workflow("spin", async |_: Event<()>, step: &Step| -> Result<()> {
        step.run("spin", async {
            let done = Arc::new(AtomicBool::new(false));
            let flag = Arc::clone(&done);
            let elsewhere = tokio::task::spawn_blocking(move || flag.store(true, Ordering::SeqCst));
            poll_fn(|cx| {
                if done.load(Ordering::SeqCst) {
                    return Poll::Ready(());
                }
                cx.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
            elsewhere.await?;
            Ok(())
        })
        .await
    });
    let harness = Harness::on(kind, [flow]).await?;
    let instance = harness.create::<_, ()>("spin", ()).await?;
    harness.run_until_idle().await?;
    instance.result().await?;
    Ok(())
}
