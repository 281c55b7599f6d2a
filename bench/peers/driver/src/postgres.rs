//! A database of its own for each round, so that none works on the leftovers of another.

use anyhow::{Context, Result};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Executor};

use crate::Phase;

/// A fresh database on a server.
#[derive(Clone, Debug)]
pub struct Database {
    server: PgConnectOptions,
    name: String,
}

impl Database {
    /// Creates it on the server of this URL.
    pub async fn create(server: &str) -> Result<Database> {
        Phase::Aside.tell();
        let server: PgConnectOptions = server.parse().context("--database")?;
        let name = format!("round_{}", std::process::id());
        let mut conn = server.connect().await.context("cannot connect to the server")?;
        conn.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await?;
        Phase::Back.tell();
        Ok(Database { server, name })
    }

    pub fn url(&self) -> String {
        self.server.clone().database(&self.name).to_url_lossy().to_string()
    }

    pub async fn remove(self) -> Result<()> {
        let mut conn = self.server.connect().await?;
        conn.execute(AssertSqlSafe(format!("DROP DATABASE {} WITH (FORCE)", self.name))).await?;
        Ok(())
    }
}
