//! Hooks: durable callbacks that run at least once after their transaction has committed.
//!
//! A hook has one moment, [`HookRecord::due_at`]: when it may be taken next. While it is pending that is its start
//! or its retry; while somebody processes it, the end of the lease; if he handed it back, that moment; once it is finished
//! there is none. So a hook whose
//! process died falls due by itself, and an index for each [`Lane`] finds everything there is to do.
//!
//! Every claim counts as an attempt and raises the epoch, and only the holder of the newest epoch may say what became
//! of it. **An attempt that was cut off proves nothing**: that a handler begins is not recorded, which would cost a second
//! commit per hook, so the handler may never have begun. Hence the policy counts failures that were recorded, and no
//! lost attempts. What bounds a handler that kills its process is [`HookRecord::claims`], raised by every claim, taken
//! back by a holder that hands the hook back, and cleared by every other outcome: past [`SUSPECT_CLAIMS`] a process has
//! one such hook in hand at a time, and past [`LOST_CLAIMS_MAX`] the hook has failed, whatever its policy says.

use std::sync::Arc;

use crate::boundary::{After, Next, TaskChange};
use crate::planted::{Bug, planted};
use crate::record::RecordedError;
use crate::{
    Code, HookName, HookNamespace, HookStatus, Json, Refusal, Retries, Span, TaskKind, TaskState,
    Timestamp,
};

/// The namespace of hooks that name none.
pub const NAMESPACE_DEFAULT: &str = "app";

/// Claims without an outcome that make a hook suspect of killing its process.
///
/// Every hook that is in hand when a process dies was claimed for nothing, and only one of them is to blame. From here on
/// a process has one suspect in hand at a time, so that **no suspect pays for what another one does.** Fewer, and an
/// ordinary crash would have hundreds of hooks wait for each other.
pub const SUSPECT_CLAIMS: u32 = 3;

/// Claims without an outcome after which a hook has failed: three beside others, three as a suspect.
pub const LOST_CLAIMS_MAX: u32 = 6;

/// The longest delay before a retry.
pub const RETRY_DELAY_MAX: Span = Span::from_days(365);

/// The name of the error of a hook whose process died too often.
pub const HOOK_LOST: &str = "HookLost";

/// The name of the error of a hook whose row cannot be read.
pub const HOOK_DAMAGED: &str = "HookDamaged";

/// No hook waits longer than until this moment, the last of the year 9999: later ones have no common notation.
pub const PROCESS_AT_MAX: Timestamp = Timestamp::from_millis(253_402_300_799_999);

/// A hook on its way into the database.
#[derive(Clone, Debug, PartialEq)]
pub struct NewHook {
    /// Its id, which is also its idempotency key.
    pub id: Arc<str>,
    /// Who processes it.
    pub namespace: HookNamespace,
    /// Which handler runs.
    pub name: HookName,
    /// What the handler is given.
    pub payload: Json,
    /// Not before this moment; a moment that has passed is now.
    pub process_at: Option<Timestamp>,
    /// What happens after a failure.
    pub retries: Retries,
}

impl NewHook {
    /// When the first attempt may begin.
    pub fn first_due_at(&self, now: Timestamp) -> Timestamp {
        self.process_at.map_or(now, |at| at.max(now))
    }

    /// The row of a hook that is stored now.
    pub fn into_record(self, now: Timestamp) -> HookRecord {
        HookRecord {
            due_at: Some(self.first_due_at(now)),
            id: self.id,
            namespace: self.namespace,
            name: self.name,
            payload: self.payload,
            status: HookStatus::Pending,
            attempts: 0,
            failures: 0,
            claims: 0,
            retries: self.retries,
            epoch: 0,
            lease_owner: None,
            created_at: now,
            updated_at: now,
            last_attempt_at: None,
            error: None,
        }
    }
}

/// A hook as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct HookRecord {
    /// Its id: `hook_` and a ULID. The same on every attempt, so that it is the idempotency key too.
    pub id: Arc<str>,
    /// Who processes it.
    pub namespace: HookNamespace,
    /// Which handler runs.
    pub name: HookName,
    /// What the handler is given.
    pub payload: Json,
    /// Where it stands.
    pub status: HookStatus,
    /// How often it was taken since it was triggered or retried by hand.
    pub attempts: u32,
    /// How many of these attempts are known to have failed: what its policy counts.
    pub failures: u32,
    /// How often it was taken since something last became of it, other than to be handed back.
    pub claims: u32,
    /// What happens after a failure.
    pub retries: Retries,
    /// When it may be taken next: its start, its retry, or the end of the lease. `None` once it is finished.
    pub due_at: Option<Timestamp>,
    /// Grows with every claim; what is said under an older one is not believed.
    pub epoch: u64,
    /// Who processes it, for people; `None` if nobody has it in hand.
    pub lease_owner: Option<Arc<str>>,
    /// When it was stored.
    pub created_at: Timestamp,
    /// When it last changed: when it was finished, once it is.
    pub updated_at: Timestamp,
    /// When it was last taken.
    pub last_attempt_at: Option<Timestamp>,
    /// Why the last attempt failed.
    pub error: Option<RecordedError>,
}

impl HookRecord {
    /// Stands in a list for a row that cannot be read.
    pub fn damaged(
        id: Arc<str>,
        namespace: HookNamespace,
        name: HookName,
        why: impl Into<String>,
    ) -> Self {
        let at = Timestamp::from_millis(0);
        let retries = Retries::none();
        let payload = Json::null();
        let new = NewHook { id, namespace, name, payload, process_at: None, retries };
        HookRecord {
            status: HookStatus::Failed,
            due_at: None,
            error: Some(RecordedError::new(HOOK_DAMAGED, why)),
            ..new.into_record(at)
        }
    }

    /// What the holder must prove.
    pub fn key(&self) -> HookKey {
        HookKey { id: Arc::clone(&self.id), epoch: self.epoch }
    }
}

/// Which hook, and under which claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HookKey {
    /// The hook.
    pub id: Arc<str>,
    /// The epoch its claim was given.
    pub epoch: u64,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub enum HookOutcome {
    /// The handler returned.
    Done,
    /// The handler failed, panicked or took too long.
    Failed {
        /// Why.
        error: RecordedError,
        /// Whether another attempt may help.
        retryable: bool,
    },
    /// It was cut off on purpose, and its holder hands it back.
    Released,
}

/// What is taken by itself: stores find the hooks of each lane by an index of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// They may have killed their processes. At most one is taken at a time, and first.
    Suspect,
    /// In hand; due when their process died, or handed them back after others had died. They are taken before what has not been waiting for that long.
    InHand,
    /// Waiting for their time.
    Pending,
}

/// Where a hook that can be taken, now or later, is found; `None` if it is finished.
pub fn lane(hook: &HookRecord) -> Option<Lane> {
    match hook.status {
        HookStatus::Pending => Some(Lane::Pending),
        HookStatus::Processing if hook.claims >= SUSPECT_CLAIMS => Some(Lane::Suspect),
        HookStatus::Processing => Some(Lane::InHand),
        HookStatus::Completed | HookStatus::Failed => None,
    }
}

/// Whether a hook that was taken must be the only suspect its process has in hand.
pub fn is_suspect(taken: &HookRecord) -> bool {
    taken.claims > SUSPECT_CLAIMS
}

/// Takes a hook that is due: the row afterwards. One whose process died too often is given up instead, and its
/// status says so.
///
/// `None` if it is not due.
pub fn claim(
    hook: &HookRecord,
    owner: &Arc<str>,
    lease: Span,
    now: Timestamp,
) -> Option<HookRecord> {
    let due = hook.due_at.is_some_and(|at| at <= now || planted(Bug::HookEarly));
    if !due {
        return None;
    }
    // One that waits was settled or triggered since: whatever it went through before, nobody lost it.
    let lost = hook.status == HookStatus::Processing && hook.claims >= LOST_CLAIMS_MAX;
    if lost && !planted(Bug::HookNeverGivenUp) {
        let claims = hook.claims;
        let message = format!(
            "taken {claims} times in a row without an outcome: its handler probably kills or blocks its process; \
             fix it, then retry the hook"
        );
        return Some(HookRecord {
            status: HookStatus::Failed,
            due_at: None,
            lease_owner: None,
            updated_at: now,
            error: Some(RecordedError::new(HOOK_LOST, message)),
            ..hook.clone()
        });
    }
    Some(HookRecord {
        status: HookStatus::Processing,
        attempts: hook.attempts.saturating_add(1),
        claims: hook.claims + 1,
        due_at: Some(now.plus(lease)),
        epoch: hook.epoch + 1,
        lease_owner: Some(Arc::clone(owner)),
        updated_at: now,
        last_attempt_at: Some(now),
        ..hook.clone()
    })
}

/// Whether the hook is still in the hands of whoever holds `key`.
pub fn is_held(hook: &HookRecord, key: &HookKey) -> bool {
    hook.status == HookStatus::Processing
        && hook.lease_owner.is_some()
        && (hook.epoch == key.epoch || planted(Bug::HookEpochIgnored))
}

/// What becomes of a hook whose attempt ended: done, to be tried again, or failed for good.
///
/// The delay counts from now, the moment at which the failure is recorded.
pub fn settle(hook: &HookRecord, outcome: &HookOutcome, now: Timestamp) -> HookRecord {
    let mut failures = hook.failures;
    let (status, due_at, error) = match outcome {
        HookOutcome::Done => (HookStatus::Completed, None, None),
        HookOutcome::Released => return release(hook, now),
        HookOutcome::Failed { error, retryable } => {
            failures = failures.saturating_add(1);
            let delay = hook.retries.delay_after(failures, RETRY_DELAY_MAX);
            match delay.filter(|_| *retryable && !planted(Bug::HookFailureForgotten)) {
                Some(delay) => (HookStatus::Pending, Some(now.plus(delay)), Some(error.clone())),
                None => (HookStatus::Failed, None, Some(error.clone())),
            }
        }
    };
    HookRecord {
        status,
        due_at,
        error,
        failures,
        claims: 0,
        lease_owner: None,
        updated_at: now,
        ..hook.clone()
    }
}

/// Hands a hook back: it is due at once, and the claim does not count.
///
/// That its handler was cut off on purpose speaks neither for nor against it, so the claims before this one that came to
/// nothing still count. Were they forgotten, a handler that kills its process would start anew with every shutdown that
/// finds it in hand, among others that pay for it. So a hook with such claims stays in its lane, in nobody's hands.
fn release(hook: &HookRecord, now: Timestamp) -> HookRecord {
    let claims = hook.claims.saturating_sub(1);
    let status = if claims == 0 { HookStatus::Pending } else { HookStatus::Processing };
    HookRecord {
        status,
        due_at: Some(now),
        claims,
        lease_owner: None,
        updated_at: now,
        ..hook.clone()
    }
}

/// Makes a hook due now: one that failed starts anew with all its attempts, one that waits need not wait any longer.
///
/// # Errors
///
/// `HOOK_NOT_RETRIABLE` if it is done, or processing: somebody has it in hand, or it is due already.
pub fn retry(hook: &HookRecord, now: Timestamp) -> Result<HookRecord, Refusal> {
    let (attempts, failures) = match hook.status {
        HookStatus::Failed => (0, 0),
        HookStatus::Pending => (hook.attempts, hook.failures),
        HookStatus::Processing | HookStatus::Completed => {
            let (id, status) = (&hook.id, hook.status);
            let message = format!("hook {id} is {status}: only a failed or pending one is retried");
            return Err(Refusal::new(Code::HookNotRetriable, message));
        }
    };
    let due_at = Some(hook.due_at.map_or(now, |at| at.min(now)));
    let status = HookStatus::Pending;
    Ok(HookRecord {
        status,
        attempts,
        failures,
        claims: 0,
        due_at,
        updated_at: now,
        ..hook.clone()
    })
}

/// What the engine itself can tell of by hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EngineHook {
    /// A run can be advanced, now or at a moment to come.
    WorkflowEnqueued,
    /// A run completed.
    InstanceCompleted,
    /// A run ended with an error.
    InstanceErrored,
    /// A run was terminated.
    InstanceTerminated,
    /// An instance was restarted: a new run began.
    InstanceRestarted,
}

impl EngineHook {
    /// All of them.
    pub const ALL: [EngineHook; 5] = [
        EngineHook::WorkflowEnqueued,
        EngineHook::InstanceCompleted,
        EngineHook::InstanceErrored,
        EngineHook::InstanceTerminated,
        EngineHook::InstanceRestarted,
    ];

    /// The name that its hooks are stored under.
    pub const fn as_str(self) -> &'static str {
        match self {
            EngineHook::WorkflowEnqueued => "on_workflow_enqueued",
            EngineHook::InstanceCompleted => "on_instance_completed",
            EngineHook::InstanceErrored => "on_instance_errored",
            EngineHook::InstanceTerminated => "on_instance_terminated",
            EngineHook::InstanceRestarted => "on_instance_restarted",
        }
    }
}

/// Why a run can be advanced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EnqueueReason {
    /// It is new: a created instance, or a restarted one.
    Create,
    /// An event arrived that it waits for.
    Event,
    /// It was resumed.
    Resume,
    /// A failed step will be tried again.
    Retry,
    /// A sleep or a wait will end, or a runner handed it back.
    Wake,
}

impl EnqueueReason {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            EnqueueReason::Create => "create",
            EnqueueReason::Event => "event",
            EnqueueReason::Resume => "resume",
            EnqueueReason::Retry => "retry",
            EnqueueReason::Wake => "wake",
        }
    }
}

/// What the engine tells of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineNews {
    /// What happened.
    pub hook: EngineHook,
    /// Which run it happened to.
    pub run: u32,
    /// Why it can be advanced, and from when on.
    pub enqueued: Option<(EnqueueReason, Timestamp)>,
    /// The error it ended with.
    pub error: Option<RecordedError>,
}

impl EngineNews {
    /// A run can be advanced from `at` on.
    pub fn enqueued(run: u32, reason: EnqueueReason, at: Timestamp) -> Self {
        let hook = EngineHook::WorkflowEnqueued;
        Self { hook, run, enqueued: Some((reason, at)), error: None }
    }

    /// Something happened to a run.
    pub fn of_run(hook: EngineHook, run: u32) -> Self {
        Self { hook, run, enqueued: None, error: None }
    }

    /// A run ended with an error.
    pub fn errored(run: u32, error: Option<&RecordedError>) -> Self {
        Self { error: error.cloned(), ..Self::of_run(EngineHook::InstanceErrored, run) }
    }

    /// What a change of the task means: the run can be advanced, if anyone may claim it now.
    pub fn of_task(change: &TaskChange, reason: EnqueueReason) -> Option<Self> {
        match change {
            TaskChange::Put(task) if task.state == TaskState::Pending => {
                Some(Self::enqueued(task.run, reason, task.run_at))
            }
            TaskChange::Put(_) | TaskChange::Keep | TaskChange::Delete => None,
        }
    }

    /// What a boundary means.
    pub fn of_boundary(run: u32, next: &Next, after: After, change: &TaskChange) -> Option<Self> {
        match (after, next) {
            (After::Ended, Next::Complete { .. }) => {
                Some(Self::of_run(EngineHook::InstanceCompleted, run))
            }
            (After::Ended, Next::Fail { error }) => Some(Self::errored(run, Some(error))),
            (After::Suspended, Next::Suspend { kind: TaskKind::Retry, .. }) => {
                Self::of_task(change, EnqueueReason::Retry)
            }
            (After::Suspended, _) => Self::of_task(change, EnqueueReason::Wake),
            (After::Continue | After::Drain | After::Paused | After::Ended, _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RetryLimit;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);
    const LEASE: Span = Span::from_millis(30_000);

    fn later(ms: i64) -> Timestamp {
        NOW.plus(Span::from_millis(ms))
    }

    fn hook(retries: Retries, process_at: Option<Timestamp>) -> HookRecord {
        let new = NewHook {
            id: "hook_1".into(),
            namespace: HookNamespace::from_stored("app"),
            name: HookName::from_stored("user.created"),
            payload: Json::null(),
            process_at,
            retries,
        };
        new.into_record(NOW)
    }

    fn take(hook: &HookRecord, now: Timestamp) -> HookRecord {
        claim(hook, &"me".into(), LEASE, now).expect("due")
    }

    fn failed(retryable: bool) -> HookOutcome {
        HookOutcome::Failed { error: RecordedError::new("Error", "no luck"), retryable }
    }

    #[test]
    fn a_start_in_the_past_is_now_and_one_in_the_future_is_kept() {
        assert_eq!(hook(Retries::none(), None).due_at, Some(NOW));
        assert_eq!(hook(Retries::none(), Some(later(-5))).due_at, Some(NOW));
        let waiting = hook(Retries::none(), Some(later(5)));
        assert_eq!(waiting.due_at, Some(later(5)));
        assert_eq!(claim(&waiting, &"me".into(), LEASE, later(4)), None);
        assert_eq!(take(&waiting, later(5)).status, HookStatus::Processing);
    }

    #[test]
    fn failures_follow_the_policy_and_the_last_error_is_kept() {
        let mut hook = hook(Retries::linear(2, "2s"), None);
        let mut now = NOW;
        for attempt in 1..=3_u32 {
            let taken = take(&hook, now);
            assert_eq!((taken.attempts, taken.epoch), (attempt, u64::from(attempt)));
            hook = settle(&taken, &failed(true), now);
            assert!(hook.error.is_some());
            let delay = (attempt < 3).then(|| Span::from_millis(2_000 * i64::from(attempt)));
            assert_eq!(hook.due_at, delay.map(|delay| now.plus(delay)));
            now = hook.due_at.unwrap_or(now);
        }
        assert_eq!(hook.status, HookStatus::Failed);
    }

    #[test]
    fn an_error_that_no_retry_can_help_ends_it_at_once() {
        let taken = take(&hook(Retries::default(), None), NOW);
        assert_eq!(settle(&taken, &failed(false), NOW).status, HookStatus::Failed);
        let done = settle(&taken, &HookOutcome::Done, NOW);
        assert_eq!((done.status, done.due_at, done.error), (HookStatus::Completed, None, None));
    }

    /// Its process dies.
    fn take_again(held: &HookRecord) -> HookRecord {
        take(held, held.due_at.expect("a lease"))
    }

    #[test]
    fn a_lost_hook_is_taken_again_when_its_lease_ran_out_but_not_for_ever() {
        for retries in [Retries::none(), Retries::constant(RetryLimit::Infinite, "1 s")] {
            let mut held = take(&hook(retries, None), NOW);
            assert_eq!(claim(&held, &"other".into(), LEASE, later(29_999)), None);
            for claims in 2..=LOST_CLAIMS_MAX {
                let old = held.key();
                held = take_again(&held);
                assert_eq!((held.attempts, held.claims, held.failures), (claims, claims, 0));
                assert!(!is_held(&held, &old) && is_held(&held, &held.key()));
            }
            let given_up = take_again(&held);
            assert_eq!((given_up.status, given_up.due_at), (HookStatus::Failed, None));
            assert_eq!(given_up.error.as_ref().expect("says why").name, HOOK_LOST);
            let again = retry(&given_up, NOW).expect("retriable");
            assert_eq!((again.attempts, again.claims), (0, 0), "it starts anew");
        }
    }

    #[test]
    fn only_a_hook_that_somebody_has_in_hand_is_given_up() {
        let mut waiting = hook(Retries::none(), None);
        waiting.claims = LOST_CLAIMS_MAX;
        assert_eq!(take(&waiting, NOW).status, HookStatus::Processing);
    }

    #[test]
    fn what_was_lost_does_not_count_against_the_policy() {
        let mut held = take(&hook(Retries::linear(1, "2s"), None), NOW);
        for _ in 1..LOST_CLAIMS_MAX {
            held = take_again(&held);
        }
        let waits = settle(&held, &failed(true), NOW);
        assert_eq!((waits.status, waits.due_at), (HookStatus::Pending, Some(later(2_000))));
        assert_eq!((waits.attempts, waits.failures), (LOST_CLAIMS_MAX, 1));
        assert_eq!(waits.claims, 0, "something became of it");
        let again = take(&waits, later(2_000));
        assert_eq!(settle(&again, &failed(true), NOW).status, HookStatus::Failed);
    }

    #[test]
    fn a_hook_that_is_handed_back_is_due_at_once_and_has_not_failed() {
        let held = take(&hook(Retries::none(), None), NOW);
        let back = settle(&held, &HookOutcome::Released, later(9));
        assert_eq!((back.status, back.due_at), (HookStatus::Pending, Some(later(9))));
        assert_eq!((back.failures, back.claims, back.error), (0, 0, None));
    }

    #[test]
    fn a_hook_that_is_handed_back_is_as_suspect_as_before() {
        let mut held = take(&hook(Retries::none(), None), NOW);
        for claims in 2..=LOST_CLAIMS_MAX {
            let before = held.claims;
            held = take_again(&held);
            let back = settle(&held, &HookOutcome::Released, later(9));
            assert_eq!((back.claims, back.due_at), (before, Some(later(9))));
            assert!(!is_held(&back, &held.key()), "nobody has it in hand");
            let again = take(&back, later(9));
            assert_eq!((again.claims, is_suspect(&again)), (claims, claims > SUSPECT_CLAIMS));
        }
    }

    #[test]
    fn a_hook_that_was_lost_too_often_in_a_row_is_a_suspect() {
        let waiting = hook(Retries::none(), None);
        assert_eq!(lane(&waiting), Some(Lane::Pending));
        let mut held = take(&waiting, NOW);
        for _ in 1..SUSPECT_CLAIMS {
            assert_eq!(lane(&held), Some(Lane::InHand));
            held = take_again(&held);
            assert!(!is_suspect(&held), "taken beside others");
        }
        assert_eq!(lane(&held), Some(Lane::Suspect), "when its lease runs out again");
        assert!(is_suspect(&take_again(&held)));
        assert_eq!(lane(&settle(&held, &HookOutcome::Done, NOW)), None);
    }

    #[test]
    fn a_retry_by_hand_starts_anew_and_refuses_what_is_done_or_in_hand() {
        let taken = take(&hook(Retries::none(), None), NOW);
        let failed = settle(&taken, &failed(true), NOW);
        let again = retry(&failed, later(9)).expect("retriable");
        assert_eq!((again.status, again.attempts), (HookStatus::Pending, 0));
        assert_eq!((again.due_at, &again.id), (Some(later(9)), &failed.id));
        let waiting = hook(Retries::none(), Some(later(50)));
        assert_eq!(retry(&waiting, later(9)).expect("retriable").due_at, Some(later(9)));
        let done = settle(&taken, &HookOutcome::Done, NOW);
        for refused in [&taken, &done] {
            let code = retry(refused, NOW).expect_err("refused").code;
            assert_eq!(code, Code::HookNotRetriable);
        }
    }
}
