//! Hooks: their rows, and what is done to them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use piton_core::hook::{self, EngineNews, HookRecord, Lane, NewHook};
use piton_core::planted::{Bug, planted};
use piton_core::record::InstanceKey;
use piton_core::{Code, HookNamespace, HookStatus, Refusal, Timestamp};

use super::transaction::Transaction;
use crate::store::{Hint, HookQuery, HookWork, HooksWorked, PRUNED_MAX, TAKEN_MAX};

/// All hooks, and when each can be taken.
#[derive(Default)]
pub(super) struct Hooks {
    rows: BTreeMap<Arc<str>, HookRecord>,
    due: BTreeSet<(HookNamespace, Lane, Timestamp, Arc<str>)>,
}

/// In the order in which they are taken from.
const LANES: [Lane; 3] = [Lane::Suspect, Lane::InHand, Lane::Pending];

/// Where a hook is in the index.
fn place(hook: &HookRecord) -> Option<(HookNamespace, Lane, Timestamp, Arc<str>)> {
    Some((hook.namespace.clone(), hook::lane(hook)?, hook.due_at?, Arc::clone(&hook.id)))
}

impl Hooks {
    /// Puts or replaces a row: the only way, so that the index agrees.
    fn put(&mut self, hook: HookRecord) {
        self.remove(&Arc::clone(&hook.id));
        self.due.extend(place(&hook));
        self.rows.insert(Arc::clone(&hook.id), hook);
    }

    fn remove(&mut self, id: &Arc<str>) {
        if let Some(place) = self.rows.remove(id).as_ref().and_then(place) {
            self.due.remove(&place);
        }
    }

    /// The earliest of a namespace and a lane that can be taken, and when.
    fn first_due(&self, namespace: &HookNamespace, lane: Lane) -> Option<(Timestamp, Arc<str>)> {
        let from = (namespace.clone(), lane, Timestamp::from_millis(i64::MIN), Arc::from(""));
        let (found, at_lane, at, id) = self.due.range(from..).next()?;
        (found == namespace && *at_lane == lane).then(|| (*at, Arc::clone(id)))
    }

    pub(super) fn next_due_at(&self, namespaces: &[HookNamespace]) -> Option<Timestamp> {
        let places = namespaces.iter().flat_map(|namespace| LANES.map(|lane| (namespace, lane)));
        places
            .filter_map(|(namespace, lane)| self.first_due(namespace, lane))
            .map(|(at, _)| at)
            .min()
    }

    pub(super) fn get(&self, id: &str) -> Option<HookRecord> {
        self.rows.get(id).cloned()
    }

    pub(super) fn all(&self) -> Vec<HookRecord> {
        self.rows.values().cloned().collect()
    }

    pub(super) fn page(&self, query: &HookQuery) -> Vec<HookRecord> {
        let end = match &query.behind {
            Some(id) => Bound::Excluded(Arc::clone(id)),
            None => Bound::Unbounded,
        };
        let fits = |hook: &&HookRecord| {
            query.namespace.as_ref().is_none_or(|namespace| hook.namespace == *namespace)
                && query.name.as_ref().is_none_or(|name| hook.name == *name)
                && query.status.is_none_or(|status| hook.status == status)
        };
        let newest_first = self.rows.range((Bound::Unbounded, end)).rev().map(|(_, hook)| hook);
        newest_first.filter(fits).take(query.limit as usize).cloned().collect()
    }
}

impl Transaction<'_> {
    pub(super) fn trigger(&mut self, new: NewHook) {
        let hook = new.into_record(self.now);
        let (namespace, at) = (hook.namespace.clone(), hook.due_at.unwrap_or(self.now));
        self.state.hooks.put(hook);
        self.hints.push(Hint::HookDue { namespace, at });
    }

    pub(super) fn trigger_all(&mut self, hooks: Vec<NewHook>) {
        for new in hooks {
            self.trigger(new);
        }
    }

    /// Tells whoever wants to know, by a hook.
    pub(super) fn news(&mut self, key: InstanceKey, news: Option<EngineNews>) {
        let (Some(wanted), Some(news)) = (self.engine_hooks, news) else { return };
        let instance = &self.instance(key).record;
        if let Some(new) = wanted.hook(&news, &instance.workflow, &instance.id, self.ids) {
            self.trigger(new);
        }
    }

    pub(super) fn work_hooks(&mut self, work: &HookWork) -> HooksWorked {
        let now = self.now;
        let (mut taken, mut lost) = (Vec::new(), Vec::new());
        for (claimed, outcome) in work.settled.iter() {
            let key = claimed.key();
            match self.state.hooks.get(&key.id).filter(|stored| hook::is_held(stored, &key)) {
                Some(_) => {
                    let after = hook::settle(claimed, outcome, now);
                    self.settle(after, work.forget_completed);
                }
                None => lost.push(key),
            }
        }
        for key in &work.renewed {
            match self.state.hooks.get(&key.id).filter(|stored| hook::is_held(stored, key)) {
                Some(stored) => {
                    let due_at = Some(now.plus(work.lease));
                    self.state.hooks.put(HookRecord { due_at, ..stored });
                }
                None => lost.push(key.clone()),
            }
        }
        for lane in LANES {
            let wanted = match lane {
                Lane::Suspect if planted(Bug::HookSuspectsTogether) => work.wanted,
                Lane::Suspect => work.wanted.min(usize::from(work.suspect)),
                Lane::InHand | Lane::Pending => work.wanted,
            };
            self.take_from(lane, work, wanted, &mut taken);
        }
        let pruned = self.prune(work);
        HooksWorked { now, taken, lost, pruned }
    }

    /// Takes due hooks of this lane until there are as many as wanted.
    fn take_from(
        &mut self,
        lane: Lane,
        work: &HookWork,
        wanted: usize,
        taken: &mut Vec<HookRecord>,
    ) {
        for _ in 0..TAKEN_MAX {
            if taken.len() >= wanted {
                return;
            }
            let Some((_, id)) = self.state.hooks.first_due(&work.namespace, lane) else { return };
            let stored = self.state.hooks.get(&id).expect("the index holds living rows");
            let claimed = hook::claim(&stored, &work.owner, work.lease, self.now);
            let Some(after) = claimed else { return };
            if after.status == HookStatus::Processing {
                taken.push(after.clone());
            }
            if planted(Bug::HookDeletedOnClaim) {
                self.state.hooks.remove(&id);
            } else {
                self.state.hooks.put(after);
            }
        }
    }

    fn settle(&mut self, after: HookRecord, forget_completed: bool) {
        if forget_completed && after.status == HookStatus::Completed {
            return self.state.hooks.remove(&after.id);
        }
        if let Some(at) = after.due_at {
            let namespace = after.namespace.clone();
            self.hints.push(Hint::HookDue { namespace, at });
        }
        self.state.hooks.put(after);
    }

    fn prune(&mut self, work: &HookWork) -> usize {
        let Some(age) = work.prune else { return 0 };
        let old = |hook: &&HookRecord| {
            hook.namespace == work.namespace
                && hook.status == HookStatus::Completed
                && self.now.since(hook.updated_at) >= age
        };
        let rows = self.state.hooks.rows.values();
        let old: Vec<_> =
            rows.filter(old).take(PRUNED_MAX).map(|hook| Arc::clone(&hook.id)).collect();
        for id in &old {
            self.state.hooks.remove(id);
        }
        old.len()
    }

    pub(super) fn retry_hook(&mut self, id: &str) -> Result<HookRecord, Refusal> {
        let stored =
            self.state.hooks.get(id).ok_or_else(|| {
                Refusal::new(Code::HookNotFound, format!("there is no hook {id:?}"))
            })?;
        let after = hook::retry(&stored, self.now)?;
        let namespace = after.namespace.clone();
        self.hints.push(Hint::HookDue { namespace, at: after.due_at.unwrap_or(self.now) });
        self.state.hooks.put(after.clone());
        Ok(after)
    }
}
