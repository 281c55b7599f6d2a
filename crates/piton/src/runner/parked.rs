//! Waiting runs that stay in memory, so that they can go on without replay.
//!
//! **A cache and nothing else**: a parked run holds no lease, and is used only if its claim's epoch is the
//! very next after the one it was parked under; then nobody else can have written anything in between.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use piton_core::planted::{Bug, planted};
use piton_core::record::{InstanceKey, RunKey};

use crate::pass::Parkable;

/// Parked runs, the least recently parked out first.
pub(super) struct Parked {
    max: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    runs: HashMap<InstanceKey, (u64, Parkable)>,
    by_age: BTreeMap<u64, InstanceKey>,
    next_age: u64,
}

impl Parked {
    pub(super) fn new(max: usize) -> Self {
        Self { max, inner: Mutex::default() }
    }

    /// Parks a run. Returns what has to go for it: user code must be dropped outside of the lock.
    #[must_use]
    pub(super) fn put(&self, run: Parkable) -> Vec<Parkable> {
        if self.max == 0 {
            return vec![run];
        }
        let mut inner = self.lock();
        let mut gone: Vec<_> = inner.remove(run.key.instance).into_iter().collect();
        if inner.runs.len() >= self.max
            && let Some((_, oldest)) = inner.by_age.pop_first()
        {
            gone.extend(inner.runs.remove(&oldest).map(|(_, run)| run));
        }
        let age = inner.next_age;
        inner.next_age += 1;
        inner.by_age.insert(age, run.key.instance);
        inner.runs.insert(run.key.instance, (age, run));
        gone
    }

    /// The parked state of the run that `key` claims, if nobody else has claimed it since.
    pub(super) fn take(&self, key: RunKey) -> Option<Parkable> {
        let parked = self.lock().remove(key.instance)?;
        let next = parked.key.epoch + 1 == key.epoch || planted(Bug::StaleParkedRun);
        let used = parked.key.run == key.run && next;
        tracing::trace!(target: "piton::parked", used, "a parked run was claimed again");
        used.then_some(parked)
    }

    /// Empties the cache.
    #[must_use]
    pub(super) fn drain(&self) -> Vec<Parkable> {
        let mut inner = self.lock();
        inner.by_age.clear();
        inner.runs.drain().map(|(_, (_, run))| run).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn remove(&mut self, instance: InstanceKey) -> Option<Parkable> {
        let (age, run) = self.runs.remove(&instance)?;
        self.by_age.remove(&age);
        Some(run)
    }
}
