//! One transaction of the writer thread, as the code that fills it sees it.

use piton_core::boundary::TaskChange;
use piton_core::hook::HookRecord;
use piton_core::record::{InstanceKey, Task};
use piton_core::{HookNamespace, TaskState, Timestamp, WorkflowName};
use rusqlite::Transaction;

use super::leases::Leases;
use super::statements::Statements;
use super::trouble::{Failure, Outcome, Trouble};
use crate::runtime::Ids;
use crate::store::{EngineHooks, Hint};

const SAVEPOINT: &str = "SAVEPOINT piton_request";
const RELEASE: &str = "RELEASE piton_request";
const ROLL_BACK: &str = "ROLLBACK TO piton_request";

/// A transaction in the making, shared by all requests of a batch.
pub(super) struct Batch<'b, 'c> {
    pub(super) db: &'b mut Statements<'c>,
    pub(super) leases: &'b mut Leases,
    /// What user code is given.
    pub(super) tx: &'b Transaction<'c>,
    /// The store's clock, one for the whole transaction.
    pub(super) now: Timestamp,
    pub(super) ids: &'b Ids,
    /// What is told by hooks.
    pub(super) engine_hooks: Option<&'b EngineHooks>,
    /// What observers are told after the commit.
    pub(super) hints: &'b mut Vec<Hint>,
    /// Hooks that were triggered and are not written yet. Inside a savepoint they only become more.
    pub(super) hooks: Vec<HookRecord>,
    /// Rows written and taken back by a savepoint.
    pub(super) rows_undone: u64,
}

impl<'c> Batch<'_, 'c> {
    /// Runs work that can fail after its first write; a failure takes back what it wrote, and the batch goes on.
    pub(super) fn in_savepoint<T>(
        &mut self,
        work: impl FnOnce(&mut Batch<'_, 'c>) -> Outcome<T>,
    ) -> Outcome<T> {
        let (rows, hints, hooks) = (self.tx.total_changes(), self.hints.len(), self.hooks.len());
        self.db.execute(SAVEPOINT, [])?;
        let outcome = work(self);
        if let Err(Trouble::Answer(_)) = outcome {
            self.db.execute(ROLL_BACK, []).map_err(lost_transaction)?;
            self.hints.truncate(hints);
            self.hooks.truncate(hooks);
            self.leases.forget_all();
            self.rows_undone += self.tx.total_changes() - rows;
        }
        if !matches!(outcome, Err(Trouble::Batch(_))) {
            self.db.execute(RELEASE, []).map_err(lost_transaction)?;
        }
        outcome
    }

    /// A task of this workflow can be claimed at this moment.
    pub(super) fn hint_due(&mut self, workflow: &WorkflowName, at: Timestamp) {
        let repeats = |hint: &Hint| match hint {
            Hint::Due { workflow: told, at: told_at } => told == workflow && *told_at == at,
            Hint::Touched(_) | Hint::Ended(_) | Hint::HookDue { .. } => false,
        };
        // A hundred tasks of one workflow that became due in one transaction are one piece of news.
        if !self.hints.last().is_some_and(repeats) {
            let workflow = workflow.clone();
            self.hints.push(Hint::Due { workflow, at });
        }
    }

    /// A hook of this namespace can be taken at this moment.
    pub(super) fn hint_hook(&mut self, namespace: &HookNamespace, at: Timestamp) {
        let repeats = |hint: &Hint| match hint {
            Hint::HookDue { namespace: told, at: told_at } => told == namespace && *told_at == at,
            Hint::Due { .. } | Hint::Touched(_) | Hint::Ended(_) => false,
        };
        if !self.hints.last().is_some_and(repeats) {
            let namespace = namespace.clone();
            self.hints.push(Hint::HookDue { namespace, at });
        }
    }

    /// What a change made from outside means to runners: the one that holds the task, or one that could.
    pub(super) fn hint_task(
        &mut self,
        key: InstanceKey,
        workflow: &WorkflowName,
        before: &Task,
        change: &TaskChange,
    ) {
        if before.state == TaskState::Leased {
            self.hints.push(Hint::Touched(key));
        }
        match change {
            TaskChange::Put(task) if task.state == TaskState::Pending => {
                self.hint_due(workflow, task.run_at);
            }
            TaskChange::Put(_) | TaskChange::Keep | TaskChange::Delete => {}
        }
    }
}

/// The savepoint is gone: user SQL has ended the transaction under our feet.
fn lost_transaction(error: rusqlite::Error) -> Trouble {
    Trouble::Batch(Failure::fatal(format!(
        "a step's transaction ended the store's own transaction ({error}); \
         SQL of a step must not COMMIT, ROLLBACK or RELEASE: fix it, then restart the process"
    )))
}
