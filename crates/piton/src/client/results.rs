//! Those who wait for results: told at once when a run ends here, found by one shared poll otherwise.
//!
//! A waiter registers before it reads the instance, so that an end between the two cannot be missed. Hints
//! may be lost: one batched query per poll interval finds every ended instance that someone waits for,
//! however many waiters there are.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use piton_core::record::{InstanceKey, RecordedError, RunNumber};
use piton_core::{Json, Span};
use tokio::sync::{Notify, oneshot};

use crate::engine::Shared;
use crate::store::StoreError;
use crate::{Error, Result};

/// How a run ended.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) run: RunNumber,
    pub(crate) result: std::result::Result<Json, RecordedError>,
}

/// How many instances one poll asks about.
const POLL_BATCH_MAX: usize = 500;

/// Who waits for which instance.
#[derive(Default)]
pub(crate) struct Waiters {
    inner: Mutex<Inner>,
    first: Notify,
}

#[derive(Default)]
struct Inner {
    waiting: BTreeMap<InstanceKey, Vec<oneshot::Sender<Option<Outcome>>>>,
    shut_down: bool,
}

impl Waiters {
    /// Registers. The future ends when the instance ended, with the outcome if it is known.
    pub(crate) fn wait(
        &self,
        instance: InstanceKey,
    ) -> Result<impl Future<Output = Result<Option<Outcome>>> + Send + 'static> {
        let (told, ended) = oneshot::channel();
        let mut inner = self.lock();
        if inner.shut_down {
            return Err(Error::shutting_down());
        }
        let waiters = inner.waiting.entry(instance).or_default();
        waiters.retain(|waiter| !waiter.is_closed());
        waiters.push(told);
        drop(inner);
        self.first.notify_one();
        Ok(async move { ended.await.map_err(|_| Error::shutting_down()) })
    }

    /// Tells everyone who waits for this instance.
    pub(crate) fn resolve(&self, instance: InstanceKey, outcome: Option<Outcome>) {
        let waiters = self.lock().waiting.remove(&instance);
        for waiter in waiters.into_iter().flatten() {
            let _ = waiter.send(outcome.clone());
        }
    }

    /// Nobody will be told anything any more.
    pub(crate) fn shut_down(&self) {
        let mut inner = self.lock();
        inner.shut_down = true;
        inner.waiting.clear();
    }

    fn waited_for(&self) -> Vec<InstanceKey> {
        let mut inner = self.lock();
        inner.waiting.retain(|_, waiters| {
            waiters.retain(|waiter| !waiter.is_closed());
            !waiters.is_empty()
        });
        inner.waiting.keys().copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Polls for ended instances that someone waits for, until the engine is gone.
pub(crate) async fn watch_results(shared: Weak<Shared>, interval: Span) {
    loop {
        let Some(engine) = shared.upgrade() else { return };
        let waited_for = engine.waiters.waited_for();
        if waited_for.is_empty() {
            engine.waiters.first.notified().await;
        }
        let pause = engine.runtime.sleep(interval);
        drop(engine);
        pause.await;
        let Some(engine) = shared.upgrade() else { return };
        let waited_for = engine.waiters.waited_for();
        for batch in waited_for.chunks(POLL_BATCH_MAX) {
            resolve_ended(&engine, batch.to_vec()).await;
        }
    }
}

async fn resolve_ended(engine: &Arc<Shared>, batch: Vec<InstanceKey>) {
    match engine.store.ended(batch).await {
        Ok(ended) => {
            for instance in ended {
                engine.waiters.resolve(instance, None);
            }
        }
        Err(StoreError::Failed(reason)) => {
            tracing::error!(reason, "the store has failed: nobody can be told a result any more");
            engine.waiters.shut_down();
        }
        // By another engine on the same store.
        Err(StoreError::Closed) => engine.waiters.shut_down(),
        Err(error) => tracing::warn!(%error, "cannot look for ended instances; trying again"),
    }
}
