//! What an accepted boundary leaves behind (I7, I18).

use std::collections::BTreeMap;

use piton::store::DumpedInstance;
use piton_core::TaskState;
use piton_core::boundary::Next;
use piton_core::record::InstanceKey;

use super::{Call, Violation, ensure};

pub(super) fn check(
    before: &BTreeMap<InstanceKey, DumpedInstance>,
    after: &BTreeMap<InstanceKey, DumpedInstance>,
    call: &Call,
    accepted: bool,
) -> Result<(), Violation> {
    let (Call::Commit { key, steps, next, .. }, true) = (call, accepted) else { return Ok(()) };
    let (Some(old), Some(new)) = (before.get(&key.instance), after.get(&key.instance)) else {
        return ensure(false, "I18", || format!("a boundary of {key:?} was accepted for nobody"));
    };
    let id = &new.record.id;
    let rows = &new.runs[key.run as usize].steps;
    for step in steps {
        ensure(rows.contains(step), "I18", || {
            format!("{id}: {} was committed as {}, and is not there", step.name, step.status)
        })?;
    }
    let pauses = match next {
        Next::Continue { bodies_running } => !bodies_running,
        Next::Suspend { .. } => true,
        Next::Complete { .. } | Next::Fail { .. } => false,
    };
    let asked = old.task.is_some_and(|task| task.pause_requested);
    let held = new.task.is_some_and(|task| task.state == TaskState::Held);
    ensure(!(asked && pauses) || held, "I7", || {
        format!("{id}: a pause was asked for and did not take effect at a boundary")
    })
}
