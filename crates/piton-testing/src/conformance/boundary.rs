//! Boundaries: what one commit writes, what it makes of the run, and who is kept from committing.

use std::sync::Arc;

use piton::store::{Action, Boundary, Mutation, RowState, StepWrite};
use piton_core::boundary::After;
use piton_core::record::{InstanceKey, RecordedError, RunKey, StepRecord};
use piton_core::{EventType, InstanceStatus, LogLevel, StepName, StepStatus, StepType};

use super::rows::*;
use super::stage::*;

pub async fn a_committed_step_is_there(stage: Stage) {
    let key = stage.leased("a").await;
    let step = stage.completed_step("charge", 0);
    let boundary = Boundary { steps: vec![step.clone()], ..boundary(key) };
    let committed = stage.commit(boundary).await;
    assert_eq!(committed.after, After::Continue);
    assert_eq!(committed.now, stage.now());
    assert!(committed.settled.is_empty());
    let loaded = stage.store.load_steps(key.instance, key.run).await;
    assert_eq!(loaded.expect("read"), stage.steps("a").await);
    assert_eq!(stage.steps("a").await, [(*step.record).clone()]);
}

pub async fn steps_are_loaded_in_order_of_position(stage: Stage) {
    let key = stage.leased("a").await;
    for positions in [[3, 1], [0, 2]] {
        let steps = positions.map(|n| stage.completed_step(&format!("s{n}"), n));
        let boundary = Boundary { steps: steps.to_vec(), ..boundary(key) };
        stage.commit(boundary).await;
    }
    assert_eq!(stage.step_names("a").await, ["s0", "s1", "s2", "s3"]);
    let loaded = stage.store.load_steps(key.instance, key.run).await;
    let positions: Vec<u32> = loaded.expect("read").iter().map(|s| s.position).collect();
    assert_eq!(positions, [0, 1, 2, 3]);
}

pub async fn every_field_of_a_step_survives(stage: Stage) {
    let key = stage.leased("a").await;
    let full = StepRecord {
        position: 4,
        seq: 9,
        name: StepName::from_stored("wait for \"ü\" 🧗"),
        step_type: StepType::WaitForEvent,
        status: StepStatus::Waiting,
        attempts: 3,
        attempts_max: Some(u32::MAX),
        timeout_ms: Some(600_000),
        next_retry_at: Some(stage.in_ms(1)),
        wake_at: Some(stage.in_ms(2)),
        event_type: Some(EventType::from_stored("approved")),
        result: Some(json("[18446744073709551615, \"\\u0000\"]")),
        error: Some(RecordedError {
            name: "Gateway".to_owned(),
            message: "busy\nand \"rude\" \u{0}".to_owned(),
            code: Some("E42".to_owned()),
            stack: Some("caused by: rain".to_owned()),
        }),
        created_at: stage.in_ms(-3),
        started_at: stage.in_ms(-2),
        updated_at: stage.in_ms(-1),
    };
    let bare = Arc::unwrap_or_clone(stage.completed_step("bare", 5).record);
    let write =
        |record: &StepRecord| StepWrite { record: Arc::new(record.clone()), row: RowState::New };
    let boundary = Boundary { steps: vec![write(&full), write(&bare)], ..boundary(key) };
    stage.commit(boundary).await;
    assert_eq!(stage.steps("a").await, [full, bare]);
}

pub async fn a_retried_step_keeps_its_place_and_gets_its_outcome(stage: Stage) {
    let key = stage.leased("a").await;
    let failed = stage.failed_attempt("charge", 0, stage.in_ms(10));
    let first =
        Boundary { steps: vec![failed.clone(), stage.completed_step("mail", 1)], ..boundary(key) };
    stage.commit(first).await;
    let outcome = StepRecord {
        seq: 2,
        attempts: 2,
        next_retry_at: None,
        error: None,
        ..Arc::unwrap_or_clone(stage.completed_step("charge", 0).record)
    };
    let second = Boundary {
        steps: vec![StepWrite { record: Arc::new(outcome.clone()), row: RowState::Changed }],
        ..boundary(key)
    };
    stage.commit(second).await;
    let steps = stage.steps("a").await;
    assert_eq!(steps.len(), 2);
    assert_eq!(steps[0], outcome);
}

pub async fn an_unchanged_wait_that_settles_is_written(stage: Stage) {
    let wait = stage.hibernating("a", 60_000).await;
    stage.send("a", "approved").await;
    let key = stage.claim_only("a").await;
    let boundary = Boundary { waits: vec![wait], ..boundary(key) };
    let settled = stage.commit(boundary).await.settled;
    assert_eq!(stage.steps("a").await, settled);
}

pub async fn a_suspended_run_waits_for_its_moment(stage: Stage) {
    stage.sleeping("a", 60_000).await;
    let view = stage.view("a").await;
    assert_eq!(view.record.status, InstanceStatus::Waiting);
    let waiting_for = view.waiting_for.expect("sleeps");
    assert_eq!(waiting_for.name.as_str(), "nap");
    assert_eq!(waiting_for.wake_at, Some(stage.in_ms(60_000)));
    assert_eq!(stage.next_due_at().await, Some(stage.in_ms(60_000)));
}

pub async fn a_run_completes_with_its_output(stage: Stage) {
    let key = stage.leased("a").await;
    stage.advance_ms(5);
    assert_eq!(stage.committed(complete(key)).await, After::Ended);
    let record = stage.view("a").await.record;
    assert_eq!(record.status, InstanceStatus::Complete);
    assert_eq!(record.output, Some(json("\"done\"")));
    assert_eq!((record.error, record.completed_at), (None, Some(stage.now())));
    assert_eq!(stage.live_tasks().await, 0);
}

pub async fn a_run_fails_with_its_error(stage: Stage) {
    let key = stage.leased("a").await;
    stage.advance_ms(5);
    assert_eq!(stage.committed(fail(key)).await, After::Ended);
    let record = stage.view("a").await.record;
    assert_eq!(record.status, InstanceStatus::Errored);
    let error = RecordedError::new("CardDeclined", "no money");
    assert_eq!((record.output, record.error), (None, Some(error)));
    assert_eq!(record.completed_at, Some(stage.now()));
    assert_eq!(stage.live_tasks().await, 0);
}

pub async fn the_last_step_and_the_end_share_one_commit(stage: Stage) {
    let key = stage.leased("a").await;
    let boundary = Boundary {
        steps: vec![stage.completed_step("charge", 0)],
        logs: vec![stage.log_line(LogLevel::Info, "user", "bye")],
        ..complete(key)
    };
    assert_eq!(stage.committed(boundary).await, After::Ended);
    assert_eq!(stage.step_names("a").await, ["charge"]);
    assert_eq!(&*stage.logs("a").await[1].line.message, "bye");
    assert_eq!(stage.status("a").await, InstanceStatus::Complete);
}

/// What a stale runner tries: a step, a log line, another instance, an event, and the end of the run.
fn last_words(stage: &Stage, key: RunKey) -> Boundary {
    Boundary {
        mutations: vec![
            Mutation::Create { workflow: checkout(), instance: new_instance("child") },
            Mutation::SendEvent(event("bystander", "approved")),
        ],
        steps: vec![stage.completed_step("too late", 50)],
        waits: vec![stage.wait("approval", 51, "approved", 60_000)],
        logs: vec![stage.log_line(LogLevel::Info, "user", "too late")],
        ..complete(key)
    }
}

impl Stage {
    /// Expects that nothing of a stale runner's boundary is kept, whatever way it became stale.
    async fn assert_keeps_nothing_of(&self, name: &str, key: RunKey, why: &str) {
        if !self.exists("bystander").await {
            self.create("bystander").await;
            self.steer("bystander", Action::Pause).await;
        }
        let before = (self.sight(name).await, self.sight("bystander").await);
        let answer = self.store.commit(last_words(self, key)).await;
        assert_fenced(answer, why);
        let after = (self.sight(name).await, self.sight("bystander").await);
        assert_eq!(after, before, "{why}");
        assert!(!self.exists("child").await, "{why}");
    }
}

pub async fn a_stale_epoch_is_fenced(stage: Stage) {
    let stale = stage.leased("a").await;
    stage.advance_ms(LEASE.as_millis());
    let current = stage.claim_only("a").await;
    stage.assert_keeps_nothing_of("a", stale, "taken over").await;
    let future = RunKey { epoch: current.epoch + 1, ..current };
    stage.assert_keeps_nothing_of("a", future, "an epoch not yet given").await;
    assert_eq!(stage.committed(boundary(current)).await, After::Continue);
}

pub async fn a_stale_run_is_fenced(stage: Stage) {
    let stale = stage.leased("a").await;
    stage.steer("a", Action::Restart).await;
    let why = "restarted, not yet claimed";
    stage.assert_keeps_nothing_of("a", stale, why).await;
    let current = stage.claim_only("a").await;
    assert_eq!(current.epoch, stale.epoch + 2, "a restart moves it, and a claim");
    stage.assert_keeps_nothing_of("a", stale, "restarted").await;
    let crossed = RunKey { run: stale.run, ..current };
    let why = "the old run under the new epoch";
    stage.assert_keeps_nothing_of("a", crossed, why).await;
    let crossed = RunKey { epoch: stale.epoch, ..current };
    let why = "the new run under the old epoch";
    stage.assert_keeps_nothing_of("a", crossed, why).await;
    assert_eq!(stage.committed(boundary(current)).await, After::Continue);
}

pub async fn an_ended_run_is_fenced(stage: Stage) {
    for status in [InstanceStatus::Complete, InstanceStatus::Errored, InstanceStatus::Terminated] {
        let key = stage.with_status(status.as_str(), status).await;
        stage.assert_keeps_nothing_of(status.as_str(), key, status.as_str()).await;
        assert_eq!(stage.status(status.as_str()).await, status);
    }
}

pub async fn a_suspended_run_is_fenced(stage: Stage) {
    let key = stage.sleeping("a", 60_000).await;
    stage.assert_keeps_nothing_of("a", key, "suspended").await;
    stage.advance_ms(60_000);
    stage.assert_keeps_nothing_of("a", key, "due again").await;
}

pub async fn a_released_run_is_fenced(stage: Stage) {
    let key = stage.leased("a").await;
    stage.store.release(vec![key]).await.expect("released");
    stage.assert_keeps_nothing_of("a", key, "released").await;
}

pub async fn a_paused_run_is_fenced(stage: Stage) {
    let key = stage.with_status("a", InstanceStatus::Paused).await;
    stage.assert_keeps_nothing_of("a", key, "paused").await;
    let orphan = stage.leased("b").await;
    stage.advance_ms(LEASE.as_millis());
    stage.steer("b", Action::Pause).await;
    stage.assert_keeps_nothing_of("b", orphan, "held").await;
    stage.steer("b", Action::Resume).await;
    stage.assert_keeps_nothing_of("b", orphan, "resumed").await;
}

pub async fn a_quarantined_run_is_fenced(stage: Stage) {
    stage.create("a").await;
    let mut key = stage.claim_only("a").await;
    for _ in 1..CLAIMS_MAX {
        stage.advance_ms(LEASE.as_millis());
        key = stage.claim_only("a").await;
    }
    stage.advance_ms(LEASE.as_millis());
    assert!(stage.claim(ALL).await.is_empty());
    stage.assert_keeps_nothing_of("a", key, "quarantined").await;
}

pub async fn an_instance_that_never_was_is_fenced(stage: Stage) {
    let nobody = RunKey { instance: InstanceKey(4_711), run: 0, epoch: 1 };
    assert_fenced(stage.store.commit(boundary(nobody)).await, "never was");
}

pub async fn a_fenced_runner_never_hinders_the_holder(stage: Stage) {
    let stale = stage.leased("a").await;
    stage.advance_ms(LEASE.as_millis());
    let holder = stage.claim_only("a").await;
    for position in 0..3 {
        assert_fenced(stage.store.commit(complete(stale)).await, "taken over");
        let boundary = Boundary {
            steps: vec![stage.completed_step(&format!("s{position}"), position)],
            ..boundary(holder)
        };
        assert_eq!(stage.committed(boundary).await, After::Continue);
    }
    assert_eq!(stage.committed(complete(holder)).await, After::Ended);
}

pub async fn neither_event_nor_pause_nor_renewal_moves_the_epoch(stage: Stage) {
    let key = stage.leased("a").await;
    stage.send("a", "approved").await;
    stage.steer("a", Action::Pause).await;
    stage.steer("a", Action::Resume).await;
    stage.store.renew(vec![key], LEASE).await.expect("renewed");
    stage.commit(boundary(key)).await;
    assert_eq!(stage.committed(complete(key)).await, After::Ended);
}

pub async fn no_retry_is_due_before_its_moment_whatever_happens(stage: Stage) {
    let key = stage.leased("a").await;
    let retry_at = stage.in_ms(10_000);
    let failed = stage.failed_attempt("charge", 0, retry_at);
    let boundary = Boundary {
        steps: vec![failed.clone()],
        next: suspend_for_retry(retry_at),
        ..boundary(key)
    };
    stage.commit(boundary).await;
    stage.send("a", "approved").await;
    stage.advance_ms(9_999);
    assert!(stage.claim(ALL).await.is_empty(), "an event is no reason");
    stage.steer("a", Action::Pause).await;
    stage.steer("a", Action::Resume).await;
    stage.claim_only("a").await;
    let step = stage.view("a").await.waiting_for;
    assert_eq!(step, Some(Arc::unwrap_or_clone(failed.record)), "a resumed run re-checks this");
}
