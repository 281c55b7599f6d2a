//! Renews the leases of all runs in flight, in one statement every third of a lease.

use std::collections::HashSet;
use std::sync::Weak;

use piton_core::Span;

use super::Runner;
use crate::pass::Order;

/// Leases are renewed this often within their length, so that two renewals may be lost.
const RENEWALS_PER_LEASE: i64 = 3;

/// Runs until its engine is gone. A run missing from the answer is no longer ours and is dropped at once.
pub(super) async fn renew_for_ever(runner: Weak<Runner>) {
    loop {
        let Some((runtime, lease)) = runner.upgrade().map(|runner| {
            (std::sync::Arc::clone(&runner.shared.runtime), runner.config.rules.lease)
        }) else {
            return;
        };
        runtime.sleep(Span::from_millis(lease.as_millis() / RENEWALS_PER_LEASE)).await;
        let Some(runner) = runner.upgrade() else { return };
        runner.renew(lease).await;
    }
}

impl Runner {
    async fn renew(&self, lease: Span) {
        let keys = self.live.keys();
        if keys.is_empty() {
            return;
        }
        match self.shared.store.renew(keys.clone(), lease).await {
            Ok(renewed) => {
                let held: HashSet<_> = renewed.iter().map(|renewed| renewed.key).collect();
                for key in keys {
                    if held.contains(&key) {
                        // Hints may be lost: look for events and pauses once per renewal.
                        self.live.touch(key.instance);
                    } else {
                        self.live.order(key, Order::Abandon);
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "leases could not be renewed"),
        }
    }
}
