//! What a boundary does: the guard that fences stale runners, how a wait for an event is settled, and
//! what becomes of the run.
//!
//! A store asks, inside one transaction and in this order: [`guard`] with the task row it locked;
//! [`settle_wait`] for every wait, with the oldest matching event; [`after`] for the task and the
//! instance. It then applies what it was told. Everything here is checked before the first write.

use crate::planted::{Bug, planted};
use crate::record::{EventRecord, RecordedError, RunKey, StepRecord, Task};
use crate::{InstanceStatus, Json, StepStatus, TaskKind, TaskState, Timestamp};

/// The name of the error of a wait that timed out.
pub const WAIT_TIMEOUT: &str = "WaitForEventTimeout";

/// The writer is not, or no longer, the holder of the run. It must drop the run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fenced;

/// Lets a runner's write pass, or fences it (rule R3).
///
/// A run that ended has no task row, so that terminated and completed runs fence everyone. Only a
/// leased task accepts writes: a lease that was handed back or taken by a pause is over.
///
/// # Errors
///
/// [`Fenced`] if the task is gone, of another run, of another epoch or not leased.
pub fn guard(task: Option<&Task>, key: &RunKey) -> Result<Task, Fenced> {
    match task {
        Some(task)
            if (task.run == key.run || runs_not_compared())
                && (task.epoch == key.epoch || planted(Bug::NoEpochCheck))
                && task.state == TaskState::Leased =>
        {
            Ok(*task)
        }
        _ => Err(Fenced),
    }
}

fn runs_not_compared() -> bool {
    planted(Bug::NoRunCheck) || planted(Bug::RestartKeepsEpoch)
}

/// What the runner wants to become of the run with this boundary.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// More steps follow in this pass.
    Continue {
        /// Step bodies are running: a pause waits until they have finished.
        bodies_running: bool,
    },
    /// Nothing can progress before `run_at` (or an event): hibernate.
    Suspend {
        /// The earliest moment something falls due.
        run_at: Timestamp,
        /// What falls due then.
        kind: TaskKind,
    },
    /// The workflow returned.
    Complete {
        /// What it returned.
        output: Json,
    },
    /// The workflow failed.
    Fail {
        /// Why.
        error: RecordedError,
    },
}

/// What becomes of a wait for an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Wait {
    /// Record it as waiting, or leave it so.
    Open,
    /// It took this event: mark the event delivered and record the step.
    Delivered(StepRecord),
    /// It timed out: record the step.
    TimedOut(StepRecord),
}

/// Whether a wait of this boundary may get its outcome.
///
/// The code may drop its other waits as soon as it sees one outcome, and must not lose an event to a wait
/// that it drops: so a boundary settles one wait at most, and none beside a step transaction, whose result
/// comes first. What is held back is looked at again with the next boundary.
pub fn may_settle_wait(has_mutations: bool, settled: usize) -> bool {
    !has_mutations && settled == 0
}

/// By when an event must have arrived to count for a wait; `None` while the wait is open.
///
/// Until the deadline has passed every stored event counts, so that a clock set back cannot hide one.
pub fn arrived_by(wait: &StepRecord, now: Timestamp) -> Option<Timestamp> {
    wait.wake_at.filter(|deadline| now >= *deadline && !planted(Bug::DeadlineIgnored))
}

/// Settles a wait against the oldest undelivered event of its type that arrived by its deadline.
///
/// An event that arrived in time counts even when it is processed after the deadline; exactly one of
/// event and timeout happens because both are decided here, under the instance's lock (rule R5).
///
/// `seq` is the number the outcome is recorded under.
pub fn settle_wait(
    wait: &StepRecord,
    event: Option<&EventRecord>,
    seq: u32,
    now: Timestamp,
) -> Wait {
    let too_late = planted(Bug::TimeoutBeatsEvent) && wait.wake_at.is_some_and(|at| now >= at);
    let event = event.filter(|_| !too_late);
    let settled = |status| StepRecord { seq, status, updated_at: now, ..wait.clone() };
    if let Some(event) = event {
        let result = event_result(event);
        return Wait::Delivered(StepRecord {
            result: Some(result),
            ..settled(StepStatus::Completed)
        });
    }
    match wait.wake_at {
        Some(deadline) if now >= deadline => {
            let event_type = wait.event_type.as_ref().map_or("", |t| t.as_str());
            let waited = deadline.since(wait.started_at);
            let message = format!("no event of type `{event_type}` arrived within {waited}");
            let error = RecordedError::new(WAIT_TIMEOUT, message);
            Wait::TimedOut(StepRecord { error: Some(error), ..settled(StepStatus::Errored) })
        }
        Some(_) | None => Wait::Open,
    }
}

/// What a wait returns: the event as `{"type", "payload", "timestamp"}`.
fn event_result(event: &EventRecord) -> Json {
    // The type consists of letters, digits, `_` and `-` only: nothing to escape.
    Json::from_valid_text(format!(
        r#"{{"type":"{}","payload":{},"timestamp":{}}}"#,
        event.event_type,
        event.payload.as_str(),
        event.created_at.as_millis(),
    ))
}

/// How the task row changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskChange {
    /// Not at all: the common case, a step in the middle of a pass costs no task write.
    Keep,
    /// The row becomes this.
    Put(Task),
    /// The run ended.
    Delete,
}

/// How the instance row changes.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceChange {
    /// The new status.
    pub status: InstanceStatus,
    /// The output of a run that completed.
    pub output: Option<Json>,
    /// The error of a run that failed.
    pub error: Option<RecordedError>,
    /// Set when the run ended.
    pub completed_at: Option<Timestamp>,
}

/// What the runner is told after the commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Still yours: go on.
    Continue,
    /// Still yours, but a pause was asked for: start no new step.
    Drain,
    /// The run hibernates; the lease is over.
    Suspended,
    /// The instance is paused; the lease is over.
    Paused,
    /// The run ended; the lease is over.
    Ended,
}

/// What a boundary has written by the time the run's fate is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Steps were recorded. A boundary that only looks or logs is no progress.
    pub steps: bool,
    /// A wait of this very boundary got its outcome, or was held back beside a transaction: the run has, or
    /// may have, something to go on with and does not suspend.
    pub wait_settled: bool,
}

/// Decides what the boundary does to the task and the instance.
pub fn after(
    task: &Task,
    next: &Next,
    written: Written,
    now: Timestamp,
) -> (TaskChange, Option<InstanceChange>, After) {
    let Written { steps, wait_settled } = written;
    let progressed = Task { claims_without_progress: 0, ..*task };
    let keep = if progressed == *task || !(steps || wait_settled) {
        TaskChange::Keep
    } else {
        TaskChange::Put(progressed)
    };
    let ended = |status, output, error| {
        let change = InstanceChange { status, output, error, completed_at: Some(now) };
        (TaskChange::Delete, Some(change), After::Ended)
    };
    match next {
        Next::Complete { output } => ended(InstanceStatus::Complete, Some(output.clone()), None),
        Next::Fail { error } => ended(InstanceStatus::Errored, None, Some(error.clone())),
        Next::Continue { bodies_running: true } if task.pause_requested => {
            (keep, None, After::Drain)
        }
        Next::Continue { bodies_running: false } if task.pause_requested => {
            pause_now(&progressed, now, TaskKind::Resume)
        }
        Next::Suspend { run_at, kind } if task.pause_requested && !planted(Bug::PauseForgotten) => {
            pause_now(&progressed, *run_at, *kind)
        }
        Next::Continue { .. } => (keep, None, After::Continue),
        Next::Suspend { .. } if wait_settled => (keep, None, After::Continue),
        Next::Suspend { run_at, kind } => {
            let task = Task {
                state: TaskState::Pending,
                run_at: *run_at,
                kind: *kind,
                lease_until: None,
                ..progressed
            };
            (TaskChange::Put(task), Some(status_only(InstanceStatus::Waiting)), After::Suspended)
        }
    }
}

fn pause_now(
    task: &Task,
    run_at: Timestamp,
    kind: TaskKind,
) -> (TaskChange, Option<InstanceChange>, After) {
    (
        TaskChange::Put(held(task, run_at, kind)),
        Some(status_only(InstanceStatus::Paused)),
        After::Paused,
    )
}

/// The task of a paused instance: outside the index that claims look at.
pub(crate) fn held(task: &Task, run_at: Timestamp, kind: TaskKind) -> Task {
    Task {
        state: TaskState::Held,
        run_at,
        kind,
        lease_until: None,
        pause_requested: false,
        ..*task
    }
}

pub(crate) fn status_only(status: InstanceStatus) -> InstanceChange {
    InstanceChange { status, output: None, error: None, completed_at: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::InstanceKey;
    use crate::{EventType, StepName, StepType};

    const NOW: Timestamp = Timestamp::from_millis(10_000);
    const LATER: Timestamp = Timestamp::from_millis(60_000);
    const STEP: Written = Written { steps: true, wait_settled: false };
    const SETTLED: Written = Written { steps: true, wait_settled: true };

    fn leased() -> Task {
        Task {
            run: 1,
            kind: TaskKind::Wake,
            state: TaskState::Leased,
            run_at: Timestamp::from_millis(0),
            lease_until: Some(LATER),
            epoch: 7,
            claims_without_progress: 0,
            pause_requested: false,
        }
    }

    fn key(run: u32, epoch: u64) -> RunKey {
        RunKey { instance: InstanceKey(1), run, epoch }
    }

    fn suspend() -> Next {
        Next::Suspend { run_at: LATER, kind: TaskKind::Wake }
    }

    #[test]
    fn only_the_holder_of_a_live_lease_may_write() {
        assert_eq!(guard(Some(&leased()), &key(1, 7)), Ok(leased()));
        assert_eq!(guard(None, &key(1, 7)), Err(Fenced), "the run ended");
        assert_eq!(guard(Some(&leased()), &key(0, 7)), Err(Fenced), "another run");
        assert_eq!(guard(Some(&leased()), &key(1, 6)), Err(Fenced), "claimed by another since");
        assert_eq!(guard(Some(&leased()), &key(1, 8)), Err(Fenced), "an epoch not yet given");
        for state in [TaskState::Pending, TaskState::Held, TaskState::Suspect] {
            let task = Task { state, ..leased() };
            assert_eq!(guard(Some(&task), &key(1, 7)), Err(Fenced), "{state}");
        }
    }

    #[test]
    fn a_step_in_the_middle_of_a_pass_touches_no_other_row() {
        let next = Next::Continue { bodies_running: false };
        assert_eq!(after(&leased(), &next, STEP, NOW), (TaskChange::Keep, None, After::Continue));
    }

    #[test]
    fn the_first_boundary_after_a_claim_counts_as_progress() {
        let task = Task { claims_without_progress: 3, ..leased() };
        let next = Next::Continue { bodies_running: true };
        assert_eq!(after(&task, &next, STEP, NOW).0, TaskChange::Put(leased()));
        let look = Written { steps: false, wait_settled: false };
        assert_eq!(after(&task, &next, look, NOW).0, TaskChange::Keep, "looking is no progress");
    }

    #[test]
    fn suspension_hands_the_lease_back_and_keeps_the_epoch() {
        let (task, instance, told) = after(&leased(), &suspend(), STEP, NOW);
        let TaskChange::Put(task) = task else { panic!("rescheduled") };
        assert_eq!((task.state, task.run_at, task.epoch), (TaskState::Pending, LATER, 7));
        assert_eq!(task.lease_until, None);
        assert_eq!(instance.map(|i| i.status), Some(InstanceStatus::Waiting));
        assert_eq!(told, After::Suspended);
    }

    #[test]
    fn a_run_whose_wait_was_settled_in_the_same_transaction_does_not_suspend() {
        assert_eq!(
            after(&leased(), &suspend(), SETTLED, NOW),
            (TaskChange::Keep, None, After::Continue)
        );
    }

    #[test]
    fn a_requested_pause_waits_for_running_bodies_and_no_longer() {
        let task = Task { pause_requested: true, ..leased() };
        let running = Next::Continue { bodies_running: true };
        assert_eq!(after(&task, &running, STEP, NOW).2, After::Drain);
        for next in [Next::Continue { bodies_running: false }, suspend()] {
            for written in [STEP, SETTLED] {
                let (change, instance, told) = after(&task, &next, written, NOW);
                let TaskChange::Put(held) = change else { panic!("held") };
                assert_eq!((held.state, held.pause_requested), (TaskState::Held, false));
                assert_eq!(instance.map(|i| i.status), Some(InstanceStatus::Paused));
                assert_eq!(told, After::Paused);
            }
        }
    }

    #[test]
    fn a_run_that_ends_while_a_pause_is_asked_for_ends() {
        let task = Task { pause_requested: true, ..leased() };
        let (change, instance, told) =
            after(&task, &Next::Complete { output: Json::null() }, STEP, NOW);
        assert_eq!((change, told), (TaskChange::Delete, After::Ended));
        let instance = instance.expect("changed");
        assert_eq!(instance.status, InstanceStatus::Complete);
        assert_eq!((instance.output, instance.completed_at), (Some(Json::null()), Some(NOW)));
        let error = RecordedError::new("Error", "no");
        let (change, instance, _) =
            after(&leased(), &Next::Fail { error: error.clone() }, STEP, NOW);
        assert_eq!(change, TaskChange::Delete);
        let instance = instance.expect("changed");
        assert_eq!((instance.status, instance.error), (InstanceStatus::Errored, Some(error)));
        assert_eq!(instance.completed_at, Some(NOW));
    }

    fn wait(deadline: i64) -> StepRecord {
        let name = StepName::from_stored("approval");
        StepRecord {
            wake_at: Some(Timestamp::from_millis(deadline)),
            event_type: Some(EventType::from_stored("approved")),
            ..StepRecord::new(name, StepType::WaitForEvent, 3, Timestamp::from_millis(0))
        }
    }

    #[test]
    fn one_wait_per_boundary_and_none_beside_a_transaction() {
        assert!(may_settle_wait(false, 0));
        assert!(!may_settle_wait(false, 1));
        assert!(!may_settle_wait(true, 0));
    }

    #[test]
    fn an_open_wait_takes_any_event_and_one_past_its_deadline_those_in_time() {
        assert_eq!(arrived_by(&wait(10_001), NOW), None);
        assert_eq!(arrived_by(&wait(10_000), NOW), Some(NOW));
    }

    #[test]
    fn a_wait_has_exactly_one_outcome() {
        let event = EventRecord {
            id: "evt_1".into(),
            run: 1,
            seq: 4,
            event_type: EventType::from_stored("approved"),
            payload: Json::from_valid_text("[1]"),
            created_at: Timestamp::from_millis(5),
            delivered_at: None,
            consumed_by: None,
        };
        let Wait::Delivered(step) = settle_wait(&wait(10_000), Some(&event), 9, NOW) else {
            panic!("an event that arrived in time wins over a deadline that has passed");
        };
        assert_eq!((step.position, step.seq, step.status), (3, 9, StepStatus::Completed));
        let json = step.result.expect("result");
        assert_eq!(json.as_str(), r#"{"type":"approved","payload":[1],"timestamp":5}"#);

        assert_eq!(settle_wait(&wait(10_001), None, 9, NOW), Wait::Open);
        let Wait::TimedOut(step) = settle_wait(&wait(10_000), None, 9, NOW) else {
            panic!("due at its very millisecond");
        };
        assert_eq!((step.seq, step.status), (9, StepStatus::Errored));
        let error = step.error.expect("error");
        assert_eq!(error.name, WAIT_TIMEOUT);
        assert_eq!(error.message, "no event of type `approved` arrived within 10 seconds");
    }

    #[test]
    fn running_bodies_drain_only_if_a_pause_was_asked_for() {
        let running = Next::Continue { bodies_running: true };
        assert_eq!(after(&leased(), &running, STEP, NOW).2, After::Continue);
    }

    #[test]
    fn a_suspension_or_pause_keeps_the_moment_and_the_reason_and_ends_the_lease() {
        let next = Next::Suspend { run_at: LATER, kind: TaskKind::Retry };
        for pause_requested in [false, true] {
            let task = Task { pause_requested, ..leased() };
            let TaskChange::Put(task) = after(&task, &next, STEP, NOW).0 else { panic!("put") };
            assert_eq!((task.run_at, task.kind), (LATER, TaskKind::Retry));
            assert_eq!(task.lease_until, None);
        }
    }

    #[test]
    fn a_settled_wait_says_when_it_was_settled() {
        let Wait::TimedOut(step) = settle_wait(&wait(9_000), None, 4, NOW) else { panic!("late") };
        assert_eq!((step.updated_at, step.seq, step.position), (NOW, 4, 3));
    }
}
