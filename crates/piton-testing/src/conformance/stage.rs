//! The stage of a case: a store, its clock, and the words a case tells its story in.
//!
//! A helper asserts what every caller expects, so that a case names only what it is about.

use std::any::Any;
use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;

use piton::runtime::Runtime;
use piton::store::{
    Action, Boundary, ClaimAnswer, ClaimedRun, Committed, CreateRequest, Existing, InstanceView,
    Lease, LogFilter, NewEvent, Store, StoreError, WaitLook,
};
use piton_core::boundary::After;
use piton_core::record::{
    EventRecord, InstanceRecord, LogRecord, RunKey, SYSTEM_CATEGORY, StepRecord,
};
use piton_core::{Code, InstanceStatus, Span, Timestamp, WorkflowName};

use super::rows::*;
use crate::VirtualRuntime;

/// A fresh, empty store on a virtual clock: what each case plays on.
pub struct Stage {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<VirtualRuntime>,
    /// Dropped after the store.
    _kept: Option<Box<dyn Any + Send>>,
}

impl Stage {
    /// A stage for a fresh store whose only clock is `clock`.
    pub fn new(store: Arc<dyn Store>, clock: Arc<VirtualRuntime>) -> Self {
        Self { store, clock, _kept: None }
    }

    /// Keeps something the store needs, such as a temporary directory, until the case is over.
    #[must_use]
    pub fn keeping(self, kept: impl Any + Send) -> Self {
        Self { _kept: Some(Box::new(kept)), ..self }
    }
}

/// The code of a refusal.
pub(crate) fn refusal<T: Debug>(answer: Result<T, StoreError>) -> Code {
    match answer {
        Err(StoreError::Refused(refusal)) => refusal.code,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// Expects a runner's write to be fenced.
#[track_caller]
pub(crate) fn assert_fenced<T: Debug>(answer: Result<T, StoreError>, why: &str) {
    match answer {
        Err(StoreError::Fenced) => {}
        other => panic!("expected to be fenced ({why}), got {other:?}"),
    }
}

/// Makes all calls at the same time and waits for every answer.
pub(crate) async fn at_once<F>(calls: impl IntoIterator<Item = F>) -> Vec<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let mut tasks = tokio::task::JoinSet::new();
    for call in calls {
        tasks.spawn(call);
    }
    tasks.join_all().await
}

// ---- clients ----

impl Stage {
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The moment `ms` milliseconds from now.
    pub(crate) fn in_ms(&self, ms: i64) -> Timestamp {
        self.now().plus(Span::from_millis(ms))
    }

    pub(crate) fn advance_ms(&self, ms: i64) {
        self.clock.advance(Span::from_millis(ms));
    }

    pub(crate) fn set_back_ms(&self, ms: i64) {
        self.clock.set_time(self.now().plus(Span::from_millis(-ms)));
    }

    pub(crate) async fn create(&self, name: &str) -> InstanceRecord {
        let request = create_request(&[name], Existing::Refuse);
        let mut created = self.store.create(request).await.expect("created");
        assert_eq!(created.len(), 1);
        created.remove(0).instance
    }

    pub(crate) async fn create_in(&self, workflow_name: &str, ids: &[&str]) {
        let request = CreateRequest {
            workflow: workflow(workflow_name),
            ..create_request(ids, Existing::Refuse)
        };
        self.store.create(request).await.expect("created");
    }

    /// Creates an instance that is leased to its creator at once.
    pub(crate) async fn create_leased(&self, name: &str) -> RunKey {
        let lease = Lease { runner: "creator".into(), span: LEASE };
        let request =
            CreateRequest { lease: Some(lease), ..create_request(&[name], Existing::Refuse) };
        let created = self.store.create(request).await.expect("created");
        RunKey { instance: created[0].instance.key, run: 0, epoch: created[0].epoch }
    }

    pub(crate) async fn send(&self, receiver: &str, event_type: &str) -> EventRecord {
        self.try_send(event(receiver, event_type)).await.expect("stored")
    }

    /// Sends an event; whom it wakes is left to the next claim.
    pub(crate) async fn try_send(&self, event: NewEvent) -> Result<EventRecord, StoreError> {
        let sent = self.store.send_event(event, None).await?;
        assert!(sent.claimed.is_none(), "nobody asked for it");
        Ok(sent.event)
    }

    /// Sends an event whose payload is `payload`.
    pub(crate) async fn send_payload(&self, receiver: &str, event_type: &str, payload: &str) {
        let event = NewEvent { payload: json(payload), ..event(receiver, event_type) };
        self.try_send(event).await.expect("stored");
    }

    pub(crate) async fn try_steer(
        &self,
        name: &str,
        action: Action,
    ) -> Result<InstanceRecord, StoreError> {
        self.store.steer(checkout(), id(name), action).await
    }

    pub(crate) async fn steer(&self, name: &str, action: Action) -> InstanceRecord {
        self.try_steer(name, action).await.expect("allowed")
    }
}

// ---- runners ----

impl Stage {
    pub(crate) async fn claim_answer(&self, wanted: usize) -> ClaimAnswer {
        let request = claim_request("runner", wanted);
        self.store.claim(request).await.expect("claimed")
    }

    pub(crate) async fn claim(&self, wanted: usize) -> Vec<ClaimedRun> {
        self.claim_answer(wanted).await.claimed
    }

    /// Claims and says whose runs it got, in order.
    pub(crate) async fn claim_ids(&self, wanted: usize) -> Vec<String> {
        let claimed = self.claim(wanted).await.into_iter();
        claimed.map(|run| run.id.to_string()).collect()
    }

    /// Claims everything that is due, which must be exactly this instance.
    pub(crate) async fn claim_only(&self, name: &str) -> RunKey {
        let claimed = self.claim(ALL).await;
        let ids: Vec<&str> = claimed.iter().map(|run| run.id.as_str()).collect();
        assert_eq!(ids, [name]);
        claimed[0].run_key()
    }

    pub(crate) async fn next_due_at(&self) -> Option<Timestamp> {
        let workflows = [checkout()].into();
        self.store.next_due_at(workflows).await.expect("read")
    }

    pub(crate) async fn next_claimable_at(&self) -> Option<Timestamp> {
        let workflows = [checkout()].into();
        self.store.next_claimable_at(workflows).await.expect("read")
    }

    /// An instance that was created and claimed.
    pub(crate) async fn leased(&self, name: &str) -> RunKey {
        self.create(name).await;
        self.claim_only(name).await
    }

    pub(crate) async fn commit(&self, boundary: Boundary) -> Committed {
        self.store.commit(boundary).await.expect("committed")
    }

    /// Commits a boundary and says what the runner was told.
    pub(crate) async fn committed(&self, boundary: Boundary) -> After {
        self.commit(boundary).await.after
    }

    /// An instance that sleeps in a step `nap` for `ms`.
    pub(crate) async fn sleeping(&self, name: &str, ms: i64) -> RunKey {
        let key = self.leased(name).await;
        self.nap(key, ms).await;
        key
    }

    /// Suspends a leased run in a step `nap`.
    pub(crate) async fn nap(&self, key: RunKey, ms: i64) {
        let wake_at = self.in_ms(ms);
        let boundary = Boundary {
            steps: vec![self.sleep("nap", 0, wake_at)],
            next: suspend(wake_at),
            ..boundary(key)
        };
        assert_eq!(self.committed(boundary).await, After::Suspended);
    }

    /// An instance that hibernates in a step `approval`, waiting `ms` for an event `approved`.
    pub(crate) async fn hibernating(&self, name: &str, ms: i64) -> WaitLook {
        let key = self.leased(name).await;
        let wait = self.wait("approval", 0, "approved", ms);
        let boundary =
            Boundary { waits: vec![wait.clone()], next: suspend(self.in_ms(ms)), ..boundary(key) };
        assert_eq!(self.committed(boundary).await, After::Suspended);
        look_again(wait)
    }

    /// An instance with this status.
    pub(crate) async fn with_status(&self, name: &str, status: InstanceStatus) -> RunKey {
        let key = self.leased(name).await;
        match status {
            InstanceStatus::Active => {}
            InstanceStatus::Waiting => self.nap(key, 60_000).await,
            InstanceStatus::Paused => {
                self.steer(name, Action::Pause).await;
                assert_eq!(self.committed(boundary(key)).await, After::Paused);
            }
            InstanceStatus::Complete => {
                assert_eq!(self.committed(complete(key)).await, After::Ended);
            }
            InstanceStatus::Errored => {
                assert_eq!(self.committed(fail(key)).await, After::Ended);
            }
            InstanceStatus::Terminated => {
                self.steer(name, Action::Terminate).await;
            }
        }
        assert_eq!(self.status(name).await, status);
        key
    }
}

// ---- readers ----

/// Everything a reader can see of the current run of an instance.
#[derive(Debug, PartialEq)]
pub(crate) struct Sight {
    view: InstanceView,
    steps: Vec<StepRecord>,
    events: Vec<EventRecord>,
    logs: Vec<LogRecord>,
}

impl Stage {
    pub(crate) async fn view(&self, name: &str) -> InstanceView {
        let view = self.store.instance(checkout(), id(name)).await;
        view.expect("read").expect("exists")
    }

    pub(crate) async fn exists(&self, name: &str) -> bool {
        let view = self.store.instance(checkout(), id(name)).await;
        view.expect("read").is_some()
    }

    pub(crate) async fn status(&self, name: &str) -> InstanceStatus {
        self.view(name).await.record.status
    }

    pub(crate) async fn run_key(&self, name: &str) -> RunKey {
        let record = self.view(name).await.record;
        RunKey { instance: record.key, run: record.run, epoch: 0 }
    }

    /// The steps of the current run.
    pub(crate) async fn steps(&self, name: &str) -> Vec<StepRecord> {
        let page = whole(self.run_key(name).await);
        self.store.steps(page).await.expect("read")
    }

    pub(crate) async fn step_names(&self, name: &str) -> Vec<String> {
        let steps = self.steps(name).await.into_iter();
        steps.map(|step| step.name.to_string()).collect()
    }

    /// The events of the current run.
    pub(crate) async fn events(&self, name: &str) -> Vec<EventRecord> {
        let page = whole(self.run_key(name).await);
        self.store.events(page).await.expect("read")
    }

    /// The log of the current run.
    pub(crate) async fn logs(&self, name: &str) -> Vec<LogRecord> {
        let page = whole(self.run_key(name).await);
        let logs = self.store.logs(page, LogFilter::default());
        logs.await.expect("read")
    }

    /// What the engine's own log lines of the current run say.
    pub(crate) async fn story(&self, name: &str) -> Vec<String> {
        let logs = self.logs(name).await.into_iter();
        logs.filter(|log| &*log.line.category == SYSTEM_CATEGORY)
            .map(|log| log.line.message.to_string())
            .collect()
    }

    pub(crate) async fn sight(&self, name: &str) -> Sight {
        Sight {
            view: self.view(name).await,
            steps: self.steps(name).await,
            events: self.events(name).await,
            logs: self.logs(name).await,
        }
    }

    /// How many live tasks every workflow has except the known ones.
    pub(crate) async fn backlog(&self, known: &[WorkflowName]) -> Vec<(WorkflowName, u64)> {
        self.store.backlog(known.into()).await.expect("read")
    }

    /// How many live tasks `checkout` has.
    pub(crate) async fn live_tasks(&self) -> u64 {
        let backlog = self.backlog(&[]).await;
        let mine = backlog.iter().find(|(name, _)| *name == checkout());
        mine.map_or(0, |(_, tasks)| *tasks)
    }
}
