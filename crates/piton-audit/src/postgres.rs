//! Asking a PostgreSQL database.

use std::str::FromStr;

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection, Row};

use crate::queries::{COUNTS, POSTGRES, Query};
use crate::{AuditError, EXAMPLES_MAX, Finding, Report};

/// All questions see the database at one moment, and none of them can change it.
const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

pub(crate) fn audit(url: &str, schema: &str) -> Result<Report, AuditError> {
    let options = PgConnectOptions::from_str(url)
        .map_err(|error| AuditError::new("this database", error))?
        .application_name("piton-audit")
        // The schema alone: what another one has is not meant.
        .options([("search_path", schema)])
        .disable_statement_logging();
    let place = format!("schema {schema} of {}:{}", options.get_host(), options.get_port());
    // On a thread of its own, as the caller may be asynchronous itself.
    let asked = std::thread::scope(|scope| {
        scope.spawn(|| block_on(&options)).join().expect("asking does not panic")
    });
    asked.map_err(|error| AuditError::new(place, error))
}

/// Takes the parameter `schema` out of a URL.
pub(crate) fn take_schema(url: &str) -> (String, Option<&str>) {
    let (place, parameters) = url.split_once('?').unwrap_or((url, ""));
    let (named, others): (Vec<&str>, Vec<&str>) =
        parameters.split('&').partition(|parameter| parameter.starts_with("schema="));
    let schema = named.last().and_then(|parameter| parameter.strip_prefix("schema="));
    (format!("{place}?{}", others.join("&")), schema)
}

fn block_on(options: &PgConnectOptions) -> Result<Report, sqlx::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut connection = options.connect().await?;
        let report = check(&mut connection).await?;
        connection.close().await?;
        Ok(report)
    })
}

async fn check(connection: &mut PgConnection) -> Result<Report, sqlx::Error> {
    connection.execute(BEGIN).await?;
    let mut report = Report { counts: Vec::new(), questions: 0, findings: Vec::new() };
    for query in POSTGRES.iter().copied().flatten() {
        report.questions += 1;
        report.findings.extend(ask(connection, query).await?);
    }
    for (table, sql) in COUNTS {
        let row = sqlx::query(*sql).fetch_one(&mut *connection).await?;
        report.counts.push((*table, row.try_get(0)?));
    }
    Ok(report)
}

/// Each row of the answer is a violation, told in its only column; the server counts those that are not told.
async fn ask(connection: &mut PgConnection, query: &Query) -> Result<Option<Finding>, sqlx::Error> {
    let Query { sql, .. } = query;
    let asked =
        format!("SELECT told, count(*) OVER () FROM ({sql}) AS found(told) LIMIT {EXAMPLES_MAX}");
    let rows = sqlx::query(AssertSqlSafe(asked)).fetch_all(connection).await?;
    let violations: i64 = rows.first().map_or(Ok(0), |row| row.try_get(1))?;
    let examples = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    Ok(query.finding(violations.unsigned_abs(), examples))
}
