//! How a database gets to the newest schema.
//!
//! Which migrations it has seen is written in a table of ours, in the transaction of the migrations themselves: a crash
//! leaves all or nothing. The header of the file belongs to the user, whose own tables may live in it: tools like to keep
//! their versions in `user_version`.

use std::path::Path;

use rusqlite::{Connection, Transaction};

use super::open;
use crate::Error;
use crate::store::Secret;

/// Migration `n` leads from version `n` to `n + 1`. They are never changed once released.
const MIGRATIONS: &[&str] = &[
    include_str!("migrations/0001_first.sql"),
    include_str!("migrations/0002_hooks.sql"),
    include_str!("migrations/0003_secret.sql"),
    include_str!("migrations/0004_one_index_less.sql"),
    include_str!("migrations/0005_hook_lanes.sql"),
];

/// What the tests compare the migrations with, and what people read.
#[cfg(test)]
pub(super) const SCHEMA: &str = include_str!("schema.sql");

/// The version of the newest schema.
fn newest() -> i32 {
    i32::try_from(MIGRATIONS.len()).unwrap_or(i32::MAX)
}

/// Reads which version the database has; 0 is "new to us". Changes nothing.
///
/// # Errors
///
/// If it belongs to a newer version of this code.
pub(super) fn check(conn: &Connection, path: &Path) -> crate::Result<i32> {
    let version = version(conn).map_err(|error| open::unusable(path, &error))?;
    let newest = newest();
    if version > newest {
        return Err(Error::store_unusable(format!(
            "{} has schema version {version}, written by a newer Piton; this one knows up to {newest}: \
             upgrade Piton, or open another file",
            path.display()
        )));
    }
    Ok(version)
}

fn version(conn: &Connection) -> rusqlite::Result<i32> {
    if !conn.table_exists(None, "piton_schema")? {
        return Ok(0);
    }
    conn.query_row("SELECT coalesce(max(version), 0) FROM piton_schema", [], |row| row.get(0))
}

/// The random bytes of this database.
pub(super) fn secret(conn: &Connection, path: &Path) -> crate::Result<Secret> {
    let secret = conn.query_row("SELECT secret FROM piton_secret", [], |row| row.get(0));
    secret.map_err(|_| {
        let path = path.display();
        Error::store_unusable(format!("{path} has no secret in piton_secret: restore that row"))
    })
}

/// Applies the migrations the database has not seen yet.
pub(super) fn migrate(tx: &Transaction<'_>, from: i32) -> rusqlite::Result<()> {
    let seen = usize::try_from(from).unwrap_or(0);
    if seen >= MIGRATIONS.len() {
        return Ok(());
    }
    for migration in &MIGRATIONS[seen..] {
        tx.execute_batch(migration)?;
    }
    tx.execute("INSERT INTO piton_schema (version) VALUES (?1)", [newest()])?;
    Ok(())
}
