//! The tasks that are leased, remembered as they stand in the database.
//!
//! Every boundary asks for the task of its run, and nearly always nothing has changed since this very thread wrote it.
//! Remembering it saves a fifth of a step's cost. **It is a copy and never the truth**: it is forgotten whenever
//! the rows may differ from what was noted here. That is after a rollback, after user SQL ran on the connection,
//! and when the data version says that another connection has committed. Only `task.rs` writes the table, and
//! it notes what it writes; in debug builds every use is checked against the row.

use std::collections::HashMap;

use piton_core::TaskState;
use piton_core::record::{InstanceKey, Task};

/// Tasks remembered; past it all are forgotten and read again as they are needed.
const LEASES_MAX: usize = 100_000;

/// The leased tasks that were read or written since something else may have changed them.
#[derive(Default)]
pub(super) struct Leases {
    held: HashMap<InstanceKey, Task>,
    data_version: i64,
}

impl Leases {
    /// Begins a transaction that sees this version of the data.
    pub(super) fn begin(&mut self, data_version: i64) {
        if self.data_version != data_version {
            self.forget_all();
            self.data_version = data_version;
        }
    }

    pub(super) fn get(&self, key: InstanceKey) -> Option<Task> {
        self.held.get(&key).copied()
    }

    /// The row is this now.
    pub(super) fn note(&mut self, key: InstanceKey, task: &Task) {
        if task.state != TaskState::Leased {
            self.forget(key);
            return;
        }
        if self.held.len() >= LEASES_MAX {
            self.forget_all();
        }
        self.held.insert(key, *task);
    }

    pub(super) fn forget(&mut self, key: InstanceKey) {
        self.held.remove(&key);
    }

    pub(super) fn forget_all(&mut self) {
        self.held.clear();
    }
}
