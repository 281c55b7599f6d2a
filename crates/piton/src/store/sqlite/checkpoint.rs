//! Moving what is in the write-ahead log into the database file.
//!
//! SQLite would do it inside a COMMIT, and everyone in that batch would wait for it. Here it happens between two
//! batches, after the answers are out: whoever was answered works on meanwhile.

use super::statements::Statements;
use super::trouble::Failure;

/// Pages of the log that start a checkpoint: 16 MiB. Seen to take 8 to 25 ms; four times as many pages take as long
/// again and save little.
const LOG_PAGES_MAX: i64 = 4000;

/// Requests between two looks at the log: a look costs as much as a few steps.
const REQUESTS_PER_LOOK: usize = 256;

/// How long the log is, without touching it.
pub(super) const LOG_LENGTH: &str = "PRAGMA wal_checkpoint(NOOP)";

/// Copies what no reader needs any more. Waits for nobody.
pub(super) const CHECKPOINT: &str = "PRAGMA wal_checkpoint(PASSIVE)";

/// When the log was last looked at, and when it is to be emptied.
pub(super) struct Checkpoints {
    requests: usize,
    due_at_pages: i64,
}

impl Checkpoints {
    pub(super) fn new() -> Self {
        Self { requests: 0, due_at_pages: LOG_PAGES_MAX }
    }

    /// Empties the log if it has grown long.
    ///
    /// # Errors
    ///
    /// If the database file could not be written or synced: then nobody knows what is in it.
    pub(super) fn after(
        &mut self,
        requests: usize,
        db: &mut Statements<'_>,
    ) -> Result<(), Failure> {
        self.requests += requests;
        if self.requests < REQUESTS_PER_LOOK {
            return Ok(());
        }
        self.requests = 0;
        let length = measure(db, LOG_LENGTH)?.pages;
        if length < self.due_at_pages {
            // A log that was kept before may have been started afresh since.
            self.due_at_pages = self.due_at_pages.min(length + LOG_PAGES_MAX);
            return Ok(());
        }
        let log = measure(db, CHECKPOINT)?;
        // A long read of somebody else's keeps part of the log: try again when it has grown by as much again.
        let kept = if log.copied < log.pages { log.pages } else { 0 };
        self.due_at_pages = kept + LOG_PAGES_MAX;
        Ok(())
    }
}

/// Pages in the log, and how many of them are in the database file as well.
#[derive(Default)]
struct Log {
    pages: i64,
    copied: i64,
}

fn measure(db: &mut Statements<'_>, sql: &'static str) -> Result<Log, Failure> {
    let measured = db.row(sql, |row| Ok(Log { pages: row.get(1)?, copied: row.get(2)? }));
    measured.or_else(|error| {
        let failure = Failure::from(&error);
        if failure.fatal {
            return Err(failure);
        }
        // What is acknowledged is safe in the log; there it stays until there is room.
        tracing::warn!(reason = %failure.message, "the write-ahead log cannot be emptied now");
        Ok(Log::default())
    })
}
