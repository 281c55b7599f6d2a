//! The dispatcher that polls: for processes that live as long as their hooks do.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use piton_core::{IntoSpan, Span};
use tokio::sync::Notify;

use super::Processor;
use super::rounds::Rounds;
use crate::runtime::{Runtime, TaskOwner};
use crate::{Error, Result};

/// What hears of errors.
type OnError = Arc<dyn Fn(&Error) + Send + Sync>;

/// How often to poll when nobody says.
const POLL_INTERVAL: Span = Span::from_millis(5_000);

/// Looks every so often whether a hook is due, and processes it then. [`wake`](Self::wake) does so at once.
///
/// An engine with hooks runs one by itself; build one of your own for an engine without a runner. Nobody tells that one
/// of hooks that are triggered: wake it, or leave them to its next poll, whose interval is its own.
pub struct PollingDispatcher {
    inner: Arc<Inner>,
    polling: Mutex<Option<TaskOwner>>,
}

struct Inner {
    runtime: Arc<dyn Runtime>,
    processor: Arc<dyn Processor>,
    poll_interval: Span,
    report: Report,
    rounds: Rounds,
    /// How many hooks the rounds have processed.
    processed: Arc<AtomicUsize>,
    /// Look now: something may be due.
    look: Notify,
}

/// Where errors go: to the callback, and to the log without one.
#[derive(Clone, Default)]
pub(super) struct Report(Option<OnError>);

impl Report {
    pub(super) fn to(callback: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(callback)))
    }

    pub(super) fn error(&self, error: &Error) {
        match &self.0 {
            None => tracing::error!(%error, "hooks could not be processed; trying again later"),
            // A callback that panics must not stop the loop.
            Some(callback) => {
                if catch_unwind(AssertUnwindSafe(|| callback(error))).is_err() {
                    tracing::error!(%error, "the error callback of a dispatcher panicked");
                }
            }
        }
    }
}

impl PollingDispatcher {
    /// A dispatcher of this processor, or of a [`ProcessorGroup`](super::ProcessorGroup).
    pub fn new(runtime: Arc<dyn Runtime>, processor: Arc<dyn Processor>) -> Self {
        Self::build(runtime, processor, POLL_INTERVAL, Report::default())
    }

    fn build(
        runtime: Arc<dyn Runtime>,
        processor: Arc<dyn Processor>,
        poll_interval: Span,
        report: Report,
    ) -> Self {
        let processed = Arc::new(AtomicUsize::new(0));
        let round = {
            let (processor, report) = (Arc::clone(&processor), report.clone());
            let processed = Arc::clone(&processed);
            move || {
                let (processing, report) = (processor.process(), report.clone());
                let processed = Arc::clone(&processed);
                let round = async move {
                    match processing.await {
                        Ok(count) => drop(processed.fetch_add(count, Ordering::SeqCst)),
                        Err(error) => report.error(&error),
                    }
                };
                Box::pin(round) as _
            }
        };
        let rounds = Rounds::new(Arc::clone(&runtime), Arc::new(round));
        let look = Notify::new();
        let inner = Inner { runtime, processor, poll_interval, report, rounds, processed, look };
        Self { inner: Arc::new(inner), polling: Mutex::default() }
    }

    /// How often to look. Default 5 seconds.
    ///
    /// # Errors
    ///
    /// If it is not a duration, or not longer than nothing.
    pub fn poll_interval(self, interval: impl IntoSpan) -> Result<Self> {
        let interval = interval.into_span()?;
        if interval <= Span::ZERO {
            return Err(Error::non_retryable("a poll interval must be longer than nothing"));
        }
        let Inner { runtime, processor, report, .. } = &*self.inner;
        Ok(Self::build(Arc::clone(runtime), Arc::clone(processor), interval, report.clone()))
    }

    /// What to do about errors of the processor. Without it they are logged. The loop goes on in any case.
    #[must_use]
    pub fn on_error(self, callback: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        let Inner { runtime, processor, poll_interval, .. } = &*self.inner;
        let report = Report::to(callback);
        Self::build(Arc::clone(runtime), Arc::clone(processor), *poll_interval, report)
    }

    /// Starts to poll. Does nothing if it polls already.
    pub fn start(&self) {
        let mut polling = self.polling.lock().unwrap_or_else(PoisonError::into_inner);
        if polling.is_none() {
            let task = poll_for_ever(Arc::clone(&self.inner));
            *polling = Some(self.inner.runtime.spawn(Box::pin(task)));
        }
    }

    /// Stops to poll. A round that is under way goes on.
    pub fn stop(&self) {
        let polling = self.polling.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(polling);
    }

    /// Processes what is due now, and returns when that is done. Calls that come while a round is under way share
    /// exactly one more.
    pub async fn wake(&self) {
        let _ = self.inner.rounds.ask().await;
        // What is to be tried again, or was triggered for later, may come before the next poll.
        self.look();
    }

    /// Looks soon whether something is due, without waiting for it.
    pub(crate) fn look(&self) {
        self.inner.look.notify_one();
    }

    /// Stops to poll, and drops the round that is under way.
    pub(crate) fn abort(&self) {
        self.stop();
        self.inner.rounds.abort();
    }
}

impl Drop for PollingDispatcher {
    fn drop(&mut self) {
        self.abort();
    }
}

impl fmt::Debug for PollingDispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PollingDispatcher({})", self.inner.processor.namespace())
    }
}

async fn poll_for_ever(inner: Arc<Inner>) {
    loop {
        let pause = match inner.processor.next_wake_at().await {
            Ok(Some(at)) if at <= inner.runtime.now() => {
                let before = inner.processed.load(Ordering::SeqCst);
                let _ = inner.rounds.ask().await;
                if inner.processed.load(Ordering::SeqCst) > before {
                    continue;
                }
                // Somebody else was faster, or it failed: no reason to spin.
                inner.poll_interval
            }
            Ok(Some(at)) => at.since(inner.runtime.now()).min(inner.poll_interval),
            Ok(None) => inner.poll_interval,
            Err(error) => {
                inner.report.error(&error);
                inner.poll_interval
            }
        };
        tokio::select! {
            biased;
            () = inner.look.notified() => {}
            () = inner.runtime.sleep(pause.max(Span::from_millis(1))) => {}
        }
    }
}
