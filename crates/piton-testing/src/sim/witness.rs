//! What happens outside of the database: every execution of a body, and what the rules say about it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use piton::hooks::{HookContext, Hooks, InstanceNews};
use piton::runtime::Runtime;
use piton::{Error, Result, Retries};
use piton_core::{Span, Timestamp};

use super::check::{Body, Checker};
use super::program::HOOK;
use super::world::{ProcessId, View};
use super::{CLIENTS, Simulation};

/// Sees the bodies that run in one process.
pub(super) struct Witness {
    pub(super) process: ProcessId,
    pub(super) runtime: Arc<View>,
    pub(super) checker: Arc<Checker>,
    pub(super) sim: Weak<Simulation>,
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

    /// Ends this process, whatever else it does. The clients live on: they have to see the end.
    pub(super) async fn die(&self) {
        if self.process == CLIENTS {
            return;
        }
        if let Some(sim) = self.sim.upgrade() {
            sim.die(self.process);
        }
        std::future::pending().await
    }

    fn is_deadly(&self) -> bool {
        self.sim.upgrade().is_some_and(|sim| sim.plan.deadly)
    }

    /// How often the hooks of steps are retried.
    pub(super) fn hook_retries(&self) -> Retries {
        Retries::constant(2, "2 seconds")
    }

    /// When a hook is to be processed: now, or in a while. Depends on nothing but the key.
    pub(super) fn soon(&self, key: &str) -> Timestamp {
        let wait_ms = [0, 0, 700, 9_000][key.len() % 4];
        self.runtime.now().plus(Span::from_millis(wait_ms))
    }

    /// What handles hooks: the first attempts of some fail, others take longer than their lease or kill the process.
    pub(super) fn hooks(self: &Arc<Self>) -> Hooks {
        let witness = Arc::clone(self);
        let told = |_: InstanceNews, _| std::future::ready(Ok(()));
        Hooks::new()
            .lease("10 seconds")
            .poll_interval("4 seconds")
            .timeout("1 hour")
            .keep_completed("365 days")
            .on(HOOK, move |key: String, cx| {
                let witness = Arc::clone(&witness);
                async move { witness.handle(&key, &cx).await }
            })
            .on_instance_completed(told)
            .on_instance_errored(told)
            .on_instance_terminated(told)
            .on_instance_restarted(told)
    }

    async fn handle(&self, key: &str, cx: &HookContext) -> Result<()> {
        self.checker.hook_started(self.process, cx.id(), key, cx.attempt());
        let number = cx.id().bytes().map(usize::from).sum::<usize>();
        let takes_ms = [0, 0, 10, 15_000][number % 4];
        self.sleep(Span::from_millis(takes_ms)).await;
        if number.is_multiple_of(5) && self.is_deadly() {
            self.die().await;
        }
        if cx.attempt() as usize <= number % 3 {
            return Err(Error::new("not yet"));
        }
        self.checker.hook_done(cx.id());
        Ok(())
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
