//! Whose database this is, and how it gets to the newest schema.
//!
//! The application id in the file's header says that the tables are ours, `user_version` which migrations they
//! have seen. Both are written in the transaction of the migrations themselves: a crash leaves all or nothing.

use std::path::Path;

use rusqlite::{Connection, Transaction};

use super::open;
use crate::Error;

/// "Pitn", in the header of every database of ours.
const APPLICATION_ID: i32 = 0x5069_746e;

/// Migration `n` leads from version `n` to `n + 1`. They are never changed once released.
const MIGRATIONS: &[&str] = &[include_str!("migrations/0001_first.sql")];

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
/// If it belongs to something else, or to a newer version of this code.
pub(super) fn check(conn: &Connection, path: &Path) -> crate::Result<i32> {
    let header = |pragma| conn.pragma_query_value(None, pragma, |row| row.get::<_, i32>(0));
    let read = || rusqlite::Result::Ok((header("application_id")?, header("user_version")?));
    let (id, version) = read().map_err(|error| open::unusable(path, &error))?;
    let path = path.display();
    let newest = newest();
    match (id, version) {
        (0, 0) => Ok(0),
        (APPLICATION_ID, version) if version > newest => Err(Error::store_unusable(format!(
            "{path} has schema version {version}, written by a newer Piton; this one knows up to {newest}: \
             upgrade Piton, or open another file"
        ))),
        (APPLICATION_ID, version) => Ok(version),
        (0, version) => Err(Error::store_unusable(format!(
            "{path} has user_version {version}, so that something else keeps its own schema version there, and \
             Piton needs that place: give Piton a file of its own"
        ))),
        (id, _) => Err(Error::store_unusable(format!(
            "{path} belongs to another application (application_id {id:#010x}): open another file"
        ))),
    }
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
    tx.pragma_update(None, "application_id", APPLICATION_ID)?;
    tx.pragma_update(None, "user_version", newest())
}
