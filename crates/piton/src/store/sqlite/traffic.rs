//! Waiting a moment before going to sleep, on both sides of the writer's queue.
//!
//! Waking a sleeping thread can take as long as a commit. A single run goes back and forth between its own thread and
//! the writer with every step, so either side looks around for a moment before it sleeps, and the other finds it
//! awake. The writer always does; a caller only if it is the only one and commits are known to be quick, because
//! meanwhile its thread serves nobody else. Whoever else wants the processor has it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use tokio::sync::oneshot;

/// How often to look before going to sleep: some hundred microseconds.
const LOOKS_BEFORE_SLEEP: u32 = 300;

/// A commit that takes longer is not worth waiting for awake.
const QUICK_COMMIT_US: u64 = 300;

/// Looks for something again and again, for a moment.
pub(super) fn linger<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 0..LOOKS_BEFORE_SLEEP {
        if let Some(found) = look() {
            return Some(found);
        }
        thread::yield_now();
    }
    None
}

/// How many callers wait for the writer, and how long they will have to.
#[derive(Default)]
pub(super) struct Traffic {
    callers: AtomicUsize,
    commit_us: AtomicU64,
}

impl Traffic {
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
        linger(|| answered.try_recv().ok())
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        self.traffic.callers.fetch_sub(1, Ordering::Relaxed);
    }
}
