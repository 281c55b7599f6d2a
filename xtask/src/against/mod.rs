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

mod chart;
mod contestant;
mod engine;
mod group;
mod report;
mod restate;
mod workload;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cargo;
pub(crate) use engine::Peer;
pub(crate) use workload::Workload;

use contestant::Field;
use engine::Engine;
use group::Interrupt;
use report::{Entry, Report, Table};

/// What to measure, and what to make of it.
#[derive(Debug)]
pub(crate) struct Options<'a> {
    pub(crate) peers: &'a [Peer],
    /// Empty: all.
    pub(crate) workloads: &'a [Workload],
    pub(crate) quick: bool,
    pub(crate) json: Option<&'a Path>,
    pub(crate) svg: Option<&'a Path>,
}

/// How often and how long each engine is measured on each workload.
#[derive(Clone, Copy, Debug)]
struct Plan {
    rounds: usize,
    window: Duration,
}

impl Plan {
    /// About a minute and a half for each workload.
    const FULL: Plan = Plan { rounds: 3, window: Duration::from_secs(3) };

    const QUICK: Plan = Plan { rounds: 1, window: Duration::from_secs(1) };
}

pub(crate) fn run(options: &Options<'_>) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let mut report = match options.json {
        Some(file) => Report::read_or_new(file)?,
        None => Report::new(),
    };
    let field = Field::prepare(Engine::chosen(options.peers), &interrupt)?;
    let plan = if options.quick { Plan::QUICK } else { Plan::FULL };
    let workloads = if options.workloads.is_empty() { &Workload::ALL } else { options.workloads };
    for workload in workloads {
        report.put(measure(*workload, plan, &field, &interrupt)?);
        // After each workload, so that an interrupted run leaves what it has measured.
        write(&report, options)?;
    }
    drop(field);
    println!("\n{report}");
    Ok(())
}

/// All engines in turns, round by round.
fn measure(workload: Workload, plan: Plan, field: &Field, interrupt: &Interrupt) -> Result<Table> {
    println!("\n{workload}: {} rounds of {:?}", plan.rounds, plan.window);
    let mut entries: Vec<Entry> = field.contestants.iter().map(Entry::new).collect();
    for round in 1..=plan.rounds {
        for (contestant, entry) in field.contestants.iter().zip(&mut entries) {
            if contestant.skipped().is_some() {
                continue;
            }
            let measured = contestant.measure(workload, plan.window, interrupt);
            interrupt.check()?;
            let name = contestant.engine.name();
            match &measured {
                Ok(sample) => println!("  {round}/{}  {name:<22} {sample}", plan.rounds),
                Err(error) => println!("  {round}/{}  {name:<22} failed: {error:#}", plan.rounds),
            }
            entry.add(measured);
        }
    }
    Ok(Table::new(workload, plan.rounds, plan.window, entries))
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
    Ok(())
}

/// Where the drivers are built and the servers are installed.
fn target_directory() -> Result<PathBuf> {
    Ok(cargo::workspace_root()?.join("target/peers"))
}
