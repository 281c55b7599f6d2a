//! The prepared statements of one connection: each query is prepared once and kept for good.
//!
//! `rusqlite`'s own cache hashes and copies the text of the query on every use; on the writer thread that is a
//! visible part of a step's cost. Queries are constants, so here the address of the text is its name.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use rusqlite::{Connection, Params, PrepFlags, Row, Statement};

use super::trouble::Outcome;

/// Where a constant text lives: equal names are equal texts.
type Name = (usize, usize);

/// Mixes an address: nobody outside chooses them, so that collisions are nobody's weapon.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    fn write_u64(&mut self, word: u64) {
        // Fibonacci hashing: the odd number nearest to 2^64 divided by the golden ratio.
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A connection with its prepared statements.
pub(super) struct Statements<'c> {
    conn: &'c Connection,
    prepared: HashMap<Name, Statement<'c>, BuildHasherDefault<AddressHasher>>,
}

impl<'c> Statements<'c> {
    pub(super) fn of(conn: &'c Connection) -> Self {
        let prepared = HashMap::default();
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

    /// The one row of a query that always has one.
    pub(super) fn row<T>(
        &mut self,
        sql: &'static str,
        decode: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.get(sql)?.query_row([], decode)
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

    /// The first row that `decode` takes.
    pub(super) fn find<T>(
        &mut self,
        sql: &'static str,
        params: impl Params,
        mut decode: impl FnMut(&Row<'_>) -> Outcome<Option<T>>,
    ) -> Outcome<Option<T>> {
        let mut rows = self.get(sql)?.query(params)?;
        while let Some(row) = rows.next()? {
            if let Some(found) = decode(row)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
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
