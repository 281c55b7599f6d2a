//! The control of the power loss: a plain SQLite writer whose commits are not synced (`synchronous = NORMAL`), recorded
//! and replayed like the engine. If no replay of it loses an acknowledged row, the test could not see a loss at all.

use std::path::Path;

use anyhow::Result;
use rusqlite::Connection;

use crate::ledger::{Files, Lines};

pub(crate) fn run(directory: &Path, rows: u32) -> Result<()> {
    let files = Files::new(directory);
    let connection = Connection::open(files.database())?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "normal")?;
    connection.execute_batch("CREATE TABLE control (number INTEGER PRIMARY KEY, filler BLOB)")?;
    let acks = Lines::open(&files.acks())?;
    for number in 0..rows {
        connection.execute("INSERT INTO control VALUES (?1, zeroblob(900))", [number])?;
        acks.add(&format!("row {number}"));
    }
    Ok(())
}
