//! Random calls on the hooks of a pair of stores.
//!
//! Unlike instances, hooks are known by the same ids and epochs in both.

use std::sync::Arc;

use piton::store::{HookQuery, HookStore, HookWork, HooksWorked, StoreError};
use piton_core::hook::{HookOutcome, HookRecord, NewHook};
use piton_core::record::RecordedError;
use piton_core::{HookName, HookNamespace, HookStatus, Retries, RetryLimit, Span, Timestamp};

use super::calls::Pair;
use super::dice::Die;
use super::normal::{NextDue, Normal};
use super::{Difference, Stage};
use crate::conformance::rows::json;

const LEASE: Span = Span::from_millis(2_000);
const NAMESPACES: [&str; 2] = ["app", "mail"];
const NAMES: [&str; 2] = ["user.created", "order.paid"];

fn hooks_of(stage: &Stage) -> &dyn HookStore {
    stage.store.hooks().expect("it keeps hooks")
}

impl Normal for HookRecord {
    fn normal(&self) -> String {
        format!("{self:?}")
    }
}

impl Normal for Vec<HookRecord> {
    fn normal(&self) -> String {
        format!("{self:?}")
    }
}

impl Normal for HooksWorked {
    /// In which order hooks are handed out is of no account.
    fn normal(&self) -> String {
        let mut worked = self.clone();
        worked.taken.sort_by(|one, other| one.id.cmp(&other.id));
        worked.lost.sort_by(|one, other| one.id.cmp(&other.id));
        format!("{worked:?}")
    }
}

impl Normal for (Timestamp, Option<Timestamp>) {
    fn normal(&self) -> String {
        NextDue { now: self.0, at: self.1 }.normal()
    }
}

impl Pair {
    pub(super) async fn call_hooks(&mut self, mut die: Die) -> Result<(), Difference> {
        match die.below(10) {
            0..3 => self.trigger_hooks(die).await,
            3..9 => self.work_hooks(die).await,
            _ => self.retry_hook(die).await,
        }
    }

    async fn trigger_hooks(&mut self, mut die: Die) -> Result<(), Difference> {
        let mut hooks = Vec::new();
        let several = die.pick(&[1, 2, 3, 20]);
        for _ in 0..several {
            self.hooks_triggered += 1;
            hooks.push(self.new_hook(&mut die));
        }
        let ask = async |stage: &Stage| hooks_of(stage).trigger_hooks(hooks.clone()).await;
        self.same(format!("trigger {hooks:?}"), ask).await
    }

    fn new_hook(&self, die: &mut Die) -> NewHook {
        let limit = die.pick(&[RetryLimit::Times(0), RetryLimit::Times(2), RetryLimit::Infinite]);
        NewHook {
            id: format!("hook_{:026}", self.hooks_triggered).into(),
            namespace: HookNamespace::from_stored(die.pick(&NAMESPACES)),
            name: HookName::from_stored(die.pick(&NAMES)),
            payload: json(&die.below(1_000).to_string()),
            process_at: die.chance(30).then(|| self.left.now().plus(die.ms(3_000))),
            retries: Retries::exponential(limit, "1 s").cap("3 s"),
        }
    }

    async fn work_hooks(&mut self, mut die: Die) -> Result<(), Difference> {
        if die.chance(40) {
            self.advance(LEASE);
        }
        let namespace = HookNamespace::from_stored(die.pick(&NAMESPACES));
        let mut work = HookWork::new("me".into(), namespace, LEASE);
        work.suspect = die.chance(60);
        // How many a look gives up on its way to what is wanted is a store's own affair.
        work.wanted = if work.suspect { 100 } else { die.pick(&[0, 1, 2, 100]) };
        work.forget_completed = die.chance(20);
        work.prune = die.chance(20).then_some(Span::from_millis(1_500));
        let mut settled = Vec::new();
        for hook in std::mem::take(&mut self.hooks_in_hand) {
            match die.below(10) {
                0..3 => settled.push((hook, outcome(&mut die))),
                3..5 => {
                    work.renewed.push(hook.key());
                    self.hooks_in_hand.push(hook);
                }
                5 => {}
                _ => self.hooks_in_hand.push(hook),
            }
        }
        work.settled = settled.into();
        let ask = async |stage: &Stage| hooks_of(stage).work_hooks(work.clone()).await;
        let worked = self.both(format!("{work:?}"), ask).await?;
        // Stale ones among them: what is said under an old epoch must not be believed.
        self.hooks_in_hand.extend(worked.expect("work is never refused").taken);
        self.hooks_in_hand.reverse();
        self.hooks_in_hand.truncate(12);
        Ok(())
    }

    async fn retry_hook(&mut self, mut die: Die) -> Result<(), Difference> {
        let number = die.below(self.hooks_triggered + 1);
        let id: Arc<str> = format!("hook_{number:026}").into();
        let ask = async |stage: &Stage| hooks_of(stage).retry_hook(Arc::clone(&id)).await;
        self.same(format!("retry {id}"), ask).await
    }

    /// Lists all hooks, by every filter there is.
    pub(super) async fn read_hooks(&mut self, limit: u32) -> Result<(), Difference> {
        let namespaces: Arc<[HookNamespace]> = NAMESPACES.map(HookNamespace::from_stored).into();
        let ask = async |stage: &Stage| hooks_of(stage).next_hook_at(Arc::clone(&namespaces)).await;
        self.same("next hook".to_owned(), ask).await?;
        // Pages of one or two would make up most of the test's time.
        let all = HookQuery { limit: limit.max(5), ..HookQuery::default() };
        for status in [None].into_iter().chain(HookStatus::ALL.iter().copied().map(Some)) {
            self.read_list(HookQuery { status, ..all.clone() }).await?;
        }
        let name = Some(HookName::from_stored(NAMES[0]));
        let namespace = Some(HookNamespace::from_stored(NAMESPACES[0]));
        self.read_list(HookQuery { name: name.clone(), ..all.clone() }).await?;
        let status = Some(HookStatus::Pending);
        self.read_list(HookQuery { namespace: namespace.clone(), status, ..all.clone() }).await?;
        self.read_list(HookQuery { namespace, name, status, ..all }).await
    }

    async fn read_list(&mut self, query: HookQuery) -> Result<(), Difference> {
        let what = format!("{query:?}");
        self.same(what, async |stage: &Stage| walk(hooks_of(stage), &query).await).await
    }
}

fn outcome(die: &mut Die) -> HookOutcome {
    match die.below(4) {
        0 | 1 => HookOutcome::Done,
        chosen => HookOutcome::Failed {
            error: RecordedError::new("Error", "no luck"),
            retryable: chosen == 2,
        },
    }
}

/// All pages of a list.
async fn walk(hooks: &dyn HookStore, query: &HookQuery) -> Result<Vec<HookRecord>, StoreError> {
    let mut all: Vec<HookRecord> = Vec::new();
    loop {
        let behind = all.last().map(|hook| Arc::clone(&hook.id));
        let page = hooks.hooks(HookQuery { behind, ..query.clone() }).await?;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
}
