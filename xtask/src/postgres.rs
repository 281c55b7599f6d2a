//! The PostgreSQL that tests and benchmarks run on.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use private_postgres::{Place, Server};

/// Names the server to use; without it a private one is started.
const URL: &str = "PITON_TEST_POSTGRES_URL";

/// A PostgreSQL for as long as this lives: the one the developer named, or a private one.
#[derive(Debug)]
pub(crate) struct Database {
    server: Option<Server>,
}

impl Database {
    /// Uses the server named by `PITON_TEST_POSTGRES_URL`, or starts a private one.
    pub(crate) fn open(place: Place) -> Result<Database> {
        if std::env::var_os(URL).is_some() {
            println!("using the PostgreSQL named by {URL}");
            return Ok(Database { server: None });
        }
        Ok(Database { server: Some(Server::start(place)?) })
    }

    /// Where it is.
    pub(crate) fn url(&self) -> Result<String> {
        match &self.server {
            Some(server) => Ok(server.url()),
            None => std::env::var(URL).with_context(|| format!("{URL} is not text")),
        }
    }

    /// The process of a private one.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.server.as_ref()?.pid()
    }

    /// Where a private one keeps its tables, beside its log.
    pub(crate) fn tables(&self) -> Option<PathBuf> {
        Some(self.server.as_ref()?.data().join("base"))
    }

    /// Tells a command where it is.
    pub(crate) fn tell(&self, command: &mut Command) {
        if let Some(server) = &self.server {
            command.env(URL, server.url());
        }
    }
}
