//! From a path to a connection that can be trusted, or to an error that says what to do.
//!
//! Nothing is written before it is known that the file is ours, and nothing is believed that can be read back.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::trouble::code_of;
use crate::Error;

/// How long to wait for another program (the `sqlite3` shell, a backup) that holds the write lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Older versions have a rare bug that damages a database in WAL mode (fixed in 3.51.3).
const SQLITE_VERSION_MIN: i32 = 3_051_003;

/// Page cache of the writer, in KiB. At the end of a transaction SQLite walks through the whole
/// cache if a page was split: with 64 MiB that was a third of the writer's time, with 16 it is a few percent. What
/// falls out is in the operating system's cache.
const WRITER_CACHE_KIB: i64 = 16 * 1024;

/// Page cache of each reader, in KiB: reads are of single runs and pages of lists.
const READER_CACHE_KIB: i64 = 4 * 1024;

/// Size of a page of a new database, in bytes. Databases that exist keep theirs. A commit of one step
/// writes whole pages: with 8 KiB a single workflow took a quarter longer, and many at once were no faster.
const PAGE_BYTES: i64 = 4096;

/// Bytes of the write-ahead log that stay on disk after a time of long reads.
const LOG_BYTES_KEPT: i64 = 64 * 1024 * 1024;

/// Statements of users that stay prepared on the writer; our own are kept apart.
const USER_STATEMENTS_MAX: usize = 128;

/// The real path of the database: one database has one name, so that it has one lock file.
///
/// The database itself is not opened here. On Unix, closing any descriptor of a file drops all locks that the
/// process holds on it, also those of a store that is open already.
pub(super) fn resolve(path: &Path) -> crate::Result<PathBuf> {
    let shown = path.display();
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(Error::store_unusable(format!(
            "{shown} is a directory: give the path of a file in it, such as {}",
            path.join("piton.db").display()
        ))),
        Ok(found) if !found.is_file() => Err(Error::store_unusable(format!(
            "{shown} is not a regular file: give the path of one"
        ))),
        Ok(_) => fs::canonicalize(path).map_err(|error| unreachable(path, &error)),
        Err(error) if error.kind() == ErrorKind::NotFound => resolve_new(path),
        Err(error) => Err(unreachable(path, &error)),
    }
}

fn resolve_new(path: &Path) -> crate::Result<PathBuf> {
    let shown = path.display();
    if fs::symlink_metadata(path).is_ok() {
        return Err(Error::store_unusable(format!(
            "{shown} is a link to a file that does not exist: remove the link, or create its target"
        )));
    }
    let Some(name) = path.file_name() else {
        return Err(Error::store_unusable(
            "the path of the database is empty: give the path of a file",
        ));
    };
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    match fs::canonicalize(parent) {
        Ok(parent) => Ok(parent.join(name)),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::store_unusable(format!(
            "cannot create {shown}: the directory {} does not exist: create it first",
            parent.display()
        ))),
        Err(error) => Err(unreachable(path, &error)),
    }
}

fn unreachable(path: &Path, error: &std::io::Error) -> Error {
    let shown = path.display();
    Error::store_unusable(format!(
        "cannot reach {shown}: {error}; check the path and its permissions"
    ))
}

/// Creates the file, if there is none, for its owner only. SQLite gives its companions the same mode.
pub(super) fn create_file(path: &Path) -> crate::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Ok(_) => sync_directory(path),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(Error::store_unusable(format!(
            "cannot create {}: {error}; make the directory writable, or choose another",
            path.display()
        ))),
    }
}

/// Makes the new name durable: SQLite syncs what is in the file.
fn sync_directory(path: &Path) -> crate::Result<()> {
    #[cfg(unix)]
    if let Some(parent) = path.parent() {
        fs::File::open(parent)
            .and_then(|directory| directory.sync_all())
            .map_err(|error| unreachable(parent, &error))?;
    }
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}

/// Opens the file and finds out whether it is a database that can be written. Changes nothing.
pub(super) fn connect(path: &Path) -> crate::Result<Connection> {
    if rusqlite::version_number() < SQLITE_VERSION_MIN {
        return Err(Error::store_unusable(format!(
            "SQLite {} is linked; 3.51.3 or newer is needed: build with rusqlite's `bundled` feature",
            rusqlite::version()
        )));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = || {
        let conn = Connection::open_with_flags(path, flags)?;
        conn.busy_timeout(BUSY_TIMEOUT)?;
        conn.set_prepared_statement_cache_capacity(USER_STATEMENTS_MAX);
        conn.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
        let read_only = conn.is_readonly("main")?;
        rusqlite::Result::Ok((conn, read_only))
    };
    let (conn, read_only) = open().map_err(|error| unusable(path, &error))?;
    if read_only {
        return Err(Error::store_unusable(format!(
            "{} is read-only: make it writable for this user, or choose another file",
            path.display()
        )));
    }
    Ok(conn)
}

/// Why the file cannot be used as a database.
pub(super) fn unusable(path: &Path, error: &rusqlite::Error) -> Error {
    let advice = match code_of(error) {
        Some(ErrorCode::NotADatabase) => {
            "it is not a SQLite database: choose another file, or move this one away"
        }
        Some(ErrorCode::DatabaseCorrupt) => "the file is damaged: restore it from a backup",
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied | ErrorCode::ReadOnly) => {
            "make the file and its directory readable and writable for this user"
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "another program holds it: end that program's transaction"
        }
        Some(ErrorCode::DiskFull) => "the disk is full: free some space",
        _ => "check the disk and the file",
    };
    let shown = path.display();
    Error::store_unusable(format!("cannot use {shown}: {error}; {advice}"))
}

/// Sets what the writer's promises rest on, and reads it back.
pub(super) fn configure_writer(conn: &Connection, path: &Path) -> crate::Result<()> {
    let set = || {
        // Takes effect only while the database has no pages yet.
        conn.pragma_update(None, "page_size", PAGE_BYTES)?;
        let mode = conn.pragma_update_and_check(None, "journal_mode", "wal", text)?;
        // Every commit is synced before it is acknowledged.
        conn.pragma_update(None, "synchronous", "full")?;
        let synchronous = conn.pragma_query_value(None, "synchronous", text)?;
        // The writer empties the log itself, between two batches.
        conn.pragma_update(None, "wal_autocheckpoint", 0)?;
        conn.pragma_update(None, "journal_size_limit", LOG_BYTES_KEPT)?;
        // The best plan of every query is known: no need to prepare it again when a parameter changes.
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        configure_memory(conn, WRITER_CACHE_KIB)?;
        rusqlite::Result::Ok((mode, synchronous))
    };
    let (mode, synchronous) = set().map_err(|error| unusable(path, &error))?;
    require("journal_mode", "wal", &mode)?;
    require("synchronous", "2", &synchronous)
}

/// Readers cannot write, whatever they are asked.
pub(super) fn configure_reader(conn: &Connection, path: &Path) -> crate::Result<()> {
    let set = || {
        conn.pragma_update(None, "query_only", true)?;
        configure_memory(conn, READER_CACHE_KIB)
    };
    set().map_err(|error| unusable(path, &error))
}

fn configure_memory(conn: &Connection, cache_kib: i64) -> rusqlite::Result<()> {
    conn.pragma_update(None, "cache_size", -cache_kib)?;
    conn.pragma_update(None, "temp_store", "memory")?;
    // With memory-mapped files a failing disk would be a signal instead of an error.
    conn.pragma_update(None, "mmap_size", 0)
}

/// What a pragma says, whatever type it says it in.
fn text(row: &rusqlite::Row<'_>) -> rusqlite::Result<String> {
    let cell = row.get_ref(0)?;
    if let ValueRef::Integer(value) = cell {
        return Ok(value.to_string());
    }
    Ok(cell.as_str()?.to_owned())
}

fn require(pragma: &str, wanted: &str, found: &str) -> crate::Result<()> {
    if wanted == found {
        return Ok(());
    }
    Err(Error::store_unusable(format!(
        "SQLite was told to set {pragma} to {wanted} and says `{found}`; a network file system often does that: \
         use a local disk"
    )))
}
