//! The demo in a host that owns one alarm: nothing runs until it goes off.
//!
//! ```text
//!  a request changes something ──> hook on_workflow_enqueued ──> arm: the alarm is set for the next hook
//!  the alarm goes off ──> hooks that are due ──> each advances its run, which stores the next hook ──> arm
//! ```
//!
//! Nothing tells a host of what another one did to the database they share, least of all of its death: so the alarm also
//! goes off every poll interval.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use piton::hooks::{Alarm, AlarmDispatcher, Hooks, Processor, ProcessorGroup};
use piton::runtime::{BoxFuture, Runtime, TaskOwner};
use piton::{Engine, Error, Result, Span, Timestamp};
use serde_json::Value;
use tokio::sync::{Mutex as AsyncMutex, Notify, oneshot};

/// How many runs of a process that died are taken over at a time.
const LOST_RUNS_MAX: usize = 16;

/// How long the host waits before it tries again, if its alarm could not be set.
const PAUSE: Span = Span::literal("1 second");

/// The engine, for handlers that are made before it.
pub type Later = Arc<OnceLock<Engine>>;

/// A hook for every run that can go on: it advances that run until it rests again.
pub fn advance_by_hooks(engine: &Later) -> Hooks {
    let engine = Arc::clone(engine);
    Hooks::named("runs").timeout("1 day").on_workflow_enqueued(move |news, _| {
        let engine = Arc::clone(&engine);
        async move {
            let engine = engine.get().ok_or_else(|| Error::new("the engine has not started"))?;
            let workflow = engine.workflow::<Value, Value>(&news.workflow_name)?;
            workflow.get(&news.instance_id).await?.tick().await?;
            Ok(())
        }
    })
}

/// The one alarm of the host: set for one moment, it goes off once. Elsewhere this is a call to the platform.
#[derive(Clone, Debug, Default)]
pub struct HostAlarm {
    at: Arc<Mutex<Option<Timestamp>>>,
    changed: Arc<Notify>,
}

impl HostAlarm {
    fn at(&self) -> MutexGuard<'_, Option<Timestamp>> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, at: Option<Timestamp>) {
        *self.at() = at;
        self.changed.notify_one();
    }

    /// Waits until it goes off.
    async fn goes_off(&self, runtime: &dyn Runtime) {
        loop {
            let at = *self.at();
            let Some(at) = at else {
                self.changed.notified().await;
                continue;
            };
            tokio::select! {
                () = self.changed.notified() => {}
                () = runtime.sleep(at.since(runtime.now()).max(Span::ZERO)) => {
                    return *self.at() = None;
                }
            }
        }
    }
}

impl Alarm for HostAlarm {
    async fn get_alarm(&self) -> Result<Option<Timestamp>> {
        Ok(*self.at())
    }

    async fn set_alarm(&self, at: Timestamp) -> Result<()> {
        self.put(Some(at));
        Ok(())
    }

    async fn delete_alarm(&self) -> Result<()> {
        self.put(None);
        Ok(())
    }
}

/// Takes over runs that no hook tells of, because their process died in the middle.
///
/// In a task of its own: a run may take its time, and neither hooks nor requests are to wait for it.
struct LostRuns {
    engine: Engine,
    alarm: HostAlarm,
    /// One tick at a time.
    alone: Arc<AsyncMutex<()>>,
    /// Ends with the host.
    ticking: Mutex<Option<TaskOwner>>,
}

impl LostRuns {
    fn new(engine: Engine, alarm: HostAlarm) -> Self {
        Self { engine, alarm, alone: Arc::default(), ticking: Mutex::default() }
    }

    /// Begins, if something is due and no tick is under way.
    async fn take_over(&self) {
        let Ok(alone) = Arc::clone(&self.alone).try_lock_owned() else { return };
        let runtime = self.engine.runtime();
        match self.engine.next_wake_at().await {
            Ok(Some(at)) if at <= runtime.now() => {}
            Ok(_) => return,
            Err(error) => return tracing::error!(%error, "lost runs could not be looked for"),
        }
        let (engine, alarm) = (self.engine.clone(), self.alarm.clone());
        let clock = Arc::clone(&runtime);
        let tick = async move {
            let ticked = engine.tick(LOST_RUNS_MAX).await;
            drop(alone);
            match ticked {
                // There may be more, or something that they did.
                Ok(tick) if tick.processed + tick.hooks > 0 => alarm.put(Some(clock.now())),
                Ok(_) => {}
                Err(error) => tracing::error!(%error, "lost runs could not be taken over"),
            }
        };
        let task = runtime.spawn(Box::pin(tick));
        *self.ticking.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
    }
}

/// All there is to do: hooks, and lost runs.
struct Everything {
    engine: Engine,
    hooks: Arc<ProcessorGroup>,
    lost: Arc<LostRuns>,
    poll_interval: Span,
}

impl Processor for Everything {
    fn namespace(&self) -> &str {
        "everything"
    }

    fn process(&self) -> BoxFuture<Result<usize>> {
        let (runtime, lost) = (self.engine.runtime(), Arc::clone(&self.lost));
        let (mut handling, poll_interval) = (self.hooks.process(), self.poll_interval);
        Box::pin(async move {
            let handled = loop {
                tokio::select! {
                    biased;
                    handled = &mut handling => break handled?,
                    // A handler advances a run, which may take its time, too.
                    () = runtime.sleep(poll_interval) => lost.take_over().await,
                }
            };
            lost.take_over().await;
            Ok(handled)
        })
    }

    /// A poll interval from now at the latest.
    fn next_wake_at(&self) -> BoxFuture<Result<Option<Timestamp>>> {
        let (engine, poll_interval) = (self.engine.clone(), self.poll_interval);
        Box::pin(async move {
            let latest = engine.runtime().now().plus(poll_interval);
            Ok(engine.next_wake_at().await?.map(|at| at.min(latest)).or(Some(latest)))
        })
    }
}

/// A host that does nothing but wait for its alarm.
#[derive(Clone)]
pub struct AlarmHost {
    runtime: Arc<dyn Runtime>,
    alarm: HostAlarm,
    dispatcher: Arc<AlarmDispatcher<HostAlarm>>,
}

impl AlarmHost {
    /// The host of an engine without a runner; `None` if it has no hooks. What other hosts did to the same database it
    /// finds within the poll interval.
    pub fn new(engine: &Engine, poll_interval: Span) -> Option<Self> {
        let (runtime, alarm) = (engine.runtime(), HostAlarm::default());
        let everything = Everything {
            engine: engine.clone(),
            hooks: engine.hooks().processors()?,
            lost: Arc::new(LostRuns::new(engine.clone(), alarm.clone())),
            poll_interval,
        };
        let dispatcher =
            AlarmDispatcher::new(Arc::clone(&runtime), Arc::new(everything), alarm.clone());
        Some(Self { runtime, alarm, dispatcher: Arc::new(dispatcher) })
    }

    /// To be called after whatever may have triggered a hook.
    pub async fn arm(&self) {
        if let Err(error) = self.dispatcher.arm().await {
            tracing::error!(%error, "the alarm could not be set");
            // Nothing else would look again.
            self.alarm.put(Some(self.runtime.now().plus(PAUSE)));
        }
    }

    /// Waits for the alarm, again and again.
    pub async fn run(&self) {
        self.arm().await;
        loop {
            self.alarm.goes_off(&*self.runtime).await;
            if self.dispatcher.alarm().await.is_err() {
                self.arm().await;
            }
        }
    }
}

impl fmt::Debug for AlarmHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlarmHost({:?})", self.dispatcher)
    }
}

/// Middleware: a request that changes something may have triggered a hook, so the alarm is set after it.
///
/// In a task of its own: whoever hangs up ends his request, perhaps between the commit and the alarm.
pub async fn arm_after(State(host): State<AlarmHost>, request: Request, next: Next) -> Response {
    if request.method().is_safe() {
        return next.run(request).await;
    }
    let (answer, answered) = oneshot::channel();
    let runtime = Arc::clone(&host.runtime);
    let task = async move {
        let response = next.run(request).await;
        host.arm().await;
        let _ = answer.send(response);
    };
    runtime.spawn(Box::pin(task)).detach();
    answered.await.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}
