//! When the body of a step started: told by the body, awaited by whoever caused it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::oneshot;

use crate::timer;

/// Those who wait for bodies to start, by a number of their own.
#[derive(Clone, Debug, Default)]
pub(super) struct Starts(Arc<Mutex<HashMap<u64, oneshot::Sender<Instant>>>>);

impl Starts {
    /// Ends with the moment at which the body with this number starts.
    pub(super) fn expect(&self, number: u64) -> oneshot::Receiver<Instant> {
        let (sender, receiver) = oneshot::channel();
        self.lock().insert(number, sender);
        receiver
    }

    /// Called by the body first thing.
    pub(super) fn tell(&self, number: u64) {
        let now = timer::now();
        if let Some(waiting) = self.lock().remove(&number) {
            let _ = waiting.send(now);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, oneshot::Sender<Instant>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
