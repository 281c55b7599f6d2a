//! What a process does with hooks: trigger, look, retry, process by hand.

use std::fmt;
use std::sync::Arc;

use piton_core::hook::HookRecord;
use piton_core::{Code, HookName, HookNamespace, HookStatus, Refusal, Span, Timestamp, limits};
use serde::Serialize;
use ulid::Ulid;

use super::processor::{PRUNE_INTERVAL, log_unpruned, processed_by_all};
use super::suspects::Suspects;
use super::trigger::{Hook, HookTransaction, SendHook, Trigger};
use super::{HookProcessor, PollingDispatcher, Processor, ProcessorGroup, Registered};
use crate::client::{Cursor, Page, PageBounds, cursor};
use crate::engine::Shared;
use crate::runtime::{BoxFuture, TaskOwner};
use crate::store::{Hint, HookQuery, HookStore, Observer, default_namespace};
use crate::{Error, Result};

/// How long a store has to record which hooks were handed back: those that are not are taken again after their lease.
const HAND_BACK_MAX: Span = Span::from_millis(1_000);

/// What an engine has for its hooks.
pub(crate) struct HookShared {
    shared: Arc<Shared>,
    processors: Vec<Arc<HookProcessor>>,
    /// One per processor, so that a flood in one namespace does not delay another; none without a runner.
    dispatchers: Vec<PollingDispatcher>,
}

impl HookShared {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        registered: Vec<Registered>,
        dispatch: bool,
    ) -> Result<Arc<Self>> {
        let mut processors = Vec::new();
        let mut dispatchers = Vec::new();
        let suspects = Suspects::new();
        for hooks in registered {
            let poll_interval = hooks.config.poll_interval;
            let processor = HookProcessor::new(Arc::clone(shared), hooks, suspects.clone());
            let processor = Arc::new(processor);
            if dispatch {
                let runtime = Arc::clone(&shared.runtime);
                let dispatcher = PollingDispatcher::new(runtime, Arc::clone(&processor) as _);
                dispatchers.push(dispatcher.poll_interval(poll_interval)?);
            }
            processors.push(processor);
        }
        Ok(Arc::new(Self { shared: Arc::clone(shared), processors, dispatchers }))
    }

    /// Starts what runs in the background.
    pub(crate) fn spawn_duties(self: &Arc<Self>) -> Vec<TaskOwner> {
        for dispatcher in &self.dispatchers {
            dispatcher.start();
        }
        if self.dispatchers.is_empty() {
            return Vec::new();
        }
        let pruning = prune_for_ever(Arc::downgrade(self));
        vec![self.shared.runtime.spawn(Box::pin(pruning))]
    }

    /// All processors of this engine as one.
    pub(crate) fn group(&self) -> Option<ProcessorGroup> {
        let all = self.processors.iter();
        let all: Vec<_> =
            all.map(|processor| Arc::clone(processor) as Arc<dyn Processor>).collect();
        (!all.is_empty()).then(|| ProcessorGroup::new(all))
    }

    /// Processes what is due now, up to so many hooks of each namespace; how many.
    pub(crate) async fn tick(&self, hooks_max: usize) -> Result<usize> {
        let all = self.processors.iter().map(|processor| processor.tick(hooks_max));
        processed_by_all(all.collect()).await
    }

    /// Starts no more rounds, and takes nothing more in those under way.
    pub(crate) fn stop(&self) {
        for dispatcher in &self.dispatchers {
            dispatcher.stop();
        }
        for processor in &self.processors {
            processor.stop();
        }
    }

    /// Drops the handlers that are still running, and hands their hooks back, so that nobody need wait for a lease.
    pub(crate) async fn hand_back(&self) {
        for processor in &self.processors {
            processor.abandon();
        }
        tokio::select! {
            biased;
            () = self.finish() => {}
            () = self.shared.runtime.sleep(HAND_BACK_MAX) => {}
        }
        self.abort();
    }

    /// Waits until the rounds under way are over: those of dispatchers, of ticks and of anybody else.
    pub(crate) async fn finish(&self) {
        for processor in &self.processors {
            processor.rested().await;
        }
    }
}

impl HookShared {
    /// Lets go of everything at once, as a crash would.
    pub(crate) fn abort(&self) {
        for dispatcher in &self.dispatchers {
            dispatcher.abort();
        }
    }
}

impl Observer for HookShared {
    fn hint(&self, hint: Hint) {
        let Hint::HookDue { namespace, .. } = hint else { return };
        let found = self.processors.iter().position(|known| *known.namespace_name() == namespace);
        let Some(index) = found else { return };
        self.processors[index].look();
        if let Some(dispatcher) = self.dispatchers.get(index) {
            dispatcher.look();
        }
    }
}

async fn prune_for_ever(hooks: std::sync::Weak<HookShared>) {
    loop {
        let Some(living) = hooks.upgrade() else { return };
        for processor in &living.processors {
            let _ = processor.prune().await.inspect_err(log_unpruned);
        }
        let pause = living.shared.runtime.sleep(PRUNE_INTERVAL);
        drop(living);
        pause.await;
    }
}

/// Hooks of one namespace, as a process uses them; from [`Engine::hooks`](crate::Engine::hooks).
#[derive(Clone)]
pub struct HookClient {
    hooks: Arc<HookShared>,
    namespace: HookNamespace,
}

impl HookClient {
    pub(crate) fn new(hooks: Arc<HookShared>) -> Self {
        Self { hooks, namespace: default_namespace() }
    }

    /// The same for another namespace.
    ///
    /// # Errors
    ///
    /// `INVALID_HOOK_NAME`.
    pub fn namespace(&self, namespace: &str) -> Result<Self> {
        let namespace = HookNamespace::parse(namespace, &self.shared().limits)?;
        Ok(Self { hooks: Arc::clone(&self.hooks), namespace })
    }

    /// Triggers a hook in a transaction of your own: a `&rusqlite::Transaction`, a `&mut sqlx::PgConnection` or the
    /// transaction of a step. The hook is there exactly if that commits.
    ///
    /// An engine hears at once of hooks that its own transactions store. After committing a transaction of your own
    /// call [`wake`](Self::wake), or the next poll finds the hook.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn f(engine: Engine, tx: piton::rusqlite::Transaction<'_>) -> piton::Result<()> {
    /// # let tomorrow = Timestamp::from_millis(0);
    /// let hooks = engine.hooks();
    /// hooks
    ///     .trigger(&tx, "user.created", &"ada@example.org")
    ///     .process_at(tomorrow)
    ///     .retry(Retries::exponential(5, "10 seconds"))
    ///     .store()?;
    /// tx.commit()?;
    /// hooks.wake();
    /// # Ok(())
    /// # }
    /// ```
    pub fn trigger<T: HookTransaction>(
        &self,
        transaction: T,
        name: impl Into<String>,
        payload: &(impl Serialize + ?Sized),
    ) -> Trigger<T> {
        Trigger::new(transaction, Hook::new(name, payload), self.clone())
    }

    /// Triggers a hook in a transaction of its own; await it for its id.
    pub fn send(&self, name: impl Into<String>, payload: &(impl Serialize + ?Sized)) -> SendHook {
        SendHook::alone(self.clone(), Hook::new(name, payload))
    }

    /// Something may be due: the engine's own dispatcher looks for it at once instead of at the next poll. An engine
    /// with [`no_runner`](crate::EngineBuilder::no_runner) has none: wake the dispatcher that you built for it.
    pub fn wake(&self) {
        let namespace = self.namespace.clone();
        self.hooks.hint(Hint::HookDue { namespace, at: self.now() });
    }

    /// Lists hooks, newest first, a page at a time: those of this namespace, unless it is asked for all.
    pub fn list(&self) -> HookList {
        HookList {
            client: self.clone(),
            namespace: Some(self.namespace.clone()),
            name: None,
            status: None,
            page_size: limits::PAGE_SIZE_DEFAULT,
            cursor: None,
        }
    }

    /// A hook of any namespace.
    ///
    /// # Errors
    ///
    /// `HOOK_NOT_FOUND`.
    pub async fn get(&self, id: &str) -> Result<HookRecord> {
        let found = self.store()?.hook(id.into()).await?;
        found.ok_or_else(|| {
            Refusal::new(Code::HookNotFound, format!("there is no hook {id:?}")).into()
        })
    }

    /// Makes a hook due now: one that failed starts anew with all its attempts, one that waits need not wait any longer.
    ///
    /// # Errors
    ///
    /// `HOOK_NOT_FOUND`; `HOOK_NOT_RETRIABLE` if it is done or in hand.
    pub async fn retry(&self, id: &str) -> Result<HookRecord> {
        Ok(self.store()?.retry_hook(id.into()).await?)
    }

    /// The processor of this namespace, for a dispatcher of your own; `None` if this engine has no handlers for it.
    pub fn processor(&self) -> Option<Arc<HookProcessor>> {
        let known = self.hooks.processors.iter();
        known.clone().find(|processor| *processor.namespace_name() == self.namespace).cloned()
    }

    /// The processors of all namespaces of this engine as one; `None` if it has none.
    pub fn processors(&self) -> Option<Arc<ProcessorGroup>> {
        self.hooks.group().map(Arc::new)
    }

    pub(super) fn namespace_name(&self) -> &HookNamespace {
        &self.namespace
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.hooks.shared
    }

    pub(super) fn store(&self) -> Result<&dyn HookStore> {
        hook_store(&self.hooks.shared)
    }

    pub(super) fn schema(&self) -> Option<String> {
        self.store().ok()?.schema().map(str::to_owned)
    }

    pub(super) fn now(&self) -> Timestamp {
        self.shared().runtime.now()
    }
}

impl fmt::Debug for HookClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HookClient({})", self.namespace)
    }
}

/// The hooks of an engine's store.
pub(super) fn hook_store(shared: &Shared) -> Result<&dyn HookStore> {
    shared.store.hooks().ok_or_else(|| {
        let kind = shared.store.kind();
        Error::non_retryable(format!("a {kind} store keeps no hooks"))
    })
}

/// A list of hooks in the making; await it for a page.
#[must_use = "a list does nothing unless it is awaited"]
pub struct HookList {
    client: HookClient,
    namespace: Option<HookNamespace>,
    name: Option<String>,
    status: Option<HookStatus>,
    page_size: u32,
    cursor: Option<Cursor>,
}

impl HookList {
    /// Those of every namespace.
    pub fn all_namespaces(mut self) -> Self {
        self.namespace = None;
        self
    }

    /// Only hooks of this name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Only hooks with this status.
    pub fn status(mut self, status: HookStatus) -> Self {
        self.status = Some(status);
        self
    }

    /// How many hooks a page has: 1 to 100, default 25.
    pub fn page_size(mut self, size: u32) -> Self {
        self.page_size = size;
        self
    }

    /// Goes on where another page ended.
    pub fn after(mut self, cursor: Cursor) -> Self {
        self.cursor = Some(cursor);
        self
    }

    async fn page(self) -> Result<Page<HookRecord>> {
        let Self { client, namespace, name, status, page_size, cursor } = self;
        let limits = &client.shared().limits;
        let bounds = PageBounds::new(page_size, limits)?;
        let secret = client.shared().store.secret();
        let name = name.map(|name| HookName::parse(&name, limits)).transpose()?;
        let scope = cursor::scope(&[
            "hooks",
            namespace.as_ref().map_or("", HookNamespace::as_str),
            name.as_ref().map_or("", HookName::as_str),
            status.map_or("", HookStatus::as_str),
        ]);
        let behind = cursor.map(|cursor| cursor.position(&secret, scope)).transpose()?.map(id_at);
        let query = HookQuery { namespace, name, status, behind, limit: bounds.limit() };
        let rows = client.store()?.hooks(query).await?;
        let page = Page::new(rows, bounds, |last| Cursor::new(&secret, scope, position(&last.id)));
        let Page { items, cursor, has_next_page } = page;
        let cursor = cursor.filter(|_| has_next_page);
        Ok(Page { items, cursor, has_next_page })
    }
}

/// An id is a prefix and a ULID, which has as many bits as a place in a list.
fn position(id: &str) -> cursor::Position {
    let ulid = id.strip_prefix("hook_").and_then(|text| Ulid::from_string(text).ok());
    let bits = ulid.map_or(0, |ulid| ulid.0);
    ((bits >> 64) as u64, bits as u64)
}

fn id_at((high, low): cursor::Position) -> Arc<str> {
    let ulid = Ulid(u128::from(high) << 64 | u128::from(low));
    Arc::from(format!("hook_{ulid}"))
}

impl IntoFuture for HookList {
    type Output = Result<Page<HookRecord>>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.page())
    }
}

impl fmt::Debug for HookList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HookList")
    }
}
