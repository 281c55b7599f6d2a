//! How a PostgreSQL store is opened.

use piton_core::{IntoSpan, Span};

use super::clock::Clock;
use crate::{Error, Result};

/// Where the database is and how it is used.
///
/// ```no_run
/// # use std::sync::Arc;
/// use piton::Engine;
/// use piton::runtime::TokioRuntime;
/// use piton::store::{PostgresOptions, PostgresStore};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// let options = PostgresOptions::new("postgres://app@db.example/app?sslmode=verify-full")
///     .schema("flows")
///     .connections(4)
///     .statement_timeout("10 seconds")?;
/// let store = PostgresStore::open(options, TokioRuntime::current()?).await?;
/// let engine = Engine::builder_with_store(store).start().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "options open nothing by themselves"]
pub struct PostgresOptions {
    pub(super) url: String,
    pub(super) schema: String,
    pub(super) connections: u32,
    pub(super) notify: bool,
    pub(super) statement_timeout: Span,
    pub(super) lock_timeout: Span,
    pub(super) clock: Clock,
}

impl PostgresOptions {
    /// The defaults, for the database at `url`: `postgres://user:password@host:port/database`, with `?sslmode=…` and the
    /// other parameters that `sqlx` knows.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            schema: "public".to_owned(),
            connections: 5,
            notify: true,
            statement_timeout: Span::from_millis(30_000),
            lock_timeout: Span::from_millis(10_000),
            clock: Clock::Database,
        }
    }

    /// The schema with Piton's tables; it is made if there is none. Lowercase letters, digits and `_`. Default `public`.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// Connections for reads, claims and step transactions, beside one that commits and one that listens. Default 5.
    pub fn connections(mut self, connections: u32) -> Self {
        self.connections = connections;
        self
    }

    /// Whether processes tell each other about new work by `NOTIFY` and `LISTEN`. Without it (behind a pooler that does
    /// not pass it on, or on a database that has none) work from other processes is found by the poll. Default `true`.
    pub fn notify(mut self, notify: bool) -> Self {
        self.notify = notify;
        self
    }

    /// How long the server may work on one statement. Default 30 seconds.
    ///
    /// # Errors
    ///
    /// If it is not a duration.
    pub fn statement_timeout(mut self, timeout: impl IntoSpan) -> Result<Self> {
        self.statement_timeout = timeout.into_span()?;
        Ok(self)
    }

    /// How long a statement may wait for a lock. Default 10 seconds.
    ///
    /// # Errors
    ///
    /// If it is not a duration.
    pub fn lock_timeout(mut self, timeout: impl IntoSpan) -> Result<Self> {
        self.lock_timeout = timeout.into_span()?;
        Ok(self)
    }

    /// Whose clock decides about leases and due times. Anything but the default is for tests on a virtual clock.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Checks what does not need the database.
    pub(super) fn check(&self) -> Result<()> {
        check_schema(&self.schema)?;
        if self.connections == 0 {
            return Err(Error::store_unusable("a store needs at least one connection in its pool"));
        }
        Ok(())
    }
}

/// Refuses a name that would need quotes.
pub(super) fn check_schema(schema: &str) -> Result<()> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let starts_well = schema.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    // The name of the channel has six letters more, and the server cuts names at 63.
    if !starts_well || !schema.chars().all(allowed) || schema.len() > 57 {
        return Err(Error::store_unusable(format!(
            "{schema:?} cannot be the schema: use up to 57 lowercase letters, digits and `_`, not starting with a digit"
        )));
    }
    Ok(())
}
