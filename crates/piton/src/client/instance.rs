//! One instance: its state, its result, and everything that can be done to it.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use piton_core::planted::{Bug, planted};
use piton_core::record::{InstanceKey, InstanceRecord, RecordedError, StepRecord};
use piton_core::{
    Code, EventType, InstanceId, InstanceStatus, Json, Refusal, StepType, Timestamp, WorkflowName,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use super::{Export, HistoryQuery};
use crate::engine::{Shared, Tick};
use crate::hooks::Hook;
use crate::pass::{Asked, RunningStep};
use crate::runner::Runner;
use crate::runtime::BoxFuture;
use crate::store::{Action, InstanceView, NewEvent, Sent, StoreError};
use crate::{Error, Result, codec};

/// A handle to one instance, typed with the output of its workflow.
///
/// ```
/// # use piton::prelude::*;
/// # use piton::InstanceHandle;
/// # async fn one(_: Event<()>, step: &Step) -> Result<u32> { step.run("a", async { Ok(7) }).await }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// # let engine = Engine::builder("memory:").register(workflow("one", one)).start().await?;
/// # let instance = engine.workflow::<(), u32>("one")?.create(()).await?;
/// # instance.result().await?;
/// let instance: InstanceHandle<u32> = engine.workflow::<(), u32>("one")?.get(instance.id()).await?;
/// assert_eq!(instance.result().await?, 7);
/// # Ok(())
/// # }
/// ```
pub struct InstanceHandle<O> {
    shared: Arc<Shared>,
    runner: Arc<Runner>,
    workflow: WorkflowName,
    id: InstanceId,
    key: InstanceKey,
    output: PhantomData<fn() -> O>,
}

/// The state of an instance.
///
/// ```
/// # use piton::prelude::*;
/// # async fn one(_: Event<()>, step: &Step) -> Result<u32> { step.run("a", async { Ok(7) }).await }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// # let engine = Engine::builder("memory:").register(workflow("one", one)).start().await?;
/// # let instance = engine.workflow::<(), u32>("one")?.create(()).await?;
/// # instance.result().await?;
/// let state = instance.describe().await?;
/// assert!(state.status.is_terminal());
/// assert_eq!(state.output.expect("it is complete").as_str(), "7");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Instance {
    /// Its id.
    pub id: InstanceId,
    /// Its workflow.
    pub workflow: WorkflowName,
    /// Its status.
    pub status: InstanceStatus,
    /// The current run: 0, plus one for each restart.
    pub run_number: u32,
    /// What it was created with.
    pub params: Json,
    /// What it returned, once complete.
    pub output: Option<Json>,
    /// Why it failed, once errored.
    pub error: Option<RecordedError>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When the code of this run first ran.
    pub started_at: Option<Timestamp>,
    /// When this run ended; set exactly on terminal statuses.
    pub completed_at: Option<Timestamp>,
    /// A pause was asked for while a body runs; it takes effect at the next boundary.
    pub pause_requested: bool,
    /// What the run is doing or waiting for now; with several, the one that will wake first.
    pub current_step: Option<CurrentStep>,
}

/// What a run is doing or waiting for.
///
/// ```
/// # use piton::prelude::*;
/// # async fn wait(_: Event<()>, step: &Step) -> Result<u32> { step.wait_for_event("w", "go").await }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// # let engine = Engine::builder("memory:").register(workflow("wait", wait)).no_runner().start().await?;
/// # let instance = engine.workflow::<(), u32>("wait")?.create(()).await?;
/// # instance.tick().await?;
/// let step = instance.describe().await?.current_step.expect("it waits");
/// assert_eq!((step.name.as_str(), step.status), ("w", "waiting"));
/// assert_eq!(step.event_type.as_deref(), Some("go"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CurrentStep {
    /// The name of the step.
    pub name: String,
    /// Its type.
    pub step_type: StepType,
    /// `"running"` or `"waiting"`.
    pub status: &'static str,
    /// Attempts so far, the running one included.
    pub attempts: u32,
    /// How many attempts there may be; `None` is no limit.
    pub attempts_max: Option<u32>,
    /// The timeout of an attempt, in milliseconds.
    pub timeout_ms: Option<i64>,
    /// When a failed attempt is tried again.
    pub next_retry_at: Option<Timestamp>,
    /// When a sleep ends or a wait times out.
    pub wake_at: Option<Timestamp>,
    /// The type of event it waits for.
    pub event_type: Option<String>,
    /// The error of the last attempt.
    pub error: Option<RecordedError>,
    /// Since when.
    pub started_at: Timestamp,
}

/// A step as it was recorded.
impl From<StepRecord> for CurrentStep {
    fn from(step: StepRecord) -> Self {
        Self {
            name: step.name.to_string(),
            step_type: step.step_type,
            status: step.status.as_str(),
            attempts: step.attempts,
            attempts_max: step.attempts_max,
            timeout_ms: step.timeout_ms,
            next_retry_at: step.next_retry_at,
            wake_at: step.wake_at,
            event_type: step.event_type.map(|event_type| event_type.to_string()),
            error: step.error,
            started_at: step.started_at,
        }
    }
}

impl CurrentStep {
    fn running(step: RunningStep) -> Self {
        Self {
            name: step.name.to_string(),
            step_type: StepType::Do,
            status: "running",
            attempts: step.attempt,
            attempts_max: step.attempts_max,
            timeout_ms: Some(step.timeout.as_millis()),
            next_retry_at: None,
            wake_at: None,
            event_type: None,
            error: None,
            started_at: step.started_at,
        }
    }
}

impl Instance {
    pub(super) fn from_record(record: InstanceRecord, current_step: Option<CurrentStep>) -> Self {
        Self {
            id: record.id,
            workflow: record.workflow,
            status: record.status,
            run_number: record.run,
            params: record.params,
            output: record.output,
            error: record.error,
            created_at: record.created_at,
            updated_at: record.updated_at,
            started_at: record.started_at,
            completed_at: record.completed_at,
            pause_requested: record.pause_requested,
            current_step,
        }
    }
}

impl<O> InstanceHandle<O> {
    pub(super) fn new(
        shared: Arc<Shared>,
        runner: Arc<Runner>,
        workflow: WorkflowName,
        id: InstanceId,
        key: InstanceKey,
    ) -> Self {
        Self { shared, runner, workflow, id, key, output: PhantomData }
    }

    /// The id of the instance.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
    /// # let noop = engine.workflow::<(), ()>("noop")?;
    /// assert_eq!(noop.create(()).id("order-123").await?.id(), "order-123");
    /// assert!(noop.create(()).await?.id().starts_with("inst_"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn id(&self) -> &str {
        self.id.as_str()
    }

    /// The name of its workflow.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
    /// # let instance = engine.workflow::<(), ()>("noop")?.create(()).await?;
    /// assert_eq!(instance.workflow(), "noop");
    /// # Ok(())
    /// # }
    /// ```
    pub fn workflow(&self) -> &str {
        self.workflow.as_str()
    }

    /// The status now.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton::InstanceStatus;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
    /// # let instance = engine.workflow::<(), ()>("noop")?.create(()).await?;
    /// instance.result().await?;
    /// assert_eq!(instance.status().await?, InstanceStatus::Complete);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn status(&self) -> Result<InstanceStatus> {
        Ok(self.view().await?.record.status)
    }

    /// Everything known about the instance now, with what it is doing or waiting for.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn wait(_: Event<()>, step: &Step) -> Result<u32> { step.wait_for_event("w", "go").await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("wait", wait)).no_runner().start().await?;
    /// # let instance = engine.workflow::<(), u32>("wait")?.create(()).await?;
    /// # instance.tick().await?;
    /// let state = instance.describe().await?;
    /// assert_eq!(state.run_number, 0);
    /// assert_eq!(state.current_step.expect("it waits").name, "w");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn describe(&self) -> Result<Instance> {
        let InstanceView { record, waiting_for } = self.view().await?;
        let running = || self.runner.running_step(record.key).map(CurrentStep::running);
        let waiting = waiting_for.map(CurrentStep::from);
        let current_step = if record.status.is_terminal() { None } else { running().or(waiting) };
        Ok(Instance::from_record(record, current_step))
    }

    /// The steps, events and log lines of a run, a page at a time.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn one(_: Event<()>, step: &Step) -> Result<()> { step.run("a", async { Ok(()) }).await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("one", one)).start().await?;
    /// # let instance = engine.workflow::<(), ()>("one")?.create(()).await?;
    /// # instance.result().await?;
    /// let history = instance.history().with_logs().await?;
    /// assert_eq!(history.steps.items[0].name.as_str(), "a");
    /// # Ok(())
    /// # }
    /// ```
    pub fn history(&self) -> HistoryQuery {
        HistoryQuery::new(Arc::clone(&self.shared), self.workflow.clone(), self.id.clone())
    }

    /// The whole record of a run as one document, which `piton_testing::replays_the_same` runs today's code against.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn one(_: Event<()>, step: &Step) -> Result<u32> { step.run("a", async { Ok(7) }).await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("one", one)).start().await?;
    /// # let instance = engine.workflow::<(), u32>("one")?.create(()).await?;
    /// # instance.result().await?;
    /// let text = serde_json::to_string(&instance.export().await?)?;
    /// assert!(text.starts_with(r#"{"format":1,"workflow":"one""#));
    /// # Ok(())
    /// # }
    /// ```
    pub fn export(&self) -> Export {
        Export::new(Arc::clone(&self.shared), self.workflow.clone(), self.id.clone())
    }

    /// Pauses the instance: at once if it is waiting, at its next boundary if a step is running. Timers go
    /// on counting. Pausing a paused instance does nothing.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton::InstanceStatus;
    /// # async fn wait(_: Event<()>, step: &Step) -> Result<u32> { step.wait_for_event("w", "go").await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("wait", wait)).no_runner().start().await?;
    /// # let instance = engine.workflow::<(), u32>("wait")?.create(()).await?;
    /// # instance.tick().await?;
    /// assert_eq!(instance.pause().await?.status, InstanceStatus::Paused);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `INSTANCE_TERMINAL` if it has ended.
    pub async fn pause(&self) -> Result<Instance> {
        self.steer(Action::Pause).await
    }

    /// Resumes a paused instance; whatever fell due meanwhile is due. Otherwise it does nothing.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton::InstanceStatus;
    /// # async fn wait(_: Event<()>, step: &Step) -> Result<u32> { step.wait_for_event("w", "go").await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("wait", wait)).no_runner().start().await?;
    /// # let instance = engine.workflow::<(), u32>("wait")?.create(()).await?;
    /// # instance.tick().await?;
    /// instance.pause().await?;
    /// assert_ne!(instance.resume().await?.status, InstanceStatus::Paused);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store cannot be used.
    pub async fn resume(&self) -> Result<Instance> {
        self.steer(Action::Resume).await
    }

    /// Ends the instance. Nothing of this run is recorded after this has returned.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton::InstanceStatus;
    /// # async fn wait(_: Event<()>, step: &Step) -> Result<u32> { step.wait_for_event("w", "go").await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("wait", wait)).start().await?;
    /// # let instance = engine.workflow::<(), u32>("wait")?.create(()).await?;
    /// assert_eq!(instance.terminate().await?.status, InstanceStatus::Terminated);
    /// assert_eq!(instance.result().await.unwrap_err().code(), Some("NO_RESULT"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `INSTANCE_TERMINAL` if it has ended already.
    pub async fn terminate(&self) -> Result<Instance> {
        self.steer(Action::Terminate).await
    }

    /// Starts the next run with the same params, whatever the status. Old runs stay readable.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn one(_: Event<()>, step: &Step) -> Result<u32> { step.run("a", async { Ok(7) }).await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("one", one)).start().await?;
    /// # let instance = engine.workflow::<(), u32>("one")?.create(()).await?;
    /// # instance.result().await?;
    /// assert_eq!(instance.restart().await?.run_number, 1);
    /// assert_eq!(instance.result().await?, 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store cannot be used.
    pub async fn restart(&self) -> Result<Instance> {
        self.steer(Action::Restart).await
    }

    /// Advances this instance as far as it goes, if it is due, and no other; returns when it rests. For hosts without
    /// a background runner that are told which instance to look after, and for tests.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).no_runner().start().await?;
    /// # let noop = engine.workflow::<(), ()>("noop")?;
    /// let (one, two) = (noop.create(()).await?, noop.create(()).await?);
    /// assert_eq!(one.tick().await?.processed, 1);
    /// assert!(one.status().await?.is_terminal() && !two.status().await?.is_terminal());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store cannot be used.
    pub async fn tick(&self) -> Result<Tick> {
        let processed = self.runner.tick_instance(self.workflow.clone(), self.key).await?;
        Ok(Tick { processed, hooks: 0 })
    }

    async fn steer(&self, action: Action) -> Result<Instance> {
        let store = &self.shared.store;
        let record = store.steer(self.workflow.clone(), self.id.clone(), action).await?;
        if action == Action::Restart {
            self.runner.supersede(record.key, record.run);
        }
        Ok(Instance::from_record(record, None))
    }

    /// Sends an event; await the returned builder. When that has returned the event is durable.
    ///
    /// It is buffered until the workflow waits for its type. An ended instance refuses it.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn wait(_: Event<()>, step: &Step) -> Result<u32> { step.wait_for_event("w", "go").await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("wait", wait)).start().await?;
    /// # let instance = engine.workflow::<(), u32>("wait")?.create(()).await?;
    /// instance.send_event("go", &7).idempotency_key("request-1").await?;
    /// assert_eq!(instance.result().await?, 7);
    /// # Ok(())
    /// # }
    /// ```
    pub fn send_event(&self, event_type: &str, payload: &(impl Serialize + ?Sized)) -> SendEvent {
        let limits = &self.shared.limits;
        let event = (|| {
            let event_type = EventType::parse(event_type, limits)?;
            let what = || format!("the payload of event {event_type:?}");
            let payload = codec::encode(what, payload)?;
            limits.check_payload(what, &payload)?;
            let (workflow, id) = (self.workflow.clone(), self.id.clone());
            Ok(NewEvent {
                workflow,
                id,
                event_type,
                payload,
                idempotency_key: None,
                hooks: Vec::new(),
            })
        })();
        SendEvent {
            shared: Arc::clone(&self.shared),
            runner: Arc::clone(&self.runner),
            instance: self.key,
            event,
        }
    }

    async fn view(&self) -> Result<InstanceView> {
        let view = self.shared.store.instance(self.workflow.clone(), self.id.clone()).await?;
        view.ok_or_else(|| not_found(&self.workflow, &self.id))
    }
}

impl<O: DeserializeOwned> InstanceHandle<O> {
    /// Waits until the instance has ended and returns its output.
    ///
    /// The wait survives whatever the instance does: it may take weeks and restarts. In a process that
    /// died, get the instance again and wait again.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn one(_: Event<()>, step: &Step) -> Result<u32> { step.run("a", async { Ok(7) }).await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("one", one)).start().await?;
    /// # let instance = engine.workflow::<(), u32>("one")?.create(()).await?;
    /// # instance.result().await?;
    /// assert_eq!(instance.result().await?, 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The error the workflow ended with; `NO_RESULT` if it was terminated.
    pub async fn result(&self) -> Result<O> {
        loop {
            let ended = self.shared.waiters.wait(self.key)?;
            // A run in flight here tells its own end: no need to read what it has not written yet.
            if let Some(run) = self.runner.live_run(self.key) {
                if let Some(outcome) = ended.await?.filter(|outcome| outcome.run >= run) {
                    return self.decode(outcome.result);
                }
                continue;
            }
            let view = self.view().await?.record;
            let outcome = match view.status {
                InstanceStatus::Complete => Some(Ok(view.output.unwrap_or_else(Json::null))),
                InstanceStatus::Errored => Some(Err(errored(view.error))),
                InstanceStatus::Terminated => return Err(terminated(&self.workflow, &self.id)),
                InstanceStatus::Active | InstanceStatus::Waiting | InstanceStatus::Paused => {
                    // The end of an earlier run may be told late: it is not what was asked for.
                    let told = ended.await?.filter(|outcome| outcome.run >= view.run);
                    told.map(|outcome| outcome.result)
                }
            };
            if let Some(outcome) = outcome {
                return self.decode(outcome);
            }
        }
    }

    fn decode(&self, outcome: std::result::Result<Json, RecordedError>) -> Result<O> {
        let json = outcome.map_err(|error| Error::from_record(&error))?;
        codec::decode(|| format!("the output of {}/{}", self.workflow, self.id), &json)
    }
}

fn errored(error: Option<RecordedError>) -> RecordedError {
    error.unwrap_or_else(|| RecordedError::new("Error", "no error was recorded"))
}

fn terminated(workflow: &WorkflowName, id: &InstanceId) -> Error {
    let message =
        format!("instance {id:?} of workflow {workflow:?} was terminated and has no result");
    Error::from(Refusal::new(Code::NoResult, message)).named("Terminated")
}

pub(super) fn not_found(workflow: &WorkflowName, id: &InstanceId) -> Error {
    Refusal::no_instance(workflow, id).into()
}

impl<O> Clone for InstanceHandle<O> {
    fn clone(&self) -> Self {
        let (shared, runner) = (Arc::clone(&self.shared), Arc::clone(&self.runner));
        Self::new(shared, runner, self.workflow.clone(), self.id.clone(), self.key)
    }
}

impl<O> fmt::Debug for InstanceHandle<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InstanceHandle({}/{})", self.workflow, self.id)
    }
}

/// An event about to be sent; await it.
///
/// ```
/// # use piton::prelude::*;
/// # async fn wait(_: Event<()>, step: &Step) -> Result<u32> { step.wait_for_event("w", "go").await }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// # let engine = Engine::builder("memory:").register(workflow("wait", wait)).start().await?;
/// # let instance = engine.workflow::<(), u32>("wait")?.create(()).await?;
/// let event = instance.send_event("go", &7); // nothing is sent yet
/// event.await?;
/// assert_eq!(instance.result().await?, 7);
/// # Ok(())
/// # }
/// ```
#[must_use = "an event is sent when this is awaited"]
pub struct SendEvent {
    shared: Arc<Shared>,
    runner: Arc<Runner>,
    instance: InstanceKey,
    event: Result<NewEvent>,
}

impl SendEvent {
    /// Triggers a hook with it: it is there exactly if the event is stored by this call.
    pub fn hook(mut self, hook: Hook) -> Self {
        let prepared = hook.prepare(&self.shared.limits, self.shared.ids.next("hook"));
        match (&mut self.event, prepared) {
            (Ok(event), Ok(new)) => event.hooks.push(new),
            (Ok(_), Err(error)) => self.event = Err(error),
            (Err(_), _) => {}
        }
        self
    }

    /// A key by which a repeat is recognised: it is answered like the first and stored once.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn wait(_: Event<()>, step: &Step) -> Result<u32> { step.wait_for_event("w", "go").await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("wait", wait)).no_runner().start().await?;
    /// # let instance = engine.workflow::<(), u32>("wait")?.create(()).await?;
    /// # instance.tick().await?;
    /// for _ in 0..2 {
    ///     instance.send_event("go", &7).idempotency_key("request-1").await?;
    /// }
    /// assert_eq!(instance.history().await?.events.items.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        let key = key.into();
        if let Err(refusal) = self.shared.limits.check_idempotency_key(&key) {
            self.event = self.event.and(Err(refusal.into()));
        } else if let Ok(event) = &mut self.event {
            event.idempotency_key = Some(key.into());
        }
        self
    }

    /// Stores the event; the run that it wakes goes on here, if there is room for it.
    async fn send(self) -> Result<()> {
        let event = self.event?;
        let Some((slot, claimant)) = self.runner.try_claim(&event.workflow, self.instance) else {
            return acknowledge(self.shared.store.send_event(event, None).await);
        };
        // In a task of its own: a caller that goes away, or does not look, must not leave a leased run to nobody.
        let (told, sent) = oneshot::channel();
        let runtime = Arc::clone(&self.shared.runtime);
        let task = async move {
            let asked = Asked::now(&*self.shared.runtime);
            let mut sent = self.shared.store.send_event(event, Some(claimant)).await;
            if let Ok(Sent { event, claimed }) = &mut sent
                && let Some(run) = claimed.take()
            {
                self.runner.start_leased(run, event.created_at, asked, slot);
            }
            let _ = told.send(acknowledge(sent));
        };
        runtime.spawn(Box::pin(task)).detach();
        sent.await.map_err(|_| Error::shutting_down())?
    }
}

fn acknowledge(sent: Result<Sent, StoreError>) -> Result<()> {
    match sent {
        Ok(_) => Ok(()),
        Err(_) if planted(Bug::EarlyAck) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl IntoFuture for SendEvent {
    type Output = Result<()>;
    type IntoFuture = BoxFuture<Result<()>>;

    fn into_future(self) -> BoxFuture<Result<()>> {
        Box::pin(self.send())
    }
}

impl fmt::Debug for SendEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SendEvent")
    }
}
