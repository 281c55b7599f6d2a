//! Hints: told after the commit. No other case listens to them, which is how we know that nobody needs them.

use std::sync::{Arc, Mutex, Weak};

use piton::store::{Action, Boundary, Hint, Mutation, Observer};
use piton_core::InstanceStatus;
use piton_core::record::InstanceKey;

use super::rows::*;
use super::stage::*;

/// Looks for a hint that may come from another thread after this many chances to run.
const PATIENCE: usize = 100_000;

/// Remembers what it is told.
#[derive(Default)]
pub(super) struct Listener(Mutex<Vec<Hint>>);

impl Observer for Listener {
    fn hint(&self, hint: Hint) {
        self.0.lock().expect("no listener panics").push(hint);
    }
}

impl Listener {
    pub(super) fn on(stage: &Stage) -> Arc<Self> {
        let listener = Arc::new(Self::default());
        let weak: Weak<Self> = Arc::downgrade(&listener);
        stage.store.observe(weak);
        listener
    }

    /// Waits for the hint, and forgets everything that was told so far.
    pub(super) async fn expect(&self, hint: Hint) {
        for _ in 0..PATIENCE {
            if self.was_told(&hint) {
                return self.forget();
            }
            tokio::task::yield_now().await;
        }
        panic!("expected {hint:?}, was told {:?}", self.0);
    }

    fn was_told(&self, hint: &Hint) -> bool {
        let told = self.0.lock().expect("no listener panics");
        told.contains(hint)
    }

    fn forget(&self) {
        self.0.lock().expect("no listener panics").clear();
    }
}

impl Stage {
    fn listen(&self) -> Arc<Listener> {
        Listener::on(self)
    }

    fn due_in(&self, ms: i64) -> Hint {
        Hint::Due { workflow: checkout(), at: self.in_ms(ms) }
    }

    async fn key(&self, name: &str) -> InstanceKey {
        self.run_key(name).await.instance
    }
}

pub async fn work_that_becomes_due_is_told(stage: Stage) {
    let listener = stage.listen();
    stage.create("a").await;
    listener.expect(stage.due_in(0)).await;
    let key = stage.claim_only("a").await;
    stage.advance_ms(1);
    stage.store.release(vec![key]).await.expect("released");
    listener.expect(stage.due_in(-1)).await;
    stage.advance_ms(1);
    stage.steer("a", Action::Restart).await;
    listener.expect(stage.due_in(0)).await;
}

pub async fn the_moment_of_a_suspended_run_is_told(stage: Stage) {
    let listener = stage.listen();
    stage.sleeping("a", 60_000).await;
    listener.expect(stage.due_in(60_000)).await;
}

pub async fn a_wake_by_an_event_is_told(stage: Stage) {
    stage.hibernating("a", 60_000).await;
    let listener = stage.listen();
    stage.advance_ms(5);
    stage.send("a", "approved").await;
    listener.expect(stage.due_in(0)).await;
}

pub async fn a_resume_is_told(stage: Stage) {
    stage.with_status("a", InstanceStatus::Paused).await;
    let listener = stage.listen();
    stage.advance_ms(5);
    stage.steer("a", Action::Resume).await;
    listener.expect(stage.due_in(0)).await;
}

pub async fn what_a_boundary_creates_and_wakes_is_told(stage: Stage) {
    stage.hibernating("receiver", 60_000).await;
    let key = stage.leased("a").await;
    let listener = stage.listen();
    stage.advance_ms(5);
    let create = Mutation::Create { workflow: workflow("refund"), instance: new_instance("child") };
    let send = Mutation::SendEvent(event("receiver", "approved"));
    for (mutation, due) in [
        (create, Hint::Due { workflow: workflow("refund"), at: stage.now() }),
        (send, stage.due_in(0)),
    ] {
        let boundary = Boundary { mutations: vec![mutation], ..boundary(key) };
        stage.commit(boundary).await;
        listener.expect(due).await;
    }
}

pub async fn whoever_advances_a_run_is_told_what_happens_to_it(stage: Stage) {
    stage.leased("a").await;
    let touched = Hint::Touched(stage.key("a").await);
    let listener = stage.listen();
    stage.send("a", "approved").await;
    listener.expect(touched.clone()).await;
    for action in [Action::Pause, Action::Resume, Action::Restart] {
        stage.steer("a", action).await;
        listener.expect(touched.clone()).await;
    }
    stage.claim_only("a").await;
    listener.forget();
    stage.steer("a", Action::Terminate).await;
    listener.expect(touched).await;
}

pub async fn the_end_of_a_run_is_told_however_it_ends(stage: Stage) {
    let listener = stage.listen();
    for status in [InstanceStatus::Complete, InstanceStatus::Errored, InstanceStatus::Terminated] {
        let key = stage.with_status(status.as_str(), status).await;
        listener.expect(Hint::Ended(key.instance)).await;
    }
    stage.create("poison").await;
    for _ in 0..=CLAIMS_MAX {
        stage.claim(ALL).await;
        stage.advance_ms(LEASE.as_millis());
    }
    listener.expect(Hint::Ended(stage.key("poison").await)).await;
}

pub async fn every_observer_is_told_until_it_is_dropped(stage: Stage) {
    let (first, second) = (stage.listen(), stage.listen());
    stage.create("a").await;
    first.expect(stage.due_in(0)).await;
    second.expect(stage.due_in(0)).await;
    drop(first);
    stage.create("b").await;
    second.expect(stage.due_in(0)).await;
}
