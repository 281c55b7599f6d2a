//! Witnesses inside user code: doors that hold a body, counters and notes of what happened.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use piton::Result;
use tokio::sync::Semaphore;

/// A door in a body: the body says that it has come this far and stays there until the test opens.
#[derive(Clone)]
pub(crate) struct Gate(Arc<GateState>);

struct GateState {
    arrived: Semaphore,
    opened: Semaphore,
    count: AtomicU32,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self(Arc::new(GateState {
            arrived: Semaphore::new(0),
            opened: Semaphore::new(0),
            count: AtomicU32::new(0),
        }))
    }

    /// In the body: arrives, and waits until the door is opened once for it.
    pub(crate) async fn pass(&self) -> Result<()> {
        self.0.count.fetch_add(1, Ordering::SeqCst);
        self.0.arrived.add_permits(1);
        self.0.opened.acquire().await?.forget();
        Ok(())
    }

    /// In the test: waits until a body has arrived; each arrival counts once.
    pub(crate) async fn arrived(&self) {
        self.0.arrived.acquire().await.unwrap().forget();
    }

    /// Lets one body through, now or when it arrives.
    pub(crate) fn open(&self) {
        self.0.opened.add_permits(1);
    }

    /// How many bodies have arrived so far.
    pub(crate) fn arrivals(&self) -> u32 {
        self.0.count.load(Ordering::SeqCst)
    }
}

/// What happened outside of the engine, in order: the witness of bodies.
#[derive(Clone, Default)]
pub(crate) struct Trail(Arc<Mutex<Vec<String>>>);

impl Trail {
    pub(crate) fn mark(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    /// Marks, as the whole of a body.
    pub(crate) fn note(&self, what: impl Into<String>) -> Result<()> {
        self.mark(what);
        Ok(())
    }

    pub(crate) fn seen(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, what: &str) -> usize {
        self.seen().iter().filter(|seen| *seen == what).count()
    }
}

/// What user code did, and gates at which its bodies can be held.
///
/// It lives as long as the process, so that the closures of workflows may borrow it over crashes and deploys.
#[derive(Default)]
pub(crate) struct Probe {
    counts: Mutex<BTreeMap<String, u32>>,
    notes: Mutex<Vec<String>>,
    gates: Mutex<BTreeMap<String, Gate>>,
}

impl Probe {
    pub(crate) fn new() -> &'static Self {
        Box::leak(Box::default())
    }

    /// The same probe, as a value of its own for bodies that move what they use.
    pub(crate) fn here(&'static self) -> &'static Self {
        self
    }

    /// Counts that something happened. Returns how often it has by now.
    pub(crate) fn hit(&self, what: impl Into<String>) -> u32 {
        let mut counts = lock(&self.counts);
        let count = counts.entry(what.into()).or_default();
        *count += 1;
        *count
    }

    pub(crate) fn count(&self, what: &str) -> u32 {
        lock(&self.counts).get(what).copied().unwrap_or_default()
    }

    pub(crate) fn counts(&self) -> BTreeMap<String, u32> {
        lock(&self.counts).clone()
    }

    /// Writes down what happened, in order.
    pub(crate) fn note(&self, what: impl Into<String>) {
        lock(&self.notes).push(what.into());
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        lock(&self.notes).clone()
    }

    /// Holds the calling body until the test opens the gate.
    pub(crate) async fn hold(&self, gate: &str) {
        self.gate(gate).pass().await.expect("gates are never closed");
    }

    /// Waits until a body is held at the gate.
    pub(crate) async fn held(&self, gate: &str) {
        self.gate(gate).arrived().await;
    }

    /// Lets one body pass, now or when it arrives.
    pub(crate) fn open(&self, gate: &str) {
        self.gate(gate).open();
    }

    fn gate(&self, name: &str) -> Gate {
        lock(&self.gates).entry(name.to_owned()).or_insert_with(Gate::new).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts down when it is dropped: user code holds one for as long as it lives.
pub(crate) struct Alive(&'static Probe);

impl Alive {
    /// Counts into `alive now` and keeps the highest number in `alive at most`.
    pub(crate) fn new(probe: &'static Probe) -> Self {
        let now = probe.hit("alive now");
        let mut counts = lock(&probe.counts);
        let most = counts.entry("alive at most".into()).or_default();
        *most = now.max(*most);
        Self(probe)
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        *lock(&self.0.counts).entry("alive now".into()).or_default() -= 1;
    }
}
