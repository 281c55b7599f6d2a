//! How a database gets to the newest schema.
//!
//! Any number of processes may start at once: the first one takes an advisory lock and migrates in one transaction, the
//! others wait for it and find everything done. A crash leaves all or nothing.

use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use crate::Error;
use crate::store::Secret;

/// Migration `n` leads from version `n` to `n + 1`. They are never changed once released.
const MIGRATIONS: &[&str] = &[
    include_str!("migrations/0001_first.sql"),
    include_str!("migrations/0002_hooks.sql"),
    include_str!("migrations/0003_secret.sql"),
    include_str!("migrations/0004_hook_lanes.sql"),
];

/// The version of the newest schema.
fn newest() -> i32 {
    i32::try_from(MIGRATIONS.len()).unwrap_or(i32::MAX)
}

/// Brings the schema up to date.
///
/// # Errors
///
/// `STORE_UNUSABLE` if it belongs to a newer version of this code, or the user may not create tables.
pub(super) async fn migrate(conn: &mut PgConnection, schema: &str) -> crate::Result<()> {
    let unusable = |error: sqlx::Error| {
        Error::store_unusable(format!(
            "cannot set up Piton's tables in schema {schema:?}: {error}; the database user needs the right to create \
             tables there, or let an administrator run the migrations once"
        ))
    };
    // Without a lock first: this is what nearly every start finds.
    if is_newest(version(conn, schema).await.map_err(unusable)?, schema)? {
        return Ok(());
    }
    let mut tx = conn.begin().await.map_err(unusable)?;
    // A second process waits here however long the first one takes.
    run(&mut tx, "SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0")
        .await
        .map_err(unusable)?;
    let lock = format!("SELECT pg_advisory_xact_lock(hashtext('piton migrations of {schema}'))");
    run(&mut tx, &lock).await.map_err(unusable)?;
    let seen = version(&mut tx, schema).await.map_err(unusable)?;
    if !is_newest(seen, schema)? {
        apply(&mut tx, schema, seen).await.map_err(unusable)?;
    }
    tx.commit().await.map_err(unusable)
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

fn is_newest(version: i32, schema: &str) -> crate::Result<bool> {
    let newest = newest();
    if version > newest {
        return Err(Error::store_unusable(format!(
            "schema {schema:?} has version {version}, written by a newer Piton; this one knows up to {newest}: upgrade \
             Piton, or use another schema"
        )));
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
