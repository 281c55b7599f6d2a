//! A place on a PostgreSQL server for one test: a schema, or a database for tests with real processes.
//!
//! The server is the one named by `PITON_TEST_POSTGRES_URL`, which `cargo xtask test` sets after starting a private one.
//! Each test has a schema of its own, which is dropped with the [`Scratch`].

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use piton::runtime::Runtime;
use piton::sqlx::postgres::PgConnectOptions;
use piton::sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection};
use piton::store::{Clock, PostgresOptions, PostgresStore, Store};

/// Names the server that tests run on.
pub const URL: &str = "PITON_TEST_POSTGRES_URL";

/// Whether there is a server to test on; says so if there is none, and the test is skipped.
pub fn is_available() -> bool {
    let named = std::env::var_os(URL).is_some();
    if !named {
        eprintln!("SKIPPED: no PostgreSQL to test on; run `cargo xtask test`, or set {URL}");
    }
    named
}

/// A schema that exists as long as this.
pub struct Scratch {
    url: String,
    schema: String,
}

impl Scratch {
    /// A schema on the server that the environment names; `None` if it names none.
    pub fn new() -> Option<Self> {
        let url = is_available().then(|| std::env::var(URL).ok()).flatten()?;
        Some(Self::on(url))
    }

    /// A schema on this server.
    pub fn on(url: impl Into<String>) -> Self {
        let unique = RandomState::new().build_hasher().finish();
        let schema = format!("piton_test_{}_{unique:x}", std::process::id());
        Self { url: url.into(), schema }
    }

    /// How to open a store in it, by the database's clock.
    pub fn options(&self) -> PostgresOptions {
        PostgresOptions::new(&*self.url).schema(&*self.schema)
    }

    /// The server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The schema.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// Opens a store in it whose clock is that of `runtime`.
    ///
    /// # Errors
    ///
    /// If the server cannot be used.
    pub async fn open(&self, runtime: Arc<dyn Runtime>) -> piton::Result<Arc<dyn Store>> {
        let options = self.options().clock(Clock::Runtime).notify(false).connections(3);
        Ok(PostgresStore::open(options, runtime).await?)
    }

    /// A connection beside the store's, for looking at rows.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached.
    pub async fn connect(&self) -> piton::Result<PgConnection> {
        let mut conn = PgConnection::connect(&self.url).await?;
        let path = format!("SET search_path TO {}, public", self.schema);
        conn.execute(AssertSqlSafe(path)).await?;
        Ok(conn)
    }
}

/// A database that exists as long as this: for processes, which take a URL.
pub struct ScratchDatabase {
    server: PgConnectOptions,
    name: String,
}

impl ScratchDatabase {
    /// A database on the server that the environment names; `None` if it names none.
    ///
    /// # Panics
    ///
    /// If it cannot be made.
    pub fn new() -> Option<Self> {
        let url = is_available().then(|| std::env::var(URL).ok()).flatten()?;
        let server: PgConnectOptions = url.parse().expect("a URL");
        let unique = RandomState::new().build_hasher().finish();
        let name = format!("piton_test_{}_{unique:x}", std::process::id());
        let made = blocking(server.clone(), format!("CREATE DATABASE {name}"));
        made.expect("a database can be made");
        Some(Self { server, name })
    }

    /// Its URL.
    pub fn url(&self) -> String {
        self.options().to_url_lossy().to_string()
    }

    /// How to connect to it.
    pub fn options(&self) -> PgConnectOptions {
        self.server.clone().database(&self.name)
    }
}

impl fmt::Debug for ScratchDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScratchDatabase({})", self.name)
    }
}

impl Drop for ScratchDatabase {
    fn drop(&mut self) {
        // It goes with the server otherwise.
        let drop = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        let _ = blocking(self.server.clone(), drop);
    }
}

/// Runs a statement on a thread that may block.
fn blocking(server: PgConnectOptions, sql: String) -> piton::Result<()> {
    let working = std::thread::spawn(move || -> piton::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut conn = server.connect().await?;
            conn.execute(AssertSqlSafe(sql)).await?;
            Ok(())
        })
    });
    working.join().expect("it does not panic")
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scratch({})", self.schema)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let Ok(server) = self.url.parse() else { return };
        // A test that was cut off may still hold locks; its schema goes with the server.
        let schema = &self.schema;
        let drop = format!("SET lock_timeout = '2s'; DROP SCHEMA IF EXISTS {schema} CASCADE");
        let _ = blocking(server, drop);
    }
}
