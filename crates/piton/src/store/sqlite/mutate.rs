//! The user's own work inside a boundary's transaction.
//!
//! Whatever happens here concerns one step only: its savepoint is rolled back and its caller is told. Except
//! when the transaction itself is gone: then the store stops, because rows of others went with it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use piton_core::Code;
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{ErrorCode, ToSql, params_from_iter};

use super::batch::Batch;
use super::trouble::{Failure, Outcome, Trouble, code_of, is_unique_violation, mutation_failed};
use super::{create, event, hook};
use crate::store::{
    CreateRequest, Existing, Mutation, MutationError, SqlValue, SqliteWork, StoreError,
};

/// Whether it can do things that we do not know of.
pub(super) fn is_user_sql(mutation: &Mutation) -> bool {
    match mutation {
        Mutation::Execute { .. } | Mutation::Sqlite(_) => true,
        Mutation::Create { .. } | Mutation::SendEvent(_) | Mutation::TriggerHook(_) => false,
        #[cfg(feature = "postgres")]
        Mutation::Postgres(_) => false,
    }
}

/// Runs one mutation.
pub(super) fn apply(batch: &mut Batch<'_, '_>, mutation: Mutation) -> Outcome<()> {
    let outcome = match mutation {
        Mutation::Execute { sql, params } => execute(batch, &sql, params),
        Mutation::Sqlite(work) => run_user_code(batch, work),
        Mutation::Create { workflow, instance } => {
            let mut request = CreateRequest {
                workflow,
                instances: vec![instance],
                existing: Existing::Refuse,
                lease: None,
                hooks: Vec::new(),
            };
            create::create(batch, &mut request).map(drop).map_err(as_mutation)
        }
        Mutation::SendEvent(new) => event::send(batch, &new, None).map(drop).map_err(as_mutation),
        Mutation::TriggerHook(new) => hook::trigger(batch, &new),
        #[cfg(feature = "postgres")]
        Mutation::Postgres(_) => Err(mutation_failed(
            Code::StepTransaction,
            "this engine runs on SQLite: use `sqlite` instead of `postgres` in the step's transaction",
        )),
    };
    match outcome {
        Err(trouble @ Trouble::Batch(_)) => Err(trouble),
        // SQLite itself rolls back on some errors; user SQL can end the transaction, and can hide either.
        _ if batch.tx.is_autocommit() => Err(Trouble::Batch(Failure::fatal(
            "a step's transaction ended the store's own transaction; SQL of a step must not COMMIT or \
             ROLLBACK: fix it, then restart the process",
        ))),
        outcome => outcome,
    }
}

fn execute(batch: &mut Batch<'_, '_>, sql: &str, params: Vec<SqlValue>) -> Outcome<()> {
    let run = || {
        let mut statement = batch.tx.prepare_cached(sql)?;
        let mut rows = statement.query(params_from_iter(params))?;
        // Rows of a RETURNING are nobody's; the statement is done when they are read.
        while rows.next()?.is_some() {}
        rusqlite::Result::Ok(())
    };
    run().map_err(|error| judge(&error))
}

fn run_user_code(batch: &mut Batch<'_, '_>, work: SqliteWork) -> Outcome<()> {
    // Nothing of ours is left half-changed by a panic: the savepoint takes the rows back.
    match catch_unwind(AssertUnwindSafe(|| work(batch.tx))) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(judge_user_error(&error)),
        Err(panic) => {
            let message = crate::Error::from_panic(panic.as_ref()).message().to_owned();
            Err(mutation_failed(
                Code::StepTransaction,
                format!("the step's transaction panicked: {message}"),
            ))
        }
    }
}

/// What user code returned may be a SQLite error in disguise.
fn judge_user_error(error: &crate::Error) -> Trouble {
    let mut cause = error.source().map(|source| source as &dyn std::error::Error);
    while let Some(source) = cause {
        // It may come from another database: only a broken constraint is believed. If ours is in trouble,
        // its next statement tells.
        if source.downcast_ref::<rusqlite::Error>().is_some_and(is_unique_violation) {
            return mutation_failed(Code::UniqueConstraint, error.to_string());
        }
        cause = source.source();
    }
    mutation_failed(Code::StepTransaction, error.to_string())
}

fn judge(error: &rusqlite::Error) -> Trouble {
    // A full or broken disk is nobody's step: the batch fails as it would for a row of ours.
    if let Some(
        ErrorCode::DiskFull
        | ErrorCode::SystemIoFailure
        | ErrorCode::DatabaseCorrupt
        | ErrorCode::NotADatabase
        | ErrorCode::DatabaseBusy,
    ) = code_of(error)
    {
        return Trouble::Batch(Failure::from(error));
    }
    let code =
        if is_unique_violation(error) { Code::UniqueConstraint } else { Code::StepTransaction };
    mutation_failed(code, error.to_string())
}

/// A refused create or event is a failed mutation with the refusal's own code.
fn as_mutation(trouble: Trouble) -> Trouble {
    match trouble {
        Trouble::Answer(StoreError::Refused(refusal)) => {
            Trouble::Answer(StoreError::Mutation(MutationError {
                code: refusal.code,
                message: refusal.message,
            }))
        }
        trouble @ (Trouble::Answer(_) | Trouble::Batch(_)) => trouble,
    }
}

impl ToSql for SqlValue {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            SqlValue::Null => ToSqlOutput::Owned(Value::Null),
            SqlValue::Bool(value) => ToSqlOutput::Owned(Value::Integer((*value).into())),
            SqlValue::Integer(value) => ToSqlOutput::Owned(Value::Integer(*value)),
            SqlValue::Real(value) => ToSqlOutput::Owned(Value::Real(*value)),
            SqlValue::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            SqlValue::Blob(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
        })
    }
}
