//! Pause, resume, terminate and restart, in every state an instance can be in.

use std::sync::Arc;

use piton::store::{Action, Boundary};
use piton_core::boundary::After;
use piton_core::{Code, InstanceStatus, Timestamp};

use super::rows::*;
use super::stage::*;

const LIVE: [InstanceStatus; 3] =
    [InstanceStatus::Active, InstanceStatus::Waiting, InstanceStatus::Paused];

const ENDED: [InstanceStatus; 3] =
    [InstanceStatus::Complete, InstanceStatus::Errored, InstanceStatus::Terminated];

pub async fn an_instance_paused_before_its_first_pass_does_not_run(stage: Stage) {
    stage.create("a").await;
    let record = stage.steer("a", Action::Pause).await;
    assert_eq!(record.status, InstanceStatus::Paused);
    assert!(!record.pause_requested);
    stage.advance_ms(86_400_000);
    assert!(stage.claim(ALL).await.is_empty());
    let record = stage.steer("a", Action::Resume).await;
    assert_eq!(record.status, InstanceStatus::Active);
    assert_eq!(record.started_at, None);
    stage.claim_only("a").await;
}

pub async fn a_waiting_instance_is_paused_at_once(stage: Stage) {
    stage.sleeping("a", 60_000).await;
    let record = stage.steer("a", Action::Pause).await;
    assert_eq!(record.status, InstanceStatus::Paused);
    assert_eq!(stage.next_due_at().await, None);
}

pub async fn a_running_instance_is_paused_at_its_next_boundary_which_is_kept(stage: Stage) {
    let key = stage.leased("a").await;
    let record = stage.steer("a", Action::Pause).await;
    assert_eq!(record.status, InstanceStatus::Active);
    assert!(record.pause_requested);
    assert!(stage.view("a").await.record.pause_requested);
    let boundary = Boundary { steps: vec![stage.completed_step("charge", 0)], ..boundary(key) };
    assert_eq!(stage.committed(boundary).await, After::Paused);
    let record = stage.view("a").await.record;
    assert_eq!(record.status, InstanceStatus::Paused);
    assert!(!record.pause_requested);
    assert_eq!(stage.step_names("a").await, ["charge"]);
    assert!(stage.claim(ALL).await.is_empty());
    let story = stage.story("a").await;
    let expected = ["pause requested; takes effect at the next boundary", "paused"];
    assert_eq!(story[1..], expected);
}

pub async fn a_requested_pause_lets_running_bodies_finish(stage: Stage) {
    let key = stage.leased("a").await;
    stage.steer("a", Action::Pause).await;
    for position in 0..2 {
        let sibling = Boundary {
            steps: vec![stage.completed_step(&format!("s{position}"), position)],
            ..boundary_with_bodies_running(key)
        };
        assert_eq!(stage.committed(sibling).await, After::Drain);
        assert_eq!(stage.status("a").await, InstanceStatus::Active);
    }
    let last = Boundary { steps: vec![stage.completed_step("s2", 2)], ..boundary(key) };
    assert_eq!(stage.committed(last).await, After::Paused);
    assert_eq!(stage.step_names("a").await, ["s0", "s1", "s2"]);
}

pub async fn a_run_that_suspends_while_a_pause_is_requested_is_paused(stage: Stage) {
    let key = stage.leased("a").await;
    stage.steer("a", Action::Pause).await;
    let wake_at = stage.in_ms(1_000);
    let boundary = Boundary {
        steps: vec![stage.sleep("nap", 0, wake_at)],
        next: suspend(wake_at),
        ..boundary(key)
    };
    assert_eq!(stage.committed(boundary).await, After::Paused);
    assert_eq!(stage.status("a").await, InstanceStatus::Paused);
    stage.advance_ms(1_000);
    assert!(stage.claim(ALL).await.is_empty());
}

pub async fn a_wait_that_settles_while_a_pause_is_requested_keeps_its_outcome(stage: Stage) {
    let key = stage.leased("a").await;
    stage.send("a", "approved").await;
    stage.steer("a", Action::Pause).await;
    let boundary = Boundary {
        waits: vec![stage.wait("approval", 0, "approved", 60_000)],
        next: suspend(stage.in_ms(60_000)),
        ..boundary(key)
    };
    let committed = stage.commit(boundary).await;
    assert_eq!(committed.after, After::Paused);
    assert_eq!(stage.steps("a").await, committed.settled);
    stage.steer("a", Action::Resume).await;
    stage.claim_only("a").await;
}

pub async fn a_run_that_ends_while_a_pause_is_requested_ends(stage: Stage) {
    let key = stage.leased("a").await;
    stage.steer("a", Action::Pause).await;
    assert_eq!(stage.committed(complete(key)).await, After::Ended);
    let record = stage.view("a").await.record;
    assert_eq!(record.status, InstanceStatus::Complete);
    assert!(!record.pause_requested);
}

pub async fn an_instance_whose_runner_died_is_paused_at_once(stage: Stage) {
    let key = stage.leased("a").await;
    stage.advance_ms(LEASE.as_millis());
    let record = stage.steer("a", Action::Pause).await;
    assert_eq!(record.status, InstanceStatus::Paused);
    assert_fenced(stage.store.commit(boundary(key)).await, "held");
}

pub async fn pausing_twice_changes_nothing(stage: Stage) {
    stage.leased("running").await;
    stage.steer("running", Action::Pause).await;
    stage.with_status("paused", InstanceStatus::Paused).await;
    for name in ["running", "paused"] {
        let before = stage.sight(name).await;
        stage.advance_ms(5);
        stage.steer(name, Action::Pause).await;
        assert_eq!(stage.sight(name).await, before, "{name}");
    }
}

pub async fn resuming_what_is_not_paused_changes_nothing(stage: Stage) {
    for status in InstanceStatus::ALL {
        let name = status.as_str();
        if *status == InstanceStatus::Paused {
            continue;
        }
        stage.with_status(name, *status).await;
        let before = stage.sight(name).await;
        stage.advance_ms(5);
        let record = stage.steer(name, Action::Resume).await;
        assert_eq!(record.status, *status);
        assert_eq!(stage.sight(name).await, before, "{name}");
    }
    assert!(stage.claim(ALL).await.is_empty(), "nothing became due");
}

pub async fn resuming_takes_back_a_pause_that_was_only_requested(stage: Stage) {
    let key = stage.leased("a").await;
    stage.steer("a", Action::Pause).await;
    let record = stage.steer("a", Action::Resume).await;
    assert_eq!(record.status, InstanceStatus::Active);
    assert!(!record.pause_requested);
    assert_eq!(stage.committed(boundary(key)).await, After::Continue);
    assert_eq!(stage.story("a").await.last().expect("told"), "resumed");
}

pub async fn a_resumed_run_is_due_at_once_with_a_new_epoch(stage: Stage) {
    let paused = stage.with_status("a", InstanceStatus::Paused).await;
    stage.advance_ms(5);
    stage.steer("a", Action::Resume).await;
    assert_eq!(stage.next_due_at().await, Some(stage.now()));
    let key = stage.claim_only("a").await;
    assert_eq!(key.epoch, paused.epoch + 1);
    assert_eq!(stage.story("a").await[3], "resumed");
}

pub async fn a_wake_that_fell_due_while_paused_takes_effect_after_the_resume(stage: Stage) {
    let wait = stage.hibernating("a", 1_000).await;
    stage.steer("a", Action::Pause).await;
    stage.advance_ms(60_000);
    assert!(stage.claim(ALL).await.is_empty());
    stage.steer("a", Action::Resume).await;
    let key = stage.claim_only("a").await;
    let boundary = Boundary { waits: vec![wait], ..boundary(key) };
    let settled = stage.commit(boundary).await.settled;
    assert_eq!(settled.len(), 1, "timers were not frozen");
}

pub async fn terminating_ends_a_live_instance_at_once(stage: Stage) {
    for status in LIVE {
        let name = status.as_str();
        let key = stage.with_status(name, status).await;
        stage.advance_ms(5);
        let record = stage.steer(name, Action::Terminate).await;
        assert_eq!(record.status, InstanceStatus::Terminated);
        assert_eq!(record.completed_at, Some(stage.now()));
        assert_eq!((record.output, record.error), (None, None));
        assert_fenced(stage.store.commit(complete(key)).await, name);
        assert_eq!(stage.status(name).await, InstanceStatus::Terminated);
        assert_eq!(stage.story(name).await.last().expect("told"), "terminated");
    }
    stage.advance_ms(86_400_000);
    assert!(stage.claim(ALL).await.is_empty());
    assert_eq!(stage.live_tasks().await, 0);
}

pub async fn terminating_forgets_a_requested_pause(stage: Stage) {
    stage.leased("a").await;
    stage.steer("a", Action::Pause).await;
    let record = stage.steer("a", Action::Terminate).await;
    assert_eq!(record.status, InstanceStatus::Terminated);
    assert!(!record.pause_requested);
}

pub async fn an_ended_instance_can_be_neither_paused_nor_terminated(stage: Stage) {
    for status in ENDED {
        let name = status.as_str();
        stage.with_status(name, status).await;
        let before = stage.sight(name).await;
        for action in [Action::Pause, Action::Terminate] {
            let answer = stage.try_steer(name, action).await;
            assert_eq!(refusal(answer), Code::InstanceTerminal);
        }
        assert_eq!(stage.sight(name).await, before);
    }
}

pub async fn a_missing_instance_cannot_be_steered(stage: Stage) {
    stage.create_in("refund", &["a"]).await;
    for action in [Action::Pause, Action::Resume, Action::Terminate, Action::Restart] {
        let answer = stage.try_steer("a", action).await;
        assert_eq!(refusal(answer), Code::InstanceNotFound);
    }
}

pub async fn restarting_works_from_each_of_the_six_statuses(stage: Stage) {
    for status in InstanceStatus::ALL {
        let name = status.as_str();
        let old = stage.with_status(name, *status).await;
        let before = stage.view(name).await.record;
        stage.advance_ms(5);
        let record = stage.steer(name, Action::Restart).await;
        assert_eq!((record.run, record.status), (1, InstanceStatus::Active));
        assert_eq!((record.output, record.error), (None, None));
        assert_eq!((record.started_at, record.completed_at), (None, None));
        assert_eq!(record.params, before.params);
        assert_eq!((record.key, record.created_at), (before.key, before.created_at));
        assert_fenced(stage.store.commit(boundary(old)).await, name);
        let new = stage.claim_only(name).await;
        assert_eq!((new.instance, new.run), (old.instance, 1));
        assert!(stage.steps(name).await.is_empty(), "starts clean");
        assert_eq!(stage.committed(complete(new)).await, After::Ended);
    }
}

pub async fn restarting_tells_how_the_run_before_stood(stage: Stage) {
    stage.with_status("a", InstanceStatus::Errored).await;
    stage.steer("a", Action::Restart).await;
    let expected = "restarted as run 1; run 0 was errored: CardDeclined: no money";
    assert_eq!(stage.story("a").await, [expected]);
    stage.steer("a", Action::Restart).await;
    let expected = "restarted as run 2; run 1 was active";
    assert_eq!(stage.story("a").await, [expected]);
}

pub async fn old_runs_stay_readable_and_never_change(stage: Stage) {
    let key = stage.leased("a").await;
    stage.send("a", "approved").await;
    let boundary = Boundary { steps: vec![stage.completed_step("charge", 0)], ..complete(key) };
    stage.commit(boundary).await;
    let steps = stage.steps("a").await;
    let events = stage.events("a").await;
    let logs = stage.logs("a").await;
    stage.steer("a", Action::Restart).await;
    let new = stage.claim_only("a").await;
    stage.send("a", "approved").await;
    stage.commit(complete(new)).await;
    let page = whole(key);
    assert_eq!(stage.store.steps(page).await.expect("read"), steps);
    assert_eq!(stage.store.events(page).await.expect("read"), events);
    let filter = piton::store::LogFilter::default();
    assert_eq!(stage.store.logs(page, filter).await.expect("read"), logs);
}

pub async fn a_requested_pause_does_not_outlive_a_restart(stage: Stage) {
    stage.leased("a").await;
    stage.steer("a", Action::Pause).await;
    let record = stage.steer("a", Action::Restart).await;
    assert!(!record.pause_requested);
    let key = stage.claim_only("a").await;
    assert_eq!(stage.committed(boundary(key)).await, After::Continue);
}

pub async fn an_old_wake_does_not_end_a_sleep_of_the_new_run(stage: Stage) {
    stage.sleeping("a", 1_000).await;
    stage.steer("a", Action::Restart).await;
    let key = stage.claim_only("a").await;
    stage.nap(key, 60_000).await;
    stage.advance_ms(59_999);
    assert!(stage.claim(ALL).await.is_empty());
    stage.advance_ms(1);
    stage.claim_only("a").await;
}

pub async fn simultaneous_restarts_leave_one_live_run(stage: Stage) {
    let old = stage.leased("a").await;
    at_once((0..8).map(|_| {
        let store = Arc::clone(&stage.store);
        async move { store.steer(checkout(), id("a"), Action::Restart).await }
    }))
    .await
    .into_iter()
    .for_each(|answer| assert!(answer.is_ok(), "{answer:?}"));
    assert_eq!(stage.live_tasks().await, 1);
    assert_fenced(stage.store.commit(boundary(old)).await, "restarted");
    let key = stage.claim_only("a").await;
    assert_eq!(key.run, 8);
}

pub async fn of_simultaneous_terminates_one_succeeds(stage: Stage) {
    stage.create("a").await;
    let answers = at_once((0..8).map(|_| {
        let store = Arc::clone(&stage.store);
        async move { store.steer(checkout(), id("a"), Action::Terminate).await }
    }))
    .await;
    let (ended, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!((ended.len(), refused.len()), (1, 7));
    let story = stage.story("a").await;
    assert_eq!(story, ["terminated"], "a run ends exactly once");
}

pub async fn a_terminate_that_races_the_last_boundary_ends_the_run_once(stage: Stage) {
    for round in 0..20 {
        let name = format!("i-{round}");
        let key = stage.leased(&name).await;
        let (committing, steering) = (Arc::clone(&stage.store), Arc::clone(&stage.store));
        let target = id(&name);
        let (committed, terminated) = tokio::join!(
            at_once([async move { committing.commit(complete(key)).await.is_ok() }]),
            at_once([async move {
                let answer = steering.steer(checkout(), target, Action::Terminate);
                answer.await.is_ok()
            }]),
        );
        assert_ne!(committed, terminated, "exactly one of them wins");
        let expected =
            if committed[0] { InstanceStatus::Complete } else { InstanceStatus::Terminated };
        assert_eq!(stage.status(&name).await, expected);
    }
}

pub async fn completed_at_is_there_exactly_on_ended_instances(stage: Stage) {
    for status in InstanceStatus::ALL {
        let name = status.as_str();
        stage.with_status(name, *status).await;
        let record = stage.view(name).await.record;
        let expected: Option<Timestamp> = status.is_terminal().then(|| stage.now());
        assert_eq!(record.completed_at, expected, "{name}");
        assert_eq!(record.started_at, Some(stage.now()), "{name}");
    }
}
