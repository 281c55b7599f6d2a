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
    /// Without the parameter that is ours.
    pub(super) url: String,
    schema: Option<String>,
    schema_in_url: Option<String>,
    pub(super) connections: u32,
    pub(super) notify: bool,
    pub(super) statement_timeout: Span,
    pub(super) lock_timeout: Span,
    pub(super) clock: Clock,
}

impl PostgresOptions {
    /// The defaults, for the database at `url`: `postgres://user:password@host:port/database`, with `?sslmode=…` and the
    /// other parameters that `sqlx` knows, and `schema=…`, which is the same as [`schema`](Self::schema).
    pub fn new(url: impl Into<String>) -> Self {
        let (url, schema_in_url) = take_schema(&url.into());
        Self {
            url,
            schema: None,
            schema_in_url,
            connections: 5,
            notify: true,
            statement_timeout: Span::from_millis(30_000),
            lock_timeout: Span::from_millis(10_000),
            clock: Clock::Database,
        }
    }

    /// The schema with Piton's tables; it is made if there is none. Lowercase letters, digits and `_`. Default `public`,
    /// or what the URL says; a URL that says another one is refused.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// Connections for reads, claims and step transactions, beside one that commits (a second under load) and one that
    /// listens. Default 5.
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
        if let (Some(told), Some(read)) = (&self.schema, &self.schema_in_url)
            && told != read
        {
            return Err(Error::store_unusable(format!(
                "the database URL says schema={read}, and the program says {told:?}: say it in one place"
            )));
        }
        check_schema(self.schema_name())?;
        if self.connections == 0 {
            return Err(Error::store_unusable("a store needs at least one connection in its pool"));
        }
        Ok(())
    }

    /// The schema with Piton's tables.
    pub(super) fn schema_name(&self) -> &str {
        self.schema.as_deref().or(self.schema_in_url.as_deref()).unwrap_or("public")
    }
}

/// Takes the parameter `schema` out of a URL: `sqlx` does not know it.
fn take_schema(url: &str) -> (String, Option<String>) {
    let Some((place, parameters)) = url.split_once('?') else { return (url.to_owned(), None) };
    let mut schema = None;
    let others: Vec<&str> = parameters
        .split('&')
        .filter(|parameter| match parameter.split_once('=') {
            Some(("schema", name)) => {
                schema = Some(name.to_owned());
                false
            }
            Some(_) | None => true,
        })
        .collect();
    let join = if others.is_empty() { "" } else { "?" };
    (format!("{place}{join}{}", others.join("&")), schema)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_of_a_url_is_ours_and_the_rest_is_sqlx_s() {
        for (url, rest, schema) in [
            ("postgres://a@b/c", "postgres://a@b/c", None),
            ("postgres://a@b/c?schema=flows", "postgres://a@b/c", Some("flows")),
            (
                "postgres://a@b/c?sslmode=disable&schema=flows&host=/tmp",
                "postgres://a@b/c?sslmode=disable&host=/tmp",
                Some("flows"),
            ),
            ("postgres://a@b/c?schemas=x", "postgres://a@b/c?schemas=x", None),
            ("postgres://a@b/c?schema=", "postgres://a@b/c", Some("")),
        ] {
            assert_eq!(take_schema(url), (rest.to_owned(), schema.map(str::to_owned)), "{url}");
        }
    }

    #[test]
    fn what_cannot_be_a_schema_is_refused_wherever_it_is_said() {
        let at = |url: &str| PostgresOptions::new(url);
        for (options, why) in [
            (at("postgres://b/c").schema("Flows"), "lowercase"),
            (at("postgres://b/c?schema=Flows"), "lowercase"),
            (at("postgres://b/c?schema="), "lowercase"),
            (at("postgres://b/c?schema=a%20b"), "lowercase"),
            (at("postgres://b/c?schema=a").schema("b"), "in one place"),
        ] {
            let error = options.check().expect_err(why);
            assert!(error.to_string().contains(why), "{error}");
        }
        for (options, schema) in [
            (at("postgres://b/c"), "public"),
            (at("postgres://b/c?schema=a"), "a"),
            (at("postgres://b/c?schema=a").schema("a"), "a"),
            (at("postgres://b/c").schema("a"), "a"),
        ] {
            options.check().expect("well");
            assert_eq!(options.schema_name(), schema);
        }
    }
}
