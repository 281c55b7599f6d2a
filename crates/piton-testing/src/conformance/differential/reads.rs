//! Reading all there is from a pair of stores.

use piton::store::{InstanceQuery, ListPlace, LogFilter, PageQuery, Store, StoreError};
use piton_core::WorkflowName;
use piton_core::record::{InstanceRecord, RunKey};

use super::calls::{KnownRun, Pair};
use super::dice::{Die, IDS, WORKFLOWS};
use super::normal::NextDue;
use super::{Difference, Stage};
use crate::conformance::rows::{id, whole, workflow};

/// More pages than any walk has.
const PAGES_MAX: usize = 10_000;

/// How a reader walks through a table.
#[derive(Clone, Copy)]
struct Walk {
    limit: u32,
    descending: bool,
}

impl Pair {
    /// Reads all there is, in pages of a random size and direction.
    pub(super) async fn read_everything(&mut self, die: u64) -> Result<(), Difference> {
        let mut die = Die::new(die);
        let walk = Walk { limit: die.pick(&[1, 2, 3, 5, 100]), descending: die.chance(50) };
        let workflows = || WORKFLOWS.map(workflow);
        let now = self.left.now();
        self.same("next due".to_owned(), async |stage: &Stage| {
            let due = stage.store.next_due_at(workflows().into()).await;
            due.map(|at| NextDue { at, now })
        })
        .await?;
        for workflow in workflows() {
            self.read_workflow(&workflow, walk).await?;
        }
        self.read_hooks(walk.limit).await?;
        self.read_backlog().await
    }

    async fn read_workflow(
        &mut self,
        workflow: &WorkflowName,
        walk: Walk,
    ) -> Result<(), Difference> {
        let what = format!("list {workflow}");
        self.same(what, async |stage: &Stage| list(&*stage.store, workflow, walk.limit).await)
            .await?;
        let what = format!("ended of {workflow}");
        self.same(what, async |stage: &Stage| {
            let all = list(&*stage.store, workflow, u32::MAX).await?;
            let keys = all.iter().map(|record| record.key).collect();
            stage.store.ended(keys).await
        })
        .await?;
        for name in IDS {
            self.read_instance(workflow, name, walk).await?;
        }
        Ok(())
    }

    async fn read_instance(
        &mut self,
        workflow: &WorkflowName,
        name: &str,
        walk: Walk,
    ) -> Result<(), Difference> {
        let what = format!("read {workflow}/{name}");
        let ask = async |stage: &Stage| stage.store.instance(workflow.clone(), id(name)).await;
        let view = self.both(what, ask).await?;
        let Some(view) = view.expect("a read is never refused") else {
            return Ok(());
        };
        for run in 0..=view.record.run {
            let run = KnownRun { workflow: workflow.clone(), id: id(name), run, epoch: 0 };
            self.read_run(&run, walk).await?;
        }
        Ok(())
    }

    async fn read_run(&mut self, run: &KnownRun, walk: Walk) -> Result<(), Difference> {
        let what = |table: &str| format!("{table} of {run:?}");
        self.same(what("steps"), async |stage: &Stage| {
            let read = async |page| stage.store.steps(page).await;
            let key = run.key(stage).await;
            walk.all(key, read, |step| step.position.into()).await
        })
        .await?;
        self.same(what("events"), async |stage: &Stage| {
            let read = async |page| stage.store.events(page).await;
            let key = run.key(stage).await;
            walk.all(key, read, |event| event.seq).await
        })
        .await?;
        self.same(what("logs"), async |stage: &Stage| {
            let read = async |page| stage.store.logs(page, LogFilter::default()).await;
            let key = run.key(stage).await;
            walk.all(key, read, |log| log.seq).await
        })
        .await
    }

    /// Beyond being alike: a live run has exactly one task, and an ended one has none.
    async fn read_backlog(&mut self) -> Result<(), Difference> {
        let ask = async |stage: &Stage| stage.store.backlog([].into()).await;
        let backlog = self.both("backlog".to_owned(), ask).await?;
        let backlog = backlog.expect("a read is never refused");
        for name in WORKFLOWS.map(workflow) {
            let all = list(&*self.left.store, &name, u32::MAX).await;
            let all = all.expect("a read is never refused");
            let live = all.iter().filter(|record| !record.status.is_terminal());
            let tasks = backlog.iter().find(|(workflow, _)| *workflow == name);
            let tasks = tasks.map_or(0, |(_, tasks)| *tasks);
            assert_eq!(tasks, live.count() as u64, "{name}");
        }
        Ok(())
    }
}

/// All instances, in pages.
async fn list(
    store: &dyn Store,
    workflow: &WorkflowName,
    limit: u32,
) -> Result<Vec<InstanceRecord>, StoreError> {
    let mut all: Vec<InstanceRecord> = Vec::new();
    for _ in 0..PAGES_MAX {
        let behind = all.last().map(ListPlace::from);
        let query = InstanceQuery { behind, ..InstanceQuery::new(workflow.clone(), limit) };
        let page = store.instances(query).await?;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
    panic!("the pages of instances do not end");
}

impl Walk {
    /// All rows of a table, oldest first whatever way they were read.
    async fn all<T>(
        self,
        key: RunKey,
        read: impl AsyncFn(PageQuery) -> Result<Vec<T>, StoreError>,
        number: impl Fn(&T) -> u64,
    ) -> Result<Vec<T>, StoreError> {
        let mut all: Vec<T> = Vec::new();
        for _ in 0..PAGES_MAX {
            let page = PageQuery {
                after: all.last().map(&number),
                limit: self.limit,
                descending: self.descending,
                ..whole(key)
            };
            let rows = read(page).await?;
            if rows.is_empty() {
                if self.descending {
                    all.reverse();
                }
                return Ok(all);
            }
            all.extend(rows);
        }
        panic!("the pages of a run do not end");
    }
}
