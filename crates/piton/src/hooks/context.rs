//! What a handler is told beside its payload.

use std::fmt;

use piton_core::Timestamp;
use piton_core::hook::HookRecord;

/// One attempt of a hook, as its handler sees it.
#[derive(Clone)]
pub struct HookContext {
    hook: HookRecord,
}

impl HookContext {
    pub(crate) fn new(hook: HookRecord) -> Self {
        Self { hook }
    }

    /// The id of the hook.
    pub fn id(&self) -> &str {
        &self.hook.id
    }

    /// A key that is the same on every attempt of this hook and on no other hook: give it to services that
    /// recognise repeats.
    pub fn idempotency_key(&self) -> &str {
        &self.hook.id
    }

    /// The number of this attempt, from 1. Attempts that were cut off by a crash count.
    pub fn attempt(&self) -> u32 {
        self.hook.attempts
    }

    /// The name that was triggered.
    pub fn name(&self) -> &str {
        self.hook.name.as_str()
    }

    /// The namespace it was triggered in.
    pub fn namespace(&self) -> &str {
        self.hook.namespace.as_str()
    }

    /// When this attempt was begun, by the store's clock.
    pub fn attempted_at(&self) -> Timestamp {
        self.hook.last_attempt_at.unwrap_or(self.hook.updated_at)
    }

    /// When it was triggered.
    pub fn created_at(&self) -> Timestamp {
        self.hook.created_at
    }
}

impl fmt::Debug for HookContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HookContext({} {:?} attempt {})", self.id(), self.name(), self.attempt())
    }
}
