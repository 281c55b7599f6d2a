//! The router: which route is served by whom, behind which guard.

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::MethodRouter;
use piton::runtime::{Ids, Runtime};
use piton::{Engine, IntoSpan, Span};
use tokio::sync::Semaphore;

use crate::auth::{Permission, Policies, Policy};
use crate::call::Call;
use crate::guard::{Route, guard};
use crate::host::Hosts;
use crate::{hooks, openapi, routes};

/// What every handler shares.
pub(crate) struct Core {
    pub(crate) engine: Engine,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) ids: Ids,
    pub(crate) policies: Policies,
    pub(crate) hosts: Hosts,
    pub(crate) tick_enabled: bool,
    pub(crate) request_time_max: Span,
    pub(crate) wait_max: Span,
    pub(crate) in_flight: Arc<Semaphore>,
    pub(crate) waiting: Arc<Semaphore>,
    /// One tick at a time: each may advance many runs.
    pub(crate) ticking: Arc<Semaphore>,
}

/// The HTTP API of an engine, on its way to becoming an [`axum::Router`].
///
/// Without a policy it answers nobody: set one with [`authorize`](Self::authorize) or for each permission, or say
/// [`open_to_everyone`](Self::open_to_everyone).
///
/// ```
/// use piton::prelude::*;
/// use piton_http::{Api, BearerTokens, Permission};
///
/// # async fn greet(name: Event<String>, _: &Step) -> Result<String> { Ok(format!("Hello, {}!", *name)) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> anyhow::Result<()> {
/// let engine = Engine::builder("memory:").register(workflow("greet", greet)).start().await?;
/// let tokens = BearerTokens::new().token("a long secret", Permission::ALL)?;
/// let app: axum::Router = axum::Router::new()
///     .nest("/api/workflows", Api::new(engine.clone()).authorize(tokens).router())
///     .merge(piton_http::health(engine));
/// # let _ = app;
/// # Ok(())
/// # }
/// ```
#[must_use = "an API answers nobody until its router is served"]
pub struct Api {
    engine: Engine,
    policies: Policies,
    hosts: Hosts,
    tick_enabled: bool,
    request_time_max: Span,
    wait_max: Span,
    in_flight_max: usize,
    waiting_max: usize,
}

impl Api {
    /// The API of this engine, for nobody yet.
    ///
    /// ```
    /// use piton_http::Api;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = piton::Engine::builder("memory:").start().await?;
    /// let router: axum::Router = Api::new(engine).open_to_everyone().router();
    /// # Ok(()) }
    /// ```
    pub fn new(engine: Engine) -> Self {
        Self {
            engine,
            policies: Policies::default(),
            hosts: Hosts::Names(Vec::new()),
            tick_enabled: false,
            request_time_max: Span::literal("30 seconds"),
            wait_max: Span::literal("60 seconds"),
            in_flight_max: 1024,
            waiting_max: 1024,
        }
    }

    /// Asks this policy about every request, also about those for routes that do not exist.
    ///
    /// ```
    /// use piton_http::{Api, Decision, Permission, policy};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = piton::Engine::builder("memory:").start().await?;
    /// let api = Api::new(engine).authorize(policy(|request| async move {
    ///     Ok(match request.permission {
    ///         Some(Permission::Read) => Decision::Allow,
    ///         _ => Decision::Deny("look, but do not touch".to_owned()),
    ///     })
    /// }));
    /// # Ok(()) }
    /// ```
    pub fn authorize(mut self, policy: impl Policy) -> Self {
        self.policies.set_every(Arc::new(policy));
        self
    }

    /// Asks this policy about the creation of instances.
    ///
    /// ```
    /// use piton_http::{Api, BearerTokens, Permission};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = piton::Engine::builder("memory:").start().await?;
    /// let tokens = BearerTokens::new().token("a secret", [Permission::Create])?;
    /// let api = Api::new(engine).authorize_create(tokens);
    /// # Ok(()) }
    /// ```
    pub fn authorize_create(self, policy: impl Policy) -> Self {
        self.authorize_one(Permission::Create, policy)
    }

    /// Asks this policy about reading: workflows, instances, results, histories and logs.
    ///
    /// ```
    /// use piton_http::{Api, BearerTokens, Permission};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = piton::Engine::builder("memory:").start().await?;
    /// let tokens = BearerTokens::new().token("a secret", [Permission::Read])?;
    /// let api = Api::new(engine).authorize_read(tokens);
    /// # Ok(()) }
    /// ```
    pub fn authorize_read(self, policy: impl Policy) -> Self {
        self.authorize_one(Permission::Read, policy)
    }

    /// Asks this policy about pausing, resuming, terminating and restarting, and about hooks.
    ///
    /// ```
    /// use piton_http::{Api, BearerTokens, Permission};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = piton::Engine::builder("memory:").start().await?;
    /// let tokens = BearerTokens::new().token("a secret", [Permission::Manage])?;
    /// let api = Api::new(engine).authorize_manage(tokens);
    /// # Ok(()) }
    /// ```
    pub fn authorize_manage(self, policy: impl Policy) -> Self {
        self.authorize_one(Permission::Manage, policy)
    }

    /// Asks this policy about sending events.
    ///
    /// ```
    /// use piton_http::{Api, BearerTokens, Permission};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = piton::Engine::builder("memory:").start().await?;
    /// let tokens = BearerTokens::new().token("a secret", [Permission::Events])?;
    /// let api = Api::new(engine).authorize_events(tokens);
    /// # Ok(()) }
    /// ```
    pub fn authorize_events(self, policy: impl Policy) -> Self {
        self.authorize_one(Permission::Events, policy)
    }

    /// Asks this policy about ticks.
    ///
    /// ```
    /// use piton_http::{Api, BearerTokens, Permission};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = piton::Engine::builder("memory:").start().await?;
    /// let tokens = BearerTokens::new().token("a secret", [Permission::Tick])?;
    /// let api = Api::new(engine).authorize_tick(tokens);
    /// # Ok(()) }
    /// ```
    pub fn authorize_tick(self, policy: impl Policy) -> Self {
        self.authorize_one(Permission::Tick, policy)
    }

    fn authorize_one(mut self, permission: Permission, policy: impl Policy) -> Self {
        self.policies.set(permission, Arc::new(policy));
        self
    }

    /// Lets everyone do everything who can reach the server. For a server that only its own machine can reach.
    ///
    /// ```
    /// use piton_http::Api;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = piton::Engine::builder("memory:").start().await?;
    /// let api = Api::new(engine).open_to_everyone();
    /// # Ok(()) }
    /// ```
    pub fn open_to_everyone(mut self) -> Self {
        self.policies = Policies::open();
        self
    }

    /// Answers requests under these host names, too, on any port. Addresses and `localhost` are always answered.
    ///
    /// ```
    /// use piton_http::Api;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = piton::Engine::builder("memory:").start().await?;
    /// let api = Api::new(engine).allow_hosts(["workflows.example.com"]);
    /// # Ok(()) }
    /// ```
    pub fn allow_hosts(mut self, names: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        for name in names {
            self.hosts.allow(name.as_ref());
        }
        self
    }

    /// Answers requests under any host name: for a server behind a proxy that checks it.
    ///
    /// ```
    /// use piton_http::Api;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = piton::Engine::builder("memory:").start().await?;
    /// let api = Api::new(engine).allow_any_host();
    /// # Ok(()) }
    /// ```
    pub fn allow_any_host(mut self) -> Self {
        self.hosts = Hosts::Any;
        self
    }

    /// Switches the tick route on. Off by default. It serves one tick at a time.
    ///
    /// ```
    /// use piton_http::Api;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = piton::Engine::builder("memory:").start().await?;
    /// let api = Api::new(engine).enable_tick();
    /// # Ok(()) }
    /// ```
    pub fn enable_tick(mut self) -> Self {
        self.tick_enabled = true;
        self
    }

    /// How long a request may take. Default 30 seconds.
    ///
    /// ```
    /// use piton_http::Api;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = piton::Engine::builder("memory:").start().await?;
    /// let api = Api::new(engine).request_time_max("10 seconds")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If it is not a duration.
    pub fn request_time_max(mut self, time: impl IntoSpan) -> piton::Result<Self> {
        self.request_time_max = time.into_span()?;
        Ok(self)
    }

    /// The longest `wait` that a caller may ask for. Default 60 seconds.
    ///
    /// ```
    /// use piton_http::Api;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = piton::Engine::builder("memory:").start().await?;
    /// let api = Api::new(engine).wait_max("5 minutes")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If it is not a duration.
    pub fn wait_max(mut self, time: impl IntoSpan) -> piton::Result<Self> {
        self.wait_max = time.into_span()?;
        Ok(self)
    }

    /// How many requests are worked on at the same time; further ones are sent away with 503. Default 1024.
    ///
    /// ```
    /// use piton_http::Api;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = piton::Engine::builder("memory:").start().await?;
    /// let api = Api::new(engine).in_flight_max(256);
    /// # Ok(()) }
    /// ```
    pub fn in_flight_max(mut self, requests: usize) -> Self {
        self.in_flight_max = requests;
        self
    }

    /// How many requests may wait for results at the same time. Default 1024.
    ///
    /// ```
    /// use piton_http::Api;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = piton::Engine::builder("memory:").start().await?;
    /// let api = Api::new(engine).waiting_max(10_000);
    /// # Ok(()) }
    /// ```
    pub fn waiting_max(mut self, requests: usize) -> Self {
        self.waiting_max = requests;
        self
    }

    /// The router, to be nested where the host likes: `…/api/workflows`.
    ///
    /// ```
    /// use piton_http::Api;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let engine = piton::Engine::builder("memory:").start().await?;
    /// let router = Api::new(engine).open_to_everyone().router();
    /// let app: axum::Router = axum::Router::new().nest("/api/workflows", router);
    /// # Ok(()) }
    /// ```
    pub fn router(self) -> Router {
        let runtime = self.engine.runtime();
        let core = Arc::new(Core {
            ids: Ids::new(Arc::clone(&runtime)),
            runtime,
            engine: self.engine,
            policies: self.policies,
            hosts: self.hosts,
            tick_enabled: self.tick_enabled,
            request_time_max: self.request_time_max,
            wait_max: self.wait_max,
            in_flight: places(self.in_flight_max),
            waiting: places(self.waiting_max),
            ticking: places(1),
        });
        routes(&core)
    }
}

/// That many, or as many as can be counted.
pub(crate) fn places(max: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS)))
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("engine", &self.engine).finish_non_exhaustive()
    }
}

/// Every route: which handler serves it, and which permission it takes.
fn routes(core: &Arc<Core>) -> Router {
    use Permission::{Create, Events, Manage, Read, Tick};
    let at = |path| Mount::new(core, path);
    let nowhere = Mount::new(core, "").otherwise(routes::route_not_found);
    [
        at("/").get(Read, routes::list_workflows),
        at("/openapi.json").get(Read, openapi::serve),
        at("/{workflow}/instances")
            .get(Read, routes::list_instances)
            .post(Create, routes::create_instance),
        // `batch` is an id like any other for those who read; only `POST` gives it a meaning.
        at("/{workflow}/instances/{instance}")
            .otherwise(routes::instance_method_not_allowed)
            .get(Read, routes::get_instance)
            .post(Create, routes::create_batch),
        at("/{workflow}/instances/{instance}/result").may_wait().get(Read, routes::get_result),
        at("/{workflow}/instances/{instance}/history").get(Read, routes::get_history),
        at("/{workflow}/instances/{instance}/events").post(Events, routes::send_event),
        at("/{workflow}/instances/{instance}/pause").post(Manage, routes::pause),
        at("/{workflow}/instances/{instance}/resume").post(Manage, routes::resume),
        at("/{workflow}/instances/{instance}/terminate").post(Manage, routes::terminate),
        at("/{workflow}/instances/{instance}/restart").post(Manage, routes::restart),
        at("/_runner/tick").post(Tick, routes::tick),
        at("/_hooks").get(Manage, hooks::list_hooks),
        at("/_hooks/{hook}").get(Manage, hooks::get_hook),
        at("/_hooks/{hook}/retry").post(Manage, hooks::retry_hook),
    ]
    .into_iter()
    .fold(Router::new(), |router, mount| router.route(mount.path, mount.methods))
    .fallback_service(nowhere.methods)
}

/// One path with the handlers of its methods, each behind the guard.
struct Mount<'a> {
    core: &'a Arc<Core>,
    path: &'static str,
    waits: bool,
    methods: MethodRouter,
}

impl<'a> Mount<'a> {
    fn new(core: &'a Arc<Core>, path: &'static str) -> Self {
        let mount = Self { core, path, waits: false, methods: MethodRouter::new() };
        mount.otherwise(routes::method_not_allowed)
    }

    /// Its requests may wait for something to happen.
    fn may_wait(self) -> Self {
        Self { waits: true, ..self }
    }

    fn route(&self, permission: Option<Permission>) -> (Arc<Core>, Route) {
        let route = Route { path: self.path, permission, waits: self.waits };
        (Arc::clone(self.core), route)
    }

    fn get<F: Future<Output: IntoResponse> + Send + 'static>(
        mut self,
        permission: Permission,
        handler: impl Fn(Arc<Core>, Call) -> F + Copy + Send + Sync + 'static,
    ) -> Self {
        let (core, route) = self.route(Some(permission));
        let serve = move |request| guard(Arc::clone(&core), route, request, handler);
        self.methods = self.methods.get(serve);
        self
    }

    fn post<F: Future<Output: IntoResponse> + Send + 'static>(
        mut self,
        permission: Permission,
        handler: impl Fn(Arc<Core>, Call) -> F + Copy + Send + Sync + 'static,
    ) -> Self {
        let (core, route) = self.route(Some(permission));
        let serve = move |request| guard(Arc::clone(&core), route, request, handler);
        self.methods = self.methods.post(serve);
        self
    }

    /// What serves every other method.
    fn otherwise<F: Future<Output: IntoResponse> + Send + 'static>(
        mut self,
        handler: impl Fn(Arc<Core>, Call) -> F + Copy + Send + Sync + 'static,
    ) -> Self {
        let (core, route) = self.route(None);
        let serve = move |request| guard(Arc::clone(&core), route, request, handler);
        self.methods = self.methods.fallback(serve);
        self
    }
}
