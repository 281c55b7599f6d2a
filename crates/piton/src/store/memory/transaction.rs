//! One transaction: the state under the lock, the moment it happens at, and what to tell afterwards.

use piton_core::boundary::{InstanceChange, TaskChange};
use piton_core::record::{InstanceKey, Task};
use piton_core::story::SystemLine;
use piton_core::{InstanceId, Refusal, TaskState, Timestamp, WorkflowName};

use super::state::{Instance, State};
use crate::runtime::Ids;
use crate::store::{EngineHooks, Hint};

/// A transaction. What it does is in `client` and `runner`; here is how it writes what the rules decided.
///
/// There is no rollback: every operation checks everything before its first write.
pub(super) struct Transaction<'a> {
    pub(super) state: &'a mut State,
    pub(super) ids: &'a Ids,
    /// The store's clock, read once under the lock.
    pub(super) now: Timestamp,
    /// What observers are told after the commit.
    pub(super) hints: Vec<Hint>,
    /// What is told by hooks.
    pub(super) engine_hooks: Option<&'a EngineHooks>,
}

impl Transaction<'_> {
    /// # Errors
    ///
    /// `INSTANCE_NOT_FOUND`.
    pub(super) fn find(
        &self,
        workflow: &WorkflowName,
        id: &InstanceId,
    ) -> Result<InstanceKey, Refusal> {
        self.state.key_of(workflow, id).ok_or_else(|| Refusal::no_instance(workflow, id))
    }

    pub(super) fn instance(&self, key: InstanceKey) -> &Instance {
        &self.state.instances[&key]
    }

    pub(super) fn instance_mut(&mut self, key: InstanceKey) -> &mut Instance {
        let instance = self.state.instances.get_mut(&key);
        instance.expect("instances are never removed")
    }

    /// Writes what the rules decided about a run, and notes whom it may concern.
    pub(super) fn apply(
        &mut self,
        key: InstanceKey,
        task: TaskChange,
        instance: Option<InstanceChange>,
    ) {
        match task {
            TaskChange::Keep => {}
            TaskChange::Put(task) => self.put_task(key, task),
            TaskChange::Delete => {
                self.state.set_task(key, None);
                self.hints.push(Hint::Ended(key));
            }
        }
        let now = self.now;
        if let Some(change) = instance {
            let record = &mut self.instance_mut(key).record;
            record.status = change.status;
            record.output = change.output;
            record.error = change.error;
            record.completed_at = change.completed_at;
            record.updated_at = now;
        }
    }

    /// Writes the task; one that anyone may claim is worth a hint.
    pub(super) fn put_task(&mut self, key: InstanceKey, task: Task) {
        self.state.set_task(key, Some(task));
        if task.state == TaskState::Pending {
            let workflow = self.instance(key).record.workflow.clone();
            let at = task.run_at;
            self.hints.push(Hint::Due { workflow, at });
        }
    }

    /// Notes that a run someone is advancing was changed from outside.
    pub(super) fn touched(&mut self, key: InstanceKey, task_before: Option<&Task>) {
        if task_before.is_some_and(|task| task.state == TaskState::Leased) {
            self.hints.push(Hint::Touched(key));
        }
    }

    /// Adds a line of the engine's own to the log of the current run.
    pub(super) fn log(&mut self, key: InstanceKey, line: SystemLine) {
        let line = line.written(self.ids.next("log"), self.now);
        let instance = self.instance_mut(key);
        let run = instance.record.run;
        instance.current_run_mut().append_log(run, line);
    }
}
