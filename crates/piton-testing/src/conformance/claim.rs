//! Claiming: one task, one holder; the order; and that nothing at rest delays anybody.

use std::collections::BTreeSet;
use std::sync::Arc;

use piton::store::{Action, Boundary, ClaimAnswer, ClaimRequest};
use piton_core::claim::{ClaimRules, NEW_WORK_WAIT_MAX, QUARANTINED, SUSPECT_CLAIMS};
use piton_core::record::InstanceKey;
use piton_core::{InstanceStatus, TaskState};

use super::rows::*;
use super::stage::*;

pub async fn a_second_claim_of_a_leased_task_gets_nothing(stage: Stage) {
    stage.create("a").await;
    assert_eq!(stage.claim_ids(ALL).await, ["a"]);
    assert!(stage.claim(ALL).await.is_empty());
}

pub async fn a_claim_hands_over_what_a_pass_needs(stage: Stage) {
    let created = stage.create("a").await;
    stage.advance_ms(7);
    let answer = stage.claim_answer(1).await;
    assert_eq!(answer.now, stage.now());
    let run = &answer.claimed[0];
    assert_eq!((&run.workflow, &run.id), (&checkout(), &created.id));
    assert_eq!((run.key, run.created_at), (created.key, created.created_at));
    assert_eq!(run.params, created.params);
    assert_eq!((run.task.run, run.task.epoch), (0, 1));
    assert_eq!(run.task.state, TaskState::Leased);
    assert_eq!(run.task.lease_until, Some(stage.now().plus(LEASE)));
    assert!(run.is_fresh());
}

pub async fn every_claim_moves_the_epoch_by_one(stage: Stage) {
    let mut key = stage.leased("a").await;
    for epoch in 2..=5 {
        stage.nap_again(key).await;
        let claimed = stage.claim(ALL).await;
        key = claimed[0].run_key();
        assert_eq!(key.epoch, epoch);
        assert!(!claimed[0].is_fresh());
    }
}

impl Stage {
    /// Suspends a run that is due again at once.
    async fn nap_again(&self, key: piton_core::record::RunKey) {
        let boundary = Boundary { next: suspend(self.now()), ..boundary(key) };
        self.commit(boundary).await;
    }
}

pub async fn started_at_is_set_by_the_first_claim_and_stays(stage: Stage) {
    stage.create("a").await;
    assert_eq!(stage.view("a").await.record.started_at, None);
    stage.advance_ms(5);
    let first = stage.now();
    let key = stage.claim_only("a").await;
    assert_eq!(stage.view("a").await.record.started_at, Some(first));
    stage.nap(key, 1_000).await;
    assert_eq!(stage.status("a").await, InstanceStatus::Waiting);
    stage.advance_ms(1_000);
    stage.claim_only("a").await;
    let record = stage.view("a").await.record;
    assert_eq!(record.started_at, Some(first));
    assert_eq!(record.status, InstanceStatus::Active);
}

pub async fn a_task_is_claimed_at_its_moment_and_not_before(stage: Stage) {
    stage.sleeping("a", 1_000).await;
    stage.advance_ms(999);
    assert!(stage.claim(ALL).await.is_empty());
    stage.advance_ms(1);
    assert_eq!(stage.claim_ids(ALL).await, ["a"]);
}

pub async fn a_claim_takes_no_more_than_wanted_and_says_that_there_is_more(stage: Stage) {
    stage.create_in("checkout", &["a", "b", "c"]).await;
    assert!(stage.claim(0).await.is_empty());
    let answer = stage.claim_answer(2).await;
    assert_eq!(answer.claimed.len(), 2);
    let more = answer.next_due_at.expect("c is due");
    assert!(more <= stage.now());
    assert_eq!(stage.claim_ids(2).await, ["c"]);
}

pub async fn a_claim_says_when_the_next_task_falls_due(stage: Stage) {
    assert_eq!(stage.claim_answer(ALL).await.next_due_at, None);
    stage.sleeping("a", 5_000).await;
    let wake_at = stage.in_ms(5_000);
    assert_eq!(stage.claim_answer(ALL).await.next_due_at, Some(wake_at));
    stage.create("b").await;
    let answer = stage.claim_answer(ALL).await;
    assert_eq!(answer.next_due_at, Some(wake_at), "before the lease of b");
}

pub async fn the_next_due_moment_counts_pending_tasks_and_leases(stage: Stage) {
    assert_eq!(stage.next_due_at().await, None);
    stage.create("a").await;
    assert_eq!(stage.next_due_at().await, Some(stage.now()));
    let key = stage.claim_only("a").await;
    assert_eq!(stage.next_due_at().await, Some(stage.now().plus(LEASE)));
    stage.nap(key, 60_000).await;
    assert_eq!(stage.next_due_at().await, Some(stage.in_ms(60_000)));
    stage.create("b").await;
    assert_eq!(stage.next_due_at().await, Some(stage.now()));
    stage.claim_only("b").await;
    assert_eq!(stage.next_due_at().await, Some(stage.now().plus(LEASE)));
}

pub async fn the_next_due_moment_ignores_what_nobody_can_claim(stage: Stage) {
    stage.create_in("unregistered", &["a"]).await;
    stage.with_status("paused", InstanceStatus::Paused).await;
    stage.with_status("ended", InstanceStatus::Complete).await;
    assert_eq!(stage.next_due_at().await, None);
    assert_eq!(stage.claim_answer(ALL).await.next_due_at, None);
}

pub async fn the_oldest_goes_first_over_all_workflows(stage: Stage) {
    for (name, workflow) in [("a", "checkout"), ("b", "refund"), ("c", "checkout")] {
        stage.create_in(workflow, &[name]).await;
        stage.advance_ms(1);
    }
    let request = ClaimRequest {
        workflows: [workflow("refund"), checkout()].into(),
        ..claim_request("runner", 2)
    };
    let answer = stage.store.claim(request).await.expect("claimed");
    let ids: Vec<&str> = answer.claimed.iter().map(|run| run.id.as_str()).collect();
    assert_eq!(ids, ["a", "b"]);
}

pub async fn instances_created_at_once_are_claimed_in_their_order(stage: Stage) {
    stage.create_in("checkout", &["b", "a", "c"]).await;
    assert_eq!(stage.claim_ids(ALL).await, ["b", "a", "c"]);
}

pub async fn resuming_work_goes_before_new_work(stage: Stage) {
    stage.sleeping("woken", 100).await;
    stage.create("new").await;
    stage.advance_ms(100);
    assert_eq!(stage.claim_ids(1).await, ["woken"]);
    assert_eq!(stage.claim_ids(1).await, ["new"]);
}

pub async fn resumed_and_retried_work_is_resuming_work(stage: Stage) {
    stage.with_status("resumed", InstanceStatus::Paused).await;
    let key = stage.leased("retried").await;
    let retry_at = stage.in_ms(20);
    let boundary = Boundary {
        steps: vec![stage.failed_attempt("charge", 0, retry_at)],
        next: suspend_for_retry(retry_at),
        ..boundary(key)
    };
    stage.commit(boundary).await;
    stage.create("new").await;
    stage.advance_ms(10);
    stage.steer("resumed", Action::Resume).await;
    stage.advance_ms(10);
    assert_eq!(stage.claim_ids(2).await, ["resumed", "retried"]);
}

pub async fn a_lease_that_ran_out_is_resuming_work(stage: Stage) {
    stage.leased("orphan").await;
    stage.advance_ms(LEASE.as_millis() - 2);
    stage.sleeping("woken", 1).await;
    stage.create("new").await;
    stage.advance_ms(2);
    assert_eq!(stage.claim_ids(ALL).await, ["orphan", "woken", "new"]);
}

pub async fn new_work_that_waited_too_long_gets_a_quarter_of_every_claim(stage: Stage) {
    let ids: Vec<String> = (0..20).map(|n| format!("woken-{n}")).collect();
    for name in &ids {
        stage.sleeping(name, 1_000).await;
    }
    stage.create_in("checkout", &["new-1", "new-2", "new-3"]).await;
    stage.advance_ms(NEW_WORK_WAIT_MAX.as_millis() - 1);
    stage.create("newest").await;
    stage.advance_ms(501);
    let claimed = stage.claim_ids(8).await;
    let new = claimed.iter().filter(|id| id.starts_with("new")).count();
    assert_eq!((claimed.len(), new), (8, 2), "{claimed:?}");
}

pub async fn new_work_that_has_not_waited_long_waits_for_resuming_work(stage: Stage) {
    for n in 0..4 {
        stage.sleeping(&format!("woken-{n}"), 1_000).await;
    }
    stage.advance_ms(1_000);
    stage.create("new").await;
    stage.advance_ms(NEW_WORK_WAIT_MAX.as_millis() - 1);
    let claimed = stage.claim_ids(4).await;
    assert!(!claimed.contains(&"new".to_owned()), "{claimed:?}");
    assert_eq!(stage.claim_ids(4).await, ["new"]);
}

/// A thousand tasks that are older than the one that counts.
fn a_thousand() -> Vec<String> {
    (0..1_000).map(|n| format!("i-{n}")).collect()
}

impl Stage {
    async fn create_a_thousand_in(&self, workflow: &str) {
        let ids = a_thousand();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        self.create_in(workflow, &ids).await;
        self.advance_ms(1);
    }
}

pub async fn a_thousand_unregistered_tasks_delay_nobody(stage: Stage) {
    stage.create_a_thousand_in("unregistered").await;
    stage.create("a").await;
    assert_eq!(stage.claim_ids(1).await, ["a"]);
    assert_eq!(stage.backlog(&[checkout()]).await, [(workflow("unregistered"), 1_000)]);
}

pub async fn a_thousand_paused_tasks_delay_nobody(stage: Stage) {
    stage.create_a_thousand_in("checkout").await;
    at_once(a_thousand().into_iter().map(|name| {
        let store = Arc::clone(&stage.store);
        async move { store.steer(checkout(), id(&name), Action::Pause).await }
    }))
    .await;
    stage.create("a").await;
    assert_eq!(stage.claim_ids(1).await, ["a"]);
    assert_eq!(stage.claim_ids(1).await, [""; 0]);
}

pub async fn a_thousand_held_leases_delay_nobody(stage: Stage) {
    stage.create_a_thousand_in("checkout").await;
    assert_eq!(stage.claim(ALL).await.len(), 1_000);
    stage.create("a").await;
    assert_eq!(stage.claim_ids(1).await, ["a"]);
}

pub async fn twenty_simultaneous_claims_of_one_task_give_it_to_one(stage: Stage) {
    stage.create("a").await;
    let claims = at_once((0..20).map(|n| {
        let store = Arc::clone(&stage.store);
        let request = claim_request(&format!("runner-{n}"), 1);
        async move { store.claim(request).await.expect("answered").claimed.len() }
    }))
    .await;
    assert_eq!(claims.iter().sum::<usize>(), 1);
}

pub async fn simultaneous_claims_share_the_work_and_strand_nothing(stage: Stage) {
    let ids: Vec<String> = (0..40).map(|n| format!("i-{n:02}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    stage.create_in("checkout", &ids).await;
    let claims = at_once((0..8).map(|n| {
        let store = Arc::clone(&stage.store);
        let request = claim_request(&format!("runner-{n}"), 5);
        async move { store.claim(request).await.expect("answered").claimed }
    }))
    .await;
    let claimed: Vec<String> = claims.iter().flatten().map(|run| run.id.to_string()).collect();
    let distinct: BTreeSet<&String> = claimed.iter().collect();
    assert_eq!((claimed.len(), distinct.len()), (40, 40));
}

pub async fn a_task_claimed_too_often_without_progress_is_quarantined(stage: Stage) {
    stage.create("poison").await;
    for _ in 0..CLAIMS_MAX {
        stage.claim_only("poison").await;
        stage.advance_ms(LEASE.as_millis());
    }
    assert!(stage.claim(ALL).await.is_empty());
    let record = stage.view("poison").await.record;
    assert_eq!(record.status, InstanceStatus::Errored);
    assert_eq!(record.completed_at, Some(stage.now()));
    let error = record.error.expect("says why");
    assert_eq!(error.name, QUARANTINED);
    let story = stage.story("poison").await;
    assert_eq!(story.last(), Some(&format!("quarantined: {}", error.message)));
    assert_eq!((stage.live_tasks().await, stage.next_due_at().await), (0, None));
}

pub async fn a_quarantined_instance_can_be_restarted(stage: Stage) {
    stage.create("poison").await;
    for _ in 0..=CLAIMS_MAX {
        stage.claim(ALL).await;
        stage.advance_ms(LEASE.as_millis());
    }
    assert_eq!(stage.status("poison").await, InstanceStatus::Errored);
    let record = stage.steer("poison", Action::Restart).await;
    assert_eq!((record.run, record.error), (1, None));
    stage.claim_only("poison").await;
}

pub async fn suspects_are_claimed_one_at_a_time_by_those_who_ask_for_one(stage: Stage) {
    stage.create_in("checkout", &["a", "b", "c"]).await;
    let request = |suspects| ClaimRequest {
        suspects,
        rules: ClaimRules { lease: LEASE, claims_without_progress_max: u32::MAX },
        ..claim_request("runner", ALL)
    };
    let claim = async |suspects| {
        let answer = stage.store.claim(request(suspects)).await.expect("answered");
        let ids = answer.claimed.iter().map(|run| run.id.to_string()).collect::<Vec<_>>();
        (ids, answer.next_due_at)
    };
    for _ in 0..SUSPECT_CLAIMS {
        assert_eq!(claim(true).await.0, ["a", "b", "c"]);
        stage.advance_ms(LEASE.as_millis());
    }
    stage.create("fresh").await;
    let (ids, next) = claim(false).await;
    assert_eq!(ids, ["fresh"], "suspects delay nobody");
    assert_eq!(next, Some(stage.now().plus(LEASE)), "nor do they call for another claim");
    assert!(stage.next_due_at().await <= Some(stage.now()), "they are due all the same");
    assert_eq!(stage.next_claimable_at().await, next, "and yet nobody is late with them");
    assert_eq!(claim(true).await.0, ["a"]);
    assert_eq!(claim(true).await.0, ["b"], "another runner has a seat of its own");
    stage.steer("c", Action::Pause).await;
    assert_eq!(stage.status("c").await, InstanceStatus::Paused);
    assert!(claim(true).await.0.is_empty());
    stage.steer("c", Action::Resume).await;
    assert!(claim(false).await.0.is_empty(), "still a suspect");
    assert_eq!(claim(true).await.0, ["c"]);
    stage.advance_ms(LEASE.as_millis());
    assert_eq!(claim(true).await.0, ["fresh", "a"], "a lease that ran out");
    stage.steer("b", Action::Restart).await;
    let one = ClaimRequest { wanted: 1, ..request(true) };
    let answer = stage.store.claim(one).await.expect("answered");
    assert_eq!(answer.claimed[0].id, id("c"), "a suspect does not starve");
    assert_eq!(claim(false).await.0, ["b"], "a new run is above suspicion");
}

pub async fn one_instance_is_claimed_and_no_other(stage: Stage) {
    stage.create("a").await;
    let second = stage.create("b").await;
    stage.advance_ms(7);
    let answer = stage.claim_instance(second.key, true).await;
    let ids: Vec<&str> = answer.claimed.iter().map(|run| run.id.as_str()).collect();
    assert_eq!(ids, ["b"]);
    assert_eq!(answer.claimed[0].task.lease_until, Some(stage.now().plus(LEASE)));
    assert!(answer.next_due_at.expect("a is due") <= stage.now());
    let again = stage.claim_instance(second.key, true).await;
    assert!(again.claimed.is_empty(), "it is leased");
    assert_eq!(stage.claim_ids(ALL).await, ["a"]);
}

pub async fn one_instance_that_is_not_due_is_not_claimed(stage: Stage) {
    let sleeper = stage.sleeping("sleeps", 1_000).await;
    let paused = stage.with_status("paused", InstanceStatus::Paused).await;
    let ended = stage.with_status("ended", InstanceStatus::Complete).await;
    for key in [sleeper, paused, ended] {
        assert!(stage.claim_instance(key.instance, true).await.claimed.is_empty());
    }
    stage.advance_ms(1_000);
    assert_eq!(stage.claim_instance(sleeper.instance, true).await.claimed.len(), 1);
    // Its runner dies, and a pause that was asked for takes effect instead of the next claim.
    stage.steer("sleeps", Action::Pause).await;
    stage.advance_ms(LEASE.as_millis());
    assert!(stage.claim_instance(sleeper.instance, true).await.claimed.is_empty());
    assert_eq!(stage.status("sleeps").await, InstanceStatus::Paused);
}

pub async fn one_instance_that_is_a_suspect_is_claimed_by_those_who_ask_for_one(stage: Stage) {
    let key = stage.create("a").await.key;
    for _ in 0..SUSPECT_CLAIMS {
        assert_eq!(stage.claim_instance(key, false).await.claimed.len(), 1);
        stage.advance_ms(LEASE.as_millis());
    }
    assert!(stage.claim_instance(key, false).await.claimed.is_empty(), "set aside");
    assert!(stage.claim_instance(key, false).await.claimed.is_empty(), "and passed over");
    assert_eq!(stage.claim_instance(key, true).await.claimed.len(), 1);
    stage.advance_ms(LEASE.as_millis());
    let again = stage.claim_instance(key, true).await.claimed;
    assert_eq!(again.len(), 1, "set aside and taken in one go");
    assert_eq!(again[0].task.claims_without_progress, SUSPECT_CLAIMS + 2);
}

impl Stage {
    /// Claims one instance, with no end to how often.
    async fn claim_instance(&self, key: InstanceKey, suspects: bool) -> ClaimAnswer {
        let rules = ClaimRules { lease: LEASE, claims_without_progress_max: u32::MAX };
        let request = ClaimRequest { suspects, rules, ..claim_request("runner", 1) };
        self.store.claim_instance(key, request).await.expect("answered")
    }
}

pub async fn progress_clears_the_count_of_claims(stage: Stage) {
    stage.create("a").await;
    for position in 0..2 * CLAIMS_MAX {
        let key = stage.claim_only("a").await;
        let boundary = Boundary {
            steps: vec![stage.completed_step(&format!("s{position}"), position)],
            ..boundary(key)
        };
        stage.commit(boundary).await;
        stage.advance_ms(LEASE.as_millis());
    }
    assert_eq!(stage.status("a").await, InstanceStatus::Active);
}

pub async fn the_rules_of_a_claim_are_the_callers(stage: Stage) {
    stage.create("a").await;
    let request = |max| ClaimRequest {
        rules: ClaimRules { lease: LEASE, claims_without_progress_max: max },
        ..claim_request("runner", 1)
    };
    for _ in 0..10 {
        let answer = stage.store.claim(request(u32::MAX)).await.expect("claimed");
        assert_eq!(answer.claimed.len(), 1);
        stage.advance_ms(LEASE.as_millis());
    }
    let answer = stage.store.claim(request(10)).await.expect("answered");
    assert!(answer.claimed.is_empty());
    assert_eq!(stage.status("a").await, InstanceStatus::Errored);
}

pub async fn tasks_that_are_quarantined_or_held_do_not_delay_others(stage: Stage) {
    for n in 0..3 {
        stage.create(&format!("poison-{n}")).await;
        stage.create(&format!("pausing-{n}")).await;
    }
    for _ in 1..CLAIMS_MAX {
        stage.claim(ALL).await;
        stage.advance_ms(LEASE.as_millis());
    }
    stage.claim(ALL).await;
    for n in 0..3 {
        let record = stage.steer(&format!("pausing-{n}"), Action::Pause).await;
        assert!(record.pause_requested);
    }
    stage.advance_ms(LEASE.as_millis());
    stage.create("a").await;
    // A store may clear a bounded number of them per claim, but then says that there is more.
    for _ in 0..7 {
        let answer = stage.claim_answer(1).await;
        if let Some(run) = answer.claimed.first() {
            assert_eq!(run.id, id("a"));
            return;
        }
        assert!(answer.next_due_at.expect("a is due") <= stage.now());
    }
    panic!("seven claims did not reach the one healthy task");
}

pub async fn a_requested_pause_whose_runner_died_takes_effect_on_the_next_claim(stage: Stage) {
    let key = stage.leased("a").await;
    stage.steer("a", Action::Pause).await;
    stage.advance_ms(LEASE.as_millis());
    assert!(stage.claim(ALL).await.is_empty());
    let record = stage.view("a").await.record;
    assert_eq!(record.status, InstanceStatus::Paused);
    assert!(!record.pause_requested);
    assert_eq!(stage.story("a").await.last().expect("told"), "paused");
    assert_fenced(stage.store.commit(boundary(key)).await, "held");
    stage.steer("a", Action::Resume).await;
    stage.claim_only("a").await;
}

pub async fn a_claim_tells_its_story(stage: Stage) {
    stage.create("a").await;
    stage.store.claim(claim_request("first", 1)).await.expect("claimed");
    stage.advance_ms(LEASE.as_millis());
    stage.store.claim(claim_request("second", 1)).await.expect("claimed");
    let expected = ["claimed by first (epoch 1)", "lease ran out; claimed by second (epoch 2)"];
    assert_eq!(stage.story("a").await, expected);
}
