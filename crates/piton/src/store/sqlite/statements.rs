//! The prepared statements of one connection: each query is prepared once and kept for good.
//!
//! `rusqlite`'s own cache hashes and copies the text of the query on every use; on the writer thread that is a
//! visible part of a step's cost. Queries are constants, so here the address of the text is its name.

use rusqlite::{Connection, Params, PrepFlags, Row, Statement};
use rustc_hash::FxHashMap;

use super::trouble::Outcome;

/// Where a constant text lives: equal names are equal texts.
type Name = (usize, usize);

/// A connection with its prepared statements.
pub(super) struct Statements<'c> {
    conn: &'c Connection,
    prepared: FxHashMap<Name, Statement<'c>>,
}

impl<'c> Statements<'c> {
    pub(super) fn of(conn: &'c Connection) -> Self {
        let prepared = FxHashMap::default();
        Self { conn, prepared }
    }

    pub(super) fn conn(&self) -> &'c Connection {
        self.conn
    }

    fn get(&mut self, sql: &'static str) -> rusqlite::Result<&mut Statement<'c>> {
        use std::collections::hash_map::Entry;
        match self.prepared.entry((sql.as_ptr().addr(), sql.len())) {
            Entry::Occupied(found) => Ok(found.into_mut()),
            Entry::Vacant(place) => {
                let flags = PrepFlags::SQLITE_PREPARE_PERSISTENT;
                Ok(place.insert(self.conn.prepare_with_flags(sql, flags)?))
            }
        }
    }

    /// Runs a statement that returns nothing; how many rows it changed.
    pub(super) fn execute(
        &mut self,
        sql: &'static str,
        params: impl Params,
    ) -> rusqlite::Result<usize> {
        self.get(sql)?.execute(params)
    }

    /// The first row, if there is one.
    pub(super) fn one<T>(
        &mut self,
        sql: &'static str,
        params: impl Params,
        decode: impl FnOnce(&Row<'_>) -> Outcome<T>,
    ) -> Outcome<Option<T>> {
        let mut rows = self.get(sql)?.query(params)?;
        rows.next()?.map(decode).transpose()
    }

    /// All rows.
    pub(super) fn all<T>(
        &mut self,
        sql: &'static str,
        params: impl Params,
        mut decode: impl FnMut(&Row<'_>) -> Outcome<T>,
    ) -> Outcome<Vec<T>> {
        let mut rows = self.get(sql)?.query(params)?;
        let mut all = Vec::new();
        while let Some(row) = rows.next()? {
            all.push(decode(row)?);
        }
        Ok(all)
    }
}
