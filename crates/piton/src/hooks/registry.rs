//! Which handlers there are, and how their hooks are processed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use piton_core::hook::{EngineHook, NAMESPACE_DEFAULT};
use piton_core::{Code, HookName, HookNamespace, IntoSpan, Limits, Refusal, Retries, Span};
use serde::de::DeserializeOwned;

use super::handler::Typed;
use super::{HookContext, HookHandler, InstanceNews, WorkflowEnqueued};
use crate::Result;
use crate::store::EngineHooks;

/// The handlers of one namespace, and how their hooks are processed; give it to
/// [`EngineBuilder::hooks`](crate::EngineBuilder::hooks).
///
/// ```
/// use piton::hooks::Hooks;
///
/// #[derive(serde::Deserialize)]
/// struct User { email: String }
///
/// let hooks = Hooks::named("accounts")
///     .on("user.created", |user: User, cx| async move {
///         println!("welcome {} ({})", user.email, cx.idempotency_key());
///         Ok(())
///     })
///     .concurrency(16)
///     .timeout("10 seconds");
/// # let _ = hooks;
/// ```
#[derive(Clone)]
#[must_use = "handlers run when an engine is given them"]
pub struct Hooks {
    namespace: String,
    handlers: Vec<(String, Arc<dyn HookHandler>)>,
    engine: BTreeSet<EngineHook>,
    config: Config,
    wrong: Option<Refusal>,
}

/// How the hooks of a namespace are processed.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) concurrency: usize,
    pub(crate) lease: Span,
    pub(crate) timeout: Span,
    pub(crate) keep_completed: Span,
    pub(crate) poll_interval: Span,
    pub(crate) engine_retries: Retries,
}

/// How many handlers of a namespace run at the same time at most.
const CONCURRENCY_MAX: usize = 10_000;

/// The longest lease.
const LEASE_MAX: Span = Span::from_millis(60 * 60 * 1_000);

impl Hooks {
    /// Handlers of the namespace `app`, the one of hooks that name none.
    #[expect(
        clippy::new_without_default,
        reason = "an empty set of handlers is nothing to start from"
    )]
    pub fn new() -> Self {
        Self::named(NAMESPACE_DEFAULT)
    }

    /// Handlers of a namespace of its own: its hooks are processed by themselves, so that a flood in one namespace
    /// does not delay another.
    pub fn named(namespace: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            handlers: Vec::new(),
            engine: BTreeSet::new(),
            config: Config {
                concurrency: 512,
                lease: Span::from_millis(30_000),
                timeout: Span::from_millis(60_000),
                keep_completed: Span::from_days(1),
                poll_interval: Span::from_millis(5_000),
                engine_retries: Retries::default(),
            },
            wrong: None,
        }
    }

    /// Handles the hooks of this name. The payload is decoded into the closure's type.
    pub fn on<P, F, Fut>(self, name: impl Into<String>, function: F) -> Self
    where
        P: DeserializeOwned + 'static,
        F: Fn(P, HookContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<()>> + Send + 'static,
    {
        self.handler(name, Typed::new(function))
    }

    /// Handles the hooks of this name with something that has state of its own.
    pub fn handler(mut self, name: impl Into<String>, handler: impl HookHandler) -> Self {
        self.handlers.push((name.into(), Arc::new(handler)));
        self
    }

    /// Tells of every run that can be advanced (created, woken by an event, resumed, to be retried, to wake up): for
    /// hosts that dispatch by themselves. A run that rests until a moment to come is told of at that moment,
    /// also if it has gone on or ended before.
    ///
    /// Such a hook is stored with each of these changes; nothing is stored where nobody asks for it. Processes that
    /// share a database should all ask for the same: each stores what its own transactions change.
    pub fn on_workflow_enqueued<F, Fut>(self, function: F) -> Self
    where
        F: Fn(WorkflowEnqueued, HookContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<()>> + Send + 'static,
    {
        self.on_engine(EngineHook::WorkflowEnqueued, Typed::new(function))
    }

    /// Tells of every run that completes, exactly one hook each.
    pub fn on_instance_completed<F, Fut>(self, function: F) -> Self
    where
        F: Fn(InstanceNews, HookContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<()>> + Send + 'static,
    {
        self.on_engine(EngineHook::InstanceCompleted, Typed::new(function))
    }

    /// Tells of every run that ends with an error, exactly one hook each.
    pub fn on_instance_errored<F, Fut>(self, function: F) -> Self
    where
        F: Fn(InstanceNews, HookContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<()>> + Send + 'static,
    {
        self.on_engine(EngineHook::InstanceErrored, Typed::new(function))
    }

    /// Tells of every run that is terminated, exactly one hook each.
    pub fn on_instance_terminated<F, Fut>(self, function: F) -> Self
    where
        F: Fn(InstanceNews, HookContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<()>> + Send + 'static,
    {
        self.on_engine(EngineHook::InstanceTerminated, Typed::new(function))
    }

    /// Tells of every restart, exactly one hook each.
    pub fn on_instance_restarted<F, Fut>(self, function: F) -> Self
    where
        F: Fn(InstanceNews, HookContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<()>> + Send + 'static,
    {
        self.on_engine(EngineHook::InstanceRestarted, Typed::new(function))
    }

    /// Handles news of the engine with something that has state of its own.
    pub fn on_engine(mut self, hook: EngineHook, handler: impl HookHandler) -> Self {
        self.engine.insert(hook);
        self.handler(hook.as_str(), handler)
    }

    /// What happens when a handler of the engine's own hooks in this namespace fails. Default: 5 retries, 10 seconds, exponential.
    pub fn engine_retries(mut self, retries: Retries) -> Self {
        if let Err(refusal) = retries.check() {
            self.wrong.get_or_insert(refusal);
        }
        self.config.engine_retries = retries;
        self
    }

    /// How many handlers of this namespace run at the same time in one process. Default 512, at most 10,000.
    pub fn concurrency(mut self, handlers: usize) -> Self {
        self.config.concurrency = handlers;
        self
    }

    /// How long a hook in hand belongs to its process without renewal: the longest delay before another one takes over
    /// the hooks of a process that died. Default 30 seconds, 1 second to 1 hour.
    pub fn lease(mut self, lease: impl IntoSpan) -> Self {
        self.config.lease = self.span(lease, self.config.lease);
        self
    }

    /// How long one attempt may take; a longer one is dropped and has failed. Code that blocks its thread cannot be
    /// dropped before it awaits something. Default 1 minute.
    pub fn timeout(mut self, timeout: impl IntoSpan) -> Self {
        self.config.timeout = self.span(timeout, self.config.timeout);
        self
    }

    /// How long completed hooks are kept to be looked at; 0 removes them as they complete. Failed ones are kept until
    /// they are retried. Default 1 day.
    pub fn keep_completed(mut self, age: impl IntoSpan) -> Self {
        self.config.keep_completed = self.span(age, self.config.keep_completed);
        self
    }

    /// How often the engine's own dispatcher looks for due hooks when nothing else tells of them. Default 5 seconds.
    pub fn poll_interval(mut self, interval: impl IntoSpan) -> Self {
        self.config.poll_interval = self.span(interval, self.config.poll_interval);
        self
    }

    fn span(&mut self, span: impl IntoSpan, before: Span) -> Span {
        span.into_span().unwrap_or_else(|error| {
            let refusal = Refusal::new(Code::InvalidDuration, error.to_string());
            self.wrong.get_or_insert(refusal);
            before
        })
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.handlers.iter().map(|(name, _)| name).collect();
        f.debug_struct("Hooks").field("namespace", &self.namespace).field("names", &names).finish()
    }
}

/// The handlers of one namespace, checked.
pub(crate) struct Registered {
    pub(crate) namespace: HookNamespace,
    pub(crate) handlers: BTreeMap<HookName, Arc<dyn HookHandler>>,
    pub(crate) config: Config,
}

/// Checks everything that was given to an engine.
pub(crate) fn register(all: Vec<Hooks>, limits: &Limits) -> Result<(Vec<Registered>, EngineHooks)> {
    let mut engine_hooks = EngineHooks::default();
    let mut registered: Vec<Registered> = Vec::new();
    for hooks in all {
        let engine = hooks.engine.clone();
        let retries = hooks.config.engine_retries.clone();
        let checked = check(hooks, limits)?;
        if registered.iter().any(|other| other.namespace == checked.namespace) {
            let namespace = &checked.namespace;
            return refuse(format!("the hooks of namespace {namespace:?} are registered twice"));
        }
        for hook in engine {
            if engine_hooks.tells(hook) {
                let name = hook.as_str();
                return refuse(format!("{name} is registered twice; one handler can tell others"));
            }
            engine_hooks.add(hook, checked.namespace.clone(), retries.clone());
        }
        registered.push(checked);
    }
    Ok((registered, engine_hooks))
}

fn refuse<T>(message: String) -> Result<T> {
    Err(Refusal::new(Code::ValidationError, message).into())
}

fn check(hooks: Hooks, limits: &Limits) -> Result<Registered> {
    if let Some(refusal) = hooks.wrong {
        return Err(refusal.into());
    }
    let config = hooks.config;
    if config.concurrency == 0 {
        return refuse("hooks with a concurrency of 0 run nothing".to_owned());
    }
    if config.concurrency > CONCURRENCY_MAX {
        let concurrency = config.concurrency;
        return refuse(format!(
            "hooks with a concurrency of {concurrency}: the most is {CONCURRENCY_MAX}"
        ));
    }
    let lease = config.lease;
    if lease < Span::from_millis(1_000) || lease > LEASE_MAX {
        return refuse(format!("a lease of hooks of {lease} is outside 1 second to 1 hour"));
    }
    for (what, span) in [("timeout", config.timeout), ("poll interval", config.poll_interval)] {
        if span <= Span::ZERO {
            return refuse(format!("a {what} of hooks of {span} is not longer than nothing"));
        }
    }
    let namespace = HookNamespace::parse(&hooks.namespace, limits)?;
    let mut handlers = BTreeMap::new();
    for (name, handler) in hooks.handlers {
        let name = HookName::parse(&name, limits)?;
        if handlers.insert(name.clone(), handler).is_some() {
            return refuse(format!("hook {name:?} of namespace {namespace:?} has two handlers"));
        }
    }
    Ok(Registered { namespace, handlers, config })
}
