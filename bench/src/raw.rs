//! Bare SQLite: what the disk and the library can do without an engine.
//!
//! The rows and the table are not written down here a second time: they are copied from a database that the engine
//! has just filled, so that the ceiling follows the schema by itself. Pragmas are those of the store.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rusqlite::types::Value;
use rusqlite::{Connection, Transaction, TransactionBehavior, params_from_iter};

use crate::timer;

/// Rows of one transaction of the throughput ceiling.
pub(crate) const ROWS_PER_TRANSACTION: usize = 256;

/// The store's page cache, in KiB.
const CACHE_KIB: i64 = 64 * 1024;

/// The steps of one finished instance, with the table they live in.
#[derive(Debug)]
pub(crate) struct StepRows {
    page_bytes: i64,
    /// The table and its indexes.
    definitions: Vec<String>,
    insert: String,
    /// Which column is the instance's key: the only one that differs from instance to instance.
    key_column: usize,
    rows: Vec<Vec<Value>>,
}

impl StepRows {
    /// Reads the steps of the first instance of a database that no engine has open.
    pub(crate) fn read(path: &Path) -> Result<StepRows> {
        let conn = Connection::open(path)?;
        let definitions = all_text(
            &conn,
            "SELECT sql FROM sqlite_schema WHERE tbl_name = 'piton_step' AND sql IS NOT NULL ORDER BY rowid",
        )?;
        let columns = all_text(&conn, "SELECT name FROM pragma_table_info('piton_step')")?;
        let key_column = columns.iter().position(|column| column == "instance_key");
        let key_column = key_column.context("piton_step has no instance_key")?;

        let names = columns.join(", ");
        let marks = vec!["?"; columns.len()].join(", ");
        let insert = format!("INSERT INTO piton_step ({names}) VALUES ({marks})");
        let mut select = conn.prepare(&format!(
            "SELECT {names} FROM piton_step
            WHERE instance_key = (SELECT min(instance_key) FROM piton_step) ORDER BY position"
        ))?;
        let rows = select.query_map([], |row| (0..columns.len()).map(|c| row.get(c)).collect())?;
        let rows = rows.collect::<rusqlite::Result<Vec<_>>>()?;
        ensure!(!rows.is_empty(), "the engine recorded no steps in {}", path.display());
        let page_bytes = conn.pragma_query_value(None, "page_size", |row| row.get(0))?;
        Ok(StepRows { page_bytes, definitions, insert, key_column, rows })
    }
}

fn all_text(conn: &Connection, sql: &str) -> Result<Vec<String>> {
    let mut statement = conn.prepare(sql)?;
    let texts = statement.query_map([], |row| row.get(0))?;
    Ok(texts.collect::<rusqlite::Result<_>>()?)
}

/// Which rows share a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    /// One step of each of as many instances as a transaction has rows, then the next step of each: how steps come
    /// into being when that many instances are in flight, because a step starts when the one before is durable.
    ByStep,
    /// All steps of one instance, then those of the next: the order of the table's key. The cheapest for SQLite, and
    /// out of reach for whatever runs the steps.
    ByInstance,
}

impl Order {
    /// The instance and the position of the n-th row.
    fn place(self, n: usize, rows_each: usize, steps: usize) -> (usize, usize) {
        match self {
            Order::ByStep => {
                let (transaction, lane) = (n / rows_each, n % rows_each);
                (transaction / steps * rows_each + lane, transaction % steps)
            }
            Order::ByInstance => (n / steps, n % steps),
        }
    }
}

/// A database with nothing but the step table, written by this thread alone.
#[derive(Debug)]
pub(crate) struct RawSteps<'s> {
    conn: Connection,
    steps: &'s StepRows,
    /// Rows written so far.
    written: usize,
}

impl<'s> RawSteps<'s> {
    /// A fresh database.
    pub(crate) fn create(path: &Path, steps: &'s StepRows) -> Result<RawSteps<'s>> {
        let conn = Connection::open(path)?;
        conn.pragma_update(None, "page_size", steps.page_bytes)?;
        conn.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
        conn.pragma_update(None, "synchronous", "full")?;
        conn.pragma_update(None, "cache_size", -CACHE_KIB)?;
        for definition in &steps.definitions {
            conn.execute_batch(definition)?;
        }
        Ok(RawSteps { conn, steps, written: 0 })
    }

    /// Inserts rows in transactions of the given size; how long it took.
    pub(crate) fn insert(
        &mut self,
        transactions: usize,
        rows_each: usize,
        order: Order,
    ) -> Result<Duration> {
        let StepRows { insert, key_column, rows, .. } = self.steps;
        let mut statement = self.conn.prepare_cached(insert)?;
        let mut row = rows[0].clone();
        let start = timer::now();
        for _ in 0..transactions {
            let transaction =
                Transaction::new_unchecked(&self.conn, TransactionBehavior::Immediate)?;
            for _ in 0..rows_each {
                let (instance, position) = order.place(self.written, rows_each, rows.len());
                row.clone_from(&rows[position]);
                row[*key_column] = Value::Integer(i64::try_from(instance)? + 1);
                statement.execute(params_from_iter(&row))?;
                self.written += 1;
            }
            transaction.commit()?;
        }
        Ok(start.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_write_the_same_rows() {
        let places = |order: Order| -> Vec<(usize, usize)> {
            (0..4 * 3 * 10).map(|n| order.place(n, 4, 10)).collect()
        };
        let (mut by_step, by_instance) = (places(Order::ByStep), places(Order::ByInstance));
        assert_eq!(by_step[..5], [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1)]);
        assert_eq!(by_instance[9..11], [(0, 9), (1, 0)]);
        by_step.sort_unstable();
        assert_eq!(by_step, by_instance);
    }
}
