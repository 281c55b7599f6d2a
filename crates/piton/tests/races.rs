//! Moments that once lost work: a caller that goes away, a slot that is given back unseen, an order that comes too late.
//!
//! In each of them virtual time stands still, so that no lease, poll or timer can make good what was lost.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::maybe_done;
use piton::prelude::*;
use piton::{BatchItem, EngineBuilder, InstanceHandle, InstanceStatus, Registration};
use piton_testing::{Access, Harness, NextCommit, StoreKind, on_every_store};

use crate::support::{engine_on, eventually, flow, system_lines, until, until_status};

on_every_store!(
    a_create_whose_caller_goes_away_is_seen_through,
    a_tick_whose_caller_goes_away_is_seen_through,
    an_event_whose_sender_goes_away_is_seen_through,
    an_event_whose_sender_does_not_look_is_seen_through,
    a_run_goes_on_with_its_event_although_no_hint_arrives,
);

/// One step, and the end.
fn quick() -> Registration {
    flow("quick", &(), |(), _: Event<()>, step| {
        Box::pin(async move { step.run("work", async { Ok(()) }).await })
    })
}

/// Polls a future once and drops it, as a `select!` or a timeout does.
async fn poll_once_and_drop<F: Future>(future: F) {
    let mut future = Box::pin(future);
    let _ = futures_util::poll!(&mut future);
}

async fn a_create_whose_caller_goes_away_is_seen_through(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [quick()]).await?;
    let runner = engine_on(harness.store(), &harness, [quick()], |builder| builder).await?;
    let quick = runner.workflow::<(), ()>("quick")?;
    for number in 0..20 {
        let id = format!("q-{number}");
        poll_once_and_drop(quick.create(()).id(id.as_str()).into_future()).await;
        let instance = eventually("it is created", || async { Ok(quick.get(&id).await.ok()) });
        until_status(&instance.await?, InstanceStatus::Complete).await?;
    }
    Ok(())
}

async fn a_tick_whose_caller_goes_away_is_seen_through(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [quick()]).await?;
    for _ in 0..20 {
        let instance = harness.create::<_, ()>("quick", ()).await?;
        poll_once_and_drop(harness.engine().tick(10)).await;
        until_status(&instance, InstanceStatus::Complete).await?;
    }
    Ok(())
}

fn waits() -> Registration {
    flow("waits", &(), |(), _: Event<()>, step| {
        Box::pin(async move { step.wait_for_event::<u32>("go", "go").await })
    })
}

/// Instances that wait for an event, as another process sees them that hears nothing and has a runner.
async fn waiting_elsewhere(
    harness: &Harness,
    count: usize,
) -> Result<(Engine, Vec<InstanceHandle<u32>>)> {
    for _ in 0..count {
        harness.create::<_, u32>("waits", ()).await?;
    }
    harness.run_until_idle().await?;
    let deaf = Access::deaf(harness.store());
    let runner = engine_on(deaf, harness, [waits()], |builder| builder).await?;
    let waits = runner.workflow::<(), u32>("waits")?;
    let mut all = Vec::new();
    for waiting in waits.list().await?.items {
        assert_eq!(waiting.status, InstanceStatus::Waiting);
        all.push(waits.get(waiting.id.as_str()).await?);
    }
    assert_eq!(all.len(), count);
    Ok((runner, all))
}

async fn an_event_whose_sender_goes_away_is_seen_through(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [waits()]).await?;
    let (_elsewhere, instances) = waiting_elsewhere(&harness, 20).await?;
    for instance in instances {
        poll_once_and_drop(instance.send_event("go", &7).into_future()).await;
        until_status(&instance, InstanceStatus::Complete).await?;
    }
    Ok(())
}

async fn an_event_whose_sender_does_not_look_is_seen_through(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [waits()]).await?;
    let (_elsewhere, instances) = waiting_elsewhere(&harness, 5).await?;
    for instance in instances {
        let mut sending = maybe_done(instance.send_event("go", &7).into_future());
        let _ = futures_util::poll!(&mut sending);
        until_status(&instance, InstanceStatus::Complete).await?;
        (&mut sending).await;
        Pin::new(&mut sending).take_output().expect("it is sent")?;
    }
    Ok(())
}

async fn a_run_goes_on_with_its_event_although_no_hint_arrives(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [waits()]).await?;
    let (_elsewhere, instances) = waiting_elsewhere(&harness, 2).await?;
    for instance in instances {
        instance.send_event("go", &7).await?;
        assert_eq!(instance.result().await?, 7, "it was leased with the event");
    }
    Ok(())
}

#[test]
fn a_slot_given_back_is_never_overlooked() -> Result<()> {
    const INSTANCES: usize = 3_000;
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(4).build();
    threads?.block_on(async {
        let done = Arc::new(AtomicU32::new(0));
        let count = flow("count", &done, |done, _: Event<()>, _| {
            Box::pin(async move {
                done.fetch_add(1, Ordering::SeqCst);
                Ok(())
            })
        });
        let harness = Harness::memory([quick()]).await?;
        let narrow = |builder: EngineBuilder| builder.concurrency(1);
        let runner = engine_on(harness.store(), &harness, [count], narrow).await?;
        let count = runner.workflow::<(), ()>("count")?;
        for batch in 0..INSTANCES / 100 {
            let ids = (0..100).map(|number| format!("c-{batch}-{number}"));
            count.create_batch(ids.map(|id| BatchItem::new(id, ()))).await?;
        }
        until("all are done", async || Ok(done.load(Ordering::SeqCst) as usize == INSTANCES)).await
    })
}

/// An engine without a runner, what stands between it and its store, and an instance of `waits`.
async fn engine_with_one(
    harness: &Harness,
    waits: Registration,
) -> Result<(Engine, Arc<Access>, InstanceHandle<u32>)> {
    let access = Access::to(harness.store());
    let engine = engine_on(Arc::clone(&access) as _, harness, [waits], EngineBuilder::no_runner);
    let engine = engine.await?;
    let instance = engine.workflow::<(), u32>("waits")?.create(()).await?;
    Ok((engine, access, instance))
}

/// The claim of a parked run can arrive while the run is still being parked, and tells it to leave: that order is for the
/// pass that was, not for the one that goes on.
#[tokio::test]
async fn a_parked_run_forgets_the_orders_of_the_claim_before() -> Result<()> {
    let passes = Arc::new(AtomicU32::new(0));
    let waits = flow("waits", &passes, |passes, _: Event<()>, step| {
        passes.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move { step.wait_for_event::<u32>("go", "go").await })
    });
    let harness = Harness::memory([quick()]).await?;
    let (engine, access, instance) = engine_with_one(&harness, waits).await?;
    access.next_commit(NextCommit::IsAnsweredWithTheNextClaim);
    let second = async {
        until_status(&instance, InstanceStatus::Waiting).await?;
        instance.send_event("go", &7).await?;
        engine.tick(1).await
    };
    let (first, second) = join!(engine.tick(1), second);
    assert_eq!((first?.processed, second?.processed), (1, 1));
    assert_eq!(
        instance.status().await?,
        InstanceStatus::Complete,
        "not lost until its lease is over"
    );
    assert_eq!(instance.result().await?, 7);
    assert_eq!(passes.load(Ordering::SeqCst), 1, "it went on where it was");
    Ok(())
}

/// Answers can overtake each other: a renewal may say that a run is no longer held, before its runner hears that it has
/// let go of it.
#[tokio::test]
async fn a_run_that_lets_go_is_not_told_that_it_was_fenced() -> Result<()> {
    let waits = flow("waits", &(), |(), _: Event<()>, step| {
        Box::pin(async move { step.wait_for_event::<u32>("go", "go").await })
    });
    let harness = Harness::memory([quick()]).await?;
    let (engine, access, instance) = engine_with_one(&harness, waits).await?;
    access.next_commit(NextCommit::IsAnsweredBehindARenewal);
    let renewal = async {
        until_status(&instance, InstanceStatus::Waiting).await?;
        harness.advance("10 seconds");
        Ok::<_, Error>(())
    };
    let (ticked, renewed) = join!(engine.tick(1), renewal);
    renewed?;
    assert_eq!(ticked?.processed, 1);
    access.renewed(1).await;
    let told = system_lines(&instance, None).await?;
    assert!(!told.iter().any(|line| line.contains("fenced")), "{told:?}");
    Ok(())
}
