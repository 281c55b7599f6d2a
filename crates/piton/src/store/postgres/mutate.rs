//! A boundary with work of the user's inside its transaction.
//!
//! It has a transaction and a connection of its own: user code may take its time, and what goes wrong concerns one step
//! only. User code runs first; only when it is done is the run locked, together with those that it sends events to, so that
//! nobody waits for user code. The work can run once only: if the connection is lost, either the step is recorded or
//! nothing has happened.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use piton_core::hook::NewHook;
use piton_core::record::{InstanceKey, Task};
use piton_core::{Code, InstanceId, WorkflowName, boundary};
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgTypeInfo};
use sqlx::{Acquire, AssertSqlSafe, Encode, PgConnection, PgPool, Postgres, Row, Type};

use super::request::PlainBoundary;
use super::shared::Shared;
use super::statements::{Db, params};
use super::transaction::{Transaction, roll_back};
use super::trouble::{Failure, Fate, Outcome, Trouble, is_unique_violation, mutation_failed};
use super::{commit, create, event, instance, task};
use crate::store::{
    Committed, CreateRequest, Existing, Hint, Mutation, MutationError, NewEvent, PostgresWork,
    SqlValue, StoreError,
};

/// Which transaction this is.
const TRANSACTION: &str = "SELECT pg_current_xact_id()::text";

/// How often a commit of unknown outcome is looked up; each time the pool waits for a connection.
const LOOKS_MAX: usize = 5;

/// Commits a boundary that carries mutations.
pub(super) async fn commit(
    pool: &PgPool,
    shared: &Shared,
    boundary: PlainBoundary,
    mutations: Vec<Mutation>,
) -> Outcome<Committed> {
    // While the server is away the step waits for it. From here on it cannot: its work can run once only.
    let begin = || async { Ok(pool.begin().await?) };
    let database = shared.patiently(begin).await?;
    let committing = shared.in_time(try_commit(database, shared, &boundary, mutations)).await;
    match committing {
        Err(Unfinished::Commit(failure)) if failure.fate == Fate::Lost => {
            tracing::warn!(
                reason = failure.message(),
                "a step's transaction was not answered; looking it up"
            );
            look_up(pool, shared, &boundary, failure).await
        }
        Err(Unfinished::Commit(failure)) => Err(at_commit(&failure)),
        Err(Unfinished::Before(trouble)) => Err(trouble),
        Ok(committed) => Ok(committed),
    }
}

/// Where it stopped.
enum Unfinished {
    Before(Trouble),
    Commit(Failure),
}

impl<T: Into<Trouble>> From<T> for Unfinished {
    fn from(trouble: T) -> Self {
        Self::Before(trouble.into())
    }
}

async fn try_commit(
    mut database: sqlx::Transaction<'_, Postgres>,
    shared: &Shared,
    boundary: &PlainBoundary,
    mutations: Vec<Mutation>,
) -> Result<Committed, Unfinished> {
    let written = match write(&mut database, shared, boundary, mutations).await {
        Ok(written) => written,
        Err(trouble) => {
            roll_back(database).await;
            return Err(trouble.into());
        }
    };
    database.commit().await.map_err(|error| Unfinished::Commit(error.into()))?;
    let left = written.left.as_ref().map(|(workflow, task)| (workflow, task));
    shared.leases.refresh(boundary.key.instance, left);
    shared.tell(written.hints);
    Ok(written.committed)
}

/// What is to be committed, and told after it.
struct Written {
    committed: Committed,
    hints: Vec<Hint>,
    /// The run's own task as it is left.
    left: Option<(WorkflowName, Task)>,
}

async fn write(
    conn: &mut PgConnection,
    shared: &Shared,
    boundary: &PlainBoundary,
    mutations: Vec<Mutation>,
) -> Outcome<Written> {
    let mut db = Db { conn, statements: &shared.statements };
    let own = boundary.key.instance;
    // For one that is fenced already the user's work need not even begin.
    let task = task::get(&mut db, own).await?;
    boundary::guard(task.as_ref(), &boundary.key)?;
    let engines = run_users(&mut db, mutations).await?;
    let receivers = existing(&mut db, receivers(&engines)).await?;
    let mut keys: Vec<InstanceKey> = receivers.into_iter().chain([own]).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut tx = Transaction::lock(db, &shared.ids, &shared.time, &keys).await?;
    tx.tell_by_hooks(shared.engine_hooks());
    boundary::guard(tx.task(own).as_ref(), &boundary.key)?;
    for mutation in engines {
        mutation.apply(&mut tx).await.map_err(as_mutation)?;
    }
    let committed = commit::commit(&mut tx, boundary, true, &mut std::iter::empty())?;
    tx.flush().await.map_err(fenced)?;
    let hints = std::mem::take(&mut tx.hints);
    let left = tx.workflow(own).cloned().zip(tx.task(own));
    Ok(Written { committed, hints, left })
}

/// A row of ours that was not as the runner believes: somebody else advanced the run, whatever its epoch says.
fn fenced(failure: Failure) -> Trouble {
    if failure.unique { Trouble::Answer(StoreError::Fenced) } else { failure.into() }
}

/// Constraints may be checked as late as the commit; then it was the user's.
fn at_commit(failure: &Failure) -> Trouble {
    let code = if failure.unique { Code::UniqueConstraint } else { Code::StepTransaction };
    mutation_failed(code, failure.message())
}

/// What the engine does for a step, beside the user's own work.
enum Engines {
    Create(CreateRequest),
    SendEvent(NewEvent),
    TriggerHook(NewHook),
}

impl Engines {
    async fn apply(self, tx: &mut Transaction<'_>) -> Outcome<()> {
        match self {
            Self::Create(request) => create::create(tx, &request).await.map(drop),
            Self::SendEvent(new) => send(tx, &new).await,
            Self::TriggerHook(new) => {
                tx.hooks.push(new);
                Ok(())
            }
        }
    }
}

/// The names of the instances that events are sent to.
fn receivers(engines: &[Engines]) -> Vec<(WorkflowName, InstanceId)> {
    let receivers = engines.iter().filter_map(|mutation| match mutation {
        Engines::SendEvent(event) => Some((event.workflow.clone(), event.id.clone())),
        Engines::Create(_) | Engines::TriggerHook(_) => None,
    });
    receivers.collect()
}

/// The keys of those that exist by now.
async fn existing(
    db: &mut Db<'_>,
    receivers: Vec<(WorkflowName, InstanceId)>,
) -> Outcome<Vec<InstanceKey>> {
    if receivers.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<_> = receivers.iter().map(|(workflow, id)| (workflow, id)).collect();
    Ok(instance::keys(db, &names).await?.into_iter().flatten().collect())
}

/// Runs the user's work in its order; what is left is the engine's.
async fn run_users(db: &mut Db<'_>, mutations: Vec<Mutation>) -> Outcome<Vec<Engines>> {
    let mut engines = Vec::new();
    for mutation in mutations {
        match mutation {
            Mutation::Execute { sql, params } => {
                let before = transaction(db).await?;
                execute(db, sql, params).await?;
                check_same(db, before).await?;
            }
            Mutation::Postgres(work) => {
                let before = transaction(db).await?;
                run_user_code(db, work).await?;
                check_same(db, before).await?;
            }
            Mutation::Create { workflow, instance } => {
                let (instances, existing) = (vec![instance], Existing::Refuse);
                let request =
                    CreateRequest { workflow, instances, existing, lease: None, hooks: Vec::new() };
                engines.push(Engines::Create(request));
            }
            Mutation::SendEvent(new) => engines.push(Engines::SendEvent(new)),
            Mutation::TriggerHook(new) => engines.push(Engines::TriggerHook(new)),
            #[cfg(feature = "sqlite")]
            Mutation::Sqlite(_) => {
                return Err(mutation_failed(
                    Code::StepTransaction,
                    "this engine runs on PostgreSQL: use `postgres` instead of `sqlite` in the step's transaction",
                ));
            }
        }
    }
    Ok(engines)
}

async fn send(tx: &mut Transaction<'_>, new: &NewEvent) -> Outcome<()> {
    let keys = instance::keys(&mut tx.db, &[(&new.workflow, &new.id)]).await?;
    let key = keys.into_iter().next().flatten();
    if let Some(key) = key {
        // Locked in order already, unless this very transaction created it.
        tx.lock_also(key).await?;
    }
    event::send(tx, key, new, None).await?;
    Ok(tx.flush().await?)
}

async fn transaction(db: &mut Db<'_>) -> Outcome<Option<String>> {
    let number =
        db.one(TRANSACTION, params![], |row| Ok(row.try_get(0).map_err(Failure::from)?)).await;
    // User code that swallowed an error of the database comes to light here.
    number.map(Option::flatten).map_err(|trouble| match trouble {
        Trouble::Database(failure) if failure.fate != Fate::Lost => {
            mutation_failed(Code::StepTransaction, failure.message())
        }
        trouble @ (Trouble::Answer(_) | Trouble::Database(_)) => trouble,
    })
}

async fn check_same(db: &mut Db<'_>, before: Option<String>) -> Outcome<()> {
    if before.is_some() && transaction(db).await? == before {
        return Ok(());
    }
    Err(mutation_failed(
        Code::StepTransaction,
        "the SQL of a step ended the step's transaction; it must not COMMIT or ROLLBACK: fix it",
    ))
}

async fn execute(db: &mut Db<'_>, sql: String, params: Vec<SqlValue>) -> Outcome<()> {
    let mut query = sqlx::query(AssertSqlSafe(sql));
    for value in params {
        query = query.bind(value);
    }
    query.execute(&mut *db.conn).await.map(drop).map_err(judge)
}

async fn run_user_code(db: &mut Db<'_>, work: PostgresWork) -> Outcome<()> {
    // Nothing of ours is left half-changed by a panic: the transaction is rolled back.
    let begun = catch_unwind(AssertUnwindSafe(|| work(&mut *db.conn)));
    let mut running = pin!(begun.map_err(|panic| panicked(&*panic))?);
    let done = poll_fn(|context| {
        match catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panicked(&*panic))),
        }
    });
    done.await?.map_err(|error| judge_user_error(&error))
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Trouble {
    let message = crate::Error::from_panic(panic).to_string();
    mutation_failed(Code::StepTransaction, format!("the step's transaction panicked: {message}"))
}

fn judge(error: sqlx::Error) -> Trouble {
    if is_unique_violation(&error) {
        return mutation_failed(Code::UniqueConstraint, error.to_string());
    }
    let failure = Failure::from(error);
    match failure.fate {
        Fate::Lost => failure.into(),
        Fate::Conflict | Fate::RolledBack => {
            mutation_failed(Code::StepTransaction, failure.message())
        }
    }
}

/// What user code returned may be an error of the database in disguise.
fn judge_user_error(error: &crate::Error) -> Trouble {
    let mut cause = error.source().map(|source| source as &dyn std::error::Error);
    while let Some(source) = cause {
        // It may come from another database: only a broken constraint is believed. If ours is in trouble, its next
        // statement tells.
        if source.downcast_ref::<sqlx::Error>().is_some_and(is_unique_violation) {
            return mutation_failed(Code::UniqueConstraint, error.to_string());
        }
        cause = source.source();
    }
    mutation_failed(Code::StepTransaction, error.to_string())
}

/// A refused create or event is a failed mutation with the refusal's own code.
fn as_mutation(trouble: Trouble) -> Trouble {
    match trouble {
        Trouble::Answer(StoreError::Refused(refusal)) => {
            let (code, message) = (refusal.code, refusal.message);
            Trouble::Answer(StoreError::Mutation(MutationError { code, message }))
        }
        trouble @ (Trouble::Answer(_) | Trouble::Database(_)) => trouble,
    }
}

/// The step is recorded, or nothing has happened: the run is given up then, and claimed again.
async fn look_up(
    pool: &PgPool,
    shared: &Shared,
    boundary: &PlainBoundary,
    failure: Failure,
) -> Outcome<Committed> {
    for _ in 0..LOOKS_MAX {
        match shared.in_time(look_up_once(pool, shared, boundary)).await {
            Ok(Some(committed)) => return Ok(committed),
            Ok(None) => return Err(failure.into()),
            Err(Trouble::Database(again)) if again.fate == Fate::Lost => {}
            Err(trouble) => return Err(trouble),
        }
    }
    Err(failure.into())
}

async fn look_up_once(
    pool: &PgPool,
    shared: &Shared,
    boundary: &PlainBoundary,
) -> Outcome<Option<Committed>> {
    let mut conn = pool.acquire().await?;
    let mut database = conn.begin().await.map_err(Failure::from)?;
    let found = locked_and_recorded(&mut database, shared, boundary).await;
    roll_back(database).await;
    found
}

async fn locked_and_recorded(
    conn: &mut PgConnection,
    shared: &Shared,
    boundary: &PlainBoundary,
) -> Outcome<Option<Committed>> {
    let db = Db { conn, statements: &shared.statements };
    // The lock waits for the transaction in question, should the server still be at it.
    let key = boundary.key.instance;
    let mut tx = Transaction::lock(db, &shared.ids, &shared.time, &[key]).await?;
    commit::recorded(&mut tx, boundary).await
}

impl Type<Postgres> for SqlValue {
    fn type_info() -> PgTypeInfo {
        // Unknown: the server finds out what it is to be. Only a NULL stays that way.
        PgTypeInfo::with_oid(Oid(705))
    }

    fn compatible(_: &PgTypeInfo) -> bool {
        true
    }
}

impl Encode<'_, Postgres> for SqlValue {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        match self {
            SqlValue::Null => Ok(IsNull::Yes),
            SqlValue::Bool(value) => <bool as Encode<'_, Postgres>>::encode_by_ref(value, buffer),
            SqlValue::Integer(value) => <i64 as Encode<'_, Postgres>>::encode_by_ref(value, buffer),
            SqlValue::Real(value) => <f64 as Encode<'_, Postgres>>::encode_by_ref(value, buffer),
            SqlValue::Text(value) => <String as Encode<'_, Postgres>>::encode_by_ref(value, buffer),
            SqlValue::Blob(value) => {
                <Vec<u8> as Encode<'_, Postgres>>::encode_by_ref(value, buffer)
            }
        }
    }

    fn produces(&self) -> Option<PgTypeInfo> {
        Some(match self {
            SqlValue::Null => <Self as Type<Postgres>>::type_info(),
            SqlValue::Bool(_) => <bool as Type<Postgres>>::type_info(),
            SqlValue::Integer(_) => <i64 as Type<Postgres>>::type_info(),
            SqlValue::Real(_) => <f64 as Type<Postgres>>::type_info(),
            SqlValue::Text(_) => <String as Type<Postgres>>::type_info(),
            SqlValue::Blob(_) => <Vec<u8> as Type<Postgres>>::type_info(),
        })
    }
}
