//! What a claim may take (I2, I14): under a new epoch, the oldest of each class first, nothing left while there
//! is room, and new work before younger work that resumes once it has waited too long.

use std::collections::BTreeMap;

use piton::store::DumpedInstance;
use piton_core::claim::{NEW_WORK_WAIT_MAX, SUSPECT_CLAIMS};
use piton_core::record::{InstanceKey, Task};
use piton_core::{TaskKind, TaskState, Timestamp};

use super::super::QUARANTINE_AFTER;
use super::{Call, Violation, ensure};

type Rows = BTreeMap<InstanceKey, DumpedInstance>;

/// Pending tasks of one class that are due, as moments at which they fell due.
#[derive(Default)]
struct Class {
    claimed: Vec<Timestamp>,
    left: Vec<Timestamp>,
}

pub(super) fn check(
    before: &Rows,
    after: &Rows,
    call: &Call,
    now: Timestamp,
) -> Result<(), Violation> {
    let Call::Claim { wanted } = call else { return Ok(()) };
    let (mut resuming, mut new) = (Class::default(), Class::default());
    let (mut claimed, mut left, mut suspects) = (0, 0, 0);
    let (mut new_claimed, mut oldest_resumed) = (false, None::<Timestamp>);
    for (key, old) in before {
        let Some(task) = old.task.filter(|task| is_due(task, now)) else { continue };
        let task_now = after[key].task;
        let taken = task_now.is_some_and(|now| now.state == TaskState::Leased && now != task);
        if let Some(task_now) = task_now.filter(|_| taken) {
            claimed += 1;
            ensure(task_now.epoch == task.epoch + 1, "I2", || {
                format!("{}: claimed under epoch {}", old.record.id, task_now.epoch)
            })?;
            let claims = task_now.claims_without_progress;
            ensure(claims <= QUARANTINE_AFTER, "I14", || {
                format!("{}: claimed {claims} times without progress", old.record.id)
            })?;
        }
        // What may have killed its runner is handled with care: it has a place of its own, and may have to wait for it.
        if task.claims_without_progress >= SUSPECT_CLAIMS {
            suspects += u32::from(taken);
            continue;
        }
        new_claimed |= taken && is_new(&task);
        if taken && !is_new(&task) {
            let run_at = task.run_at;
            oldest_resumed = Some(oldest_resumed.map_or(run_at, |oldest| oldest.min(run_at)));
        }
        left += usize::from(task_now == Some(task));
        // Leases that ran out are taken in the order in which they did.
        if task.state == TaskState::Leased {
            continue;
        }
        let class = if is_new(&task) { &mut new } else { &mut resuming };
        if taken {
            class.claimed.push(task.run_at);
        } else if task_now == Some(task) {
            class.left.push(task.run_at);
        }
    }
    ensure(claimed <= *wanted, "I14", || format!("{claimed} claimed, {wanted} wanted"))?;
    ensure(left == 0 || claimed == *wanted, "I14", || {
        format!("{left} due tasks were left, though only {claimed} of {wanted} were claimed")
    })?;
    ensure(suspects <= 1, "I14", || format!("{suspects} suspects were claimed at once"))?;
    oldest_first("resuming", &resuming)?;
    oldest_first("new", &new)?;
    let starved = new.left.iter().min().filter(|_| !new_claimed);
    not_starved(starved.copied(), oldest_resumed, now)
}

/// A claim that took nothing: nothing was due.
pub(super) fn check_nothing(rows: &Rows, wanted: usize, now: Timestamp) -> Result<(), Violation> {
    let ready = |task: &Task| is_due(task, now) && task.claims_without_progress < SUSPECT_CLAIMS;
    let mut tasks = rows.values().filter_map(|instance| instance.task);
    let left = tasks.find(ready).filter(|_| wanted > 0);
    ensure(left.is_none(), "I14", || {
        format!("a claim of {wanted} found nothing, not even {left:?}")
    })
}

fn is_due(task: &Task, now: Timestamp) -> bool {
    match task.state {
        TaskState::Pending => task.run_at <= now,
        TaskState::Leased => task.lease_until.is_some_and(|until| until <= now),
        TaskState::Suspect => true,
        TaskState::Held => false,
    }
}

fn is_new(task: &Task) -> bool {
    task.state == TaskState::Pending && task.kind == TaskKind::Run
}

fn oldest_first(name: &str, class: &Class) -> Result<(), Violation> {
    let (claimed, left) = (class.claimed.iter().max(), class.left.iter().min());
    let ordered = claimed.zip(left).is_none_or(|(claimed, left)| claimed <= left);
    ensure(ordered, "I14", || {
        format!("{name} work of {claimed:?} was claimed before that of {left:?}")
    })
}

/// With no new work claimed, the oldest that was left had not waited too long, or what was resumed is older.
fn not_starved(
    oldest_left: Option<Timestamp>,
    oldest_resumed: Option<Timestamp>,
    now: Timestamp,
) -> Result<(), Violation> {
    let (Some(left), Some(resumed)) = (oldest_left, oldest_resumed) else { return Ok(()) };
    let starving = now.since(left) >= NEW_WORK_WAIT_MAX;
    ensure(!(starving && resumed > left), "I14", || {
        format!("new work waits since {left}, and work of {resumed} was resumed instead")
    })
}
