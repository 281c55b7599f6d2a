//! What can go wrong with the database, and whom it concerns.
//!
//! A request that the rules refuse has written nothing, so only its own caller hears of it. A statement that fails
//! takes its transaction with it; what is done then depends on whether it is certain that nothing was committed.

use piton_core::boundary::Fenced;
use piton_core::{Code, Refusal};
use sqlx::postgres::PgDatabaseError;

use crate::store::{MutationError, StoreError};

/// Why a request stopped.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The caller is told.
    Answer(StoreError),
    /// The transaction is gone.
    Database(Failure),
}

impl Trouble {
    /// As a failure of the whole transaction, where nobody alone is to be told.
    pub(super) fn into_failure(self) -> Failure {
        match self {
            Self::Database(failure) => failure,
            Self::Answer(error) => Failure::conflict(error.to_string()),
        }
    }
}

/// The result of everything that talks to the database.
pub(super) type Outcome<T> = Result<T, Trouble>;

/// What is known about the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The connection was lost, or the server is going away. If a commit was under way, nobody knows.
    Lost,
    /// Rolled back, because somebody else was faster: trying again may well succeed.
    Conflict,
    /// Rolled back, and trying again at once would end the same way.
    RolledBack,
}

/// A statement that failed.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) fate: Fate,
    /// A unique constraint was violated.
    pub(super) unique: bool,
    /// Somebody else held a lock for too long.
    pub(super) locked: bool,
    /// The server could not be reached, although it was waited for.
    pub(super) away: bool,
    message: String,
}

impl Failure {
    fn new(fate: Fate, message: impl Into<String>) -> Self {
        Self { fate, unique: false, locked: false, away: false, message: message.into() }
    }

    pub(super) fn lost(message: impl Into<String>) -> Self {
        Self::new(Fate::Lost, message)
    }

    /// Somebody else was faster; nothing may be committed.
    pub(super) fn conflict(message: impl Into<String>) -> Self {
        Self::new(Fate::Conflict, message)
    }

    /// A row was not as it must be; nothing may be committed.
    pub(super) fn contradiction(message: impl Into<String>) -> Self {
        Self { unique: true, ..Self::conflict(message) }
    }

    pub(super) fn of_parameter(error: &(dyn std::error::Error + Send + Sync)) -> Self {
        let message = format!("internal: a parameter cannot be encoded: {error}");
        Self::new(Fate::RolledBack, message)
    }

    pub(super) fn of_a_server_that_is_away(self) -> Self {
        Self { away: true, ..self }
    }

    pub(super) fn to_error(&self) -> StoreError {
        StoreError::Unavailable(self.message.clone())
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }
}

/// What the five characters of an error say about the transaction. The classes are those of the SQL standard.
fn fate_of(code: &str) -> Fate {
    match code {
        // Serialization failure, deadlock, unique violation, lock timeout.
        "40001" | "40P01" | "23505" | "55P03" => Fate::Conflict,
        // Shutdown, crash, not ready yet; a session that was idle in a transaction for too long.
        "57P01" | "57P02" | "57P03" | "57P05" | "25P03" => Fate::Lost,
        // No connection was to be had: everybody comes back at once after a restart.
        "53300" => Fate::Lost,
        // A server that only reads: the primary is elsewhere since a failover.
        "25006" => Fate::Lost,
        // Connection exceptions; a transaction whose outcome is unknown (CockroachDB).
        code if code.starts_with("08") || code == "40003" => Fate::Lost,
        _ => Fate::RolledBack,
    }
}

fn advice(code: &str) -> &'static str {
    match code {
        "42P01" | "3F000" => "; were Piton's tables removed while it runs?",
        "42501" => "; the database user needs SELECT, INSERT, UPDATE and DELETE on Piton's tables",
        "53100" => "; the server's disk is full: free some space",
        "53300" => "; raise max_connections, or open fewer connections per process",
        "55P03" => "; somebody else holds the instance: try again",
        "57014" => "; the statement timeout passed",
        "25006" => "; this server only reads: is the primary elsewhere?",
        _ => "",
    }
}

impl From<sqlx::Error> for Failure {
    #[expect(clippy::wildcard_enum_match_arm, reason = "an open-ended set of another crate")]
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Database(told) => {
                let code = told.code().unwrap_or_default();
                let fate = fate_of(&code);
                let unique = code == "23505";
                let message = format!("{told} ({code}){}", advice(&code));
                Self { unique, locked: code == "55P03", ..Self::new(fate, message) }
            }
            sqlx::Error::PoolTimedOut => {
                Self::lost("no connection to the database became free in time")
            }
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::WorkerCrashed => {
                Self::lost(format!("the connection to the database was lost: {error}"))
            }
            _ => Self::new(Fate::RolledBack, format!("internal: {error}")),
        }
    }
}

/// Whether a step's own SQL broke a unique or exclusion constraint.
pub(super) fn is_unique_violation(error: &sqlx::Error) -> bool {
    let told =
        error.as_database_error().and_then(|told| told.try_downcast_ref::<PgDatabaseError>());
    told.is_some_and(|told| told.code() == "23505" || told.code() == "23P01")
}

/// A failed mutation: the transaction is rolled back and its step has failed.
pub(super) fn mutation_failed(code: Code, message: impl Into<String>) -> Trouble {
    let message = message.into();
    Trouble::Answer(StoreError::Mutation(MutationError { code, message }))
}

/// A row that says something no version of this code has ever written.
pub(super) fn damaged_row(table: &str, key: i64, reason: impl std::fmt::Display) -> Trouble {
    Refusal::damaged_row(table, key, reason).into()
}

/// For the pool, where it is no failure that it has been closed.
impl From<sqlx::Error> for Trouble {
    fn from(error: sqlx::Error) -> Self {
        if matches!(error, sqlx::Error::PoolClosed) {
            return Self::Answer(StoreError::Closed);
        }
        Self::Database(error.into())
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Database(failure)
    }
}

impl From<Refusal> for Trouble {
    fn from(refusal: Refusal) -> Self {
        Self::Answer(refusal.into())
    }
}

impl From<Fenced> for Trouble {
    fn from(_: Fenced) -> Self {
        Self::Answer(StoreError::Fenced)
    }
}

impl From<Trouble> for StoreError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Answer(error) => error,
            Trouble::Database(failure) => failure.to_error(),
        }
    }
}
