//! The embedded store: one SQLite file, one process.
//!
//! The life of a request:
//!
//! ```text
//!  create, event, steer, claim, boundary, renew …          instance, steps, logs …
//!        │ bounded queue (writer.rs)                              │ bounded queue (reader.rs)
//!        ▼                                                        ▼
//!  piton-writer, the only write connection                 piton-reader-0, -1, `query_only`
//!   1 take everything that is queued                        1 BEGIN
//!   2 BEGIN IMMEDIATE                                       2 queries
//!   3 run each request (request.rs): read the rows,         3 COMMIT, answer
//!     ask piton_core, write what it says
//!   4 COMMIT: one fsync for all of them
//!   5 tell the observers, answer each
//!   6 empty the log, if it has grown long (checkpoint.rs)
//! ```
//!
//! What happens inside a transaction is in one file per duty (`create`, `claim`, `commit`, `steer`, `lease`,
//! `mutate`), the SQL in one file per table (`instance`, `task`, `step`, `event`, `log`, `hook`).
//!
//! What it promises and how:
//!
//! - **An answer is durable.** WAL with `synchronous=FULL`; answers leave after the COMMIT (rule R1).
//! - **A refused request has written nothing.** Everything is checked before the first write; only requests that
//!   can fail later run in a savepoint.
//! - **A failed statement concerns the whole batch**: it is rolled back and nobody is acknowledged. After a failed
//!   commit or I/O error the store answers nothing any more: an fsync that failed is never tried again, because the
//!   operating system may have dropped the pages it could not write.
//! - **A fenced runner writes nothing.** Every boundary is held against the task's row, or against the copy of it that
//!   the writer keeps as long as nobody else can have changed it (`leases`).
//! - **One process.** The lock file proves it, so that leases found at start are released at once.

mod answers;
mod batch;
mod cells;
mod checkpoint;
mod claim;
mod commit;
mod create;
mod event;
mod hook;
mod instance;
mod lease;
mod leases;
mod lock;
mod log;
mod migrate;
mod mutate;
mod open;
mod reader;
mod request;
mod statements;
mod steer;
mod step;
mod task;
mod traffic;
mod trouble;
mod view;
mod writer;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread;

use piton_core::hook::{HookRecord, NewHook};
use piton_core::record::{
    EventRecord, InstanceKey, InstanceRecord, LogLine, LogRecord, RunKey, RunNumber, StepRecord,
};
use piton_core::{HookNamespace, InstanceId, Span, Timestamp, WorkflowName};
use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use self::batch::Batch;
use self::leases::Leases;
use self::lock::LockFile;
use self::reader::ReadQueue;
use self::request::{Job, Lines, OneClaim, Renewal, Request, Sending, Steering};
use self::statements::Statements;
use self::traffic::Traffic;
use self::trouble::Outcome;
use self::writer::{Failed, QUEUE_MAX, Writer};
use super::{
    Action, Answer, Boundary, ClaimAnswer, ClaimRequest, Claimant, Committed, CreateRequest,
    Created, EngineHooks, HookQuery, HookStore, HookWork, HooksWorked, InstanceQuery, InstanceView,
    LogFilter, NewEvent, Observer, Observers, PageQuery, Renewed, Secret, Sent, Store, StoreError,
};
use crate::Error;
use crate::runtime::{Ids, Runtime};

pub(crate) use self::hook::insert as insert_hook;

/// A store in one SQLite file.
pub struct SqliteStore {
    door: Arc<Door>,
    reads: ReadQueue,
    observers: Arc<Observers>,
    secret: Secret,
    engine_hooks: Arc<Mutex<Option<Arc<EngineHooks>>>>,
    runtime: Arc<dyn Runtime>,
    /// Waited for when the store is dropped.
    writer: Option<thread::JoinHandle<()>>,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SqliteStore")
    }
}

impl SqliteStore {
    /// Opens the database at `path`, creating it if there is none, and releases the leases a crash left behind.
    ///
    /// Blocks: call it where blocking is fine.
    ///
    /// # Errors
    ///
    /// `STORE_UNUSABLE`, saying what is wrong with the path, the file or its version, and what to do about it.
    pub fn open(path: &Path, runtime: Arc<dyn Runtime>) -> crate::Result<Arc<Self>> {
        let path = open::resolve(path)?;
        let lock = LockFile::take(&path)?;
        open::create_file(&path)?;
        let conn = open::connect(&path)?;
        let version = migrate::check(&conn, &path)?;
        open::configure_writer(&conn, &path)?;
        let ids = Ids::new(runtime.clone());
        let unusable = |error: &dyn std::fmt::Display| {
            Error::store_unusable(format!("cannot use {}: {error}", path.display()))
        };
        start_up(&conn, version, &ids, runtime.now()).map_err(|error| unusable(&error))?;
        let secret = migrate::secret(&conn, &path)?;
        let readers = reader::start(&path)?;
        let reads = readers.queue();

        let (requests, queue) = mpsc::channel(QUEUE_MAX);
        let observers = Arc::new(Observers::default());
        let failed = Failed::new(OnceLock::new());
        let traffic = Traffic::new(runtime.clone());
        let engine_hooks = Arc::new(Mutex::default());
        let writer = Writer {
            conn,
            requests: queue,
            traffic: traffic.clone(),
            runtime: runtime.clone(),
            ids,
            observers: observers.clone(),
            engine_hooks: Arc::clone(&engine_hooks),
            failed: failed.clone(),
            readers,
            lock,
        };
        let writer = thread::Builder::new()
            .name("piton-writer".to_owned())
            .spawn(move || writer.run())
            .map_err(|error| Error::store_unusable(format!("cannot start a thread: {error}")))?;
        let door = Arc::new(Door { requests, traffic, failed });
        let writer = Some(writer);
        Ok(Arc::new(Self { door, reads, observers, secret, engine_hooks, runtime, writer }))
    }

    /// Sends a request to the writer and waits for its answer.
    fn write<I, O>(&self, input: I, request: fn(Box<Job<I, O>>) -> Request) -> Answer<O>
    where
        I: Send + 'static,
        O: Send + 'static,
    {
        let door = Arc::clone(&self.door);
        let (job, mut answered) = Job::new(input);
        let request = request(job);
        Box::pin(async move {
            let caller = door.traffic.enter();
            if !door.send(request).await {
                return Err(gone(&door.failed));
            }
            let answer = match caller.linger(&mut answered) {
                Some(job) => Ok(job),
                None => answered.await,
            };
            match answer {
                Ok(job) => job.into_output(),
                Err(_) => Err(gone(&door.failed)),
            }
        })
    }

    /// Runs a read on one of the readers.
    fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Statements<'_>) -> Outcome<T> + Send + 'static,
    ) -> Answer<T> {
        let (reads, failed) = (self.reads.clone(), self.door.failed.clone());
        Box::pin(async move {
            if failed.get().is_some() {
                return Err(gone(&failed));
            }
            reads.run(work).await.unwrap_or_else(|| Err(gone(&failed)))
        })
    }
}

/// What callers share: the way to the writer, and what became of it.
struct Door {
    requests: mpsc::Sender<Request>,
    traffic: Arc<Traffic>,
    failed: Failed,
}

impl Door {
    /// Hands a request to the writer; `false` if it is gone.
    async fn send(&self, request: Request) -> bool {
        match self.requests.try_send(request) {
            Ok(()) => true,
            Err(TrySendError::Full(request)) => self.requests.send(request).await.is_ok(),
            Err(TrySendError::Closed(_)) => false,
        }
    }
}

/// Why nobody answers.
fn gone(failed: &Failed) -> StoreError {
    match failed.get() {
        Some(failure) => failure.to_error(),
        None => StoreError::Closed,
    }
}

/// The first transaction: the newest schema, and no lease of a process that is gone.
fn start_up(conn: &Connection, version: i32, ids: &Ids, now: Timestamp) -> Result<(), StoreError> {
    let run = || -> Outcome<()> {
        let tx = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
        migrate::migrate(&tx, version)?;
        let batch = &mut Batch {
            db: &mut Statements::of(conn),
            leases: &mut Leases::default(),
            tx: &tx,
            now,
            ids,
            engine_hooks: None,
            hints: &mut Vec::new(),
            hooks: Vec::new(),
            rows_undone: 0,
        };
        lease::release_all(batch)?;
        hook::release_all(batch)?;
        Ok(tx.commit()?)
    };
    run().map_err(StoreError::from)
}

impl Drop for SqliteStore {
    /// Waits for the writer to finish what it accepted, so that whoever opens the file next finds it free.
    fn drop(&mut self) {
        let (job, _) = Job::new(());
        // A full queue holds requests of callers who are gone; the thread ends when it has served them.
        let asked = self.door.requests.try_send(Request::Close(job)).is_ok();
        let Some(writer) = self.writer.take() else {
            return;
        };
        // The last owner may be an observer that the writer itself is telling something.
        if asked && writer.thread().id() != thread::current().id() {
            let _ = writer.join();
        }
    }
}

impl Store for SqliteStore {
    fn kind(&self) -> &'static str {
        "sqlite"
    }

    fn secret(&self) -> Secret {
        self.secret
    }

    fn observe(&self, observer: Weak<dyn Observer>) {
        self.observers.add(observer);
    }

    fn create(&self, request: CreateRequest) -> Answer<Vec<Created>> {
        self.write(request, Request::Create)
    }

    fn send_event(&self, event: NewEvent, claimant: Option<Claimant>) -> Answer<Sent> {
        self.write(Sending { event, claimant }, Request::SendEvent)
    }

    fn steer(
        &self,
        workflow: WorkflowName,
        id: InstanceId,
        action: Action,
    ) -> Answer<InstanceRecord> {
        let steering = Steering { workflow, id, action };
        self.write(steering, Request::Steer)
    }

    fn claim(&self, request: ClaimRequest) -> Answer<ClaimAnswer> {
        self.write(request, Request::Claim)
    }

    fn claim_instance(&self, instance: InstanceKey, request: ClaimRequest) -> Answer<ClaimAnswer> {
        self.write(OneClaim { instance, request }, Request::ClaimInstance)
    }

    fn load_steps(&self, instance: InstanceKey, run: RunNumber) -> Answer<Vec<StepRecord>> {
        self.read(move |db| step::of_run(db, instance, run))
    }

    fn commit(&self, boundary: Boundary) -> Answer<Committed> {
        self.write(boundary, Request::commit)
    }

    fn renew(&self, keys: Vec<RunKey>, lease: Span) -> Answer<Vec<Renewed>> {
        self.write(Renewal { keys, lease }, Request::Renew)
    }

    fn release(&self, keys: Vec<RunKey>) -> Answer<()> {
        self.write(keys, Request::Release)
    }

    fn next_due_at(&self, workflows: Arc<[WorkflowName]>) -> Answer<Option<Timestamp>> {
        self.read(move |db| task::next_due_at(db, &workflows))
    }

    fn next_claimable_at(&self, workflows: Arc<[WorkflowName]>) -> Answer<Option<Timestamp>> {
        self.read(move |db| task::next_claimable_at(db, &workflows))
    }

    fn append_logs(
        &self,
        instance: InstanceKey,
        run: RunNumber,
        lines: Vec<LogLine>,
    ) -> Answer<()> {
        let lines = Lines { instance, run, lines };
        self.write(lines, Request::AppendLogs)
    }

    fn instance(&self, workflow: WorkflowName, id: InstanceId) -> Answer<Option<InstanceView>> {
        self.read(move |db| view::instance(db, &workflow, &id))
    }

    fn instances(&self, query: InstanceQuery) -> Answer<Vec<InstanceRecord>> {
        self.read(move |db| instance::page(db, &query))
    }

    fn steps(&self, page: PageQuery) -> Answer<Vec<StepRecord>> {
        self.read(move |db| step::page(db, &page))
    }

    fn events(&self, page: PageQuery) -> Answer<Vec<EventRecord>> {
        self.read(move |db| event::page(db, &page))
    }

    fn logs(&self, page: PageQuery, filter: LogFilter) -> Answer<Vec<LogRecord>> {
        self.read(move |db| log::page(db, &page, &filter))
    }

    fn ended(&self, instances: Vec<InstanceKey>) -> Answer<Vec<InstanceKey>> {
        self.read(move |db| view::ended(db, &instances))
    }

    fn backlog(&self, known: Arc<[WorkflowName]>) -> Answer<Vec<(WorkflowName, u64)>> {
        self.read(move |db| view::backlog(db, &known))
    }

    fn hooks(&self) -> Option<&dyn HookStore> {
        Some(self)
    }

    fn close(&self) -> Answer<()> {
        let door = Arc::clone(&self.door);
        Box::pin(async move {
            let (job, answered) = Job::new(());
            if door.send(Request::Close(job)).await
                && let Ok(job) = answered.await
            {
                return job.into_output();
            }
            // Closed before: that is what was asked for.
            door.failed.get().map_or(Ok(()), |failure| Err(failure.to_error()))
        })
    }
}

impl HookStore for SqliteStore {
    fn trigger_hooks(&self, hooks: Vec<NewHook>) -> Answer<()> {
        self.write(hooks, Request::TriggerHooks)
    }

    fn work_hooks(&self, work: HookWork) -> Answer<HooksWorked> {
        self.write(work, Request::WorkHooks)
    }

    fn next_hook_at(
        &self,
        namespaces: Arc<[HookNamespace]>,
    ) -> Answer<(Timestamp, Option<Timestamp>)> {
        let now = self.runtime.now();
        self.read(move |db| Ok((now, hook::next_due_at(db, &namespaces)?)))
    }

    fn hook(&self, id: Arc<str>) -> Answer<Option<HookRecord>> {
        self.read(move |db| hook::get(db, &id))
    }

    fn hooks(&self, query: HookQuery) -> Answer<Vec<HookRecord>> {
        self.read(move |db| hook::page(db, &query))
    }

    fn retry_hook(&self, id: Arc<str>) -> Answer<HookRecord> {
        self.write(id, Request::RetryHook)
    }

    fn tell_by_hooks(&self, wanted: EngineHooks) {
        let mut engine_hooks = self.engine_hooks.lock().unwrap_or_else(PoisonError::into_inner);
        *engine_hooks = Some(Arc::new(wanted));
    }
}
