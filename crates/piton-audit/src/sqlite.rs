//! Asking a SQLite file.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Transaction};

use crate::queries::{COUNTS, Query, SQLITE};
use crate::{EXAMPLES_MAX, Finding, Report};

pub(crate) fn audit(path: &Path) -> rusqlite::Result<Report> {
    // Opened for writing, because what a crash left in the log can only be read by a connection that may recover
    // it; and then kept from writing anything else, also when it is the last one to close.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.pragma_update(None, "query_only", true)?;
    connection.busy_timeout(Duration::from_secs(10))?;
    check(&connection.transaction()?)
}

fn check(transaction: &Transaction<'_>) -> rusqlite::Result<Report> {
    let mut report = Report { counts: Vec::new(), questions: 1, findings: Vec::new() };
    report.findings.extend(check_file(transaction)?);
    for query in SQLITE.iter().copied().flatten() {
        report.questions += 1;
        report.findings.extend(ask(transaction, query)?);
    }
    for (table, sql) in COUNTS {
        report.counts.push((*table, transaction.query_row(sql, [], |row| row.get(0))?));
    }
    Ok(report)
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
    Ok(query.finding(violations, examples))
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
