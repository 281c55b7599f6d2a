//! What the tests of events, lifecycle, runners, transactions, logs and limits share.
//!
//! Nothing here sleeps or looks at a real clock: a test holds a body open with a [`Gate`], moves the virtual clock
//! itself, and waits for a state with [`eventually`], never for a length of time.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use piton::prelude::*;
use piton::store::{
    Action, Answer, Boundary, ClaimAnswer, ClaimRequest, Committed, CreateRequest, Created,
    InstanceQuery, InstanceView, LogFilter, NewEvent, Observer, PageQuery, Renewed, Store,
    StoreError,
};
use piton::{
    EngineBuilder, EventRecord, InstanceHandle, InstanceId, InstanceStatus, LogLine, LogRecord,
    Registration, Span, StepRecord, Tick, WorkflowName,
};
use piton_core::record::{InstanceKey, InstanceRecord, RunKey, RunNumber};
use piton_testing::Harness;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, watch};

/// Makes a test of each function for every store. A function that is not listed is dead code, and says so.
macro_rules! on_every_store {
    ($($(#[$attribute:meta])* $test:ident),* $(,)?) => {
        mod memory {
            $($(#[$attribute])* #[tokio::test]
            async fn $test() -> piton::Result<()> {
                super::$test(piton_testing::StoreKind::Memory).await
            })*
        }
        mod sqlite {
            $($(#[$attribute])* #[tokio::test]
            async fn $test() -> piton::Result<()> {
                super::$test(piton_testing::StoreKind::Sqlite).await
            })*
        }
        mod postgres {
            $($(#[$attribute])* #[tokio::test]
            async fn $test() -> piton::Result<()> {
                if !piton_testing::postgres::is_available() {
                    return Ok(());
                }
                super::$test(piton_testing::StoreKind::Postgres).await
            })*
        }
    };
}
pub(crate) use on_every_store;

/// The future of a workflow's function.
pub(crate) type Flow<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// A workflow written as a closure over shared state: `flow("name", &gate, |gate, event, step| Box::pin(async move { … }))`.
pub(crate) fn flow<S, P, T, F>(name: &str, state: &S, function: F) -> Registration
where
    S: Clone + Send + Sync + 'static,
    P: Serialize + DeserializeOwned + Send + 'static,
    T: Serialize + DeserializeOwned + Send + 'static,
    F: for<'a> Fn(S, Event<P>, &'a Step) -> Flow<'a, T> + Send + Sync + 'static,
{
    let state = state.clone();
    boxed(name, move |event, step| function(state.clone(), event, step))
}

/// Gives the compiler the signature it cannot infer for a closure that borrows its step.
fn boxed<P, T, F>(name: &str, function: F) -> Registration
where
    P: Serialize + DeserializeOwned + Send + 'static,
    T: Serialize + DeserializeOwned + Send + 'static,
    F: for<'a> Fn(Event<P>, &'a Step) -> Flow<'a, T> + Send + Sync + 'static,
{
    workflow(name, function)
}

/// A door in a body: the body says that it has come this far and stays there until the test opens.
#[derive(Clone)]
pub(crate) struct Gate(Arc<GateState>);

struct GateState {
    arrived: Semaphore,
    opened: Semaphore,
    count: AtomicU32,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self(Arc::new(GateState {
            arrived: Semaphore::new(0),
            opened: Semaphore::new(0),
            count: AtomicU32::new(0),
        }))
    }

    /// In the body: arrives, and waits until the door is opened once for it.
    pub(crate) async fn pass(&self) -> Result<()> {
        self.0.count.fetch_add(1, Ordering::SeqCst);
        self.0.arrived.add_permits(1);
        self.0.opened.acquire().await?.forget();
        Ok(())
    }

    /// In the test: waits until a body has arrived; each arrival counts once.
    pub(crate) async fn arrived(&self) {
        self.0.arrived.acquire().await.unwrap().forget();
    }

    /// Lets one body through, now or when it arrives.
    pub(crate) fn open(&self) {
        self.0.opened.add_permits(1);
    }

    /// How many bodies have arrived so far.
    pub(crate) fn arrivals(&self) -> u32 {
        self.0.count.load(Ordering::SeqCst)
    }
}

/// What happened outside of the engine, in order: the witness of bodies.
#[derive(Clone, Default)]
pub(crate) struct Trail(Arc<Mutex<Vec<String>>>);

impl Trail {
    pub(crate) fn mark(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    /// Marks, as the whole of a body.
    pub(crate) fn note(&self, what: impl Into<String>) -> Result<()> {
        self.mark(what);
        Ok(())
    }

    pub(crate) fn seen(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, what: &str) -> usize {
        self.seen().iter().filter(|seen| *seen == what).count()
    }
}

/// A tick under way: awaiting it waits until every run it took has departed.
pub(crate) type UnderWay<'a> = Pin<Box<dyn Future<Output = Result<Tick>> + 'a>>;

/// Advances what is due until a body arrives at the gate. The passes go on by themselves, also if the returned
/// tick is dropped.
pub(crate) async fn tick_until_arrived<'a>(
    engine: &'a Engine,
    gate: &Gate,
) -> Result<UnderWay<'a>> {
    let mut tick: UnderWay<'a> = Box::pin(engine.tick(1_000));
    tokio::select! {
        rested = &mut tick => panic!("came to rest before the gate: {:?}", rested?),
        () = gate.arrived() => Ok(tick),
    }
}

/// How many looks make [`eventually`] give up: far more than any machine needs.
const LOOKS_MAX: u32 = 1_000_000;

/// Looks again and again until there is something to see. Virtual time stands still meanwhile.
pub(crate) async fn eventually<T, F>(what: &str, mut look: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<Option<T>>>,
{
    for _ in 0..LOOKS_MAX {
        if let Some(seen) = look().await? {
            return Ok(seen);
        }
        tokio::task::yield_now().await;
    }
    panic!("never saw: {what}");
}

/// Waits until the instance has this status.
pub(crate) async fn until_status<O>(
    instance: &InstanceHandle<O>,
    status: InstanceStatus,
) -> Result<()> {
    let what = format!("{instance:?} {status}");
    eventually(&what, || async { Ok((instance.status().await? == status).then_some(())) }).await
}

/// The result of an instance that has ended: says so instead of waiting for ever if it has not.
pub(crate) async fn ended<O: DeserializeOwned>(instance: &InstanceHandle<O>) -> Result<O> {
    let state = instance.describe().await?;
    assert!(state.status.is_terminal(), "not ended: {state:#?}");
    instance.result().await
}

/// Waits until the instance's log has a system line with this text in it.
pub(crate) async fn until_told<O>(instance: &InstanceHandle<O>, text: &str) -> Result<()> {
    eventually(text, || async {
        let told = system_lines(instance, None).await?;
        Ok(told.iter().any(|line| line.contains(text)).then_some(()))
    })
    .await
}

/// Every log line of a run, oldest first, however many pages they take.
pub(crate) async fn log_lines<O>(
    instance: &InstanceHandle<O>,
    run: Option<u32>,
) -> Result<Vec<LogLine>> {
    let (mut lines, mut cursor) = (Vec::new(), None);
    loop {
        let mut query = instance.history().with_logs().page_size(100);
        if let Some(run) = run {
            query = query.run_number(run);
        }
        if let Some(cursor) = cursor.take() {
            query = query.logs_after(cursor);
        }
        let page = query.await?.logs.unwrap();
        lines.extend(page.items.into_iter().map(|record: LogRecord| record.line));
        if !page.has_next_page {
            return Ok(lines);
        }
        cursor = page.cursor;
    }
}

/// What the engine's own log lines of a run say.
pub(crate) async fn system_lines<O>(
    instance: &InstanceHandle<O>,
    run: Option<u32>,
) -> Result<Vec<String>> {
    let lines = log_lines(instance, run).await?;
    let system = lines.into_iter().filter(|line| &*line.category == "system");
    Ok(system.map(|line| line.message.to_string()).collect())
}

/// The steps of a run, oldest first, as `name status`.
pub(crate) async fn steps_of<O>(
    instance: &InstanceHandle<O>,
    run: Option<u32>,
) -> Result<Vec<String>> {
    let mut query = instance.history().page_size(100);
    if let Some(run) = run {
        query = query.run_number(run);
    }
    let steps = query.await?.steps.items;
    Ok(steps.iter().map(|step| format!("{} {}", step.name, step.status)).collect())
}

/// The payloads of a run's events that nobody has taken, oldest first.
pub(crate) async fn buffered<O>(instance: &InstanceHandle<O>) -> Result<Vec<String>> {
    let events = instance.history().page_size(100).await?.events.items;
    let free = events.into_iter().filter(|event| event.delivered_at.is_none());
    Ok(free.map(|event| event.payload.as_str().to_owned()).collect())
}

/// Another engine on the same store, which does something when it is ticked: a second process, as far as the
/// engines can tell.
pub(crate) async fn another_engine(
    harness: &Harness,
    workflows: impl IntoIterator<Item = Registration>,
) -> Result<Engine> {
    engine_on(harness.store(), harness, workflows, EngineBuilder::no_runner).await
}

/// An engine in the harness's world on any store.
pub(crate) async fn engine_on(
    store: Arc<dyn Store>,
    harness: &Harness,
    workflows: impl IntoIterator<Item = Registration>,
    configure: impl FnOnce(EngineBuilder) -> EngineBuilder,
) -> Result<Engine> {
    let runtime = Arc::clone(harness.runtime()) as _;
    let builder = Engine::builder_with_store(store).runtime(runtime);
    let builder = workflows.into_iter().fold(builder, EngineBuilder::register);
    configure(builder).start().await
}

/// One process's way to a store, in which things go wrong when a test says so.
///
/// Closing it leaves the store open, so that others on the same store live on.
pub(crate) struct Access {
    store: Arc<dyn Store>,
    /// No hint gets through.
    deaf: bool,
    /// No write gets through.
    stalled: watch::Sender<bool>,
    /// Writes that were held up so far.
    held: watch::Sender<u32>,
    renewals: watch::Sender<u32>,
    next_commit: Mutex<NextCommit>,
    closed: AtomicBool,
}

/// What happens to the next boundary.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextCommit {
    /// It is committed.
    Works,
    /// It does not reach the store.
    IsLost,
    /// It is committed, but the answer is lost.
    LosesItsAnswer,
}

impl Access {
    pub(crate) fn to(store: Arc<dyn Store>) -> Arc<Self> {
        Self::new(store, false)
    }

    /// A process that no hint reaches.
    pub(crate) fn deaf(store: Arc<dyn Store>) -> Arc<Self> {
        Self::new(store, true)
    }

    fn new(store: Arc<dyn Store>, deaf: bool) -> Arc<Self> {
        Arc::new(Self {
            store,
            deaf,
            stalled: watch::Sender::new(false),
            held: watch::Sender::new(0),
            renewals: watch::Sender::new(0),
            next_commit: Mutex::new(NextCommit::Works),
            closed: AtomicBool::new(false),
        })
    }

    /// From now on no write of this process gets through, as if it was stopped.
    pub(crate) fn stall(&self) {
        self.stalled.send_replace(true);
    }

    /// The process goes on; what it wanted to write gets through now, late.
    pub(crate) fn go_on(&self) {
        self.stalled.send_replace(false);
    }

    /// Waits until a write is held up by the stall.
    pub(crate) async fn holds_a_write(&self) {
        self.held.subscribe().wait_for(|held| *held > 0).await.unwrap();
    }

    /// Waits until leases have been renewed this often in all.
    pub(crate) async fn renewed(&self, times: u32) {
        self.renewals.subscribe().wait_for(|count| *count >= times).await.unwrap();
    }

    pub(crate) fn next_commit(&self, next: NextCommit) {
        *self.next_commit.lock().unwrap() = next;
    }

    /// Whether its engine has closed it.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    fn write<T: Send + 'static>(
        &self,
        call: impl FnOnce(Arc<dyn Store>) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let (store, held) = (Arc::clone(&self.store), self.held.clone());
        let mut stalled = self.stalled.subscribe();
        Box::pin(async move {
            if *stalled.borrow() {
                held.send_modify(|held| *held += 1);
            }
            stalled.wait_for(|stalled| !*stalled).await.ok();
            call(store).await
        })
    }
}

impl Store for Access {
    fn kind(&self) -> &'static str {
        self.store.kind()
    }

    fn observe(&self, observer: Weak<dyn Observer>) {
        if !self.deaf {
            self.store.observe(observer);
        }
    }

    fn create(&self, request: CreateRequest) -> Answer<Vec<Created>> {
        self.write(|store| store.create(request))
    }

    fn send_event(&self, event: NewEvent) -> Answer<EventRecord> {
        self.write(|store| store.send_event(event))
    }

    fn steer(&self, name: WorkflowName, id: InstanceId, action: Action) -> Answer<InstanceRecord> {
        self.write(move |store| store.steer(name, id, action))
    }

    fn claim(&self, request: ClaimRequest) -> Answer<ClaimAnswer> {
        self.write(|store| store.claim(request))
    }

    fn load_steps(&self, instance: InstanceKey, run: RunNumber) -> Answer<Vec<StepRecord>> {
        self.store.load_steps(instance, run)
    }

    fn commit(&self, boundary: Boundary) -> Answer<Committed> {
        let next = std::mem::replace(&mut *self.next_commit.lock().unwrap(), NextCommit::Works);
        let lost = || Err(StoreError::Unavailable("the connection was cut".to_owned()));
        if next == NextCommit::IsLost {
            return Box::pin(std::future::ready(lost()));
        }
        let answer = self.write(|store| store.commit(boundary));
        Box::pin(async move {
            let committed = answer.await;
            if next == NextCommit::LosesItsAnswer { lost() } else { committed }
        })
    }

    fn renew(&self, keys: Vec<RunKey>, lease: Span) -> Answer<Vec<Renewed>> {
        let (answer, renewals) =
            (self.write(move |store| store.renew(keys, lease)), self.renewals.clone());
        Box::pin(async move {
            let renewed = answer.await?;
            renewals.send_modify(|count| *count += 1);
            Ok(renewed)
        })
    }

    fn release(&self, keys: Vec<RunKey>) -> Answer<()> {
        self.write(|store| store.release(keys))
    }

    fn next_due_at(&self, names: Arc<[WorkflowName]>) -> Answer<Option<Timestamp>> {
        self.store.next_due_at(names)
    }

    fn append_logs(&self, key: InstanceKey, run: RunNumber, lines: Vec<LogLine>) -> Answer<()> {
        self.write(move |store| store.append_logs(key, run, lines))
    }

    fn instance(&self, name: WorkflowName, id: InstanceId) -> Answer<Option<InstanceView>> {
        self.store.instance(name, id)
    }

    fn instances(&self, query: InstanceQuery) -> Answer<Vec<InstanceRecord>> {
        self.store.instances(query)
    }

    fn steps(&self, page: PageQuery) -> Answer<Vec<StepRecord>> {
        self.store.steps(page)
    }

    fn events(&self, page: PageQuery) -> Answer<Vec<EventRecord>> {
        self.store.events(page)
    }

    fn logs(&self, page: PageQuery, filter: LogFilter) -> Answer<Vec<LogRecord>> {
        self.store.logs(page, filter)
    }

    fn ended(&self, instances: Vec<InstanceKey>) -> Answer<Vec<InstanceKey>> {
        self.store.ended(instances)
    }

    fn backlog(&self, known: Arc<[WorkflowName]>) -> Answer<Vec<(WorkflowName, u64)>> {
        self.store.backlog(known)
    }

    fn close(&self) -> Answer<()> {
        self.closed.store(true, Ordering::SeqCst);
        Box::pin(std::future::ready(Ok(())))
    }
}
