//! One suspect at a time: who may have a hook in hand that may have killed its processes.

use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

/// What the processors of an engine share: a handler that kills its process does so to every namespace.
#[derive(Clone)]
pub(super) struct Suspects {
    asking: Arc<Mutex<()>>,
    in_hand: Arc<Semaphore>,
}

/// The right to ask the store for a suspect. Nobody else asks meanwhile.
pub(super) struct Asking {
    _alone: OwnedMutexGuard<()>,
    in_hand: OwnedSemaphorePermit,
}

impl Suspects {
    pub(super) fn new() -> Self {
        Self { asking: Arc::default(), in_hand: Arc::new(Semaphore::new(1)) }
    }

    /// `None` if somebody asks already, or has a suspect in hand.
    pub(super) fn try_ask(&self) -> Option<Asking> {
        self.alone(Arc::clone(&self.asking).try_lock_owned().ok()?)
    }

    /// Waits for those who are asking, which takes no longer than the store does; `None` if somebody has a suspect in
    /// hand then.
    pub(super) async fn ask(&self) -> Option<Asking> {
        self.alone(Arc::clone(&self.asking).lock_owned().await)
    }

    fn alone(&self, alone: OwnedMutexGuard<()>) -> Option<Asking> {
        let in_hand = Arc::clone(&self.in_hand).try_acquire_owned().ok()?;
        Some(Asking { _alone: alone, in_hand })
    }
}

impl Asking {
    /// One was taken: no other is, as long as this is kept.
    pub(super) fn taken(self) -> OwnedSemaphorePermit {
        self.in_hand
    }
}
