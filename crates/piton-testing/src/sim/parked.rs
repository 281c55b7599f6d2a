//! Counts how often parked runs were used and refused: the engine tells by `tracing`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Metadata, Subscriber};

use super::sometimes::{Rare, Sometimes};

/// Where the engine tells of parked runs.
const TARGET: &str = "piton::parked";

/// The counts of one simulation.
#[derive(Clone, Default)]
pub(super) struct Parked(Arc<Counts>);

#[derive(Default)]
struct Counts {
    used: AtomicU64,
    refused: AtomicU64,
}

/// Counts on this thread until the guard is dropped.
pub(super) fn count() -> (Parked, DefaultGuard) {
    let parked = Parked::default();
    let guard = tracing::subscriber::set_default(parked.clone());
    (parked, guard)
}

impl Parked {
    pub(super) fn harvest(&self, sometimes: &mut Sometimes) {
        for _ in 0..self.0.used.load(Ordering::Relaxed) {
            sometimes.saw(Rare::ParkedRunUsed);
        }
        for _ in 0..self.0.refused.load(Ordering::Relaxed) {
            sometimes.saw(Rare::ParkedRunRefused);
        }
    }
}

impl Subscriber for Parked {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == TARGET
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut used = Used(None);
        event.record(&mut used);
        match used.0 {
            Some(true) => drop(self.0.used.fetch_add(1, Ordering::Relaxed)),
            Some(false) => drop(self.0.refused.fetch_add(1, Ordering::Relaxed)),
            None => {}
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Used(Option<bool>);

impl Visit for Used {
    fn record_bool(&mut self, field: &Field, value: bool) {
        if field.name() == "used" {
            self.0 = Some(value);
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}
