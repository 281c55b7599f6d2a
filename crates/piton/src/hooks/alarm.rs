//! The dispatcher for hosts that own one alarm: a durable object, a systemd timer, a cloud scheduler.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use piton_core::{Span, Timestamp};
use tokio::sync::Mutex as AsyncMutex;

use super::Processor;
use super::polling::Report;
use super::rounds::Rounds;
use crate::runtime::Runtime;
use crate::{Error, Result};

/// How long to wait before trying again after a round that failed, or did nothing although something is due.
const PAUSE: Span = Span::from_millis(5_000);

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
    /// What this dispatcher has set. Locked from the look at what is next until the alarm is set for it: of two that
    /// arm at the same time the second sees what the first has done.
    armed: AsyncMutex<Option<Timestamp>>,
    /// What kept the last round from setting the alarm.
    unarmed: Mutex<Option<String>>,
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
        let inner = Arc::new(Inner {
            runtime: Arc::clone(&runtime),
            processor,
            alarm,
            report,
            armed: AsyncMutex::default(),
            unarmed: Mutex::default(),
        });
        let round = {
            let inner = Arc::clone(&inner);
            move || Box::pin(Arc::clone(&inner).round()) as _
        };
        Self { inner, rounds: Rounds::new(runtime, Arc::new(round)) }
    }

    /// The alarm went off: processes what is due, sets the alarm for the next hook, and returns when that is done.
    /// Calls that come while a round is under way share exactly one more.
    ///
    /// # Errors
    ///
    /// If the alarm could not be read or set: nothing calls again by itself then, so the host must. Errors of the
    /// processor are told, and tried again at the next alarm.
    pub async fn alarm(&self) -> Result<()> {
        *self.inner.armed.lock().await = None;
        self.rounds.ask().await.map_err(|_| Error::new("the round broke off"))?;
        self.inner.unarmed().map_or(Ok(()), |why| Err(Error::new(why)))
    }

    /// Sets the alarm for the next hook, if it is not set for an earlier moment: to be called after hooks were
    /// triggered, and at the start.
    ///
    /// # Errors
    ///
    /// If the alarm could not be read or set: call again.
    pub async fn arm(&self) -> Result<()> {
        self.inner.arm(Span::ZERO).await
    }
}

impl<A: Alarm> Inner<A> {
    async fn round(self: Arc<Self>) {
        let pause = match self.processor.process().await {
            // Somebody else was faster, or it must wait for something else: no reason to spin.
            Ok(0) => PAUSE,
            Ok(_) => Span::ZERO,
            Err(error) => {
                self.report.error(&error);
                PAUSE
            }
        };
        let unarmed = self.arm(pause).await.err().map(|error| error.to_string());
        *self.unarmed.lock().unwrap_or_else(PoisonError::into_inner) = unarmed;
    }

    /// Sets the alarm for the next hook; after a pause, if it is due already.
    async fn arm(&self, pause: Span) -> Result<()> {
        let mut armed = self.armed.lock().await;
        let next = match self.processor.next_wake_at().await {
            Ok(next) => next,
            Err(error) => {
                self.report.error(&error);
                // Nobody knows: look again later, rather than never.
                Some(self.runtime.now().plus(PAUSE))
            }
        };
        let now = self.runtime.now();
        let set = match next {
            Some(at) if at <= now => self.set(&mut armed, now.plus(pause)).await,
            Some(at) => self.set(&mut armed, at).await,
            None => self.clear(&mut armed).await,
        };
        set.inspect_err(|error| self.report.error(error))
    }

    async fn set(&self, armed: &mut Option<Timestamp>, at: Timestamp) -> Result<()> {
        let now = self.runtime.now();
        // A moment that has passed is spent: it may never go off again.
        if self.alarm.get_alarm().await?.is_some_and(|set| now < set && set <= at) {
            return Ok(());
        }
        self.alarm.set_alarm(at).await?;
        *armed = Some(at);
        Ok(())
    }

    async fn clear(&self, armed: &mut Option<Timestamp>) -> Result<()> {
        if armed.is_none() || self.alarm.get_alarm().await? != *armed {
            return Ok(());
        }
        self.alarm.delete_alarm().await?;
        *armed = None;
        Ok(())
    }

    fn unarmed(&self) -> Option<String> {
        self.unarmed.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
