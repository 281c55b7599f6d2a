//! Hooks: stored with what triggers them, taken by one at a time, settled by whoever holds them.

use std::sync::Arc;

use piton::store::{
    Action, Boundary, EngineHooks, Existing, Hint, HookQuery, HookStore, HookWork, HooksWorked,
    Mutation, StoreError,
};
use piton_core::hook::{
    EngineHook, HOOK_LOST, HookOutcome, HookRecord, LOST_CLAIMS_MAX, NewHook, SUSPECT_CLAIMS,
    is_suspect,
};
use piton_core::record::RecordedError;
use piton_core::{Code, HookName, HookNamespace, HookStatus, Retries, RetryLimit, Span, Timestamp};

use super::hints::Listener;
use super::rows::*;
use super::stage::*;

fn app() -> HookNamespace {
    HookNamespace::from_stored("app")
}

/// Ids sort in the order of creation, as ULIDs do.
pub(super) fn hook(number: u32) -> NewHook {
    NewHook {
        id: format!("hook_{number:026}").into(),
        namespace: app(),
        name: HookName::from_stored("user.created"),
        payload: json("{\"email\":\"ada\"}"),
        process_at: None,
        retries: Retries::exponential(2, "10 s").cap("15 s"),
    }
}

fn failed(message: &str) -> HookOutcome {
    HookOutcome::Failed { error: RecordedError::new("Error", message), retryable: true }
}

impl Stage {
    fn hooks(&self) -> &dyn HookStore {
        self.store.hooks().expect("it keeps hooks")
    }

    async fn trigger(&self, hooks: impl IntoIterator<Item = NewHook>) {
        self.hooks().trigger_hooks(hooks.into_iter().collect()).await.expect("triggered");
    }

    async fn hook(&self, number: u32) -> HookRecord {
        let found = self.hooks().hook(hook(number).id).await.expect("readable");
        found.expect("there is such a hook")
    }

    async fn has_hook(&self, number: u32) -> bool {
        self.hooks().hook(hook(number).id).await.expect("readable").is_some()
    }

    fn hook_work(&self, owner: &str) -> HookWork {
        HookWork::new(owner.into(), app(), LEASE)
    }

    async fn work(&self, work: HookWork) -> HooksWorked {
        self.hooks().work_hooks(work).await.expect("worked")
    }

    async fn take(&self, owner: &str, wanted: usize) -> Vec<HookRecord> {
        self.work(HookWork { wanted, suspect: true, ..self.hook_work(owner) }).await.taken
    }

    async fn settle(&self, owner: &str, hook: &HookRecord, outcome: HookOutcome) -> HooksWorked {
        let settled = vec![(hook.clone(), outcome)];
        self.work(HookWork { settled: settled.into(), ..self.hook_work(owner) }).await
    }

    async fn next_hook(&self, namespaces: &[&str]) -> Option<Timestamp> {
        let namespaces = namespaces.iter().map(|name| HookNamespace::from_stored(*name)).collect();
        let (now, next) = self.hooks().next_hook_at(namespaces).await.expect("readable");
        assert_eq!(now, self.now());
        next
    }

    async fn list_hooks(&self, query: HookQuery) -> Vec<HookRecord> {
        self.hooks().hooks(query).await.expect("readable")
    }

    async fn names_told(&self) -> Vec<String> {
        let all = self.list_hooks(HookQuery { limit: 100, ..HookQuery::default() }).await;
        let mut names: Vec<_> = all
            .iter()
            .map(|hook| {
                let payload = hook.payload.as_str();
                let value: serde_json::Value = serde_json::from_str(payload).expect("valid");
                let reason = value["reason"].as_str().unwrap_or_default();
                format!("{} {} {} {reason}", hook.name, value["instanceId"], value["runNumber"])
            })
            .collect();
        names.sort();
        names
    }
}

pub async fn every_field_of_a_hook_survives(stage: Stage) {
    let retries = Retries::linear(RetryLimit::Infinite, "3 s");
    let later = NewHook { process_at: Some(stage.in_ms(5_000)), retries, ..hook(2) };
    let past = NewHook { process_at: Some(stage.in_ms(-5_000)), ..hook(3) };
    stage.trigger([hook(1), later.clone(), past.clone()]).await;
    for new in [hook(1), later, past] {
        let found = stage.hooks().hook(Arc::clone(&new.id)).await.expect("readable");
        assert_eq!(found, Some(new.into_record(stage.now())));
    }
    assert!(!stage.has_hook(9).await);
}

pub async fn hooks_come_and_go_with_their_boundary(stage: Stage) {
    let key = stage.leased("a").await;
    let boundary =
        |number| Boundary { mutations: vec![Mutation::TriggerHook(hook(number))], ..boundary(key) };
    stage.commit(boundary(1)).await;
    assert!(stage.has_hook(1).await);
    let refused = Boundary {
        mutations: vec![
            Mutation::TriggerHook(hook(2)),
            Mutation::SendEvent(event("nobody", "approved")),
        ],
        ..super::rows::boundary(key)
    };
    let told = stage.store.commit(refused).await;
    assert!(matches!(told, Err(StoreError::Mutation(_))), "{told:?}");
    assert!(!stage.has_hook(2).await, "rolled back");
    stage.steer("a", Action::Terminate).await;
    assert_fenced(stage.store.commit(boundary(3)).await, "terminated");
    assert!(!stage.has_hook(3).await, "fenced");
}

pub async fn hooks_come_with_the_create_and_the_event_they_were_given_to(stage: Stage) {
    let request = |number| piton::store::CreateRequest {
        hooks: vec![hook(number)],
        ..create_request(&["a"], Existing::Refuse)
    };
    stage.store.create(request(1)).await.expect("created");
    assert_eq!(refusal(stage.store.create(request(2)).await), Code::InstanceIdAlreadyExists);
    let keyed = |number| piton::store::NewEvent {
        idempotency_key: Some("k".into()),
        hooks: vec![hook(number)],
        ..event("a", "approved")
    };
    stage.try_send(keyed(3)).await.expect("sent");
    stage.try_send(keyed(4)).await.expect("repeated");
    let missing = piton::store::NewEvent { hooks: vec![hook(5)], ..event("b", "approved") };
    assert_eq!(refusal(stage.try_send(missing).await), Code::InstanceNotFound);
    let mut there = Vec::new();
    for number in 1..=5 {
        there.push(stage.has_hook(number).await);
    }
    assert_eq!(there, [true, false, true, false, false]);
}

pub async fn due_hooks_are_taken_oldest_first_and_not_before_their_time(stage: Stage) {
    let later = |number, ms| NewHook { process_at: Some(stage.in_ms(ms)), ..hook(number) };
    stage.trigger([later(1, 2_000), later(2, 1_000), hook(3)]).await;
    stage.trigger([NewHook { namespace: HookNamespace::from_stored("other"), ..hook(4) }]).await;
    let ids = |hooks: Vec<HookRecord>| hooks.into_iter().map(|hook| hook.id).collect::<Vec<_>>();
    assert_eq!(ids(stage.take("me", 10).await), [hook(3).id]);
    assert_eq!(stage.next_hook(&["app"]).await, Some(stage.in_ms(1_000)));
    stage.advance_ms(999);
    assert!(stage.take("me", 10).await.is_empty());
    stage.advance_ms(1_001);
    assert_eq!(ids(stage.take("me", 1).await), [hook(2).id]);
    assert_eq!(ids(stage.take("me", 10).await), [hook(1).id]);
    assert_eq!(stage.next_hook(&["other"]).await, Some(stage.in_ms(-2_000)));
    assert_eq!(stage.next_hook(&["none"]).await, None);
}

pub async fn a_taken_hook_belongs_to_one_until_its_lease_ends(stage: Stage) {
    stage.trigger([hook(1)]).await;
    let first = stage.take("one", 10).await.remove(0);
    assert_eq!((first.status, first.attempts, first.epoch), (HookStatus::Processing, 1, 1));
    assert_eq!(first.due_at, Some(stage.now().plus(LEASE)));
    assert_eq!(stage.hook(1).await, first);
    assert_eq!(stage.next_hook(&["app"]).await, first.due_at, "a stuck one counts");
    stage.advance_ms(LEASE.as_millis() - 1);
    assert!(stage.take("two", 10).await.is_empty());
    stage.advance_ms(1);
    let second = stage.take("two", 10).await.remove(0);
    assert_eq!((second.attempts, second.epoch), (2, 2), "what was lost counts");
    let lost = stage.settle("one", &first, HookOutcome::Done).await.lost;
    assert_eq!(lost, [first.key()], "fenced");
    assert_eq!(stage.hook(1).await, second, "and nothing was written");
    assert!(stage.settle("two", &second, HookOutcome::Done).await.lost.is_empty());
    assert_eq!(stage.hook(1).await.status, HookStatus::Completed);
    let late = stage.settle("two", &second, failed("late")).await.lost;
    assert_eq!(late, [second.key()], "settled once");
}

pub async fn a_renewed_lease_lasts_and_a_lost_one_cannot_be_renewed(stage: Stage) {
    stage.trigger([hook(1)]).await;
    let taken = stage.take("one", 10).await.remove(0);
    for _ in 0..3 {
        stage.advance_ms(LEASE.as_millis() - 1);
        let renewed = vec![taken.key()];
        let worked = stage.work(HookWork { renewed, ..stage.hook_work("one") }).await;
        assert!(worked.lost.is_empty());
        assert!(stage.take("two", 10).await.is_empty());
    }
    stage.advance_ms(LEASE.as_millis());
    assert_eq!(stage.take("two", 10).await.len(), 1);
    let renewed = vec![taken.key()];
    let worked = stage.work(HookWork { renewed, ..stage.hook_work("one") }).await;
    assert_eq!(worked.lost, [taken.key()]);
}

pub async fn failures_are_retried_with_their_delays_and_then_kept(stage: Stage) {
    stage.trigger([hook(1)]).await;
    for (attempt, delay) in [(1, Some(10_000)), (2, Some(15_000)), (3, None)] {
        let taken = stage.take("me", 10).await.remove(0);
        assert_eq!(taken.attempts, attempt);
        stage.settle("me", &taken, failed(&format!("attempt {attempt}"))).await;
        let stored = stage.hook(1).await;
        assert_eq!(stored.due_at, delay.map(|ms| stage.in_ms(ms)));
        let error = stored.error.expect("the last error is kept");
        assert_eq!(error.message, format!("attempt {attempt}"));
        stage.advance_ms(delay.unwrap_or(0));
    }
    assert_eq!(stage.hook(1).await.status, HookStatus::Failed);
    assert!(stage.take("me", 10).await.is_empty());
    assert_eq!(stage.next_hook(&["app"]).await, None);
}

pub async fn a_hook_that_is_handed_back_is_due_at_once_and_keeps_its_policy(stage: Stage) {
    stage.trigger([hook(1)]).await;
    let first = stage.take("me", 1).await.remove(0);
    stage.settle("me", &first, failed("no luck")).await;
    stage.advance_ms(10_000);
    let second = stage.take("me", 1).await.remove(0);
    stage.advance_ms(500);
    assert!(stage.settle("me", &second, HookOutcome::Released).await.lost.is_empty());
    let back = stage.hook(1).await;
    assert_eq!((back.status, back.due_at), (HookStatus::Pending, Some(stage.now())));
    assert_eq!((back.attempts, back.failures, back.claims), (2, 1, 0));
    assert_eq!(back.error, Some(RecordedError::new("Error", "no luck")));
    assert_eq!(stage.settle("me", &second, HookOutcome::Done).await.lost, [second.key()]);
    assert_eq!(stage.take("other", 1).await.remove(0).attempts, 3);
}

pub async fn a_suspect_that_is_handed_back_stays_a_suspect(stage: Stage) {
    stage.trigger([hook(1)]).await;
    for _ in 0..SUSPECT_CLAIMS {
        stage.take("me", 1).await;
        stage.advance_ms(LEASE.as_millis());
    }
    stage.trigger([hook(2)]).await;
    let without = HookWork { wanted: 10, ..stage.hook_work("other") };
    for claims in SUSPECT_CLAIMS + 1..=LOST_CLAIMS_MAX {
        let suspect = stage.take("me", 1).await.remove(0);
        assert_eq!(suspect.claims, claims);
        assert!(stage.settle("me", &suspect, HookOutcome::Released).await.lost.is_empty());
        let back = stage.hook(1).await;
        assert_eq!((back.claims, back.due_at), (claims - 1, Some(stage.now())));
        assert_eq!((back.failures, back.lease_owner), (0, None));
        assert_eq!(stage.next_hook(&["app"]).await, Some(stage.now()), "it is due at once");
        let late = stage.settle("me", &suspect, HookOutcome::Done).await;
        assert_eq!(late.lost, [suspect.key()], "nobody has it in hand");
        let renewed = vec![suspect.key()];
        let late = stage.work(HookWork { renewed, ..stage.hook_work("me") }).await;
        assert_eq!(late.lost, [suspect.key()]);
        let beside = stage.work(without.clone()).await.taken;
        assert!(beside.iter().all(|taken| taken.id == hook(2).id), "it is not taken beside others");
        stage.take("me", 1).await;
        stage.advance_ms(LEASE.as_millis());
    }
    stage.take("me", 1).await;
    let given_up = stage.hook(1).await;
    assert_eq!(given_up.error.expect("says why").name, HOOK_LOST);
}

pub async fn a_hook_that_keeps_killing_its_process_is_given_up(stage: Stage) {
    let forever = Retries::constant(RetryLimit::Infinite, "1 s");
    stage.trigger([NewHook { retries: forever, ..hook(1) }]).await;
    for claims in 1..=LOST_CLAIMS_MAX {
        let taken = stage.take("me", 1).await.remove(0);
        assert_eq!((taken.attempts, taken.claims, taken.failures), (claims, claims, 0));
        assert_eq!(stage.hook(1).await, taken);
        assert_eq!(stage.next_hook(&["app"]).await, taken.due_at, "a suspect counts");
        stage.advance_ms(LEASE.as_millis());
    }
    stage.trigger([hook(2)]).await;
    let taken = stage.take("me", 1).await;
    assert_eq!(taken.len(), 1, "it makes room for the next");
    assert_eq!(taken[0].id, hook(2).id);
    let given_up = stage.hook(1).await;
    assert_eq!((given_up.status, given_up.due_at), (HookStatus::Failed, None));
    assert_eq!(given_up.error.expect("says why").name, HOOK_LOST);
    let again = stage.hooks().retry_hook(hook(1).id).await.expect("retried");
    assert_eq!((again.attempts, again.claims), (0, 0), "it starts anew");
}

pub async fn of_hooks_that_may_have_killed_their_process_one_is_taken_at_a_time(stage: Stage) {
    stage.trigger((1..=4).map(hook)).await;
    for _ in 0..SUSPECT_CLAIMS {
        assert_eq!(stage.take("me", 10).await.len(), 4, "an ordinary crash delays nobody");
        stage.advance_ms(LEASE.as_millis());
    }
    stage.trigger((5..=6).map(hook)).await;
    let without = HookWork { wanted: 10, ..stage.hook_work("me") };
    let ids = |hooks: &[HookRecord]| hooks.iter().map(|hook| hook.id.clone()).collect::<Vec<_>>();
    let beside = stage.work(without.clone()).await.taken;
    assert_eq!(ids(&beside), [hook(5).id, hook(6).id], "nobody waits for suspects");
    for number in 1..=4 {
        let taken = stage.take("me", 10).await;
        assert_eq!(ids(&taken), [hook(number).id], "one at a time");
        assert!(is_suspect(&taken[0]));
        assert!(stage.work(without.clone()).await.taken.is_empty());
        let outcome = if number == 4 { failed("no luck") } else { HookOutcome::Done };
        stage.settle("me", &taken[0], outcome).await;
    }
    stage.advance_ms(10_000);
    let cleared = stage.work(without).await.taken;
    assert_eq!(ids(&cleared), [hook(4).id], "its failure was an outcome");
    assert_eq!(cleared[0].claims, 1);
}

pub async fn what_was_lost_costs_no_attempt_of_the_policy(stage: Stage) {
    stage.trigger([NewHook { retries: Retries::linear(1, "10 s"), ..hook(1) }]).await;
    for _ in 1..LOST_CLAIMS_MAX {
        stage.take("me", 1).await;
        stage.advance_ms(LEASE.as_millis());
    }
    let taken = stage.take("me", 1).await.remove(0);
    stage.settle("me", &taken, failed("once")).await;
    let waits = stage.hook(1).await;
    assert_eq!((waits.status, waits.due_at), (HookStatus::Pending, Some(stage.in_ms(10_000))));
    assert_eq!((waits.attempts, waits.failures, waits.claims), (LOST_CLAIMS_MAX, 1, 0));
    stage.advance_ms(10_000);
    let taken = stage.take("me", 1).await.remove(0);
    stage.settle("me", &taken, failed("twice")).await;
    assert_eq!(stage.hook(1).await.status, HookStatus::Failed);
}

pub async fn a_retry_by_hand_makes_a_failed_hook_due_again(stage: Stage) {
    stage.trigger([NewHook { retries: Retries::none(), ..hook(1) }]).await;
    let taken = stage.take("me", 1).await.remove(0);
    assert_eq!(refusal(stage.hooks().retry_hook(hook(1).id).await), Code::HookNotRetriable);
    stage.settle("me", &taken, failed("no luck")).await;
    stage.advance_ms(5);
    let retried = stage.hooks().retry_hook(hook(1).id).await.expect("retried");
    assert_eq!((retried.status, retried.attempts), (HookStatus::Pending, 0));
    assert_eq!((retried.due_at, &retried), (Some(stage.now()), &stage.hook(1).await));
    let again = stage.take("me", 1).await.remove(0);
    assert_eq!((again.attempts, again.epoch), (1, 2), "no old claim is believed");
    assert_eq!(refusal(stage.hooks().retry_hook(hook(9).id).await), Code::HookNotFound);
}

pub async fn work_is_settled_renewed_and_taken_in_one_go(stage: Stage) {
    stage.trigger((1..=4).map(hook)).await;
    let taken = stage.take("me", 2).await;
    stage.advance_ms(1_000);
    let worked = stage
        .work(HookWork {
            settled: [(taken[0].clone(), HookOutcome::Done)].into(),
            renewed: vec![taken[1].key()],
            wanted: 1,
            forget_completed: true,
            ..stage.hook_work("me")
        })
        .await;
    assert_eq!(worked.taken.len(), 1);
    assert!(!stage.has_hook(1).await, "completed and not kept");
    assert_eq!(stage.hook(2).await.due_at, Some(stage.now().plus(LEASE)));
    assert_eq!(stage.hook(4).await.status, HookStatus::Pending);
}

pub async fn old_completed_hooks_are_removed_and_no_others(stage: Stage) {
    stage.trigger((1..=3).map(hook)).await;
    let taken = stage.take("me", 2).await;
    stage.settle("me", &taken[0], HookOutcome::Done).await;
    stage.settle("me", &taken[1], failed("no luck")).await;
    let prune = async |age| {
        let prune = Some(Span::from_millis(age));
        stage.work(HookWork { prune, ..stage.hook_work("me") }).await.pruned
    };
    stage.advance_ms(9);
    assert_eq!(prune(10).await, 0);
    stage.advance_ms(1);
    assert_eq!(prune(10).await, 1);
    assert!(!stage.has_hook(1).await && stage.has_hook(2).await && stage.has_hook(3).await);
}

pub async fn simultaneous_processors_share_the_hooks(stage: Stage) {
    stage.trigger((0..60).map(hook)).await;
    let takers = (0..6).map(|owner| {
        let store = Arc::clone(&stage.store);
        let work = HookWork { wanted: 7, ..stage.hook_work(&format!("p{owner}")) };
        async move {
            let hooks = store.hooks().expect("it keeps hooks");
            let mut mine = Vec::new();
            loop {
                let taken = hooks.work_hooks(work.clone()).await.expect("worked").taken;
                if taken.is_empty() {
                    return mine;
                }
                mine.extend(taken.into_iter().map(|hook| hook.id));
            }
        }
    });
    let mut all: Vec<_> = at_once(takers).await.into_iter().flatten().collect();
    // A processor that finds everything locked by others comes back empty-handed, and looks again later.
    all.extend(stage.take("last", 100).await.into_iter().map(|hook| hook.id));
    all.sort();
    let every: Vec<_> = (0..60).map(|number| hook(number).id).collect();
    assert_eq!(all, every);
}

/// What is triggered and taken in one transaction is stored as if it had been two.
pub async fn hooks_are_taken_whole_while_others_are_triggered(stage: Stage) {
    let hour = stage.in_ms(3_600_000);
    let new = |number: u32| match number % 4 {
        0 => NewHook { process_at: Some(hour), ..hook(number) },
        1 => NewHook { namespace: HookNamespace::from_stored("mail"), ..hook(number) },
        _ => hook(number),
    };
    let mut taken = Vec::new();
    for round in 0..10 {
        let calls = (0..40).map(|call| {
            let store = Arc::clone(&stage.store);
            let work = HookWork { wanted: 9, ..stage.hook_work(&format!("p{call}")) };
            let hooks = (0..3).map(|number| new(round * 120 + call * 3 + number)).collect();
            async move {
                let store = store.hooks().expect("it keeps hooks");
                if call % 8 == 5 {
                    return store.work_hooks(work).await.expect("worked").taken;
                }
                store.trigger_hooks(hooks).await.expect("triggered");
                Vec::new()
            }
        });
        taken.extend(at_once(calls).await.into_iter().flatten());
    }
    let rest = stage.take("last", 1_000).await;
    assert!(!taken.is_empty(), "somebody was in time");
    taken.extend(rest);
    taken.sort_by(|one: &HookRecord, other| one.id.cmp(&other.id));
    let triggered = (0..1_200).filter(|number| number / 3 % 8 != 5);
    let (due, others): (Vec<u32>, Vec<u32>) = triggered.partition(|number| number % 4 > 1);
    let ids: Vec<_> = taken.iter().map(|hook| Arc::clone(&hook.id)).collect();
    assert_eq!(ids, due.iter().map(|number| hook(*number).id).collect::<Vec<_>>());
    for claimed in &taken {
        let stored = stage.hooks().hook(Arc::clone(&claimed.id)).await.expect("readable");
        assert_eq!(stored.as_ref(), Some(claimed));
    }
    for number in others {
        assert_eq!(stage.hook(number).await, new(number).into_record(stage.now()));
    }
}

pub async fn hooks_are_listed_newest_first_and_by_what_was_asked_for(stage: Stage) {
    stage.trigger((1..=5).map(hook)).await;
    let other = HookNamespace::from_stored("other");
    let name = HookName::from_stored("order.paid");
    stage.trigger([NewHook { namespace: other.clone(), name: name.clone(), ..hook(6) }]).await;
    let taken = stage.take("me", 2).await;
    stage.settle("me", &taken[0], HookOutcome::Done).await;
    let once = HookRecord { retries: Retries::none(), ..taken[1].clone() };
    stage.settle("me", &once, failed("no luck")).await;
    let all = HookQuery { limit: 10, ..HookQuery::default() };
    let cases = [
        (all.clone(), vec![6, 5, 4, 3, 2, 1]),
        (HookQuery { limit: 2, ..all.clone() }, vec![6, 5]),
        (HookQuery { behind: Some(hook(3).id), ..all.clone() }, vec![2, 1]),
        (HookQuery { namespace: Some(other), ..all.clone() }, vec![6]),
        (HookQuery { name: Some(name), ..all.clone() }, vec![6]),
        (HookQuery { status: Some(HookStatus::Failed), ..all.clone() }, vec![2]),
        (HookQuery { status: Some(HookStatus::Completed), ..all.clone() }, vec![1]),
        (HookQuery { status: Some(HookStatus::Pending), ..all }, vec![6, 5, 4, 3]),
    ];
    for (query, numbers) in cases {
        let told = format!("{query:?}");
        let ids: Vec<_> = stage.list_hooks(query).await.into_iter().map(|hook| hook.id).collect();
        let expected: Vec<_> = numbers.into_iter().map(|number| hook(number).id).collect();
        assert_eq!(ids, expected, "{told}");
    }
}

pub async fn hooks_that_become_due_are_told(stage: Stage) {
    let listener = Listener::on(&stage);
    let due = |ms| Hint::HookDue { namespace: app(), at: stage.in_ms(ms) };
    stage.trigger([NewHook { process_at: Some(stage.in_ms(7)), ..hook(1) }]).await;
    listener.expect(due(7)).await;
    let key = stage.leased("a").await;
    let mutations = vec![Mutation::TriggerHook(hook(2))];
    stage.commit(Boundary { mutations, ..boundary(key) }).await;
    listener.expect(due(0)).await;
    let taken = stage.take("me", 1).await.remove(0);
    stage.settle("me", &taken, failed("no luck")).await;
    listener.expect(due(10_000)).await;
    stage.hooks().retry_hook(Arc::clone(&taken.id)).await.expect("retried");
    listener.expect(due(0)).await;
}

pub async fn what_the_engine_tells_is_stored_once_and_with_its_cause(stage: Stage) {
    stage.create("before").await;
    stage.steer("before", Action::Terminate).await;
    let mut wanted = EngineHooks::default();
    for hook in EngineHook::ALL {
        wanted.add(hook, app(), Retries::default());
    }
    stage.hooks().tell_by_hooks(wanted);
    let key = stage.leased("done").await;
    stage.commit(complete(key)).await;
    let key = stage.leased("bad").await;
    stage.commit(fail(key)).await;
    stage.hibernating("waits", 60_000).await;
    stage.send("waits", "approved").await;
    stage.send("waits", "approved").await;
    stage.create("ended").await;
    stage.steer("ended", Action::Terminate).await;
    stage.steer("ended", Action::Restart).await;
    stage.create("paused").await;
    stage.steer("paused", Action::Pause).await;
    stage.steer("paused", Action::Resume).await;
    stage.steer("paused", Action::Resume).await;
    let expected = [
        "on_instance_completed \"done\" 0 ",
        "on_instance_errored \"bad\" 0 ",
        "on_instance_restarted \"ended\" 1 ",
        "on_instance_terminated \"ended\" 0 ",
        "on_workflow_enqueued \"bad\" 0 create",
        "on_workflow_enqueued \"done\" 0 create",
        "on_workflow_enqueued \"ended\" 0 create",
        "on_workflow_enqueued \"ended\" 1 create",
        "on_workflow_enqueued \"paused\" 0 create",
        "on_workflow_enqueued \"paused\" 0 resume",
        "on_workflow_enqueued \"waits\" 0 create",
        "on_workflow_enqueued \"waits\" 0 event",
        "on_workflow_enqueued \"waits\" 0 wake",
    ];
    assert_eq!(stage.names_told().await, expected);
}
