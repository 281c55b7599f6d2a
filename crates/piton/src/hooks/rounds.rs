//! Rounds that coalesce: however many ask while one is under way, exactly one more follows.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::round::unpanicked;
use crate::runtime::{BoxFuture, Runtime, TaskOwner};

/// What a round does.
type Round = Arc<dyn Fn() -> BoxFuture<()> + Send + Sync>;

/// Runs rounds, one at a time.
#[derive(Clone)]
pub(super) struct Rounds {
    runtime: Arc<dyn Runtime>,
    round: Round,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Those who asked since the round under way began.
    asked: Vec<oneshot::Sender<()>>,
    running: Option<TaskOwner>,
    /// Tells a task that has ended from the one that runs now.
    under_way: bool,
}

impl Rounds {
    pub(super) fn new(runtime: Arc<dyn Runtime>, round: Round) -> Self {
        Self { runtime, round, state: Arc::default() }
    }

    /// Asks for a round that begins after this call. What is returned is answered when it is over, and fails if
    /// that panics, or is stopped before.
    pub(super) fn ask(&self) -> oneshot::Receiver<()> {
        let (told, over) = oneshot::channel();
        let mut state = lock(&self.state);
        state.asked.push(told);
        if !state.under_way {
            state.under_way = true;
            let rounds = run(Arc::clone(&self.round), Arc::clone(&self.state));
            state.running = Some(self.runtime.spawn(Box::pin(rounds)));
        }
        over
    }

    /// Drops the round under way.
    pub(super) fn abort(&self) {
        let mut state = lock(&self.state);
        state.asked.clear();
        state.under_way = false;
        let running = state.running.take();
        drop(state);
        drop(running);
    }
}

async fn run(round: Round, state: Arc<Mutex<State>>) {
    loop {
        let asked = {
            let mut state = lock(&state);
            if state.asked.is_empty() {
                state.under_way = false;
                return;
            }
            std::mem::take(&mut state.asked)
        };
        let begun = async {
            round().await;
            Ok(())
        };
        // One that panics is over as well; whoever asked for it hears nothing but its end.
        if let Err(error) = unpanicked(begun).await {
            tracing::error!(%error, "a round of hooks panicked");
            continue;
        }
        for told in asked {
            let _ = told.send(());
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
