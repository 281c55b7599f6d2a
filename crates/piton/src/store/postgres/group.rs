//! Group commit: everything that is simple, of all runs at once, in one statement that is its own transaction.
//!
//! One round trip and one sync of the server's log pay for a whole batch. The decisions are `piton_core`'s, made in advance
//! from what this process remembers of its tasks (`leases.rs`); the statement locks the rows in ascending order and writes
//! each boundary on the condition that its row is still as remembered. What it passes over is looked at again under the
//! lock (`commit.rs`): fenced, or paused, or just different.

use std::collections::HashMap;

use piton_core::boundary::{self, After, Next, TaskChange, Written};
use piton_core::record::{InstanceKey, InstanceRecord, RunKey, StepRecord, Task};
use piton_core::{InstanceId, Json, TaskState, Timestamp, WorkflowName, lifecycle, story};
use sqlx::Arguments;
use sqlx::postgres::PgArguments;

use super::cells::{Cells, bigint, error_text, int};
use super::clock::clock_ms;
use super::request::PlainBoundary;
use super::statements::Db;
use super::trouble::{Failure, Outcome};
use super::{log, step};
use crate::runtime::Ids;
use crate::store::{CreateRequest, Created, Hint, RowState};

/// `held`: the boundaries whose task is as remembered, locked in the order of the parameters, which is that of the keys;
/// each by one look into the primary key, whatever the planner believes about the table (written plainly, the condition
/// on the state would let it walk through the index of all leases instead). `fresh`: the instances that were not there.
///
/// The steps of a boundary that is not held are not inserted, its task is not touched: it was not there at all. An id
/// that exists is passed over likewise; ids are inserted in their order, so that two processes that create the same ones
/// do not wait for each other in a circle, while keys follow the order of the request.
const GROUP_COMMIT: &str = concat!(
    "WITH clock AS MATERIALIZED (SELECT coalesce($1, ", clock_ms!(), ") AS now),
    held AS MATERIALIZED (
        SELECT b.* FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
            AS b(instance_key, run_number, epoch, claims_without_progress, state, kind, run_at, status, output, error)
        CROSS JOIN LATERAL (
            SELECT FROM piton_task AS t
            WHERE t.instance_key = b.instance_key AND t.run_number = b.run_number AND t.epoch = b.epoch
                AND coalesce(t.state, '') = 'leased' AND NOT t.pause_requested
                AND t.claims_without_progress = b.claims_without_progress
            FOR NO KEY UPDATE) AS locked),
    put AS (
        UPDATE piton_task AS t SET state = h.state, kind = h.kind, run_at = h.run_at,
            lease_until = CASE WHEN h.state = 'leased' THEN t.lease_until END,
            lease_owner = CASE WHEN h.state = 'leased' THEN t.lease_owner END, claims_without_progress = 0
        FROM held AS h WHERE t.instance_key = h.instance_key AND h.state IN ('leased', 'pending')),
    ended AS (
        DELETE FROM piton_task AS t USING held AS h WHERE t.instance_key = h.instance_key AND h.state = 'ended'),
    changed AS (
        UPDATE piton_instance AS i SET status = h.status, updated_at = now,
            completed_at = CASE WHEN h.state = 'ended' THEN now END, output = h.output, error = h.error
        FROM held AS h, clock WHERE i.key = h.instance_key AND h.status IS NOT NULL),
    steps AS (
        INSERT INTO piton_step (", step::columns!(), ") SELECT ", step::columns!(), " FROM ",
        step::rows!("$12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29"),
        " WHERE s.instance_key IN (SELECT instance_key FROM held)),
    lines AS (
        INSERT INTO piton_log (", log::columns!(), ") SELECT ", log::columns!(), " FROM ",
        log::rows!("$30, $31, $32, $33, $34, $35, $36, $37, $38, $39, $40"),
        " WHERE l.instance_key IN (SELECT instance_key FROM held)),
    new AS MATERIALIZED (
        SELECT nextval('piton_instance_key_seq') AS key, n.*
        FROM unnest($41, $42, $43, $44, $45, $46, $47,
                $48, $49, $50)
            AS n(workflow_name, instance_id, params, state, lease_ms, epoch, lease_owner, log_id, log_level, log_message)),
    fresh AS (
        INSERT INTO piton_instance (key, workflow_name, instance_id, status, run_number, created_at, updated_at,
            started_at, params)
        SELECT key, workflow_name, instance_id, 'active', 0, now, now, CASE WHEN lease_ms IS NOT NULL THEN now END, params
        FROM new, clock ORDER BY workflow_name, instance_id
        ON CONFLICT (workflow_name, instance_id) DO NOTHING RETURNING key, workflow_name, instance_id),
    tasks AS (
        INSERT INTO piton_task (instance_key, workflow_name, run_number, kind, state, run_at, lease_until, lease_owner,
            epoch, claims_without_progress, pause_requested)
        SELECT key, workflow_name, 0, 'run', state, now, now + lease_ms, lease_owner, epoch, 0, false
        FROM new, clock WHERE key IN (SELECT key FROM fresh)),
    claims AS (
        INSERT INTO piton_log (instance_key, run_number, id, level, category, is_replay, created_at, message)
        SELECT key, 0, log_id, log_level, 'system', false, now, log_message
        FROM new, clock WHERE log_id IS NOT NULL AND key IN (SELECT key FROM fresh))
    SELECT instance_key, now, NULL AS workflow_name, NULL AS instance_id FROM held, clock
    UNION ALL SELECT key, now, workflow_name, instance_id FROM fresh, clock"
);

/// A boundary with what was decided about it.
pub(super) struct Decided<'b> {
    boundary: &'b PlainBoundary,
    workflow: WorkflowName,
    before: Task,
    change: TaskChange,
    instance: Option<piton_core::boundary::InstanceChange>,
    pub(super) after: After,
}

/// Decides about a boundary in advance; `None` if that is not possible.
pub(super) fn decide<'b>(
    boundary: &'b PlainBoundary,
    remembered: Option<(WorkflowName, Task)>,
) -> Option<Decided<'b>> {
    let (workflow, before) = remembered?;
    let simple =
        |row: RowState, settled: bool| row == RowState::New || row == RowState::Stored && !settled;
    let all_new =
        boundary.steps.iter().all(|step| simple(step.row, step.record.status.is_settled()));
    if !boundary.waits.is_empty() || !all_new || before.pause_requested {
        return None;
    }
    let task = boundary::guard(Some(&before), &boundary.key).ok()?;
    let written = Written { steps: !boundary.steps.is_empty(), wait_settled: false };
    // The moment a run ended is filled in by the statement, from the clock that decides.
    let (change, instance, after) = boundary::after(&task, &boundary.next, written, LATER);
    Some(Decided { boundary, workflow, before, change, instance, after })
}

/// A moment that is filled in by the statement.
const LATER: Timestamp = Timestamp::from_millis(0);

impl Decided<'_> {
    pub(super) fn key(&self) -> &RunKey {
        &self.boundary.key
    }

    pub(super) fn workflow(&self) -> &WorkflowName {
        &self.workflow
    }

    pub(super) fn claims_without_progress(&self) -> u32 {
        self.before.claims_without_progress
    }

    /// The one step that is all this boundary brings, if its task stays as it is.
    pub(super) fn lone_step(&self) -> Option<&StepRecord> {
        match (self.change, &self.instance) {
            (TaskChange::Keep, None) => self.boundary.lone_step(),
            (TaskChange::Keep | TaskChange::Put(_) | TaskChange::Delete, _) => None,
        }
    }

    /// The task after the commit.
    pub(super) fn task(&self) -> Option<Task> {
        match self.change {
            TaskChange::Keep => Some(self.before),
            TaskChange::Put(task) => Some(task),
            TaskChange::Delete => None,
        }
    }

    fn put(&self) -> Option<Task> {
        match self.change {
            TaskChange::Put(task) => Some(task),
            TaskChange::Keep | TaskChange::Delete => None,
        }
    }

    fn state(&self) -> Option<&'static str> {
        match self.change {
            TaskChange::Keep => None,
            TaskChange::Put(task) => Some(task.state.as_str()),
            TaskChange::Delete => Some("ended"),
        }
    }

    /// What observers are told.
    pub(super) fn hint(&self) -> Option<Hint> {
        match (&self.after, &self.change) {
            (After::Ended, _) => Some(Hint::Ended(self.key().instance)),
            (After::Suspended, TaskChange::Put(task)) => {
                Some(Hint::Due { workflow: self.workflow.clone(), at: task.run_at })
            }
            (After::Continue | After::Drain | After::Paused | After::Suspended, _) => None,
        }
    }
}

/// What one statement did.
pub(super) struct Done {
    pub(super) now: Timestamp,
    pub(super) held: Vec<InstanceKey>,
    fresh: HashMap<(WorkflowName, InstanceId), InstanceKey>,
}

impl Done {
    /// What a statement without creations did.
    pub(super) fn of_boundaries(now: Timestamp, held: Vec<InstanceKey>) -> Self {
        Self { now, held, fresh: HashMap::new() }
    }

    /// The instances of a request that were created, in its order.
    pub(super) fn created(&self, request: &CreateRequest) -> Vec<Created> {
        let lease = request.lease.as_ref();
        let task = lifecycle::first_task(self.now, lease.map(|lease| self.now.plus(lease.span)));
        let started_at = lease.map(|_| self.now);
        let mut taken = std::collections::HashSet::new();
        let created = request.instances.iter().filter_map(|new| {
            let key = *self.fresh.get(&(request.workflow.clone(), new.id.clone()))?;
            let (workflow, id, params) = (&request.workflow, &new.id, &new.params);
            let instance = InstanceRecord::created(
                key,
                workflow.clone(),
                id.clone(),
                params.clone(),
                self.now,
                started_at,
            );
            taken.insert(key).then_some(Created { instance, epoch: task.epoch })
        });
        created.collect()
    }

    /// The first task of an instance of a request.
    pub(super) fn first_task(&self, request: &CreateRequest) -> Task {
        let lease = request.lease.as_ref();
        lifecycle::first_task(self.now, lease.map(|lease| self.now.plus(lease.span)))
    }
}

/// Runs the statement. Outside of a transaction it is committed when this returns.
pub(super) async fn commit(
    db: &mut Db<'_>,
    ids: &Ids,
    fixed: Option<Timestamp>,
    boundaries: &[Decided<'_>],
    creates: &[&CreateRequest],
) -> Outcome<Done> {
    let mut params = PgArguments::default();
    add(&mut params, fixed.map(Timestamp::as_millis))?;
    bind_boundaries(&mut params, boundaries)?;
    let steps = boundaries.iter().flat_map(|decided| {
        let written = decided.boundary.steps.iter().filter(|step| step.row == RowState::New);
        written.map(|step| (&decided.boundary.key, &*step.record))
    });
    step::bind(&mut params, steps)?;
    let lines = boundaries.iter().flat_map(|decided| {
        let key = &decided.boundary.key;
        decided.boundary.logs.iter().map(|line| (key.instance, key.run, line))
    });
    log::bind(&mut params, lines)?;
    bind_creates(&mut params, ids, creates)?;
    let mut done = Done::of_boundaries(LATER, Vec::new());
    let rows = db
        .all(GROUP_COMMIT, params, |row| {
            let cells = Cells::keyed(row, "piton_task")?;
            Ok((cells.key(), cells.time(1)?, cells.opt_text(2)?.zip(cells.opt_text(3)?)))
        })
        .await?;
    for (key, now, name) in rows {
        done.now = now;
        match name {
            None => done.held.push(key),
            Some((workflow, id)) => {
                let name = (WorkflowName::from_stored(workflow), InstanceId::from_stored(id));
                done.fresh.insert(name, key);
            }
        }
    }
    Ok(done)
}

/// Adds a parameter.
pub(super) fn add<'q, T>(params: &mut PgArguments, value: T) -> Result<(), Failure>
where
    T: sqlx::Encode<'q, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    params.add(value).map_err(|error| Failure::of_parameter(&*error))
}

fn bind_boundaries(params: &mut PgArguments, all: &[Decided<'_>]) -> Result<(), Failure> {
    let key = |decided: &Decided<'_>| decided.boundary.key;
    add(params, all.iter().map(|d| key(d).instance.0).collect::<Vec<i64>>())?;
    add(params, all.iter().map(|d| int(key(d).run)).collect::<Vec<i32>>())?;
    add(params, all.iter().map(|d| bigint(key(d).epoch)).collect::<Vec<i64>>())?;
    add(params, all.iter().map(|d| int(d.before.claims_without_progress)).collect::<Vec<i32>>())?;
    add(params, all.iter().map(Decided::state).collect::<Vec<Option<&str>>>())?;
    add(
        params,
        all.iter().map(|d| d.put().map(|task| task.kind.as_str())).collect::<Vec<Option<&str>>>(),
    )?;
    add(
        params,
        all.iter()
            .map(|d| d.put().map(|task| task.run_at.as_millis()))
            .collect::<Vec<Option<i64>>>(),
    )?;
    let instance = |d: &Decided<'_>| d.instance.clone();
    add(
        params,
        all.iter()
            .map(|d| instance(d).map(|change| change.status.as_str()))
            .collect::<Vec<Option<&str>>>(),
    )?;
    let output = |d: &'_ Decided<'_>| match &d.boundary.next {
        Next::Complete { output } => Some(output.clone()),
        Next::Continue { .. } | Next::Suspend { .. } | Next::Fail { .. } => None,
    };
    let outputs: Vec<Option<Json>> = all.iter().map(output).collect();
    add(
        params,
        outputs
            .iter()
            .map(|output| output.as_ref().map(Json::as_str))
            .collect::<Vec<Option<&str>>>(),
    )?;
    add(
        params,
        all.iter()
            .map(|d| d.instance.as_ref().and_then(|change| error_text(change.error.as_ref())))
            .collect::<Vec<Option<String>>>(),
    )
}

fn bind_creates(
    params: &mut PgArguments,
    ids: &Ids,
    creates: &[&CreateRequest],
) -> Result<(), Failure> {
    let all = || {
        creates.iter().flat_map(|request| {
            let mut seen = std::collections::HashSet::new();
            let first = request.instances.iter().filter(move |new| seen.insert(&new.id));
            first.map(move |new| (*request, new))
        })
    };
    // Relative to a clock that is read later.
    let task = |request: &CreateRequest| {
        lifecycle::first_task(LATER, request.lease.as_ref().map(|lease| LATER.plus(lease.span)))
    };
    let told = |request: &CreateRequest| {
        request.lease.as_ref().map(|lease| story::claimed(&lease.runner, task(request).epoch))
    };
    add(params, all().map(|(request, _)| request.workflow.as_str()).collect::<Vec<&str>>())?;
    add(params, all().map(|(_, new)| new.id.as_str()).collect::<Vec<&str>>())?;
    add(params, all().map(|(_, new)| new.params.as_str()).collect::<Vec<&str>>())?;
    add(params, all().map(|(request, _)| task(request).state.as_str()).collect::<Vec<&str>>())?;
    add(
        params,
        all()
            .map(|(request, _)| task(request).lease_until.map(Timestamp::as_millis))
            .collect::<Vec<Option<i64>>>(),
    )?;
    add(params, all().map(|(request, _)| bigint(task(request).epoch)).collect::<Vec<i64>>())?;
    add(
        params,
        all()
            .map(|(request, _)| request.lease.as_ref().map(|lease| &*lease.runner))
            .collect::<Vec<Option<&str>>>(),
    )?;
    add(
        params,
        all()
            .map(|(request, _)| request.lease.as_ref().map(|_| ids.next("log").to_string()))
            .collect::<Vec<Option<String>>>(),
    )?;
    add(
        params,
        all()
            .map(|(request, _)| told(request).map(|line| line.level.as_str()))
            .collect::<Vec<Option<&str>>>(),
    )?;
    add(
        params,
        all()
            .map(|(request, _)| told(request).map(|line| line.message))
            .collect::<Vec<Option<String>>>(),
    )
}

/// Whether the task of a new instance can be claimed by anyone.
pub(super) fn is_claimable(task: &Task) -> bool {
    task.state == TaskState::Pending
}
