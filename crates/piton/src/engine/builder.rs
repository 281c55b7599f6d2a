//! How an engine is configured and started.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use piton_core::claim::ClaimRules;
use piton_core::{Code, DurationError, IntoSpan, Limits, Refusal, Retries, Span};

use super::registry::Registry;
use super::{Engine, Shared};
use crate::client::Waiters;
use crate::hooks::{HookShared, Hooks};
use crate::intercept::Interceptor;
use crate::pass::StepDefaults;
use crate::runner::RunnerConfig;
use crate::runtime::{Ids, Runtime, TokioRuntime};
use crate::store::{MemoryStore, Store};
use crate::workflow::Registration;
use crate::{Error, Result};

/// Where an engine keeps its data.
pub(super) enum Database {
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
    pub(super) fn new(database: Database) -> Self {
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

    /// Advances nothing by itself: for processes that only create, send events and look, and for hosts that call
    /// [`Engine::tick`].
    ///
    /// A process that comes and goes wants this, or [`Engine::shutdown`] at its end: what it creates or wakes starts in it, and
    /// if it just exits, others wait for the lease before they go on.
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
