//! One transaction for requests that need their runs' locks: events, steering, leases, and boundaries that are not
//! simple.

use piton_core::record::{InstanceKey, LogLine, RunNumber, Task};
use piton_core::{InstanceId, WorkflowName};
use sqlx::{Connection, PgConnection};

use super::lease::Lent;
use super::log::Line;
use super::request::{Ask, PlainBoundary, Reply, Request};
use super::shared::Shared;
use super::statements::Db;
use super::task::Row;
use super::transaction::{Transaction, roll_back};
use super::trouble::{Failure, Outcome, Trouble};
use super::{commit, create, event, lease, steer};
use crate::store::{Hint, StoreError};

/// A request that waits for its turn.
pub(super) struct Item {
    pub(super) request: Request,
    /// It was sent before, and nobody knows whether it was committed.
    pub(super) in_doubt: bool,
    /// The instance it names, once that is known and if there is one.
    pub(super) named: Option<InstanceKey>,
}

impl Item {
    pub(super) fn new(request: Request, in_doubt: bool) -> Self {
        Self { request, in_doubt, named: None }
    }

    pub(super) fn name(&self) -> Option<(&WorkflowName, &InstanceId)> {
        match &self.request.ask {
            Ask::SendEvent(event, _) => Some((&event.workflow, &event.id)),
            Ask::Steer(to) => Some((&to.workflow, &to.id)),
            Ask::Create(_)
            | Ask::Commit(_)
            | Ask::Renew(..)
            | Ask::Release(_)
            | Ask::TakeBack(_)
            | Ask::AppendLogs(..) => None,
        }
    }

    /// Whose locks it needs. Two requests for one run never share a transaction: the second must see what the first did.
    pub(super) fn keys(&self) -> Vec<InstanceKey> {
        match &self.request.ask {
            Ask::Create(_) => Vec::new(),
            Ask::Commit(boundary) => vec![boundary.key.instance],
            Ask::SendEvent(..) | Ask::Steer(_) => self.named.into_iter().collect(),
            Ask::Renew(keys, _) | Ask::Release(keys) => {
                keys.iter().map(|key| key.instance).collect()
            }
            Ask::TakeBack(all) => all.iter().map(|taken| taken.instance).collect(),
            Ask::AppendLogs(instance, _, _) => vec![*instance],
        }
    }
}

/// Why a round failed.
pub(super) struct Broken {
    pub(super) failure: Failure,
    /// The commit was under way: if the connection was lost, nobody knows.
    pub(super) committing: bool,
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Self {
        Self { failure, committing: false }
    }
}

impl From<sqlx::Error> for Broken {
    fn from(error: sqlx::Error) -> Self {
        Failure::from(error).into()
    }
}

/// Answers of a round, each at the place of its request.
pub(super) type Answers = Vec<Result<Reply, StoreError>>;

/// Runs all of them in one transaction. `lent` is what was leased with it, or may have been: if there is no answer, nobody
/// advances it.
pub(super) async fn run(
    conn: &mut PgConnection,
    shared: &Shared,
    items: &[Item],
    lent: &mut Vec<Lent>,
) -> Result<Answers, Broken> {
    let mut database = conn.begin().await?;
    let written = match write(&mut database, shared, items).await {
        Ok(written) => written,
        Err(failure) => {
            roll_back(database).await;
            return Err(failure.into());
        }
    };
    let leased = written.leased.iter();
    lent.extend(leased.map(|row| Lent { instance: row.key, task: row.task }));
    let committed = database.commit().await;
    committed.map_err(|error| Broken { failure: error.into(), committing: true })?;
    for (key, left) in &written.left {
        shared.leases.refresh(*key, left.as_ref().map(|(workflow, task)| (workflow, task)));
    }
    for row in &written.leased {
        shared.leases.note(row.key, &row.workflow, &row.task);
    }
    shared.tell(written.hints);
    Ok(written.answers)
}

/// What is to be committed, and told after it.
struct Written {
    answers: Answers,
    hints: Vec<Hint>,
    /// The tasks as they are left.
    left: Vec<(InstanceKey, Option<(WorkflowName, Task)>)>,
    /// Those of runs that were created or woken already leased.
    leased: Vec<Row>,
}

async fn write(
    conn: &mut PgConnection,
    shared: &Shared,
    items: &[Item],
) -> Result<Written, Failure> {
    let db = Db { conn, statements: &shared.statements };
    let mut keys: Vec<InstanceKey> = items.iter().flat_map(Item::keys).collect();
    keys.sort_unstable();
    keys.dedup();
    let locked = Transaction::lock(db, &shared.ids, &shared.time, &keys).await;
    let mut tx = answerable(locked)?;
    tx.tell_by_hooks(shared.engine_hooks());
    let answers = run_all(&mut tx, items).await?;
    tx.flush().await?;
    let (hints, leased) = (std::mem::take(&mut tx.hints), std::mem::take(&mut tx.leased));
    let left =
        keys.into_iter().map(|key| (key, tx.workflow(key).cloned().zip(tx.task(key)))).collect();
    Ok(Written { answers, hints, left, leased })
}

async fn run_all(tx: &mut Transaction<'_>, items: &[Item]) -> Result<Answers, Failure> {
    let boundaries =
        items.iter().filter(|item| !item.in_doubt).filter_map(|item| item.request.boundary());
    let looks: Vec<_> = boundaries.flat_map(|boundary| commit::looks(boundary, tx.now)).collect();
    let mut found = answerable(event::oldest(&mut tx.db, &looks).await)?.into_iter();
    let mut answers = Vec::with_capacity(items.len());
    for item in items {
        let reply = match &item.request.ask {
            Ask::Commit(boundary) if item.in_doubt => {
                commit_in_doubt(tx, boundary).await.map(Reply::Committed)
            }
            Ask::Commit(boundary) => {
                // Its looks are used up also when it is fenced.
                let mut own = found
                    .by_ref()
                    .take(commit::looks(boundary, tx.now).count())
                    .collect::<Vec<_>>()
                    .into_iter();
                commit::commit(tx, boundary, false, &mut own).map(Reply::Committed)
            }
            Ask::Create(request) => create::create(tx, request).await.map(Reply::Created),
            Ask::SendEvent(new, claimant) => {
                event::send(tx, item.named, new, claimant.as_ref()).await.map(Reply::Sent)
            }
            Ask::Steer(to) => steer::steer(tx, item.named, to).await.map(Reply::Steered),
            Ask::Renew(keys, span) => Ok(Reply::Renewed(lease::renew(tx, keys, *span))),
            Ask::Release(keys) => {
                lease::release(tx, keys);
                Ok(Reply::Done)
            }
            Ask::TakeBack(all) => {
                lease::take_back(tx, all);
                Ok(Reply::Done)
            }
            Ask::AppendLogs(instance, run, lines) => {
                append(tx, *instance, *run, lines);
                Ok(Reply::Done)
            }
        };
        answers.push(match reply {
            Ok(reply) => Ok(reply),
            Err(Trouble::Answer(error)) => Err(error),
            Err(Trouble::Database(failure)) => return Err(failure),
        });
    }
    Ok(answers)
}

/// A row that cannot be read among many concerns all who were to be served with it: each is tried alone then.
fn answerable<T>(outcome: Outcome<T>) -> Result<T, Failure> {
    outcome.map_err(|trouble| match trouble {
        Trouble::Database(failure) => failure,
        Trouble::Answer(error) => Failure::conflict(error.to_string()),
    })
}

/// A boundary that was sent before: recorded as ours, or tried again if the run is still ours, or fenced.
async fn commit_in_doubt(
    tx: &mut Transaction<'_>,
    boundary: &PlainBoundary,
) -> Outcome<crate::store::Committed> {
    if let Some(committed) = commit::recorded(tx, boundary).await? {
        return Ok(committed);
    }
    let looks: Vec<_> = commit::looks(boundary, tx.now).collect();
    let mut found = event::oldest(&mut tx.db, &looks).await?.into_iter();
    commit::commit(tx, boundary, false, &mut found)
}

/// Appends lines to a run that the caller does not hold. Ended and superseded runs never change.
fn append(tx: &mut Transaction<'_>, instance: InstanceKey, run: RunNumber, lines: &[LogLine]) {
    if tx.task(instance).is_some_and(|task| task.run == run) {
        let lines = lines.iter();
        tx.logs.extend(lines.map(|line| Line { instance, run, line: line.clone() }));
    }
}
