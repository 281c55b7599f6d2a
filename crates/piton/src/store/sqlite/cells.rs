//! Reads the cells of a row into the types of `piton_core`.
//!
//! Tables are STRICT and words are ours, so nothing here fails unless somebody else changed the row. Then the
//! error names the table, the instance and the word, and nothing panics.

use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use piton_core::record::{InstanceKey, RecordedError};
use piton_core::status::UnknownWord;
use piton_core::{Json, Timestamp};
use rusqlite::Row;
use rusqlite::types::ValueRef;

use super::trouble::{Outcome, Trouble, damaged_row};

/// A row of a known table that belongs to a known instance.
pub(super) struct Cells<'a, 'stmt> {
    row: &'a Row<'stmt>,
    table: &'static str,
    key: i64,
}

impl<'a, 'stmt> Cells<'a, 'stmt> {
    pub(super) fn new(row: &'a Row<'stmt>, table: &'static str, key: InstanceKey) -> Self {
        let key = key.0;
        Self { row, table, key }
    }

    /// A row whose first column is the instance's key.
    pub(super) fn keyed(row: &'a Row<'stmt>, table: &'static str) -> Outcome<Self> {
        let key = row.get(0)?;
        Ok(Self { row, table, key })
    }

    pub(super) fn key(&self) -> InstanceKey {
        InstanceKey(self.key)
    }

    fn damaged(&self, column: usize, reason: impl Display) -> Trouble {
        let name = self.row.as_ref().column_name(column).unwrap_or("?");
        damaged_row(self.table, self.key, format!("{name}: {reason}"))
    }

    fn cell(&self, column: usize) -> Outcome<ValueRef<'a>> {
        Ok(self.row.get_ref(column)?)
    }

    pub(super) fn opt_i64(&self, column: usize) -> Outcome<Option<i64>> {
        let cell = self.cell(column)?;
        cell.as_i64_or_null().map_err(|error| self.damaged(column, error))
    }

    pub(super) fn i64(&self, column: usize) -> Outcome<i64> {
        let cell = self.cell(column)?;
        cell.as_i64().map_err(|error| self.damaged(column, error))
    }

    pub(super) fn number<T: TryFrom<i64>>(&self, column: usize) -> Outcome<T> {
        let value = self.i64(column)?;
        T::try_from(value).map_err(|_| self.damaged(column, format!("{value} is out of range")))
    }

    pub(super) fn opt_number<T: TryFrom<i64>>(&self, column: usize) -> Outcome<Option<T>> {
        match self.opt_i64(column)? {
            Some(_) => self.number(column).map(Some),
            None => Ok(None),
        }
    }

    pub(super) fn flag(&self, column: usize) -> Outcome<bool> {
        Ok(self.i64(column)? != 0)
    }

    pub(super) fn time(&self, column: usize) -> Outcome<Timestamp> {
        self.i64(column).map(Timestamp::from_millis)
    }

    pub(super) fn opt_time(&self, column: usize) -> Outcome<Option<Timestamp>> {
        Ok(self.opt_i64(column)?.map(Timestamp::from_millis))
    }

    pub(super) fn opt_text(&self, column: usize) -> Outcome<Option<&'a str>> {
        let cell = self.cell(column)?;
        cell.as_str_or_null().map_err(|error| self.damaged(column, error))
    }

    pub(super) fn text(&self, column: usize) -> Outcome<&'a str> {
        let cell = self.cell(column)?;
        cell.as_str().map_err(|error| self.damaged(column, error))
    }

    pub(super) fn shared(&self, column: usize) -> Outcome<Arc<str>> {
        self.text(column).map(Arc::from)
    }

    pub(super) fn word<T: FromStr<Err = UnknownWord>>(&self, column: usize) -> Outcome<T> {
        let word = self.text(column)?;
        word.parse().map_err(|error| self.damaged(column, error))
    }

    pub(super) fn json(&self, column: usize) -> Outcome<Json> {
        self.text(column).map(Json::from_valid_text)
    }

    pub(super) fn opt_json(&self, column: usize) -> Outcome<Option<Json>> {
        Ok(self.opt_text(column)?.map(Json::from_valid_text))
    }

    pub(super) fn opt_error(&self, column: usize) -> Outcome<Option<RecordedError>> {
        let Some(text) = self.opt_text(column)? else {
            return Ok(None);
        };
        let error = serde_json::from_str(text).map_err(|error| self.damaged(column, error))?;
        Ok(Some(error))
    }
}

/// A recorded error as it is stored.
pub(super) fn error_text(error: Option<&RecordedError>) -> Option<String> {
    error.map(|error| serde_json::to_string(error).expect("a struct of strings is valid JSON"))
}
