//! One transaction under the locks of the runs it concerns.
//!
//! The tasks are locked first, all at once and in ascending order; then everything is read, `piton_core` is asked, and
//! what it says is collected; [`Transaction::flush`] writes it, many rows with each statement.
//!
//! **A run is changed only by whoever holds the lock of its task.** An instance without a task has ended: nothing about
//! it changes but by a restart, which inserts a task, and two of those cannot both succeed. So no other row is ever locked
//! for its own sake, and nobody waits in a circle.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use piton_core::boundary::{InstanceChange, TaskChange};
use piton_core::hook::{EngineNews, EnqueueReason, NewHook};
use piton_core::record::{InstanceKey, RunKey, RunNumber, StepRecord, Task};
use piton_core::story::SystemLine;
use piton_core::{InstanceStatus, TaskState, Timestamp, WorkflowName};

use super::clock::Time;
use super::event::Delivery;
use super::log::Line;
use super::statements::Db;
use super::task::Row;
use super::trouble::{Failure, Outcome, Trouble};
use super::{event, hook, instance, log, step, task};
use crate::runtime::Ids;
use crate::store::{Created, EngineHooks, Hint};

/// Ends a transaction that is not to be committed, before anybody is told why. One that is merely dropped is rolled back
/// with the next use of its connection, and keeps its locks until then: a claim would pass over the run meanwhile.
pub(super) async fn roll_back(database: sqlx::Transaction<'_, sqlx::Postgres>) {
    if let Err(error) = database.rollback().await {
        tracing::debug!(%error, "a transaction could not be rolled back; the server does it when it notices");
    }
}

/// A transaction in the making.
pub(super) struct Transaction<'t> {
    pub(super) db: Db<'t>,
    pub(super) ids: &'t Ids,
    /// The clock that decides, read after the locks.
    pub(super) now: Timestamp,
    /// What observers are told after the commit.
    pub(super) hints: Vec<Hint>,
    pub(super) steps_new: Vec<(RunKey, StepRecord)>,
    pub(super) steps_changed: Vec<(RunKey, StepRecord)>,
    pub(super) deliveries: Vec<Delivery>,
    pub(super) logs: Vec<Line>,
    pub(super) hooks: Vec<NewHook>,
    /// The tasks of runs that were created or woken already leased.
    pub(super) leased: Vec<Row>,
    /// What is told by hooks.
    engine_hooks: Option<Arc<EngineHooks>>,
    news: Vec<(InstanceKey, EngineNews)>,
    /// The locked tasks as they stand, changes of this transaction included.
    tasks: BTreeMap<InstanceKey, Row>,
    changed: HashSet<InstanceKey>,
    deleted: Vec<i64>,
    instances: Vec<(InstanceKey, InstanceChange)>,
}

impl<'t> Transaction<'t> {
    /// Locks the tasks of these instances and reads the clock.
    pub(super) async fn lock(
        mut db: Db<'t>,
        ids: &'t Ids,
        time: &Time,
        keys: &[InstanceKey],
    ) -> Outcome<Self> {
        let (rows, read_at) =
            if keys.is_empty() { (Vec::new(), None) } else { task::lock(&mut db, keys).await? };
        let now = time.now(&mut db, read_at).await?;
        let tasks = rows.into_iter().map(|row| (row.key, row)).collect();
        Ok(Self::begin(db, ids, now, tasks))
    }

    /// A transaction that holds the locks of these tasks already.
    pub(super) fn begin(
        db: Db<'t>,
        ids: &'t Ids,
        now: Timestamp,
        tasks: BTreeMap<InstanceKey, Row>,
    ) -> Self {
        Self {
            db,
            ids,
            now,
            hints: Vec::new(),
            steps_new: Vec::new(),
            steps_changed: Vec::new(),
            deliveries: Vec::new(),
            logs: Vec::new(),
            hooks: Vec::new(),
            leased: Vec::new(),
            engine_hooks: None,
            news: Vec::new(),
            tasks,
            changed: HashSet::new(),
            deleted: Vec::new(),
            instances: Vec::new(),
        }
    }

    /// What is told by hooks.
    pub(super) fn tell_by_hooks(&mut self, engine_hooks: Option<Arc<EngineHooks>>) {
        self.engine_hooks = engine_hooks;
    }

    /// Tells whoever wants to know, by a hook.
    pub(super) fn news(&mut self, key: InstanceKey, news: Option<EngineNews>) {
        if let (Some(wanted), Some(news)) = (&self.engine_hooks, news)
            && wanted.tells(news.hook)
        {
            self.news.push((key, news));
        }
    }

    /// As [`news`](Self::news), of instances that were just created.
    pub(super) fn created(&mut self, workflow: &WorkflowName, created: &[Created]) {
        let Some(wanted) = &self.engine_hooks else { return };
        for Created { instance, .. } in created {
            let news = EngineNews::enqueued(instance.run, EnqueueReason::Create, self.now);
            self.hooks.extend(wanted.hook(&news, workflow, &instance.id, self.ids));
        }
    }

    /// Locks one task more: only for rows that nobody else can know of yet, or as the last of several in order.
    pub(super) async fn lock_also(&mut self, key: InstanceKey) -> Outcome<()> {
        if !self.tasks.contains_key(&key) {
            let (rows, _) = task::lock(&mut self.db, &[key]).await?;
            self.tasks.extend(rows.into_iter().map(|row| (row.key, row)));
        }
        Ok(())
    }

    /// The task of a locked run, if the run is alive.
    pub(super) fn task(&self, key: InstanceKey) -> Option<Task> {
        self.tasks.get(&key).map(|row| row.task)
    }

    pub(super) fn workflow(&self, key: InstanceKey) -> Option<&WorkflowName> {
        self.tasks.get(&key).map(|row| &row.workflow)
    }

    /// The locked row of a run that is alive.
    pub(super) fn row(&self, key: InstanceKey) -> Option<&Row> {
        self.tasks.get(&key)
    }

    /// A live run has a task and an ended one has none. If what was read later says otherwise, the run was restarted or
    /// ended between the look for its lock and now: the transaction is tried again.
    pub(super) fn check_lock(
        &self,
        key: InstanceKey,
        status: InstanceStatus,
    ) -> Result<(), Failure> {
        if self.tasks.contains_key(&key) == status.is_terminal() {
            return Err(Failure::conflict("the instance was restarted at this very moment"));
        }
        Ok(())
    }

    pub(super) fn change_task(&mut self, key: InstanceKey, change: &TaskChange) {
        match change {
            TaskChange::Keep => {}
            TaskChange::Put(task) => {
                if let Some(row) = self.tasks.get_mut(&key) {
                    row.task = *task;
                    self.changed.insert(key);
                }
            }
            TaskChange::Delete => {
                if self.tasks.remove(&key).is_some() {
                    self.changed.remove(&key);
                    self.deleted.push(key.0);
                }
            }
        }
    }

    /// A locked task was leased, and its row is this now.
    pub(super) fn is_leased(&mut self, key: InstanceKey, task: Task) {
        if let Some(row) = self.tasks.get_mut(&key) {
            row.task = task;
            self.leased.push(row.clone());
        }
    }

    pub(super) fn change_instance(&mut self, key: InstanceKey, change: InstanceChange) {
        self.instances.push((key, change));
    }

    /// Adds a line of the engine's own.
    pub(super) fn tell(&mut self, instance: InstanceKey, run: RunNumber, line: SystemLine) {
        let line = line.written(self.ids.next("log"), self.now);
        self.logs.push(Line { instance, run, line });
    }

    /// A task of this workflow can be claimed at this moment.
    pub(super) fn hint_due(&mut self, workflow: &WorkflowName, at: Timestamp) {
        self.hints.push(Hint::Due { workflow: workflow.clone(), at });
    }

    /// What a change made from outside means to runners: the one that holds the task, or one that could. To be called
    /// before the change.
    pub(super) fn hint_task(&mut self, key: InstanceKey, before: &Task, change: &TaskChange) {
        if before.state == TaskState::Leased {
            self.hints.push(Hint::Touched(key));
        }
        match change {
            TaskChange::Put(task) if task.state == TaskState::Pending => {
                if let Some(workflow) = self.workflow(key).cloned() {
                    self.hint_due(&workflow, task.run_at);
                }
            }
            TaskChange::Put(_) | TaskChange::Keep | TaskChange::Delete => {}
        }
    }

    /// Writes everything that was collected.
    pub(super) async fn flush(&mut self) -> Result<(), Failure> {
        let changed: Vec<(InstanceKey, Task)> = self
            .changed
            .drain()
            .filter_map(|key| Some((key, self.tasks.get(&key)?.task)))
            .collect();
        let db = &mut self.db;
        step::insert(db, &self.steps_new).await?;
        step::update(db, &self.steps_changed).await?;
        event::deliver(db, &self.deliveries, self.now).await?;
        task::delete(db, &self.deleted).await?;
        task::put(db, &changed).await?;
        instance::change(db, &self.instances, self.now).await?;
        log::insert(db, &self.logs).await?;
        self.flush_hooks().await?;
        self.steps_new.clear();
        self.steps_changed.clear();
        self.deliveries.clear();
        self.deleted.clear();
        self.instances.clear();
        self.logs.clear();
        Ok(())
    }

    async fn flush_hooks(&mut self) -> Result<(), Failure> {
        if let (false, Some(wanted)) = (self.news.is_empty(), &self.engine_hooks) {
            let keys: Vec<InstanceKey> = self.news.iter().map(|(key, _)| *key).collect();
            let found = instance::by_keys(&mut self.db, &keys).await;
            let records = found.map_err(Trouble::into_failure)?;
            for (key, news) in self.news.drain(..) {
                let told = records.iter().find(|record| record.key == key);
                let hook =
                    told.and_then(|told| wanted.hook(&news, &told.workflow, &told.id, self.ids));
                self.hooks.extend(hook);
            }
        }
        let hooks = std::mem::take(&mut self.hooks);
        self.hints.extend(hook::insert(&mut self.db, &hooks, Some(self.now)).await?);
        Ok(())
    }
}
