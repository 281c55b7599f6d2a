//! The seam to the database.
//!
//! A [`Store`] keeps the rows of `piton_core::record` and runs transactions on them. It decides nothing
//! by itself: inside each transaction it reads the rows concerned, asks `piton_core` what changes, and
//! writes that. So every store obeys the same rules, and the conformance suite of `piton-testing` proves it.
//!
//! **What is one transaction is exactly one method.** The comment of each method says what is there after
//! a crash. Unless it says otherwise: when the answer has arrived the effect is durable; when no answer
//! has arrived the effect is wholly there or wholly absent.
//!
//! **Hints are not authoritative** (rule R4): a store tells its [`Observer`]s about due work and ended runs
//! after the commit, but losing, doubling or delaying every hint may cost latency and nothing else.
//!
//! ```
//! use piton::prelude::*;
//! use piton::runtime::TokioRuntime;
//! use piton::store::{MemoryStore, Store};
//!
//! # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> piton::Result<()> {
//! let store = MemoryStore::new(TokioRuntime::current()?);
//! let engine = Engine::builder_with_store(store.clone()).register(workflow("noop", noop)).start().await?;
//! let instance = engine.workflow::<(), ()>("noop")?.create(()).await?;
//! instance.result().await?;
//!
//! let state = instance.describe().await?;
//! let view = store.instance(state.workflow, state.id).await?.expect("it was created");
//! assert!(view.record.status.is_terminal());
//! # Ok(())
//! # }
//! ```

mod hook;
mod memory;
mod mutation;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::sync::Arc;

use piton_core::boundary::{After, Next};
use piton_core::claim::ClaimRules;
use piton_core::hook::NewHook;
use piton_core::record::{
    Epoch, EventRecord, InstanceKey, InstanceRecord, LogLine, LogRecord, RunKey, RunNumber,
    StepRecord, Task,
};
use piton_core::{
    Code, EventType, HookNamespace, InstanceId, InstanceStatus, Json, LogLevel, Refusal, Span,
    Timestamp, WorkflowName,
};

use crate::runtime::BoxFuture;

pub use hook::{
    EngineHooks, HookQuery, HookStore, HookWork, HooksWorked, PRUNED_MAX, TAKEN_MAX,
    default_namespace,
};
pub use memory::{DumpedInstance, DumpedRun, MemoryStore};
#[cfg(feature = "postgres")]
pub use mutation::PostgresWork;
#[cfg(feature = "sqlite")]
pub use mutation::SqliteWork;
pub use mutation::{Mutation, SqlParams, SqlValue};
#[cfg(feature = "postgres")]
pub(crate) use postgres::insert_hook as insert_hook_postgres;
#[cfg(feature = "postgres")]
pub use postgres::{Clock, PostgresOptions, PostgresStore};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
#[cfg(feature = "sqlite")]
pub(crate) use sqlite::insert_hook as insert_hook_sqlite;

/// The answer of a store, as a future that borrows nothing.
pub type Answer<T> = BoxFuture<Result<T, StoreError>>;

/// What only those know who can read the database.
pub type Secret = [u8; 32];

/// Where instances, steps, events, tasks and logs live.
pub trait Store: Send + Sync + 'static {
    /// What kind of store this is, for people: `memory`, `sqlite`, `postgres`.
    fn kind(&self) -> &'static str;

    /// Tells `observer` of due work, touched runs and ended runs from now on, until it is dropped.
    fn observe(&self, observer: std::sync::Weak<dyn Observer>);

    /// Random bytes that belong to the database: the same for every process that uses it, and told to nobody else.
    fn secret(&self) -> Secret;

    // ---- what clients do ----

    /// Creates instances with their tasks.
    ///
    /// All or nothing: a refusal creates none of them. With [`CreateRequest::lease`] the tasks are leased
    /// to the calling process in the same commit, which saves a claim.
    fn create(&self, request: CreateRequest) -> Answer<Vec<Created>>;

    /// Stores an event and wakes the run that waits for it, under the instance's lock (rule R5).
    ///
    /// With an idempotency key seen before on the instance nothing is stored and the first event is
    /// returned, whatever the instance's status is now.
    ///
    /// A run that is woken is leased to the claimant in the same commit, which saves a claim; one that is not simply
    /// due then is left to the next claim. After a crash the event is there with all of this or not at all; a lease is then
    /// one of a process that is gone, like that of a claim.
    fn send_event(&self, event: NewEvent, claimant: Option<Claimant>) -> Answer<Sent>;

    /// Pauses, resumes, terminates or restarts an instance, with the system log line that tells of it.
    ///
    /// After the answer to a terminate or restart no boundary of the old run commits any more.
    fn steer(
        &self,
        workflow: WorkflowName,
        id: InstanceId,
        action: Action,
    ) -> Answer<InstanceRecord>;

    // ---- what runners do ----

    /// Claims due tasks of the given workflows, in the order of `piton_core::claim`: resuming work, then new
    /// work, each by `run_at` and then in the order of creation. A lease that ran out is resuming work.
    ///
    /// Each claim moves the task's epoch, counts, sets `started_at` once and the status to `active`. A task
    /// whose pause was requested is held, one with too many claims is quarantined, one with many is set aside as a
    /// suspect; none of them is returned, but for one suspect, the oldest, to a runner that has none. After a crash
    /// the claim stands until its lease runs out.
    fn claim(&self, request: ClaimRequest) -> Answer<ClaimAnswer>;

    /// Like [`claim`](Self::claim), of one instance of the first of the given workflows and of no other: empty-handed
    /// if it is not due.
    fn claim_instance(&self, instance: InstanceKey, request: ClaimRequest) -> Answer<ClaimAnswer>;

    /// All steps of a run in order of position. A read.
    fn load_steps(&self, instance: InstanceKey, run: RunNumber) -> Answer<Vec<StepRecord>>;

    /// Commits a boundary: the guard, the user's mutations, the steps, the consumed events, the log lines, and
    /// what becomes of the run. One transaction; refused whole when fenced or when a mutation fails.
    ///
    /// Its own log lines (a wait that timed out, then a pause) come behind the runner's.
    fn commit(&self, boundary: Boundary) -> Answer<Committed>;

    /// Extends the leases that are still held under the given epochs; what is missing from the answer is lost.
    fn renew(&self, keys: Vec<RunKey>, lease: Span) -> Answer<Vec<Renewed>>;

    /// Hands leases back so that others may claim at once. Keys that are no longer held are ignored.
    fn release(&self, keys: Vec<RunKey>) -> Answer<()>;

    /// When the earliest task of the given workflows can be claimed; `None` if there is none. A read.
    fn next_due_at(&self, workflows: Arc<[WorkflowName]>) -> Answer<Option<Timestamp>>;

    /// Like [`next_due_at`](Self::next_due_at), without the suspects: they wait for their turn, however long they have
    /// been due. A read.
    fn next_claimable_at(&self, workflows: Arc<[WorkflowName]>) -> Answer<Option<Timestamp>>;

    /// Appends log lines to a run that the caller does not hold: the story of a fenced runner.
    ///
    /// Ignored if that run has ended or is no longer the current one: ended runs never change.
    fn append_logs(&self, instance: InstanceKey, run: RunNumber, lines: Vec<LogLine>)
    -> Answer<()>;

    // ---- what readers do ----

    /// One instance with the step it waits for, if it waits. A read.
    fn instance(&self, workflow: WorkflowName, id: InstanceId) -> Answer<Option<InstanceView>>;

    /// Instances of a workflow, newest first. A read.
    fn instances(&self, query: InstanceQuery) -> Answer<Vec<InstanceRecord>>;

    /// Steps of a run by position. A read.
    fn steps(&self, page: PageQuery) -> Answer<Vec<StepRecord>>;

    /// Events of a run by arrival. A read.
    fn events(&self, page: PageQuery) -> Answer<Vec<EventRecord>>;

    /// Log lines of a run by insertion. A read.
    fn logs(&self, page: PageQuery, filter: LogFilter) -> Answer<Vec<LogRecord>>;

    /// Which of these instances have ended. A read, for those who wait for results.
    fn ended(&self, instances: Vec<InstanceKey>) -> Answer<Vec<InstanceKey>>;

    /// How many live tasks each workflow has that is not among the known ones, by name. A read.
    ///
    /// Costs nothing for the known ones, however many tasks they have.
    fn backlog(&self, known: Arc<[WorkflowName]>) -> Answer<Vec<(WorkflowName, u64)>>;

    /// Where hooks live, if this store keeps them.
    fn hooks(&self) -> Option<&dyn HookStore> {
        None
    }

    /// Finishes what was accepted and closes the store. Later calls are answered with [`StoreError::Closed`].
    fn close(&self) -> Answer<()>;
}

/// Why a store did not do what it was asked for. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The rules refuse it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The caller does not hold the run any more.
    #[error("the run is no longer held under this epoch")]
    Fenced,
    /// A mutation of the step's transaction failed; the transaction was rolled back.
    #[error("step transaction failed: {0}")]
    Mutation(MutationError),
    /// The store cannot answer now.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The store was closed: nothing can be asked of it any more.
    #[error("the store is closed")]
    Closed,
    /// The store has failed for good (a failed fsync, a corrupt file): it acknowledges nothing any more.
    #[error("the store has failed and must be reopened: {0}")]
    Failed(String),
}

/// A mutation that failed inside a step's transaction.
#[derive(Debug)]
pub struct MutationError {
    /// `UNIQUE_CONSTRAINT`, `STEP_TRANSACTION`, or the code of a refused create or event.
    pub code: Code,
    /// What went wrong.
    pub message: String,
}

impl std::fmt::Display for MutationError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

/// Who wants to know that something was committed.
pub trait Observer: Send + Sync {
    /// Called after the commit, from any thread. Must be quick and must not call the store.
    fn hint(&self, hint: Hint);
}

/// Something that may be worth looking at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// A task of this workflow became due, or will at this moment.
    Due {
        /// The workflow.
        workflow: WorkflowName,
        /// When.
        at: Timestamp,
    },
    /// A run that someone may be advancing got an event, was paused, resumed, terminated or restarted.
    Touched(InstanceKey),
    /// A run ended.
    Ended(InstanceKey),
    /// A hook of this namespace can be taken, or will be at this moment.
    HookDue {
        /// The namespace.
        namespace: HookNamespace,
        /// When.
        at: Timestamp,
    },
}

/// What [`Store::create`] creates.
#[derive(Clone, Debug)]
pub struct CreateRequest {
    /// The workflow of all of them.
    pub workflow: WorkflowName,
    /// What to create.
    pub instances: Vec<NewInstance>,
    /// What to do about ids that exist.
    pub existing: Existing,
    /// Lease the new tasks to this runner at once.
    pub lease: Option<Lease>,
    /// Stored with the instances, if any of them is created.
    pub hooks: Vec<NewHook>,
}

/// A new instance.
#[derive(Clone, Debug, PartialEq)]
pub struct NewInstance {
    /// Its id.
    pub id: InstanceId,
    /// Its params.
    pub params: Json,
}

/// What a create does about an id that exists already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Refuse everything with `INSTANCE_ID_ALREADY_EXISTS`.
    Refuse,
    /// Leave it alone and leave it out of the answer.
    Skip,
}

/// A lease asked for by a runner.
#[derive(Clone, Debug)]
pub struct Lease {
    /// Who holds it, for people.
    pub runner: Arc<str>,
    /// How long it lasts.
    pub span: Span,
}

/// A created instance.
#[derive(Clone, Debug)]
pub struct Created {
    /// The instance.
    pub instance: InstanceRecord,
    /// The epoch of the lease, if one was asked for.
    pub epoch: Epoch,
}

/// An event on its way in.
#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent {
    /// The workflow of the receiver.
    pub workflow: WorkflowName,
    /// The receiver.
    pub id: InstanceId,
    /// Its type.
    pub event_type: EventType,
    /// Its payload.
    pub payload: Json,
    /// A repeat with the same key is answered like the first and stored once.
    pub idempotency_key: Option<Arc<str>>,
    /// Stored with the event; a repeat stores none.
    pub hooks: Vec<NewHook>,
}

/// A runner that has room for the run that an event wakes.
#[derive(Clone, Debug)]
pub struct Claimant {
    /// Who it is, for people.
    pub runner: Arc<str>,
    /// Lease and quarantine.
    pub rules: ClaimRules,
}

/// What became of an event.
#[derive(Clone, Debug)]
pub struct Sent {
    /// The event as it is stored.
    pub event: EventRecord,
    /// The run that it woke, if it is the claimant's now: leased at the moment at which the event arrived.
    pub claimed: Option<ClaimedRun>,
}

/// What [`Store::steer`] can do to an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// See `piton_core::lifecycle::pause`.
    Pause,
    /// See `piton_core::lifecycle::resume`.
    Resume,
    /// See `piton_core::lifecycle::terminate`.
    Terminate,
    /// See `piton_core::lifecycle::restart`.
    Restart,
}

/// A runner's wish for work.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// Who asks, for people.
    pub runner: Arc<str>,
    /// The workflows it can run. Tasks of others are neither looked at nor waited behind.
    pub workflows: Arc<[WorkflowName]>,
    /// How many runs it has room for.
    pub wanted: usize,
    /// It advances no suspect now: one of them may be among what it gets. See `piton_core::claim::SUSPECT_CLAIMS`.
    pub suspects: bool,
    /// Lease and quarantine.
    pub rules: ClaimRules,
}

/// What a claim got.
#[derive(Clone, Debug)]
pub struct ClaimAnswer {
    /// The store's clock at the claim: the time base of the passes that follow.
    pub now: Timestamp,
    /// The runs that are now the runner's.
    pub claimed: Vec<ClaimedRun>,
    /// When the next task of these workflows that is no suspect can be claimed. Not later than `now` if there is
    /// more work than was wanted.
    pub next_due_at: Option<Timestamp>,
}

/// A run the caller may advance.
#[derive(Clone, Debug)]
pub struct ClaimedRun {
    /// The workflow.
    pub workflow: WorkflowName,
    /// The instance.
    pub id: InstanceId,
    /// Its params.
    pub params: Json,
    /// When the instance was created: the timestamp of its `Event`.
    pub created_at: Timestamp,
    /// The row key.
    pub key: InstanceKey,
    /// The task as it is leased now.
    pub task: Task,
}

impl ClaimedRun {
    /// What every write for this run must carry.
    pub fn run_key(&self) -> RunKey {
        RunKey { instance: self.key, run: self.task.run, epoch: self.task.epoch }
    }

    /// Nobody can have recorded a step: this is the first claim of the first run.
    pub fn is_fresh(&self) -> bool {
        self.task.run == 0 && self.task.epoch == 1
    }
}

/// Everything one boundary writes.
#[derive(Debug)]
pub struct Boundary {
    /// Who writes.
    pub key: RunKey,
    /// Work of the user's and creates and events of the step, run before the engine's own rows.
    pub mutations: Vec<Mutation>,
    /// Steps that reached a boundary, in order of `seq`.
    pub steps: Vec<StepWrite>,
    /// Waits for events to register or to look at again.
    pub waits: Vec<WaitLook>,
    /// Log lines since the last boundary.
    pub logs: Vec<LogLine>,
    /// What becomes of the run.
    pub next: Next,
}

/// How the row of a step stands to what is in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowState {
    /// Not there yet: insert.
    New,
    /// There with other contents: update by position.
    Changed,
    /// There with the same contents: write only if the step is settled now.
    Stored,
}

/// A step's row to be written.
#[derive(Clone, Debug)]
pub struct StepWrite {
    /// The row, shared with whoever goes on from it.
    pub record: Arc<StepRecord>,
    /// Insert or update.
    pub row: RowState,
}

/// A wait for an event: registered and checked in one transaction (rule R5).
#[derive(Clone, Debug)]
pub struct WaitLook {
    /// The waiting step; `wake_at` is its deadline.
    pub record: Arc<StepRecord>,
    /// How its row stands.
    pub row: RowState,
    /// The number to record the outcome under, if there is one.
    pub seq: u32,
}

/// What a committed boundary did.
#[derive(Clone, Debug)]
pub struct Committed {
    /// The store's clock at the commit.
    pub now: Timestamp,
    /// What the runner does next.
    pub after: After,
    /// The waits that got their outcome.
    pub settled: Vec<StepRecord>,
}

/// A lease that was extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// Whose.
    pub key: RunKey,
    /// Someone wants the run paused at its next boundary.
    pub pause_requested: bool,
}

/// An instance as readers see it.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceView {
    /// The instance; `updated_at` is the newest of it and its last step.
    pub record: InstanceRecord,
    /// Of the steps it waits for, the one that will wake first.
    pub waiting_for: Option<StepRecord>,
}

/// A page of instances, newest first.
#[derive(Clone, Debug)]
pub struct InstanceQuery {
    /// Of this workflow.
    pub workflow: WorkflowName,
    /// Only those with this status.
    pub status: Option<InstanceStatus>,
    /// Only those created at this moment or later.
    pub created_after: Option<Timestamp>,
    /// Only those created before this moment.
    pub created_before: Option<Timestamp>,
    /// Only those that come behind this place in the list.
    pub behind: Option<ListPlace>,
    /// At most this many.
    pub limit: u32,
}

impl InstanceQuery {
    /// All instances of a workflow, up to `limit`.
    pub fn new(workflow: WorkflowName, limit: u32) -> Self {
        Self {
            workflow,
            status: None,
            created_after: None,
            created_before: None,
            behind: None,
            limit,
        }
    }

    /// What every row of the page is below: the place it starts behind, or the end of the time asked for.
    pub fn below(&self) -> ListPlace {
        let end = self.created_before.unwrap_or(Timestamp::from_millis(i64::MAX));
        let end = ListPlace { created_at: end, key: InstanceKey(i64::MIN) };
        self.behind.map_or(end, |behind| behind.min(end))
    }
}

/// Where an instance stands in a list: by the time it was created, and the key where that is equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListPlace {
    /// When it was created.
    pub created_at: Timestamp,
    /// Its key.
    pub key: InstanceKey,
}

impl From<&InstanceRecord> for ListPlace {
    fn from(record: &InstanceRecord) -> Self {
        Self { created_at: record.created_at, key: record.key }
    }
}

/// A page of a run's steps, events or log lines.
#[derive(Clone, Copy, Debug)]
pub struct PageQuery {
    /// The instance.
    pub instance: InstanceKey,
    /// The run.
    pub run: RunNumber,
    /// Only what comes behind this position or seq, in the order asked for.
    pub after: Option<u64>,
    /// Newest first instead of oldest first.
    pub descending: bool,
    /// At most this many.
    pub limit: u32,
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
impl PageQuery {
    /// The number that the page starts behind; without one, the end of the range it comes from.
    pub(crate) fn behind(&self) -> i64 {
        match (self.after, self.descending) {
            (Some(after), _) => i64::try_from(after).unwrap_or(i64::MAX),
            (None, false) => i64::MIN,
            (None, true) => i64::MAX,
        }
    }
}

/// Which log lines to return.
#[derive(Clone, Debug, Default)]
pub struct LogFilter {
    /// Only this level.
    pub level: Option<LogLevel>,
    /// Only this category.
    pub category: Option<Arc<str>>,
}

/// Tells every living observer, and forgets the dead ones.
#[derive(Default)]
pub(crate) struct Observers(std::sync::Mutex<Vec<std::sync::Weak<dyn Observer>>>);

impl Observers {
    pub(crate) fn add(&self, observer: std::sync::Weak<dyn Observer>) {
        self.lock().push(observer);
    }

    pub(crate) fn tell(&self, hints: impl IntoIterator<Item = Hint>) {
        let living: Vec<Arc<dyn Observer>> = {
            let mut observers = self.lock();
            observers.retain(|observer| observer.strong_count() > 0);
            observers.iter().filter_map(std::sync::Weak::upgrade).collect()
        };
        for hint in hints {
            for observer in &living {
                observer.hint(hint.clone());
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<std::sync::Weak<dyn Observer>>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
