//! Leases: how they run out, are extended and handed back, and what a jump of the clock does to them.

use piton::store::{Action, Boundary, Renewed};
use piton_core::boundary::After;
use piton_core::record::RunKey;
use piton_core::{InstanceStatus, Span};

use super::rows::*;
use super::stage::*;

impl Stage {
    async fn renew(&self, keys: &[RunKey]) -> Vec<Renewed> {
        let renewed = self.store.renew(keys.to_vec(), LEASE).await;
        renewed.expect("answered")
    }

    async fn release(&self, key: RunKey) {
        self.store.release(vec![key]).await.expect("answered");
    }
}

pub async fn a_lease_can_be_taken_over_at_its_end_and_not_before(stage: Stage) {
    let lost = stage.leased("a").await;
    stage.advance_ms(LEASE.as_millis() - 1);
    assert!(stage.claim(ALL).await.is_empty());
    stage.advance_ms(1);
    let heir = stage.claim_only("a").await;
    assert_eq!(heir.epoch, lost.epoch + 1);
    assert_fenced(stage.store.commit(boundary(lost)).await, "taken over");
    assert_eq!(stage.committed(boundary(heir)).await, After::Continue);
}

pub async fn a_lease_that_ran_out_unnoticed_still_commits(stage: Stage) {
    let key = stage.leased("a").await;
    stage.advance_ms(10 * LEASE.as_millis());
    assert_eq!(stage.committed(boundary(key)).await, After::Continue);
}

pub async fn renewal_keeps_others_away(stage: Stage) {
    let key = stage.leased("a").await;
    for _ in 0..5 {
        stage.advance_ms(LEASE.as_millis() - 1);
        let renewed = Renewed { key, pause_requested: false };
        assert_eq!(stage.renew(&[key]).await, [renewed]);
        assert!(stage.claim(ALL).await.is_empty());
    }
    assert_eq!(stage.next_due_at().await, Some(stage.now().plus(LEASE)));
}

pub async fn renewal_lasts_as_long_as_was_asked_for(stage: Stage) {
    let key = stage.leased("a").await;
    let renewed = stage.store.renew(vec![key], Span::from_millis(5)).await;
    assert_eq!(renewed.expect("answered").len(), 1);
    stage.advance_ms(5);
    stage.claim_only("a").await;
}

pub async fn a_lease_that_ran_out_can_be_renewed_if_nobody_took_it(stage: Stage) {
    let key = stage.leased("a").await;
    stage.advance_ms(10 * LEASE.as_millis());
    assert_eq!(stage.renew(&[key]).await.len(), 1);
    assert!(stage.claim(ALL).await.is_empty());
}

pub async fn renewal_leaves_out_what_is_lost(stage: Stage) {
    let held = stage.leased("held").await;
    let mut keys = vec![held];
    keys.push(stage.sleeping("suspended", 60_000).await);
    for status in [InstanceStatus::Paused, InstanceStatus::Complete] {
        keys.push(stage.with_status(status.as_str(), status).await);
    }
    let terminated = InstanceStatus::Terminated;
    keys.push(stage.with_status("terminated", terminated).await);
    let restarted = stage.leased("restarted").await;
    stage.steer("restarted", Action::Restart).await;
    stage.claim_only("restarted").await;
    keys.push(restarted);
    keys.push(RunKey { epoch: 9, ..held });
    let renewed: Vec<RunKey> = stage.renew(&keys).await.iter().map(|r| r.key).collect();
    assert_eq!(renewed, [held]);
}

pub async fn renewal_tells_of_a_requested_pause(stage: Stage) {
    let key = stage.leased("a").await;
    stage.steer("a", Action::Pause).await;
    assert!(stage.renew(&[key]).await[0].pause_requested);
    stage.steer("a", Action::Resume).await;
    assert!(!stage.renew(&[key]).await[0].pause_requested);
}

pub async fn a_released_run_can_be_claimed_at_once(stage: Stage) {
    let key = stage.leased("a").await;
    stage.release(key).await;
    assert_eq!(stage.next_due_at().await, Some(stage.now()));
    assert_fenced(stage.store.commit(boundary(key)).await, "released");
    let heir = stage.claim_only("a").await;
    assert_eq!(heir.epoch, key.epoch + 1);
    let story = stage.story("a").await;
    assert_eq!(story[1..2], ["released by its runner"]);
    assert!(story[2].starts_with("claimed by"), "{story:?}");
}

pub async fn releasing_does_not_count_against_the_run(stage: Stage) {
    stage.create("a").await;
    for _ in 0..2 * CLAIMS_MAX {
        let key = stage.claim_only("a").await;
        stage.release(key).await;
    }
    assert_eq!(stage.status("a").await, InstanceStatus::Active);
}

pub async fn releasing_what_is_no_longer_held_is_ignored(stage: Stage) {
    let lost = stage.leased("a").await;
    stage.advance_ms(LEASE.as_millis());
    let heir = stage.claim_only("a").await;
    stage.sleeping("sleeper", 60_000).await;
    let before = stage.sight("a").await;
    stage.release(lost).await;
    stage.release(RunKey { run: 7, ..heir }).await;
    let sleeper = RunKey { epoch: 1, ..stage.run_key("sleeper").await };
    stage.release(sleeper).await;
    assert_eq!(stage.sight("a").await, before);
    assert!(stage.claim(ALL).await.is_empty(), "nothing became due");
    assert_eq!(stage.committed(boundary(heir)).await, After::Continue);
}

pub async fn releasing_many_keys_releases_those_that_are_held(stage: Stage) {
    let first = stage.leased("a").await;
    let stale = RunKey { epoch: 7, ..first };
    let second = stage.leased("b").await;
    let keys = vec![stale, first, second];
    stage.store.release(keys).await.expect("answered");
    assert_eq!(stage.claim_ids(ALL).await, ["a", "b"]);
}

pub async fn a_run_released_while_a_pause_is_requested_is_paused(stage: Stage) {
    let key = stage.leased("a").await;
    stage.steer("a", Action::Pause).await;
    stage.release(key).await;
    assert_eq!(stage.status("a").await, InstanceStatus::Paused);
    assert!(stage.claim(ALL).await.is_empty());
    let story = stage.story("a").await;
    assert_eq!(story[2..], ["released by its runner", "paused"]);
    stage.steer("a", Action::Resume).await;
    stage.claim_only("a").await;
}

pub async fn a_clock_set_back_neither_doubles_nor_unfires(stage: Stage) {
    let held = stage.leased("held").await;
    stage.sleeping("slept", 1_000).await;
    stage.advance_ms(1_000);
    let slept = stage.claim_only("slept").await;
    let an_hour_ago = stage.in_ms(-3_600_000);
    stage.clock.set_time(an_hour_ago);
    assert!(stage.claim(ALL).await.is_empty(), "both have a holder");
    assert_eq!(stage.committed(boundary(held)).await, After::Continue);
    assert_eq!(stage.committed(complete(slept)).await, After::Ended);
    assert_eq!(stage.status("slept").await, InstanceStatus::Complete);
}

pub async fn after_the_clock_was_set_back_new_work_starts_and_waits_end(stage: Stage) {
    stage.hibernating("waiting", 60_000).await;
    stage.with_status("paused", InstanceStatus::Paused).await;
    let an_hour_ago = stage.in_ms(-3_600_000);
    stage.clock.set_time(an_hour_ago);
    stage.create("new").await;
    stage.send("waiting", "approved").await;
    stage.steer("paused", Action::Resume).await;
    let mut claimed = stage.claim_ids(ALL).await;
    claimed.sort();
    assert_eq!(claimed, ["new", "paused", "waiting"]);
}

pub async fn a_clock_set_forward_fires_timers_and_loses_nothing(stage: Stage) {
    let key = stage.leased("a").await;
    stage.sleeping("b", 60_000).await;
    let tomorrow = stage.in_ms(86_400_000);
    stage.clock.set_time(tomorrow);
    let renewed = stage.renew(&[key]).await;
    assert_eq!(renewed.len(), 1, "its lease ran out, but nobody took it");
    stage.claim_only("b").await;
    let boundary = Boundary { steps: vec![stage.completed_step("charge", 0)], ..boundary(key) };
    assert_eq!(stage.committed(boundary).await, After::Continue);
}
