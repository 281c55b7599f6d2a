//! What people do to an instance: pause, resume, terminate, restart, send an event.
//!
//! Each function sees the instance's status and its task as one transaction sees them, and says what
//! changes; `None` is "nothing to do". None of them moves the epoch except [`restart`]; [`terminate`]
//! deletes the task, which fences its runner just as well.

use crate::boundary::{InstanceChange, TaskChange, held, status_only};
use crate::claim::is_due;
use crate::planted::{Bug, planted};
use crate::record::{RunNumber, Task};
use crate::{Code, InstanceStatus, Refusal, TaskKind, TaskState, Timestamp};

/// A change of task and instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// What happens to the task row.
    pub task: TaskChange,
    /// What happens to the instance row, if anything.
    pub instance: Option<InstanceChange>,
}

fn refuse_terminal(verb: &str, status: InstanceStatus) -> Result<(), Refusal> {
    if !status.is_terminal() {
        return Ok(());
    }
    Err(Refusal::new(
        Code::InstanceTerminal,
        format!("cannot {verb}: the instance has ended ({status}); restart it to run it again"),
    ))
}

/// Pauses: at once if nobody is running it, otherwise at the next boundary.
///
/// # Errors
///
/// `INSTANCE_TERMINAL`.
pub fn pause(
    status: InstanceStatus,
    task: Option<&Task>,
    now: Timestamp,
) -> Result<Option<Change>, Refusal> {
    refuse_terminal("pause", status)?;
    let Some(task) = task else { return Ok(None) };
    let running = task.state == TaskState::Leased && !is_due(task, now);
    Ok(match task.state {
        TaskState::Held => None,
        TaskState::Leased if running && task.pause_requested => None,
        TaskState::Leased if running => Some(Change {
            task: TaskChange::Put(Task { pause_requested: true, ..*task }),
            instance: None,
        }),
        TaskState::Pending if planted(Bug::PausedRunClaimed) => Some(Change {
            task: TaskChange::Keep,
            instance: Some(status_only(InstanceStatus::Paused)),
        }),
        TaskState::Leased | TaskState::Pending | TaskState::Suspect => Some(Change {
            task: TaskChange::Put(held(task, task.run_at, task.kind)),
            instance: Some(status_only(InstanceStatus::Paused)),
        }),
    })
}

/// Resumes a paused instance, or takes back a pause that has not taken effect; otherwise nothing.
///
/// Timers were never frozen: the run is due now and finds out for itself what fell due meanwhile.
pub fn resume(status: InstanceStatus, task: Option<&Task>, now: Timestamp) -> Option<Change> {
    let task = task.filter(|_| !status.is_terminal())?;
    if task.pause_requested {
        let task = Task { pause_requested: false, ..*task };
        return Some(Change { task: TaskChange::Put(task), instance: None });
    }
    if task.state != TaskState::Held {
        return None;
    }
    let task = Task { state: TaskState::Pending, kind: TaskKind::Resume, run_at: now, ..*task };
    Some(Change {
        task: TaskChange::Put(task),
        instance: Some(status_only(InstanceStatus::Active)),
    })
}

/// Terminates: no boundary commits after this.
///
/// # Errors
///
/// `INSTANCE_TERMINAL`.
pub fn terminate(status: InstanceStatus, now: Timestamp) -> Result<Change, Refusal> {
    refuse_terminal("terminate", status)?;
    let instance =
        InstanceChange { completed_at: Some(now), ..status_only(InstanceStatus::Terminated) };
    let kept = planted(Bug::TerminateKeepsTask);
    let task = if kept { TaskChange::Keep } else { TaskChange::Delete };
    Ok(Change { task, instance: Some(instance) })
}

/// Starts run `run + 1`, from any status; the task returned replaces the old one, if there is one.
pub fn restart(run: RunNumber, task: Option<&Task>, now: Timestamp) -> Task {
    Task {
        run: run + 1,
        kind: TaskKind::Run,
        state: TaskState::Pending,
        run_at: now,
        lease_until: None,
        epoch: task.map_or(0, |task| task.epoch) + u64::from(!planted(Bug::RestartKeepsEpoch)),
        claims_without_progress: 0,
        pause_requested: false,
    }
}

/// The task of a new run. With a lease it belongs to the runner in whose process it was created.
pub fn first_task(now: Timestamp, lease_until: Option<Timestamp>) -> Task {
    Task {
        run: 0,
        kind: TaskKind::Run,
        state: if lease_until.is_some() { TaskState::Leased } else { TaskState::Pending },
        run_at: now,
        lease_until,
        epoch: u64::from(lease_until.is_some()),
        claims_without_progress: 0,
        pause_requested: false,
    }
}

/// Hands a lease back, so that others need not wait for it to run out: the task is due at once.
pub fn release(task: &Task, now: Timestamp) -> Change {
    if task.pause_requested {
        return Change {
            task: TaskChange::Put(held(task, task.run_at, task.kind)),
            instance: Some(status_only(InstanceStatus::Paused)),
        };
    }
    // Handing back is not a failure to make progress: the claim does not count.
    let claims_without_progress = task.claims_without_progress.saturating_sub(1);
    let run_at = task.run_at.min(now);
    let task = Task {
        state: TaskState::Pending,
        lease_until: None,
        run_at,
        claims_without_progress,
        ..*task
    };
    Change { task: TaskChange::Put(task), instance: None }
}

/// What storing an event does to the task.
///
/// A run that hibernates in a wait of that type is due at once. A run that someone is advancing is
/// left alone: its own wait registration will find the event (rule R5). A paused one buffers.
///
/// # Errors
///
/// `INSTANCE_TERMINAL`: nothing is stored.
pub fn event_arrived(
    status: InstanceStatus,
    task: Option<&Task>,
    waits_for_type: bool,
    now: Timestamp,
) -> Result<TaskChange, Refusal> {
    refuse_terminal("send an event", status)?;
    let waits_for_type = waits_for_type && !planted(Bug::WakeUpLost);
    Ok(match task {
        Some(task) if task.state == TaskState::Pending && waits_for_type && task.run_at > now => {
            TaskChange::Put(Task { run_at: now, kind: TaskKind::Wake, ..*task })
        }
        Some(_) | None => TaskChange::Keep,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use InstanceStatus::{Active, Complete, Errored, Paused, Terminated, Waiting};

    const NOW: Timestamp = Timestamp::from_millis(10_000);
    const LATER: Timestamp = Timestamp::from_millis(90_000);

    fn sleeping() -> Task {
        Task {
            run: 2,
            kind: TaskKind::Wake,
            state: TaskState::Pending,
            run_at: LATER,
            lease_until: None,
            epoch: 9,
            claims_without_progress: 0,
            pause_requested: false,
        }
    }

    fn running() -> Task {
        Task { state: TaskState::Leased, lease_until: Some(LATER), ..sleeping() }
    }

    fn paused() -> Task {
        Task { state: TaskState::Held, ..sleeping() }
    }

    #[test]
    fn a_waiting_instance_is_paused_at_once() {
        let change = pause(Waiting, Some(&sleeping()), NOW).expect("allowed").expect("changes");
        assert_eq!(change.task, TaskChange::Put(paused()));
        assert_eq!(change.instance.map(|i| i.status), Some(Paused));
    }

    #[test]
    fn a_running_instance_is_paused_at_its_next_boundary() {
        let change = pause(Active, Some(&running()), NOW).expect("allowed").expect("changes");
        let requested = Task { pause_requested: true, ..running() };
        assert_eq!(change, Change { task: TaskChange::Put(requested), instance: None });
        assert_eq!(pause(Active, Some(&requested), NOW), Ok(None), "asked twice");
        let taken_back = resume(Active, Some(&requested), NOW).expect("changes");
        assert_eq!(taken_back.task, TaskChange::Put(running()));
    }

    #[test]
    fn an_instance_whose_runner_died_is_paused_at_once() {
        let orphan = Task { lease_until: Some(NOW), ..running() };
        let change = pause(Active, Some(&orphan), NOW).expect("allowed").expect("changes");
        assert_eq!(change.instance.map(|i| i.status), Some(Paused));
    }

    #[test]
    fn pause_and_resume_are_idempotent() {
        assert_eq!(pause(Paused, Some(&paused()), NOW), Ok(None));
        assert_eq!(resume(Waiting, Some(&sleeping()), NOW), None);
        assert_eq!(resume(Active, Some(&running()), NOW), None);
        assert_eq!(resume(Complete, None, NOW), None);
    }

    #[test]
    fn resume_makes_the_run_due_now_whatever_it_waited_for() {
        let change = resume(Paused, Some(&paused()), NOW).expect("changes");
        let due = Task { kind: TaskKind::Resume, run_at: NOW, ..sleeping() };
        assert_eq!(change.task, TaskChange::Put(due));
        assert_eq!(change.instance.map(|i| i.status), Some(Active));
    }

    #[test]
    fn ended_instances_refuse_pause_terminate_and_events() {
        for status in [Complete, Errored, Terminated] {
            let code = |r: Refusal| r.code;
            assert_eq!(pause(status, None, NOW).map_err(code), Err(Code::InstanceTerminal));
            assert_eq!(terminate(status, NOW).map_err(code), Err(Code::InstanceTerminal));
            let sent = event_arrived(status, None, false, NOW);
            assert_eq!(sent.map_err(code), Err(Code::InstanceTerminal));
        }
    }

    #[test]
    fn terminate_takes_the_task_away() {
        for status in [Active, Waiting, Paused] {
            let change = terminate(status, NOW).expect("allowed");
            assert_eq!(change.task, TaskChange::Delete);
            let instance = change.instance.expect("changed");
            assert_eq!((instance.status, instance.completed_at), (Terminated, Some(NOW)));
        }
    }

    #[test]
    fn restart_fences_the_old_run_by_number_and_epoch() {
        let task = restart(2, Some(&running()), NOW);
        assert_eq!((task.run, task.epoch, task.state), (3, 10, TaskState::Pending));
        assert_eq!((task.run_at, task.kind), (NOW, TaskKind::Run));
        assert_eq!(restart(0, None, NOW).run, 1);
    }

    #[test]
    fn a_task_created_for_a_free_runner_is_leased_to_it() {
        let task = first_task(NOW, Some(LATER));
        assert_eq!((task.state, task.epoch, task.lease_until), (TaskState::Leased, 1, Some(LATER)));
        let task = first_task(NOW, None);
        assert_eq!((task.state, task.epoch, task.run_at), (TaskState::Pending, 0, NOW));
    }

    #[test]
    fn a_lease_handed_back_is_due_at_once_and_not_held_against_the_run() {
        let task = Task { claims_without_progress: 1, ..running() };
        let change = release(&task, NOW);
        let due = Task { run_at: NOW, ..sleeping() };
        assert_eq!(change, Change { task: TaskChange::Put(due), instance: None });
        let requested = Task { pause_requested: true, ..running() };
        assert_eq!(release(&requested, NOW).instance.map(|i| i.status), Some(Paused));
    }

    #[test]
    fn an_event_wakes_exactly_the_run_that_hibernates_for_it() {
        let arrived = |task: &Task, waits| event_arrived(Waiting, Some(task), waits, NOW);
        let woken = Task { run_at: NOW, ..sleeping() };
        assert_eq!(arrived(&sleeping(), true), Ok(TaskChange::Put(woken)));
        assert_eq!(arrived(&sleeping(), false), Ok(TaskChange::Keep), "waits for something else");
        assert_eq!(arrived(&running(), true), Ok(TaskChange::Keep), "its runner will look");
        assert_eq!(arrived(&paused(), true), Ok(TaskChange::Keep), "buffered until resumed");
        assert_eq!(arrived(&woken, true), Ok(TaskChange::Keep), "due already");
    }

    #[test]
    fn a_run_that_an_event_wakes_is_woken_and_not_retried() {
        let retrying = Task { kind: TaskKind::Retry, ..sleeping() };
        let change = event_arrived(Waiting, Some(&retrying), true, NOW);
        let Ok(TaskChange::Put(task)) = change else { panic!("{change:?}") };
        assert_eq!((task.kind, task.run_at), (TaskKind::Wake, NOW));
    }
}
