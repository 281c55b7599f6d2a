//! What the behaviour tests share: every store, a probe inside user code, and ways to look at a run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use piton::{InstanceHandle, LogRecord, Result, StepRecord, StepStatus, StepType};
use piton_testing::Harness;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

/// Writes each test once and runs it on every store. The body may use `?`.
macro_rules! on_every_store {
    ($($(#[$meta:meta])* async fn $name:ident($kind:ident) { $($body:tt)* })*) => {$(
        $(#[$meta])*
        mod $name {
            use super::*;

            async fn check($kind: StoreKind) -> Result<()> {
                $($body)*
                Ok(())
            }

            #[tokio::test]
            async fn memory() -> Result<()> {
                check(StoreKind::Memory).await
            }

            #[tokio::test]
            async fn sqlite() -> Result<()> {
                check(StoreKind::Sqlite).await
            }

            #[tokio::test]
            async fn postgres() -> Result<()> {
                if !piton_testing::postgres::is_available() {
                    return Ok(());
                }
                check(StoreKind::Postgres).await
            }
        }
    )*};
}
pub(crate) use on_every_store;

/// How often a condition is looked at before the test gives up on it. Each look lets every task run.
const LOOKS_MAX: usize = 3_000_000;

/// What user code did, and gates at which its bodies can be held.
///
/// It lives as long as the process, so that the closures of workflows may borrow it over crashes and deploys.
#[derive(Default)]
pub(crate) struct Probe {
    counts: Mutex<BTreeMap<String, u32>>,
    notes: Mutex<Vec<String>>,
    gates: Mutex<BTreeMap<String, Arc<Gate>>>,
}

struct Gate {
    arrived: Semaphore,
    opened: Semaphore,
}

impl Default for Gate {
    fn default() -> Self {
        Self { arrived: Semaphore::new(0), opened: Semaphore::new(0) }
    }
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
        let gate = self.gate(gate);
        gate.arrived.add_permits(1);
        gate.opened.acquire().await.expect("gates are never closed").forget();
    }

    /// Waits until a body is held at the gate.
    pub(crate) async fn held(&self, gate: &str) {
        self.gate(gate).arrived.acquire().await.expect("gates are never closed").forget();
    }

    /// Lets one body pass, now or when it arrives.
    pub(crate) fn open(&self, gate: &str) {
        self.gate(gate).opened.add_permits(1);
    }

    fn gate(&self, name: &str) -> Arc<Gate> {
        Arc::clone(lock(&self.gates).entry(name.to_owned()).or_default())
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

/// Looks until the condition holds, letting everything else run in between.
pub(crate) async fn eventually(
    what: &str,
    mut holds: impl AsyncFnMut() -> Result<bool>,
) -> Result<()> {
    for _ in 0..LOOKS_MAX {
        if holds().await? {
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
    panic!("it never came to pass: {what}");
}

/// Lets every run in flight take note of what the store has told it so far: what the store is asked here
/// it answers after everything before.
pub(crate) async fn settle(harness: &Harness) -> Result<()> {
    for _ in 0..4 {
        harness.store().release(Vec::new()).await?;
        for _ in 0..64 {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// The handle of an instance in the process that runs now.
pub(crate) async fn find<O: DeserializeOwned + 'static>(
    harness: &Harness,
    instance: &InstanceHandle<O>,
) -> Result<InstanceHandle<O>> {
    harness.engine().workflow::<serde_json::Value, O>(instance.workflow())?.get(instance.id()).await
}

/// All steps of the current run, in the order in which they were first recorded.
pub(crate) async fn steps<O>(instance: &InstanceHandle<O>) -> Result<Vec<StepRecord>> {
    let (mut all, mut cursor) = (Vec::new(), None);
    loop {
        let mut query = instance.history().page_size(100);
        if let Some(cursor) = cursor {
            query = query.steps_after(cursor);
        }
        let page = query.await?.steps;
        all.extend(page.items);
        if !page.has_next_page {
            return Ok(all);
        }
        cursor = page.cursor;
    }
}

/// A step of the current run, if it is recorded.
pub(crate) async fn find_step<O>(
    instance: &InstanceHandle<O>,
    name: &str,
) -> Result<Option<StepRecord>> {
    Ok(steps(instance).await?.into_iter().find(|step| step.name.as_str() == name))
}

/// A recorded step of the current run.
pub(crate) async fn step<O>(instance: &InstanceHandle<O>, name: &str) -> Result<StepRecord> {
    let step = find_step(instance, name).await?;
    Ok(step.unwrap_or_else(|| panic!("step {name:?} is not recorded")))
}

/// Waits until a step of the current run has this status.
pub(crate) async fn until_step<O>(
    instance: &InstanceHandle<O>,
    name: &str,
    status: StepStatus,
) -> Result<StepRecord> {
    let what = format!("step {name:?} is {status}");
    eventually(&what, async || {
        let step = find_step(instance, name).await?;
        Ok(step.is_some_and(|step| step.status == status))
    })
    .await?;
    step(instance, name).await
}

/// What a step is and where it stands, for comparing whole histories at a glance.
pub(crate) fn outline(steps: &[StepRecord]) -> Vec<(&str, StepType, StepStatus)> {
    steps.iter().map(|step| (step.name.as_str(), step.step_type, step.status)).collect()
}

/// The newest log lines of the current run, oldest first.
pub(crate) async fn logs<O>(instance: &InstanceHandle<O>) -> Result<Vec<LogRecord>> {
    let history = instance.history().with_logs().newest_first().page_size(100).await?;
    let mut lines = history.logs.map(|page| page.items).unwrap_or_default();
    lines.reverse();
    Ok(lines)
}
