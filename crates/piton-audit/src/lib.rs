//! Checks a Piton database: one SQL query per invariant that rows alone can show.
//!
//! **This crate shares no code with the engine.** What it says about a database does not depend on what the
//! engine believes to have written. It only reads, in one transaction, so that it may be used beside a running
//! engine.
//!
//! ```no_run
//! let report = piton_audit::audit("orders.db")?;
//! print!("{report}");
//! assert!(report.is_clean());
//! # Ok::<(), piton_audit::AuditError>(())
//! ```
//!
//! What is not here, because rows of one moment cannot show it: that nothing changed which must not (I1, I5, I12),
//! that writers were fenced (I2), that what was acknowledged is there (I8). Those are what `docs/reliability.md`
//! has other means for.

mod postgres;
mod queries;
mod sqlite;

use std::error::Error;
use std::fmt;
use std::path::Path;

/// How many violations of one invariant are told in words; the others are counted.
const EXAMPLES_MAX: usize = 10;

/// Why a database could not be checked.
#[derive(Debug, thiserror::Error)]
#[error("cannot audit {place}: {source}")]
pub struct AuditError {
    /// Never a whole URL: it may hold a password.
    place: String,
    source: Box<dyn Error + Send + Sync>,
}

impl AuditError {
    fn new(place: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { place: place.into(), source: source.into() }
    }
}

/// What an audit found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// How many rows each table has.
    pub counts: Vec<(&'static str, i64)>,
    /// How many questions were asked.
    pub questions: usize,
    /// The invariants that are broken; empty if all is well.
    pub findings: Vec<Finding>,
}

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which one, as in `docs/reliability.md`; `file` for damage below the rows.
    pub invariant: &'static str,
    /// What must hold.
    pub rule: &'static str,
    /// How many rows break it.
    pub violations: u64,
    /// The first of them.
    pub examples: Vec<String>,
}

impl Report {
    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Checks a database: `orders.db`, `sqlite:orders.db` or `postgres://user@host/database`, with `?schema=…` for another
/// schema than `public`.
///
/// # Errors
///
/// If it cannot be read, or is not a Piton database.
pub fn audit(database: &str) -> Result<Report, AuditError> {
    match database.split_once(':') {
        Some(("postgres" | "postgresql", _)) => {
            let (url, schema) = postgres::take_schema(database);
            audit_postgres(&url, schema.unwrap_or("public"))
        }
        Some(("sqlite", path)) => audit_file(path.strip_prefix("//").unwrap_or(path).as_ref()),
        Some(("memory", "")) => {
            Err(AuditError::new(database, "it is gone with the process that has it"))
        }
        Some(_) | None => audit_file(database.as_ref()),
    }
}

/// Checks the database in a SQLite file.
///
/// # Errors
///
/// If the file cannot be read, or is not a Piton database.
pub fn audit_file(path: &Path) -> Result<Report, AuditError> {
    sqlite::audit(path).map_err(|error| AuditError::new(path.display().to_string(), error))
}

/// Checks the tables in a schema of a PostgreSQL database. Blocks, and may be called from anywhere.
///
/// # Errors
///
/// If the server cannot be reached, or the schema has no tables of Piton.
pub fn audit_postgres(url: &str, schema: &str) -> Result<Report, AuditError> {
    postgres::audit(url, schema)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (table, rows) in &self.counts {
            writeln!(f, "{rows:>12} {table}")?;
        }
        for Finding { invariant, rule, violations, examples } in &self.findings {
            writeln!(f, "{invariant} is broken {violations} times: {rule}")?;
            for example in examples {
                writeln!(f, "    {example}")?;
            }
        }
        match self.findings.len() {
            0 => writeln!(f, "{} questions, nothing found", self.questions),
            broken => writeln!(f, "{} questions, {broken} broken", self.questions),
        }
    }
}
