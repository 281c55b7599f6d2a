//! The dispatcher for hosts that own one alarm: a durable object, a systemd timer, a cloud scheduler.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use piton_core::{Span, Timestamp};

use super::Processor;
use super::polling::Report;
use super::rounds::Rounds;
use crate::runtime::Runtime;
use crate::{Error, Result};

/// How long to wait before trying again after a failure.
const FAILURE_PAUSE: Span = Span::from_millis(5_000);

/// The one alarm of a host. It outlives the process: whatever calls [`AlarmDispatcher::alarm`] when it goes off may
/// have to start the process for that.
pub trait Alarm: Send + Sync + 'static {
    /// When it will go off; `None` if it is not set.
    fn get_alarm(&self) -> impl Future<Output = Result<Option<Timestamp>>> + Send;

    /// Sets it, in place of what was set before.
    fn set_alarm(&self, at: Timestamp) -> impl Future<Output = Result<()>> + Send;

    /// Clears it.
    fn delete_alarm(&self) -> impl Future<Output = Result<()>> + Send;
}

/// Processes hooks when the host's alarm goes off, and sets the alarm for the next one.
///
/// The alarm may be used for other things too: an earlier one is never postponed, and only an alarm that this
/// dispatcher has set is cleared.
pub struct AlarmDispatcher<A> {
    inner: Arc<Inner<A>>,
    rounds: Rounds,
}

struct Inner<A> {
    runtime: Arc<dyn Runtime>,
    processor: Arc<dyn Processor>,
    alarm: A,
    report: Report,
    /// What this dispatcher has set.
    armed: Mutex<Option<Timestamp>>,
}

impl<A: Alarm> AlarmDispatcher<A> {
    /// A dispatcher of this processor, or of a [`ProcessorGroup`](super::ProcessorGroup).
    pub fn new(runtime: Arc<dyn Runtime>, processor: Arc<dyn Processor>, alarm: A) -> Self {
        Self::build(runtime, processor, alarm, Report::default())
    }

    /// Like [`new`](Self::new), with something that hears of errors. Without it they are logged.
    pub fn with_on_error(
        runtime: Arc<dyn Runtime>,
        processor: Arc<dyn Processor>,
        alarm: A,
        callback: impl Fn(&Error) + Send + Sync + 'static,
    ) -> Self {
        Self::build(runtime, processor, alarm, Report::to(callback))
    }

    fn build(
        runtime: Arc<dyn Runtime>,
        processor: Arc<dyn Processor>,
        alarm: A,
        report: Report,
    ) -> Self {
        let armed = Mutex::new(None);
        let inner =
            Arc::new(Inner { runtime: Arc::clone(&runtime), processor, alarm, report, armed });
        let round = {
            let inner = Arc::clone(&inner);
            move || Box::pin(Arc::clone(&inner).round()) as _
        };
        Self { inner, rounds: Rounds::new(runtime, Arc::new(round)) }
    }

    /// The alarm went off: processes what is due, sets the alarm for the next hook, and returns when that is done.
    /// Calls that come while a round is under way share exactly one more.
    pub async fn alarm(&self) {
        self.inner.set_armed(None);
        let _ = self.rounds.ask().await;
    }

    /// Sets the alarm for the next hook, if it is not set for an earlier moment: to be called after hooks were
    /// triggered, and at the start.
    pub async fn arm(&self) {
        self.inner.arm(None).await;
    }
}

impl<A: Alarm> Inner<A> {
    async fn round(self: Arc<Self>) {
        let pause = match self.processor.process().await {
            Ok(_) => None,
            Err(error) => {
                self.report.error(&error);
                Some(FAILURE_PAUSE)
            }
        };
        self.arm(pause).await;
    }

    /// Sets the alarm for the next hook, not before `pause` has passed.
    async fn arm(&self, pause: Option<Span>) {
        let now = self.runtime.now();
        let earliest = now.plus(pause.unwrap_or(Span::ZERO));
        let next = match self.processor.next_wake_at().await {
            Ok(next) => next,
            Err(error) => {
                self.report.error(&error);
                // Nobody knows: look again later, rather than never.
                Some(now.plus(FAILURE_PAUSE))
            }
        };
        let set = match next {
            Some(at) => self.set(at.max(earliest)).await,
            None => self.clear().await,
        };
        if let Err(error) = set {
            self.report.error(&error);
        }
    }

    async fn set(&self, at: Timestamp) -> Result<()> {
        if self.alarm.get_alarm().await?.is_some_and(|set| set <= at) {
            return Ok(());
        }
        self.alarm.set_alarm(at).await?;
        self.set_armed(Some(at));
        Ok(())
    }

    async fn clear(&self) -> Result<()> {
        let armed = *self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        if armed.is_none() || self.alarm.get_alarm().await? != armed {
            return Ok(());
        }
        self.alarm.delete_alarm().await?;
        self.set_armed(None);
        Ok(())
    }

    fn set_armed(&self, at: Option<Timestamp>) {
        *self.armed.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }
}

impl<A> fmt::Debug for AlarmDispatcher<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlarmDispatcher({})", self.inner.processor.namespace())
    }
}

impl<A> Drop for AlarmDispatcher<A> {
    fn drop(&mut self) {
        self.rounds.abort();
    }
}
