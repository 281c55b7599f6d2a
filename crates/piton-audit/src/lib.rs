//! Checks a Piton database: one SQL query per invariant that rows alone can show.
//!
//! **This crate shares no code with the engine.** What it says about a database does not depend on what the
//! engine believes to have written. It only reads, in one transaction, so that it may be used beside a running
//! engine.
//!
//! ```no_run
//! let report = piton_audit::audit("orders.db".as_ref())?;
//! print!("{report}");
//! assert!(report.is_clean());
//! # Ok::<(), piton_audit::AuditError>(())
//! ```
//!
//! What is not here, because rows of one moment cannot show it: that nothing changed which must not (I1, I5, I12),
//! that writers were fenced (I2), that what was acknowledged is there (I8). Those are what `docs/reliability.md`
//! has other means for.

mod queries;

use std::fmt;
use std::path::Path;

use rusqlite::{Connection, OpenFlags, Transaction};

use queries::{COUNTS, QUERIES, Query};

/// How many violations of one invariant are told in words; the others are counted.
const EXAMPLES_MAX: usize = 10;

/// Why a database could not be checked.
#[derive(Debug, thiserror::Error)]
#[error("cannot audit {path}: {source}")]
pub struct AuditError {
    path: String,
    source: rusqlite::Error,
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

/// Checks the database in a SQLite file.
///
/// # Errors
///
/// If the file cannot be read, or is not a Piton database.
pub fn audit(path: &Path) -> Result<Report, AuditError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    // Opened for writing, because what a crash left in the log can only be read by a connection that may recover
    // it; and then kept from writing anything else.
    let open = || {
        let mut connection = Connection::open_with_flags(path, flags)?;
        connection.pragma_update(None, "query_only", true)?;
        connection.busy_timeout(std::time::Duration::from_secs(10))?;
        let transaction = connection.transaction()?;
        check(&transaction)
    };
    open().map_err(|source| AuditError { path: path.display().to_string(), source })
}

fn check(transaction: &Transaction<'_>) -> rusqlite::Result<Report> {
    let mut findings = Vec::new();
    findings.extend(check_file(transaction)?);
    for query in QUERIES {
        findings.extend(ask(transaction, query)?);
    }
    let mut counts = Vec::new();
    for (table, sql) in COUNTS {
        counts.push((*table, transaction.query_row(sql, [], |row| row.get(0))?));
    }
    Ok(Report { counts, questions: QUERIES.len() + 1, findings })
}

/// Each row of the answer is a violation, told in its only column.
fn ask(transaction: &Transaction<'_>, query: &Query) -> rusqlite::Result<Option<Finding>> {
    let mut statement = transaction.prepare(query.sql)?;
    let mut rows = statement.query([])?;
    let (mut violations, mut examples) = (0, Vec::new());
    while let Some(row) = rows.next()? {
        violations += 1;
        if examples.len() < EXAMPLES_MAX {
            examples.push(row.get(0)?);
        }
    }
    let finding = Finding { invariant: query.invariant, rule: query.rule, violations, examples };
    Ok((violations > 0).then_some(finding))
}

/// What SQLite itself has to say about the file.
fn check_file(transaction: &Transaction<'_>) -> rusqlite::Result<Option<Finding>> {
    let mut statement = transaction.prepare("PRAGMA quick_check(10)")?;
    let lines = statement.query_map([], |row| row.get::<_, String>(0))?;
    let examples: Vec<String> = lines.collect::<Result<_, _>>()?;
    let finding = Finding {
        invariant: "file",
        rule: "the file is whole",
        violations: examples.len() as u64,
        examples: examples.clone(),
    };
    Ok((examples != ["ok"]).then_some(finding))
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
