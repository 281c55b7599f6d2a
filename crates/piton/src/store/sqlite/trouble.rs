//! What can go wrong inside a transaction, and whom it concerns.
//!
//! A request that the rules refuse has written nothing, so only its own caller hears of it. A statement that
//! fails concerns the whole batch: it is rolled back and nobody is acknowledged. What then becomes of the store
//! depends on the reason: a full disk can be cleared, a failed fsync cannot.

use piton_core::boundary::Fenced;
use piton_core::{Code, Refusal};
use rusqlite::ErrorCode;

use crate::store::{MutationError, StoreError};

/// Why a request stopped.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The caller is told; the others of the batch go on.
    Answer(StoreError),
    /// The batch is rolled back.
    Batch(Failure),
}

/// The result of everything that runs inside a transaction.
pub(super) type Outcome<T> = Result<T, Trouble>;

/// Why a whole batch was rolled back.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    /// The store must not be used any more: what is on disk is unknown.
    pub(super) fatal: bool,
    /// What happened and what to do.
    pub(super) message: String,
    /// It was user code, although only the commit showed it: its steps fail, the others may try again.
    pub(super) by_mutations: bool,
}

impl Failure {
    pub(super) fn fatal(message: impl Into<String>) -> Self {
        Self { fatal: true, message: message.into(), by_mutations: false }
    }

    pub(super) fn passing(message: impl Into<String>) -> Self {
        Self { fatal: false, message: message.into(), by_mutations: false }
    }

    /// A failed COMMIT: unlike a failed statement it may have reached the disk halfway, so that only reasons
    /// known to come before any write leave the store usable.
    pub(super) fn of_commit(error: &rusqlite::Error) -> Self {
        match code_of(error) {
            // Our own tables have no such constraint.
            Some(ErrorCode::ConstraintViolation) => Self {
                by_mutations: true,
                ..Self::passing(format!(
                    "a step's transaction broke a constraint that is checked at the commit ({error}); \
                     tables that steps write must not have constraints DEFERRABLE INITIALLY DEFERRED"
                ))
            },
            Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy | ErrorCode::ReadOnly) => {
                error.into()
            }
            _ => Self::fatal(format!("the commit failed: {error}; {REOPEN}")),
        }
    }

    pub(super) fn to_error(&self) -> StoreError {
        if self.fatal {
            StoreError::Failed(self.message.clone())
        } else {
            StoreError::Unavailable(self.message.clone())
        }
    }
}

const REOPEN: &str = "check the disk, then restart the process: what was acknowledged is safe";

impl From<&rusqlite::Error> for Failure {
    #[expect(clippy::wildcard_enum_match_arm, reason = "SQLite's own, open-ended set")]
    fn from(error: &rusqlite::Error) -> Self {
        let Some(code) = code_of(error) else {
            return Self::passing(format!("internal: {error}"));
        };
        match code {
            ErrorCode::DiskFull => Self::passing(format!(
                "the disk is full ({error}); free some space, then try again"
            )),
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => Self::passing(format!(
                "another program holds the database's write lock ({error}); end its transaction, then try again"
            )),
            ErrorCode::ReadOnly | ErrorCode::PermissionDenied => Self::passing(format!(
                "the database cannot be written ({error}); make the file and its directory writable, then try again"
            )),
            ErrorCode::SystemIoFailure | ErrorCode::CannotOpen => {
                Self::fatal(format!("input/output error ({error}); {REOPEN}"))
            }
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => Self::fatal(format!(
                "the database file is damaged ({error}); restore it from a backup"
            )),
            _ => Self::passing(format!("a statement failed: {error}")),
        }
    }
}

/// SQLite's own code; `None` for errors of the Rust side (a conversion, a missing parameter).
pub(super) fn code_of(error: &rusqlite::Error) -> Option<ErrorCode> {
    error.sqlite_error_code()
}

/// Whether a statement broke a unique or primary-key constraint.
pub(super) fn is_unique_violation(error: &rusqlite::Error) -> bool {
    use rusqlite::ffi::{
        SQLITE_CONSTRAINT_PRIMARYKEY, SQLITE_CONSTRAINT_ROWID, SQLITE_CONSTRAINT_UNIQUE,
    };
    error.sqlite_error().is_some_and(|error| {
        [SQLITE_CONSTRAINT_PRIMARYKEY, SQLITE_CONSTRAINT_ROWID, SQLITE_CONSTRAINT_UNIQUE]
            .contains(&error.extended_code)
    })
}

/// A failed mutation: only its own step hears of it, the savepoint around it is rolled back.
pub(super) fn mutation_failed(code: Code, message: impl Into<String>) -> Trouble {
    let message = message.into();
    Trouble::Answer(StoreError::Mutation(MutationError { code, message }))
}

/// A row that says something no version of this code has ever written.
pub(super) fn damaged_row(table: &str, key: i64, reason: impl std::fmt::Display) -> Trouble {
    Refusal::damaged_row(table, key, reason).into()
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Self {
        Self::Batch(Failure::from(&error))
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
            Trouble::Batch(failure) => failure.to_error(),
        }
    }
}
