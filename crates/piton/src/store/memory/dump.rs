//! Every row at once, for those who check invariants between two transactions.

use piton_core::hook::HookRecord;
use piton_core::record::{EventRecord, InstanceKey, InstanceRecord, LogRecord, StepRecord, Task};

use super::MemoryStore;
use super::state::{Instance, Run};

/// An instance with everything that belongs to it.
#[derive(Clone, Debug, PartialEq)]
pub struct DumpedInstance {
    /// Its row.
    pub record: InstanceRecord,
    /// Its task, while the run lives.
    pub task: Option<Task>,
    /// Its runs, by number.
    pub runs: Vec<DumpedRun>,
}

/// The rows of one run, each table in its own order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DumpedRun {
    /// By position.
    pub steps: Vec<StepRecord>,
    /// By arrival.
    pub events: Vec<EventRecord>,
    /// By insertion.
    pub logs: Vec<LogRecord>,
}

impl MemoryStore {
    /// The tasks alone: a cheap way to see whether a claim changed anything.
    pub fn dump_tasks(&self) -> Vec<(InstanceKey, Option<Task>)> {
        let tasks = self.with_state(|state| {
            let tasks =
                state.instances.iter().map(|(key, instance)| (*key, instance.task().copied()));
            Ok(tasks.collect())
        });
        tasks.unwrap_or_default()
    }

    /// All hooks, oldest first. Empty once the store is closed.
    pub fn dump_hooks(&self) -> Vec<HookRecord> {
        self.with_state(|state| Ok(state.hooks.all())).unwrap_or_default()
    }

    /// All rows as they are between two transactions. Empty once the store is closed.
    pub fn dump(&self) -> Vec<DumpedInstance> {
        let dumped = self.with_state(|state| Ok(state.instances.values().map(instance).collect()));
        dumped.unwrap_or_default()
    }
}

fn instance(instance: &Instance) -> DumpedInstance {
    DumpedInstance {
        record: super::reading::record(instance),
        task: instance.task().copied(),
        runs: instance.runs().map(run).collect(),
    }
}

fn run(run: &Run) -> DumpedRun {
    DumpedRun {
        steps: run.steps.values().cloned().collect(),
        events: run.events.values().cloned().collect(),
        logs: run.logs.values().cloned().collect(),
    }
}
