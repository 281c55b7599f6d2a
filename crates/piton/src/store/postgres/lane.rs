//! One connection of the committer: serves a batch, from the statement to the last answer.
//!
//! What is simple is written with one statement (`group.rs`, `lone.rs`), the rest in one transaction (`round.rs`).
//!
//! A lane outlives its connection. While the server is away requests wait (`Shared::patiently`); a boundary whose commit
//! was under way when the connection broke is looked up before it is tried again.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use piton_core::boundary::Next;
use piton_core::hook::EngineHook;
use piton_core::record::InstanceKey;
use piton_core::{InstanceId, Refusal, WorkflowName};
use sqlx::{Connection, PgConnection};

use super::group::{self, Decided};
use super::instance;
use super::lease::Lent;
use super::lone::LoneSteps;
use super::request::{Ask, Reply, Request};
use super::round::{self, Broken, Item};
use super::shared::Shared;
use super::statements::Db;
use super::trouble::{Failure, Fate, Trouble};
use crate::store::{Committed, CreateRequest, Existing, Hint, StoreError};

/// A connection that was idle this long is asked for a sign of life before it is used: a server that was restarted
/// meanwhile would otherwise leave the outcome of the first request in doubt.
const IDLE_US: u64 = 500_000;

/// How often a request is tried again because somebody else was faster.
const CONFLICTS_MAX: usize = 8;

/// A reply; `None` if the request was passed over.
type GroupReply = Option<Result<Reply, StoreError>>;

/// A connection that commits, and whether it can still be trusted.
pub(super) struct Lane {
    shared: Arc<Shared>,
    conn: Option<PgConnection>,
    used_us: u64,
    /// No connection was to be had, although the batch at hand has waited for one: it waits once, however many requests
    /// and rounds it has.
    away: Option<Failure>,
    /// Leases of rounds that were never answered: nobody advances these runs.
    lent: Vec<Lent>,
}

impl Lane {
    /// A lane without a connection makes one when it is used.
    pub(super) fn new(shared: Arc<Shared>, conn: Option<PgConnection>) -> Self {
        Self { shared, conn, used_us: 0, away: None, lent: Vec::new() }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.conn.is_some()
    }

    /// Makes a connection if there is none; waits for a server that is away.
    pub(super) async fn connect(&mut self) {
        self.away = None;
        if let Err(failure) = self.connection().await {
            tracing::warn!(reason = failure.message(), "no second connection to commit with");
        }
    }

    pub(super) async fn close(mut self) {
        if let Some(conn) = self.conn.take() {
            let _ = conn.close().await;
        }
    }

    /// Serves a batch.
    pub(super) async fn serve(&mut self, batch: Vec<Request>) {
        self.away = None;
        let (simple, rest) = self.sort(batch);
        let mut rest: VecDeque<Item> = rest.into_iter().map(|ask| Item::new(ask, false)).collect();
        if !simple.is_empty() {
            rest.extend(self.group(simple).await);
        }
        self.name_all(&mut rest).await;
        while !rest.is_empty() {
            let round = next_round(&mut rest);
            self.round(round).await;
        }
        if !self.lent.is_empty() {
            let (request, _) = Request::new(Ask::TakeBack(std::mem::take(&mut self.lent)));
            self.alone(Item::new(request, false)).await;
        }
    }

    /// Tells apart what one statement can write and what needs a look under the lock. A run and a name is there once.
    fn sort(&self, batch: Vec<Request>) -> (Vec<Request>, Vec<Request>) {
        let (mut runs, mut names) = (HashSet::new(), HashSet::new());
        let told = self.shared.engine_hooks();
        let tells = |hook| told.as_ref().is_some_and(|told| told.tells(hook));
        // What may be told by a hook is looked at one by one.
        let silent = |next: &Next| told.is_none() || matches!(next, Next::Continue { .. });
        batch.into_iter().partition(|request| match &request.ask {
            Ask::Commit(boundary) => {
                let remembered = self.shared.leases.get(boundary.key.instance);
                silent(&boundary.next)
                    && group::decide(boundary, remembered).is_some()
                    && runs.insert(boundary.key.instance)
            }
            Ask::Create(create) => {
                let one = create.existing == Existing::Skip || create.instances.len() == 1;
                let alone = create.hooks.is_empty() && !tells(EngineHook::WorkflowEnqueued);
                let mut new = create.instances.iter();
                one && alone
                    && new.all(|new| names.insert((create.workflow.clone(), new.id.clone())))
            }
            Ask::SendEvent(..)
            | Ask::Steer(_)
            | Ask::Renew(..)
            | Ask::Release(_)
            | Ask::TakeBack(_)
            | Ask::AppendLogs(..) => false,
        })
    }

    /// Writes everything simple at once. Returns what has to be looked at one by one.
    async fn group(&mut self, requests: Vec<Request>) -> Vec<Item> {
        match self.try_group(&requests).await {
            Ok(replies) => {
                let mut again = Vec::new();
                for (request, reply) in requests.into_iter().zip(replies) {
                    match reply {
                        Some(reply) => request.answer(reply),
                        None => again.push(Item::new(request, false)),
                    }
                }
                again
            }
            Err(failure) if failure.fate == Fate::Lost => {
                tracing::warn!(
                    reason = failure.message(),
                    "a batch was not answered; looking up what became of it"
                );
                let mut in_doubt = Vec::new();
                for request in requests {
                    if let Ask::Create(_) = &request.ask {
                        // Whether an instance is ours cannot be told from one that somebody else created.
                        request.answer(Err(failure.to_error()));
                    } else {
                        in_doubt.push(Item::new(request, true));
                    }
                }
                in_doubt
            }
            Err(failure) => {
                tracing::debug!(
                    reason = failure.message(),
                    "a batch was rolled back; its requests are tried alone"
                );
                requests.into_iter().map(|request| Item::new(request, false)).collect()
            }
        }
    }

    /// The replies, each at the place of its request; `None` for a boundary that was passed over.
    async fn try_group(&mut self, requests: &[Request]) -> Result<Vec<GroupReply>, Failure> {
        let shared = Arc::clone(&self.shared);
        let conn = self.connection().await?;
        let boundaries = requests.iter().filter_map(Request::boundary);
        let mut decided: Vec<Decided<'_>> = boundaries
            .filter_map(|boundary| {
                group::decide(boundary, shared.leases.get(boundary.key.instance))
            })
            .collect();
        decided.sort_unstable_by_key(|decided| decided.key().instance);
        let creates: Vec<&CreateRequest> = requests.iter().filter_map(Request::create).collect();
        let mut db = Db { conn, statements: &shared.statements };
        let fixed = shared.time.fixed();
        let done = match LoneSteps::all(&decided) {
            Some(steps) if creates.is_empty() => shared.in_time(steps.commit(&mut db, fixed)).await,
            Some(_) | None => {
                let work = group::commit(&mut db, &shared.ids, fixed, &decided, &creates);
                shared.in_time(work).await
            }
        };
        let done = done.map_err(|trouble| match trouble {
            Trouble::Database(failure) => failure,
            Trouble::Answer(error) => Failure::conflict(error.to_string()),
        });
        self.note(&done);
        let done = done?;
        let mut hints = Vec::new();
        let held: HashSet<InstanceKey> = done.held.iter().copied().collect();
        let mut committed: HashMap<InstanceKey, Committed> = HashMap::with_capacity(held.len());
        for decided in decided.iter().filter(|decided| held.contains(&decided.key().instance)) {
            hints.extend(decided.hint());
            match decided.task() {
                Some(task) => shared.leases.note(decided.key().instance, decided.workflow(), &task),
                None => shared.leases.forget(decided.key()),
            }
            let answer = Committed { now: done.now, after: decided.after, settled: Vec::new() };
            committed.insert(decided.key().instance, answer);
        }
        let replies = requests
            .iter()
            .map(|request| match (request.boundary(), request.create()) {
                (Some(boundary), _) => committed
                    .remove(&boundary.key.instance)
                    .map(|answer| Ok(Reply::Committed(answer))),
                (_, Some(create)) => Some(self.created(create, &done, &mut hints)),
                (None, None) => None,
            })
            .collect();
        // Before the answers: who has one can rely on it.
        shared.tell(hints);
        Ok(replies)
    }

    /// Drops a connection that is no good any more.
    fn note<T>(&mut self, outcome: &Result<T, Failure>) {
        self.used_us = self.shared.runtime.monotonic_us();
        if outcome.as_ref().is_err_and(|failure| failure.fate == Fate::Lost) {
            self.conn = None;
        }
    }

    fn created(
        &self,
        create: &CreateRequest,
        done: &group::Done,
        hints: &mut Vec<Hint>,
    ) -> Result<Reply, StoreError> {
        let created = done.created(create);
        if let (Existing::Refuse, Some(first), true) =
            (create.existing, create.instances.first(), created.is_empty())
        {
            return Err(Refusal::id_exists(&create.workflow, &first.id).into());
        }
        let task = done.first_task(create);
        for created in &created {
            self.shared.leases.note(created.instance.key, &create.workflow, &task);
        }
        if group::is_claimable(&task) && !created.is_empty() {
            hints.push(Hint::Due { workflow: create.workflow.clone(), at: task.run_at });
        }
        Ok(Reply::Created(created))
    }

    /// Finds the instances that are named. Keys never change: this needs no lock.
    async fn name_all(&mut self, items: &mut VecDeque<Item>) {
        if items.iter().all(|item| item.name().is_none()) {
            return;
        }
        let mut tries = 0;
        let keys = loop {
            let names: Vec<_> = items.iter().filter_map(Item::name).collect();
            match self.keys(&names).await {
                Ok(keys) => break keys,
                Err(failure)
                    if failure.fate == Fate::RolledBack
                        || failure.away
                        || tries == CONFLICTS_MAX =>
                {
                    for item in std::mem::take(items) {
                        if item.name().is_some() {
                            item.request.answer(Err(failure.to_error()));
                        } else {
                            items.push_back(item);
                        }
                    }
                    return;
                }
                Err(_) => tries += 1,
            }
        };
        let named = items.iter_mut().filter(|item| item.name().is_some());
        for (item, key) in named.zip(keys) {
            item.named = key;
        }
    }

    async fn keys(
        &mut self,
        names: &[(&WorkflowName, &InstanceId)],
    ) -> Result<Vec<Option<InstanceKey>>, Failure> {
        let shared = Arc::clone(&self.shared);
        let conn = self.connection().await?;
        let mut db = Db { conn, statements: &shared.statements };
        let keys = shared.in_time(instance::keys(&mut db, names)).await;
        let keys = keys.map_err(|trouble| match trouble {
            Trouble::Database(failure) => failure,
            Trouble::Answer(error) => Failure::conflict(error.to_string()),
        });
        self.note(&keys);
        keys
    }

    /// Serves a round: all in one transaction, or each in its own if one of them spoils it for the others.
    async fn round(&mut self, items: Vec<Item>) {
        match self.try_round(&items).await {
            Ok(answers) => answer_all(items, answers),
            Err(broken) if items.len() > 1 && broken.failure.fate != Fate::Lost => {
                for item in items {
                    self.alone(item).await;
                }
            }
            Err(broken) => {
                for item in items {
                    if let Some(item) = after(item, &broken) {
                        self.alone(item).await;
                    }
                }
            }
        }
    }

    /// Serves one request, however often somebody else is faster.
    async fn alone(&mut self, item: Item) {
        let mut item = item;
        for _ in 0..CONFLICTS_MAX {
            match self.try_round(std::slice::from_ref(&item)).await {
                Ok(answers) => return answer_all(vec![item], answers),
                Err(broken) => match after(item, &broken) {
                    Some(again) => item = again,
                    None => return,
                },
            }
        }
        let busy = "others kept changing the same rows; try again";
        item.request.answer(Err(StoreError::Unavailable(busy.to_owned())));
    }

    async fn try_round(&mut self, items: &[Item]) -> Result<round::Answers, Broken> {
        let shared = Arc::clone(&self.shared);
        let conn = self.connection().await?;
        let mut lent = Vec::new();
        let run = async { Ok(round::run(conn, &shared, items, &mut lent).await) };
        let answers = shared.in_time(run).await.unwrap_or_else(|TooLate(failure)| {
            // It may have been the answer to the commit that did not come.
            Err(Broken { failure, committing: true })
        });
        self.used_us = self.shared.runtime.monotonic_us();
        if answers.as_ref().is_err_and(|broken| broken.failure.fate == Fate::Lost) {
            self.conn = None;
            self.lent.append(&mut lent);
        }
        answers
    }

    /// The connection, as good as new; waits for a server that is away.
    async fn connection(&mut self) -> Result<&mut PgConnection, Failure> {
        let idle_us = self.shared.runtime.monotonic_us().saturating_sub(self.used_us);
        if let Some(conn) = &mut self.conn
            && idle_us > IDLE_US
            && self
                .shared
                .in_time(async { conn.ping().await.map_err(Failure::from) })
                .await
                .is_err()
        {
            self.conn = None;
        }
        if self.conn.is_none() {
            if let Some(away) = &self.away {
                return Err(away.clone());
            }
            let connected = self.shared.connect().await;
            self.conn = Some(connected.inspect_err(|failure| self.away = Some(failure.clone()))?);
        }
        Ok(self.conn.as_mut().expect("it was just put there"))
    }
}

/// The server did not answer in time, at whatever it was.
struct TooLate(Failure);

impl From<Failure> for TooLate {
    fn from(failure: Failure) -> Self {
        Self(failure)
    }
}

/// As many as do not concern the same runs, in order: what is left over must see what they did.
fn next_round(rest: &mut VecDeque<Item>) -> Vec<Item> {
    let mut taken = HashSet::new();
    let mut round = Vec::new();
    let mut later = VecDeque::new();
    for item in rest.drain(..) {
        let runs = item.keys();
        if later.is_empty() && runs.iter().all(|run| !taken.contains(run)) {
            taken.extend(runs);
            round.push(item);
        } else {
            later.push_back(item);
        }
    }
    *rest = later;
    round
}

fn answer_all(items: Vec<Item>, answers: round::Answers) {
    for (item, answer) in items.into_iter().zip(answers) {
        item.request.answer(answer);
    }
}

/// What becomes of a request whose transaction failed: `Some` to be tried again, otherwise it has been answered.
fn after(item: Item, broken: &Broken) -> Option<Item> {
    let failure = &broken.failure;
    let boundary = matches!(item.request.ask, Ask::Commit(_));
    match failure.fate {
        // Everybody has waited for it: who tried again would wait as long once more.
        _ if failure.away => {
            item.request.answer(Err(failure.to_error()));
            None
        }
        // A row was not as the runner believes: somebody else advanced the run, whatever its epoch says.
        Fate::Conflict if failure.unique && boundary => {
            item.request.answer(Err(StoreError::Fenced));
            None
        }
        // Nobody's boundaries wait for a lock that somebody else may hold for long.
        Fate::Conflict if failure.locked && !boundary => {
            item.request.answer(Err(failure.to_error()));
            None
        }
        Fate::Conflict => Some(item),
        Fate::Lost if !broken.committing => Some(item),
        Fate::Lost if boundary => Some(Item { in_doubt: true, ..item }),
        // Done twice is as good as done once.
        Fate::Lost
            if matches!(item.request.ask, Ask::Renew(..) | Ask::Release(_) | Ask::TakeBack(_)) =>
        {
            Some(item)
        }
        Fate::Lost | Fate::RolledBack => {
            item.request.answer(Err(failure.to_error()));
            None
        }
    }
}
