//! The invariants, checked after every transaction against every row.
//!
//! The checker knows nothing of how the engine works: it compares the rows before and after, and what was
//! told to whom. The numbers are those of `docs/reliability.md`.

mod bodies;
mod claims;
mod commits;
mod hooks;
mod notice;
mod rows;
mod transitions;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use piton::store::{Action, DumpedInstance, MemoryStore, StoreError};
use piton_core::boundary::Next;
use piton_core::hook::HookKey;
use piton_core::record::{Epoch, InstanceKey, RunKey, StepRecord};

use super::sometimes::{Rare, Sometimes};
use super::witness::Bodies;
use super::world::{ProcessId, World};

pub(super) use self::bodies::Body;

/// What a process asked of the store.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Create { ids: Vec<String>, leased: bool },
    Event { id: String, event: String },
    Steer { id: String, action: Action },
    Claim { wanted: usize },
    Commit { key: RunKey, steps: Vec<StepRecord>, waits: Vec<StepRecord>, next: Next },
    Renew,
    Release,
    AppendLogs,
    TriggerHooks { ids: Vec<String> },
    WorkHooks { settled: Vec<HookKey>, renewed: Vec<HookKey>, wanted: usize },
    RetryHook { id: String },
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Create { ids, leased } => {
                write!(f, "create {}{}", ids.join(" "), if *leased { ", leased" } else { "" })
            }
            Call::Event { id, event } => write!(f, "send {event} to {id}"),
            Call::Steer { id, action } => write!(f, "{action:?} {id}"),
            Call::Claim { wanted } => write!(f, "claim {wanted}"),
            Call::Commit { key, steps, waits, next } => {
                write!(f, "commit #{} run {} epoch {}:", key.instance.0, key.run, key.epoch)?;
                for step in steps {
                    write!(f, " {}={}", step.name, step.status)?;
                }
                for wait in waits {
                    let event = wait.event_type.as_ref().map_or("", |event| event.as_str());
                    write!(f, " {} looks for {event}", wait.name)?;
                }
                match next {
                    Next::Continue { .. } => write!(f, ", goes on"),
                    Next::Suspend { run_at, .. } => write!(f, ", suspends until {run_at}"),
                    Next::Complete { .. } => write!(f, ", completes"),
                    Next::Fail { error } => write!(f, ", fails with {}", error.name),
                }
            }
            Call::Renew => write!(f, "renew"),
            Call::Release => write!(f, "release"),
            Call::AppendLogs => write!(f, "append log lines"),
            Call::TriggerHooks { ids } => write!(f, "trigger {}", ids.join(" ")),
            Call::WorkHooks { settled, renewed, wanted } => {
                write!(f, "take {wanted} hooks;")?;
                for (what, keys) in [("settle", settled), ("renew", renewed)] {
                    for key in keys {
                        write!(f, " {what} {} epoch {}", key.id, key.epoch)?;
                    }
                }
                Ok(())
            }
            Call::RetryHook { id } => write!(f, "retry {id}"),
        }
    }
}

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which one: `I1` to `I18`, or `liveness`.
    pub invariant: &'static str,
    /// What was seen.
    pub what: String,
}

/// Watches one simulation.
pub(super) struct Checker {
    world: Arc<World>,
    store: Arc<MemoryStore>,
    pub(super) bodies: Bodies,
    state: Mutex<State>,
}

struct State {
    rows: BTreeMap<InstanceKey, DumpedInstance>,
    hooks: hooks::Hooks,
    /// The hooks whose handlers have returned.
    hooks_done: BTreeSet<String>,
    /// The epochs each process was given, per instance, whose passes may still be running.
    passes: BTreeMap<(ProcessId, InstanceKey), BTreeSet<Epoch>>,
    /// Instances whose pause took a lease away that had run out: its runner may not know yet.
    paused_by_expiry: BTreeMap<InstanceKey, bool>,
    /// Boundaries that were sent and have not arrived.
    on_their_way: Vec<Arc<Call>>,
    /// The attempts whose bodies were executed.
    executed: BTreeSet<(String, u32, String, u32)>,
    sometimes: Sometimes,
    story: Option<Vec<String>>,
    violation: Option<Violation>,
    transactions: u64,
}

impl Checker {
    pub(super) fn new(world: Arc<World>, store: Arc<MemoryStore>, tell: bool) -> Arc<Self> {
        Arc::new(Self {
            world,
            store,
            bodies: Bodies::default(),
            state: Mutex::new(State {
                rows: BTreeMap::new(),
                hooks: BTreeMap::new(),
                hooks_done: BTreeSet::new(),
                passes: BTreeMap::new(),
                paused_by_expiry: BTreeMap::new(),
                on_their_way: Vec::new(),
                executed: BTreeSet::new(),
                sometimes: Sometimes::default(),
                story: tell.then(Vec::new),
                violation: None,
                transactions: 0,
            }),
        })
    }

    /// Adds a line to the story, if anyone wants to read it.
    pub(super) fn tell(&self, line: impl FnOnce() -> String) {
        let now = self.world.now();
        let mut state = self.lock();
        if let Some(story) = &mut state.story {
            story.push(format!("{now}  {}", line()));
        }
    }

    pub(super) fn note(&self, process: ProcessId, call: &Call, what: &str) {
        self.tell(|| format!("p{} {call}: {what}", process.0));
    }

    /// The runner of this process was given the run under this epoch.
    pub(super) fn claimed(&self, process: ProcessId, instance: InstanceKey, epoch: Epoch) {
        self.lock().passes.entry((process, instance)).or_default().insert(epoch);
    }

    /// The pass under this key is over.
    pub(super) fn pass_over(&self, process: ProcessId, key: RunKey) {
        if let Some(epochs) = self.lock().passes.get_mut(&(process, key.instance)) {
            epochs.remove(&key.epoch);
        }
    }

    /// A process is gone, and all its passes with it.
    pub(super) fn process_over(&self, process: ProcessId) {
        self.lock().passes.retain(|(of, _), _| *of != process);
    }

    /// A transaction ran: compares all rows with what they were.
    pub(super) fn after<T>(&self, process: ProcessId, call: &Call, answer: &Result<T, StoreError>) {
        self.tell(|| {
            let outcome = answer.as_ref().err().map(|e| format!(" -> {e}")).unwrap_or_default();
            format!("p{} {call}{outcome}", process.0)
        });
        let now = self.world.now();
        let rows: BTreeMap<_, _> =
            self.store.dump().into_iter().map(|dumped| (dumped.record.key, dumped)).collect();
        let mut state = self.lock();
        state.transactions += 1;
        if matches!(answer, Err(StoreError::Fenced)) {
            state.sometimes.saw(Rare::StaleCommitFenced);
        }
        if matches!(answer, Err(StoreError::Mutation(_))) {
            state.sometimes.saw(Rare::TransactionRefused);
        }
        let before = std::mem::take(&mut state.rows);
        let hooks = hooks::dump(&self.store);
        let hooks_before = std::mem::replace(&mut state.hooks, hooks);
        let accepted = answer.is_ok();
        let found = transitions::check(&before, &rows, call, accepted, now)
            .and_then(|()| commits::check(&before, &rows, call, accepted))
            .and_then(|()| claims::check(&before, &rows, call, now))
            .and_then(|()| rows::check(&rows, now))
            .and_then(|()| hooks::check(&hooks_before, &state.hooks, call, &state.hooks_done, now))
            .and_then(|()| hooks::check_causes(&state.hooks, &rows));
        state.notice_hooks(&hooks_before);
        state.notice(&before, &rows, call, now);
        state.rows = rows;
        if let Err(violation) = found {
            state.violation.get_or_insert(violation);
        }
    }

    /// Whether a claim that returned nothing has held or quarantined something.
    pub(super) fn tasks_changed(&self) -> bool {
        let tasks = self.store.dump_tasks();
        let state = self.lock();
        let known = state.rows.iter().map(|(key, instance)| (*key, instance.task));
        !tasks.into_iter().eq(known)
    }

    /// A claim came back with nothing and changed nothing.
    pub(super) fn claimed_nothing(&self, wanted: usize) {
        let now = self.world.now();
        let mut state = self.lock();
        if let Err(violation) = claims::check_nothing(&state.rows, wanted, now) {
            state.violation.get_or_insert(violation);
        }
    }

    /// A transaction was applied, but nobody will hear of it.
    pub(super) fn lost_answer(&self, process: ProcessId, call: &Call) {
        self.note(process, call, "applied, but the answer is lost");
        let rare = match call {
            Call::Commit { .. } => Rare::AmbiguousCommit,
            Call::Claim { .. } => Rare::ClaimWithoutAnswer,
            Call::Create { .. }
            | Call::Event { .. }
            | Call::Steer { .. }
            | Call::Renew
            | Call::Release
            | Call::AppendLogs
            | Call::TriggerHooks { .. }
            | Call::RetryHook { .. } => Rare::ClientCallWithoutAnswer,
            Call::WorkHooks { .. } => Rare::HookWorkWithoutAnswer,
        };
        self.sometimes(rare);
    }

    pub(super) fn sometimes(&self, rare: Rare) {
        self.lock().sometimes.saw(rare);
    }

    pub(super) fn violate(&self, invariant: &'static str, what: String) {
        self.lock().violation.get_or_insert(Violation { invariant, what });
    }

    pub(super) fn violation(&self) -> Option<Violation> {
        self.lock().violation.clone()
    }

    /// What was seen, and how many transactions there were.
    pub(super) fn harvest(&self) -> (Sometimes, u64, Vec<String>) {
        let mut state = self.lock();
        let story = state.story.take().unwrap_or_default();
        (std::mem::take(&mut state.sometimes), state.transactions, story)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fails with a violation unless the condition holds.
fn ensure(
    holds: bool,
    invariant: &'static str,
    what: impl FnOnce() -> String,
) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation { invariant, what: what() }) }
}
