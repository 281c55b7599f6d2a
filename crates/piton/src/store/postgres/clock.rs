//! What time it is.
//!
//! Leases and due times are decided by the database's clock, which all processes share (rule R6): it is read inside the
//! transaction, after the locks. It is rounded down, so that nothing is due before its moment.

use std::sync::Arc;

use piton_core::Timestamp;

use super::cells::Cells;
use super::statements::{Db, params};
use super::trouble::Outcome;
use crate::runtime::Runtime;

/// The database's clock in milliseconds since the Unix epoch.
macro_rules! clock_ms {
    () => {
        "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    };
}
pub(super) use clock_ms;

const CLOCK: &str = concat!("SELECT ", clock_ms!());

/// Whose clock decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The database's, which every process on it shares.
    #[default]
    Database,
    /// The engine's own runtime: for tests on a virtual clock, with one process only.
    Runtime,
}

/// Reads the clock that decides.
#[derive(Clone)]
pub(super) struct Time(Option<Arc<dyn Runtime>>);

impl Time {
    pub(super) fn new(clock: Clock, runtime: &Arc<dyn Runtime>) -> Self {
        Self(match clock {
            Clock::Database => None,
            Clock::Runtime => Some(Arc::clone(runtime)),
        })
    }

    /// The time of the runtime, if that is what decides: what statements that read the clock by themselves are given.
    pub(super) fn fixed(&self) -> Option<Timestamp> {
        self.0.as_ref().map(|runtime| runtime.now())
    }

    /// The time now; `read` is what a statement of this transaction has read already, after its locks.
    pub(super) async fn now(&self, db: &mut Db<'_>, read: Option<Timestamp>) -> Outcome<Timestamp> {
        if let Some(now) = self.fixed().or(read) {
            return Ok(now);
        }
        let now = db.one(CLOCK, params![], |row| Ok(Cells::keyed(row, "clock")?.key().0)).await?;
        Ok(Timestamp::from_millis(now.unwrap_or_default()))
    }
}
