//! Events: none is lost, none feeds two waits, and a wait has exactly one outcome.

use std::sync::Arc;

use piton::store::{Action, Boundary, Claimant, ClaimedRun, NewEvent, RowState, WaitLook};
use piton_core::boundary::{After, WAIT_TIMEOUT};
use piton_core::claim::ClaimRules;
use piton_core::record::StepRecord;
use piton_core::{Code, InstanceStatus, StepStatus};

use super::rows::*;
use super::stage::*;

impl Stage {
    /// Claims the instance and looks at the wait once more, going back to sleep if it is open.
    async fn look(&self, name: &str, wait: &WaitLook) -> (After, Vec<StepRecord>) {
        let key = self.claim_only(name).await;
        let boundary = Boundary {
            waits: vec![wait.clone()],
            next: suspend(wait.record.wake_at.expect("a wait has a deadline")),
            ..boundary(key)
        };
        let committed = self.commit(boundary).await;
        (committed.after, committed.settled)
    }

    /// Sends an event for a runner that would advance the receiver.
    async fn send_and_claim(&self, event: NewEvent) -> Option<ClaimedRun> {
        let rules = ClaimRules { lease: LEASE, claims_without_progress_max: CLAIMS_MAX };
        let claimant = Claimant { runner: "sender".into(), rules };
        let sent = self.store.send_event(event, Some(claimant)).await.expect("stored");
        assert!(sent.claimed.is_none() || sent.event.created_at == self.now());
        sent.claimed
    }

    async fn undelivered(&self, name: &str) -> usize {
        let events = self.events(name).await;
        events.iter().filter(|e| e.delivered_at.is_none()).count()
    }
}

pub async fn an_event_reads_back_as_it_was_sent(stage: Stage) {
    stage.create("a").await;
    let sent = NewEvent { payload: json("{\"ok\": [true, null]}"), ..event("a", "approved") };
    let stored = stage.try_send(sent.clone()).await.expect("stored");
    assert!(stored.id.starts_with("evt_"), "{}", stored.id);
    assert_eq!((stored.run, stored.created_at), (0, stage.now()));
    assert_eq!(stored.event_type, sent.event_type);
    assert_eq!(stored.payload, sent.payload);
    assert_eq!((stored.delivered_at, &stored.consumed_by), (None, &None));
    assert_eq!(stage.events("a").await, [stored]);
}

pub async fn an_event_sent_before_the_first_pass_is_found_by_the_wait(stage: Stage) {
    stage.create("a").await;
    stage.send_payload("a", "approved", "[1]").await;
    stage.advance_ms(5);
    let wait = stage.wait("approval", 0, "approved", 60_000);
    let (after, settled) = stage.look("a", &wait).await;
    assert_eq!(after, After::Continue);
    let step = &settled[0];
    assert_eq!((step.position, step.seq), (0, 100));
    assert_eq!(step.status, StepStatus::Completed);
    assert_eq!(step.updated_at, stage.now());
    let sent_at = stage.in_ms(-5).as_millis();
    let result = format!(r#"{{"type":"approved","payload":[1],"timestamp":{sent_at}}}"#);
    assert_eq!(step.result, Some(json(&result)));
    assert_eq!(stage.steps("a").await, settled);
}

pub async fn an_event_sent_while_a_body_runs_is_found_by_the_wait(stage: Stage) {
    let key = stage.leased("a").await;
    stage.send("a", "approved").await;
    let boundary = Boundary {
        waits: vec![stage.wait("approval", 0, "approved", 60_000)],
        next: suspend(stage.in_ms(60_000)),
        ..boundary(key)
    };
    let committed = stage.commit(boundary).await;
    assert_eq!(committed.after, After::Continue, "no wake-up is needed");
    assert_eq!(committed.settled.len(), 1);
}

pub async fn an_event_for_a_wait_that_was_registered_earlier_in_the_pass_is_found(stage: Stage) {
    let key = stage.leased("a").await;
    let wait = stage.wait("approval", 0, "approved", 60_000);
    let register = Boundary { waits: vec![wait.clone()], ..boundary_with_bodies_running(key) };
    assert!(stage.commit(register).await.settled.is_empty());
    stage.send("a", "approved").await;
    let suspend = Boundary {
        waits: vec![look_again(wait)],
        next: suspend(stage.in_ms(60_000)),
        ..boundary(key)
    };
    let committed = stage.commit(suspend).await;
    assert_eq!((committed.after, committed.settled.len()), (After::Continue, 1));
}

pub async fn an_event_sent_while_paused_is_kept_for_after_the_resume(stage: Stage) {
    let wait = stage.hibernating("a", 60_000).await;
    stage.steer("a", Action::Pause).await;
    stage.send("a", "approved").await;
    assert!(stage.claim(ALL).await.is_empty(), "still paused");
    assert_eq!(stage.status("a").await, InstanceStatus::Paused);
    stage.steer("a", Action::Resume).await;
    assert_eq!(stage.look("a", &wait).await.0, After::Continue);
}

pub async fn an_event_wakes_the_run_that_waits_for_it_at_once(stage: Stage) {
    let wait = stage.hibernating("a", 60_000).await;
    stage.send("a", "approved").await;
    assert_eq!(stage.next_due_at().await, Some(stage.now()));
    assert_eq!(stage.look("a", &wait).await.0, After::Continue);
}

pub async fn a_run_that_an_event_wakes_is_the_claimants_at_once(stage: Stage) {
    let wait = stage.hibernating("a", 60_000).await;
    let run = stage.send_and_claim(event("a", "approved")).await.expect("claimed");
    assert_eq!((run.id.as_str(), run.task.epoch, run.task.claims_without_progress), ("a", 2, 1));
    assert_eq!(
        (run.task.run_at, run.task.lease_until),
        (stage.now(), Some(stage.now().plus(LEASE)))
    );
    assert_eq!(stage.status("a").await, InstanceStatus::Active);
    assert!(stage.claim(ALL).await.is_empty(), "it is taken");
    let key = run.run_key();
    let found = stage.commit(Boundary { waits: vec![wait], ..boundary(key) }).await;
    assert_eq!((found.after, found.settled.len()), (After::Continue, 1));
    assert_eq!(stage.undelivered("a").await, 0);
    stage.advance_ms(LEASE.as_millis());
    assert_eq!(stage.claim_only("a").await.epoch, 3, "the lease has run out like any other");
}

pub async fn a_claimant_gets_nothing_but_what_the_event_wakes(stage: Stage) {
    stage.leased("in-flight").await;
    stage.sleeping("asleep", 60_000).await;
    stage.hibernating("paused", 60_000).await;
    stage.steer("paused", Action::Pause).await;
    stage.hibernating("a", 60_000).await;
    stage.create("new").await;
    for name in ["new", "in-flight", "asleep", "paused"] {
        assert!(stage.send_and_claim(event(name, "approved")).await.is_none(), "{name}");
    }
    assert!(stage.send_and_claim(event("a", "rejected")).await.is_none(), "of another type");
    let keyed = NewEvent { idempotency_key: Some("k1".into()), ..event("a", "approved") };
    stage.try_send(keyed.clone()).await.expect("stored");
    assert!(stage.send_and_claim(keyed).await.is_none(), "a repeat");
    let again = stage.send_and_claim(event("a", "approved")).await;
    assert!(again.is_none(), "it was woken before, and is left to the claim");
    assert_eq!(stage.claim_ids(ALL).await, ["a", "new"]);
}

pub async fn an_event_of_another_type_wakes_nobody(stage: Stage) {
    stage.hibernating("a", 60_000).await;
    stage.sleeping("b", 60_000).await;
    stage.send("a", "rejected").await;
    stage.send("b", "approved").await;
    assert!(stage.claim(ALL).await.is_empty());
    assert_eq!(stage.next_due_at().await, Some(stage.in_ms(60_000)));
}

pub async fn an_event_for_a_wait_that_is_settled_wakes_nobody(stage: Stage) {
    let wait = stage.hibernating("a", 60_000).await;
    stage.send("a", "approved").await;
    let key = stage.claim_only("a").await;
    let boundary = Boundary { waits: vec![wait], ..boundary(key) };
    assert_eq!(stage.commit(boundary).await.settled.len(), 1);
    let nap = Boundary {
        steps: vec![stage.sleep("nap", 1, stage.in_ms(60_000))],
        next: suspend(stage.in_ms(60_000)),
        ..super::rows::boundary(key)
    };
    stage.commit(nap).await;
    stage.send("a", "approved").await;
    assert!(stage.claim(ALL).await.is_empty());
}

pub async fn an_event_is_taken_by_one_wait_which_is_recorded_with_it(stage: Stage) {
    let wait = stage.hibernating("a", 60_000).await;
    stage.send("a", "approved").await;
    stage.advance_ms(3);
    stage.look("a", &wait).await;
    let events = stage.events("a").await;
    assert_eq!(events[0].delivered_at, Some(stage.now()));
    assert_eq!(events[0].consumed_by.as_ref(), Some(&wait.record.name));
}

pub async fn events_of_a_type_are_taken_in_the_order_of_arrival(stage: Stage) {
    let key = stage.leased("a").await;
    for payload in ["1", "2", "3", "4"] {
        stage.send_payload("a", "approved", payload).await;
    }
    let wait = |n: u32| stage.wait(&format!("w{n}"), n, "approved", 60_000);
    let mut taken = Vec::new();
    let looked_at_again = WaitLook { row: RowState::Stored, ..wait(2) };
    for waits in [vec![wait(0)], vec![wait(1), wait(2)], vec![looked_at_again]] {
        let boundary = Boundary { waits, ..boundary(key) };
        let settled = stage.commit(boundary).await.settled;
        assert_eq!(settled.len(), 1, "one at a time: the code may drop the other");
        taken.extend(settled);
    }
    let payload = |step: &StepRecord| {
        let result = step.result.clone().expect("delivered");
        let text = result.as_str().to_owned();
        text.split_once("\"payload\":").expect("has one").1[..1].to_owned()
    };
    let payloads: Vec<String> = taken.iter().map(payload).collect();
    assert_eq!(payloads, ["1", "2", "3"]);
    assert_eq!(stage.undelivered("a").await, 1, "the fourth waits for later");
}

pub async fn a_wait_leaves_events_of_other_types_alone(stage: Stage) {
    let key = stage.leased("a").await;
    stage.send("a", "rejected").await;
    stage.send("a", "approved").await;
    let boundary =
        Boundary { waits: vec![stage.wait("approval", 0, "approved", 60_000)], ..boundary(key) };
    assert_eq!(stage.commit(boundary).await.settled.len(), 1);
    let events = stage.events("a").await;
    assert_eq!(events[0].delivered_at, None);
    assert!(events[1].delivered_at.is_some());
}

pub async fn one_event_does_not_feed_two_waits(stage: Stage) {
    let key = stage.leased("a").await;
    stage.send("a", "approved").await;
    let waits = [0, 1].map(|n| stage.wait(&format!("w{n}"), n, "approved", 60_000));
    let boundary =
        Boundary { waits: waits.to_vec(), next: suspend(stage.in_ms(60_000)), ..boundary(key) };
    let committed = stage.commit(boundary).await;
    assert_eq!(committed.settled.len(), 1);
    assert_eq!(committed.after, After::Continue);
    let steps = stage.steps("a").await;
    assert_eq!(steps[0].status, StepStatus::Completed);
    assert_eq!(steps[1].status, StepStatus::Waiting);
}

pub async fn an_event_counts_exactly_if_it_arrived_by_the_deadline(stage: Stage) {
    for (name, arrives_after_ms, in_time) in
        [("before", 999, true), ("at", 1_000, true), ("after", 1_001, false)]
    {
        let wait = stage.hibernating(name, 1_000).await;
        stage.advance_ms(arrives_after_ms);
        stage.send(name, "approved").await;
        stage.advance_ms(5_000);
        let (after, settled) = stage.look(name, &wait).await;
        assert_eq!((after, settled.len()), (After::Continue, 1), "{name}");
        let completed = settled[0].status == StepStatus::Completed;
        assert_eq!(completed, in_time, "{name}");
        let left = usize::from(!in_time);
        assert_eq!(stage.undelivered(name).await, left, "{name}");
        stage.steer(name, Action::Terminate).await;
    }
}

pub async fn a_wait_times_out_at_its_deadline_and_not_before(stage: Stage) {
    let key = stage.leased("a").await;
    let wait = stage.wait("approval", 0, "approved", 1_000);
    let look = |wait: WaitLook| Boundary { waits: vec![wait], ..boundary(key) };
    assert!(stage.commit(look(wait.clone())).await.settled.is_empty());
    stage.advance_ms(999);
    let again = stage.commit(look(look_again(wait.clone()))).await;
    assert!(again.settled.is_empty());
    stage.advance_ms(1);
    let settled = stage.commit(look(look_again(wait))).await.settled;
    assert_eq!(settled.len(), 1);
    assert_eq!((settled[0].seq, settled[0].status), (100, StepStatus::Errored));
    let error = settled[0].error.clone().expect("says so");
    assert_eq!(error.name, WAIT_TIMEOUT);
    assert_eq!(stage.steps("a").await, settled);
    let story = stage.story("a").await;
    assert_eq!(story.last(), Some(&format!("timed out: {}", error.message)));
}

pub async fn a_timeout_cancels_the_suspension(stage: Stage) {
    let wait = stage.hibernating("a", 1_000).await;
    stage.advance_ms(1_000);
    let (after, settled) = stage.look("a", &wait).await;
    assert_eq!((after, settled.len()), (After::Continue, 1));
}

pub async fn an_open_wait_does_not_cancel_the_suspension(stage: Stage) {
    let wait = stage.hibernating("a", 60_000).await;
    stage.steer("a", Action::Pause).await;
    stage.steer("a", Action::Resume).await;
    let (after, settled) = stage.look("a", &wait).await;
    assert_eq!((after, settled.len()), (After::Suspended, 0));
    stage.send("a", "approved").await;
    assert_eq!(stage.look("a", &wait).await.0, After::Continue);
}

pub async fn a_late_event_stays_for_the_next_wait(stage: Stage) {
    let first = stage.hibernating("a", 1_000).await;
    stage.advance_ms(1_001);
    stage.send("a", "approved").await;
    let key = stage.claim_only("a").await;
    let second = stage.wait("second", 1, "approved", 60_000);
    let look = |wait: WaitLook| Boundary { waits: vec![wait], ..boundary(key) };
    let settled = stage.commit(look(first)).await.settled;
    assert_eq!(settled[0].status, StepStatus::Errored);
    let settled = stage.commit(look(second)).await.settled;
    assert_eq!(settled[0].status, StepStatus::Completed);
}

pub async fn a_settled_wait_never_changes(stage: Stage) {
    let wait = stage.hibernating("a", 1_000).await;
    stage.advance_ms(1_000);
    let (_, settled) = stage.look("a", &wait).await;
    stage.send("a", "approved").await;
    stage.advance_ms(LEASE.as_millis());
    let key = stage.claim_only("a").await;
    let loaded = stage.store.load_steps(key.instance, key.run).await;
    assert_eq!(loaded.expect("read"), settled);
    assert_eq!(stage.undelivered("a").await, 1);
}

pub async fn a_missing_instance_takes_no_events(stage: Stage) {
    stage.create_in("refund", &["a"]).await;
    let sent = stage.try_send(event("a", "approved")).await;
    assert_eq!(refusal(sent), Code::InstanceNotFound);
}

pub async fn an_ended_instance_takes_no_events_and_stores_nothing(stage: Stage) {
    for status in [InstanceStatus::Complete, InstanceStatus::Errored, InstanceStatus::Terminated] {
        let name = status.as_str();
        stage.with_status(name, status).await;
        let before = stage.sight(name).await;
        let sent = stage.try_send(event(name, "approved")).await;
        assert_eq!(refusal(sent), Code::InstanceTerminal);
        assert_eq!(stage.sight(name).await, before);
    }
}

pub async fn events_of_one_run_are_never_seen_by_the_next(stage: Stage) {
    let key = stage.leased("a").await;
    stage.send("a", "approved").await;
    stage.steer("a", Action::Restart).await;
    let wait = stage.wait("approval", 0, "approved", 60_000);
    assert_eq!(stage.look("a", &wait).await.0, After::Suspended);
    assert!(stage.events("a").await.is_empty());
    let old = stage.store.events(whole(key)).await.expect("read");
    assert_eq!((old.len(), old[0].delivered_at), (1, None));
}

pub async fn a_wait_of_the_old_run_does_not_wake_the_new_one(stage: Stage) {
    stage.hibernating("a", 60_000).await;
    stage.steer("a", Action::Restart).await;
    let key = stage.claim_only("a").await;
    stage.nap(key, 60_000).await;
    stage.send("a", "approved").await;
    assert!(stage.claim(ALL).await.is_empty());
}

pub async fn a_repeated_event_is_stored_once_and_answered_like_the_first(stage: Stage) {
    let wait = stage.hibernating("a", 60_000).await;
    let keyed = NewEvent { idempotency_key: Some("k1".into()), ..event("a", "approved") };
    let first = stage.try_send(keyed.clone()).await.expect("stored");
    stage.advance_ms(10);
    let again = stage.try_send(keyed.clone()).await.expect("known");
    assert_eq!(again, first);
    assert_eq!(stage.look("a", &wait).await.0, After::Continue);
    let after_delivery = stage.try_send(keyed).await.expect("known");
    assert_eq!((after_delivery.id, after_delivery.seq), (first.id, first.seq));
    assert_eq!(stage.events("a").await.len(), 1);
}

pub async fn a_repeat_is_known_whatever_became_of_the_instance(stage: Stage) {
    stage.create("a").await;
    let keyed = NewEvent { idempotency_key: Some("k1".into()), ..event("a", "approved") };
    let first = stage.try_send(keyed.clone()).await.expect("stored");
    stage.steer("a", Action::Terminate).await;
    let repeat = stage.try_send(keyed.clone()).await;
    assert_eq!(repeat.expect("known").id, first.id);
    stage.steer("a", Action::Restart).await;
    let repeat = stage.try_send(keyed.clone()).await.expect("known");
    assert_eq!((repeat.id, repeat.run), (first.id, 0));
    assert!(stage.events("a").await.is_empty(), "run 1 got nothing");
}

pub async fn idempotency_keys_are_the_instances_own(stage: Stage) {
    stage.create_in("checkout", &["a", "b"]).await;
    for (name, key) in [("a", "k1"), ("a", "k2"), ("b", "k1")] {
        let keyed = NewEvent { idempotency_key: Some(key.into()), ..event(name, "approved") };
        stage.try_send(keyed).await.expect("stored");
    }
    stage.send("a", "approved").await;
    stage.send("a", "approved").await;
    assert_eq!(stage.events("a").await.len(), 4);
    assert_eq!(stage.events("b").await.len(), 1);
}

pub async fn eight_simultaneous_repeats_store_one_event(stage: Stage) {
    stage.create("a").await;
    let ids = at_once((0..8).map(|_| {
        let store = Arc::clone(&stage.store);
        let keyed = NewEvent { idempotency_key: Some("k1".into()), ..event("a", "approved") };
        async move { store.send_event(keyed, None).await.expect("answered").event.id }
    }))
    .await;
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(stage.events("a").await.len(), 1);
}

pub async fn events_sent_at_once_are_all_kept_in_one_order(stage: Stage) {
    stage.create("a").await;
    at_once((0..32).map(|_| {
        let store = Arc::clone(&stage.store);
        async move { store.send_event(event("a", "approved"), None).await.expect("stored") }
    }))
    .await;
    let events = stage.events("a").await;
    assert_eq!(events.len(), 32);
    assert!(events.is_sorted_by(|one, next| one.seq < next.seq));
}

pub async fn an_event_that_races_a_suspension_is_never_lost(stage: Stage) {
    for round in 0..20 {
        let name = format!("i-{round}");
        let key = stage.leased(&name).await;
        let suspension = Boundary {
            waits: vec![stage.wait("approval", 0, "approved", 60_000)],
            next: suspend(stage.in_ms(60_000)),
            ..boundary(key)
        };
        let (committing, sending) = (Arc::clone(&stage.store), Arc::clone(&stage.store));
        let sent = event(&name, "approved");
        let (committed, sent) = tokio::join!(
            at_once([async move { committing.commit(suspension).await.expect("committed").after }]),
            at_once([async move { sending.send_event(sent, None).await.expect("stored") }]),
        );
        assert_eq!(sent.len(), 1);
        // Either the commit saw the event, or the event saw the wait.
        match committed[0] {
            After::Continue => stage.commit(complete(key)).await,
            After::Suspended => {
                let key = stage.claim_only(&name).await;
                stage.commit(complete(key)).await
            }
            other @ (After::Drain | After::Paused | After::Ended) => panic!("{other:?}"),
        };
    }
}
