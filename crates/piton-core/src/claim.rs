//! Which task runs next, and which instance is taken out of circulation.

use crate::planted::{Bug, planted};
use crate::record::{RecordedError, Task};
use crate::{InstanceStatus, Span, TaskState, Timestamp};

use crate::boundary::{InstanceChange, TaskChange, held, status_only};

/// New work that has waited this long takes its share of every claim, however much work is resuming.
pub const NEW_WORK_WAIT_MAX: Span = Span::from_millis(500);

/// The share of a claim, one in this many, that new work gets once it has waited too long.
pub const NEW_WORK_SHARE: usize = 4;

/// Claims without progress that make a run suspect of killing its process.
///
/// Every run that is in flight when a process dies has made a claim for nothing, and only one of them is to blame.
/// From here on a process advances one suspect at a time, so that **no suspect pays for what another one does.** Those
/// that are in flight beside it and above suspicion are counted with it until they are suspects, too.
pub const SUSPECT_CLAIMS: u32 = 5;

/// The error of an instance that was claimed too often without getting anywhere.
pub const QUARANTINED: &str = "Quarantined";

/// How a runner claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimRules {
    /// How long the claim lasts without renewal.
    pub lease: Span,
    /// Claims without progress after which an instance is quarantined.
    pub claims_without_progress_max: u32,
}

/// What a claim does to one candidate.
#[derive(Clone, Debug, PartialEq)]
pub enum Claim {
    /// The runner may advance it.
    Lease(Task),
    /// Someone else was faster, or it is not due.
    Skip,
    /// A pause was asked for and its runner is gone: it is paused now.
    Hold(TaskChange, InstanceChange),
    /// It killed too many runners: it ends as errored, so that it cannot starve or crash the rest.
    Quarantine(TaskChange, InstanceChange),
    /// It may be what killed its runners: it waits until a runner has no other suspect.
    SetAside(TaskChange),
}

/// Whether the task may be claimed now.
pub fn is_due(task: &Task, now: Timestamp) -> bool {
    match task.state {
        TaskState::Pending => task.run_at <= now,
        TaskState::Leased => task.lease_until.is_none_or(|until| until <= now),
        TaskState::Held => false,
        TaskState::Suspect => true,
    }
}

/// Whether a leased task is of a run that must be the only suspect of its process.
pub fn is_suspect(task: &Task) -> bool {
    task.claims_without_progress > SUSPECT_CLAIMS
}

/// Decides what claiming this task means.
pub fn claim(task: &Task, rules: &ClaimRules, now: Timestamp) -> Claim {
    if !is_due(task, now) {
        return Claim::Skip;
    }
    if task.pause_requested {
        let change = TaskChange::Put(held(task, task.run_at, task.kind));
        return Claim::Hold(change, status_only(InstanceStatus::Paused));
    }
    if task.claims_without_progress >= rules.claims_without_progress_max
        && !planted(Bug::NoQuarantine)
    {
        let claims = task.claims_without_progress;
        let error = RecordedError::new(
            QUARANTINED,
            format!(
                "claimed {claims} times without progress: its code probably kills or outlives its \
                 runner; fix it, then restart the instance"
            ),
        );
        let change = InstanceChange {
            status: InstanceStatus::Errored,
            output: None,
            error: Some(error),
            completed_at: Some(now),
        };
        return Claim::Quarantine(TaskChange::Delete, change);
    }
    if task.claims_without_progress >= SUSPECT_CLAIMS
        && task.state != TaskState::Suspect
        && !planted(Bug::SuspectsNotSetAside)
    {
        let task = Task { state: TaskState::Suspect, lease_until: None, ..*task };
        return Claim::SetAside(TaskChange::Put(task));
    }
    Claim::Lease(Task {
        state: TaskState::Leased,
        lease_until: Some(now.plus(rules.lease)),
        epoch: task.epoch + u64::from(!planted(Bug::ClaimKeepsEpoch)),
        claims_without_progress: task.claims_without_progress + 1,
        ..*task
    })
}

/// The lease on a run that was just woken, for a runner that is there to advance it. `None` if there was nothing to wake,
/// or if it is not for everybody to lease: the next claim decides about it then.
pub fn claim_woken(woken: &TaskChange, rules: &ClaimRules, now: Timestamp) -> Option<Task> {
    let TaskChange::Put(task) = woken else { return None };
    match claim(task, rules, now) {
        Claim::Lease(leased) => Some(leased),
        Claim::Skip | Claim::Hold(..) | Claim::Quarantine(..) | Claim::SetAside(_) => None,
    }
}

/// Due tasks of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// How many there are, as far as was looked.
    pub count: usize,
    /// For how long the oldest of them has been due.
    pub oldest_waited: Span,
}

/// How many of `wanted` claims go to resuming and how many to new work.
///
/// Resuming work goes first. New work is served from what is left; but once its oldest task has
/// waited [`NEW_WORK_WAIT_MAX`], a quarter of every claim is its own, so that its wait is bounded
/// while there is capacity. A claim too small to be shared goes to whoever has waited longer, so that
/// neither can starve the other.
pub fn share(wanted: usize, resuming: Due, new: Due) -> (usize, usize) {
    let starving =
        !planted(Bug::NewWorkStarves) && new.count > 0 && new.oldest_waited >= NEW_WORK_WAIT_MAX;
    let too_small = wanted < NEW_WORK_SHARE && resuming.count > 0;
    let reserved = match starving {
        true if too_small => usize::from(new.oldest_waited > resuming.oldest_waited).min(wanted),
        true => new.count.min(wanted.div_ceil(NEW_WORK_SHARE)),
        false => 0,
    };
    let resuming = resuming.count.min(wanted - reserved);
    (resuming, new.count.min(wanted - resuming))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TaskKind;

    const NOW: Timestamp = Timestamp::from_millis(10_000);
    const RULES: ClaimRules =
        ClaimRules { lease: Span::from_millis(30_000), claims_without_progress_max: 3 };

    fn pending(run_at: i64) -> Task {
        Task {
            run: 0,
            kind: TaskKind::Wake,
            state: TaskState::Pending,
            run_at: Timestamp::from_millis(run_at),
            lease_until: None,
            epoch: 4,
            claims_without_progress: 0,
            pause_requested: false,
        }
    }

    #[test]
    fn a_task_is_due_at_its_moment_and_not_before() {
        assert!(!is_due(&pending(10_001), NOW));
        assert!(is_due(&pending(10_000), NOW));
        let leased = |until| Task {
            state: TaskState::Leased,
            lease_until: Some(Timestamp::from_millis(until)),
            ..pending(0)
        };
        assert!(!is_due(&leased(10_001), NOW), "the lease still runs");
        assert!(is_due(&leased(10_000), NOW), "the lease is over");
        assert!(!is_due(&Task { state: TaskState::Held, ..pending(0) }, NOW), "paused");
        assert_eq!(claim(&pending(10_001), &RULES, NOW), Claim::Skip);
    }

    #[test]
    fn a_run_that_was_woken_is_leased_unless_something_is_wrong_with_it() {
        let rules = ClaimRules { claims_without_progress_max: 30, ..RULES };
        let leased = |task| claim_woken(&TaskChange::Put(task), &rules, NOW);
        let task = leased(pending(10_000)).expect("leased");
        assert_eq!((task.epoch, task.state, task.run_at), (5, TaskState::Leased, NOW));
        assert_eq!(claim_woken(&TaskChange::Keep, &rules, NOW), None, "nothing was woken");
        assert_eq!(leased(pending(10_001)), None, "not due");
        assert_eq!(leased(Task { pause_requested: true, ..pending(0) }), None);
        assert_eq!(leased(Task { state: TaskState::Held, ..pending(0) }), None);
        for claims_without_progress in [SUSPECT_CLAIMS, 30] {
            assert_eq!(leased(Task { claims_without_progress, ..pending(0) }), None);
        }
    }

    #[test]
    fn a_claim_moves_the_epoch_and_counts() {
        let Claim::Lease(task) = claim(&pending(0), &RULES, NOW) else { panic!("leased") };
        assert_eq!((task.epoch, task.state), (5, TaskState::Leased));
        assert_eq!(task.lease_until, Some(Timestamp::from_millis(40_000)));
        assert_eq!(task.claims_without_progress, 1);
    }

    #[test]
    fn too_many_claims_without_progress_end_in_quarantine() {
        let task = Task { claims_without_progress: 2, ..pending(0) };
        assert!(matches!(claim(&task, &RULES, NOW), Claim::Lease(_)));
        let task = Task { claims_without_progress: 3, ..pending(0) };
        let Claim::Quarantine(change, instance) = claim(&task, &RULES, NOW) else {
            panic!("quarantined")
        };
        assert_eq!(change, TaskChange::Delete);
        assert_eq!(instance.status, InstanceStatus::Errored);
        assert_eq!(instance.completed_at, Some(NOW));
        assert_eq!(instance.error.map(|e| e.name).as_deref(), Some(QUARANTINED));
    }

    #[test]
    fn a_run_that_is_claimed_often_without_progress_is_set_aside_and_claimed_from_there() {
        let rules = ClaimRules { claims_without_progress_max: 10, ..RULES };
        let task = Task { claims_without_progress: SUSPECT_CLAIMS - 1, ..pending(0) };
        let Claim::Lease(leased) = claim(&task, &rules, NOW) else { panic!("leased") };
        assert!(!is_suspect(&leased), "not yet");
        let expired = Task { claims_without_progress: SUSPECT_CLAIMS, ..leased };
        let later = NOW.plus(rules.lease);
        let Claim::SetAside(TaskChange::Put(aside)) = claim(&expired, &rules, later) else {
            panic!("set aside")
        };
        assert_eq!((aside.state, aside.lease_until), (TaskState::Suspect, None));
        assert_eq!((aside.epoch, aside.claims_without_progress), (5, SUSPECT_CLAIMS));
        let Claim::Lease(alone) = claim(&aside, &rules, later) else { panic!("leased") };
        assert_eq!((alone.state, alone.epoch), (TaskState::Leased, 6));
        assert!(is_suspect(&alone));
        let last = Task { claims_without_progress: 10, ..aside };
        assert!(matches!(claim(&last, &rules, later), Claim::Quarantine(..)));
    }

    #[test]
    fn a_pause_whose_runner_died_takes_effect_on_the_next_claim() {
        let task = Task { pause_requested: true, ..pending(0) };
        let Claim::Hold(TaskChange::Put(held), instance) = claim(&task, &RULES, NOW) else {
            panic!("held")
        };
        assert_eq!((held.state, held.pause_requested, held.epoch), (TaskState::Held, false, 4));
        assert_eq!(instance.status, InstanceStatus::Paused);
    }

    #[test]
    fn resuming_work_goes_first_and_new_work_does_not_starve() {
        let due = |count, waited_ms| Due { count, oldest_waited: Span::from_millis(waited_ms) };
        for (wanted, resuming, new, expected) in [
            (10, due(20, 0), due(20, 499), (10, 0)),
            (10, due(4, 0), due(20, 499), (4, 6)),
            (10, due(4, 0), due(3, 499), (4, 3)),
            (10, due(20, 0), due(20, 500), (7, 3)),
            (10, due(20, 0), due(1, 500), (9, 1)),
            (0, due(20, 0), due(20, 500), (0, 0)),
            (10, due(0, 0), due(20, 500), (0, 10)),
            (10, due(20, 0), due(0, 500), (10, 0)),
            (4, due(20, 900), due(20, 500), (3, 1)),
        ] {
            assert_eq!(share(wanted, resuming, new), expected, "{wanted} {resuming:?} {new:?}");
        }
    }

    #[test]
    fn a_claim_too_small_to_be_shared_goes_to_whoever_has_waited_longer() {
        let due = |count, waited_ms| Due { count, oldest_waited: Span::from_millis(waited_ms) };
        for (wanted, resuming, new, expected) in [
            (1, due(20, 700), due(20, 800), (0, 1)),
            (1, due(20, 800), due(20, 800), (1, 0)),
            (1, due(20, 0), due(20, 499), (1, 0)),
            (3, due(20, 700), due(20, 800), (2, 1)),
            (3, due(20, 900), due(20, 800), (3, 0)),
            (1, due(0, 0), due(20, 800), (0, 1)),
        ] {
            assert_eq!(share(wanted, resuming, new), expected, "{wanted} {resuming:?} {new:?}");
        }
    }

    #[test]
    fn work_that_does_not_exist_takes_nobodys_share() {
        let resuming = Due { count: 1, oldest_waited: Span::from_millis(1) };
        let none = Due { count: 0, oldest_waited: Span::from_millis(10_000) };
        assert_eq!(share(1, resuming, none), (1, 0));
    }
}
