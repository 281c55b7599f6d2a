//! The engine: what a process starts once and asks for everything.

mod builder;
mod registry;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use piton_core::{IntoSpan, Limits};

use self::builder::Database;
use crate::Result;
use crate::client::{Waiters, WorkflowHandle};
use crate::hooks::{HookClient, HookShared, Processor};
use crate::intercept::Interceptor;
use crate::pass::StepDefaults;
use crate::runner::{Runner, RunnerConfig};
use crate::runtime::{Ids, Runtime, TaskOwner};
use crate::store::{Observer, Store, StoreError};

pub use self::builder::EngineBuilder;
pub(crate) use self::registry::Registry;

/// What every part of an engine shares.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) ids: Arc<Ids>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) step_defaults: Arc<StepDefaults>,
    pub(crate) runner_name: Arc<str>,
    pub(crate) interceptor: Option<Arc<dyn Interceptor>>,
    pub(crate) waiters: Waiters,
}

impl Shared {
    /// Workflows with live tasks that nobody here can run, with how many.
    async fn unregistered(&self) -> Result<Vec<(String, u64)>, StoreError> {
        let backlog = self.store.backlog(Arc::clone(&self.registry.names)).await?;
        Ok(backlog.into_iter().map(|(name, count)| (name.to_string(), count)).collect())
    }
}

/// Tells operators once about instances that wait for a workflow to come back.
async fn report_unregistered(shared: Arc<Shared>) {
    for (name, count) in shared.unregistered().await.unwrap_or_default() {
        tracing::warn!(workflow = %name, instances = count, "instances of a workflow that is not registered wait");
    }
}

/// A running engine. Clones are handles to the same engine.
///
/// Dropping the last handle stops it as a crash would: nothing is lost, and leases run out by themselves.
/// [`shutdown`](Self::shutdown) is the polite way.
///
/// ```
/// # use piton::prelude::*;
/// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
/// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
/// let same = engine.clone();
/// same.workflow::<(), ()>("noop")?.create(()).id("one").await?;
/// engine.workflow::<(), ()>("noop")?.get("one").await?.result().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    runner: Arc<Runner>,
    hooks: Arc<HookShared>,
    tasks: Mutex<Vec<TaskOwner>>,
}

/// What a [`tick`](Engine::tick) did.
///
/// ```
/// # use piton::prelude::*;
/// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
/// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).no_runner().start().await?;
/// # let noop = engine.workflow::<(), ()>("noop")?;
/// noop.create(()).await?;
/// assert_eq!(engine.tick(10).await?.processed, 1);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tick {
    /// How many runs were advanced.
    pub processed: usize,
    /// How many hooks were processed.
    pub hooks: usize,
}

impl Engine {
    /// An engine on the database at `url`: `"sqlite:app.db"`, `"postgres://user@host/database"` (with `?schema=flows` if its
    /// tables are not to be in `public`), or `"memory:"` for tests.
    ///
    /// ```no_run
    /// # use piton::prelude::*;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// let engine = Engine::builder("sqlite:app.db").start().await?;
    /// # Ok(()) }
    /// ```
    pub fn builder(url: impl Into<String>) -> EngineBuilder {
        EngineBuilder::new(Database::Url(url.into()))
    }

    /// An engine on a store that is open already.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton::{runtime::TokioRuntime, store::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// let store = MemoryStore::new(TokioRuntime::current()?);
    /// let engine = Engine::builder_with_store(store).start().await?;
    /// # Ok(()) }
    /// ```
    pub fn builder_with_store(store: Arc<dyn Store>) -> EngineBuilder {
        EngineBuilder::new(Database::Store(store))
    }

    fn start(shared: Arc<Shared>, hooks: Arc<HookShared>, config: RunnerConfig) -> Self {
        let runner = Runner::new(Arc::clone(&shared), config);
        let observer: std::sync::Weak<dyn Observer> = Arc::downgrade(&runner) as _;
        shared.store.observe(observer);
        let hooks_observer: std::sync::Weak<dyn Observer> = Arc::downgrade(&hooks) as _;
        shared.store.observe(hooks_observer);
        let mut tasks = runner.spawn_duties();
        tasks.extend(hooks.spawn_duties());
        // Counting a large backlog takes a while: nobody waits for it.
        tasks.push(shared.runtime.spawn(Box::pin(report_unregistered(Arc::clone(&shared)))));
        let tasks = Mutex::new(tasks);
        Self { inner: Arc::new(Inner { shared, runner, hooks, tasks }) }
    }

    /// A typed handle to a workflow of this engine.
    ///
    /// The types must be the ones it was registered with; tools that do not know them use
    /// [`serde_json::Value`], or `Box<serde_json::value::RawValue>` for JSON that stays as it was written.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
    /// let noop = engine.workflow::<(), ()>("noop")?;
    /// let other = engine.workflow::<String, ()>("noop").unwrap_err();
    /// assert_eq!(other.code(), Some("VALIDATION_ERROR"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `WORKFLOW_NOT_FOUND`; `VALIDATION_ERROR` if the types are others.
    pub fn workflow<P: 'static, O: 'static>(&self, name: &str) -> Result<WorkflowHandle<P, O>> {
        let (name, program) = self.inner.shared.registry.find(name)?;
        WorkflowHandle::new(
            Arc::clone(&self.inner.shared),
            Arc::clone(&self.inner.runner),
            name,
            program,
        )
    }

    /// The hooks of this engine's database: triggers them, lists them, retries them.
    pub fn hooks(&self) -> HookClient {
        HookClient::new(Arc::clone(&self.inner.hooks))
    }

    /// The names of the workflows registered with this engine, sorted.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
    /// assert_eq!(engine.workflows(), ["noop"]);
    /// # Ok(()) }
    /// ```
    pub fn workflows(&self) -> Vec<String> {
        self.inner.shared.registry.names.iter().map(ToString::to_string).collect()
    }

    /// Where this engine's time, randomness and tasks come from.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
    /// # let instance = engine.workflow::<(), ()>("noop")?.create(()).await?;
    /// let age = engine.runtime().now().since(instance.describe().await?.created_at);
    /// assert!(age < piton::Span::literal("1 minute"));
    /// # Ok(()) }
    /// ```
    pub fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.inner.shared.runtime)
    }

    /// The limits of this engine.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
    /// assert_eq!(engine.limits().steps_max, 1024);
    /// # Ok(()) }
    /// ```
    pub fn limits(&self) -> &Limits {
        &self.inner.shared.limits
    }

    /// Whether this engine advances due work by itself; see [`EngineBuilder::no_runner`].
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
    /// assert!(engine.has_runner());
    /// # Ok(()) }
    /// ```
    pub fn has_runner(&self) -> bool {
        self.inner.runner.runs_in_background()
    }

    /// Workflows that have live instances in the database but are not registered here, with how many.
    ///
    /// Such instances wait untouched: a deploy may bring their workflow back.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton::{runtime::TokioRuntime, store::MemoryStore};
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let store = MemoryStore::new(TokioRuntime::current()?);
    /// let old = Engine::builder_with_store(store.clone()).register(workflow("noop", noop)).no_runner();
    /// old.start().await?.workflow::<(), ()>("noop")?.create(()).await?;
    /// let new = Engine::builder_with_store(store).start().await?;
    /// assert_eq!(new.unregistered().await?, [("noop".to_owned(), 1)]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn unregistered(&self) -> Result<Vec<(String, u64)>> {
        Ok(self.inner.shared.unregistered().await?)
    }

    /// Claims up to `runs` due runs, advances each as far as it goes, processes up to as many due hooks of each namespace,
    /// and returns when what it took rests: for hosts without a background runner. Any number of ticks may run at the same
    /// time, in any process.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).no_runner().start().await?;
    /// # let noop = engine.workflow::<(), ()>("noop")?;
    /// for _ in 0..3 {
    ///     noop.create(()).await?;
    /// }
    /// assert_eq!(engine.tick(2).await?.processed, 2);
    /// assert_eq!(engine.tick(2).await?.processed, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store cannot be used.
    pub async fn tick(&self, runs: usize) -> Result<Tick> {
        let processed = self.inner.runner.tick(runs).await?;
        let hooks = self.inner.hooks.tick(runs).await?;
        Ok(Tick { processed, hooks })
    }

    /// When there will be something to do for [`tick`](Self::tick), hooks included: now or earlier if there is already.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).no_runner().start().await?;
    /// # let noop = engine.workflow::<(), ()>("noop")?;
    /// assert_eq!(engine.next_wake_at().await?, None);
    /// noop.create(()).await?;
    /// assert!(engine.next_wake_at().await? <= Some(engine.runtime().now()));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn next_wake_at(&self) -> Result<Option<piton_core::Timestamp>> {
        let names = Arc::clone(&self.inner.shared.registry.names);
        let runs = self.inner.shared.store.next_due_at(names).await?;
        let hooks = match self.inner.hooks.group() {
            Some(all) => all.next_wake_at().await?,
            None => None,
        };
        Ok([runs, hooks].into_iter().flatten().min())
    }

    /// Since when, or from when on, there is work that any runner with room would take.
    ///
    /// Unlike [`next_wake_at`](Self::next_wake_at) it leaves out the runs that were claimed again and again without
    /// progress: those are advanced one at a time, and may wait for their turn however long they have been due.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).no_runner().start().await?;
    /// # let noop = engine.workflow::<(), ()>("noop")?;
    /// noop.create(()).await?;
    /// assert!(engine.next_claimable_at().await? <= Some(engine.runtime().now()));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn next_claimable_at(&self) -> Result<Option<piton_core::Timestamp>> {
        let names = Arc::clone(&self.inner.shared.registry.names);
        Ok(self.inner.shared.store.next_claimable_at(names).await?)
    }

    /// Stops politely: claims nothing more, lets running steps and hooks be recorded up to `patience`, hands the
    /// leases of the rest back so that others need not wait for them, and closes the store. Whatever is asked of this
    /// engine afterwards is answered with `SHUTTING_DOWN`.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
    /// engine.shutdown("10 seconds").await?;
    /// assert_eq!(engine.tick(1).await.unwrap_err().code(), Some("SHUTTING_DOWN"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If `patience` is not a duration or the store fails.
    pub async fn shutdown(&self, patience: impl IntoSpan) -> Result<()> {
        let patience = patience.into_span()?;
        let hooks_end = self.inner.shared.runtime.sleep(patience);
        self.inner.hooks.stop();
        let hooks = async {
            tokio::select! {
                biased;
                () = self.inner.hooks.finish() => {}
                () = hooks_end => self.inner.hooks.hand_back().await,
            }
        };
        tokio::join!(self.inner.runner.shutdown(patience), hooks);
        let tasks = std::mem::take(&mut *self.inner.lock_tasks());
        drop(tasks);
        self.inner.shared.waiters.shut_down();
        Ok(self.inner.shared.store.close().await?)
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = &self.inner.shared;
        write!(f, "Engine({} on {})", shared.runner_name, shared.store.kind())
    }
}

impl Inner {
    fn lock_tasks(&self) -> std::sync::MutexGuard<'_, Vec<TaskOwner>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.runner.abandon_all();
        self.hooks.abort();
        self.shared.waiters.shut_down();
    }
}
