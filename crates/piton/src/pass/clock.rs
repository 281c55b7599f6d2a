//! The store's time, as a pass knows it.
//!
//! Due times are decided by the store's clock, which may differ from ours. Every answer of the store
//! carries its time; between answers we count on with our monotonic clock. Since an answer takes a while
//! to arrive, the store's time now is only known to lie between two bounds. **Deadlines are computed
//! from the later bound and checked against the earlier one, so that no timer fires early.**

use std::sync::Arc;

use piton_core::{Span, Timestamp};

use crate::runtime::Runtime;

/// When a question was asked, on our own clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    at_us: u64,
}

impl Asked {
    pub(crate) fn now(runtime: &dyn Runtime) -> Self {
        Self { at_us: runtime.monotonic_us() }
    }
}

/// The store's time between two bounds.
pub(crate) struct PassClock {
    runtime: Arc<dyn Runtime>,
    told: Timestamp,
    asked_us: u64,
    answered_us: u64,
}

impl PassClock {
    /// A clock set by an answer that carried `told`.
    pub(crate) fn new(runtime: Arc<dyn Runtime>, told: Timestamp, asked: Asked) -> Self {
        let answered_us = runtime.monotonic_us();
        Self { runtime, told, asked_us: asked.at_us, answered_us }
    }

    /// Sets the clock by a newer answer.
    pub(crate) fn set(&mut self, told: Timestamp, asked: Asked) {
        self.told = told;
        self.asked_us = asked.at_us;
        self.answered_us = self.runtime.monotonic_us();
    }

    /// The store's time is not before this: what due times are checked against.
    pub(crate) fn earliest(&self) -> Timestamp {
        let since_us = self.monotonic_us().saturating_sub(self.answered_us);
        self.told.plus(millis(since_us / 1_000))
    }

    /// The store's time is not after this: what deadlines are computed from.
    pub(crate) fn latest(&self) -> Timestamp {
        self.latest_at(self.monotonic_us())
    }

    /// The same for a moment that was read before.
    pub(crate) fn latest_at(&self, now_us: u64) -> Timestamp {
        let since_us = now_us.saturating_sub(self.asked_us);
        self.told.plus(millis(since_us.div_ceil(1_000)))
    }

    /// Our own clock, for what never leaves this process.
    pub(crate) fn monotonic_us(&self) -> u64 {
        self.runtime.monotonic_us()
    }
}

fn millis(ms: u64) -> Span {
    Span::from_millis(i64::try_from(ms).unwrap_or(i64::MAX))
}
