//! The store that keeps everything in memory: for tests, for examples, and for reading.
//!
//! It is the shortest complete answer to what a [`Store`] is. One mutex around plain maps makes every
//! method one transaction; each reads the rows concerned, asks `piton_core` what changes, and writes that.
//! Nothing survives the process, and there is no SQL for step transactions: otherwise it keeps every
//! promise of the seam.
//!
//! Read `client` and `runner` for what each call does, `state` for the rows and their indexes.

mod client;
mod dump;
mod hook;
mod reading;
mod runner;
mod state;
mod transaction;

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use piton_core::hook::{HookRecord, NewHook};
use piton_core::record::{
    EventRecord, InstanceKey, InstanceRecord, LogLine, LogRecord, RunKey, RunNumber, StepRecord,
};
use piton_core::{HookNamespace, InstanceId, Span, Timestamp, WorkflowName};

use self::state::{Run, State};
use self::transaction::Transaction;
use super::{
    Action, Answer, Boundary, ClaimAnswer, ClaimRequest, Claimant, Committed, CreateRequest,
    Created, EngineHooks, HookQuery, HookStore, HookWork, HooksWorked, InstanceQuery, InstanceView,
    LogFilter, NewEvent, Observer, Observers, PageQuery, Renewed, Secret, Sent, Store, StoreError,
};
use crate::runtime::{Ids, Runtime};

pub use self::dump::{DumpedInstance, DumpedRun};

/// A [`Store`] in memory: as strict as the others, and gone with the process.
pub struct MemoryStore {
    runtime: Arc<dyn Runtime>,
    ids: Ids,
    observers: Observers,
    /// Drawn when it is first asked for.
    secret: OnceLock<Secret>,
    engine_hooks: Mutex<Option<Arc<EngineHooks>>>,
    /// `None` once closed.
    state: Mutex<Option<State>>,
}

impl MemoryStore {
    /// An empty store whose clock and ids come from `runtime`.
    pub fn new(runtime: Arc<dyn Runtime>) -> Arc<Self> {
        Arc::new(Self {
            ids: Ids::new(Arc::clone(&runtime)),
            runtime,
            observers: Observers::default(),
            secret: OnceLock::new(),
            engine_hooks: Mutex::default(),
            state: Mutex::new(Some(State::default())),
        })
    }

    fn with_state<T>(
        &self,
        work: impl FnOnce(&mut State) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        // A transaction that panicked may be half written: like a failed fsync, it ends the store.
        let panicked = |_| StoreError::Failed("a transaction panicked".to_owned());
        let mut state = self.state.lock().map_err(panicked)?;
        work(state.as_mut().ok_or(StoreError::Closed)?)
    }

    /// Runs one transaction, and tells the observers once it is over.
    fn transact<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T, StoreError>,
    ) -> Answer<T> {
        let engine_hooks = self.engine_hooks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let done = self.with_state(|state| {
            let mut transaction = Transaction {
                state,
                ids: &self.ids,
                now: self.runtime.now(),
                hints: Vec::new(),
                engine_hooks: engine_hooks.as_deref(),
            };
            let answer = work(&mut transaction)?;
            Ok((answer, transaction.hints))
        });
        let answer = done.map(|(answer, hints)| {
            self.observers.tell(hints);
            answer
        });
        Box::pin(std::future::ready(answer))
    }

    fn read<T: Send + 'static>(&self, work: impl FnOnce(&State) -> T) -> Answer<T> {
        Box::pin(std::future::ready(self.with_state(|state| Ok(work(state)))))
    }

    fn read_run<T: Send + 'static>(
        &self,
        instance: InstanceKey,
        run: RunNumber,
        work: impl FnOnce(&Run) -> Vec<T>,
    ) -> Answer<Vec<T>> {
        self.read(|state| state.run(instance, run).map(work).unwrap_or_default())
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryStore")
    }
}

impl Store for MemoryStore {
    fn kind(&self) -> &'static str {
        "memory"
    }

    fn secret(&self) -> Secret {
        *self.secret.get_or_init(|| {
            let mut secret = Secret::default();
            for bytes in secret.chunks_exact_mut(8) {
                bytes.copy_from_slice(&self.runtime.random_u64().to_le_bytes());
            }
            secret
        })
    }

    fn observe(&self, observer: Weak<dyn Observer>) {
        self.observers.add(observer);
    }

    fn create(&self, request: CreateRequest) -> Answer<Vec<Created>> {
        self.transact(|tx| Ok(tx.create(request)?))
    }

    fn send_event(&self, event: NewEvent, claimant: Option<Claimant>) -> Answer<Sent> {
        self.transact(|tx| Ok(tx.send_event(event, claimant.as_ref())?))
    }

    fn steer(
        &self,
        workflow: WorkflowName,
        id: InstanceId,
        action: Action,
    ) -> Answer<InstanceRecord> {
        self.transact(|tx| Ok(tx.steer(&workflow, &id, action)?))
    }

    fn claim(&self, request: ClaimRequest) -> Answer<ClaimAnswer> {
        self.transact(|tx| Ok(tx.claim(&request)))
    }

    fn claim_instance(&self, instance: InstanceKey, request: ClaimRequest) -> Answer<ClaimAnswer> {
        self.transact(|tx| Ok(tx.claim_instance(instance, &request)))
    }

    fn load_steps(&self, instance: InstanceKey, run: RunNumber) -> Answer<Vec<StepRecord>> {
        self.read_run(instance, run, |run| run.steps.values().cloned().collect())
    }

    fn commit(&self, boundary: Boundary) -> Answer<Committed> {
        self.transact(|tx| tx.commit(boundary))
    }

    fn renew(&self, keys: Vec<RunKey>, lease: Span) -> Answer<Vec<Renewed>> {
        self.transact(|tx| Ok(tx.renew(keys, lease)))
    }

    fn release(&self, keys: Vec<RunKey>) -> Answer<()> {
        self.transact(|tx| {
            tx.release(keys);
            Ok(())
        })
    }

    fn next_due_at(&self, workflows: Arc<[WorkflowName]>) -> Answer<Option<Timestamp>> {
        self.transact(|tx| Ok(tx.next_due_at(&workflows)))
    }

    fn next_claimable_at(&self, workflows: Arc<[WorkflowName]>) -> Answer<Option<Timestamp>> {
        self.transact(|tx| Ok(tx.next_claimable_at(&workflows)))
    }

    fn append_logs(
        &self,
        instance: InstanceKey,
        run: RunNumber,
        lines: Vec<LogLine>,
    ) -> Answer<()> {
        self.transact(|tx| {
            tx.append_logs(instance, run, lines);
            Ok(())
        })
    }

    fn instance(&self, workflow: WorkflowName, id: InstanceId) -> Answer<Option<InstanceView>> {
        self.read(|state| reading::instance(state, &workflow, &id))
    }

    fn instances(&self, query: InstanceQuery) -> Answer<Vec<InstanceRecord>> {
        self.read(|state| reading::instances(state, &query))
    }

    fn steps(&self, page: PageQuery) -> Answer<Vec<StepRecord>> {
        self.read_run(page.instance, page.run, |run| reading::page(&run.steps, page, |_| true))
    }

    fn events(&self, page: PageQuery) -> Answer<Vec<EventRecord>> {
        self.read_run(page.instance, page.run, |run| reading::page(&run.events, page, |_| true))
    }

    fn logs(&self, page: PageQuery, filter: LogFilter) -> Answer<Vec<LogRecord>> {
        let keep = |log: &LogRecord| {
            let category = filter.category.as_ref();
            filter.level.is_none_or(|level| log.line.level == level)
                && category.is_none_or(|category| log.line.category == *category)
        };
        self.read_run(page.instance, page.run, |run| reading::page(&run.logs, page, keep))
    }

    fn ended(&self, instances: Vec<InstanceKey>) -> Answer<Vec<InstanceKey>> {
        self.read(|state| reading::ended(state, instances))
    }

    fn backlog(&self, known: Arc<[WorkflowName]>) -> Answer<Vec<(WorkflowName, u64)>> {
        self.read(|state| reading::backlog(state, &known))
    }

    fn hooks(&self) -> Option<&dyn HookStore> {
        Some(self)
    }

    fn close(&self) -> Answer<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = None;
        Box::pin(std::future::ready(Ok(())))
    }
}

impl HookStore for MemoryStore {
    fn trigger_hooks(&self, hooks: Vec<NewHook>) -> Answer<()> {
        self.transact(|tx| {
            tx.trigger_all(hooks);
            Ok(())
        })
    }

    fn work_hooks(&self, work: HookWork) -> Answer<HooksWorked> {
        self.transact(|tx| Ok(tx.work_hooks(&work)))
    }

    fn next_hook_at(
        &self,
        namespaces: Arc<[HookNamespace]>,
    ) -> Answer<(Timestamp, Option<Timestamp>)> {
        let now = self.runtime.now();
        self.read(|state| (now, state.hooks.next_due_at(&namespaces)))
    }

    fn hook(&self, id: Arc<str>) -> Answer<Option<HookRecord>> {
        self.read(|state| state.hooks.get(&id))
    }

    fn hooks(&self, query: HookQuery) -> Answer<Vec<HookRecord>> {
        self.read(|state| state.hooks.page(&query))
    }

    fn retry_hook(&self, id: Arc<str>) -> Answer<HookRecord> {
        self.transact(|tx| Ok(tx.retry_hook(&id)?))
    }

    fn tell_by_hooks(&self, wanted: EngineHooks) {
        let mut engine_hooks = self.engine_hooks.lock().unwrap_or_else(PoisonError::into_inner);
        *engine_hooks = Some(Arc::new(wanted));
    }
}
