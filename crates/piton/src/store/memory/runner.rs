//! What runners do: claim, commit, renew, release, tell the story of a fenced pass.

use std::collections::BTreeSet;
use std::sync::Arc;

use piton_core::boundary::{self, After, Fenced, Wait, Written};
use piton_core::claim::{self, Claim, Due};
use piton_core::hook::{EngineNews, EnqueueReason};
use piton_core::planted::{Bug, planted};
use piton_core::record::{InstanceKey, LogLine, RunKey, RunNumber, StepRecord, Task};
use piton_core::{
    Code, InstanceStatus, Refusal, Span, TaskState, Timestamp, WorkflowName, lifecycle, story,
};

use super::transaction::Transaction;
use crate::store::{
    Boundary, ClaimAnswer, ClaimRequest, ClaimedRun, Committed, Mutation, MutationError, Renewed,
    RowState, StoreError, WaitLook,
};

impl Transaction<'_> {
    /// Goes on until it has what was wanted or nothing is due: a task that is held or quarantined leaves
    /// the queue, so that the loop ends and such tasks delay nobody.
    pub(super) fn claim(&mut self, request: &ClaimRequest) -> ClaimAnswer {
        let mut claimed = Vec::new();
        // A suspect must not starve, however much other work there is.
        let waits = request.suspects && self.state.suspect(&request.workflows).is_some();
        let room = request.wanted.saturating_sub(usize::from(waits));
        loop {
            let keys = self.candidates(&request.workflows, room - claimed.len());
            if keys.is_empty() {
                break;
            }
            for key in keys {
                claimed.extend(self.claim_one(key, request));
            }
        }
        while request.suspects && claimed.len() < request.wanted {
            let Some((_, key)) = self.state.suspect(&request.workflows) else { break };
            if let Some(suspect) = self.claim_one(key, request) {
                claimed.push(suspect);
                if !planted(Bug::SuspectsTogether) {
                    break;
                }
            }
        }
        let next_due_at = self.next_claimable_at(&request.workflows);
        ClaimAnswer { now: self.now, claimed, next_due_at }
    }

    pub(super) fn claim_instance(
        &mut self,
        key: InstanceKey,
        request: &ClaimRequest,
    ) -> ClaimAnswer {
        let mut claimed = Vec::new();
        // Once more, because it may have been set aside by this very claim.
        for _ in 0..2 {
            let Some(task) = self.state.task(key).copied() else { break };
            let may = request.suspects || task.state != TaskState::Suspect;
            let skipped = matches!(claim::claim(&task, &request.rules, self.now), Claim::Skip);
            if claimed.is_empty() && may && !skipped {
                claimed.extend(self.claim_one(key, request));
            }
        }
        let next_due_at = self.next_claimable_at(&request.workflows);
        ClaimAnswer { now: self.now, claimed, next_due_at }
    }

    fn candidates(&self, workflows: &[WorkflowName], wanted: usize) -> Vec<InstanceKey> {
        let due = self.state.due_tasks(workflows, self.now, wanted);
        let class = |tasks: &[(Timestamp, InstanceKey)]| Due {
            count: tasks.len(),
            oldest_waited: tasks.first().map_or(Span::ZERO, |(due_at, _)| self.now.since(*due_at)),
        };
        let (resuming, new) = claim::share(wanted, class(&due.resuming), class(&due.new));
        let resuming = due.resuming.iter().take(resuming);
        let chosen = resuming.chain(due.new.iter().take(new));
        chosen.map(|(_, key)| *key).collect()
    }

    fn claim_one(&mut self, key: InstanceKey, request: &ClaimRequest) -> Option<ClaimedRun> {
        let task = *self.state.task(key).expect("a queue holds living tasks");
        match claim::claim(&task, &request.rules, self.now) {
            Claim::Lease(leased) => Some(self.lease(key, &task, leased, &request.runner)),
            Claim::Hold(change, instance) => {
                self.log(key, story::paused());
                self.apply(key, change, Some(instance));
                None
            }
            Claim::Quarantine(change, instance) => {
                if let Some(error) = &instance.error {
                    self.log(key, story::quarantined(error));
                }
                let ended = EngineNews::errored(task.run, instance.error.as_ref());
                self.news(key, Some(ended));
                self.apply(key, change, Some(instance));
                None
            }
            Claim::SetAside(change) => {
                self.apply(key, change, None);
                None
            }
            Claim::Skip => unreachable!("the queues and the rules agree on what is due"),
        }
    }

    /// Leases a task, makes its instance active and tells the log.
    pub(super) fn lease(
        &mut self,
        key: InstanceKey,
        before: &Task,
        task: Task,
        runner: &str,
    ) -> ClaimedRun {
        let line = match before.state {
            TaskState::Leased => story::taken_over(runner, task.epoch),
            TaskState::Pending | TaskState::Held | TaskState::Suspect => {
                story::claimed(runner, task.epoch)
            }
        };
        self.log(key, line);
        self.put_task(key, task);
        if planted(Bug::TaskDeletedOnClaim) {
            self.state.set_task(key, None);
        }
        let now = self.now;
        let record = &mut self.instance_mut(key).record;
        if record.status != InstanceStatus::Active || record.started_at.is_none() {
            record.status = InstanceStatus::Active;
            record.started_at = record.started_at.or(Some(now));
            record.updated_at = now;
        }
        ClaimedRun {
            workflow: record.workflow.clone(),
            id: record.id.clone(),
            params: record.params.clone(),
            created_at: record.created_at,
            key,
            task,
        }
    }

    pub(super) fn next_due_at(&self, workflows: &[WorkflowName]) -> Option<Timestamp> {
        let suspect = self.state.suspect(workflows).map(|(run_at, _)| run_at);
        [self.next_claimable_at(workflows), suspect].into_iter().flatten().min()
    }

    pub(super) fn next_claimable_at(&self, workflows: &[WorkflowName]) -> Option<Timestamp> {
        let known = workflows.iter();
        known.filter_map(|name| self.state.workflows.get(name)?.next_due_at()).min()
    }

    pub(super) fn commit(&mut self, boundary: Boundary) -> Result<Committed, StoreError> {
        let key = boundary.key.instance;
        let task = boundary::guard(self.state.task(key), &boundary.key)
            .map_err(|Fenced| StoreError::Fenced)?;
        self.check_mutations(&boundary.mutations).map_err(StoreError::Mutation)?;
        self.check_rows(&boundary)?;

        // Everything is checked: from here on nothing fails.
        let mutated = !boundary.mutations.is_empty();
        for mutation in boundary.mutations {
            self.mutate(mutation);
        }
        let run = self.instance_mut(key).current_run_mut();
        for line in boundary.logs {
            run.append_log(task.run, line);
        }
        let steps = !boundary.steps.is_empty();
        if planted(Bug::StepOverwritten) && steps {
            self.write_first_step_again(key);
        }
        for step in boundary.steps {
            self.write_step(key, step.row, Arc::unwrap_or_clone(step.record));
        }
        let held_back = mutated && !boundary.waits.is_empty();
        let mut settled: Vec<StepRecord> = Vec::new();
        for wait in boundary.waits {
            let may_settle = boundary::may_settle_wait(mutated, settled.len());
            settled.extend(self.look(key, wait, may_settle));
        }
        let written = Written { steps, wait_settled: held_back || !settled.is_empty() };
        let (task, instance, after) = boundary::after(&task, &boundary.next, written, self.now);
        let run = boundary.key.run;
        self.news(key, EngineNews::of_boundary(run, &boundary.next, after, &task));
        if after == After::Paused {
            self.log(key, story::paused());
        }
        self.apply(key, task, instance);
        Ok(Committed { now: self.now, after, settled })
    }

    /// Refuses mutations that cannot all be applied in their order.
    fn check_mutations(&self, mutations: &[Mutation]) -> Result<(), MutationError> {
        let mut created = BTreeSet::new();
        for mutation in mutations {
            let checked = match mutation {
                Mutation::Create { workflow, instance } => {
                    if created.insert((workflow, &instance.id)) {
                        self.check_create(workflow, &instance.id)
                    } else {
                        Err(Refusal::id_exists(workflow, &instance.id))
                    }
                }
                Mutation::SendEvent(event) if created.contains(&(&event.workflow, &event.id)) => {
                    Ok(())
                }
                Mutation::SendEvent(event) => self
                    .find(&event.workflow, &event.id)
                    .and_then(|key| self.check_event(key, event).map(|_| ())),
                Mutation::TriggerHook(_) => Ok(()),
                Mutation::Execute { .. } => Err(no_sql()),
                #[cfg(feature = "sqlite")]
                Mutation::Sqlite(_) => Err(no_sql()),
                #[cfg(feature = "postgres")]
                Mutation::Postgres(_) => Err(no_sql()),
            };
            checked.map_err(|Refusal { code, message, .. }| MutationError { code, message })?;
        }
        Ok(())
    }

    fn mutate(&mut self, mutation: Mutation) {
        match mutation {
            Mutation::Create { workflow, instance } => {
                self.insert(&workflow, instance, None);
            }
            Mutation::SendEvent(event) => {
                if planted(Bug::MutationTwice) {
                    self.send_event(event.clone(), None).expect("it was checked");
                }
                self.send_event(event, None).expect("it was checked");
            }
            Mutation::TriggerHook(hook) => self.trigger(hook),
            Mutation::Execute { .. } => unreachable!("it was checked"),
            #[cfg(feature = "sqlite")]
            Mutation::Sqlite(_) => unreachable!("it was checked"),
            #[cfg(feature = "postgres")]
            Mutation::Postgres(_) => unreachable!("it was checked"),
        }
    }

    /// Refuses rows that contradict what is stored. No runner writes such rows; one that did would
    /// change a recorded outcome (rule R2).
    fn check_rows(&self, boundary: &Boundary) -> Result<(), Refusal> {
        let run = self.instance(boundary.key.instance).current_run();
        let steps = boundary.steps.iter().map(|step| (step.row, &step.record));
        let waits = boundary.waits.iter().map(|wait| (wait.row, &wait.record));
        for (row, record) in steps.chain(waits) {
            let stored = run.steps.get(&u64::from(record.position));
            let fits = match row {
                RowState::New => stored.is_none(),
                RowState::Changed | RowState::Stored => {
                    stored.is_some_and(|stored| !stored.status.is_settled())
                }
            };
            if !fits {
                let (position, name) = (record.position, &record.name);
                let message =
                    format!("step `{name}` at position {position} is not {row:?} in the store");
                return Err(Refusal::new(Code::Internal, message));
            }
        }
        Ok(())
    }

    fn write_step(&mut self, key: InstanceKey, row: RowState, record: StepRecord) {
        let write = match row {
            RowState::New | RowState::Changed => true,
            RowState::Stored => record.status.is_settled(),
        };
        if write {
            self.instance_mut(key).current_run_mut().put_step(record);
        }
    }

    /// See [`Bug::StepOverwritten`].
    fn write_first_step_again(&mut self, key: InstanceKey) {
        let now = self.now;
        let run = self.instance_mut(key).current_run_mut();
        let first = run.steps.values().next().cloned();
        if let Some(step) = first {
            run.put_step(StepRecord { updated_at: now, ..step });
        }
    }

    /// Registers a wait and looks for its event under one lock (rule R5); returns it once it is settled.
    fn look(&mut self, key: InstanceKey, wait: WaitLook, may_settle: bool) -> Option<StepRecord> {
        let now = self.now;
        if !may_settle || planted(Bug::WaitSplit) && wait.row == RowState::New {
            self.write_step(key, wait.row, Arc::unwrap_or_clone(wait.record));
            return None;
        }
        let run = self.instance_mut(key).current_run_mut();
        let event = run.event_for(&wait.record, now);
        let event_seq = event.map(|event| event.seq);
        match boundary::settle_wait(&wait.record, event, wait.seq, now) {
            Wait::Open => {
                self.write_step(key, wait.row, Arc::unwrap_or_clone(wait.record));
                None
            }
            Wait::Delivered(step) => {
                let seq = event_seq.expect("only an event settles a wait as delivered");
                run.deliver(seq, step.name.clone(), now);
                self.write_step(key, wait.row, step.clone());
                Some(step)
            }
            Wait::TimedOut(step) => {
                if let Some(error) = &step.error {
                    self.log(key, story::wait_timed_out(&step.name, error));
                }
                self.write_step(key, wait.row, step.clone());
                Some(step)
            }
        }
    }

    pub(super) fn renew(&mut self, keys: Vec<RunKey>, lease: Span) -> Vec<Renewed> {
        let lease_until = Some(self.now.plus(lease));
        let mut renewed = Vec::new();
        for key in keys {
            let Ok(task) = boundary::guard(self.state.task(key.instance), &key) else {
                continue;
            };
            let pause_requested = task.pause_requested;
            self.put_task(key.instance, Task { lease_until, ..task });
            renewed.push(Renewed { key, pause_requested });
        }
        renewed
    }

    pub(super) fn release(&mut self, keys: Vec<RunKey>) {
        for key in keys {
            let Ok(task) = boundary::guard(self.state.task(key.instance), &key) else {
                continue;
            };
            let change = lifecycle::release(&task, self.now);
            self.log(key.instance, story::released());
            let handed_back = EngineNews::of_task(&change.task, EnqueueReason::Wake);
            self.news(key.instance, handed_back);
            if change.instance.is_some() {
                self.log(key.instance, story::paused());
            }
            self.apply(key.instance, change.task, change.instance);
        }
    }

    pub(super) fn append_logs(
        &mut self,
        key: InstanceKey,
        run_number: RunNumber,
        lines: Vec<LogLine>,
    ) {
        // Ended and superseded runs never change.
        let current = self.state.task(key).is_some_and(|task| task.run == run_number);
        if !current && !planted(Bug::EndedRunChanged) {
            return;
        }
        let instance = self.state.instances.get_mut(&key);
        let run = instance.and_then(|instance| instance.run_mut(run_number));
        let Some(run) = run else { return };
        for line in lines {
            run.append_log(run_number, line);
        }
    }
}

fn no_sql() -> Refusal {
    Refusal::new(
        Code::StepTransaction,
        "the memory store has no SQL: open a `sqlite:` store to run statements in a step's \
         transaction, or use `create` and `send_event`, which every store has",
    )
}
