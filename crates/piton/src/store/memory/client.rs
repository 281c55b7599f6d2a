//! What clients do: create, send an event, steer.

use std::collections::BTreeSet;

use piton_core::boundary::{InstanceChange, TaskChange};
use piton_core::hook::{EngineHook, EngineNews, EnqueueReason};
use piton_core::lifecycle::{self, Change};
use piton_core::record::{EventRecord, InstanceKey, InstanceRecord};
use piton_core::story::SystemLine;
use piton_core::{InstanceId, InstanceStatus, Refusal, WorkflowName, claim, story};

use super::reading;
use super::state::next_number;
use super::transaction::Transaction;
use crate::store::{
    Action, Claimant, CreateRequest, Created, Existing, Lease, NewEvent, NewInstance, Sent,
};

/// What becomes of an event that may be sent.
pub(super) enum Arrival {
    /// Its idempotency key is known: this is the first event with it.
    Repeat(EventRecord),
    /// It is new and does this to the task.
    New(TaskChange),
}

impl Transaction<'_> {
    pub(super) fn create(&mut self, request: CreateRequest) -> Result<Vec<Created>, Refusal> {
        let mut ids = BTreeSet::new();
        let mut instances = Vec::new();
        for instance in request.instances {
            let is_new = self.check_create(&request.workflow, &instance.id).is_ok()
                && ids.insert(instance.id.clone());
            match request.existing {
                Existing::Refuse if !is_new => {
                    return Err(Refusal::id_exists(&request.workflow, &instance.id));
                }
                Existing::Skip if !is_new => {}
                Existing::Refuse | Existing::Skip => instances.push(instance),
            }
        }
        if !instances.is_empty() {
            self.trigger_all(request.hooks);
        }
        let lease = request.lease.as_ref();
        Ok(instances
            .into_iter()
            .map(|instance| self.insert(&request.workflow, instance, lease))
            .collect())
    }

    /// # Errors
    ///
    /// `INSTANCE_ID_ALREADY_EXISTS`.
    pub(super) fn check_create(
        &self,
        workflow: &WorkflowName,
        id: &InstanceId,
    ) -> Result<(), Refusal> {
        match self.state.key_of(workflow, id) {
            Some(_) => Err(Refusal::id_exists(workflow, id)),
            None => Ok(()),
        }
    }

    /// Inserts an instance that is known not to exist.
    pub(super) fn insert(
        &mut self,
        workflow: &WorkflowName,
        instance: NewInstance,
        lease: Option<&Lease>,
    ) -> Created {
        let now = self.now;
        let key = self.state.next_key();
        let (workflow, started_at) = (workflow.clone(), lease.map(|_| now));
        let NewInstance { id, params } = instance;
        self.state.insert(InstanceRecord::created(key, workflow, id, params, now, started_at));
        let task = lifecycle::first_task(now, lease.map(|lease| now.plus(lease.span)));
        self.put_task(key, task);
        if let Some(lease) = lease {
            self.log(key, story::claimed(&lease.runner, task.epoch));
        }
        self.news(key, Some(EngineNews::enqueued(task.run, EnqueueReason::Create, now)));
        Created { instance: reading::record(self.instance(key)), epoch: task.epoch }
    }

    pub(super) fn send_event(
        &mut self,
        event: NewEvent,
        claimant: Option<&Claimant>,
    ) -> Result<Sent, Refusal> {
        let key = self.find(&event.workflow, &event.id)?;
        Ok(match self.check_event(key, &event)? {
            Arrival::Repeat(first) => Sent { event: first, claimed: None },
            Arrival::New(change) => self.store_event(key, event, change, claimant),
        })
    }

    /// # Errors
    ///
    /// `INSTANCE_TERMINAL`.
    pub(super) fn check_event(
        &self,
        key: InstanceKey,
        event: &NewEvent,
    ) -> Result<Arrival, Refusal> {
        let instance = self.instance(key);
        let repeated = event.idempotency_key.as_ref();
        let first = repeated.and_then(|known| instance.events_by_idempotency_key.get(known));
        if let Some((run, seq)) = first {
            let run = self.state.run(key, *run).expect("runs are never removed");
            return Ok(Arrival::Repeat(run.events[seq].clone()));
        }
        let waits_for_type = instance.current_run().waits_for(&event.event_type);
        let status = instance.record.status;
        lifecycle::event_arrived(status, instance.task(), waits_for_type, self.now)
            .map(Arrival::New)
    }

    fn store_event(
        &mut self,
        key: InstanceKey,
        event: NewEvent,
        change: TaskChange,
        claimant: Option<&Claimant>,
    ) -> Sent {
        let task_before = self.state.task(key).copied();
        let (id, now) = (self.ids.next("evt"), self.now);
        let instance = self.instance_mut(key);
        let run_number = instance.record.run;
        let run = instance.current_run_mut();
        let stored = EventRecord {
            id,
            run: run_number,
            seq: next_number(&run.events),
            event_type: event.event_type,
            payload: event.payload,
            created_at: now,
            delivered_at: None,
            consumed_by: None,
        };
        run.put_event(stored.clone());
        if let Some(idempotency_key) = event.idempotency_key {
            let first = (run_number, stored.seq);
            let known = &mut instance.events_by_idempotency_key;
            known.insert(idempotency_key, first);
        }
        self.news(key, EngineNews::of_task(&change, EnqueueReason::Event));
        let claimed = claimant.zip(task_before).and_then(|(claimant, before)| {
            let leased = claim::claim_woken(&change, &claimant.rules, now)?;
            Some(self.lease(key, &before, leased, &claimant.runner))
        });
        if claimed.is_none() {
            self.apply(key, change, None);
        }
        self.touched(key, task_before.as_ref());
        self.trigger_all(event.hooks);
        Sent { event: stored, claimed }
    }

    pub(super) fn steer(
        &mut self,
        workflow: &WorkflowName,
        id: &InstanceId,
        action: Action,
    ) -> Result<InstanceRecord, Refusal> {
        let key = self.find(workflow, id)?;
        let now = self.now;
        let status = self.instance(key).record.status;
        let before = self.state.task(key).copied();
        let task = before.as_ref();
        let change = match action {
            Action::Pause => lifecycle::pause(status, task, now)?.map(|change| {
                let line = match &change.instance {
                    Some(_) => story::paused(),
                    None => story::pause_requested(),
                };
                (change, line)
            }),
            Action::Resume => {
                lifecycle::resume(status, task, now).map(|change| (change, story::resumed()))
            }
            Action::Terminate => Some((lifecycle::terminate(status, now)?, story::terminated())),
            Action::Restart => Some(self.start_next_run(key)),
        };
        if let Some((change, line)) = change {
            self.log(key, line);
            self.steering_news(key, action, &change.task);
            self.apply(key, change.task, change.instance);
            self.touched(key, task);
        }
        Ok(reading::record(self.instance(key)))
    }

    fn steering_news(&mut self, key: InstanceKey, action: Action, change: &TaskChange) {
        let run = self.instance(key).record.run;
        match action {
            Action::Pause => {}
            Action::Resume => self.news(key, EngineNews::of_task(change, EnqueueReason::Resume)),
            Action::Terminate => {
                let ended = EngineNews::of_run(EngineHook::InstanceTerminated, run);
                self.news(key, Some(ended));
            }
            Action::Restart => {
                let restarted = EngineNews::of_run(EngineHook::InstanceRestarted, run);
                self.news(key, Some(restarted));
                self.news(key, EngineNews::of_task(change, EnqueueReason::Create));
            }
        }
    }

    /// Opens the next run, empty, and says what is left to change.
    fn start_next_run(&mut self, key: InstanceKey) -> (Change, SystemLine) {
        let task =
            lifecycle::restart(self.instance(key).record.run, self.state.task(key), self.now);
        let instance = self.instance_mut(key);
        let (status, error) = (instance.record.status, instance.record.error.as_ref());
        let line = story::restarted(task.run, status, error);
        instance.start_run(task.run);
        let active = InstanceChange {
            status: InstanceStatus::Active,
            output: None,
            error: None,
            completed_at: None,
        };
        let change = Change { task: TaskChange::Put(task), instance: Some(active) };
        (change, line)
    }
}
