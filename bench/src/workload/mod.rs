//! The workloads, one file each: a question to the engine, asked through its public API only.

mod at_rest;
mod event;
mod hooks;
mod http;
mod latency;
mod postgres;
mod sleepers;
mod starts;
mod throughput;
mod workers;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::ValueEnum;
use clap::builder::PossibleValue;
use piton::{Engine, EngineBuilder};

use crate::plan::Plan;
use crate::report::Row;

pub(crate) use at_rest::Probe;
pub(crate) use postgres::PostgresServer;
pub(crate) use workers::work;

/// Under which name the store appears in the results.
const STORE: &str = "sqlite";

/// How long a shutdown may take; there is nothing left to do in any workload.
const PATIENCE: &str = "10 seconds";

/// Something to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    Throughput256,
    Throughput64,
    Latency,
    EventToStep,
    Sleepers,
    AtRest,
    HttpCreate,
    Workers,
    Hooks,
}

impl Workload {
    /// The name in results and on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Workload::Throughput256 => "throughput_256",
            Workload::Throughput64 => "throughput_64",
            Workload::Latency => "latency_3_steps",
            Workload::EventToStep => "event_to_step",
            Workload::Sleepers => "sleepers_100k",
            Workload::AtRest => "at_rest_1m",
            Workload::HttpCreate => "http_create",
            Workload::Workers => "workers_1_to_4",
            Workload::Hooks => "hooks",
        }
    }

    /// What it measures, in one line.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Workload::Throughput256 => "10-step workflows, 256 in flight, against bare inserts",
            Workload::Throughput64 => "10-step workflows, 64 in flight, against bare inserts",
            Workload::Latency => "one 3-step workflow, create to result, against 4 bare commits",
            Workload::EventToStep => "event sent until the next step's body starts, p99",
            Workload::Sleepers => "100,000 instances wake in the same millisecond",
            Workload::AtRest => "1,000,000 sleeping instances: start-up, idle CPU, memory",
            Workload::HttpCreate => {
                "instances created over 64 connections, against an empty handler"
            }
            Workload::Workers => "10-step workflows, 1, 2 and 4 worker processes, PostgreSQL only",
            Workload::Hooks => {
                "hooks triggered and processed, against bare inserts; and how soon one runs"
            }
        }
    }

    /// Whether it is measured on PostgreSQL, too.
    pub(crate) fn is_for_postgres(self) -> bool {
        match self {
            Workload::Throughput256
            | Workload::Throughput64
            | Workload::Latency
            | Workload::EventToStep
            | Workload::Workers => true,
            Workload::Sleepers | Workload::AtRest | Workload::HttpCreate | Workload::Hooks => false,
        }
    }

    /// Whether it is measured on SQLite, which one process has for itself.
    pub(crate) fn is_for_sqlite(self) -> bool {
        self != Workload::Workers
    }

    /// Measures it on PostgreSQL.
    pub(crate) async fn measure_on_postgres(
        self,
        bench: &Bench<'_>,
        server: &PostgresServer,
    ) -> Result<Row> {
        match self {
            Workload::Throughput256 => postgres::throughput(bench, server, self.name(), 256).await,
            Workload::Throughput64 => postgres::throughput(bench, server, self.name(), 64).await,
            Workload::Latency => postgres::latency(bench, server, self.name()).await,
            Workload::EventToStep => postgres::event(bench, server, self.name()).await,
            Workload::Workers => workers::measure(bench, server, self.name()).await,
            Workload::Sleepers | Workload::AtRest | Workload::HttpCreate | Workload::Hooks => {
                anyhow::bail!("{} is not measured on PostgreSQL", self.name())
            }
        }
    }

    /// Measures it.
    pub(crate) async fn measure(self, bench: &Bench<'_>) -> Result<Row> {
        match self {
            Workload::Throughput256 => throughput::measure(bench, self.name(), 256).await,
            Workload::Throughput64 => throughput::measure(bench, self.name(), 64).await,
            Workload::Latency => latency::measure(bench, self.name()).await,
            Workload::EventToStep => event::measure(bench, self.name()).await,
            Workload::Sleepers => sleepers::measure(bench, self.name()).await,
            Workload::AtRest => at_rest::measure(bench, self.name()).await,
            Workload::HttpCreate => http::measure(bench, self.name()).await,
            Workload::Workers => anyhow::bail!("{} is not measured on SQLite", self.name()),
            Workload::Hooks => hooks::measure(bench, self.name()).await,
        }
    }
}

impl ValueEnum for Workload {
    fn value_variants<'a>() -> &'a [Workload] {
        &[
            Workload::Throughput256,
            Workload::Throughput64,
            Workload::Latency,
            Workload::EventToStep,
            Workload::Sleepers,
            Workload::AtRest,
            Workload::HttpCreate,
            Workload::Workers,
            Workload::Hooks,
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()).help(self.about()))
    }
}

/// What every workload is given.
#[derive(Debug)]
pub(crate) struct Bench<'d> {
    dir: &'d Path,
    plan: Plan,
}

impl<'d> Bench<'d> {
    /// A benchmark whose databases live in `dir`.
    pub(crate) fn new(dir: &'d Path, plan: Plan) -> Bench<'d> {
        Bench { dir, plan }
    }

    /// The place of a database that does not exist yet.
    fn database(&self, name: &str) -> Database {
        Database { path: self.dir.join(format!("{name}.db")) }
    }
}

/// A database file. It is removed when this is dropped, so that a run never needs the space of all its rounds.
#[derive(Debug)]
struct Database {
    path: PathBuf,
}

impl Database {
    fn path(&self) -> &Path {
        &self.path
    }

    /// An engine on this database, as shipped.
    fn engine(&self) -> EngineBuilder {
        engine_on(&self.path)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        for suffix in ["", "-wal", "-shm", ".lock"] {
            let mut file = self.path.clone().into_os_string();
            file.push(suffix);
            // Whatever is left goes with the directory.
            let _ = std::fs::remove_file(file);
        }
    }
}

fn engine_on(path: &Path) -> EngineBuilder {
    Engine::builder(format!("sqlite:{}", path.display()))
}
