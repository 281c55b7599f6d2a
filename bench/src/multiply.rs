//! A million sleeping instances in seconds: one real instance, copied by SQL.
//!
//! The columns come from the database itself, so that the copies follow the schema. The copies wake one millisecond
//! after the other.

use std::path::Path;

use anyhow::{Result, ensure};
use rusqlite::Connection;

/// Copies the only instance of a database that no engine has open until there are `total`.
pub(crate) fn multiply(path: &Path, total: usize) -> Result<()> {
    let mut conn = Connection::open(path)?;
    ensure!(sleeping(&conn)? == 1, "there is not exactly one sleeping instance to copy");
    // Nobody mourns a half-made benchmark database.
    conn.pragma_update_and_check(None, "journal_mode", "off", |_| Ok(()))?;
    conn.pragma_update(None, "synchronous", "off")?;
    let transaction = conn.transaction()?;
    for (table, columns) in tables(&transaction)? {
        copy(&transaction, &table, &columns, total - 1)?;
    }
    transaction.commit()?;
    ensure!(sleeping(&conn)? == total, "the copies are not complete");
    conn.close().map_err(|(_, error)| error)?;
    std::fs::File::open(path)?.sync_all()?;
    Ok(())
}

fn sleeping(conn: &Connection) -> Result<usize> {
    let count = "SELECT count(*) FROM piton_instance WHERE status = 'waiting'";
    let count: i64 = conn.query_row(count, [], |row| row.get(0))?;
    Ok(usize::try_from(count)?)
}

/// The tables that hold instances, with the columns that can be written.
fn tables(conn: &Connection) -> Result<Vec<(String, Vec<String>)>> {
    let mut statement = conn.prepare(
        "SELECT t.name, c.name FROM pragma_table_list AS t, pragma_table_xinfo(t.name) AS c
        WHERE t.schema = 'main' AND t.name LIKE 'piton\\_%' ESCAPE '\\' AND t.name NOT IN ('piton_schema', 'piton_secret') AND c.hidden = 0
        ORDER BY t.name, c.cid",
    )?;
    let mut tables: Vec<(String, Vec<String>)> = Vec::new();
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (table, column): (String, String) = (row.get(0)?, row.get(1)?);
        match tables.last_mut() {
            Some((name, columns)) if *name == table => columns.push(column),
            Some(_) | None => tables.push((table, vec![column])),
        }
    }
    Ok(tables)
}

fn copy(conn: &Connection, table: &str, columns: &[String], copies: usize) -> Result<()> {
    let values: Vec<String> = columns.iter().map(|column| copied(column)).collect();
    let (columns, values) = (columns.join(", "), values.join(", "));
    conn.execute_batch(&format!(
        "CREATE TEMP TABLE original AS SELECT * FROM {table};
        WITH RECURSIVE copy (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM copy WHERE n < {copies})
        INSERT INTO {table} ({columns}) SELECT {values} FROM copy CROSS JOIN original;
        DROP TABLE original;"
    ))?;
    Ok(())
}

/// What the n-th copy has in this column.
fn copied(column: &str) -> String {
    match column {
        "key" | "instance_key" | "run_at" | "wake_at" => format!("{column} + n"),
        // As long as the ids the engine makes.
        "instance_id" => "printf('rest_%026d', n)".to_owned(),
        same => same.to_owned(),
    }
}
