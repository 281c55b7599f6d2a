//! How a database gets to the newest schema.
//!
//! Any number of processes may start at once: the first one takes an advisory lock and migrates in one transaction, the
//! others wait for it and find everything done. A crash leaves all or nothing. One that is frozen in the middle of it blocks
//! nobody for long: the server ends its transaction, another process migrates, and the frozen one begins again when it is
//! back.

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use super::open;
use super::trouble::{Failure, Fate};
use piton_core::Span;

use crate::Error;
use crate::runtime::Runtime;
use crate::store::Secret;

/// Migration `n` leads from version `n` to `n + 1`. They are never changed once released.
const MIGRATIONS: &[&str] = &[
    include_str!("migrations/0001_first.sql"),
    include_str!("migrations/0002_hooks.sql"),
    include_str!("migrations/0003_secret.sql"),
    include_str!("migrations/0004_hook_lanes.sql"),
    include_str!("migrations/0005_one_index_less.sql"),
];

/// The version of the newest schema.
fn newest() -> i32 {
    i32::try_from(MIGRATIONS.len()).unwrap_or(i32::MAX)
}

/// How long one attempt waits for another process that is migrating.
const TURN_WAIT: &str = "5s";

/// How long it waits for somebody who uses a table that is to be changed. Who waits for a table keeps others from it, so
/// that this is short, and is followed by [`PAUSE`].
const TABLE_WAIT: &str = "500ms";

/// The pause between two attempts, in which others get on with their work.
const PAUSE: Span = Span::from_millis(2_000);

/// When a start gives up.
const PATIENCE_US: u64 = 300_000_000;

/// Why an attempt ended.
enum Obstacle {
    /// Trying again would end the same way.
    Refused(Error),
    Database(Failure),
}

impl From<sqlx::Error> for Obstacle {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}

/// Connects, and brings the schema up to date.
///
/// # Errors
///
/// `STORE_UNUSABLE` if the server cannot be used, the schema belongs to a newer version of this code, the user may not create
/// tables, or others are in the way for too long.
pub(super) async fn connect_and_migrate(
    connect: &PgConnectOptions,
    schema: &str,
    runtime: &dyn Runtime,
) -> crate::Result<PgConnection> {
    let mut conn = open::connect(connect).await?;
    let began_us = runtime.monotonic_us();
    while runtime.monotonic_us().saturating_sub(began_us) < PATIENCE_US {
        match attempt(&mut conn, schema).await {
            Ok(()) => return Ok(conn),
            Err(Obstacle::Refused(error)) => return Err(error),
            Err(Obstacle::Database(failure)) => match failure.fate {
                Fate::RolledBack => return Err(cannot(schema, failure.message())),
                Fate::Conflict => tracing::warn!(
                    schema,
                    reason = failure.message(),
                    "another process is migrating Piton's tables, or somebody has locked them; waiting"
                ),
                Fate::Lost => {
                    tracing::warn!(
                        schema,
                        reason = failure.message(),
                        "the connection was lost while Piton's tables were looked at; trying again"
                    );
                    conn = open::connect(connect).await?;
                }
            },
        }
        runtime.sleep(PAUSE).await;
    }
    let minutes = PATIENCE_US / 60_000_000;
    Err(Error::store_unusable(format!(
        "Piton's tables in schema {schema:?} could not be migrated for {minutes} minutes: another process is at it, or \
         somebody has locked them (see pg_stat_activity); start again when they are done"
    )))
}

fn cannot(schema: &str, reason: &str) -> Error {
    Error::store_unusable(format!(
        "cannot set up Piton's tables in schema {schema:?}: {reason}; the database user needs the right to create \
         tables there, or let an administrator run the migrations once"
    ))
}

async fn attempt(conn: &mut PgConnection, schema: &str) -> Result<(), Obstacle> {
    // Without a lock first: this is what nearly every start finds.
    if is_newest(version(conn, schema).await?, schema)? {
        return Ok(());
    }
    let mut tx = conn.begin().await?;
    // What a migration itself takes is not bounded: tables may be large.
    let settings =
        format!("SET LOCAL lock_timeout = '{TURN_WAIT}'; SET LOCAL statement_timeout = 0");
    run(&mut tx, &settings).await?;
    let lock = format!("SELECT pg_advisory_xact_lock(hashtext('piton migrations of {schema}'))");
    run(&mut tx, &lock).await?;
    run(&mut tx, &format!("SET LOCAL lock_timeout = '{TABLE_WAIT}'")).await?;
    let seen = version(&mut tx, schema).await?;
    if !is_newest(seen, schema)? {
        apply(&mut tx, schema, seen).await?;
    }
    Ok(tx.commit().await?)
}

/// The random bytes of this database.
///
/// # Errors
///
/// `STORE_UNUSABLE` if there are none.
pub(super) async fn secret(conn: &mut PgConnection, schema: &str) -> crate::Result<Secret> {
    let sql = format!("SELECT secret FROM {schema}.piton_secret");
    let row = sqlx::query(AssertSqlSafe(sql)).persistent(false).fetch_one(conn).await;
    let secret = row.and_then(|row| row.try_get::<Vec<u8>, _>(0));
    secret.ok().and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| {
        let message = format!("schema {schema:?} has no secret in piton_secret: restore that row");
        Error::store_unusable(message)
    })
}

async fn apply(conn: &mut PgConnection, schema: &str, seen: i32) -> Result<(), sqlx::Error> {
    if !exists(conn, "SELECT 1 FROM pg_namespace WHERE nspname = $1", schema).await? {
        run(conn, &format!("CREATE SCHEMA {schema}")).await?;
    }
    run(conn, &format!("SET LOCAL search_path TO {schema}")).await?;
    let seen = usize::try_from(seen).unwrap_or(0);
    for migration in &MIGRATIONS[seen..] {
        run(conn, migration).await?;
    }
    run(conn, "DELETE FROM piton_schema").await?;
    run(conn, &format!("INSERT INTO piton_schema (version) VALUES ({})", newest())).await
}

/// Which migrations the schema has seen; 0 is "new to us".
async fn version(conn: &mut PgConnection, schema: &str) -> Result<i32, sqlx::Error> {
    let ours = "SELECT 1 FROM pg_tables WHERE schemaname = $1 AND tablename = 'piton_schema'";
    if !exists(conn, ours, schema).await? {
        return Ok(0);
    }
    let sql = format!("SELECT max(version) FROM {schema}.piton_schema");
    let row = sqlx::query(AssertSqlSafe(sql)).persistent(false).fetch_one(&mut *conn).await?;
    Ok(row.try_get::<Option<i32>, _>(0)?.unwrap_or(0))
}

fn is_newest(version: i32, schema: &str) -> Result<bool, Obstacle> {
    let newest = newest();
    if version > newest {
        return Err(Obstacle::Refused(Error::store_unusable(format!(
            "schema {schema:?} has version {version}, written by a newer Piton; this one knows up to {newest}: upgrade \
             Piton, or use another schema"
        ))));
    }
    Ok(version == newest)
}

async fn exists(
    conn: &mut PgConnection,
    sql: &'static str,
    schema: &str,
) -> Result<bool, sqlx::Error> {
    let found = sqlx::query(sql).bind(schema).persistent(false).fetch_optional(conn).await?;
    Ok(found.is_some())
}

/// Runs statements without parameters.
async fn run(conn: &mut PgConnection, sql: &str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(conn).await.map(drop)
}
