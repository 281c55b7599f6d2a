//! One round of a processor: takes what is due, lets the handlers run side by side, and records what became of them.
//!
//! What is done and what is taken next share a transaction, so that a round under load costs one commit per batch. A
//! handler that takes its time holds up nobody: the round goes on taking hooks as long as there is room, and renews the
//! leases of what is still running.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use piton_core::Span;
use piton_core::hook::{HookKey, HookOutcome, HookRecord};
use tokio::sync::mpsc;

use super::HookContext;
use super::client::hook_store;
use super::processor::Inner;
use crate::runtime::TaskOwner;
use crate::store::TAKEN_MAX;
use crate::{Error, Result};

/// How many transactions one round makes at most; what is left then is for the next one.
const TURNS_MAX: usize = 10_000;

/// How often a round looks for hooks that fell due while its handlers are running.
const LOOK_INTERVAL: Span = Span::from_millis(1_000);

/// How often the handlers are let run before their outcomes are recorded, as long as that brings more of them: one
/// commit pays for all.
const LETS_MAX: usize = 16;

/// A hook in hand.
struct Flight {
    key: HookKey,
    /// Aborts the handler when it is dropped.
    _task: TaskOwner,
}

/// A round under way.
pub(super) struct Round {
    inner: Arc<Inner>,
    flights: BTreeMap<Arc<str>, Flight>,
    ended: mpsc::Receiver<(HookRecord, HookOutcome)>,
    report: mpsc::Sender<(HookRecord, HookOutcome)>,
    settled: Vec<(HookRecord, HookOutcome)>,
    processed: usize,
    /// There may be more that is due.
    more: bool,
    renewed_us: u64,
}

impl Round {
    pub(super) fn new(inner: Arc<Inner>) -> Self {
        let (report, ended) = mpsc::channel(inner.config.concurrency);
        let renewed_us = inner.shared.runtime.monotonic_us();
        Self {
            inner,
            flights: BTreeMap::new(),
            ended,
            report,
            settled: Vec::new(),
            processed: 0,
            more: true,
            renewed_us,
        }
    }

    /// Goes on until nothing is due and nothing is running.
    pub(super) async fn run(mut self) -> Result<usize> {
        for turn in 1.. {
            let stopping = self.inner.stopping.load(Ordering::SeqCst) || turn > TURNS_MAX;
            self.more &= !stopping;
            self.turn().await?;
            if self.flights.is_empty() {
                if !self.more {
                    break;
                }
                continue;
            }
            self.wait().await;
        }
        Ok(self.processed)
    }

    /// One transaction: what ended is recorded, what runs on is renewed, and more is taken.
    async fn turn(&mut self) -> Result<()> {
        let room = self.inner.config.concurrency - self.flights.len();
        let wanted = if self.more { room.min(TAKEN_MAX) } else { 0 };
        let renewed = self.take_renewals();
        if wanted == 0 && self.settled.is_empty() && renewed.is_empty() {
            return Ok(());
        }
        let mut work = self.inner.work();
        work.settled = std::mem::take(&mut self.settled);
        work.renewed = renewed;
        work.wanted = wanted;
        self.processed += work.settled.len();
        let worked = hook_store(&self.inner.shared)?.work_hooks(work).await?;
        for key in worked.lost {
            tracing::warn!(hook = %key.id, "a hook was taken over by somebody else");
            self.flights.remove(&key.id);
        }
        self.more = wanted > 0 && worked.taken.len() == wanted;
        for hook in worked.taken {
            self.start(hook);
        }
        Ok(())
    }

    /// The hooks in hand, once a third of their lease has passed.
    fn take_renewals(&mut self) -> Vec<HookKey> {
        let now_us = self.inner.shared.runtime.monotonic_us();
        let third_us = self.inner.config.lease.as_millis().unsigned_abs() * 1_000 / 3;
        if now_us.saturating_sub(self.renewed_us) < third_us {
            return Vec::new();
        }
        self.renewed_us = now_us;
        self.flights.values().map(|flight| flight.key.clone()).collect()
    }

    fn start(&mut self, hook: HookRecord) {
        let (inner, report) = (Arc::clone(&self.inner), self.report.clone());
        let key = hook.key();
        let task = async move {
            let outcome = attempt(&inner, &hook).await;
            // There is room for every hook in hand.
            let _ = report.send((hook, outcome)).await;
        };
        let id = Arc::clone(&key.id);
        let task = self.inner.shared.runtime.spawn(Box::pin(task));
        self.flights.insert(id, Flight { key, _task: task });
    }

    /// Waits until a handler has ended, or it is time to look again.
    async fn wait(&mut self) {
        let inner = Arc::clone(&self.inner);
        let first = tokio::select! {
            biased;
            ended = self.ended.recv() => ended,
            () = inner.news.notified() => None,
            () = inner.shared.runtime.sleep(LOOK_INTERVAL) => None,
        };
        let Some(first) = first else {
            self.more = true;
            return;
        };
        self.end(first);
        for _ in 0..LETS_MAX {
            let before = self.settled.len();
            while let Ok(ended) = self.ended.try_recv() {
                self.end(ended);
            }
            if self.settled.len() == before && before > 1 || self.flights.is_empty() {
                break;
            }
            tokio::task::yield_now().await;
        }
        // What ended makes room, and whoever filled it may have left more behind.
        self.more = true;
    }

    fn end(&mut self, ended: (HookRecord, HookOutcome)) {
        // One that was lost meanwhile is somebody else's.
        if self.flights.remove(&ended.0.id).is_some() {
            self.settled.push(ended);
        }
    }
}

/// Runs the handler of one hook.
async fn attempt(inner: &Inner, hook: &HookRecord) -> HookOutcome {
    let handled = async {
        let handler = inner.handler(hook)?;
        let context = HookContext::new(hook.clone());
        let begun =
            catch_unwind(AssertUnwindSafe(|| handler.handle(hook.payload.clone(), context)));
        unpanicked(begun.map_err(|panic| Error::from_panic(&*panic))?).await
    };
    let timeout = inner.config.timeout;
    let ended = tokio::select! {
        biased;
        ended = handled => ended,
        () = inner.shared.runtime.sleep(timeout) => {
            Err(Error::new(format!("took longer than {timeout}")).named("HookTimeout"))
        }
    };
    match ended {
        Ok(()) => HookOutcome::Done,
        Err(error) => {
            let (id, name, attempt) = (&hook.id, &hook.name, hook.attempts);
            tracing::warn!(%error, hook = %id, name = %name, attempt, "a hook failed");
            let retryable = error.is_retryable();
            HookOutcome::Failed { error: error.to_record(), retryable }
        }
    }
}

/// A panic is an error like any other.
async fn unpanicked(running: impl Future<Output = Result<()>>) -> Result<()> {
    let mut running = pin!(running);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(context))) {
        Ok(poll) => poll,
        Err(panic) => Poll::Ready(Err(Error::from_panic(&*panic))),
    })
    .await
}
