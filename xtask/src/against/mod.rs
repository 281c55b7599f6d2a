//! `cargo xtask bench --against …`: Piton and the engines people would choose instead, side by side.
//!
//! Each engine has a driver in `bench/peers/`, a package outside the workspace that speaks the protocol of `peer-driver`. All of
//! them do the same work on this machine in turns (A B C, A B C, …), so that a noisy moment hits all alike, with the
//! durability and the options that each is shipped with.
//!
//! ```text
//!   Engine ── prepare: build, install, start ──> Contestant ── measure, in turns ──> Report ──> table, JSON, chart
//! ```
//!
//! Whatever is started runs in a process group of its own that ends with its owner, on errors and on ctrl-c, too.

mod bars;
mod chart;
mod contestant;
mod driver;
mod engine;
mod group;
mod report;
mod restate;
mod round;
mod table;
mod usage;
mod workload;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cargo;
pub(crate) use engine::Peer;
pub(crate) use workload::Workload;

use contestant::Field;
use engine::Engine;
use group::{Interrupt, now};
use report::{Entry, Report, Table};
use tempfile::TempDir;
use workload::Plan;

/// What to measure, and what to make of it.
#[derive(Debug)]
pub(crate) struct Options<'a> {
    pub(crate) peers: &'a [Peer],
    /// Empty: all.
    pub(crate) workloads: &'a [Workload],
    pub(crate) quick: bool,
    pub(crate) json: Option<&'a Path>,
    pub(crate) svg: Option<&'a Path>,
    pub(crate) markdown: Option<&'a Path>,
}

pub(crate) fn run(options: &Options<'_>) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let mut report = match options.json {
        Some(file) => Report::read_or_new(file)?,
        None => Report::new(),
    };
    let field = Field::prepare(Engine::chosen(options.peers), &interrupt)?;
    let workloads = if options.workloads.is_empty() { &Workload::ALL } else { options.workloads };
    let plans: Vec<(Workload, Plan)> =
        workloads.iter().map(|workload| (*workload, workload.plan(options.quick))).collect();
    let takes_part = field.contestants.iter().filter(|one| one.skipped().is_none()).count();
    let expected: Duration = plans.iter().map(|(_, plan)| plan.expected()).sum();
    println!("\n{} workloads, about {}", plans.len(), clock(expected * takes_part as u32));
    let begin = now();
    for (workload, plan) in plans {
        println!("\n{}  {workload}", clock(now() - begin));
        report.put(measure(workload, plan, &field, &interrupt)?);
        // After each workload, so that an interrupted run leaves what it has measured.
        write(&report, options)?;
    }
    drop(field);
    println!("\n{report}");
    Ok(())
}

/// All engines in turns, round by round.
fn measure(workload: Workload, plan: Plan, field: &Field, interrupt: &Interrupt) -> Result<Table> {
    let mut entries: Vec<Entry> = field.contestants.iter().map(Entry::new).collect();
    for round in 1..=plan.rounds {
        for (contestant, entry) in field.contestants.iter().zip(&mut entries) {
            if entry.is_given_up() {
                continue;
            }
            let measured = field.measure(contestant, workload, plan, interrupt);
            interrupt.check()?;
            let name = contestant.engine.name();
            match &measured {
                Ok(sample) => println!("  {round}/{}  {name:<22} {sample}", plan.rounds),
                Err(error) => println!("  {round}/{}  {name:<22} failed: {error:#}", plan.rounds),
            }
            entry.add(measured);
        }
    }
    Ok(Table::new(workload, plan, entries))
}

/// `12:34`, minutes and seconds.
fn clock(span: Duration) -> String {
    format!("{}:{:02}", span.as_secs() / 60, span.as_secs() % 60)
}

fn write(report: &Report, options: &Options<'_>) -> Result<()> {
    let put = |file: &Path, text: String| {
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
    };
    if let Some(file) = options.json {
        put(file, report.json()?)?;
    }
    if let Some(file) = options.svg {
        put(file, chart::draw(report))?;
    }
    if let Some(file) = options.markdown {
        put(file, report.to_string())?;
    }
    Ok(())
}

/// Where the drivers are built and the servers are installed.
fn target_directory() -> Result<PathBuf> {
    Ok(cargo::workspace_root()?.join("target/peers"))
}

/// On the disk to be measured: the directory for temporary files.
fn scratch() -> Result<TempDir> {
    tempfile::Builder::new().prefix("piton-peers-").tempdir().context("cannot make a directory")
}
