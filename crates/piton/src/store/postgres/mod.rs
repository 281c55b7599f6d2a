//! The shared store: a PostgreSQL database, any number of processes.
//!
//! The life of a request:
//!
//! ```text
//!  create, boundary, event, steer, renew, release …      boundary with     claim      instance, steps, logs …
//!        │ bounded queue (committer.rs)                   user SQL           │              │
//!        ▼                                                     │             │              │
//!  the committer: takes everything that is queued              ▼             ▼              ▼
//!        │ one batch, or two under load                      a small pool of connections (mutate.rs, claim.rs …)
//!        ▼
//!  a lane, one connection (lane.rs)
//!   1 one statement for all that is simple (group.rs; lone.rs
//!     if it is steps and nothing else)
//!   2 one transaction for the rest (round.rs): lock the
//!     tasks, read, ask piton_core, write
//!   3 tell the observers, answer each
//!        └── hints ──> NOTIFY ──> other processes that LISTEN (notify.rs)
//! ```
//!
//! The SQL is in one file per table (`instance`, `task`, `step`, `event`, `log`, `hook`) under the names that the SQLite store
//! uses, and in `group`, `lone`, `claim` and `mutate`, where one statement does several things at once.
//!
//! What it promises and how:
//!
//! - **An answer is durable.** It leaves after the commit (rule R1); `synchronous_commit` is checked at the start.
//! - **A run has one lock: the row of its task.** Whoever changes anything about a live run holds it, and several are
//!   always taken in ascending order (`transaction.rs`).
//! - **Leases and due times are the database's** (`clock.rs`): the clocks of the processes need not agree.
//! - **A fenced runner writes nothing**: the guard is part of the statement that writes, or is held against the locked row.
//! - **A lost connection is no lost boundary.** One whose commit was never answered is looked up under its lock: recorded,
//!   or tried again if the run is still ours, or fenced (`commit::recorded`).

mod cells;
mod claim;
mod clock;
mod commit;
mod committer;
mod create;
mod event;
mod group;
mod hook;
mod instance;
mod lane;
mod lease;
mod leases;
mod log;
mod lone;
mod migrate;
mod mutate;
mod notify;
mod open;
mod options;
mod request;
mod round;
mod shared;
mod statements;
mod steer;
mod step;
mod task;
mod text;
mod transaction;
mod trouble;

use std::sync::{Arc, Mutex, PoisonError, Weak};

use piton_core::hook::{HookRecord, NewHook};
use piton_core::record::{
    EventRecord, InstanceKey, InstanceRecord, LogLine, LogRecord, RunKey, RunNumber, StepRecord,
};
use piton_core::{HookNamespace, InstanceId, Span, Timestamp, WorkflowName};
use sqlx::{PgConnection, PgPool};
use tokio::sync::{mpsc, oneshot};

use self::clock::Time;
use self::committer::{Committer, Message, QUEUE_MAX};
use self::lease::Lent;
use self::leases::Leases;
use self::notify::Outbox;
use self::request::{Ask, PlainBoundary, Reply, Request};
use self::shared::Shared;
use self::statements::{Db, Statements};
use self::steer::Steering;
use self::trouble::{Outcome, Trouble};
use super::{
    Action, Answer, Boundary, ClaimAnswer, ClaimRequest, Claimant, Committed, CreateRequest,
    Created, EngineHooks, HookQuery, HookStore, HookWork, HooksWorked, InstanceQuery, InstanceView,
    LogFilter, NewEvent, Observer, Observers, PageQuery, Renewed, Secret, Sent, Store, StoreError,
};
use crate::runtime::{Ids, Runtime, TaskOwner};

pub use self::clock::Clock;
pub use self::options::PostgresOptions;

pub(crate) use self::hook::insert_in as insert_hook;

/// How long requests may take that are under way when the store is closed: the server may be away.
const CLOSE_MAX: Span = Span::from_millis(10_000);

/// A store in a PostgreSQL database.
pub struct PostgresStore {
    shared: Arc<Shared>,
    requests: mpsc::Sender<Message>,
    pool: PgPool,
    listening: PgPool,
    secret: Secret,
    /// Aborted when the store is dropped, as a crash would: what was acknowledged is safe.
    _tasks: Vec<TaskOwner>,
    schema: String,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PostgresStore")
    }
}

impl PostgresStore {
    /// Connects to the database and brings Piton's tables up to date.
    ///
    /// # Errors
    ///
    /// `STORE_UNUSABLE`, saying what is wrong with the URL, the server or the schema, and what to do about it.
    pub async fn open(
        options: PostgresOptions,
        runtime: Arc<dyn Runtime>,
    ) -> crate::Result<Arc<Self>> {
        options.check()?;
        let schema = options.schema_name().to_owned();
        let connect = open::connect_options(&options)?;
        let committing = open::committer_options(&connect);
        let mut conn = migrate::connect_and_migrate(&committing, &schema, &*runtime).await?;
        let secret = migrate::secret(&mut conn, &schema).await?;

        let outbox = options.notify.then(|| Outbox::new(&schema, runtime.random_u64()));
        let shared = Arc::new(Shared {
            connect: committing,
            statements: Statements::new(&schema),
            time: Time::new(options.clock, &runtime),
            ids: Ids::new(Arc::clone(&runtime)),
            leases: Leases::default(),
            observers: Arc::new(Observers::default()),
            outbox,
            engine_hooks: Mutex::default(),
            runtime,
        });
        let (pool, listening) = (open::pool(&options, &connect), open::listening_pool(&connect));
        let (requests, queue) = mpsc::channel(QUEUE_MAX);
        let committer = Committer::new(Arc::clone(&shared), queue, conn);
        let spawn = |task| shared.runtime.spawn(task);
        let mut tasks = vec![spawn(Box::pin(committer.run()))];
        if options.notify {
            let sending = notify::send_for_ever(Arc::clone(&shared), pool.clone());
            let hearing = notify::listen_for_ever(Arc::clone(&shared), listening.clone());
            tasks.extend([spawn(Box::pin(sending)), spawn(Box::pin(hearing))]);
        }
        Ok(Arc::new(Self { shared, requests, pool, listening, secret, _tasks: tasks, schema }))
    }

    /// Sends a request to the committer and waits for its answer.
    fn write<T: Send + 'static>(&self, ask: Ask, read: fn(Reply) -> Option<T>) -> Answer<T> {
        let requests = self.requests.clone();
        Box::pin(async move {
            let (request, answered) = Request::new(ask);
            if requests.send(Message::Ask(Box::new(request))).await.is_err() {
                return Err(StoreError::Closed);
            }
            match answered.await {
                Ok(Ok(reply)) => Ok(read(reply).expect("every request has its own kind of reply")),
                Ok(Err(error)) => Err(error),
                Err(_) => Err(StoreError::Closed),
            }
        })
    }

    /// Runs queries on a connection of the pool.
    fn read<T, W>(&self, work: W) -> Answer<T>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(Db<'c>) -> BoxedOutcome<'c, T> + Send + 'static,
    {
        let (shared, pool) = (Arc::clone(&self.shared), self.pool.clone());
        Box::pin(async move {
            let reading = async {
                let mut conn = pool.acquire().await?;
                work(Db { conn: &mut conn, statements: &shared.statements }).await
            };
            shared.in_time::<T, Trouble>(reading).await.map_err(StoreError::from)
        })
    }
}

impl PostgresStore {
    /// Works on a connection of the pool, in a transaction of its own.
    fn on_pool<T, W>(&self, work: W) -> Answer<T>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut PgConnection, &'c Shared) -> BoxedOutcome<'c, T> + Send + 'static,
    {
        let (shared, pool) = (Arc::clone(&self.shared), self.pool.clone());
        Box::pin(async move {
            let working = async {
                let mut conn = pool.acquire().await?;
                work(&mut conn, &shared).await
            };
            shared.in_time::<T, Trouble>(working).await.map_err(StoreError::from)
        })
    }
}

impl PostgresStore {
    /// Claims on a connection of the pool. What was taken by a claim that failed, or whose commit was never answered, is
    /// handed back as soon as the server can be reached: it would wait for the end of its lease otherwise.
    fn claim_with<W>(&self, work: W) -> Answer<ClaimAnswer>
    where
        W: for<'c> FnOnce(
                &'c mut PgConnection,
                &'c Shared,
                &'c mut Vec<Lent>,
            ) -> BoxedOutcome<'c, ClaimAnswer>
            + Send
            + 'static,
    {
        let (shared, pool) = (Arc::clone(&self.shared), self.pool.clone());
        let requests = self.requests.clone();
        Box::pin(async move {
            let mut taken = Vec::new();
            let claiming = async {
                let mut conn = pool.acquire().await?;
                work(&mut conn, &shared, &mut taken).await
            };
            let claimed = shared.in_time::<_, Trouble>(claiming).await;
            if claimed.is_err() && !taken.is_empty() {
                let (request, _) = Request::new(Ask::TakeBack(taken));
                let _ = requests.send(Message::Ask(Box::new(request))).await;
            }
            claimed.map_err(StoreError::from)
        })
    }
}

type BoxedOutcome<'c, T> = std::pin::Pin<Box<dyn Future<Output = Outcome<T>> + Send + 'c>>;

impl Store for PostgresStore {
    fn kind(&self) -> &'static str {
        "postgres"
    }

    fn secret(&self) -> Secret {
        self.secret
    }

    fn observe(&self, observer: Weak<dyn Observer>) {
        self.shared.observers.add(observer);
    }

    fn create(&self, request: CreateRequest) -> Answer<Vec<Created>> {
        self.write(Ask::Create(request), Reply::created)
    }

    fn send_event(&self, event: NewEvent, claimant: Option<Claimant>) -> Answer<Sent> {
        self.write(Ask::SendEvent(event, claimant), Reply::sent)
    }

    fn steer(
        &self,
        workflow: WorkflowName,
        id: InstanceId,
        action: Action,
    ) -> Answer<InstanceRecord> {
        self.write(Ask::Steer(Steering { workflow, id, action }), Reply::steered)
    }

    fn claim(&self, request: ClaimRequest) -> Answer<ClaimAnswer> {
        self.claim_with(move |conn, shared, taken| {
            Box::pin(async move { claim::claim(conn, shared, &request, taken).await })
        })
    }

    fn claim_instance(&self, instance: InstanceKey, request: ClaimRequest) -> Answer<ClaimAnswer> {
        self.claim_with(move |conn, shared, taken| {
            Box::pin(
                async move { claim::claim_instance(conn, shared, instance, &request, taken).await },
            )
        })
    }

    fn load_steps(&self, instance: InstanceKey, run: RunNumber) -> Answer<Vec<StepRecord>> {
        let (shared, pool) = (Arc::clone(&self.shared), self.pool.clone());
        Box::pin(async move {
            // The run is claimed already: if it were given up, nobody would advance it until its lease has run out.
            let load = || async {
                let mut conn = pool.acquire().await?;
                let mut db = Db { conn: &mut conn, statements: &shared.statements };
                step::of_run(&mut db, instance, run).await
            };
            shared.patiently(load).await.map_err(StoreError::from)
        })
    }

    fn commit(&self, boundary: Boundary) -> Answer<Committed> {
        let (boundary, mutations) = PlainBoundary::split(boundary);
        if mutations.is_empty() {
            return self.write(Ask::Commit(boundary), Reply::committed);
        }
        let (shared, pool) = (Arc::clone(&self.shared), self.pool.clone());
        Box::pin(async move {
            mutate::commit(&pool, &shared, boundary, mutations).await.map_err(StoreError::from)
        })
    }

    fn renew(&self, keys: Vec<RunKey>, lease: Span) -> Answer<Vec<Renewed>> {
        self.write(Ask::Renew(keys, lease), Reply::renewed)
    }

    fn release(&self, keys: Vec<RunKey>) -> Answer<()> {
        self.write(Ask::Release(keys), done)
    }

    fn next_due_at(&self, workflows: Arc<[WorkflowName]>) -> Answer<Option<Timestamp>> {
        self.read(move |mut db| {
            Box::pin(async move { task::next_due_at(&mut db, &workflows, true).await })
        })
    }

    fn next_claimable_at(&self, workflows: Arc<[WorkflowName]>) -> Answer<Option<Timestamp>> {
        self.read(move |mut db| {
            Box::pin(async move { task::next_due_at(&mut db, &workflows, false).await })
        })
    }

    fn append_logs(
        &self,
        instance: InstanceKey,
        run: RunNumber,
        lines: Vec<LogLine>,
    ) -> Answer<()> {
        self.write(Ask::AppendLogs(instance, run, lines), done)
    }

    fn instance(&self, workflow: WorkflowName, id: InstanceId) -> Answer<Option<InstanceView>> {
        self.read(move |mut db| {
            Box::pin(async move { instance::view(&mut db, &workflow, &id).await })
        })
    }

    fn instances(&self, query: InstanceQuery) -> Answer<Vec<InstanceRecord>> {
        self.read(move |mut db| Box::pin(async move { instance::page(&mut db, &query).await }))
    }

    fn steps(&self, page: PageQuery) -> Answer<Vec<StepRecord>> {
        self.read(move |mut db| Box::pin(async move { step::page(&mut db, &page).await }))
    }

    fn events(&self, page: PageQuery) -> Answer<Vec<EventRecord>> {
        self.read(move |mut db| Box::pin(async move { event::page(&mut db, &page).await }))
    }

    fn logs(&self, page: PageQuery, filter: LogFilter) -> Answer<Vec<LogRecord>> {
        self.read(move |mut db| Box::pin(async move { log::page(&mut db, &page, &filter).await }))
    }

    fn ended(&self, instances: Vec<InstanceKey>) -> Answer<Vec<InstanceKey>> {
        self.read(move |mut db| Box::pin(async move { instance::ended(&mut db, &instances).await }))
    }

    fn backlog(&self, known: Arc<[WorkflowName]>) -> Answer<Vec<(WorkflowName, u64)>> {
        self.read(move |mut db| Box::pin(async move { task::backlog(&mut db, &known).await }))
    }

    fn hooks(&self) -> Option<&dyn HookStore> {
        Some(self)
    }

    fn close(&self) -> Answer<()> {
        let (requests, pool) = (self.requests.clone(), self.pool.clone());
        let listening = self.listening.clone();
        let too_long = self.shared.runtime.sleep(CLOSE_MAX);
        Box::pin(async move {
            let closing = async {
                let (closing, closed) = oneshot::channel();
                // Closed before: that is what was asked for.
                if requests.send(Message::Close(closing)).await.is_ok() {
                    let _ = closed.await;
                }
            };
            tokio::select! {
                biased;
                () = closing => {}
                () = too_long => {}
            }
            listening.close().await;
            pool.close().await;
            Ok(())
        })
    }
}

fn done(reply: Reply) -> Option<()> {
    matches!(reply, Reply::Done).then_some(())
}

impl HookStore for PostgresStore {
    fn trigger_hooks(&self, hooks: Vec<NewHook>) -> Answer<()> {
        self.on_pool(move |conn, shared| {
            Box::pin(async move { hook::trigger(conn, shared, &hooks).await })
        })
    }

    fn work_hooks(&self, work: HookWork) -> Answer<HooksWorked> {
        self.on_pool(move |conn, shared| {
            Box::pin(async move { hook::work(conn, shared, &work).await })
        })
    }

    fn next_hook_at(
        &self,
        namespaces: Arc<[HookNamespace]>,
    ) -> Answer<(Timestamp, Option<Timestamp>)> {
        let fixed = self.shared.time.fixed();
        self.read(move |mut db| {
            Box::pin(async move { hook::next_due_at(&mut db, &namespaces, fixed).await })
        })
    }

    fn hook(&self, id: Arc<str>) -> Answer<Option<HookRecord>> {
        self.read(move |mut db| Box::pin(async move { hook::get(&mut db, &id).await }))
    }

    fn hooks(&self, query: HookQuery) -> Answer<Vec<HookRecord>> {
        self.read(move |mut db| Box::pin(async move { hook::page(&mut db, &query).await }))
    }

    fn retry_hook(&self, id: Arc<str>) -> Answer<HookRecord> {
        self.on_pool(move |conn, shared| {
            Box::pin(async move { hook::retry(conn, shared, &id).await })
        })
    }

    fn tell_by_hooks(&self, wanted: EngineHooks) {
        let told = &self.shared.engine_hooks;
        *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(wanted));
    }

    fn schema(&self) -> Option<&str> {
        Some(&self.schema)
    }
}
