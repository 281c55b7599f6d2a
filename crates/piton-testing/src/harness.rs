//! An engine on a virtual clock that moves only when the test says so.

use std::fmt;
use std::sync::Arc;

use piton::runtime::Runtime;
use piton::store::{LogFilter, NewEvent, PageQuery, Store, StoreError};
use piton::{
    Engine, EngineBuilder, Error, Instance, InstanceHandle, Registration, Result, Tick,
    WorkflowHandle,
};
use piton_core::record::{EventRecord, InstanceRecord, LogRecord, StepRecord};
use piton_core::{Code, InstanceId, IntoSpan, Refusal, Span, Timestamp, WorkflowName};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::harness_builder::Configure;
use crate::mocks::{MockStep, MockWait, Mocks};
use crate::stores::Home;
use crate::{HarnessBuilder, StoreKind, VirtualRuntime};

/// How many runs one tick of a harness advances at most.
const TICK_RUNS_MAX: usize = 10_000;

/// How many ticks make `run_until_idle` give up: a workflow that never rests is a bug in the test.
const IDLE_TICKS_MAX: usize = 100_000;

/// How many waits `run_to_end` jumps over before it gives up: a step that is retried for ever has no end.
const WAITS_MAX: usize = 100_000;

/// An engine without a background runner, on a virtual clock and seeded randomness.
///
/// Nothing happens by itself: [`tick`](Self::tick) and [`run_until_idle`](Self::run_until_idle) advance what is due,
/// [`advance`](Self::advance) and its like move the clock, [`run_to_end`](Self::run_to_end) does both until nothing is
/// left to wait for. Instances are created and steered through the same handles as in production.
///
/// # Example
///
/// ```
/// use piton::prelude::*;
/// use piton_testing::Harness;
///
/// async fn nap(_: Event<()>, step: &Step) -> Result<String> {
///     step.sleep("a year", "365 days").await?;
///     Ok("rested".to_owned())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// let harness = Harness::memory([workflow("nap", nap)]).await?;
/// let instance = harness.create::<_, String>("nap", ()).await?;
/// harness.run_until_idle().await?;
/// harness.advance("365 days");
/// harness.run_until_idle().await?;
/// assert_eq!(harness.result(&instance).await?, "rested");
/// # Ok(())
/// # }
/// ```
pub struct Harness {
    pub(crate) engine: Engine,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) runtime: Arc<VirtualRuntime>,
    pub(crate) mocks: Arc<Mocks>,
    pub(crate) configure: Configure,
    // Last: the files go when everything that uses them is gone.
    pub(crate) home: Home,
}

/// What [`Harness::run_until_idle`] did.
///
/// ```
/// # use piton::prelude::*;
/// # async fn nap(_: Event<()>, step: &Step) -> Result<()> { step.sleep("nap", "1 hour").await }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
/// # let harness = piton_testing::Harness::memory([workflow("nap", nap)]).await?;
/// # let instance = harness.create::<_, ()>("nap", ()).await?;
/// let progress = harness.run_until_idle().await?;
/// assert_eq!((progress.processed, progress.ticks), (1, 2));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// How many times a run was advanced.
    pub processed: usize,
    /// How many ticks it took, with the last one that found nothing.
    pub ticks: usize,
}

/// The rows of one run of an instance, as they are in the store.
///
/// ```
/// # use piton::prelude::*;
/// # async fn nap(_: Event<()>, step: &Step) -> Result<()> { step.sleep("nap", "1 hour").await }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
/// # let harness = piton_testing::Harness::memory([workflow("nap", nap)]).await?;
/// # let instance = harness.create::<_, ()>("nap", ()).await?;
/// harness.run_until_idle().await?;
/// let rows = harness.rows(&instance).await?;
/// assert_eq!((rows.steps.len(), rows.events.len()), (1, 0));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Rows {
    /// The instance.
    pub instance: InstanceRecord,
    /// Its steps, in the order in which they were first recorded.
    pub steps: Vec<StepRecord>,
    /// Its events, in the order in which they arrived.
    pub events: Vec<EventRecord>,
    /// Its log lines, in the order in which they were stored.
    pub logs: Vec<LogRecord>,
}

impl Rows {
    /// The step with this name, if it is recorded.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn pay(_: Event<()>, step: &Step) -> Result<u32> { step.run("charge", async { Ok(7) }).await }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let harness = piton_testing::Harness::memory([workflow("pay", pay)]).await?;
    /// # let instance = harness.create::<_, u32>("pay", ()).await?;
    /// harness.run_until_idle().await?;
    /// let rows = harness.rows(&instance).await?;
    /// assert_eq!(rows.step("charge").expect("it was reached").attempts, 1);
    /// assert!(rows.step("refund").is_none());
    /// # Ok(()) }
    /// ```
    pub fn step(&self, name: &str) -> Option<&StepRecord> {
        self.steps.iter().find(|step| step.name.as_str() == name)
    }
}

impl Harness {
    /// A harness in the making.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// let harness = piton_testing::Harness::builder().seed(7).start().await?;
    /// # Ok(()) }
    /// ```
    pub fn builder<'a>() -> HarnessBuilder<'a> {
        HarnessBuilder::new()
    }

    /// A harness on the in-memory store.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::Harness;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// let harness = Harness::memory([workflow("noop", noop)]).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If a workflow's name is not valid.
    pub async fn memory(workflows: impl IntoIterator<Item = Registration>) -> Result<Self> {
        Self::on(StoreKind::Memory, workflows).await
    }

    /// A harness on a store of the given kind.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::StoreKind;
    /// # use piton_testing::Harness;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// let harness = Harness::on(StoreKind::Sqlite, [workflow("noop", noop)]).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store cannot be opened or a workflow's name is not valid.
    pub async fn on(
        kind: StoreKind,
        workflows: impl IntoIterator<Item = Registration>,
    ) -> Result<Self> {
        Self::builder().store(kind).workflows(workflows).start().await
    }

    /// A harness with an engine configured by `configure`.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::StoreKind;
    /// # use piton_testing::Harness;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// let workflows = [workflow("noop", noop)];
    /// let harness = Harness::with(StoreKind::Memory, workflows, |engine| engine.parked_runs(0)).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store cannot be opened or the configuration is not valid.
    pub async fn with(
        kind: StoreKind,
        workflows: impl IntoIterator<Item = Registration>,
        configure: impl Fn(EngineBuilder) -> EngineBuilder + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::builder().store(kind).workflows(workflows).configure(configure).start().await
    }

    /// The engine.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// let harness = piton_testing::Harness::memory([]).await?;
    /// assert!(!harness.engine().has_runner());
    /// # Ok(()) }
    /// ```
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The store, for looking at rows and for acting as another runner.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// let harness = piton_testing::Harness::memory([]).await?;
    /// assert_eq!(harness.store().kind(), "memory");
    /// # Ok(()) }
    /// ```
    pub fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    /// The virtual world.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// let harness = piton_testing::Harness::memory([]).await?;
    /// assert_eq!(harness.runtime().next_sleep_at(), None);
    /// # Ok(()) }
    /// ```
    pub fn runtime(&self) -> &Arc<VirtualRuntime> {
        &self.runtime
    }

    // ---- instances ----

    /// A handle to a workflow.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn nap(_: Event<()>, step: &Step) -> Result<()> { step.sleep("nap", "1 hour").await }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let harness = piton_testing::Harness::memory([workflow("nap", nap)]).await?;
    /// # let instance = harness.create::<_, ()>("nap", ()).await?;
    /// let other = harness.workflow::<(), ()>("nap")?.create(()).id("n-1").await?;
    /// assert_eq!(other.id(), "n-1");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If it is not registered, or with other types.
    pub fn workflow<P: 'static, O: 'static>(&self, name: &str) -> Result<WorkflowHandle<P, O>> {
        self.engine.workflow(name)
    }

    /// Creates an instance. With an id of your own: `harness.workflow(..)?.create(..).id(..)`.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::Harness;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// let harness = Harness::memory([workflow("noop", noop)]).await?;
    /// let instance = harness.create::<_, ()>("noop", ()).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`WorkflowHandle::create`].
    pub async fn create<P, O>(&self, workflow: &str, params: P) -> Result<InstanceHandle<O>>
    where
        P: Serialize + Send + 'static,
        O: DeserializeOwned + 'static,
    {
        self.workflow::<P, O>(workflow)?.create(params).await
    }

    /// An instance that exists: to send it events, to pause, resume, terminate or restart it, to look at it.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn nap(_: Event<()>, step: &Step) -> Result<()> { step.sleep("nap", "1 hour").await }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let harness = piton_testing::Harness::memory([workflow("nap", nap)]).await?;
    /// # let instance = harness.create::<_, ()>("nap", ()).await?;
    /// harness.instance("nap", instance.id()).await?.terminate().await?;
    /// assert!(instance.status().await?.is_terminal());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `WORKFLOW_NOT_FOUND`, `INSTANCE_NOT_FOUND`.
    pub async fn instance(&self, workflow: &str, id: &str) -> Result<InstanceHandle<Value>> {
        self.workflow::<Value, Value>(workflow)?.get(id).await
    }

    /// What an instance returned. Unlike [`InstanceHandle::result`], which would wait for ever for a run that nobody
    /// advances, it fails at once if the instance has not ended, and says what it is waiting for.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn pay(_: Event<()>, step: &Step) -> Result<u32> { step.run("charge", async { Ok(7) }).await }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let harness = piton_testing::Harness::memory([workflow("pay", pay)]).await?;
    /// # let instance = harness.create::<_, u32>("pay", ()).await?;
    /// assert_eq!(harness.result(&instance).await.unwrap_err().name(), "NotEnded");
    /// harness.run_until_idle().await?;
    /// assert_eq!(harness.result(&instance).await?, 7);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The error the workflow ended with; an error named `NotEnded`.
    pub async fn result<O: DeserializeOwned>(&self, instance: &InstanceHandle<O>) -> Result<O> {
        let state = instance.describe().await?;
        if state.status.is_terminal() {
            return instance.result().await;
        }
        Err(Error::new(format!("{}; it is {} now", not_ended(&state), self.now()))
            .named("NotEnded"))
    }

    /// The rows of the current run of an instance, all of them.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn pay(_: Event<()>, step: &Step) -> Result<u32> { step.run("charge", async { Ok(7) }).await }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let harness = piton_testing::Harness::memory([workflow("pay", pay)]).await?;
    /// # let instance = harness.create::<_, u32>("pay", ()).await?;
    /// harness.run_until_idle().await?;
    /// assert_eq!(harness.rows(&instance).await?.steps.len(), 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn rows<O>(&self, instance: &InstanceHandle<O>) -> Result<Rows> {
        let rows = self.rows_of(instance.workflow(), instance.id(), None).await?;
        rows.ok_or_else(|| Refusal::no_instance(instance.workflow(), instance.id()).into())
    }

    /// The rows of a run, the current one unless `run` names another. `None` if there is no such instance.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn pay(_: Event<()>, step: &Step) -> Result<u32> { step.run("charge", async { Ok(7) }).await }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let harness = piton_testing::Harness::memory([workflow("pay", pay)]).await?;
    /// # let instance = harness.create::<_, u32>("pay", ()).await?;
    /// harness.run_until_idle().await?;
    /// instance.restart().await?;
    /// let before = harness.rows_of("pay", instance.id(), Some(0)).await?.expect("it exists");
    /// assert_eq!(before.steps.len(), 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn rows_of(
        &self,
        workflow: &str,
        id: &str,
        run: Option<u32>,
    ) -> Result<Option<Rows>> {
        let name = (WorkflowName::from_stored(workflow), InstanceId::from_stored(id));
        let Some(view) = self.store.instance(name.0, name.1).await? else { return Ok(None) };
        let instance = view.record;
        let page = PageQuery {
            instance: instance.key,
            run: run.unwrap_or(instance.run),
            after: None,
            descending: false,
            limit: u32::MAX,
        };
        let steps = self.store.steps(page).await?;
        let events = self.store.events(page).await?;
        let logs = self.store.logs(page, LogFilter::default()).await?;
        Ok(Some(Rows { instance, steps, events, logs }))
    }

    // ---- advancing ----

    /// Advances every due run as far as it goes, once, and processes the hooks that are due then. Returns how many
    /// runs and hooks there were.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn nap(_: Event<()>, step: &Step) -> Result<()> { step.sleep("nap", "1 hour").await }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let harness = piton_testing::Harness::memory([workflow("nap", nap)]).await?;
    /// # let instance = harness.create::<_, ()>("nap", ()).await?;
    /// assert_eq!(harness.tick().await?, 1); // to the sleep
    /// assert_eq!(harness.tick().await?, 0); // nothing is due
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn tick(&self) -> Result<usize> {
        self.see_through(self.engine.tick(TICK_RUNS_MAX)).await
    }

    /// Advances one instance as far as it goes, once, if it is due. No other is touched. Returns 1 or 0.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn nap(_: Event<()>, step: &Step) -> Result<()> { step.sleep("nap", "1 hour").await }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let harness = piton_testing::Harness::memory([workflow("nap", nap)]).await?;
    /// # let instance = harness.create::<_, ()>("nap", ()).await?;
    /// assert_eq!(harness.tick_instance("nap", instance.id()).await?, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `WORKFLOW_NOT_FOUND`, `INSTANCE_NOT_FOUND`, or if the store fails.
    pub async fn tick_instance(&self, workflow: &str, id: &str) -> Result<usize> {
        let instance = self.instance(workflow, id).await?;
        self.see_through(instance.tick()).await
    }

    async fn see_through(&self, tick: impl Future<Output = Result<Tick>>) -> Result<usize> {
        let mut tick = std::pin::pin!(tick);
        // A run may wait for a mocked event while a body of it is running: then it is sent meanwhile.
        let processed = loop {
            tokio::select! {
                biased;
                ticked = &mut tick => {
                    let ticked = ticked?;
                    break ticked.processed + ticked.hooks;
                }
                event = self.mocks.next_event() => self.deliver(event).await?,
            }
        };
        while let Some(event) = self.mocks.take_event() {
            self.deliver(event).await?;
        }
        Ok(processed)
    }

    async fn deliver(&self, event: NewEvent) -> Result<()> {
        match self.store.send_event(event, None).await {
            // It waited for something else as well, and is done.
            Err(StoreError::Refused(refusal)) if refusal.code == Code::InstanceTerminal => Ok(()),
            Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Ticks until nothing is due at this moment of virtual time.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn nap(_: Event<()>, step: &Step) -> Result<()> { step.sleep("nap", "1 hour").await }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let harness = piton_testing::Harness::memory([workflow("nap", nap)]).await?;
    /// # let instance = harness.create::<_, ()>("nap", ()).await?;
    /// assert_eq!(harness.run_until_idle().await?.processed, 1);
    /// assert!(!instance.status().await?.is_terminal(), "it sleeps");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store fails.
    ///
    /// # Panics
    ///
    /// If there is no end to it.
    pub async fn run_until_idle(&self) -> Result<Progress> {
        let progress = self.run_ticks(IDLE_TICKS_MAX).await?;
        assert!(progress.ticks < IDLE_TICKS_MAX, "still not idle after {IDLE_TICKS_MAX} ticks");
        Ok(progress)
    }

    /// Ticks until nothing is due at this moment of virtual time, at most `ticks_max` times.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn nap(_: Event<()>, step: &Step) -> Result<()> { step.sleep("nap", "1 hour").await }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let harness = piton_testing::Harness::memory([workflow("nap", nap)]).await?;
    /// # let instance = harness.create::<_, ()>("nap", ()).await?;
    /// assert_eq!(harness.run_ticks(1).await?.ticks, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn run_ticks(&self, ticks_max: usize) -> Result<Progress> {
        let mut progress = Progress { processed: 0, ticks: 0 };
        while progress.ticks < ticks_max {
            let processed = self.tick().await?;
            progress.processed += processed;
            progress.ticks += 1;
            if processed == 0 {
                break;
            }
        }
        Ok(progress)
    }

    /// Jumps over all waits until nothing is left to wait for. A wait whose event nobody sends times out.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn nap(_: Event<()>, step: &Step) -> Result<()> { step.sleep("nap", "1 hour").await }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let harness = piton_testing::Harness::memory([workflow("nap", nap)]).await?;
    /// # let instance = harness.create::<_, ()>("nap", ()).await?;
    /// harness.run_to_end().await?;
    /// harness.result(&instance).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store fails.
    ///
    /// # Panics
    ///
    /// If there is no end to it: a step that is retried for ever.
    pub async fn run_to_end(&self) -> Result<()> {
        for _ in 0..WAITS_MAX {
            self.run_until_idle().await?;
            if self.advance_to_next_wake().await?.is_none() {
                return Ok(());
            }
        }
        panic!("still waiting for something after {WAITS_MAX} waits");
    }

    // ---- time ----

    /// The time now.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// let harness = piton_testing::Harness::memory([]).await?;
    /// assert_eq!(harness.now(), piton_testing::runtime::START);
    /// # Ok(()) }
    /// ```
    pub fn now(&self) -> Timestamp {
        self.runtime.now()
    }

    /// Moves the virtual clock on. Nothing runs until the next tick.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// let harness = piton_testing::Harness::memory([]).await?;
    /// let before = harness.now();
    /// harness.advance("14 days");
    /// assert_eq!(harness.now().since(before), piton::Span::literal("14 days"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    ///
    /// If `span` is not a duration, or negative.
    pub fn advance(&self, span: impl IntoSpan) {
        self.runtime.advance(span.into_span().expect("a duration, like \"1 hour\""));
    }

    /// Sets the wall clock, back too. What measures a length of time, such as the timeout of a running body,
    /// does not notice; [`advance`](Self::advance) moves both.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// let harness = piton_testing::Harness::memory([]).await?;
    /// harness.set_time(piton::Timestamp::from_millis(0));
    /// assert_eq!(harness.now().to_string(), "1970-01-01T00:00:00.000Z");
    /// # Ok(()) }
    /// ```
    pub fn set_time(&self, time: Timestamp) {
        self.runtime.set_time(time);
    }

    /// Moves the clock to the moment at which something is due next, and returns it. `None` if nothing is waiting
    /// for a moment.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn nap(_: Event<()>, step: &Step) -> Result<()> { step.sleep("nap", "1 hour").await }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let harness = piton_testing::Harness::memory([workflow("nap", nap)]).await?;
    /// # let instance = harness.create::<_, ()>("nap", ()).await?;
    /// harness.run_until_idle().await?;
    /// let wake = harness.now().plus(piton::Span::literal("1 hour"));
    /// assert_eq!(harness.advance_to_next_wake().await?, Some(wake));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn advance_to_next_wake(&self) -> Result<Option<Timestamp>> {
        let Some(next) = self.engine.next_wake_at().await? else { return Ok(None) };
        self.runtime.advance(next.since(self.now()).max(Span::ZERO));
        Ok(Some(next))
    }

    // ---- mocks ----

    /// Puts something in the place of a step's body.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::Harness;
    /// # async fn pay(_: Event<()>, step: &Step) -> Result<String> {
    /// #     step.run("charge card", async { panic!("never in a test") }).await
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let harness = Harness::memory([workflow("pay", pay)]).await?;
    /// harness.mock("charge card").returns("receipt 7");
    /// harness.mock("charge card").attempt(1).fails(Error::new("the gateway is busy"));
    /// let instance = harness.create::<_, String>("pay", ()).await?;
    /// harness.run_to_end().await?;
    /// assert_eq!(harness.result(&instance).await?, "receipt 7");
    /// assert_eq!(harness.executions("charge card"), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn mock(&self, step: impl Into<String>) -> MockStep<'_> {
        MockStep::new(&self.mocks, step.into())
    }

    /// Decides what a wait for an event meets.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::Harness;
    /// # async fn approve(_: Event<()>, step: &Step) -> Result<String> {
    /// #     step.wait_for_event("approval", "approved").await
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let harness = Harness::memory([workflow("approve", approve)]).await?;
    /// harness.mock_wait("approval").receives("by Ada");
    /// let instance = harness.create::<_, String>("approve", ()).await?;
    /// harness.run_until_idle().await?;
    /// assert_eq!(harness.result(&instance).await?, "by Ada");
    /// # Ok(())
    /// # }
    /// ```
    pub fn mock_wait(&self, step: impl Into<String>) -> MockWait<'_> {
        MockWait::new(&self.mocks, step.into())
    }

    /// How often the bodies of steps with this name were executed so far, in all runs and attempts. A mocked attempt
    /// executes none.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn pay(_: Event<()>, step: &Step) -> Result<u32> { step.run("charge", async { Ok(7) }).await }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let harness = piton_testing::Harness::memory([workflow("pay", pay)]).await?;
    /// # let instance = harness.create::<_, u32>("pay", ()).await?;
    /// harness.run_to_end().await?;
    /// assert_eq!(harness.executions("charge"), 1);
    /// # Ok(()) }
    /// ```
    pub fn executions(&self, step: &str) -> u32 {
        self.mocks.executions(step)
    }

    /// The steps whose mocks nothing has met so far: a name that is misspelt mocks nothing.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn pay(_: Event<()>, step: &Step) -> Result<u32> { step.run("charge", async { Ok(7) }).await }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let harness = piton_testing::Harness::memory([workflow("pay", pay)]).await?;
    /// # let instance = harness.create::<_, u32>("pay", ()).await?;
    /// harness.mock("chagre").returns(&7);
    /// harness.run_to_end().await?;
    /// assert_eq!(harness.unused_mocks(), ["chagre"]);
    /// # Ok(()) }
    /// ```
    pub fn unused_mocks(&self) -> Vec<String> {
        self.mocks.unused()
    }

    // ---- crashes ----

    /// Stops this process as `kill -9` would and starts another on the same data and with the same settings, with the
    /// workflows of the next deploy. Mocks and counts stay.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn nap(_: Event<()>, step: &Step) -> Result<()> { step.sleep("nap", "1 hour").await }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
    /// # let harness = piton_testing::Harness::memory([workflow("nap", nap)]).await?;
    /// # let instance = harness.create::<_, ()>("nap", ()).await?;
    /// harness.run_until_idle().await?;
    /// let id = instance.id().to_owned();
    /// let harness = harness.crash_and_restart([workflow("nap", nap)]).await?;
    /// harness.run_to_end().await?;
    /// assert!(harness.instance("nap", &id).await?.status().await?.is_terminal());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store cannot be opened again.
    pub async fn crash_and_restart(
        self,
        workflows: impl IntoIterator<Item = Registration>,
    ) -> Result<Self> {
        let Self { engine, store, runtime, mocks, configure, home } = self;
        drop(engine);
        let store = home.reopen(store, &runtime).await?;
        let builder = engine_builder(Arc::clone(&store), &runtime, &mocks, workflows);
        let engine = configure(builder).start().await?;
        Ok(Self { engine, store, runtime, mocks, configure, home })
    }
}

pub(crate) fn engine_builder(
    store: Arc<dyn Store>,
    runtime: &Arc<VirtualRuntime>,
    mocks: &Arc<Mocks>,
    workflows: impl IntoIterator<Item = Registration>,
) -> EngineBuilder {
    let builder = Engine::builder_with_store(store)
        .runtime(Arc::clone(runtime) as _)
        .interceptor(Arc::clone(mocks) as _)
        .no_runner();
    workflows.into_iter().fold(builder, EngineBuilder::register)
}

/// Where an instance stands that has not ended.
fn not_ended(state: &Instance) -> String {
    let Instance { workflow, id, status, .. } = state;
    let waits = state.current_step.as_ref().map(|step| {
        let until = step.next_retry_at.or(step.wake_at);
        let until = until.map(|at| format!(" until {at}")).unwrap_or_default();
        format!(" in step {:?} ({}){until}", step.name, step.step_type)
    });
    format!("{workflow}/{id} has not ended: it is {status}{}", waits.unwrap_or_default())
}

impl fmt::Debug for Harness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Harness").field("engine", &self.engine).finish_non_exhaustive()
    }
}
