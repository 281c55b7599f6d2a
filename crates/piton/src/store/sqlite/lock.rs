//! The lock file beside the database: one process at a time.
//!
//! Whoever holds it knows that no other process runs this database's work, so that all leases found at start are
//! leftovers of a crash. The operating system lets go of the lock when the process ends, however it ends; the file
//! stays, because removing it would let two processes lock two files of the same name.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use crate::Error;

/// Held for the life of the store.
#[derive(Debug)]
pub(super) struct LockFile {
    _file: File,
}

impl LockFile {
    /// Takes the lock of the database at `database`, without waiting.
    pub(super) fn take(database: &Path) -> crate::Result<Self> {
        let path = path_of(database);
        let mut file = open(&path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(taken(database, &path, &mut file)),
            Err(TryLockError::Error(error)) => {
                let path = path.display();
                return Err(Error::store_unusable(format!(
                    "cannot lock {path}: {error}; the file system must support file locks (network ones often do not)"
                )));
            }
        }
        // For people only: who reads it treats it as a hint.
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        if let Err(error) = written {
            let path = path.display();
            return Err(Error::store_unusable(format!(
                "cannot write {path}: {error}; free some space or make it writable"
            )));
        }
        Ok(Self { _file: file })
    }
}

fn path_of(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

fn open(path: &Path) -> crate::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map_err(|error| {
        let path = path.display();
        Error::store_unusable(format!(
            "cannot open the lock file {path}: {error}; the directory of the database must be writable"
        ))
    })
}

fn taken(database: &Path, path: &Path, file: &mut File) -> Error {
    let mut pid = String::new();
    // On some systems a locked file cannot be read; then the message does without.
    let holder = match file.read_to_string(&mut pid) {
        Ok(_) if !pid.trim().is_empty() => format!("process {}", pid.trim()),
        Ok(_) | Err(_) => "another process".to_owned(),
    };
    let (database, path) = (database.display(), path.display());
    Error::store_unusable(format!(
        "{database} is in use by {holder}, which holds {path}: stop it first, or use PostgreSQL to run several \
         processes on one database"
    ))
}
