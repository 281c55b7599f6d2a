//! What happens outside of the database: every execution of a body, and what the rules say about it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use piton::runtime::Runtime;
use piton_core::Span;

use super::check::{Body, Checker};
use super::world::{ProcessId, View};

/// Sees the bodies that run in one process.
pub(super) struct Witness {
    pub(super) process: ProcessId,
    pub(super) runtime: Arc<View>,
    pub(super) checker: Arc<Checker>,
}

impl Witness {
    /// A body starts. The returned value is dropped when it ends or is cut off.
    pub(super) fn body_started(
        &self,
        idempotency_key: &str,
        attempt: u32,
        seen: &[String],
    ) -> Running {
        let mut parts = idempotency_key.splitn(4, '/').skip(1);
        let id = parts.next().unwrap_or_default().to_owned();
        let run = parts.next().and_then(|run| run.parse().ok()).unwrap_or_default();
        let step = parts.next().unwrap_or_default();
        let body = Body { process: self.process, id: &id, run, step, attempt, seen };
        self.checker.body_started(&body);
        Running::new(Arc::clone(&self.checker), id)
    }

    pub(super) async fn sleep(&self, span: Span) {
        self.runtime.sleep(span).await;
    }
}

/// Bodies that are running, by instance.
#[derive(Default)]
pub(super) struct Bodies(Mutex<BTreeMap<String, u32>>);

impl Bodies {
    pub(super) fn running(&self, id: &str) -> bool {
        self.lock().get(id).is_some_and(|count| *count > 0)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A body that is running.
pub(super) struct Running {
    checker: Arc<Checker>,
    id: String,
}

impl Running {
    fn new(checker: Arc<Checker>, id: String) -> Self {
        *checker.bodies.lock().entry(id.clone()).or_default() += 1;
        Self { checker, id }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(count) = self.checker.bodies.lock().get_mut(&self.id) {
            *count -= 1;
        }
    }
}
