//! The tasks that this process holds, remembered as they stood when it last saw them.
//!
//! With a remembered task `piton_core` can be asked about a boundary before the database is: then one statement writes
//! what it said, on the condition that the row is still the same (`group.rs`). **It is a copy and never the truth**: a row
//! that differs makes the statement pass over the boundary, which is then looked at under the row's lock.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use piton_core::record::{InstanceKey, RunKey, Task};
use piton_core::{TaskState, WorkflowName};

/// Tasks remembered; past it all are forgotten and learned again as they are claimed.
const LEASES_MAX: usize = 100_000;

type Held = HashMap<InstanceKey, (WorkflowName, Task)>;

/// The leased tasks of this process.
#[derive(Default)]
pub(super) struct Leases(Mutex<Held>);

impl Leases {
    pub(super) fn get(&self, key: InstanceKey) -> Option<(WorkflowName, Task)> {
        self.lock().get(&key).cloned()
    }

    /// The row is this now. What a later claim was given is not forgotten for it: answers may overtake each other.
    pub(super) fn note(&self, key: InstanceKey, workflow: &WorkflowName, task: &Task) {
        put(&mut self.lock(), key, workflow, task);
    }

    /// The row is this now, or gone, as somebody found it who need not be its holder.
    pub(super) fn refresh(&self, key: InstanceKey, found: Option<(&WorkflowName, &Task)>) {
        let mut held = self.lock();
        let Some((_, known)) = held.get(&key) else { return };
        match found {
            Some((workflow, task)) if (task.run, task.epoch) == (known.run, known.epoch) => {
                put(&mut held, key, workflow, task);
            }
            Some((_, task)) if (task.run, task.epoch) < (known.run, known.epoch) => {}
            Some(_) | None => drop(held.remove(&key)),
        }
    }

    /// A run is over that was held under this claim.
    pub(super) fn forget(&self, key: &RunKey) {
        let mut held = self.lock();
        if held
            .get(&key.instance)
            .is_some_and(|(_, known)| (known.run, known.epoch) <= (key.run, key.epoch))
        {
            held.remove(&key.instance);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn put(held: &mut Held, key: InstanceKey, workflow: &WorkflowName, task: &Task) {
    let newer = |known: &Task| (known.run, known.epoch) > (task.run, task.epoch);
    if held.get(&key).is_some_and(|(_, known)| newer(known)) {
        return;
    }
    if task.state != TaskState::Leased {
        held.remove(&key);
        return;
    }
    if held.len() >= LEASES_MAX {
        held.clear();
    }
    held.insert(key, (workflow.clone(), *task));
}
