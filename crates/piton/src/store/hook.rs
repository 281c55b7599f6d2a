//! The seam to the database for hooks: what is stored, taken, settled and looked at.
//!
//! Like [`Store`](super::Store), a [`HookStore`] decides nothing: `piton_core::hook` does, inside the transaction.

use std::sync::Arc;

use piton_core::hook::{
    EngineHook, EngineNews, HookKey, HookOutcome, HookRecord, NAMESPACE_DEFAULT, NewHook,
};
use piton_core::{
    HookName, HookNamespace, HookStatus, InstanceId, Json, Retries, Span, Timestamp, WorkflowName,
};

use super::Answer;
use crate::runtime::Ids;

/// Where hooks live.
///
/// **What is one transaction is exactly one method**, and the comment of each says what is there after a crash. Unless
/// it says otherwise: when the answer has arrived the effect is durable; when no answer has arrived it is wholly there
/// or wholly absent.
///
/// Hooks are also stored by others: with an instance that is created, an event that is sent, a step that is recorded,
/// and by users in transactions of their own. Those come and go with their transaction.
pub trait HookStore: Send + Sync {
    /// Stores hooks in a transaction of their own.
    fn trigger_hooks(&self, hooks: Vec<NewHook>) -> Answer<()>;

    /// Records what became of hooks, extends the leases of others, takes more of them, and removes old ones: whatever
    /// of it is asked for, in this order.
    ///
    /// After a crash before the answer, what was taken stays taken until its lease runs out, and then counts as an
    /// attempt; what was settled either is, or falls due again when its lease runs out. Whoever holds an older epoch
    /// changes nothing.
    fn work_hooks(&self, work: HookWork) -> Answer<HooksWorked>;

    /// When the earliest hook of these namespaces can be taken, one whose lease runs out included; with the store's
    /// time. A read.
    fn next_hook_at(
        &self,
        namespaces: Arc<[HookNamespace]>,
    ) -> Answer<(Timestamp, Option<Timestamp>)>;

    /// One hook. A read.
    fn hook(&self, id: Arc<str>) -> Answer<Option<HookRecord>>;

    /// Hooks, newest first. A read.
    fn hooks(&self, query: HookQuery) -> Answer<Vec<HookRecord>>;

    /// Makes a failed or waiting hook due now, as `piton_core::hook::retry` says.
    fn retry_hook(&self, id: Arc<str>) -> Answer<HookRecord>;

    /// From now on the transactions of this process store hooks for this news. Not kept in the database.
    fn tell_by_hooks(&self, wanted: EngineHooks);

    /// The schema that hooks are in, if the database has schemas.
    fn schema(&self) -> Option<&str> {
        None
    }
}

/// What a processor wants done in one transaction.
#[derive(Clone, Debug)]
pub struct HookWork {
    /// Who asks, for people.
    pub owner: Arc<str>,
    /// How long what is taken or extended belongs to the owner.
    pub lease: Span,
    /// Hooks as they were taken, and how their attempts ended.
    pub settled: Arc<[(HookRecord, HookOutcome)]>,
    /// Hooks that are completed and not to be kept at all are removed as they are settled.
    pub forget_completed: bool,
    /// Hooks that go on.
    pub renewed: Vec<HookKey>,
    /// Whose hooks are taken and removed.
    pub namespace: HookNamespace,
    /// How many to take: those of dead processes first, then oldest first.
    pub wanted: usize,
    /// Whether one of them may be a suspect, as `piton_core::hook::is_suspect` says; it then comes first.
    pub suspect: bool,
    /// Completed hooks that were finished this long ago are removed, up to [`PRUNED_MAX`].
    pub prune: Option<Span>,
}

/// How many hooks one transaction removes at most: it bounds how long the writer works for one processor.
pub const PRUNED_MAX: usize = 1_000;

/// How many hooks one transaction takes at most.
pub const TAKEN_MAX: usize = 1_024;

impl HookWork {
    /// Nothing to do yet.
    pub fn new(owner: Arc<str>, namespace: HookNamespace, lease: Span) -> Self {
        Self {
            owner,
            lease,
            settled: Arc::default(),
            forget_completed: false,
            renewed: Vec::new(),
            namespace,
            wanted: 0,
            suspect: false,
            prune: None,
        }
    }
}

/// What was done.
#[derive(Clone, Debug)]
pub struct HooksWorked {
    /// The store's clock.
    pub now: Timestamp,
    /// The hooks that are now the owner's.
    pub taken: Vec<HookRecord>,
    /// Settled or extended hooks that are somebody else's by now.
    pub lost: Vec<HookKey>,
    /// How many old ones were removed.
    pub pruned: usize,
}

/// Which hooks to list, newest first.
#[derive(Clone, Debug, Default)]
pub struct HookQuery {
    /// Only those of this namespace.
    pub namespace: Option<HookNamespace>,
    /// Only those of this name.
    pub name: Option<HookName>,
    /// Only those with this status.
    pub status: Option<HookStatus>,
    /// Only those that come behind this id in the list.
    pub behind: Option<Arc<str>>,
    /// At most this many.
    pub limit: u32,
}

/// Which news of the engine is told by hooks, in which namespace, and how often a failed one is retried.
#[derive(Clone, Debug, Default)]
pub struct EngineHooks {
    wanted: [Option<(HookNamespace, Retries)>; EngineHook::ALL.len()],
}

impl EngineHooks {
    /// Also tell of this, in this namespace, and retry like this.
    pub fn add(&mut self, hook: EngineHook, namespace: HookNamespace, retries: Retries) {
        self.wanted[hook as usize] = Some((namespace, retries));
    }

    /// Whether anything is told at all.
    pub fn is_empty(&self) -> bool {
        self.wanted.iter().all(Option::is_none)
    }

    /// Whether this is told.
    pub fn tells(&self, hook: EngineHook) -> bool {
        self.wanted[hook as usize].is_some()
    }

    /// The hook that tells this news, if somebody wants to know.
    pub fn hook(
        &self,
        news: &EngineNews,
        workflow: &WorkflowName,
        id: &InstanceId,
        ids: &Ids,
    ) -> Option<NewHook> {
        let (namespace, retries) = self.wanted[news.hook as usize].clone()?;
        Some(NewHook {
            id: ids.next("hook"),
            namespace,
            name: HookName::from_stored(news.hook.as_str()),
            payload: payload(news, workflow, id),
            process_at: news.enqueued.map(|(_, at)| at),
            retries,
        })
    }
}

/// What the handler of the engine's news is given.
fn payload(news: &EngineNews, workflow: &WorkflowName, id: &InstanceId) -> Json {
    let mut payload = serde_json::Map::new();
    payload.insert("workflowName".to_owned(), workflow.as_str().into());
    payload.insert("instanceId".to_owned(), id.as_str().into());
    payload.insert("runNumber".to_owned(), news.run.into());
    if let Some((reason, _)) = news.enqueued {
        payload.insert("reason".to_owned(), reason.as_str().into());
    }
    if let Some(error) = &news.error {
        let error = serde_json::json!({ "name": error.name, "message": error.message });
        payload.insert("error".to_owned(), error);
    }
    Json::from_valid_text(serde_json::Value::Object(payload).to_string())
}

/// The namespace of hooks that name none.
pub fn default_namespace() -> HookNamespace {
    HookNamespace::from_stored(NAMESPACE_DEFAULT)
}
