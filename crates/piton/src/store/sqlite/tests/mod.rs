//! What only this store has: its file, its batches, its plans. What every store does is proven by the conformance
//! suite of `piton-testing`.

mod batches;
mod failures;
mod opening;
mod plans;
mod story;

use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use piton_core::boundary::Next;
use piton_core::claim::ClaimRules;
use piton_core::record::{RunKey, StepRecord};
use piton_core::{
    EventType, InstanceId, Json, Span, StepName, StepStatus, StepType, Timestamp, WorkflowName,
};
use tempfile::TempDir;

use super::SqliteStore;
use crate::runtime::{BoxFuture, Runtime, TaskOwner};
use crate::store::{
    Boundary, ClaimAnswer, ClaimRequest, CreateRequest, Created, Existing, Hint, Lease, Mutation,
    NewEvent, NewInstance, Observer, RowState, StepWrite, Store,
};

/// A clock that stands still until it is moved.
struct Clock {
    now: AtomicI64,
    draws: AtomicU64,
}

impl Runtime for Clock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.now.load(Ordering::SeqCst))
    }

    fn monotonic_us(&self) -> u64 {
        0
    }

    fn random_u64(&self) -> u64 {
        self.draws.fetch_add(1, Ordering::SeqCst)
    }

    fn sleep(&self, _: Span) -> BoxFuture<()> {
        Box::pin(std::future::pending())
    }

    fn spawn(&self, _: BoxFuture<()>) -> TaskOwner {
        TaskOwner::new(|| ())
    }
}

/// A database in a directory of its own.
struct Place {
    directory: TempDir,
    clock: Arc<Clock>,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let clock = Arc::new(Clock { now: 1_000_000.into(), draws: 0.into() });
        Self { directory, clock }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("piton.db")
    }

    fn try_open(&self) -> crate::Result<Arc<SqliteStore>> {
        SqliteStore::open(&self.path(), self.clock.clone())
    }

    fn open(&self) -> Arc<SqliteStore> {
        self.try_open().expect("opens")
    }

    /// Moves the clock.
    fn pass(&self, ms: i64) {
        self.clock.now.fetch_add(ms, Ordering::SeqCst);
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// A connection of somebody else's.
    fn outside(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.path()).expect("opens")
    }

    fn count(&self, sql: &str) -> i64 {
        self.outside().query_row(sql, [], |row| row.get(0)).expect("counts")
    }
}

fn workflow() -> WorkflowName {
    WorkflowName::from_stored("checkout")
}

fn id(id: &str) -> InstanceId {
    InstanceId::from_stored(id)
}

fn new(id_text: &str) -> NewInstance {
    NewInstance { id: id(id_text), params: Json::from_valid_text("{}") }
}

fn creation(ids: &[&str], leased: bool) -> CreateRequest {
    CreateRequest {
        workflow: workflow(),
        instances: ids.iter().map(|id| new(id)).collect(),
        existing: Existing::Refuse,
        lease: leased.then(|| Lease { runner: "runner".into(), span: Span::from_millis(30_000) }),
        hooks: Vec::new(),
    }
}

async fn create_leased(store: &SqliteStore, id: &str) -> RunKey {
    let created = store.create(creation(&[id], true)).await.expect("created");
    run_key(&created[0])
}

fn run_key(created: &Created) -> RunKey {
    RunKey { instance: created.instance.key, run: 0, epoch: created.epoch }
}

async fn claim(store: &SqliteStore, wanted: usize) -> ClaimAnswer {
    let request = ClaimRequest {
        runner: "runner".into(),
        workflows: [workflow()].into(),
        wanted,
        suspects: true,
        rules: ClaimRules { lease: Span::from_millis(30_000), claims_without_progress_max: 3 },
    };
    store.claim(request).await.expect("claims")
}

fn reached(position: u32, step_type: StepType) -> StepRecord {
    let name = StepName::from_stored(format!("step {position}"));
    StepRecord::new(name, step_type, position, Timestamp::from_millis(1))
}

fn step(position: u32) -> StepRecord {
    StepRecord {
        status: StepStatus::Completed,
        attempts: 1,
        attempts_max: Some(5),
        result: Some(Json::from_valid_text("1")),
        ..reached(position, StepType::Do)
    }
}

fn wait(position: u32, event_type: &str, deadline: Timestamp) -> StepRecord {
    StepRecord {
        wake_at: Some(deadline),
        event_type: Some(EventType::from_stored(event_type)),
        ..reached(position, StepType::WaitForEvent)
    }
}

/// A boundary with new completed steps, in the middle of a pass.
fn boundary(key: RunKey, positions: &[u32]) -> Boundary {
    let write =
        |position: &u32| StepWrite { record: Arc::new(step(*position)), row: RowState::New };
    Boundary {
        key,
        mutations: Vec::new(),
        steps: positions.iter().map(write).collect(),
        waits: Vec::new(),
        logs: Vec::new(),
        next: Next::Continue { bodies_running: false },
    }
}

fn with(mutation: Mutation, boundary: Boundary) -> Boundary {
    Boundary { mutations: vec![mutation], ..boundary }
}

fn sql(sql: &str) -> Mutation {
    Mutation::Execute { sql: sql.to_owned(), params: Vec::new() }
}

fn event(instance: &str, event_type: &str) -> NewEvent {
    NewEvent {
        workflow: workflow(),
        id: id(instance),
        event_type: EventType::from_stored(event_type),
        payload: Json::from_valid_text("[1]"),
        idempotency_key: None,
        hooks: Vec::new(),
    }
}

/// Remembers what it was told.
#[derive(Default)]
struct Ears(Mutex<Vec<Hint>>);

impl Observer for Ears {
    fn hint(&self, hint: Hint) {
        self.0.lock().expect("not poisoned").push(hint);
    }
}

impl Ears {
    fn on(store: &SqliteStore) -> Arc<Self> {
        let ears = Arc::new(Self::default());
        let observer: Arc<dyn Observer> = ears.clone();
        store.observe(Arc::downgrade(&observer));
        ears
    }

    fn heard(&self) -> Vec<Hint> {
        std::mem::take(&mut *self.0.lock().expect("not poisoned"))
    }
}
