//! A million sleeping instances: what they cost while they sleep.
//!
//! The database is made by copying one real sleeping instance. A process of its own then opens it: this one has a past.
//! Measured are the time from its start until a new workflow is done, its CPU time while idle, and its memory, compared
//! with the same process on a database with a single instance.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use piton::InstanceStatus;
use piton::prelude::*;
use serde::{Deserialize, Serialize};

use super::{Bench, PATIENCE, STORE, engine_on};
use crate::multiply::multiply;
use crate::progress::Progress;
use crate::report::{Figure, Goal, Row};
use crate::{process, timer};

/// Sleeps far beyond the end of the benchmark.
const REST: &str = "30 days";

/// Time for a process that has just started to come to rest.
const SETTLE: Duration = Duration::from_secs(1);

/// The process that is watched: this binary, called by itself.
#[derive(Debug, clap::Args)]
pub(crate) struct Probe {
    /// Start an engine on this database and tell what it costs
    #[arg(long, value_name = "FILE", hide = true)]
    probe_at_rest: Option<PathBuf>,

    /// How long to be idle
    #[arg(long, value_name = "MS", hide = true, default_value_t = 1_000)]
    probe_idle_ms: u64,
}

/// What a probe tells on its second line; the first one says that it is ready.
#[derive(Debug, Serialize, Deserialize)]
struct Cost {
    /// In percent of a core.
    idle_cpu: Option<f64>,
    memory_bytes: Option<u64>,
}

async fn rest(_: Event<()>, step: &Step) -> piton::Result<()> {
    step.sleep("rest", REST).await
}

async fn trivial(_: Event<()>, step: &Step) -> piton::Result<bool> {
    step.run("say yes", async { Ok(true) }).await
}

pub(super) async fn measure(bench: &Bench<'_>, name: &'static str) -> Result<Row> {
    let (count, idle) = (bench.plan.at_rest, bench.plan.idle);
    let progress = Progress::start(name, 4);
    let alone = bench.database("at-rest-alone");
    put_one_to_rest(alone.path()).await?;
    let (_, before) = probe(alone.path(), Duration::ZERO)?;
    progress.step();
    let database = bench.database("at-rest");
    put_one_to_rest(database.path()).await?;
    progress.step();
    multiply(database.path(), count)?;
    progress.step();
    let (ready, cost) = probe(database.path(), idle)?;
    progress.step();

    let mut also = Vec::new();
    if let Some(value) = cost.idle_cpu {
        let goal = Some(Goal::at_most(1.0, 0.2));
        also.push(Figure { name: "idle CPU", value, unit: "%", goal });
    }
    if let (Some(before), Some(after)) = (before.memory_bytes, cost.memory_bytes) {
        let value = (after as f64 - before as f64) / count as f64;
        also.push(Figure { name: "memory per instance", value, unit: "bytes", goal: None });
    }
    let mib = |bytes: Option<u64>| bytes.map_or(f64::NAN, |bytes| bytes as f64 / 1048576.0);
    Ok(Row {
        workload: name,
        store: STORE,
        value: ready.as_secs_f64(),
        unit: "s",
        ceiling: None,
        ratio: None,
        goal: Some(Goal::at_most(2.0, 1.0)),
        also,
        note: format!(
            "{count} sleeping instances; from the start of the process until a new workflow is done; memory {:.1} MiB, \
             {:.1} MiB with one instance",
            mib(cost.memory_bytes),
            mib(before.memory_bytes),
        ),
    })
}

/// Makes a database with one sleeping instance.
async fn put_one_to_rest(path: &Path) -> Result<()> {
    let engine = engine_on(path).register(workflow("rest", rest)).start().await?;
    let instance = engine.workflow::<(), ()>("rest")?.create(()).await?;
    while instance.status().await? != InstanceStatus::Waiting {
        timer::sleep(Duration::from_millis(1)).await;
    }
    engine.shutdown(PATIENCE).await?;
    Ok(())
}

/// Starts a process on the database: how long until it was ready, and what it costs when idle.
fn probe(path: &Path, idle: Duration) -> Result<(Duration, Cost)> {
    let start = timer::now();
    let mut child = Command::new(std::env::current_exe()?)
        .arg("--probe-at-rest")
        .arg(path)
        .arg("--probe-idle-ms")
        .arg(idle.as_millis().to_string())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start this program a second time")?;
    let stdout = child.stdout.take().context("the output of the process is piped")?;
    let mut lines = BufReader::new(stdout).lines();
    let first = lines.next().transpose()?;
    let ready = start.elapsed();
    let second = lines.next().transpose()?;
    let status = child.wait()?;
    ensure!(status.success(), "the process on the database ended with {status}");
    ensure!(first.as_deref() == Some("ready"), "the process on the database said {first:?}");
    let cost = second.context("the process on the database did not tell its cost")?;
    Ok((ready, serde_json::from_str(&cost)?))
}

impl Probe {
    /// Whether this process is to be watched instead of measuring something.
    pub(crate) fn is_asked(&self) -> bool {
        self.probe_at_rest.is_some()
    }

    /// Starts, runs one workflow, rests, and tells what the rest cost.
    pub(crate) async fn run(&self) -> Result<()> {
        let path = self.probe_at_rest.as_deref().context("no database was given")?;
        let engine = engine_on(path)
            .register(workflow("rest", rest))
            .register(workflow("trivial", trivial))
            .start()
            .await?;
        ensure!(engine.workflow::<(), bool>("trivial")?.create(()).await?.result().await?);
        println!("ready");
        timer::sleep(SETTLE).await;
        let idle_cpu = idle_cpu(Duration::from_millis(self.probe_idle_ms)).await;
        let cost = Cost { idle_cpu, memory_bytes: process::memory_bytes() };
        println!("{}", serde_json::to_string(&cost)?);
        engine.shutdown(PATIENCE).await?;
        Ok(())
    }
}

/// CPU time of this process while nothing happens, in percent of a core.
async fn idle_cpu(span: Duration) -> Option<f64> {
    let (start, before) = (timer::now(), process::cpu_time()?);
    timer::sleep(span).await;
    let (used, elapsed) = (process::cpu_time()?.saturating_sub(before), start.elapsed());
    (!span.is_zero()).then(|| 100.0 * used.as_secs_f64() / elapsed.as_secs_f64())
}
