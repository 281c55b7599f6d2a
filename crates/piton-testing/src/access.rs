//! One process's way to a store, in which things go wrong when a test says so.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use piton::store::{
    Action, Answer, Boundary, ClaimAnswer, ClaimRequest, Claimant, Committed, CreateRequest,
    Created, EngineHooks, HookQuery, HookStore, HookWork, HooksWorked, InstanceQuery, InstanceView,
    LogFilter, NewEvent, Observer, PageQuery, Renewed, Secret, Sent, Store, StoreError,
};
use piton_core::boundary::Next;
use piton_core::hook::{HookRecord, NewHook};
use piton_core::record::{
    EventRecord, InstanceKey, InstanceRecord, LogLine, LogRecord, RunKey, RunNumber, StepRecord,
};
use piton_core::{HookNamespace, InstanceId, Span, Timestamp, WorkflowName};
use tokio::sync::watch;

/// Turns that others get before an answer that comes late.
const YIELDS: u32 = 32;

/// One process's way to a store, in which things go wrong when a test says so.
///
/// Closing it leaves the store open, so that others on the same store live on.
pub struct Access {
    store: Arc<dyn Store>,
    /// No hint gets through.
    deaf: bool,
    /// No write gets through.
    stalled: watch::Sender<bool>,
    /// Writes that were held up so far.
    held: watch::Sender<u32>,
    renewals: watch::Sender<u32>,
    claims: watch::Sender<u32>,
    next_commit: Mutex<NextCommit>,
    /// How often work on hooks still goes wrong.
    hook_failures: AtomicU32,
    /// Boundaries sent so far, in words.
    boundaries: Mutex<Vec<String>>,
    crash: Mutex<Option<Crash>>,
    crashed: AtomicBool,
    closed: AtomicBool,
}

/// When a process dies.
#[derive(Clone, Copy)]
struct Crash {
    at_commit: usize,
    what_happens: NextCommit,
}

/// What happens to the next boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextCommit {
    /// It is committed.
    Works,
    /// It does not reach the store.
    IsLost,
    /// It is committed, but the answer is lost.
    LosesItsAnswer,
    /// It is committed, and the answer arrives together with the process's next claim.
    IsAnsweredWithTheNextClaim,
    /// It is committed, and the process hears of its next renewal before it hears of that.
    IsAnsweredBehindARenewal,
}

impl Access {
    /// A process's way to `store`, on which everything works until a test says otherwise.
    pub fn to(store: Arc<dyn Store>) -> Arc<Self> {
        Self::new(store, false)
    }

    /// A process that no hint reaches.
    pub fn deaf(store: Arc<dyn Store>) -> Arc<Self> {
        Self::new(store, true)
    }

    fn new(store: Arc<dyn Store>, deaf: bool) -> Arc<Self> {
        Arc::new(Self {
            store,
            deaf,
            stalled: watch::Sender::new(false),
            held: watch::Sender::new(0),
            renewals: watch::Sender::new(0),
            claims: watch::Sender::new(0),
            next_commit: Mutex::new(NextCommit::Works),
            hook_failures: AtomicU32::new(0),
            boundaries: Mutex::default(),
            crash: Mutex::new(None),
            crashed: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        })
    }

    /// From now on no write of this process gets through, as if it was stopped.
    pub fn stall(&self) {
        self.stalled.send_replace(true);
    }

    /// The process goes on; what it wanted to write gets through now, late.
    pub fn go_on(&self) {
        self.stalled.send_replace(false);
    }

    /// The next pieces of work on hooks do not reach the store.
    pub fn fail_hooks(&self, times: u32) {
        self.hook_failures.store(times, Ordering::SeqCst);
    }

    /// Waits until a write is held up by the stall.
    pub async fn holds_a_write(&self) {
        let _ = self.held.subscribe().wait_for(|held| *held > 0).await;
    }

    /// Waits until leases have been renewed this often in all.
    pub async fn renewed(&self, times: u32) {
        let _ = self.renewals.subscribe().wait_for(|count| *count >= times).await;
    }

    /// Says what happens to the next boundary.
    pub fn next_commit(&self, next: NextCommit) {
        *lock(&self.next_commit) = next;
    }

    /// The boundaries this process has sent so far, in words.
    pub(crate) fn boundaries(&self) -> Vec<String> {
        lock(&self.boundaries).clone()
    }

    /// Lets the process die at its n-th boundary, counted from 1: from then on nothing it writes gets through.
    pub(crate) fn crash_at(&self, at_commit: usize, what_happens: NextCommit) {
        *lock(&self.crash) = Some(Crash { at_commit, what_happens });
    }

    /// Whether the process has died.
    pub(crate) fn has_crashed(&self) -> bool {
        self.crashed.load(Ordering::SeqCst)
    }

    /// Whether its engine has closed it.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// What happens to this commit, and whether the process dies with it.
    fn fate(&self, boundary: &Boundary) -> (NextCommit, bool) {
        let number = {
            let mut boundaries = lock(&self.boundaries);
            boundaries.push(in_words(boundary));
            boundaries.len()
        };
        let next = std::mem::replace(&mut *lock(&self.next_commit), NextCommit::Works);
        match *lock(&self.crash) {
            Some(crash) if crash.at_commit == number => (crash.what_happens, true),
            Some(_) | None => (next, false),
        }
    }

    fn write<T: Send + 'static>(
        &self,
        call: impl FnOnce(Arc<dyn Store>) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        if self.has_crashed() {
            let gone = StoreError::Unavailable("the process is gone".to_owned());
            return Box::pin(std::future::ready(Err(gone)));
        }
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

    fn secret(&self) -> Secret {
        self.store.secret()
    }

    fn observe(&self, observer: Weak<dyn Observer>) {
        if !self.deaf {
            self.store.observe(observer);
        }
    }

    fn create(&self, request: CreateRequest) -> Answer<Vec<Created>> {
        self.write(|store| store.create(request))
    }

    fn send_event(&self, event: NewEvent, claimant: Option<Claimant>) -> Answer<Sent> {
        self.write(|store| store.send_event(event, claimant))
    }

    fn steer(&self, name: WorkflowName, id: InstanceId, action: Action) -> Answer<InstanceRecord> {
        self.write(move |store| store.steer(name, id, action))
    }

    fn claim(&self, request: ClaimRequest) -> Answer<ClaimAnswer> {
        let claims = self.claims.clone();
        self.write(move |store| {
            claims.send_modify(|count| *count += 1);
            store.claim(request)
        })
    }

    fn claim_instance(&self, instance: InstanceKey, request: ClaimRequest) -> Answer<ClaimAnswer> {
        self.write(move |store| store.claim_instance(instance, request))
    }

    fn load_steps(&self, instance: InstanceKey, run: RunNumber) -> Answer<Vec<StepRecord>> {
        self.store.load_steps(instance, run)
    }

    fn commit(&self, boundary: Boundary) -> Answer<Committed> {
        let (fate, dies) = self.fate(&boundary);
        let lost = || Err(StoreError::Unavailable("the connection was cut".to_owned()));
        let answer = match fate {
            NextCommit::IsLost => Box::pin(std::future::ready(lost())),
            NextCommit::Works
            | NextCommit::LosesItsAnswer
            | NextCommit::IsAnsweredWithTheNextClaim
            | NextCommit::IsAnsweredBehindARenewal => self.write(|store| store.commit(boundary)),
        };
        if dies {
            self.crashed.store(true, Ordering::SeqCst);
        }
        let mut claims = self.claims.subscribe();
        let claims_before = *claims.borrow();
        let mut renewals = self.renewals.subscribe();
        let renewals_before = *renewals.borrow();
        Box::pin(async move {
            let committed = answer.await;
            match fate {
                NextCommit::LosesItsAnswer => return lost(),
                NextCommit::IsAnsweredWithTheNextClaim => {
                    let _ = claims.wait_for(|count| *count > claims_before).await;
                }
                NextCommit::IsAnsweredBehindARenewal => {
                    let _ = renewals.wait_for(|count| *count > renewals_before).await;
                    // The renewal has been answered; now its caller takes note.
                    for _ in 0..YIELDS {
                        tokio::task::yield_now().await;
                    }
                }
                NextCommit::Works | NextCommit::IsLost => {}
            }
            committed
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

    fn next_claimable_at(&self, names: Arc<[WorkflowName]>) -> Answer<Option<Timestamp>> {
        self.store.next_claimable_at(names)
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

    fn hooks(&self) -> Option<&dyn HookStore> {
        self.store.hooks().map(|_| self as &dyn HookStore)
    }

    fn close(&self) -> Answer<()> {
        self.closed.store(true, Ordering::SeqCst);
        Box::pin(std::future::ready(Ok(())))
    }
}

/// What hooks are asked of the store behind.
fn hooks_of(store: &dyn Store) -> &dyn HookStore {
    store.hooks().expect("it was asked before")
}

impl HookStore for Access {
    fn trigger_hooks(&self, hooks: Vec<NewHook>) -> Answer<()> {
        self.write(|store| hooks_of(&*store).trigger_hooks(hooks))
    }

    fn work_hooks(&self, work: HookWork) -> Answer<HooksWorked> {
        let left = |times: u32| times.checked_sub(1);
        if self.hook_failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok() {
            let busy = StoreError::Unavailable("as the test asked".to_owned());
            return Box::pin(std::future::ready(Err(busy)));
        }
        self.write(|store| hooks_of(&*store).work_hooks(work))
    }

    fn next_hook_at(
        &self,
        namespaces: Arc<[HookNamespace]>,
    ) -> Answer<(Timestamp, Option<Timestamp>)> {
        hooks_of(&*self.store).next_hook_at(namespaces)
    }

    fn hook(&self, id: Arc<str>) -> Answer<Option<HookRecord>> {
        hooks_of(&*self.store).hook(id)
    }

    fn hooks(&self, query: HookQuery) -> Answer<Vec<HookRecord>> {
        hooks_of(&*self.store).hooks(query)
    }

    fn retry_hook(&self, id: Arc<str>) -> Answer<HookRecord> {
        self.write(|store| hooks_of(&*store).retry_hook(id))
    }

    fn tell_by_hooks(&self, wanted: EngineHooks) {
        hooks_of(&*self.store).tell_by_hooks(wanted);
    }

    fn schema(&self) -> Option<&str> {
        hooks_of(&*self.store).schema()
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Access({})", self.store.kind())
    }
}

/// What a boundary writes, for people.
fn in_words(boundary: &Boundary) -> String {
    let steps = boundary.steps.iter().map(|step| &step.record);
    let waits = boundary.waits.iter().map(|wait| &wait.record);
    let rows = steps.chain(waits).map(|step| format!("{:?} {}", step.name, step.status));
    let next = match &boundary.next {
        Next::Continue { .. } => None,
        Next::Suspend { .. } => Some("the run rests"),
        Next::Complete { .. } => Some("the run completes"),
        Next::Fail { .. } => Some("the run fails"),
    };
    rows.chain(next.map(str::to_owned)).collect::<Vec<_>>().join(", ")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
