//! `piton-bench`: the speed Piton stands for, measured against what the disk can do.
//!
//! A number of this machine means little on another one. So every workload that can be done by the bare database is, in the
//! same run and in turns with the engine, and what counts is the ratio. Durability is as shipped: WAL, `FULL`.
//!
//! ```text
//!   main ── Plan (how much) ──> Workload::measure ──> Row ──> report: table and JSON
//!                                 │        │
//!                        raw: the ceiling  engine: only the public API
//! ```

mod machine;
mod multiply;
mod plan;
mod process;
mod progress;
mod raw;
mod report;
mod stats;
mod timer;
mod workload;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use tokio::runtime::{Builder, Runtime};

use crate::machine::Machine;
use crate::plan::Plan;
use crate::report::Row;
use crate::workload::{Bench, PostgresServer, Probe, Workload};

/// Measure Piton against bare SQLite on this machine.
///
/// Prints a table with what each number must be and what we aim for. The exit code is 0 whatever the numbers are, unless
/// --check is given.
#[derive(Debug, Parser)]
#[command(
    name = "piton-bench",
    after_help = "\
Examples:
  cargo xtask bench                                   every workload, under three minutes
  cargo xtask bench --quick                           a first impression, under one minute
  cargo xtask bench --store postgres                  on a private PostgreSQL, against bare inserts there
  piton-bench --workload throughput_256 --json -      one workload, as JSON on stdout"
)]
struct Args {
    /// Shorter runs: good for a comparison while working, too noisy to publish
    #[arg(long)]
    quick: bool,

    /// Just enough to show that every workload works
    #[arg(long, hide = true, conflicts_with = "quick")]
    tiny: bool,

    /// The store to measure
    #[arg(long, value_enum, default_value_t = StoreKind::Sqlite)]
    store: StoreKind,

    /// Write the results as JSON to this file; `-` is stdout, and the table then goes to stderr
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Measure this workload only; may be repeated
    #[arg(long = "workload", value_name = "NAME", value_enum)]
    workloads: Vec<Workload>,

    /// Name the workloads and stop
    #[arg(long)]
    list: bool,

    /// End with exit code 1 if a number is not what it must be
    #[arg(long)]
    check: bool,

    /// Where to put the databases; must be on the disk to be measured [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Advance runs on this database until standard input ends: what `workers_1_to_4` starts
    #[arg(long, value_name = "URL", hide = true)]
    worker: Option<String>,

    #[command(flatten)]
    probe: Probe,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum StoreKind {
    Sqlite,
    Postgres,
}

impl Args {
    fn plan(&self) -> Plan {
        match (self.tiny, self.quick) {
            (true, _) => Plan::TINY,
            (false, true) => Plan::QUICK,
            (false, false) => Plan::FULL,
        }
    }

    fn workloads(&self) -> &[Workload] {
        if self.workloads.is_empty() { Workload::value_variants() } else { &self.workloads }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    match runtime().and_then(|runtime| runtime.block_on(run(&args))) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// One core is the store's writer's: with a worker on every core they take turns, and everybody waits for the writer.
fn runtime() -> Result<Runtime> {
    let workers = Machine::cores().saturating_sub(1).max(1);
    Ok(Builder::new_multi_thread().worker_threads(workers).enable_all().build()?)
}

async fn run(args: &Args) -> Result<ExitCode> {
    if args.list {
        for workload in Workload::value_variants() {
            println!("{:<16} {}", workload.name(), workload.about());
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.probe.is_asked() {
        args.probe.run().await?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(url) = &args.worker {
        workload::work(url).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = measure(args).await?;
    let missed = rows.iter().any(Row::is_missed);
    write_results(args.json.as_deref(), &rows)?;
    if args.check && missed {
        eprintln!("error: a number is not what it must be, see MISSED in the table");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

async fn measure(args: &Args) -> Result<Vec<Row>> {
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    // Removed when dropped, whatever happens before.
    let dir = tempfile::Builder::new()
        .prefix("piton-bench-")
        .tempdir_in(&parent)
        .with_context(|| format!("cannot use {}: choose another with --dir", parent.display()))?;
    let machine = Machine::look(dir.path()).await?;
    eprintln!("{machine}");
    for warning in machine.warnings() {
        eprintln!("warning: {warning}");
    }
    eprintln!();
    let bench = Bench::new(dir.path(), args.plan());
    let mut rows = Vec::new();
    let failed = |workload: &Workload| format!("workload {} failed", workload.name());
    match args.store {
        StoreKind::Sqlite => {
            for workload in args.workloads().iter().filter(|workload| workload.is_for_sqlite()) {
                let measured = workload.measure(&bench).await;
                rows.push(measured.with_context(|| failed(workload))?);
            }
        }
        StoreKind::Postgres => {
            let server = PostgresServer::find().await?;
            eprintln!("{server}\n");
            for workload in args.workloads().iter().filter(|workload| workload.is_for_postgres()) {
                let measured = workload.measure_on_postgres(&bench, &server).await;
                rows.push(measured.with_context(|| failed(workload))?);
            }
        }
    }
    dir.close().context("cannot remove the databases of the benchmark")?;
    Ok(rows)
}

fn write_results(json: Option<&Path>, rows: &[Row]) -> Result<()> {
    let table = report::table(rows);
    match json {
        None => print!("{table}"),
        Some(file) if file == Path::new("-") => {
            eprint!("{table}");
            print!("{}", report::json(rows)?);
        }
        Some(file) => {
            print!("{table}");
            std::fs::write(file, report::json(rows)?)
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn without_a_selection_every_workload_is_measured() {
        let all = Args::parse_from(["piton-bench"]);
        assert_eq!(all.workloads().len(), Workload::value_variants().len());
        let some = Args::parse_from([
            "piton-bench",
            "--workload",
            "event_to_step",
            "--workload",
            "at_rest_1m",
        ]);
        assert_eq!(some.workloads(), [Workload::EventToStep, Workload::AtRest]);
    }
}
