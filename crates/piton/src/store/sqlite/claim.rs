//! Claiming due tasks.
//!
//! The candidates of a workflow come from the two indexes of `piton_task` alone: what is paused, sleeping,
//! finished or of a workflow nobody asked for is never looked at.

use std::sync::Arc;

use piton_core::claim::{self, Claim, ClaimRules, Due};
use piton_core::hook::EngineNews;
use piton_core::record::{InstanceKey, Task};
use piton_core::{Span, TaskState, WorkflowName, story};

use super::batch::Batch;
use super::task::Candidate;
use super::trouble::{Outcome, Trouble};
use super::{hook, instance, log, task};
use crate::store::{ClaimAnswer, ClaimRequest, ClaimedRun, Hint};

/// Tasks that one claim may look at: it bounds how long the writer works for one runner.
const CLAIM_MAX: usize = 1024;

/// Claims for a runner, in the order of `piton_core::claim`.
///
/// Tasks that are held or quarantined instead of claimed make room for the next ones, so that they delay nobody.
pub(super) fn claim(batch: &mut Batch<'_, '_>, request: &ClaimRequest) -> Outcome<ClaimAnswer> {
    let mut claimed = Vec::new();
    let mut left = CLAIM_MAX;
    // A suspect must not starve, however much other work there is.
    let waits = request.suspects && task::suspect(batch.db, &request.workflows)?.is_some();
    let room = request.wanted.saturating_sub(usize::from(waits));
    loop {
        let candidates = choose(batch, request, left.min(room - claimed.len()))?;
        let (before, looked_at) = (claimed.len(), candidates.len());
        take_all(batch, candidates, request, &mut claimed)?;
        left -= looked_at;
        if claimed.len() - before == looked_at || left == 0 {
            break;
        }
    }
    while request.suspects && claimed.len() < request.wanted {
        let Some(suspect) = task::suspect(batch.db, &request.workflows)? else { break };
        let before = claimed.len();
        take_all(batch, vec![suspect], request, &mut claimed)?;
        if claimed.len() > before {
            break;
        }
    }
    answer(batch, request, claimed)
}

/// Claims one instance, if it is due.
pub(super) fn claim_instance(
    batch: &mut Batch<'_, '_>,
    key: InstanceKey,
    request: &ClaimRequest,
) -> Outcome<ClaimAnswer> {
    let mut claimed = Vec::new();
    let candidate = Candidate { run_at: batch.now, key, workflow: 0 };
    let state = task::get(batch, key)?.map(|task| task.state);
    if request.suspects || state != Some(TaskState::Suspect) {
        take_all(batch, vec![candidate], request, &mut claimed)?;
    }
    // It may have been set aside by this very claim.
    if request.suspects && claimed.is_empty() {
        take_all(batch, vec![candidate], request, &mut claimed)?;
    }
    answer(batch, request, claimed)
}

fn answer(
    batch: &mut Batch<'_, '_>,
    request: &ClaimRequest,
    claimed: Vec<ClaimedRun>,
) -> Outcome<ClaimAnswer> {
    let next = task::next_claimable_at(batch.db, &request.workflows)?;
    Ok(ClaimAnswer { now: batch.now, claimed, next_due_at: next.map(|at| at.max(batch.now)) })
}

fn take_all(
    batch: &mut Batch<'_, '_>,
    candidates: Vec<Candidate>,
    request: &ClaimRequest,
    claimed: &mut Vec<ClaimedRun>,
) -> Outcome<()> {
    for candidate in candidates {
        let workflow = &request.workflows[candidate.workflow];
        let taken = take(batch, candidate, workflow, &request.rules, &request.runner);
        match taken {
            Ok(Some(run)) => claimed.push(run),
            Ok(None) => {}
            // One row that cannot be read must not keep the others from running.
            Err(Trouble::Answer(error)) => {
                tracing::error!(%error, "a task cannot be claimed and is set aside");
                task::set_aside(batch, candidate.key)?;
            }
            Err(Trouble::Batch(failure)) => return Err(Trouble::Batch(failure)),
        }
    }
    Ok(())
}

/// Resuming work first, then new work, each oldest first.
fn choose(
    batch: &mut Batch<'_, '_>,
    request: &ClaimRequest,
    wanted: usize,
) -> Outcome<Vec<Candidate>> {
    let now = batch.now;
    if wanted == 0 {
        return Ok(Vec::new());
    }
    let (mut resuming, mut new) = (Vec::new(), Vec::new());
    for workflow in request.workflows.iter().enumerate() {
        resuming.extend(task::due(batch.db, workflow, true, now, wanted)?);
        resuming.extend(task::expired(batch.db, workflow, now, wanted)?);
        new.extend(task::due(batch.db, workflow, false, now, wanted)?);
    }
    resuming.sort_unstable();
    new.sort_unstable();
    let class = |tasks: &[Candidate]| Due {
        count: tasks.len(),
        oldest_waited: tasks.first().map_or(Span::ZERO, |oldest| now.since(oldest.run_at)),
    };
    let (resuming_share, new_share) = claim::share(wanted, class(&resuming), class(&new));
    resuming.truncate(resuming_share);
    resuming.extend(new.drain(..new_share));
    Ok(resuming)
}

/// `None` if the rules do something else with the task than to lease it. Reads everything before it writes.
fn take(
    batch: &mut Batch<'_, '_>,
    candidate: Candidate,
    workflow: &WorkflowName,
    rules: &ClaimRules,
    runner: &Arc<str>,
) -> Outcome<Option<ClaimedRun>> {
    let key = candidate.key;
    let Some(before) = task::get(batch, key)? else {
        return Ok(None);
    };
    match claim::claim(&before, rules, batch.now) {
        Claim::Skip => {}
        Claim::Hold(change, paused) => {
            task::apply(batch, key, &before, &change)?;
            instance::apply(batch.db, key, &paused, batch.now)?;
            log::tell(batch, key, before.run, story::paused())?;
        }
        Claim::Quarantine(change, ended) => {
            task::apply(batch, key, &before, &change)?;
            instance::apply(batch.db, key, &ended, batch.now)?;
            if let Some(error) = &ended.error {
                log::tell(batch, key, before.run, story::quarantined(error))?;
            }
            batch.hints.push(Hint::Ended(key));
            hook::news_by_key(batch, key, || {
                Some(EngineNews::errored(before.run, ended.error.as_ref()))
            })?;
        }
        Claim::SetAside(change) => task::apply(batch, key, &before, &change)?,
        Claim::Lease(task) => {
            return lease(batch, key, workflow, &before, task, runner).map(Some);
        }
    }
    Ok(None)
}

/// Leases a task, makes its instance active and tells the log.
pub(super) fn lease(
    batch: &mut Batch<'_, '_>,
    key: InstanceKey,
    workflow: &WorkflowName,
    before: &Task,
    task: Task,
    runner: &Arc<str>,
) -> Outcome<ClaimedRun> {
    let to_run = instance::wake(batch.db, key, batch.now)?;
    task::lease(batch, key, &task, runner)?;
    let line = match before.state {
        TaskState::Leased => story::taken_over(runner, task.epoch),
        TaskState::Pending | TaskState::Held | TaskState::Suspect => {
            story::claimed(runner, task.epoch)
        }
    };
    log::tell(batch, key, task.run, line)?;
    Ok(ClaimedRun {
        workflow: workflow.clone(),
        id: to_run.id,
        params: to_run.params,
        created_at: to_run.created_at,
        key,
        task,
    })
}
