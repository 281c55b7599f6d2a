//! A connection, and the queries that are run on it.
//!
//! Queries are constants that name our tables by their plain names. Before a query is run for the first time its tables
//! are qualified with the store's schema, so that nothing depends on anybody's `search_path`, and user SQL on the same
//! connection finds the user's tables as ever.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{AssertSqlSafe, PgConnection};

use super::trouble::{Failure, Outcome};

/// What every table, index and sequence of ours starts with.
const PREFIX: &str = "piton_";

/// Collects the parameters of a query, in order.
macro_rules! params {
    () => { sqlx::postgres::PgArguments::default() };
    ($($value:expr),+ $(,)?) => {{
        let mut params = sqlx::postgres::PgArguments::default();
        $(
            sqlx::Arguments::add(&mut params, $value)
                .map_err(|error| $crate::store::postgres::trouble::Failure::of_parameter(&*error))?;
        )+
        params
    }};
}
pub(super) use params;

/// The texts of our queries for one schema.
pub(super) struct Statements {
    schema: String,
    texts: Mutex<HashMap<usize, Arc<str>>>,
}

impl Statements {
    /// `schema` is an identifier that needs no quotes.
    pub(super) fn new(schema: &str) -> Self {
        Self { schema: schema.to_owned(), texts: Mutex::default() }
    }

    /// The address of a constant is its name.
    pub(super) fn text(&self, sql: &'static str) -> Arc<str> {
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        let text = texts.entry(sql.as_ptr().addr()).or_insert_with(|| {
            let qualified = format!("{}.{PREFIX}", self.schema);
            Arc::from(sql.replace(PREFIX, &qualified))
        });
        Arc::clone(text)
    }
}

/// A connection with our queries.
pub(super) struct Db<'c> {
    pub(super) conn: &'c mut PgConnection,
    pub(super) statements: &'c Statements,
}

impl Db<'_> {
    fn query(
        &self,
        sql: &'static str,
        params: PgArguments,
    ) -> sqlx::query::Query<'static, sqlx::Postgres, PgArguments> {
        sqlx::query_with(AssertSqlSafe(self.statements.text(sql)), params)
    }

    /// Runs a statement that returns nothing; how many rows it changed.
    pub(super) async fn execute(
        &mut self,
        sql: &'static str,
        params: PgArguments,
    ) -> Result<u64, Failure> {
        let done = self.query(sql, params).execute(&mut *self.conn).await?;
        Ok(done.rows_affected())
    }

    /// All rows. It has read the server's last word: a statement on its own is committed by then. (Reading only the
    /// first row would not wait for that.)
    pub(super) async fn all<T>(
        &mut self,
        sql: &'static str,
        params: PgArguments,
        decode: impl FnMut(&PgRow) -> Outcome<T>,
    ) -> Outcome<Vec<T>> {
        let rows =
            self.query(sql, params).fetch_all(&mut *self.conn).await.map_err(Failure::from)?;
        rows.iter().map(decode).collect()
    }

    /// The first row, if there is one.
    pub(super) async fn one<T>(
        &mut self,
        sql: &'static str,
        params: PgArguments,
        decode: impl FnMut(&PgRow) -> Outcome<T>,
    ) -> Outcome<Option<T>> {
        Ok(self.all(sql, params, decode).await?.into_iter().next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_qualified_and_nothing_else() {
        let statements = Statements::new("flows");
        let text = statements
            .text("SELECT t.state FROM piton_task AS t, nextval('piton_instance_key_seq')");
        assert_eq!(
            &*text,
            "SELECT t.state FROM flows.piton_task AS t, nextval('flows.piton_instance_key_seq')"
        );
    }
}
