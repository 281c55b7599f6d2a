//! The rows and their indexes, as plain maps.
//!
//! An index exists where a scan would make the cost of one run depend on the others: tasks by the moment
//! they can be claimed, undelivered events by type, waiting steps. [`State::set_task`] and
//! [`Run::put_step`] are the only ways to change what they cover, so that rows and indexes agree.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use piton_core::boundary;
use piton_core::planted::{Bug, planted};
use piton_core::record::{
    EventRecord, InstanceKey, InstanceRecord, LogLine, LogRecord, RunNumber, StepRecord, Task,
};
use piton_core::{EventType, InstanceId, StepName, StepStatus, TaskState, Timestamp, WorkflowName};

use super::hook::Hooks;
use crate::store::ListPlace;

/// Everything there is.
#[derive(Default)]
pub(super) struct State {
    pub(super) instances: BTreeMap<InstanceKey, Instance>,
    pub(super) workflows: BTreeMap<WorkflowName, Workflow>,
    pub(super) hooks: Hooks,
}

/// The instances of one workflow.
#[derive(Default)]
pub(super) struct Workflow {
    pub(super) by_id: BTreeMap<InstanceId, InstanceKey>,
    pub(super) listed: BTreeSet<ListPlace>,
    pub(super) live_tasks: u64,
    /// Pending tasks that continue something, by `run_at`.
    resuming: Queue,
    /// Pending tasks of new runs, by `run_at`.
    new: Queue,
    /// By the end of the lease.
    leased: Queue,
    /// By `run_at`.
    suspects: Queue,
}

/// Tasks by the moment they can be claimed, oldest first.
type Queue = BTreeSet<(Timestamp, InstanceKey)>;

impl Workflow {
    /// Where the task waits to be claimed, and until when. Held tasks are in no queue, so that paused instances
    /// cost claims nothing.
    fn queue_of(&mut self, task: &Task) -> Option<(&mut Queue, Timestamp)> {
        match task.state {
            TaskState::Pending if task.kind.is_resuming() => {
                Some((&mut self.resuming, task.run_at))
            }
            TaskState::Pending => Some((&mut self.new, task.run_at)),
            TaskState::Leased if planted(Bug::LeaseNeverExpires) => None,
            TaskState::Leased => Some((&mut self.leased, task.lease_until.unwrap_or(task.run_at))),
            TaskState::Suspect => Some((&mut self.suspects, task.run_at)),
            TaskState::Held => None,
        }
    }

    /// When the earliest task can be claimed that is no suspect.
    pub(super) fn next_due_at(&self) -> Option<Timestamp> {
        let queues = [&self.resuming, &self.new, &self.leased];
        queues.iter().filter_map(|queue| queue.first()).map(|(at, _)| *at).min()
    }
}

/// Due tasks of both classes by `run_at`, each oldest first and at most as many as were asked for.
pub(super) struct DueTasks {
    pub(super) resuming: Vec<(Timestamp, InstanceKey)>,
    pub(super) new: Vec<(Timestamp, InstanceKey)>,
}

impl State {
    pub(super) fn key_of(&self, workflow: &WorkflowName, id: &InstanceId) -> Option<InstanceKey> {
        self.workflows.get(workflow)?.by_id.get(id).copied()
    }

    pub(super) fn task(&self, key: InstanceKey) -> Option<&Task> {
        self.instances.get(&key)?.task.as_ref()
    }

    pub(super) fn run(&self, key: InstanceKey, run: RunNumber) -> Option<&Run> {
        self.instances.get(&key)?.runs.get(run as usize)
    }

    /// The key of the next instance: keys grow with creation.
    pub(super) fn next_key(&self) -> InstanceKey {
        let last = self.instances.keys().next_back();
        InstanceKey(last.map_or(0, |key| key.0) + 1)
    }

    pub(super) fn insert(&mut self, record: InstanceRecord) {
        let workflow = self.workflows.entry(record.workflow.clone()).or_default();
        workflow.by_id.insert(record.id.clone(), record.key);
        workflow.listed.insert(ListPlace::from(&record));
        let instance = Instance {
            task: None,
            runs: vec![Run::default()],
            events_by_idempotency_key: BTreeMap::new(),
            record,
        };
        self.instances.insert(instance.record.key, instance);
    }

    /// Puts, replaces or removes the task of a living instance.
    pub(super) fn set_task(&mut self, key: InstanceKey, task: Option<Task>) {
        let instance = self.instances.get_mut(&key).expect("the instance exists");
        let name = &instance.record.workflow;
        let workflow = self.workflows.get_mut(name).expect("so does its workflow");
        if let Some(old) = instance.task.take() {
            workflow.live_tasks -= 1;
            if let Some((queue, at)) = workflow.queue_of(&old) {
                queue.remove(&(at, key));
            }
        }
        if let Some(new) = &task {
            workflow.live_tasks += 1;
            if let Some((queue, at)) = workflow.queue_of(new) {
                queue.insert((at, key));
            }
        }
        instance.task = task;
    }

    /// The oldest suspect.
    pub(super) fn suspect(&self, workflows: &[WorkflowName]) -> Option<(Timestamp, InstanceKey)> {
        let known = workflows.iter().filter_map(|name| self.workflows.get(name));
        known.filter_map(|workflow| workflow.suspects.first()).min().copied()
    }

    /// What can be claimed now, without looking at anything that cannot.
    pub(super) fn due_tasks(
        &self,
        workflows: &[WorkflowName],
        now: Timestamp,
        wanted: usize,
    ) -> DueTasks {
        let due = |queue: fn(&Workflow) -> &Queue| {
            let until = (now, InstanceKey(i64::MAX));
            let known = workflows.iter().filter_map(|name| self.workflows.get(name));
            known.flat_map(move |workflow| queue(workflow).range(..=until).take(wanted)).copied()
        };
        // A run whose lease ran out was begun: it is work to resume, as old as its task.
        let run_at = |key| self.task(key).expect("a queue holds living tasks").run_at;
        let orphaned = due(|workflow| &workflow.leased).map(|(_, key)| (run_at(key), key));
        let oldest = |tasks: BTreeSet<_>| -> Vec<_> {
            if planted(Bug::ClaimYoungestFirst) {
                return tasks.into_iter().rev().take(wanted).collect();
            }
            tasks.into_iter().take(wanted).collect()
        };
        DueTasks {
            resuming: oldest(due(|workflow| &workflow.resuming).chain(orphaned).collect()),
            new: oldest(due(|workflow| &workflow.new).collect()),
        }
    }
}

/// One instance with all its runs.
pub(super) struct Instance {
    /// Its row; `pause_requested` is kept on the task and joined on reading.
    pub(super) record: InstanceRecord,
    task: Option<Task>,
    /// By run number.
    runs: Vec<Run>,
    /// Run and seq, over all runs: a repeat after a restart is still a repeat.
    pub(super) events_by_idempotency_key: BTreeMap<Arc<str>, (RunNumber, u64)>,
}

impl Instance {
    pub(super) fn task(&self) -> Option<&Task> {
        self.task.as_ref()
    }

    pub(super) fn runs(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter()
    }

    pub(super) fn current_run(&self) -> &Run {
        self.runs.last().expect("run 0 exists from the start")
    }

    pub(super) fn current_run_mut(&mut self) -> &mut Run {
        self.runs.last_mut().expect("run 0 exists from the start")
    }

    pub(super) fn run_mut(&mut self, run: RunNumber) -> Option<&mut Run> {
        self.runs.get_mut(run as usize)
    }

    /// Starts a clean run; the old ones stay readable.
    pub(super) fn start_run(&mut self, run: RunNumber) {
        self.runs.push(Run::default());
        assert_eq!(self.runs.len(), run as usize + 1, "runs have no gaps");
        self.record.run = run;
        self.record.started_at = None;
    }
}

/// The rows of one run, each table by the number its pages are ordered by.
#[derive(Default)]
pub(super) struct Run {
    pub(super) steps: BTreeMap<u64, StepRecord>,
    pub(super) events: BTreeMap<u64, EventRecord>,
    pub(super) logs: BTreeMap<u64, LogRecord>,
    /// Positions of the steps that wait.
    waiting: BTreeSet<u64>,
    /// Events nobody has taken, in arrival order within their type.
    undelivered: BTreeMap<EventType, BTreeSet<u64>>,
}

impl Run {
    pub(super) fn put_step(&mut self, step: StepRecord) {
        let position = u64::from(step.position);
        if step.status == StepStatus::Waiting {
            self.waiting.insert(position);
        } else {
            self.waiting.remove(&position);
        }
        self.steps.insert(position, step);
    }

    pub(super) fn waiting_steps(&self) -> impl Iterator<Item = &StepRecord> {
        self.waiting.iter().map(|position| &self.steps[position])
    }

    pub(super) fn waits_for(&self, event_type: &EventType) -> bool {
        self.waiting_steps().any(|step| step.event_type.as_ref() == Some(event_type))
    }

    pub(super) fn put_event(&mut self, event: EventRecord) {
        let undelivered = self.undelivered.entry(event.event_type.clone());
        undelivered.or_default().insert(event.seq);
        self.events.insert(event.seq, event);
    }

    /// The oldest undelivered event that counts for this wait: of its type, arrived by its deadline.
    pub(super) fn event_for(&self, wait: &StepRecord, now: Timestamp) -> Option<&EventRecord> {
        let undelivered = self.undelivered.get(wait.event_type.as_ref()?)?;
        let arrived_by = boundary::arrived_by(wait, now);
        let in_time =
            |event: &&EventRecord| arrived_by.is_none_or(|deadline| event.created_at <= deadline);
        let mut oldest_first = undelivered.iter().map(|seq| &self.events[seq]);
        if planted(Bug::EventNotFifo) {
            return oldest_first.rfind(in_time);
        }
        oldest_first.find(in_time)
    }

    pub(super) fn deliver(&mut self, seq: u64, consumer: StepName, now: Timestamp) {
        let event = self.events.get_mut(&seq).expect("it was just found");
        event.delivered_at = Some(now);
        event.consumed_by = Some(consumer);
        if let Some(undelivered) = self.undelivered.get_mut(&event.event_type)
            && !planted(Bug::EventTakenTwice)
        {
            undelivered.remove(&seq);
        }
    }

    pub(super) fn append_log(&mut self, run: RunNumber, line: LogLine) {
        let seq = next_number(&self.logs);
        self.logs.insert(seq, LogRecord { run, seq, line });
    }
}

/// Numbers of events and log lines start at 1 and have no gaps.
pub(super) fn next_number<T>(rows: &BTreeMap<u64, T>) -> u64 {
    rows.keys().next_back().copied().unwrap_or(0) + 1
}
