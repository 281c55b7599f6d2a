//! Reads the cells of a row into the types of `piton_core`.
//!
//! Columns are typed and words are ours, so nothing here fails unless somebody else changed the row. Then the error
//! names the table, the instance and the word, and nothing panics.

use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use piton_core::record::{InstanceKey, RecordedError};
use piton_core::status::UnknownWord;
use piton_core::{Json, Timestamp};
use sqlx::postgres::PgRow;
use sqlx::{Column, Row};

use super::text;
use super::trouble::{Outcome, Trouble, damaged_row};

/// A row of a known table that belongs to a known instance.
pub(super) struct Cells<'a> {
    row: &'a PgRow,
    table: &'static str,
    key: i64,
}

impl<'a> Cells<'a> {
    /// A row whose first column is the instance's key.
    pub(super) fn keyed(row: &'a PgRow, table: &'static str) -> Outcome<Self> {
        let mut cells = Self { row, table, key: 0 };
        cells.key = cells.i64(0)?;
        Ok(cells)
    }

    pub(super) fn key(&self) -> InstanceKey {
        InstanceKey(self.key)
    }

    fn damaged(&self, column: usize, reason: impl Display) -> Trouble {
        let name = self.row.columns().get(column).map_or("?", |column| column.name());
        damaged_row(self.table, self.key, format!("{name}: {reason}"))
    }

    fn get<T>(&self, column: usize) -> Outcome<T>
    where
        T: sqlx::Decode<'a, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        self.row.try_get(column).map_err(|error| self.damaged(column, error))
    }

    pub(super) fn i64(&self, column: usize) -> Outcome<i64> {
        self.get(column)
    }

    pub(super) fn opt_i64(&self, column: usize) -> Outcome<Option<i64>> {
        self.get(column)
    }

    /// An INTEGER that is never negative.
    pub(super) fn u32(&self, column: usize) -> Outcome<u32> {
        let value: i32 = self.get(column)?;
        u32::try_from(value).map_err(|_| self.damaged(column, format!("{value} is out of range")))
    }

    pub(super) fn opt_u32(&self, column: usize) -> Outcome<Option<u32>> {
        match self.get::<Option<i32>>(column)? {
            Some(_) => self.u32(column).map(Some),
            None => Ok(None),
        }
    }

    /// A number that may be larger than an INTEGER.
    pub(super) fn long_u32(&self, column: usize) -> Outcome<u32> {
        let value = self.i64(column)?;
        u32::try_from(value).map_err(|_| self.damaged(column, format!("{value} is out of range")))
    }

    pub(super) fn opt_long_u32(&self, column: usize) -> Outcome<Option<u32>> {
        match self.opt_i64(column)? {
            Some(_) => self.long_u32(column).map(Some),
            None => Ok(None),
        }
    }

    /// A BIGINT that is never negative.
    pub(super) fn u64(&self, column: usize) -> Outcome<u64> {
        let value = self.i64(column)?;
        u64::try_from(value).map_err(|_| self.damaged(column, format!("{value} is out of range")))
    }

    pub(super) fn flag(&self, column: usize) -> Outcome<bool> {
        self.get(column)
    }

    pub(super) fn time(&self, column: usize) -> Outcome<Timestamp> {
        self.i64(column).map(Timestamp::from_millis)
    }

    pub(super) fn opt_time(&self, column: usize) -> Outcome<Option<Timestamp>> {
        Ok(self.opt_i64(column)?.map(Timestamp::from_millis))
    }

    pub(super) fn is_null(&self, column: usize) -> Outcome<bool> {
        let cell = self.row.try_get_raw(column).map_err(|error| self.damaged(column, error))?;
        Ok(sqlx::ValueRef::is_null(&cell))
    }

    pub(super) fn opt_text(&self, column: usize) -> Outcome<Option<Arc<str>>> {
        let stored: Option<&str> = self.get(column)?;
        Ok(stored.map(|stored| Arc::from(text::original(stored))))
    }

    pub(super) fn text(&self, column: usize) -> Outcome<Arc<str>> {
        let stored: &str = self.get(column)?;
        Ok(Arc::from(text::original(stored)))
    }

    pub(super) fn word<T: FromStr<Err = UnknownWord>>(&self, column: usize) -> Outcome<T> {
        let word: &str = self.get(column)?;
        word.parse().map_err(|error| self.damaged(column, error))
    }

    pub(super) fn json(&self, column: usize) -> Outcome<Json> {
        self.get::<&str>(column).map(Json::from_valid_text)
    }

    pub(super) fn opt_json(&self, column: usize) -> Outcome<Option<Json>> {
        Ok(self.get::<Option<&str>>(column)?.map(Json::from_valid_text))
    }

    pub(super) fn opt_error(&self, column: usize) -> Outcome<Option<RecordedError>> {
        let Some(text) = self.get::<Option<&str>>(column)? else {
            return Ok(None);
        };
        let error = serde_json::from_str(text).map_err(|error| self.damaged(column, error))?;
        Ok(Some(error))
    }
}

/// A recorded error as it is stored. JSON escapes a NUL.
pub(super) fn error_text(error: Option<&RecordedError>) -> Option<String> {
    error.map(|error| serde_json::to_string(error).expect("a struct of strings is valid JSON"))
}

/// PostgreSQL's integers are signed; nothing of ours gets that far.
pub(super) fn int(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// As [`int`], for longer ones.
pub(super) fn bigint(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
