//! The demo in a host that owns one alarm: nothing runs until it goes off.
//!
//! ```text
//!  a request changes something ──> hook on_workflow_enqueued ──> arm: the alarm is set for the next hook
//!  the alarm goes off ──> hooks that are due ──> each advances its run, which stores the next hook ──> arm
//! ```

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use piton::hooks::{Alarm, AlarmDispatcher, Hooks, Processor, ProcessorGroup};
use piton::runtime::{BoxFuture, Runtime};
use piton::{Engine, Error, Result, Span, Timestamp};
use serde_json::Value;
use tokio::sync::Notify;

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

/// All there is to do: hooks, and runs that no hook tells of, because their process died in the middle.
struct Everything {
    engine: Engine,
    hooks: Arc<ProcessorGroup>,
}

impl Processor for Everything {
    fn namespace(&self) -> &str {
        "everything"
    }

    fn process(&self) -> BoxFuture<Result<usize>> {
        let (engine, hooks) = (self.engine.clone(), Arc::clone(&self.hooks));
        Box::pin(async move {
            let handled = hooks.process().await?;
            let lost = engine.next_wake_at().await?.is_some_and(|at| at <= engine.runtime().now());
            let taken_over = if lost { engine.tick(LOST_RUNS_MAX).await?.processed } else { 0 };
            Ok(handled + taken_over)
        })
    }

    fn next_wake_at(&self) -> BoxFuture<Result<Option<Timestamp>>> {
        let engine = self.engine.clone();
        Box::pin(async move { engine.next_wake_at().await })
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
    /// The host of an engine without a runner; `None` if it has no hooks.
    pub fn new(engine: &Engine) -> Option<Self> {
        let everything = Everything { engine: engine.clone(), hooks: engine.hooks().processors()? };
        let (runtime, alarm) = (engine.runtime(), HostAlarm::default());
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
