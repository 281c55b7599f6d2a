//! Waiting for results: everyone who waits is told, wherever they wait, and nobody waits for ever.

#![allow(clippy::unwrap_used, reason = "tests")]

use futures_util::future::try_join_all;
use piton::prelude::*;
use piton::{EngineBuilder, InstanceHandle, Registration};
use piton_testing::{Access, Harness, StoreKind, on_every_store};

use crate::support::{Gate, another_engine, engine_on, flow, tick_until_arrived};

on_every_store!(
    every_waiter_gets_the_result,
    a_result_is_awaited_from_another_engine,
    a_result_is_found_by_polling_when_no_hint_arrives,
    a_result_that_is_an_error_keeps_name_message_and_code,
    a_terminated_instance_has_no_result,
    a_restart_while_a_waiting_run_is_awaited_gives_the_result_of_the_new_run,
    a_restart_while_a_running_run_is_awaited_gives_the_result_of_the_new_run,
    a_shutdown_wakes_those_who_wait_for_results,
    a_store_that_another_engine_closes_keeps_nobody_waiting,
    a_dropped_engine_wakes_those_who_wait_for_results,
);

/// Ends at once.
fn noop(name: &str) -> Registration {
    flow(name, &(), |(), _: Event<()>, _| Box::pin(async { Ok(()) }))
}

async fn every_waiter_gets_the_result(kind: StoreKind) -> Result<()> {
    let gate = Gate::new();
    let work = flow("work", &gate, |gate, _: Event<()>, step| {
        Box::pin(async move {
            step.run("work", gate.pass()).await?;
            Ok(7)
        })
    });
    let harness = Harness::on(kind, [work]).await?;
    let instance = harness.create::<_, i32>("work", ()).await?;
    let handles = [instance.clone(), instance.clone(), instance];
    let waiting = try_join_all(handles.iter().map(InstanceHandle::result));
    let working = async {
        let tick = tick_until_arrived(harness.engine(), &gate).await?;
        gate.open();
        tick.await
    };
    let (results, worked) = join!(waiting, working);
    worked?;
    assert_eq!(results?, [7, 7, 7]);
    assert_eq!(handles[0].result().await?, 7, "and whoever asks later");
    Ok(())
}

async fn a_result_is_awaited_from_another_engine(kind: StoreKind) -> Result<()> {
    let answer = || flow("answer", &(), |(), _: Event<()>, _| Box::pin(async { Ok(42) }));
    let harness = Harness::on(kind, [answer()]).await?;
    let other = another_engine(&harness, [answer()]).await?;
    let id = harness.create::<_, i32>("answer", ()).await?.id().to_owned();
    let instance = other.workflow::<(), i32>("answer")?.get(&id).await?;
    let (result, tick) = join!(instance.result(), harness.tick());
    tick?;
    assert_eq!(result?, 42);
    Ok(())
}

async fn a_result_is_found_by_polling_when_no_hint_arrives(kind: StoreKind) -> Result<()> {
    let answer = || flow("answer", &(), |(), _: Event<()>, _| Box::pin(async { Ok(42) }));
    let harness = Harness::on(kind, [answer()]).await?;
    let deaf =
        engine_on(Access::deaf(harness.store()), &harness, [answer()], EngineBuilder::no_runner)
            .await?;
    let id = harness.create::<_, i32>("answer", ()).await?.id().to_owned();
    let instance = deaf.workflow::<(), i32>("answer")?.get(&id).await?;
    let meanwhile = async {
        tokio::task::yield_now().await;
        harness.run_until_idle().await?;
        loop {
            harness.advance("1 second");
            tokio::task::yield_now().await;
        }
    };
    let found: Result<i32> = select! {
        biased;
        found = instance.result() => found,
        failed = meanwhile => failed,
    };
    assert_eq!(found?, 42);
    Ok(())
}

async fn a_result_that_is_an_error_keeps_name_message_and_code(kind: StoreKind) -> Result<()> {
    let fails = flow("fails", &(), |(), how: Event<u32>, step| {
        Box::pin(async move {
            match *how {
                0 => Err(Error::new("card declined").named("CardDeclined")),
                1 => step.run("", async { Ok(()) }).await,
                _ => panic!("out of cards"),
            }
        })
    });
    let harness = Harness::on(kind, [fails]).await?;
    for (how, expected) in [
        (0_u32, ("CardDeclined", "card declined", None)),
        (1, ("InvalidStepName", "a step name is empty", Some("INVALID_STEP_NAME"))),
        (2, ("Panic", "out of cards", None)),
    ] {
        let instance = harness.create::<_, ()>("fails", how).await?;
        let (waiting, tick) = join!(instance.result(), harness.tick());
        tick?;
        for error in [waiting.unwrap_err(), instance.result().await.unwrap_err()] {
            let (name, message, code) = expected;
            assert_eq!((error.name(), error.code()), (name, code));
            assert!(error.message().starts_with(message), "{error}");
        }
    }
    Ok(())
}

async fn a_terminated_instance_has_no_result(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [noop("noop")]).await?;
    let instance = harness.create::<_, ()>("noop", ()).await?;
    let (waiting, terminated) = join!(instance.result(), instance.terminate());
    terminated?;
    for error in [waiting.unwrap_err(), instance.result().await.unwrap_err()] {
        assert_eq!((error.code(), error.name()), (Some("NO_RESULT"), "Terminated"));
    }
    Ok(())
}

async fn a_restart_while_a_waiting_run_is_awaited_gives_the_result_of_the_new_run(
    kind: StoreKind,
) -> Result<()> {
    let waits = flow("waits", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            step.wait_for_event::<()>("go", "go").await?;
            Ok(step.run_number())
        })
    });
    let harness = Harness::on(kind, [waits]).await?;
    let instance = harness.create::<_, u32>("waits", ()).await?;
    harness.run_until_idle().await?;
    let meanwhile = async {
        tokio::task::yield_now().await;
        instance.restart().await?;
        harness.run_until_idle().await?;
        instance.send_event("go", &()).await?;
        harness.run_until_idle().await
    };
    let (result, restarted) = join!(instance.result(), meanwhile);
    restarted?;
    assert_eq!(result?, 1);
    Ok(())
}

async fn a_restart_while_a_running_run_is_awaited_gives_the_result_of_the_new_run(
    kind: StoreKind,
) -> Result<()> {
    let gate = Gate::new();
    let works = flow("works", &gate, |gate, _: Event<()>, step| {
        Box::pin(async move {
            let run = step.run_number();
            step.run("work", gate.pass()).await?;
            Ok(run)
        })
    });
    let harness = Harness::on(kind, [works]).await?;
    let instance = harness.create::<_, u32>("works", ()).await?;
    let old = tick_until_arrived(harness.engine(), &gate).await?;
    let meanwhile = async {
        tokio::task::yield_now().await;
        instance.restart().await?;
        old.await?;
        let new = tick_until_arrived(harness.engine(), &gate).await?;
        gate.open();
        new.await
    };
    let (result, restarted) = join!(instance.result(), meanwhile);
    restarted?;
    assert_eq!(result?, 1);
    Ok(())
}

async fn a_shutdown_wakes_those_who_wait_for_results(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [noop("noop")]).await?;
    let instance = harness.create::<_, ()>("noop", ()).await?;
    let (waiting, shut_down) = join!(instance.result(), harness.engine().shutdown("1 second"));
    shut_down?;
    assert_eq!(waiting.unwrap_err().code(), Some("SHUTTING_DOWN"));
    let late = instance.result().await.unwrap_err();
    assert_eq!(late.code(), Some("SHUTTING_DOWN"), "and nobody starts to wait after it");
    Ok(())
}

async fn a_store_that_another_engine_closes_keeps_nobody_waiting(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [noop("noop")]).await?;
    let other = another_engine(&harness, [noop("noop")]).await?;
    let instance = other.workflow::<(), ()>("noop")?.create(()).await?;
    let meanwhile = async {
        tokio::task::yield_now().await;
        harness.engine().shutdown("1 second").await?;
        loop {
            harness.advance("1 second");
            tokio::task::yield_now().await;
        }
    };
    let waiting: Result<()> = select! {
        biased;
        waiting = instance.result() => waiting,
        failed = meanwhile => failed,
    };
    assert_eq!(waiting.unwrap_err().code(), Some("SHUTTING_DOWN"));
    Ok(())
}

async fn a_dropped_engine_wakes_those_who_wait_for_results(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [noop("noop")]).await?;
    let other = another_engine(&harness, [noop("noop")]).await?;
    let instance = other.workflow::<(), ()>("noop")?.create(()).await?;
    let dropping = async {
        tokio::task::yield_now().await;
        drop(other);
    };
    let (waiting, ()) = join!(instance.result(), dropping);
    assert_eq!(waiting.unwrap_err().code(), Some("SHUTTING_DOWN"));
    Ok(())
}
