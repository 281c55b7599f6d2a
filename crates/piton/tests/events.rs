//! Events: an accepted event is never lost while its run lives, feeds exactly one wait, first come first served,
//! and either it or the timeout ends a wait, never both.

#![allow(clippy::unwrap_used, reason = "tests")]

use futures_util::future::{join_all, try_join_all};
use piton::prelude::*;
use piton::{EngineBuilder, Instance, InstanceHandle, InstanceStatus, Registration, StepStatus};
use piton_testing::scenario::{Scenario, steps::*};
use piton_testing::{Harness, Progress, StoreKind, on_every_store};
use serde_json::json;

use crate::support::{
    Gate, Trail, buffered, ended, eventually, flow, steps_of, tick_until_arrived,
};

on_every_store!(
    an_event_sent_before_the_first_pass_is_delivered,
    an_event_sent_before_its_wait_is_reached_is_delivered,
    an_event_sent_while_an_earlier_body_runs_is_delivered_in_the_same_pass,
    an_event_sent_while_a_sibling_body_runs_is_delivered_before_that_body_ends,
    an_event_sent_while_a_body_was_cut_off_by_a_crash_is_delivered_while_that_body_runs_again,
    an_event_sent_while_paused_is_delivered_after_resume,
    an_event_sent_in_the_millisecond_of_registration_is_delivered_without_time_passing,
    events_racing_with_the_pass_that_registers_the_wait_are_never_lost,
    an_event_of_another_type_wakes_nobody,
    events_are_taken_in_order_of_arrival_and_others_are_left_alone,
    arrival_counts_and_not_the_clock,
    two_waits_of_one_type_get_one_event_each,
    a_wait_that_lost_a_select_takes_no_event,
    an_event_at_the_very_deadline_counts,
    an_event_after_the_deadline_is_kept_for_the_next_wait,
    an_event_that_arrived_in_time_counts_although_it_is_processed_late,
    an_event_after_a_recorded_timeout_is_kept_for_the_next_wait,
    the_workflow_goes_on_after_a_caught_timeout_on_replay_too,
    the_default_timeout_is_a_day,
    outcome_makes_a_timeout_none_and_received_tells_everything,
    a_payload_that_does_not_decode_is_an_error_and_not_a_timeout,
    an_ended_instance_refuses_events_and_stores_nothing,
    a_missing_instance_is_not_found,
    a_paused_instance_buffers_and_stays_paused,
    events_of_a_run_are_not_seen_by_the_next,
    many_buffered_events_are_still_taken_first_come_first_served,
    a_repeated_idempotency_key_stores_one_event,
    a_repeated_idempotency_key_is_answered_like_the_first_after_the_end_and_after_a_restart,
);

/// Waits for one `go` and returns its payload.
fn one_wait() -> Registration {
    flow("wait", &(), |(), _: Event<()>, step| {
        Box::pin(async move { step.wait_for_event::<u32>("go", "go").await })
    })
}

/// Waits for `go` twice, an hour each, and tells what came of each wait.
fn two_waits() -> Registration {
    flow("wait", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            let wait = |name| step.wait_for_event::<u32>(name, "go").timeout("1 hour").outcome();
            Ok((wait("first").await?, wait("second").await?))
        })
    })
}

type Outcomes = (Option<u32>, Option<u32>);

// ---- 26: delivered promptly, whenever it was sent ----

async fn an_event_sent_before_the_first_pass_is_delivered(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [one_wait()]).await?;
    let instance = harness.create::<_, u32>("wait", ()).await?;
    instance.send_event("go", &7).await?;
    harness.run_until_idle().await?;
    assert_eq!(ended(&instance).await?, 7);
    Ok(())
}

async fn an_event_sent_before_its_wait_is_reached_is_delivered(kind: StoreKind) -> Result<()> {
    let sleeps_first = flow("wait", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            step.sleep("nap", "1 hour").await?;
            step.wait_for_event::<u32>("go", "go").await
        })
    });
    Scenario::new("an event before its wait")
        .workflow(sleeps_first)
        .store(kind)
        .step(create("wait").id("w"))
        .step(run_until_idle("wait", "w"))
        .step(event("wait", "w", "go").payload(7))
        .step(run_until_idle("wait", "w").store_as("too early"))
        .step(advance_time("1 hour"))
        .step(run_until_idle("wait", "w"))
        .step(status("wait", "w").store_as("after"))
        .step(assert(|cx| {
            assert_eq!(cx.var::<Progress>("too early").processed, 0, "nobody waits for it yet");
            let output = cx.var::<Instance>("after").output.as_ref().map(|output| output.as_str());
            assert_eq!(output, Some("7"));
        }))
        .run()
        .await?;
    Ok(())
}

async fn an_event_sent_while_an_earlier_body_runs_is_delivered_in_the_same_pass(
    kind: StoreKind,
) -> Result<()> {
    let gate = Gate::new();
    let work = flow("work", &gate, |gate, _: Event<()>, step| {
        Box::pin(async move {
            step.run("long", gate.pass()).await?;
            step.wait_for_event::<u32>("go", "go").await
        })
    });
    let harness = Harness::on(kind, [work]).await?;
    let instance = harness.create::<_, u32>("work", ()).await?;
    let tick = tick_until_arrived(harness.engine(), &gate).await?;
    instance.send_event("go", &7).await?;
    gate.open();
    tick.await?;
    assert_eq!(ended(&instance).await?, 7);
    assert_eq!(gate.arrivals(), 1, "the event did not disturb the body");
    Ok(())
}

async fn an_event_sent_while_a_sibling_body_runs_is_delivered_before_that_body_ends(
    kind: StoreKind,
) -> Result<()> {
    let gate = Gate::new();
    let work = flow("work", &gate, |gate, _: Event<()>, step| {
        Box::pin(async move {
            let (_, go) =
                try_join!(step.run("long", gate.pass()), step.wait_for_event::<u32>("go", "go"))?;
            Ok(go)
        })
    });
    let harness = Harness::on(kind, [work]).await?;
    let instance = harness.create::<_, u32>("work", ()).await?;
    let tick = tick_until_arrived(harness.engine(), &gate).await?;
    until_step(&instance, "go", StepStatus::Waiting).await?;
    instance.send_event("go", &7).await?;
    until_step(&instance, "go", StepStatus::Completed).await?;
    gate.open();
    tick.await?;
    assert_eq!((ended(&instance).await?, gate.arrivals()), (7, 1));
    Ok(())
}

async fn an_event_sent_while_a_body_was_cut_off_by_a_crash_is_delivered_while_that_body_runs_again(
    kind: StoreKind,
) -> Result<()> {
    let gate = Gate::new();
    let work = || {
        flow("work", &gate, |gate, _: Event<()>, step| {
            Box::pin(async move {
                select! {
                    worked = step.run("long", gate.pass()) => worked.map(|()| "worked".to_owned()),
                    told = step.wait_for_event::<String>("cancel", "cancel") => told,
                }
            })
        })
    };
    let harness = Harness::on(kind, [work()]).await?;
    let instance = harness.create::<_, String>("work", ()).await?;
    let id = instance.id().to_owned();
    drop(tick_until_arrived(harness.engine(), &gate).await?);
    until_step(&instance, "cancel", StepStatus::Waiting).await?;
    let harness = harness.crash_and_restart([work()]).await?;
    harness.advance("30 seconds");
    let instance = harness.workflow::<(), String>("work")?.get(&id).await?;
    instance.send_event("cancel", "stop it").await?;
    // The body runs again and would run for ever: only the event can end this.
    harness.run_until_idle().await?;
    assert_eq!(ended(&instance).await?, "stop it");
    Ok(())
}

async fn an_event_sent_while_paused_is_delivered_after_resume(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [one_wait()]).await?;
    let instance = harness.create::<_, u32>("wait", ()).await?;
    harness.run_until_idle().await?;
    instance.pause().await?;
    instance.send_event("go", &7).await?;
    assert_eq!(harness.run_until_idle().await?.processed, 0);
    assert_eq!(instance.status().await?, InstanceStatus::Paused);
    instance.resume().await?;
    harness.run_until_idle().await?;
    assert_eq!(ended(&instance).await?, 7);
    Ok(())
}

async fn an_event_sent_in_the_millisecond_of_registration_is_delivered_without_time_passing(
    kind: StoreKind,
) -> Result<()> {
    let harness = Harness::on(kind, [one_wait()]).await?;
    let instance = harness.create::<_, u32>("wait", ()).await?;
    harness.run_until_idle().await?;
    assert_eq!(instance.status().await?, InstanceStatus::Waiting);
    instance.send_event("go", &7).await?;
    assert_eq!(harness.engine().next_wake_at().await?, Some(harness.now()), "due at once");
    harness.run_until_idle().await?;
    assert_eq!(ended(&instance).await?, 7);
    Ok(())
}

async fn events_racing_with_the_pass_that_registers_the_wait_are_never_lost(
    kind: StoreKind,
) -> Result<()> {
    let harness = Harness::on(kind, [one_wait()]).await?;
    let mut instances = Vec::new();
    for _ in 0..50 {
        instances.push(harness.create::<_, u32>("wait", ()).await?);
    }
    // All at the same virtual millisecond: passes register their waits while events come in.
    let ticks = join_all((0..5).map(|_| harness.engine().tick(10)));
    let events = try_join_all(instances.iter().map(|instance| async move {
        tokio::task::yield_now().await;
        instance.send_event("go", &7).await
    }));
    let (ticks, events) = join!(ticks, events);
    events?;
    for tick in ticks {
        tick?;
    }
    harness.run_until_idle().await?;
    for instance in &instances {
        assert_eq!(instance.status().await?, InstanceStatus::Complete, "{instance:?}");
    }
    Ok(())
}

async fn an_event_of_another_type_wakes_nobody(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [one_wait()]).await?;
    let instance = harness.create::<_, u32>("wait", ()).await?;
    harness.run_until_idle().await?;
    instance.send_event("stop", &1).await?;
    assert_eq!(harness.run_until_idle().await?.processed, 0);
    assert_eq!(buffered(&instance).await?, ["1"]);
    Ok(())
}

// ---- 27: first come first served, each event feeds one wait ----

async fn events_are_taken_in_order_of_arrival_and_others_are_left_alone(
    kind: StoreKind,
) -> Result<()> {
    let take_three = flow("take", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            let mut taken = Vec::new();
            for n in 0..3 {
                let wait = step.wait_for_event::<String>(format!("wait {n}"), "a");
                taken.push(wait.await?);
            }
            Ok(taken)
        })
    });
    let harness = Harness::on(kind, [take_three]).await?;
    let instance = harness.create::<_, Vec<String>>("take", ()).await?;
    for payload in ["b1", "a1", "a2"] {
        instance.send_event(&payload[..1], payload).await?;
    }
    harness.run_until_idle().await?;
    for payload in ["b2", "a3", "a4"] {
        instance.send_event(&payload[..1], payload).await?;
    }
    harness.run_until_idle().await?;
    assert_eq!(ended(&instance).await?, ["a1", "a2", "a3"]);
    assert_eq!(buffered(&instance).await?, [r#""b1""#, r#""b2""#, r#""a4""#]);
    let events = instance.history().await?.events.items;
    let takers: Vec<_> = events
        .iter()
        .filter_map(|event| Some((event.payload.as_str(), event.consumed_by.as_ref()?.as_str())))
        .collect();
    let expected = [(r#""a1""#, "wait 0"), (r#""a2""#, "wait 1"), (r#""a3""#, "wait 2")];
    assert_eq!(takers, expected);
    Ok(())
}

async fn arrival_counts_and_not_the_clock(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [two_waits()]).await?;
    let instance = harness.create::<_, Outcomes>("wait", ()).await?;
    instance.send_event("go", &1).await?;
    // A time server sets the clock back between the two.
    harness.runtime().set_time(harness.now().plus(piton::Span::from_millis(-60_000)));
    instance.send_event("go", &2).await?;
    harness.advance("1 minute");
    harness.run_until_idle().await?;
    assert_eq!(ended(&instance).await?, (Some(1), Some(2)));
    Ok(())
}

async fn two_waits_of_one_type_get_one_event_each(kind: StoreKind) -> Result<()> {
    let both = flow("both", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            try_join!(
                step.wait_for_event::<u32>("left", "go"),
                step.wait_for_event::<u32>("right", "go")
            )
        })
    });
    let harness = Harness::on(kind, [both]).await?;
    let instance = harness.create::<_, (u32, u32)>("both", ()).await?;
    harness.run_until_idle().await?;
    instance.send_event("go", &1).await?;
    harness.run_until_idle().await?;
    assert_eq!(steps_of(&instance, None).await?, ["left completed", "right waiting"]);
    instance.send_event("go", &2).await?;
    harness.run_until_idle().await?;
    assert_eq!(ended(&instance).await?, (1, 2));
    assert_eq!(buffered(&instance).await?, [""; 0]);
    Ok(())
}

async fn a_wait_that_lost_a_select_takes_no_event(kind: StoreKind) -> Result<()> {
    let impatient = flow("impatient", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            select! {
                nap = step.sleep("nap", "1 minute") => nap?,
                lost = step.wait_for_event::<u32>("lost", "go") => return lost,
            }
            step.wait_for_event::<u32>("kept", "go").await
        })
    });
    let harness = Harness::on(kind, [impatient]).await?;
    let instance = harness.create::<_, u32>("impatient", ()).await?;
    harness.run_until_idle().await?;
    harness.advance("1 minute");
    harness.run_until_idle().await?;
    instance.send_event("go", &7).await?;
    harness.run_until_idle().await?;
    assert_eq!(ended(&instance).await?, 7);
    let events = instance.history().await?.events.items;
    assert_eq!(events[0].consumed_by.as_ref().unwrap().as_str(), "kept");
    Ok(())
}

// ---- 28: event against timeout ----

async fn an_event_at_the_very_deadline_counts(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [two_waits()]).await?;
    let instance = harness.create::<_, Outcomes>("wait", ()).await?;
    harness.run_until_idle().await?;
    harness.advance("1 hour");
    instance.send_event("go", &7).await?;
    harness.run_to_end().await?;
    assert_eq!(ended(&instance).await?, (Some(7), None));
    Ok(())
}

async fn an_event_after_the_deadline_is_kept_for_the_next_wait(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [two_waits()]).await?;
    let instance = harness.create::<_, Outcomes>("wait", ()).await?;
    harness.run_until_idle().await?;
    harness.advance(3_600_001);
    instance.send_event("go", &7).await?;
    harness.run_until_idle().await?;
    assert_eq!(ended(&instance).await?, (None, Some(7)), "one millisecond too late");
    Ok(())
}

async fn an_event_that_arrived_in_time_counts_although_it_is_processed_late(
    kind: StoreKind,
) -> Result<()> {
    let harness = Harness::on(kind, [two_waits()]).await?;
    let instance = harness.create::<_, Outcomes>("wait", ()).await?;
    harness.run_until_idle().await?;
    harness.advance("59 minutes");
    instance.send_event("go", &7).await?;
    // Nobody is there to process it until long after the deadline.
    harness.advance("10 hours");
    harness.run_to_end().await?;
    assert_eq!(ended(&instance).await?, (Some(7), None));
    let steps = instance.history().await?.steps.items;
    assert_eq!((steps[0].status, steps[0].error.as_ref()), (StepStatus::Completed, None));
    Ok(())
}

async fn an_event_after_a_recorded_timeout_is_kept_for_the_next_wait(
    kind: StoreKind,
) -> Result<()> {
    let harness = Harness::on(kind, [two_waits()]).await?;
    let instance = harness.create::<_, Outcomes>("wait", ()).await?;
    harness.run_until_idle().await?;
    harness.advance(3_599_999);
    assert_eq!(harness.run_until_idle().await?.processed, 0, "not a millisecond early");
    harness.advance(1);
    harness.run_until_idle().await?;
    assert_eq!(steps_of(&instance, None).await?, ["first errored", "second waiting"]);
    instance.send_event("go", &7).await?;
    harness.run_until_idle().await?;
    assert_eq!(ended(&instance).await?, (None, Some(7)));
    Ok(())
}

// ---- 29: after a timeout, and the forms of waiting ----

async fn the_workflow_goes_on_after_a_caught_timeout_on_replay_too(kind: StoreKind) -> Result<()> {
    for parked_runs in [0, 10] {
        let trail = Trail::default();
        let patient = flow("patient", &trail, |trail, _: Event<()>, step| {
            Box::pin(async move {
                let wait = step.wait_for_event::<u32>("answer", "answer").timeout("1 hour");
                let error = wait.await.unwrap_err();
                trail.mark(format!("{}: {}", error.name(), error.message()));
                step.run("remind", async { trail.note("reminded") }).await?;
                step.sleep("once more", "1 hour").await?;
                let wait = step.wait_for_event::<u32>("second", "answer").timeout("1 hour");
                wait.await.map_err(|error| error.named("StillNothing"))
            })
        });
        let configure = move |builder: EngineBuilder| builder.parked_runs(parked_runs);
        let harness = Harness::with(kind, [patient], configure).await?;
        let instance = harness.create::<_, u32>("patient", ()).await?;
        harness.run_to_end().await?;
        let error = ended(&instance).await.unwrap_err();
        assert_eq!(error.name(), "StillNothing");
        assert_eq!(trail.count("reminded"), 1);
        let timeout = "WaitForEventTimeout: no event of type `answer` arrived within 1 hour";
        let expected = if parked_runs == 0 { 3 } else { 1 };
        assert_eq!(trail.count(timeout), expected, "the same error on every pass");
        let expected =
            ["answer errored", "remind completed", "once more completed", "second errored"];
        assert_eq!(steps_of(&instance, None).await?, expected);
    }
    Ok(())
}

async fn the_default_timeout_is_a_day(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [one_wait()]).await?;
    let instance = harness.create::<_, u32>("wait", ()).await?;
    harness.run_until_idle().await?;
    let deadline = instance.describe().await?.current_step.unwrap().wake_at;
    assert_eq!(deadline, Some(harness.now().plus(piton::Span::from_days(1))));
    harness.run_to_end().await?;
    assert_eq!(ended(&instance).await.unwrap_err().name(), "WaitForEventTimeout");
    Ok(())
}

async fn outcome_makes_a_timeout_none_and_received_tells_everything(kind: StoreKind) -> Result<()> {
    for parked_runs in [0, 10] {
        let curious = flow("curious", &(), |(), _: Event<()>, step| {
            Box::pin(async move {
                let none =
                    step.wait_for_event::<u32>("none", "a").timeout("1 hour").outcome().await?;
                let some = step.wait_for_event::<u32>("some", "a").outcome().await?;
                let whole = step.wait_for_event::<u32>("whole", "b").received().await?;
                let whole = (whole.event_type, whole.payload, whole.timestamp);
                step.sleep("force another pass", "1 hour").await?;
                Ok((none, some, whole))
            })
        });
        let configure = move |builder: EngineBuilder| builder.parked_runs(parked_runs);
        let harness = Harness::with(kind, [curious], configure).await?;
        type Told = (Option<u32>, Option<u32>, (String, u32, Timestamp));
        let instance = harness.create::<_, Told>("curious", ()).await?;
        harness.run_until_idle().await?;
        harness.advance("1 hour");
        harness.run_until_idle().await?;
        instance.send_event("a", &1).await?;
        harness.advance("1 minute");
        instance.send_event("b", &2).await?;
        let arrived = harness.now();
        harness.advance("1 minute");
        harness.run_to_end().await?;
        let expected = (None, Some(1), ("b".to_owned(), 2, arrived));
        assert_eq!(ended(&instance).await?, expected);
    }
    Ok(())
}

async fn a_payload_that_does_not_decode_is_an_error_and_not_a_timeout(
    kind: StoreKind,
) -> Result<()> {
    let harness = Harness::on(kind, [two_waits()]).await?;
    let instance = harness.create::<_, Outcomes>("wait", ()).await?;
    instance.send_event("go", "seven").await?;
    harness.run_until_idle().await?;
    let error = ended(&instance).await.unwrap_err();
    assert_eq!(error.code(), Some("DECODE_FAILED"));
    let told = "the payload of event \"go\", which step \"first\" took, does not decode as u32";
    assert!(error.message().starts_with(told), "{error}");
    Ok(())
}

// ---- 30: who takes events ----

async fn an_ended_instance_refuses_events_and_stores_nothing(kind: StoreKind) -> Result<()> {
    let ends = flow("ends", &(), |(), how: Event<String>, step| {
        Box::pin(async move {
            match how.as_str() {
                "well" => Ok(()),
                "badly" => Err(Error::new("no luck")),
                _ => step.sleep("never", "365 days").await,
            }
        })
    });
    let harness = Harness::on(kind, [ends]).await?;
    for (how, status) in [
        ("well", InstanceStatus::Complete),
        ("badly", InstanceStatus::Errored),
        ("by hand", InstanceStatus::Terminated),
    ] {
        let instance = harness.create::<_, ()>("ends", how.to_owned()).await?;
        harness.run_until_idle().await?;
        if status == InstanceStatus::Terminated {
            instance.terminate().await?;
        }
        let refused = instance.send_event("go", &1).await.unwrap_err();
        assert_eq!(refused.code(), Some("INSTANCE_TERMINAL"));
        assert_eq!(instance.status().await?, status);
        assert!(instance.history().await?.events.items.is_empty());
    }
    Ok(())
}

async fn a_missing_instance_is_not_found(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [one_wait()]).await?;
    let missing = harness.workflow::<(), u32>("wait")?.get("nobody").await.unwrap_err();
    assert_eq!(missing.code(), Some("INSTANCE_NOT_FOUND"));
    let limits = Limits::default();
    let event = piton::store::NewEvent {
        workflow: piton::WorkflowName::parse("wait", &limits)?,
        id: piton::InstanceId::parse("nobody", &limits)?,
        event_type: piton::EventType::parse("go", &limits)?,
        payload: piton::Json::null(),
        idempotency_key: None,
        hooks: Vec::new(),
    };
    let missing: Error = harness.store().send_event(event, None).await.unwrap_err().into();
    assert_eq!(missing.code(), Some("INSTANCE_NOT_FOUND"));
    Ok(())
}

async fn a_paused_instance_buffers_and_stays_paused(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [two_waits()]).await?;
    let instance = harness.create::<_, Outcomes>("wait", ()).await?;
    harness.run_until_idle().await?;
    instance.pause().await?;
    for payload in [1, 2] {
        instance.send_event("go", &payload).await?;
    }
    assert_eq!(harness.run_until_idle().await?.processed, 0);
    assert_eq!(instance.status().await?, InstanceStatus::Paused);
    assert_eq!(buffered(&instance).await?, ["1", "2"]);
    // They arrived in time, although the deadline passes before anyone may look.
    harness.advance("2 hours");
    instance.resume().await?;
    harness.run_until_idle().await?;
    assert_eq!(ended(&instance).await?, (Some(1), Some(2)));
    Ok(())
}

// ---- 31, 32 ----

async fn events_of_a_run_are_not_seen_by_the_next(kind: StoreKind) -> Result<()> {
    let napping = flow("napping", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            step.sleep("nap", "1 hour").await?;
            step.wait_for_event::<u32>("go", "go").await
        })
    });
    let harness = Harness::on(kind, [napping]).await?;
    let instance = harness.create::<_, u32>("napping", ()).await?;
    harness.run_until_idle().await?;
    instance.send_event("go", &0).await?;
    instance.restart().await?;
    harness.run_until_idle().await?;
    harness.advance("1 hour");
    harness.run_until_idle().await?;
    assert_eq!(instance.status().await?, InstanceStatus::Waiting, "the old event is not its own");
    instance.send_event("go", &1).await?;
    harness.run_until_idle().await?;
    assert_eq!(ended(&instance).await?, 1);
    let old = instance.history().run_number(0).await?.events.items;
    assert_eq!((old.len(), old[0].payload.as_str()), (1, "0"), "still readable in its own run");
    assert_eq!(old[0].delivered_at, None);
    Ok(())
}

async fn many_buffered_events_are_still_taken_first_come_first_served(
    kind: StoreKind,
) -> Result<()> {
    const EVENTS: u32 = 20_000;
    let take_five = flow("take", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            let mut taken = Vec::new();
            for n in 0..5 {
                taken.push(step.wait_for_event::<u32>(format!("wait {n}"), "go").await?);
                step.sleep(format!("nap {n}"), "1 second").await?;
            }
            Ok(taken)
        })
    });
    // All of them in one transaction, which is the quickest way to have them.
    let send = flow("send", &(), |(), to: Event<String>, step| {
        let send = |tx: piton::StepTransaction<'_>, to: &str| {
            (0..EVENTS).try_for_each(|n| tx.send_event("take", to, "go", &n))
        };
        Box::pin(async move {
            let to = to.as_str();
            step.run_with("send", |cx| async move { send(cx.transaction(), to) }).await
        })
    });
    let harness = Harness::on(kind, [take_five, send]).await?;
    let instance = harness.create::<_, Vec<u32>>("take", ()).await?;
    harness.create::<_, ()>("send", instance.id().to_owned()).await?;
    harness.run_to_end().await?;
    assert_eq!(ended(&instance).await?, [0, 1, 2, 3, 4]);
    let left = instance.history().newest_first().page_size(1).await?.events.items;
    assert_eq!((left[0].payload.as_str(), left[0].delivered_at), ("19999", None));
    Ok(())
}

// ---- idempotency keys ----

async fn a_repeated_idempotency_key_stores_one_event(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [two_waits()]).await?;
    let instance = harness.create::<_, Outcomes>("wait", ()).await?;
    let repeats = (0..4).map(|n| instance.send_event("go", &n).idempotency_key("k").into_future());
    try_join_all(repeats).await?;
    assert_eq!(buffered(&instance).await?.len(), 1, "one key, one event");
    instance.send_event("go", &9).idempotency_key("another").await?;
    for _ in 0..2 {
        instance.send_event("stop", &json!(null)).await?;
    }
    assert_eq!(buffered(&instance).await?.len(), 4, "no key, no memory");
    harness.run_until_idle().await?;
    assert_eq!(ended(&instance).await?.1, Some(9));
    Ok(())
}

async fn a_repeated_idempotency_key_is_answered_like_the_first_after_the_end_and_after_a_restart(
    kind: StoreKind,
) -> Result<()> {
    let harness = Harness::on(kind, [one_wait()]).await?;
    let instance = harness.create::<_, u32>("wait", ()).await?;
    instance.send_event("go", &1).idempotency_key("k").await?;
    harness.run_until_idle().await?;
    assert_eq!(ended(&instance).await?, 1);
    // The sender did not hear the answer and asks again: the event was accepted, so it still is.
    instance.send_event("go", &1).idempotency_key("k").await?;
    instance.restart().await?;
    instance.send_event("go", &1).idempotency_key("k").await?;
    harness.run_until_idle().await?;
    assert_eq!(instance.status().await?, InstanceStatus::Waiting, "the repeat is not a new event");
    assert_eq!(buffered(&instance).await?, [""; 0]);
    Ok(())
}

async fn until_step<O>(instance: &InstanceHandle<O>, name: &str, status: StepStatus) -> Result<()> {
    let what = format!("step {name} {status}");
    eventually(&what, || async {
        let steps = steps_of(instance, None).await?;
        Ok(steps.contains(&format!("{name} {status}")).then_some(()))
    })
    .await
}
