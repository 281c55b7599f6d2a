//! Creates and events inside a boundary: they happen exactly if the boundary commits.

use piton::store::{Action, Boundary, Mutation, NewEvent, RowState, StoreError, WaitLook};
use piton_core::boundary::After;
use piton_core::record::RunKey;
use piton_core::{Code, InstanceStatus, LogLevel};

use super::rows::*;
use super::stage::*;

fn create_child(name: &str) -> Mutation {
    Mutation::Create { workflow: checkout(), instance: new_instance(name) }
}

fn send(receiver: &str) -> Mutation {
    Mutation::SendEvent(event(receiver, "approved"))
}

fn mutating(key: RunKey, mutations: Vec<Mutation>) -> Boundary {
    Boundary { mutations, ..boundary(key) }
}

pub async fn a_child_is_created_with_the_step_that_creates_it(stage: Stage) {
    let key = stage.leased("parent").await;
    stage.advance_ms(5);
    let boundary = Boundary {
        steps: vec![stage.completed_step("start child", 0)],
        ..mutating(key, vec![create_child("child")])
    };
    assert_eq!(stage.committed(boundary).await, After::Continue);
    let child = stage.view("child").await.record;
    assert_eq!(child.status, InstanceStatus::Active);
    assert_eq!((child.created_at, child.started_at), (stage.now(), None));
    assert_eq!(child.params, new_instance("child").params);
    stage.claim_only("child").await;
}

pub async fn an_event_is_sent_with_the_step_that_sends_it(stage: Stage) {
    stage.hibernating("receiver", 60_000).await;
    let key = stage.leased("sender").await;
    stage.commit(mutating(key, vec![send("receiver")])).await;
    assert_eq!(stage.events("receiver").await.len(), 1);
    stage.claim_only("receiver").await;
}

pub async fn mutations_run_in_their_order(stage: Stage) {
    let key = stage.leased("parent").await;
    let mutations = vec![create_child("child"), send("child"), send("child")];
    stage.commit(mutating(key, mutations)).await;
    assert_eq!(stage.events("child").await.len(), 2);
    let key = stage.leased_again("child").await;
    let reversed = vec![send("grandchild"), create_child("grandchild")];
    let answer = stage.store.commit(mutating(key, reversed)).await;
    assert_eq!(mutation_code(answer), Code::InstanceNotFound);
}

impl Stage {
    async fn leased_again(&self, name: &str) -> RunKey {
        self.claim_only(name).await
    }

    /// Expects that a boundary with a bad mutation leaves no trace, and that the runner still holds the run.
    async fn assert_rolls_back(&self, key: RunKey, bad: Mutation, code: Code) {
        let before = (self.sight("a").await, self.sight("bystander").await);
        let boundary = Boundary {
            steps: vec![self.completed_step("charge", 0)],
            waits: vec![self.wait("approval", 1, "approved", 60_000)],
            logs: vec![self.log_line(LogLevel::Info, "user", "mine")],
            mutations: vec![create_child("child"), send("bystander"), send("a"), bad],
            ..complete(key)
        };
        let answer = self.store.commit(boundary).await;
        assert_eq!(mutation_code(answer), code);
        let after = (self.sight("a").await, self.sight("bystander").await);
        assert_eq!(after, before, "{code}");
        assert!(!self.exists("child").await, "{code}");
        assert!(self.claim(ALL).await.is_empty(), "{code}");
    }
}

fn mutation_code<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> Code {
    match answer {
        Err(StoreError::Mutation(error)) => error.code,
        other => panic!("expected a failed mutation, got {other:?}"),
    }
}

pub async fn a_refused_mutation_rolls_everything_back(stage: Stage) {
    stage.with_status("ended", InstanceStatus::Complete).await;
    stage.hibernating("bystander", 60_000).await;
    let key = stage.leased("a").await;
    stage.send("a", "approved").await;
    for (bad, code) in [
        (create_child("ended"), Code::InstanceIdAlreadyExists),
        (create_child("child"), Code::InstanceIdAlreadyExists),
        (send("nobody"), Code::InstanceNotFound),
        (send("ended"), Code::InstanceTerminal),
    ] {
        stage.assert_rolls_back(key, bad, code).await;
    }
    let good = Boundary {
        steps: vec![stage.completed_step("charge", 0)],
        ..mutating(key, vec![create_child("child"), send("bystander")])
    };
    assert_eq!(stage.committed(good).await, After::Continue);
    let mut claimed = stage.claim_ids(ALL).await;
    claimed.sort();
    assert_eq!(claimed, ["bystander", "child"]);
}

pub async fn a_refused_boundary_keeps_no_run_from_being_claimed(stage: Stage) {
    let key = stage.leased("a").await;
    for n in 0..20 {
        let (receiver, bystander) = (format!("receiver-{n}"), format!("bystander-{n}"));
        stage.create(&receiver).await;
        stage.create(&bystander).await;
        let refused = mutating(key, vec![send(&receiver), create_child("a")]);
        let answer = stage.store.commit(refused).await;
        assert!(matches!(answer, Err(StoreError::Mutation(_))), "{answer:?}");
        assert_eq!(stage.claim_ids(ALL).await, [receiver, bystander]);
    }
}

pub async fn a_wait_beside_a_transaction_is_registered_and_settled_by_the_next_boundary(
    stage: Stage,
) {
    let key = stage.leased("a").await;
    let wait = stage.wait("approval", 0, "approved", 60_000);
    let next = suspend(stage.in_ms(60_000));
    let beside = Boundary { waits: vec![wait.clone()], next, ..mutating(key, vec![send("a")]) };
    let committed = stage.commit(beside).await;
    // The transaction's result comes first; the run must not hibernate over an event that is there.
    assert_eq!((committed.after, committed.settled.len()), (After::Continue, 0));
    let again = WaitLook { row: RowState::Stored, ..wait };
    let committed = stage.commit(Boundary { waits: vec![again], ..boundary(key) }).await;
    assert_eq!(committed.settled.len(), 1);
}

pub async fn the_last_boundary_of_a_run_may_mutate(stage: Stage) {
    let key = stage.leased("a").await;
    let boundary = Boundary { mutations: vec![create_child("child"), send("a")], ..complete(key) };
    assert_eq!(stage.committed(boundary).await, After::Ended);
    assert_eq!(stage.events("a").await.len(), 1);
    stage.claim_only("child").await;
}

pub async fn a_repeated_event_in_a_boundary_is_stored_once(stage: Stage) {
    stage.create("receiver").await;
    stage.steer("receiver", Action::Pause).await;
    let key = stage.leased("sender").await;
    let keyed = || {
        Mutation::SendEvent(NewEvent {
            idempotency_key: Some("k1".into()),
            ..event("receiver", "approved")
        })
    };
    stage.commit(mutating(key, vec![keyed(), keyed()])).await;
    stage.commit(mutating(key, vec![keyed()])).await;
    assert_eq!(stage.events("receiver").await.len(), 1);
    stage.steer("receiver", Action::Terminate).await;
    stage.commit(mutating(key, vec![keyed()])).await;
}

pub async fn a_fenced_boundary_mutates_nothing(stage: Stage) {
    let key = stage.leased("a").await;
    stage.steer("a", Action::Terminate).await;
    let answer = stage.store.commit(mutating(key, vec![create_child("child")]));
    assert_fenced(answer.await, "terminated");
    let also_bad = mutating(key, vec![create_child("a")]);
    assert_fenced(stage.store.commit(also_bad).await, "the fence comes first");
    assert!(!stage.exists("child").await);
}
