//! Every committed hook is processed with one constant key, none that was rolled back, and the engine tells of every end
//! once (I16, I6).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use piton::store::{DumpedInstance, MemoryStore};
use piton_core::hook::{EngineHook, HOOK_LOST, HookRecord, LOST_CLAIMS_MAX, is_suspect};
use piton_core::record::InstanceKey;
use piton_core::{HookStatus, InstanceStatus, StepStatus, Timestamp};

use super::{Call, Checker, State, Violation, ensure};
use crate::sim::program::{HOOK, HOOKED};
use crate::sim::sometimes::Rare;
use crate::sim::world::ProcessId;

/// All hooks by id.
pub(super) type Hooks = BTreeMap<Arc<str>, HookRecord>;

pub(super) fn dump(store: &MemoryStore) -> Hooks {
    store.dump_hooks().into_iter().map(|hook| (Arc::clone(&hook.id), hook)).collect()
}

/// What a transaction may do to hooks.
pub(super) fn check(
    before: &Hooks,
    after: &Hooks,
    call: &Call,
    done: &BTreeSet<String>,
    now: Timestamp,
) -> Result<(), Violation> {
    for (id, old) in before {
        let Some(new) = after.get(id) else {
            return ensure(false, "I16", || format!("{id} was there and is gone"));
        };
        if new != old {
            check_change(old, new, call, done, now)?;
        }
    }
    let suspects = after
        .iter()
        .filter(|(id, new)| before.get(*id).is_some_and(|old| taken_as_suspect(old, new)));
    let suspects = suspects.count();
    ensure(suspects <= 1, "I16", || format!("{suspects} suspects were taken at once"))
}

fn taken_as_suspect(old: &HookRecord, new: &HookRecord) -> bool {
    new.epoch > old.epoch && is_suspect(new)
}

fn check_change(
    old: &HookRecord,
    new: &HookRecord,
    call: &Call,
    done: &BTreeSet<String>,
    now: Timestamp,
) -> Result<(), Violation> {
    let id = &old.id;
    let same =
        (&old.name, &old.payload, old.created_at) == (&new.name, &new.payload, new.created_at);
    ensure(same, "I16", || format!("{id} is another hook now"))?;
    ensure(old.status != HookStatus::Completed, "I16", || format!("{id} changed after its end"))?;
    if new.epoch > old.epoch {
        let due = old.due_at.is_some_and(|at| at <= now);
        let claims = new.claims;
        ensure(claims <= LOST_CLAIMS_MAX, "I16", || {
            format!("{id} was taken {claims} times in vain")
        })?;
        return ensure(due, "I16", || format!("{id} was taken before {:?}", old.due_at));
    }
    if old.status != HookStatus::Processing {
        return Ok(());
    }
    if new.status == HookStatus::Processing && new.lease_owner.is_some() {
        return Ok(());
    }
    let lost = new.error.as_ref().is_some_and(|error| error.name == HOOK_LOST);
    let by_holder = matches!(call, Call::WorkHooks { settled, .. }
        if settled.iter().any(|key| key.id == *id && key.epoch == old.epoch));
    ensure(by_holder || lost, "I16", || {
        format!("{id} was settled by somebody who does not hold it under epoch {}", old.epoch)
    })?;
    let of_step = new.name.as_str() == HOOK;
    match new.status {
        HookStatus::Completed => ensure(!of_step || done.contains(&**id), "I16", || {
            format!("{id} is completed, but its handler never returned")
        }),
        HookStatus::Failed => {
            let used_up = new.retries.attempts_max().is_some_and(|max| new.failures >= max);
            let given_up = lost && old.claims >= LOST_CLAIMS_MAX;
            ensure(used_up || given_up, "I16", || {
                format!("{id} has failed after {} failures, with attempts left", new.failures)
            })
        }
        HookStatus::Processing => ensure(new.claims + 1 == old.claims, "I16", || {
            format!("{id} was handed back and is less suspect for it: {} claims", new.claims)
        }),
        HookStatus::Pending => Ok(()),
    }
}

/// The hooks are those of what happened: of completed steps, of ends and of restarts.
pub(super) fn check_causes(
    hooks: &Hooks,
    rows: &BTreeMap<InstanceKey, DumpedInstance>,
) -> Result<(), Violation> {
    let mut stored: BTreeMap<String, u32> = BTreeMap::new();
    for hook in hooks.values() {
        *stored.entry(cause(hook)).or_default() += 1;
    }
    let mut expected: BTreeSet<String> = BTreeSet::new();
    let mut possible: BTreeSet<String> = BTreeSet::new();
    for instance in rows.values() {
        let id = &instance.record.id;
        for (run, rows) in instance.runs.iter().enumerate() {
            let hooked = rows.steps.iter().filter(|step| {
                let result = step.result.as_ref().map_or("", |result| result.as_str());
                step.status == StepStatus::Completed
                    && result.trim_end_matches('"').ends_with(HOOKED)
            });
            expected.extend(hooked.map(|step| format!("program/{id}/{run}/{}", step.name)));
            if run > 0 {
                expected.insert(news(EngineHook::InstanceRestarted, id.as_str(), run));
            }
            let ends = [
                (InstanceStatus::Complete, EngineHook::InstanceCompleted),
                (InstanceStatus::Errored, EngineHook::InstanceErrored),
                (InstanceStatus::Terminated, EngineHook::InstanceTerminated),
            ];
            for (status, hook) in ends {
                let told = news(hook, id.as_str(), run);
                // How an earlier run ended is not written down; it ended once at most.
                if run + 1 < instance.runs.len() {
                    possible.insert(told);
                } else if instance.record.status == status {
                    expected.insert(told);
                }
            }
        }
    }
    for (cause, count) in &stored {
        let known = expected.contains(cause) || possible.contains(cause);
        ensure(known, "I16", || format!("a hook of {cause} is there, which did not happen"))?;
        ensure(*count == 1, "I6", || format!("{count} hooks tell of {cause}"))?;
    }
    let missing = expected.iter().find(|cause| !stored.contains_key(*cause));
    ensure(missing.is_none(), "I16", || format!("no hook tells of {missing:?}"))
}

fn news(hook: EngineHook, id: &str, run: usize) -> String {
    format!("{} {id} {run}", hook.as_str())
}

/// What a hook tells of.
fn cause(hook: &HookRecord) -> String {
    let payload: serde_json::Value =
        serde_json::from_str(hook.payload.as_str()).unwrap_or_default();
    match payload.as_str() {
        Some(key) => key.to_owned(),
        None => {
            let id = payload["instanceId"].as_str().unwrap_or_default();
            format!("{} {id} {}", hook.name, payload["runNumber"])
        }
    }
}

impl Checker {
    /// The handler of a step's hook starts.
    pub(in crate::sim) fn hook_started(
        &self,
        process: ProcessId,
        id: &str,
        key: &str,
        attempt: u32,
    ) {
        self.tell(|| format!("p{} handles {id} of {key}, attempt {attempt}", process.0));
        let mut state = self.lock();
        let found = state.hooks.get(id).map(|hook| (cause(hook) == key, hook.attempts));
        let checked = match found {
            None => ensure(false, "I16", || format!("{id} runs, but it was never committed")),
            Some((same, attempts)) => ensure(same && attempt <= attempts, "I16", || {
                format!("{id} runs as attempt {attempt} for {key}, and is something else")
            }),
        };
        if let Err(violation) = checked {
            state.violation.get_or_insert(violation);
        }
    }

    /// The handler of a step's hook is about to return.
    pub(in crate::sim) fn hook_done(&self, id: &str) {
        self.lock().hooks_done.insert(id.to_owned());
    }

    /// Whether a look for hooks has given one up.
    pub(in crate::sim) fn hooks_changed(&self) -> bool {
        dump(&self.store) != self.lock().hooks
    }

    /// Hooks that are not finished.
    pub(in crate::sim) fn open_hooks(&self) -> Vec<String> {
        let open = self.store.dump_hooks().into_iter().filter(|hook| hook.due_at.is_some());
        open.map(|hook| format!("{} {}", hook.id, hook.status)).collect()
    }
}

impl State {
    /// Rare things about hooks.
    pub(super) fn notice_hooks(&mut self, before: &Hooks) {
        let mut seen = Vec::new();
        for (id, new) in &self.hooks {
            let Some(old) = before.get(id) else { continue };
            if old.status == HookStatus::Processing && new.epoch > old.epoch {
                seen.push(Rare::HookTakenOver);
            }
            if taken_as_suspect(old, new) {
                seen.push(Rare::HookSuspectTaken);
            }
            let lost = new.error.as_ref().is_some_and(|error| error.name == HOOK_LOST);
            if old.status == HookStatus::Processing && new.status == HookStatus::Failed && lost {
                seen.push(Rare::HookGivenUp);
            }
            if old.status == HookStatus::Processing && new.status == HookStatus::Pending {
                seen.push(Rare::HookRetried);
            }
        }
        for rare in seen {
            self.sometimes.saw(rare);
        }
    }
}
