//! Waiting a moment before going to sleep, on both sides of the writer's queue.
//!
//! Waking a sleeping thread can take as long as a commit. A single run goes back and forth between its own thread and
//! the writer with every step, so either side looks around for a moment before it sleeps, and the other finds it
//! awake. The writer always does; a caller only if it is the only one and commits are known to be quick, because
//! meanwhile its thread serves nobody else. Whoever else wants the processor has it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use tokio::sync::oneshot;

use crate::runtime::Runtime;

/// How long to look around before going to sleep.
const LINGER_US: u64 = 150;

/// How often to look at most, for clocks that stand still.
const LOOKS_MAX: u32 = 300;

/// A commit that takes longer is not worth waiting for awake.
const QUICK_COMMIT_US: u64 = 300;

/// Looks for something again and again, for a moment.
pub(super) fn linger<T>(runtime: &dyn Runtime, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let began_us = runtime.monotonic_us();
    for _ in 0..LOOKS_MAX {
        if let Some(found) = look() {
            return Some(found);
        }
        // On a busy machine one of these can take as long as all the rest.
        thread::yield_now();
        if runtime.monotonic_us() - began_us > LINGER_US {
            break;
        }
    }
    None
}

/// How many callers wait for the writer, and how long they will have to.
pub(super) struct Traffic {
    runtime: Arc<dyn Runtime>,
    callers: AtomicUsize,
    commit_us: AtomicU64,
}

impl Traffic {
    /// Nobody waits, and nobody knows yet how long a commit takes.
    pub(super) fn new(runtime: Arc<dyn Runtime>) -> Arc<Self> {
        let (callers, commit_us) = (AtomicUsize::new(0), AtomicU64::new(u64::MAX));
        Arc::new(Self { runtime, callers, commit_us })
    }

    /// A caller is about to send its request.
    pub(super) fn enter(&self) -> Caller<'_> {
        let others = self.callers.fetch_add(1, Ordering::Relaxed);
        Caller { traffic: self, alone: others == 0 }
    }

    /// The writer has committed, which took this long.
    pub(super) fn note_commit(&self, us: u64) {
        self.commit_us.store(us, Ordering::Relaxed);
    }
}

/// A caller from its request to its answer.
pub(super) struct Caller<'t> {
    traffic: &'t Traffic,
    alone: bool,
}

impl Caller<'_> {
    /// Waits a moment for the answer without letting the thread sleep, if that is worth it.
    pub(super) fn linger<T>(&self, answered: &mut oneshot::Receiver<T>) -> Option<T> {
        let quick = self.traffic.commit_us.load(Ordering::Relaxed) <= QUICK_COMMIT_US;
        if !(self.alone && quick) {
            return None;
        }
        linger(&*self.traffic.runtime, || answered.try_recv().ok())
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        self.traffic.callers.fetch_sub(1, Ordering::Relaxed);
    }
}
