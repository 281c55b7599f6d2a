//! `cargo xtask bench`: the benchmark, always built for release.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use anyhow::{Context, Result};
use private_postgres::Place;

use crate::against::{self, Peer, Workload};
use crate::cargo;
use crate::postgres::Database;
use crate::stages::Stages;

/// Build `piton-bench` for release and run it.
///
/// Runs `cargo run --release -p piton-bench` with the options below passed on.
///
/// With --against, Piton is measured side by side with other engines instead: their drivers in bench/peers/ are built,
/// their servers installed and started privately, and all of them do the same work in turns. See docs/benchmarks.md.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask bench                              every workload, full length
  cargo xtask bench --quick --store sqlite       a first impression, on SQLite only
  cargo xtask bench --store postgres             on a private PostgreSQL, started for it
  cargo xtask bench --json results.json          also write the numbers to a file
  cargo xtask bench --against restate,dbos,duroxide --quick
                                                 side by side with other engines
  cargo xtask bench --against dbos --workload 10x64 --json peers.json --svg peers.svg --markdown peers.md
                                                 one workload, ten steps and 64 in flight; adds to the file")]
pub(crate) struct Args {
    /// Shorter runs: good for a comparison while working, too noisy to publish
    #[arg(long)]
    quick: bool,

    /// Measure this store: `sqlite`, or `postgres` on a private server (or the one of PITON_TEST_POSTGRES_URL)
    #[arg(long, value_name = "STORE")]
    store: Option<String>,

    /// Write the results as JSON to this file; with --against, workloads that are in the file already are kept
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Measure side by side with these engines
    #[arg(long, value_name = "PEERS", value_enum, value_delimiter = ',', conflicts_with = "store")]
    against: Vec<Peer>,

    /// Measure this workload only: steps by workflows in flight, or burst, warm-burst, event, sleep or idle; may be repeated
    #[arg(long = "workload", value_name = "10x64", requires = "against")]
    workloads: Vec<Workload>,

    /// Draw the results as an SVG chart into this file
    #[arg(long, value_name = "FILE", requires = "against")]
    svg: Option<PathBuf>,

    /// Write the tables in Markdown into this file
    #[arg(long, value_name = "FILE", requires = "against")]
    markdown: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, stages: &mut Stages) -> Result<()> {
    if !args.against.is_empty() {
        return stages.run("against", || against::run(&args.to_comparison()));
    }
    let bench_args = args.to_bench_args()?;
    stages.run("bench", || run_with(bench_args))
}

/// Runs the benchmark with its own arguments.
pub(crate) fn run_with<S: AsRef<OsStr>>(bench_args: impl IntoIterator<Item = S>) -> Result<()> {
    let bench_args: Vec<OsString> =
        bench_args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
    let mut command = cargo::command(["run", "--release", "-p", "piton-bench", "--"]);
    // On disk: what is measured includes its syncs.
    let on_postgres = bench_args.iter().any(|arg| arg == "postgres");
    let database = on_postgres.then(|| Database::open(Place::Disk)).transpose()?;
    if let Some(database) = &database {
        database.tell(&mut command);
    }
    command.args(bench_args);
    cargo::run(command)
}

impl Args {
    fn to_comparison(&self) -> against::Options<'_> {
        against::Options {
            peers: &self.against,
            workloads: &self.workloads,
            quick: self.quick,
            json: self.json.as_deref(),
            svg: self.svg.as_deref(),
            markdown: self.markdown.as_deref(),
        }
    }

    fn to_bench_args(&self) -> Result<Vec<OsString>> {
        let mut args: Vec<OsString> = Vec::new();
        if self.quick {
            args.push("--quick".into());
        }
        if let Some(store) = &self.store {
            args.extend(["--store".into(), store.into()]);
        }
        if let Some(file) = &self.json {
            // The benchmark runs in the workspace root, but the user means a file where they are.
            let file = std::path::absolute(file).context("cannot resolve the path for --json")?;
            args.extend(["--json".into(), file.into()]);
        }
        Ok(args)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Bench {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Args {
        Bench::parse_from(line.split_whitespace()).args
    }

    #[test]
    fn peers_and_workloads_are_lists() {
        let args = parse("bench --against dbos,restate --workload 10x64 --workload 3x1");
        assert_eq!(args.against, [Peer::Dbos, Peer::Restate]);
        let workloads: Vec<String> = args.workloads.iter().map(Workload::to_string).collect();
        assert_eq!(workloads, ["10 steps, 64 in flight", "3 steps, 1 in flight"]);
    }

    #[test]
    fn only_the_given_options_are_passed_on() {
        assert!(parse("bench").to_bench_args().unwrap().is_empty());
        let some = parse("bench --quick --store sqlite");
        assert_eq!(some.to_bench_args().unwrap(), ["--quick", "--store", "sqlite"]);
    }

    #[test]
    fn the_json_file_is_where_the_user_is() {
        let args = parse("bench --json results.json");
        let here = std::env::current_dir().unwrap().join("results.json");
        assert_eq!(args.to_bench_args().unwrap(), ["--json".into(), here.into_os_string()]);
    }
}
