//! From a URL to a database that can be trusted, or to an error that says what to do.

use std::str::FromStr;
use std::time::Duration;

use piton_core::Span;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool, Row};

use super::options::PostgresOptions;
use crate::{Error, Result};

/// The oldest server that has everything the statements need.
const VERSION_MIN: u32 = 130_000;

/// How long a caller waits for a connection of the pool before the store is called unavailable.
const ACQUIRE_MAX: Duration = Duration::from_secs(10);

/// A session that holds locks and says nothing for this long is ended by the server: its process is stopped or cut off,
/// and others must be able to go on.
const IDLE_IN_TRANSACTION: Span = Span::from_millis(15_000);

/// How connections are made.
pub(super) fn connect_options(options: &PostgresOptions) -> Result<PgConnectOptions> {
    let connect = PgConnectOptions::from_str(&options.url).map_err(|error| {
        Error::store_unusable(format!(
            "the database URL cannot be understood ({error}); write \"postgres://user:password@host/database\""
        ))
    })?;
    let connect = match connect.get_application_name() {
        Some(_) => connect,
        None => connect.application_name("piton"),
    };
    let settings = [
        ("statement_timeout", options.statement_timeout.as_millis().to_string()),
        ("lock_timeout", options.lock_timeout.as_millis().to_string()),
        ("idle_in_transaction_session_timeout", IDLE_IN_TRANSACTION.as_millis().to_string()),
        // Locks are taken first and everything is read after them: each statement must see what is committed by then.
        ("default_transaction_isolation", "read committed".to_owned()),
        // A machine that vanished must not keep its locks until the kernel notices, which takes two hours.
        ("tcp_keepalives_idle", "15".to_owned()),
        ("tcp_keepalives_interval", "5".to_owned()),
        ("tcp_keepalives_count", "3".to_owned()),
    ];
    // Statements are not logged: they could tell more than an operator may know.
    Ok(connect.options(settings).disable_statement_logging())
}

/// The same for the committer, which all runs of the process depend on: it waits for nobody's lock for long, and when its
/// process is stopped the server soon takes its own locks back. Its statements have one good plan each, and planning
/// them again for every batch costs as much as running them.
pub(super) fn committer_options(connect: &PgConnectOptions) -> PgConnectOptions {
    connect.clone().options([
        ("plan_cache_mode", "force_generic_plan"),
        // Every row is looked up by its key, also while a table is so small that reading all of it would do.
        ("enable_seqscan", "off"),
        ("enable_bitmapscan", "off"),
        ("lock_timeout", "1000"),
        ("idle_in_transaction_session_timeout", "3000"),
    ])
}

/// Connects and checks that the server keeps what it acknowledges.
pub(super) async fn connect(connect: &PgConnectOptions) -> Result<PgConnection> {
    let mut conn = PgConnection::connect_with(connect).await.map_err(|error| {
        Error::store_unusable(format!(
            "cannot connect to PostgreSQL at {}: {error}; check the URL, that the server runs and lets this user in",
            place(connect)
        ))
    })?;
    check(&mut conn).await?;
    Ok(conn)
}

fn place(connect: &PgConnectOptions) -> String {
    match connect.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", connect.get_host(), connect.get_port()),
    }
}

async fn check(conn: &mut PgConnection) -> Result<()> {
    let version = conn.server_version_num().unwrap_or(VERSION_MIN);
    if version < VERSION_MIN {
        let (major, minor) = (version / 10_000, version % 10_000);
        return Err(Error::store_unusable(format!(
            "PostgreSQL {major}.{minor} is too old: use version 13 or newer"
        )));
    }
    let read = "SELECT current_setting('synchronous_commit'), current_setting('fsync'), \
        current_setting('server_encoding'), current_setting('transaction_read_only') = 'on'";
    let row = sqlx::query(read).persistent(false).fetch_one(&mut *conn).await;
    let row = row.map_err(|error| {
        Error::store_unusable(format!("cannot read the server's settings: {error}"))
    })?;
    let setting = |column: usize| row.try_get::<String, _>(column).unwrap_or_default();
    if setting(0) == "off" {
        return Err(Error::store_unusable(
            "synchronous_commit is off, so that an answer would not be durable: switch it on for this user or database \
             (ALTER ROLE … SET synchronous_commit = on)",
        ));
    }
    if setting(1) == "off" {
        tracing::warn!(
            "the PostgreSQL server runs with fsync off: a power loss can destroy the database"
        );
    }
    if setting(2) != "UTF8" {
        let encoding = setting(2);
        return Err(Error::store_unusable(format!(
            "the database's encoding is {encoding}: use one with UTF8"
        )));
    }
    if row.try_get::<bool, _>(3).unwrap_or(false) {
        return Err(Error::store_unusable(
            "this server only reads, as a standby does: name the primary",
        ));
    }
    Ok(())
}

/// Turns away a server that only reads. After a failover the name of the primary may still lead to the old one, and a
/// connection to it would be no good for as long as it lasts.
pub(super) async fn check_writable(
    conn: &mut PgConnection,
) -> std::result::Result<(), sqlx::Error> {
    let asked = sqlx::query("SELECT current_setting('transaction_read_only')").persistent(false);
    let read_only: String = asked.fetch_one(conn).await?.try_get(0)?;
    if read_only == "on" {
        let why = "this server only reads: is the primary elsewhere?";
        return Err(sqlx::Error::Io(std::io::Error::other(why)));
    }
    Ok(())
}

/// A pool for reads, claims and step transactions.
pub(super) fn pool(options: &PostgresOptions, connect: &PgConnectOptions) -> PgPool {
    PgPoolOptions::new()
        .max_connections(options.connections)
        .acquire_timeout(ACQUIRE_MAX)
        .after_connect(|conn, _| Box::pin(check_writable(conn)))
        .connect_lazy_with(connect.clone())
}

/// The one connection that listens.
pub(super) fn listening_pool(connect: &PgConnectOptions) -> PgPool {
    PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(ACQUIRE_MAX)
        .after_connect(|conn, _| Box::pin(check_writable(conn)))
        .max_lifetime(None)
        .idle_timeout(None)
        .connect_lazy_with(connect.clone())
}
