//! The engine: what a process starts once and asks for everything.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use piton_core::claim::ClaimRules;
use piton_core::{
    Code, DurationError, IntoSpan, Json, Limits, Refusal, Retries, Span, WorkflowName,
};

use crate::client::{Waiters, WorkflowHandle};
use crate::hooks::{HookClient, HookShared, Hooks, Processor};
use crate::intercept::Interceptor;
use crate::pass::{CheckCreated, StepDefaults};
use crate::runner::{Runner, RunnerConfig};
use crate::runtime::{Ids, Runtime, TaskOwner, TokioRuntime};
use crate::store::{MemoryStore, Observer, Store, StoreError};
use crate::workflow::{Program, Registration};
use crate::{Error, Result};

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

/// The workflows of this engine, by name.
pub(crate) struct Registry {
    programs: HashMap<WorkflowName, Arc<dyn Program>>,
    pub(crate) names: Arc<[WorkflowName]>,
    limits: Arc<Limits>,
}

impl Registry {
    fn new(registrations: Vec<Registration>, limits: Arc<Limits>) -> Result<Self> {
        let mut programs = HashMap::new();
        for Registration { name, program } in registrations {
            let name = WorkflowName::parse(&name, &limits)?;
            if programs.insert(name.clone(), program).is_some() {
                let message = format!("workflow {name:?} is registered twice; names must differ");
                return Err(Refusal::new(Code::InvalidWorkflowName, message).into());
            }
        }
        let mut names: Vec<_> = programs.keys().cloned().collect();
        names.sort();
        Ok(Self { programs, names: names.into(), limits })
    }

    pub(crate) fn program(&self, name: &WorkflowName) -> Option<Arc<dyn Program>> {
        self.programs.get(name).cloned()
    }

    pub(crate) fn find(&self, name: &str) -> Result<(WorkflowName, Arc<dyn Program>)> {
        let name = WorkflowName::parse(name, &self.limits)?;
        let Some(program) = self.program(&name) else {
            let known: Vec<_> = self.names.iter().map(WorkflowName::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let message = format!(
                "no workflow {name:?} is registered with this engine (registered: {known})"
            );
            return Err(Refusal::new(Code::WorkflowNotFound, message).into());
        };
        Ok((name, program))
    }
}

impl CheckCreated for Registry {
    fn check_created(&self, workflow: &str, params: &Json) -> Result<WorkflowName> {
        let (name, program) = self.find(workflow)?;
        program.check_params(params)?;
        Ok(name)
    }
}

/// Where an engine keeps its data.
enum Database {
    Url(String),
    Store(Arc<dyn Store>),
}

/// Configures and starts an [`Engine`].
///
/// ```
/// # use piton::prelude::*;
/// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// let engine = Engine::builder("memory:")
///     .register(workflow("noop", noop))
///     .concurrency(64)
///     .lease("1 minute")
///     .start()
///     .await?;
/// # engine.shutdown("1 second").await
/// # }
/// ```
#[must_use = "an engine does nothing unless it is started"]
pub struct EngineBuilder {
    database: Database,
    registrations: Vec<Registration>,
    hooks: Vec<Hooks>,
    runtime: Option<Arc<dyn Runtime>>,
    limits: Limits,
    config: RunnerConfig,
    step_defaults: StepDefaults,
    interceptor: Option<Arc<dyn Interceptor>>,
    durations: Vec<DurationError>,
}

impl EngineBuilder {
    fn new(database: Database) -> Self {
        Self {
            database,
            registrations: Vec::new(),
            hooks: Vec::new(),
            runtime: None,
            limits: Limits::default(),
            config: RunnerConfig {
                run_in_background: true,
                concurrency: 256,
                poll_interval: Span::from_millis(1_000),
                parked_max: 1_024,
                rules: ClaimRules {
                    lease: Span::from_millis(30_000),
                    claims_without_progress_max: 10,
                },
            },
            step_defaults: StepDefaults {
                retries: Arc::new(Retries::default()),
                timeout: Span::from_millis(600_000),
                wait_timeout: Span::from_days(1),
            },
            interceptor: None,
            durations: Vec::new(),
        }
    }

    /// Adds a workflow: [`workflow("name", function)`](crate::workflow) or a struct that implements
    /// [`Workflow`](crate::Workflow).
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
    /// assert_eq!(engine.workflows(), ["noop"]);
    /// # Ok(()) }
    /// ```
    pub fn register(mut self, registration: impl Into<Registration>) -> Self {
        self.registrations.push(registration.into());
        self
    }

    /// Adds the hook handlers of a namespace. Their hooks are processed in the background, unless
    /// [`no_runner`](Self::no_runner) says otherwise.
    pub fn hooks(mut self, hooks: Hooks) -> Self {
        self.hooks.push(hooks);
        self
    }

    /// How many runs this process advances at the same time. Default 256.
    ///
    /// ```
    /// let builder = piton::Engine::builder("memory:").concurrency(64);
    /// ```
    pub fn concurrency(mut self, runs: usize) -> Self {
        self.config.concurrency = runs;
        self
    }

    /// How long a claim lasts without renewal: the longest delay before another process takes over the
    /// work of one that died. Renewed every third of it. Default 30 seconds, at least 1 second.
    ///
    /// ```
    /// let builder = piton::Engine::builder("memory:").lease("1 minute");
    /// ```
    pub fn lease(mut self, lease: impl IntoSpan) -> Self {
        self.config.rules.lease = self.span(lease, self.config.rules.lease);
        self
    }

    /// How often to look for due work when nothing else tells of it. Default 1 second.
    ///
    /// ```
    /// let builder = piton::Engine::builder("memory:").poll_interval("100 ms");
    /// ```
    pub fn poll_interval(mut self, interval: impl IntoSpan) -> Self {
        self.config.poll_interval = self.span(interval, self.config.poll_interval);
        self
    }

    /// How many waiting runs may stay in memory to go on without replay; 0 switches that off and changes
    /// speed and nothing else. Default 1024.
    ///
    /// ```
    /// let builder = piton::Engine::builder("memory:").parked_runs(0);
    /// ```
    pub fn parked_runs(mut self, runs: usize) -> Self {
        self.config.parked_max = runs;
        self
    }

    /// After how many claims without progress an instance is taken out of circulation as `errored`: what
    /// bounds a step that kills its process. Default 10.
    ///
    /// ```
    /// let builder = piton::Engine::builder("memory:").quarantine_after(3);
    /// ```
    pub fn quarantine_after(mut self, claims: u32) -> Self {
        self.config.rules.claims_without_progress_max = claims;
        self
    }

    /// Changes the limits.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// let limits = Limits { steps_max: 5_000, ..Limits::default() };
    /// let builder = Engine::builder("memory:").limits(limits);
    /// ```
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The retry policy of steps that name none. Default: 5 retries, 10 seconds, exponential.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// let builder = Engine::builder("memory:").default_retries(Retries::linear(3, "1 minute"));
    /// ```
    pub fn default_retries(mut self, retries: Retries) -> Self {
        self.step_defaults.retries = Arc::new(retries);
        self
    }

    /// The timeout of an attempt of steps that name none. Default 10 minutes.
    ///
    /// ```
    /// let builder = piton::Engine::builder("memory:").default_timeout("30 seconds");
    /// ```
    pub fn default_timeout(mut self, timeout: impl IntoSpan) -> Self {
        self.step_defaults.timeout = self.span(timeout, self.step_defaults.timeout);
        self
    }

    /// How long a wait for an event lasts that names no timeout. Default 24 hours.
    ///
    /// ```
    /// let builder = piton::Engine::builder("memory:").default_wait_timeout("7 days");
    /// ```
    pub fn default_wait_timeout(mut self, timeout: impl IntoSpan) -> Self {
        self.step_defaults.wait_timeout = self.span(timeout, self.step_defaults.wait_timeout);
        self
    }

    /// Advances nothing by itself: for processes that only create and look, and for hosts that call
    /// [`Engine::tick`].
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// let engine = Engine::builder("memory:").no_runner().start().await?;
    /// assert!(!engine.has_runner());
    /// # Ok(()) }
    /// ```
    pub fn no_runner(mut self) -> Self {
        self.config.run_in_background = false;
        self
    }

    /// Takes time, randomness and tasks from elsewhere: a virtual clock in tests.
    ///
    /// ```
    /// let clock = piton_testing::VirtualRuntime::new(1);
    /// let builder = piton::Engine::builder("memory:").runtime(clock);
    /// ```
    pub fn runtime(mut self, runtime: Arc<dyn Runtime>) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Shows every step to `interceptor`, which may put something in the place of its body: for tests.
    ///
    /// ```
    /// struct Nothing;
    /// impl piton::intercept::Interceptor for Nothing {}
    ///
    /// let builder = piton::Engine::builder("memory:").interceptor(std::sync::Arc::new(Nothing));
    /// ```
    pub fn interceptor(mut self, interceptor: Arc<dyn Interceptor>) -> Self {
        self.interceptor = Some(interceptor);
        self
    }

    /// Opens the database and starts the engine.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// let engine = Engine::builder("memory:").start().await?;
    /// let refused = Engine::builder("memory:").lease("soon").start().await.unwrap_err();
    /// assert_eq!(refused.code(), Some("INVALID_DURATION"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the database cannot be used, a name or duration is not valid, or there is no tokio runtime.
    pub async fn start(self) -> Result<Engine> {
        if let Some(error) = self.durations.into_iter().next() {
            return Err(error.into());
        }
        check_config(&self.config, &self.step_defaults, &self.limits)?;
        let runtime: Arc<dyn Runtime> = match self.runtime {
            Some(runtime) => runtime,
            None => TokioRuntime::current()?,
        };
        let limits = Arc::new(self.limits);
        let registry = Arc::new(Registry::new(self.registrations, Arc::clone(&limits))?);
        let (hooks, engine_hooks) = crate::hooks::register(self.hooks, &limits)?;
        let store = open(self.database, &runtime).await?;
        if !engine_hooks.is_empty()
            && let Some(store) = store.hooks()
        {
            store.tell_by_hooks(engine_hooks);
        }
        let ids = Arc::new(Ids::new(Arc::clone(&runtime)));
        let shared = Arc::new(Shared {
            runner_name: ids.next("runner"),
            store,
            ids,
            limits,
            registry,
            step_defaults: Arc::new(self.step_defaults),
            interceptor: self.interceptor,
            waiters: Waiters::default(),
            runtime,
        });
        let hooks = HookShared::new(&shared, hooks, self.config.run_in_background)?;
        Ok(Engine::start(shared, hooks, self.config))
    }

    fn span(&mut self, span: impl IntoSpan, before: Span) -> Span {
        span.into_span().unwrap_or_else(|error| {
            self.durations.push(error);
            before
        })
    }
}

impl fmt::Debug for EngineBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineBuilder")
            .field("workflows", &self.registrations)
            .finish_non_exhaustive()
    }
}

fn check_config(config: &RunnerConfig, defaults: &StepDefaults, limits: &Limits) -> Result<()> {
    let refuse = |message: String| Err(Refusal::new(Code::ValidationError, message).into());
    if config.concurrency == 0 {
        return refuse("a concurrency of 0 runs nothing; use no_runner() for that".to_owned());
    }
    let lease = config.rules.lease;
    if lease < Span::from_millis(1_000) {
        return refuse(format!("a lease of {lease} is shorter than 1 second"));
    }
    let poll = config.poll_interval;
    if poll <= Span::ZERO {
        return refuse(format!("a poll interval of {poll} is not longer than nothing"));
    }
    if config.rules.claims_without_progress_max == 0 {
        return refuse("quarantine_after(0) would run nothing".to_owned());
    }
    let timeout = defaults.timeout;
    if timeout <= Span::ZERO {
        return refuse(format!("a default timeout of {timeout} is not longer than nothing"));
    }
    limits.check_wait_timeout(defaults.wait_timeout)?;
    Ok(defaults.retries.check()?)
}

async fn open(database: Database, runtime: &Arc<dyn Runtime>) -> Result<Arc<dyn Store>> {
    let url = match database {
        Database::Store(store) => return Ok(store),
        Database::Url(url) => url,
    };
    match url.split_once(':') {
        Some(("memory", "")) => Ok(MemoryStore::new(Arc::clone(runtime))),
        Some(("sqlite", path)) => open_sqlite(path, runtime).await,
        Some(("postgres" | "postgresql", _)) => open_postgres(url, runtime).await,
        // The rest may hold a password.
        Some((scheme, _)) => Err(Error::store_unusable(format!(
            "{scheme:?} is no kind of database; write \"sqlite:app.db\", \"postgres://user@host/database\" or \"memory:\""
        ))),
        None => Err(Error::store_unusable(format!(
            "{url:?} is not a database; write \"sqlite:app.db\", \"postgres://user@host/database\" or \"memory:\""
        ))),
    }
}

#[cfg(feature = "sqlite")]
async fn open_sqlite(path: &str, runtime: &Arc<dyn Runtime>) -> Result<Arc<dyn Store>> {
    let path = PathBuf::from(path.strip_prefix("//").unwrap_or(path));
    if path.as_os_str().is_empty() {
        return Err(Error::store_unusable(
            "the database URL names no file; write \"sqlite:app.db\"",
        ));
    }
    let runtime = Arc::clone(runtime);
    let open = move || crate::store::SqliteStore::open(&path, runtime);
    let opened = tokio::task::spawn_blocking(open).await;
    let store = opened.map_err(|panic| {
        Error::store_unusable(format!("opening the database failed: {panic}"))
    })??;
    Ok(store)
}

#[cfg(not(feature = "sqlite"))]
async fn open_sqlite(_: &str, _: &Arc<dyn Runtime>) -> Result<Arc<dyn Store>> {
    Err(Error::store_unusable("this build has no SQLite; enable the feature `sqlite` of piton"))
}

#[cfg(feature = "postgres")]
async fn open_postgres(url: String, runtime: &Arc<dyn Runtime>) -> Result<Arc<dyn Store>> {
    let options = crate::store::PostgresOptions::new(url);
    Ok(crate::store::PostgresStore::open(options, Arc::clone(runtime)).await?)
}

#[cfg(not(feature = "postgres"))]
async fn open_postgres(_: String, _: &Arc<dyn Runtime>) -> Result<Arc<dyn Store>> {
    Err(Error::store_unusable(
        "this build has no PostgreSQL; enable the feature `postgres` of piton",
    ))
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
    /// leases of the rest back so that others need not wait for them, and closes the store.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
    /// engine.shutdown("10 seconds").await?;
    /// assert!(engine.tick(1).await.is_err());
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
