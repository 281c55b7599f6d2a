//! What must hold when a body starts.

use std::collections::BTreeSet;

use piton_core::{StepStatus, TaskState};

use super::{Checker, Violation, ensure};
use crate::sim::sometimes::Rare;
use crate::sim::world::ProcessId;

/// A body that starts.
pub(in crate::sim) struct Body<'a> {
    pub(in crate::sim) process: ProcessId,
    pub(in crate::sim) id: &'a str,
    pub(in crate::sim) run: u32,
    pub(in crate::sim) step: &'a str,
    pub(in crate::sim) attempt: u32,
    /// The steps whose outcome the code has seen so far.
    pub(in crate::sim) seen: &'a [String],
}

impl Checker {
    /// A body starts in a process. Those that hold the run must obey every rule; one that lost it without
    /// knowing may run a body once more, which is why bodies are executed at least once and not exactly once.
    pub(in crate::sim) fn body_started(&self, body: &Body<'_>) {
        let Body { process, id, run, step, attempt, .. } = body;
        self.tell(|| format!("p{} runs {id}/{run}/{step} attempt {attempt}", process.0));
        let attempt = ((*id).to_owned(), *run, (*step).to_owned(), *attempt);
        if !self.lock().executed.insert(attempt) {
            self.sometimes(Rare::BodyRepeated);
        }
        if let Err(violation) = self.check_body(body) {
            self.lock().violation.get_or_insert(violation);
        }
    }

    fn check_body(&self, body: &Body<'_>) -> Result<(), Violation> {
        let Body { process, id, run, step, attempt, seen } = *body;
        let now = self.world.now();
        let state = self.lock();
        let Some(instance) = state.rows.values().find(|i| i.record.id.as_str() == id) else {
            return ensure(false, "I8", || format!("a body of {id} runs, but {id} does not exist"));
        };
        let key = instance.record.key;
        let Some(task) = instance.task else { return Ok(()) };
        // With two passes of one run in a process nobody can say whose body this is.
        let only = state.passes.get(&(process, key)).filter(|epochs| epochs.len() == 1);
        let newest = only.and_then(BTreeSet::first) == Some(&task.epoch) && task.run == run;
        if task.state == TaskState::Held && newest {
            let unknown = state.paused_by_expiry.get(&key).copied().unwrap_or(false);
            return ensure(unknown, "I7", || format!("{id}: {step} started while it is paused"));
        }
        if !newest || task.state != TaskState::Leased {
            return Ok(());
        }
        let rows = &instance.runs[run as usize].steps;
        let settled = |name: &str| {
            rows.iter().any(|row| row.name.as_str() == name && row.status.is_settled())
        };
        if let Some(name) = seen.iter().find(|name| !settled(name)) {
            return ensure(false, "I8", || {
                format!("{id}: {step} starts on the strength of {name}, which is not committed")
            });
        }
        let Some(row) = rows.iter().find(|row| row.name.as_str() == step) else {
            return ensure(attempt == 1, "I11", || {
                format!("{id}: {step} starts with attempt {attempt}")
            });
        };
        ensure(!row.status.is_settled(), "I15", || {
            format!("{id}: the body of {step} runs again, but it is {}", row.status)
        })?;
        ensure(attempt == row.attempts + 1, "I11", || {
            format!("{id}: attempt {attempt} of {step} follows {}", row.attempts)
        })?;
        let waiting = matches!(row.status, StepStatus::Waiting | StepStatus::Pending);
        let due = row.next_retry_at.is_none_or(|at| at <= now);
        ensure(!waiting || due, "I11", || {
            format!("{id}: {step} is retried before {:?}", row.next_retry_at)
        })
    }
}
