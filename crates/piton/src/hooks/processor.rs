//! Who processes the hooks of a namespace.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use piton_core::hook::HookRecord;
use piton_core::{HookName, HookNamespace, Span, Timestamp};
use tokio::sync::{Notify, watch};

use super::client::hook_store;
use super::registry::Config;
use super::round::Round;
use super::suspects::Suspects;
use super::{HookHandler, Registered};
use crate::engine::Shared;
use crate::runtime::BoxFuture;
use crate::store::{HookWork, PRUNED_MAX};
use crate::{Error, Result};

/// How often completed hooks that are old enough are removed.
pub(super) const PRUNE_INTERVAL: Span = Span::from_millis(60_000);

pub(super) fn log_unpruned(error: &Error) {
    tracing::warn!(%error, "completed hooks could not be removed; trying again later");
}

/// Something that processes hooks: what dispatchers drive.
pub trait Processor: Send + Sync + 'static {
    /// Whose hooks these are.
    fn namespace(&self) -> &str;

    /// Processes the hooks that are due and returns how many: completed, failed and to be retried. Any number of
    /// calls may run at the same time, in any process.
    fn process(&self) -> BoxFuture<Result<usize>>;

    /// When there will be something to do, by this process's clock: now or earlier if there is already; `None` if
    /// there is nothing. A hook in hand counts with the end of its lease, so that one whose process died is found.
    fn next_wake_at(&self) -> BoxFuture<Result<Option<Timestamp>>>;
}

/// Processes the hooks of one namespace, with the handlers of an engine.
pub struct HookProcessor {
    pub(super) inner: Arc<Inner>,
}

/// What a processor and its rounds share.
pub(super) struct Inner {
    pub(super) shared: Arc<Shared>,
    pub(super) namespace: HookNamespace,
    pub(super) handlers: BTreeMap<HookName, Arc<dyn HookHandler>>,
    pub(super) config: Config,
    /// Something may be due: a round under way looks again.
    pub(super) news: Notify,
    /// Takes nothing more.
    pub(super) stopping: AtomicBool,
    /// Hands back what is in hand.
    pub(super) abandoned: watch::Sender<bool>,
    pub(super) suspects: Suspects,
    /// How many rounds are under way, whoever asked for them.
    rounds: watch::Sender<usize>,
    /// When old hooks were last removed, by the monotonic clock.
    pruned_us: Mutex<Option<u64>>,
}

impl HookProcessor {
    pub(super) fn new(shared: Arc<Shared>, registered: Registered, suspects: Suspects) -> Self {
        let Registered { namespace, handlers, config } = registered;
        let (news, stopping) = (Notify::new(), AtomicBool::new(false));
        let inner = Inner {
            shared,
            namespace,
            handlers,
            config,
            news,
            stopping,
            abandoned: watch::Sender::new(false),
            suspects,
            rounds: watch::Sender::new(0),
            pruned_us: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    pub(super) fn namespace_name(&self) -> &HookNamespace {
        &self.inner.namespace
    }

    /// A round under way looks for more.
    pub(super) fn look(&self) {
        self.inner.news.notify_one();
    }

    /// Like [`process`](Processor::process), but takes this many hooks at most: it comes to an end however fast hooks
    /// are triggered.
    pub(super) fn tick(&self, hooks_max: usize) -> BoxFuture<Result<usize>> {
        self.round(Some(hooks_max))
    }

    fn round(&self, hooks_max: Option<usize>) -> BoxFuture<Result<usize>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let _under_way = UnderWay::new(&inner);
            let processed = Round::new(Arc::clone(&inner), hooks_max).run().await?;
            // Where nothing runs in the background nobody else does.
            if processed > 0 && inner.is_to_prune() {
                let _ = inner.prune().await.inspect_err(log_unpruned);
            }
            Ok(processed)
        })
    }

    /// Hands back what is in hand.
    pub(super) fn abandon(&self) {
        self.inner.abandoned.send_replace(true);
    }

    /// Takes nothing more; what is in hand is finished.
    pub(super) fn stop(&self) {
        self.inner.stopping.store(true, Ordering::SeqCst);
    }

    /// Waits until no round is under way.
    pub(super) async fn rested(&self) {
        let _ = self.inner.rounds.subscribe().wait_for(|rounds| *rounds == 0).await;
    }

    /// Removes completed hooks that are older than they are to be kept.
    ///
    /// # Errors
    ///
    /// If the store cannot be used.
    pub async fn prune(&self) -> Result<usize> {
        self.inner.prune().await
    }
}

/// A round, until it is over or dropped.
struct UnderWay(Arc<Inner>);

impl UnderWay {
    fn new(inner: &Arc<Inner>) -> Self {
        inner.rounds.send_modify(|rounds| *rounds += 1);
        Self(Arc::clone(inner))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.rounds.send_modify(|rounds| *rounds -= 1);
    }
}

impl Inner {
    /// Nothing to do yet.
    pub(super) fn work(&self) -> HookWork {
        let owner = Arc::clone(&self.shared.runner_name);
        let mut work = HookWork::new(owner, self.namespace.clone(), self.config.lease);
        work.forget_completed = self.config.keep_completed <= Span::ZERO;
        work
    }

    /// Whether the last time is a while ago.
    fn is_to_prune(&self) -> bool {
        let now_us = self.shared.runtime.monotonic_us();
        let interval_us = PRUNE_INTERVAL.as_millis().unsigned_abs() * 1_000;
        let pruned_us = *self.pruned_us.lock().unwrap_or_else(PoisonError::into_inner);
        pruned_us.is_none_or(|before| now_us.saturating_sub(before) >= interval_us)
    }

    async fn prune(&self) -> Result<usize> {
        let now_us = self.shared.runtime.monotonic_us();
        *self.pruned_us.lock().unwrap_or_else(PoisonError::into_inner) = Some(now_us);
        let mut removed = 0;
        loop {
            let mut work = self.work();
            work.prune = Some(self.config.keep_completed);
            let worked = hook_store(&self.shared)?.work_hooks(work).await?;
            removed += worked.pruned;
            if worked.pruned < PRUNED_MAX {
                return Ok(removed);
            }
        }
    }

    /// What runs for a hook.
    pub(super) fn handler(&self, hook: &HookRecord) -> Result<Arc<dyn HookHandler>> {
        self.handlers.get(&hook.name).cloned().ok_or_else(|| {
            let (name, namespace) = (&hook.name, &hook.namespace);
            let message = format!("no handler for hook {name:?} in namespace {namespace:?}");
            Error::new(message).named("UnknownHook")
        })
    }
}

impl Processor for HookProcessor {
    fn namespace(&self) -> &str {
        self.inner.namespace.as_str()
    }

    fn process(&self) -> BoxFuture<Result<usize>> {
        self.round(None)
    }

    fn next_wake_at(&self) -> BoxFuture<Result<Option<Timestamp>>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let namespaces = [inner.namespace.clone()].into();
            let (now, next) = hook_store(&inner.shared)?.next_hook_at(namespaces).await?;
            // The store's clock need not be ours: what counts is how long it takes from now.
            Ok(next.map(|at| inner.shared.runtime.now().plus(at.since(now))))
        })
    }
}

impl fmt::Debug for HookProcessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HookProcessor({})", self.inner.namespace)
    }
}

/// Several processors as one. What goes wrong in one of them does not keep the others from working.
pub struct ProcessorGroup {
    processors: Vec<Arc<dyn Processor>>,
    namespaces: String,
}

impl ProcessorGroup {
    /// These processors, as one.
    pub fn new(processors: impl IntoIterator<Item = Arc<dyn Processor>>) -> Self {
        let processors: Vec<_> = processors.into_iter().collect();
        let names: Vec<&str> = processors.iter().map(|processor| processor.namespace()).collect();
        let namespaces = names.join(",");
        Self { processors, namespaces }
    }
}

impl Processor for ProcessorGroup {
    /// All of them, with commas between.
    fn namespace(&self) -> &str {
        &self.namespaces
    }

    /// The first error, if there is one, after all have done what they could.
    fn process(&self) -> BoxFuture<Result<usize>> {
        let all: Vec<_> = self.processors.iter().map(|processor| processor.process()).collect();
        Box::pin(processed_by_all(all))
    }

    /// The earliest of all. If one cannot tell, nobody knows.
    fn next_wake_at(&self) -> BoxFuture<Result<Option<Timestamp>>> {
        let all: Vec<_> =
            self.processors.iter().map(|processor| processor.next_wake_at()).collect();
        Box::pin(async move {
            let mut next: Option<Timestamp> = None;
            for one in side_by_side(all).await {
                next = [next, one?].into_iter().flatten().min();
            }
            Ok(next)
        })
    }
}

/// Lets them run side by side. The first error, if there is one, after all have done what they could.
pub(super) async fn processed_by_all(all: Vec<BoxFuture<Result<usize>>>) -> Result<usize> {
    let mut processed = 0;
    let mut failed = None;
    for one in side_by_side(all).await {
        match one {
            Ok(count) => processed += count,
            Err(error) => drop(failed.get_or_insert(error)),
        }
    }
    failed.map_or(Ok(processed), Err)
}

/// Polls them together until each has ended.
async fn side_by_side<T>(mut running: Vec<BoxFuture<T>>) -> Vec<T> {
    let mut ended: Vec<Option<T>> = running.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (one, ended) in running.iter_mut().zip(&mut ended).filter(|(_, ended)| ended.is_none())
        {
            if let Poll::Ready(value) = one.as_mut().poll(context) {
                *ended = Some(value);
            }
        }
        if ended.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    ended.into_iter().flatten().collect()
}

impl fmt::Debug for ProcessorGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProcessorGroup({})", self.namespaces)
    }
}
