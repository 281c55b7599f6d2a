//! The life of an instance: create, pause, resume, terminate, restart, and its result.

#![allow(clippy::unwrap_used, reason = "tests")]

use futures_util::future::{join_all, try_join_all};
use piton::prelude::*;
use piton::store::ClaimRequest;
use piton::{
    BatchItem, EngineBuilder, Instance, InstanceHandle, InstanceStatus, Registration, Span,
    WorkflowName,
};
use piton_core::claim::ClaimRules;
use piton_testing::{Access, Harness, StoreKind, on_every_store};
use serde_json::{Value, json};

use crate::support::{
    Gate, Trail, another_engine, ended, engine_on, eventually, flow, steps_of, system_lines,
    tick_until_arrived,
};

on_every_store!(
    of_eight_simultaneous_creates_with_one_id_one_succeeds,
    of_eight_simultaneous_creates_that_accept_what_exists_all_get_the_same_instance,
    one_id_under_two_workflows_is_two_instances,
    a_batch_keeps_its_order_and_skips_what_exists_or_repeats,
    a_batch_with_anything_invalid_creates_nothing,
    an_empty_batch_creates_nothing_and_is_no_error,
    params_that_do_not_decode_are_refused_at_create,
    typed_params_that_do_not_survive_json_are_refused_at_create,
    a_handle_of_other_types_is_refused_and_says_which_are_right,
    an_unknown_workflow_is_not_found_and_the_known_ones_are_named,
    a_pause_before_the_first_pass_keeps_user_code_from_running,
    a_pause_during_a_body_keeps_that_boundary_and_starts_no_next_step,
    a_pause_lets_all_parallel_bodies_be_recorded,
    a_pause_during_the_last_body_lets_the_run_end,
    a_resume_takes_back_a_requested_pause,
    a_pause_whose_runner_died_takes_effect_before_anything_else_runs,
    a_wake_that_falls_due_while_paused_takes_effect_after_resume,
    steering_that_changes_nothing_is_a_no_op,
    an_ended_instance_cannot_be_paused_or_terminated,
    a_terminate_during_a_body_stands_and_the_body_is_dropped,
    a_late_write_of_a_terminated_run_is_refused,
    a_restart_during_a_body_starts_clean,
    a_late_write_of_a_restarted_run_is_refused_in_every_run,
    a_late_write_is_refused_although_the_next_run_has_the_same_epoch,
    two_restarts_at_once_leave_one_live_run,
    a_restart_works_from_each_of_the_six_statuses,
    started_at_is_set_once_and_completed_at_on_terminal_statuses_only,
    a_thousand_paused_instances_delay_nobody,
    a_thousand_unregistered_instances_delay_nobody_and_are_reported,
    a_thousand_instances_to_be_quarantined_delay_nobody,
);

/// Ends at once.
fn noop(name: &str) -> Registration {
    flow(name, &(), |(), _: Event<()>, _| Box::pin(async { Ok(()) }))
}

/// A step behind a gate, then another.
fn two_steps(gate: &Gate, trail: &Trail) -> Registration {
    flow("work", &(gate.clone(), trail.clone()), |(gate, trail), _: Event<()>, step| {
        Box::pin(async move {
            trail.mark("started");
            step.run("first", gate.pass()).await?;
            step.run("second", async { trail.note("second") }).await
        })
    })
}

// ---- 33: create ----

async fn of_eight_simultaneous_creates_with_one_id_one_succeeds(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [noop("noop")]).await?;
    let other = another_engine(&harness, [noop("noop")]).await?;
    let creates = (0..8).map(|n| {
        let engine = if n % 2 == 0 { harness.engine() } else { &other };
        engine.workflow::<(), ()>("noop").unwrap().create(()).id("one").into_future()
    });
    let (created, refused): (Vec<_>, Vec<_>) =
        join_all(creates).await.into_iter().partition(|created| created.is_ok());
    assert_eq!((created.len(), refused.len()), (1, 7));
    for refused in refused {
        assert_eq!(refused.unwrap_err().code(), Some("INSTANCE_ID_ALREADY_EXISTS"));
    }
    assert_eq!(harness.run_until_idle().await?.processed, 1);
    Ok(())
}

async fn of_eight_simultaneous_creates_that_accept_what_exists_all_get_the_same_instance(
    kind: StoreKind,
) -> Result<()> {
    let harness = Harness::on(kind, [noop("noop")]).await?;
    let workflow = harness.workflow::<(), ()>("noop")?;
    let creates = (0..8).map(|_| workflow.create(()).id("one").or_get().into_future());
    for instance in try_join_all(creates).await? {
        assert_eq!(instance.id(), "one");
    }
    assert_eq!(harness.run_until_idle().await?.processed, 1);
    assert_eq!(workflow.list().await?.items.len(), 1);
    ended(&workflow.create(()).id("one").or_get().await?).await
}

async fn one_id_under_two_workflows_is_two_instances(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [noop("left"), noop("right")]).await?;
    for name in ["left", "right"] {
        harness.workflow::<(), ()>(name)?.create(()).id("same").await?;
    }
    harness.workflow::<(), ()>("left")?.get("same").await?.terminate().await?;
    let right = harness.workflow::<(), ()>("right")?.get("same").await?;
    assert_eq!(right.status().await?, InstanceStatus::Active);
    Ok(())
}

async fn a_batch_keeps_its_order_and_skips_what_exists_or_repeats(kind: StoreKind) -> Result<()> {
    let echo = flow("echo", &(), |(), n: Event<u32>, _| Box::pin(async move { Ok(*n) }));
    let harness = Harness::on(kind, [echo]).await?;
    let workflow = harness.workflow::<u32, u32>("echo")?;
    workflow.create(0).id("there").await?;
    let batch = [("z", 1), ("there", 2), ("a", 3), ("z", 4), ("m", 5)];
    let created = workflow.create_batch(batch.map(|(id, n)| BatchItem::new(id, n))).await?;
    let ids: Vec<_> = created.iter().map(InstanceHandle::id).collect();
    assert_eq!(ids, ["z", "a", "m"]);
    harness.run_until_idle().await?;
    for (id, expected) in [("z", 1), ("a", 3), ("m", 5), ("there", 0)] {
        assert_eq!(ended(&workflow.get(id).await?).await?, expected, "{id}: the first one counts");
    }
    let listed = workflow.list().await?.items;
    let listed: Vec<_> = listed.iter().map(|instance| instance.id.as_str()).collect();
    assert_eq!(listed, ["m", "a", "z", "there"], "newest first");
    Ok(())
}

async fn a_batch_with_anything_invalid_creates_nothing(kind: StoreKind) -> Result<()> {
    let configure = |builder: EngineBuilder| {
        builder.limits(Limits { payload_bytes_max: 100, ..Limits::default() })
    };
    let echo =
        flow("echo", &(), |(), text: Event<String>, _| Box::pin(async move { Ok(text.len()) }));
    let harness = Harness::with(kind, [echo], configure).await?;
    let workflow = harness.workflow::<Value, Value>("echo")?;
    let good = |n: usize| BatchItem::new(format!("good-{n}"), json!("x"));
    for (bad, code) in [
        (BatchItem::new("not good", json!("x")), "INVALID_INSTANCE_ID"),
        (BatchItem::new("", json!("x")), "INVALID_INSTANCE_ID"),
        (BatchItem::new("number", json!(1)), "WORKFLOW_PARAMS_INVALID"),
        (BatchItem::new("large", json!("x".repeat(100))), "PAYLOAD_TOO_LARGE"),
    ] {
        let refused = workflow.create_batch([good(1), bad, good(2)]).await.unwrap_err();
        assert_eq!(refused.code(), Some(code));
    }
    let refused = workflow.create_batch((0..101).map(good)).await.unwrap_err();
    assert_eq!(refused.code(), Some("VALIDATION_ERROR"));
    assert!(refused.message().contains("100"), "{refused}");
    assert!(workflow.list().await?.items.is_empty());
    assert_eq!(workflow.create_batch((0..100).map(good)).await?.len(), 100);
    Ok(())
}

async fn an_empty_batch_creates_nothing_and_is_no_error(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [noop("noop")]).await?;
    let workflow = harness.workflow::<(), ()>("noop")?;
    assert!(workflow.create_batch([]).await?.is_empty());
    workflow.create(()).id("a").await?;
    assert!(workflow.create_batch([BatchItem::new("a", ())]).await?.is_empty());
    Ok(())
}

async fn params_that_do_not_decode_are_refused_at_create(kind: StoreKind) -> Result<()> {
    let echo = flow("echo", &(), |(), n: Event<u32>, _| Box::pin(async move { Ok(*n) }));
    let harness = Harness::on(kind, [echo]).await?;
    let untyped = harness.workflow::<Value, Value>("echo")?;
    for bad in [json!("three"), json!(-1), json!(null), json!([3])] {
        let refused = untyped.create(bad).id("bad").await.unwrap_err();
        assert_eq!(refused.code(), Some("WORKFLOW_PARAMS_INVALID"));
        assert!(refused.message().contains("u32"), "{refused}");
    }
    assert_eq!(untyped.get("bad").await.unwrap_err().code(), Some("INSTANCE_NOT_FOUND"));
    let good = untyped.create(json!(3)).await?;
    harness.run_until_idle().await?;
    assert_eq!(ended(&good).await?, json!(3));
    Ok(())
}

async fn typed_params_that_do_not_survive_json_are_refused_at_create(
    kind: StoreKind,
) -> Result<()> {
    let half = flow("half", &(), |(), n: Event<f64>, _| Box::pin(async move { Ok(*n / 2.0) }));
    let harness = Harness::on(kind, [half]).await?;
    let workflow = harness.workflow::<f64, f64>("half")?;
    let refused = workflow.create(f64::NAN).id("nan").await.unwrap_err();
    assert_eq!(refused.code(), Some("WORKFLOW_PARAMS_INVALID"));
    let refused = workflow.create_batch([BatchItem::new("nan", f64::NAN)]).await.unwrap_err();
    assert_eq!(refused.code(), Some("WORKFLOW_PARAMS_INVALID"));
    assert_eq!(workflow.get("nan").await.unwrap_err().code(), Some("INSTANCE_NOT_FOUND"));
    Ok(())
}

async fn a_handle_of_other_types_is_refused_and_says_which_are_right(
    kind: StoreKind,
) -> Result<()> {
    let echo = flow("echo", &(), |(), n: Event<u32>, _| Box::pin(async move { Ok(n.to_string()) }));
    let harness = Harness::on(kind, [echo]).await?;
    let wrong_params = harness.workflow::<u64, String>("echo").unwrap_err();
    assert_eq!(wrong_params.code(), Some("VALIDATION_ERROR"));
    for part in ["params", "u32", "u64"] {
        assert!(wrong_params.message().contains(part), "{wrong_params}");
    }
    let wrong_output = harness.workflow::<u32, u32>("echo").unwrap_err();
    assert!(wrong_output.message().contains("output"), "{wrong_output}");
    harness.workflow::<u32, String>("echo")?;
    harness.workflow::<Value, Value>("echo")?;
    Ok(())
}

async fn an_unknown_workflow_is_not_found_and_the_known_ones_are_named(
    kind: StoreKind,
) -> Result<()> {
    let harness = Harness::on(kind, [noop("a"), noop("b")]).await?;
    let missing = harness.workflow::<(), ()>("c").unwrap_err();
    assert_eq!(missing.code(), Some("WORKFLOW_NOT_FOUND"));
    assert!(missing.message().contains("a, b"), "{missing}");
    assert_eq!(harness.engine().workflows(), ["a", "b"]);
    Ok(())
}

// ---- 34: pause and resume ----

async fn a_pause_before_the_first_pass_keeps_user_code_from_running(kind: StoreKind) -> Result<()> {
    let (gate, trail) = (Gate::new(), Trail::default());
    let harness = Harness::on(kind, [two_steps(&gate, &trail)]).await?;
    let instance = harness.create::<_, ()>("work", ()).await?;
    assert_eq!(instance.pause().await?.status, InstanceStatus::Paused);
    harness.advance("1 day");
    assert_eq!(harness.run_until_idle().await?.processed, 0);
    assert_eq!(trail.seen(), [""; 0]);
    assert_eq!(instance.resume().await?.status, InstanceStatus::Active);
    gate.open();
    harness.run_until_idle().await?;
    ended(&instance).await?;
    assert_eq!(trail.seen(), ["started", "second"]);
    Ok(())
}

async fn a_pause_during_a_body_keeps_that_boundary_and_starts_no_next_step(
    kind: StoreKind,
) -> Result<()> {
    let (gate, trail) = (Gate::new(), Trail::default());
    let harness = Harness::on(kind, [two_steps(&gate, &trail)]).await?;
    let instance = harness.create::<_, ()>("work", ()).await?;
    let tick = tick_until_arrived(harness.engine(), &gate).await?;
    let asked = instance.pause().await?;
    assert_eq!((asked.status, asked.pause_requested), (InstanceStatus::Active, true));
    gate.open();
    tick.await?;
    let paused = instance.describe().await?;
    assert_eq!((paused.status, paused.pause_requested), (InstanceStatus::Paused, false));
    assert_eq!(steps_of(&instance, None).await?, ["first completed"]);
    assert_eq!(trail.count("second"), 0);
    assert_eq!(harness.run_until_idle().await?.processed, 0, "it stays paused");
    instance.resume().await?;
    harness.run_until_idle().await?;
    ended(&instance).await?;
    assert_eq!((gate.arrivals(), trail.count("second")), (1, 1));
    Ok(())
}

async fn a_pause_lets_all_parallel_bodies_be_recorded(kind: StoreKind) -> Result<()> {
    let (left, right, trail) = (Gate::new(), Gate::new(), Trail::default());
    let state = (left.clone(), right.clone(), trail.clone());
    let work = flow("work", &state, |(left, right, trail), _: Event<()>, step| {
        Box::pin(async move {
            try_join!(
                async {
                    step.run("left", left.pass()).await?;
                    step.run("after left", async { trail.note("after left") }).await
                },
                step.run("right", right.pass()),
            )?;
            Ok(())
        })
    });
    let harness = Harness::on(kind, [work]).await?;
    let instance = harness.create::<_, ()>("work", ()).await?;
    let tick = tick_until_arrived(harness.engine(), &left).await?;
    right.arrived().await;
    instance.pause().await?;
    left.open();
    eventually("left recorded", || async {
        Ok((steps_of(&instance, None).await? == ["left completed"]).then_some(()))
    })
    .await?;
    let draining = instance.describe().await?;
    assert_eq!((draining.status, draining.pause_requested), (InstanceStatus::Active, true));
    right.open();
    tick.await?;
    assert_eq!(instance.status().await?, InstanceStatus::Paused);
    assert_eq!(steps_of(&instance, None).await?, ["left completed", "right completed"]);
    assert_eq!(trail.count("after left"), 0, "no new step after the pause was asked for");
    instance.resume().await?;
    harness.run_until_idle().await?;
    ended(&instance).await?;
    assert_eq!((left.arrivals(), right.arrivals(), trail.count("after left")), (1, 1, 1));
    Ok(())
}

async fn a_pause_during_the_last_body_lets_the_run_end(kind: StoreKind) -> Result<()> {
    let gate = Gate::new();
    let work = flow("work", &gate, |gate, _: Event<()>, step| {
        Box::pin(async move { step.run("only", gate.pass()).await })
    });
    let harness = Harness::on(kind, [work]).await?;
    let instance = harness.create::<_, ()>("work", ()).await?;
    let tick = tick_until_arrived(harness.engine(), &gate).await?;
    instance.pause().await?;
    gate.open();
    tick.await?;
    // Its boundary and the end of the run are one commit: there was nothing left to hold back.
    let state = instance.describe().await?;
    assert_eq!((state.status, state.pause_requested), (InstanceStatus::Complete, false));
    Ok(())
}

async fn a_resume_takes_back_a_requested_pause(kind: StoreKind) -> Result<()> {
    let (gate, trail) = (Gate::new(), Trail::default());
    let harness = Harness::on(kind, [two_steps(&gate, &trail)]).await?;
    let instance = harness.create::<_, ()>("work", ()).await?;
    let tick = tick_until_arrived(harness.engine(), &gate).await?;
    instance.pause().await?;
    let resumed = instance.resume().await?;
    assert_eq!((resumed.status, resumed.pause_requested), (InstanceStatus::Active, false));
    gate.open();
    tick.await?;
    ended(&instance).await?;
    assert!(!system_lines(&instance, None).await?.contains(&"paused".to_owned()));
    assert_eq!(trail.count("started"), 1, "it went on in the same pass");
    Ok(())
}

async fn a_pause_whose_runner_died_takes_effect_before_anything_else_runs(
    kind: StoreKind,
) -> Result<()> {
    let (gate, trail) = (Gate::new(), Trail::default());
    let harness = Harness::on(kind, [two_steps(&gate, &trail)]).await?;
    let instance = harness.create::<_, ()>("work", ()).await?;
    let id = instance.id().to_owned();
    drop(tick_until_arrived(harness.engine(), &gate).await?);
    instance.pause().await?;
    drop(instance);
    let harness = harness.crash_and_restart([two_steps(&gate, &trail)]).await?;
    harness.advance("30 seconds");
    assert_eq!(harness.run_until_idle().await?.processed, 0);
    let instance = harness.workflow::<(), ()>("work")?.get(&id).await?;
    let state = instance.describe().await?;
    assert_eq!((state.status, state.pause_requested), (InstanceStatus::Paused, false));
    assert_eq!(gate.arrivals(), 1);
    gate.open();
    instance.resume().await?;
    harness.run_until_idle().await?;
    ended(&instance).await
}

async fn a_wake_that_falls_due_while_paused_takes_effect_after_resume(
    kind: StoreKind,
) -> Result<()> {
    let napper = flow("nap", &(), |(), _: Event<()>, step| {
        Box::pin(async move { step.sleep("nap", "1 hour").await })
    });
    let harness = Harness::on(kind, [napper]).await?;
    let instance = harness.create::<_, ()>("nap", ()).await?;
    harness.run_until_idle().await?;
    instance.pause().await?;
    harness.advance("2 hours");
    assert_eq!(harness.run_until_idle().await?.processed, 0);
    instance.resume().await?;
    harness.run_until_idle().await?;
    ended(&instance).await
}

// ---- 37: no-ops and refusals ----

async fn steering_that_changes_nothing_is_a_no_op(kind: StoreKind) -> Result<()> {
    let (gate, trail) = (Gate::new(), Trail::default());
    let harness = Harness::on(kind, [two_steps(&gate, &trail)]).await?;
    let instance = harness.create::<_, ()>("work", ()).await?;
    instance.resume().await?;
    let untouched = system_lines(&instance, None).await?;
    assert_eq!(untouched, [""; 0], "resuming what is not paused");
    instance.pause().await?;
    let once = system_lines(&instance, None).await?;
    assert_eq!(instance.pause().await?.status, InstanceStatus::Paused);
    assert_eq!(system_lines(&instance, None).await?, once, "pausing what is paused");
    instance.resume().await?;

    let tick = tick_until_arrived(harness.engine(), &gate).await?;
    for _ in 0..2 {
        assert!(instance.pause().await?.pause_requested);
    }
    let asked = system_lines(&instance, None).await?;
    let asked = asked.iter().filter(|line| line.starts_with("pause requested")).count();
    assert_eq!(asked, 1, "asking twice is asking once");
    instance.resume().await?;
    gate.open();
    tick.await?;
    assert_eq!(instance.resume().await?.status, InstanceStatus::Complete);
    Ok(())
}

async fn an_ended_instance_cannot_be_paused_or_terminated(kind: StoreKind) -> Result<()> {
    let ends = flow("ends", &(), |(), well: Event<bool>, _| {
        Box::pin(async move { if *well { Ok(()) } else { Err(Error::new("no luck")) } })
    });
    let harness = Harness::on(kind, [ends]).await?;
    let well = harness.create::<_, ()>("ends", true).await?;
    let badly = harness.create::<_, ()>("ends", false).await?;
    harness.run_until_idle().await?;
    let by_hand = harness.create::<_, ()>("ends", true).await?;
    by_hand.terminate().await?;
    for (instance, status) in [
        (well, InstanceStatus::Complete),
        (badly, InstanceStatus::Errored),
        (by_hand, InstanceStatus::Terminated),
    ] {
        for refused in [instance.pause().await, instance.terminate().await] {
            assert_eq!(refused.unwrap_err().code(), Some("INSTANCE_TERMINAL"));
        }
        assert_eq!(instance.resume().await?.status, status, "a no-op");
        assert_eq!(instance.status().await?, status);
    }
    Ok(())
}

// ---- 35: terminate ----

async fn a_terminate_during_a_body_stands_and_the_body_is_dropped(kind: StoreKind) -> Result<()> {
    let (gate, trail) = (Gate::new(), Trail::default());
    let harness = Harness::on(kind, [two_steps(&gate, &trail)]).await?;
    let instance = harness.create::<_, ()>("work", ()).await?;
    let tick = tick_until_arrived(harness.engine(), &gate).await?;
    assert_eq!(instance.terminate().await?.status, InstanceStatus::Terminated);
    // The gate stays shut: the pass departs because it heard of it.
    tick.await?;
    assert_eq!(harness.run_until_idle().await?.processed, 0);
    assert_eq!(instance.status().await?, InstanceStatus::Terminated);
    assert_eq!(steps_of(&instance, None).await?, [""; 0]);
    assert_eq!(trail.count("second"), 0);
    Ok(())
}

async fn a_late_write_of_a_terminated_run_is_refused(kind: StoreKind) -> Result<()> {
    let (gate, trail) = (Gate::new(), Trail::default());
    let harness = Harness::on(kind, [two_steps(&gate, &trail)]).await?;
    let deaf = deaf_engine(&harness, [two_steps(&gate, &trail)]).await?;
    let instance = harness.create::<_, ()>("work", ()).await?;
    let tick = tick_until_arrived(&deaf, &gate).await?;
    instance.terminate().await?;
    let (before, log) = (instance.describe().await?, system_lines(&instance, None).await?);
    gate.open();
    tick.await?;
    let after = instance.describe().await?;
    assert_eq!(after.status, InstanceStatus::Terminated);
    assert_eq!((after.updated_at, after.completed_at), (before.updated_at, before.completed_at));
    assert_eq!(steps_of(&instance, None).await?, [""; 0]);
    assert_eq!(system_lines(&instance, None).await?, log, "nothing of an ended run changes");
    assert_eq!(trail.count("second"), 0);
    Ok(())
}

/// An engine on the same store that no hint reaches.
async fn deaf_engine(
    harness: &Harness,
    workflows: impl IntoIterator<Item = Registration>,
) -> Result<Engine> {
    engine_on(Access::deaf(harness.store()), harness, workflows, EngineBuilder::no_runner).await
}

// ---- 36: restart during a body ----

async fn a_restart_during_a_body_starts_clean(kind: StoreKind) -> Result<()> {
    let (gate, trail) = (Gate::new(), Trail::default());
    let harness = Harness::on(kind, [two_steps(&gate, &trail)]).await?;
    let instance = harness.create::<_, ()>("work", ()).await?;
    let old = tick_until_arrived(harness.engine(), &gate).await?;
    let restarted = instance.restart().await?;
    assert_eq!((restarted.status, restarted.run_number), (InstanceStatus::Active, 1));
    old.await?;
    let new = tick_until_arrived(harness.engine(), &gate).await?;
    gate.open();
    new.await?;
    ended(&instance).await?;
    assert_eq!(steps_of(&instance, Some(0)).await?, [""; 0]);
    assert_eq!(steps_of(&instance, Some(1)).await?, ["first completed", "second completed"]);
    assert_eq!((gate.arrivals(), trail.count("second")), (2, 1));
    Ok(())
}

async fn a_late_write_of_a_restarted_run_is_refused_in_every_run(kind: StoreKind) -> Result<()> {
    let (gate, trail) = (Gate::new(), Trail::default());
    let harness = Harness::on(kind, [two_steps(&gate, &trail)]).await?;
    let deaf = deaf_engine(&harness, [two_steps(&gate, &trail)]).await?;
    let instance = harness.create::<_, ()>("work", ()).await?;
    let old = tick_until_arrived(&deaf, &gate).await?;
    instance.restart().await?;
    gate.open();
    old.await?;
    for run in [0, 1] {
        assert_eq!(steps_of(&instance, Some(run)).await?, [""; 0]);
    }
    assert_eq!(instance.describe().await?.run_number, 1);
    gate.open();
    harness.run_until_idle().await?;
    ended(&instance).await?;
    assert_eq!(steps_of(&instance, Some(0)).await?, [""; 0]);
    assert_eq!((gate.arrivals(), trail.count("second")), (2, 1));
    Ok(())
}

async fn a_late_write_is_refused_although_the_next_run_has_the_same_epoch(
    kind: StoreKind,
) -> Result<()> {
    let (gate, trail) = (Gate::new(), Trail::default());
    let harness = Harness::on(kind, [two_steps(&gate, &trail)]).await?;
    let instance = harness.create::<_, ()>("work", ()).await?;
    let dies = another_engine(&harness, [two_steps(&gate, &trail)]).await?;
    drop(tick_until_arrived(&dies, &gate).await?);
    drop(dies);
    harness.advance("30 seconds");
    let deaf = deaf_engine(&harness, [two_steps(&gate, &trail)]).await?;
    let old = tick_until_arrived(&deaf, &gate).await?;

    // The task of an ended run is gone with its epoch: the next run counts again and comes to the same number.
    instance.terminate().await?;
    instance.restart().await?;
    let new = tick_until_arrived(harness.engine(), &gate).await?;
    gate.open();
    old.await?;
    for run in [0, 1] {
        assert_eq!(steps_of(&instance, Some(run)).await?, [""; 0]);
    }
    gate.open();
    new.await?;
    ended(&instance).await?;
    assert_eq!(trail.count("second"), 1);
    Ok(())
}

async fn two_restarts_at_once_leave_one_live_run(kind: StoreKind) -> Result<()> {
    let (gate, trail) = (Gate::new(), Trail::default());
    let harness = Harness::on(kind, [two_steps(&gate, &trail)]).await?;
    let instance = harness.create::<_, ()>("work", ()).await?;
    let old = tick_until_arrived(harness.engine(), &gate).await?;
    let (one, two) = join!(instance.restart(), instance.restart());
    let mut runs = [one?.run_number, two?.run_number];
    runs.sort_unstable();
    assert_eq!(runs, [1, 2]);
    old.await?;
    for _ in 0..3 {
        gate.open();
    }
    assert_eq!(harness.run_until_idle().await?.processed, 1, "one live run");
    ended(&instance).await?;
    assert_eq!(instance.describe().await?.run_number, 2);
    for run in [0, 1] {
        assert_eq!(steps_of(&instance, Some(run)).await?, [""; 0], "run {run}");
    }
    assert_eq!(trail.count("second"), 1);
    Ok(())
}

// ---- 37, 38: restart from everywhere, and the two times ----

async fn a_restart_works_from_each_of_the_six_statuses(kind: StoreKind) -> Result<()> {
    use InstanceStatus::{Active, Complete, Errored, Paused, Terminated, Waiting};
    // Its first run goes the way the params say; every later one just completes.
    let trail = Trail::default();
    let any = flow("any", &trail, |trail, way: Event<String>, step| {
        Box::pin(async move {
            let first = trail.count(&format!("{} {}", way.instance_id, *way)) == 0;
            trail.mark(format!("{} {}", way.instance_id, *way));
            step.run("work", async { Ok(()) }).await?;
            match way.as_str() {
                "errored" if first => Err(Error::new("no luck")),
                "waiting" | "paused" | "terminated" if first => {
                    step.sleep("long", "1 day").await?;
                    Ok(0)
                }
                _ => Ok(7),
            }
        })
    });
    let harness = Harness::on(kind, [any]).await?;
    let workflow = harness.workflow::<String, i32>("any")?;
    for status in [Active, Waiting, Paused, Complete, Errored, Terminated] {
        let instance = workflow.create(status.to_string()).await?;
        if status != Active {
            harness.run_until_idle().await?;
        }
        match status {
            Paused => drop(instance.pause().await?),
            Terminated => drop(instance.terminate().await?),
            Active | Waiting | Complete | Errored => {}
        }
        assert_eq!(instance.status().await?, status);
        let before = steps_of(&instance, None).await?;
        harness.advance("1 second");

        let restarted = instance.restart().await?;
        assert_eq!((restarted.status, restarted.run_number), (Active, 1), "from {status}");
        assert_eq!((restarted.output, restarted.error), (None, None));
        assert_eq!((restarted.started_at, restarted.completed_at), (None, None));
        harness.run_until_idle().await?;
        assert_eq!(ended(&instance).await?, 7, "from {status}");
        assert_eq!(steps_of(&instance, Some(0)).await?, before, "the old run is as it was");
        assert_eq!(steps_of(&instance, Some(1)).await?, ["work completed"]);
    }
    Ok(())
}

async fn started_at_is_set_once_and_completed_at_on_terminal_statuses_only(
    kind: StoreKind,
) -> Result<()> {
    let napper = flow("nap", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            step.sleep("nap", "1 hour").await?;
            step.sleep("again", "1 hour").await
        })
    });
    let harness = Harness::on(kind, [napper]).await?;
    let times = |state: &Instance| (state.run_number, state.started_at, state.completed_at);
    let instance = harness.create::<_, ()>("nap", ()).await?;
    let created_at = harness.now();
    assert_eq!(times(&instance.describe().await?), (0, None, None));
    harness.advance("1 minute");
    harness.run_until_idle().await?;
    let started = Some(harness.now());
    harness.advance("1 hour");
    harness.run_until_idle().await?;
    assert_eq!(times(&instance.describe().await?), (0, started, None), "waiting");
    assert_eq!(times(&instance.pause().await?), (0, started, None), "paused");
    harness.advance("1 hour");
    assert_eq!(times(&instance.resume().await?), (0, started, None), "resumed");
    harness.run_until_idle().await?;
    let completed = Some(harness.now());
    assert_eq!(times(&instance.describe().await?), (0, started, completed), "complete");

    harness.advance("1 minute");
    assert_eq!(times(&instance.restart().await?), (1, None, None), "restarted");
    assert_eq!(times(&instance.terminate().await?), (1, None, Some(harness.now())));
    harness.advance("1 minute");
    instance.restart().await?;
    harness.run_until_idle().await?;
    let state = instance.describe().await?;
    assert_eq!(times(&state), (2, Some(harness.now()), None));
    assert_eq!(state.created_at, created_at);
    let listed = harness.workflow::<(), ()>("nap")?.list().await?.items;
    assert_eq!(times(&listed[0]), times(&state), "lists say the same");
    Ok(())
}

// ---- 39: those who cannot run delay nobody ----

/// Creates a thousand instances.
async fn create_thousand(engine: &Engine, name: &str) -> Result<Vec<InstanceHandle<()>>> {
    let workflow = engine.workflow::<(), ()>(name)?;
    let mut created = Vec::new();
    for hundred in 0..10 {
        let batch = (0..100).map(|n| BatchItem::new(format!("{hundred}-{n}"), ()));
        created.extend(workflow.create_batch(batch).await?);
    }
    Ok(created)
}

/// One claim of one run is enough to find the one that can run, behind any number that cannot.
async fn assert_served_at_once(harness: &Harness, name: &str) -> Result<()> {
    let good = harness.workflow::<(), ()>(name)?.create(()).id("good").await?;
    assert_eq!(harness.engine().tick(1).await?.processed, 1);
    ended(&good).await
}

async fn a_thousand_paused_instances_delay_nobody(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [noop("noop")]).await?;
    let paused = create_thousand(harness.engine(), "noop").await?;
    try_join_all(paused.iter().map(InstanceHandle::pause)).await?;
    harness.advance("1 hour");
    assert_eq!(harness.engine().next_wake_at().await?, None, "they are not even looked at");
    assert_served_at_once(&harness, "noop").await
}

async fn a_thousand_unregistered_instances_delay_nobody_and_are_reported(
    kind: StoreKind,
) -> Result<()> {
    let harness = Harness::on(kind, [noop("noop")]).await?;
    let before_the_deploy = another_engine(&harness, [noop("gone")]).await?;
    create_thousand(&before_the_deploy, "gone").await?;
    drop(before_the_deploy);
    harness.advance("1 hour");
    assert_eq!(harness.engine().next_wake_at().await?, None, "they are not even looked at");
    assert_served_at_once(&harness, "noop").await?;
    assert_eq!(harness.engine().unregistered().await?, [("gone".to_owned(), 1_000)]);

    let after_the_next = another_engine(&harness, [noop("gone")]).await?;
    assert_eq!(after_the_next.tick(10_000).await?.processed, 1_000, "they waited untouched");
    assert_eq!(harness.engine().unregistered().await?, []);
    Ok(())
}

async fn a_thousand_instances_to_be_quarantined_delay_nobody(kind: StoreKind) -> Result<()> {
    let configure = |builder: EngineBuilder| builder.quarantine_after(1);
    let harness = Harness::with(kind, [noop("noop")], configure).await?;
    let poisoned = create_thousand(harness.engine(), "noop").await?;
    let name = WorkflowName::parse("noop", &Limits::default())?;
    let rules = ClaimRules { lease: Span::from_millis(30_000), claims_without_progress_max: 1 };
    let claim = ClaimRequest {
        runner: "dies".into(),
        workflows: [name].into(),
        wanted: 1_000,
        suspects: true,
        rules,
    };
    assert_eq!(harness.store().claim(claim).await?.claimed.len(), 1_000);
    harness.advance("30 seconds");
    assert_served_at_once(&harness, "noop").await?;
    let state = poisoned[0].describe().await?;
    assert_eq!((state.status, state.completed_at), (InstanceStatus::Errored, Some(harness.now())));
    assert_eq!(state.error.unwrap().name, "Quarantined");
    Ok(())
}
