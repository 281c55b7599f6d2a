//! Who takes part: what each is called, promises and is driven by.

use std::fs;

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::cargo;

/// An engine to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    /// Restate: the server of the npm package, a Rust service
    Restate,
    /// DBOS for Rust, on the private PostgreSQL
    Dbos,
    /// duroxide, on its SQLite provider
    Duroxide,
    /// DBOS for Python, on the private PostgreSQL
    DbosPython,
    /// DBOS for TypeScript, on the private PostgreSQL
    DbosTypescript,
    /// absurd, in TypeScript, on the private PostgreSQL
    Absurd,
    /// openworkflow, in TypeScript, on the private PostgreSQL
    Openworkflow,
}

/// What an engine's driver is written in, and where the engine comes from if not from its `Cargo.lock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    Rust,
    /// A package of PyPI.
    Python {
        package: &'static str,
        version: &'static str,
    },
    /// A package of npm.
    Node {
        package: &'static str,
        version: &'static str,
        beside: Beside,
    },
}

/// What a package of npm needs and does not bring along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beside {
    Nothing,
    /// Another package of npm, with its version.
    Npm(&'static str),
    /// A package of PyPI, with its version, in an environment that the driver is told of.
    Python(&'static str),
}

/// A column of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    PitonSqlite,
    PitonHttp,
    PitonPostgres,
    Peer(Peer),
}

/// What an engine's driver has to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// A directory for its files.
    Directory,
    /// A PostgreSQL server.
    Postgres,
    /// A Restate server.
    Restate,
}

impl Engine {
    /// Piton in its three forms and the chosen peers, in the order of the table.
    pub(super) fn chosen(peers: &[Peer]) -> Vec<Engine> {
        let own = [Engine::PitonSqlite, Engine::PitonHttp, Engine::PitonPostgres];
        let others = Peer::value_variants().iter().filter(|peer| peers.contains(peer));
        own.into_iter().chain(others.map(|peer| Engine::Peer(*peer))).collect()
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Engine::PitonSqlite => "Piton, SQLite",
            Engine::PitonHttp => "Piton, SQLite, HTTP",
            Engine::PitonPostgres => "Piton, PostgreSQL",
            Engine::Peer(Peer::Restate) => "Restate",
            Engine::Peer(Peer::Dbos) => "DBOS for Rust",
            Engine::Peer(Peer::Duroxide) => "duroxide",
            Engine::Peer(Peer::DbosPython) => "DBOS for Python",
            Engine::Peer(Peer::DbosTypescript) => "DBOS for TypeScript",
            Engine::Peer(Peer::Absurd) => "absurd",
            Engine::Peer(Peer::Openworkflow) => "openworkflow",
        }
    }

    pub(super) fn language(self) -> Language {
        match self {
            Engine::Peer(Peer::DbosPython) => {
                Language::Python { package: "dbos", version: "3.3.0" }
            }
            Engine::Peer(Peer::DbosTypescript) => Language::Node {
                package: "@dbos-inc/dbos-sdk",
                version: "5.3.0",
                beside: Beside::Nothing,
            },
            Engine::Peer(Peer::Absurd) => Language::Node {
                package: "absurd-sdk",
                version: "0.5.0",
                beside: Beside::Python("absurdctl==0.5.1"),
            },
            Engine::Peer(Peer::Openworkflow) => Language::Node {
                package: "openworkflow",
                version: "0.10.1",
                beside: Beside::Npm("postgres@3.4.9"),
            },
            Engine::PitonSqlite
            | Engine::PitonHttp
            | Engine::PitonPostgres
            | Engine::Peer(Peer::Restate | Peer::Dbos | Peer::Duroxide) => Language::Rust,
        }
    }

    /// What has reached the disk when a step counts as done, by the options it is shipped with.
    pub(super) fn durability(self) -> &'static str {
        match self.needs() {
            Needs::Postgres => "PostgreSQL, fsync and synchronous_commit on: synced",
            Needs::Restate => "its own log on RocksDB, WAL fsync on: synced",
            Needs::Directory if self == Engine::Peer(Peer::Duroxide) => {
                "SQLite, WAL, synchronous=NORMAL: commits are not synced"
            }
            Needs::Directory => "SQLite, WAL, synchronous=FULL: synced",
        }
    }

    /// The directory of its driver in `bench/peers/`.
    pub(super) fn driver(self) -> &'static str {
        match self {
            Engine::PitonSqlite | Engine::PitonHttp | Engine::PitonPostgres => "piton",
            Engine::Peer(Peer::Restate) => "restate",
            Engine::Peer(Peer::Dbos) => "dbos",
            Engine::Peer(Peer::Duroxide) => "duroxide",
            Engine::Peer(Peer::DbosPython) => "dbos-python",
            Engine::Peer(Peer::DbosTypescript) => "dbos-typescript",
            Engine::Peer(Peer::Absurd) => "absurd",
            Engine::Peer(Peer::Openworkflow) => "openworkflow",
        }
    }

    pub(super) fn needs(self) -> Needs {
        match self {
            Engine::PitonSqlite | Engine::PitonHttp | Engine::Peer(Peer::Duroxide) => {
                Needs::Directory
            }
            Engine::PitonPostgres
            | Engine::Peer(
                Peer::Dbos
                | Peer::DbosPython
                | Peer::DbosTypescript
                | Peer::Absurd
                | Peer::Openworkflow,
            ) => Needs::Postgres,
            Engine::Peer(Peer::Restate) => Needs::Restate,
        }
    }

    /// Which version is measured: what the driver's lock file says, and for Restate the server's.
    pub(super) fn version(self) -> Result<String> {
        if let Language::Python { version, .. } | Language::Node { version, .. } = self.language() {
            return Ok(version.to_owned());
        }
        if self.needs() == Needs::Restate {
            return Ok(super::restate::VERSION.to_owned());
        }
        // The directory of a driver in Rust has the name of the engine's package.
        let package = self.driver();
        let file = cargo::workspace_root()?.join("bench/peers").join(self.driver());
        let lock = fs::read_to_string(file.join("Cargo.lock")).context("cannot read Cargo.lock")?;
        locked_version(&lock, package).with_context(|| format!("Cargo.lock has no {package}"))
    }
}

fn locked_version(lock: &str, package: &str) -> Option<String> {
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines().skip_while(|line| *line != name).skip(1);
    let version = lines.next()?.strip_prefix("version = \"")?.strip_suffix('"')?;
    Some(version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_that_of_the_lock_file() {
        let lock = "[[package]]\nname = \"dbos-macros\"\nversion = \"9\"\n\n[[package]]\nname = \"dbos\"\nversion = \"0.5.0\"\n";
        assert_eq!(locked_version(lock, "dbos").as_deref(), Some("0.5.0"));
        assert_eq!(locked_version(lock, "restate"), None);
    }

    #[test]
    fn every_engine_has_a_driver_and_a_version() {
        for engine in Engine::chosen(Peer::value_variants()) {
            let file = match engine.language() {
                Language::Rust => "src/main.rs",
                Language::Python { .. } => "driver.py",
                Language::Node { .. } => "driver.js",
            };
            let drivers = cargo::workspace_root().unwrap().join("bench/peers");
            assert!(drivers.join(engine.driver()).join(file).is_file(), "{}", engine.name());
            assert!(!engine.version().unwrap().is_empty(), "{}", engine.name());
        }
    }

    #[test]
    fn piton_always_takes_part_and_peers_in_their_order() {
        let chosen = Engine::chosen(&[Peer::Duroxide, Peer::Restate]);
        let names: Vec<&str> = chosen.iter().map(|engine| engine.name()).collect();
        assert_eq!(
            names,
            ["Piton, SQLite", "Piton, SQLite, HTTP", "Piton, PostgreSQL", "Restate", "duroxide"]
        );
    }
}
