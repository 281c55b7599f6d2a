//! More worker processes on one PostgreSQL: what one, two and four of them do with the same backlog.
//!
//! The instances are created before the first worker starts, so that nobody's creating is measured; the clock is the
//! database's, from the first instance that was started to the last one that completed. What the server's sessions were
//! busy with or waited for is sampled all the time: that tells where the limit is.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use piton::{BatchItem, Engine};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgConnection, Row as _};

use super::postgres::{PostgresServer, STORE};
use super::{Bench, throughput};
use crate::progress::Progress;
use crate::report::{Figure, Row};
use crate::{stats, timer};

/// Runs that a worker advances at the same time.
const CONCURRENCY: usize = 128;

/// Instances created by one call.
const BATCH: u64 = 100;

/// How often the server is asked what it does.
const SAMPLE_EVERY: Duration = Duration::from_millis(20);

const LEFT: &str = "SELECT count(*) FROM piton_task";

const BUSY_WITH: &str = "\
    SELECT coalesce(wait_event_type || ' ' || wait_event, 'CPU') FROM pg_stat_activity
    WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()";

const SPAN_MS: &str = "SELECT max(completed_at) - min(started_at) FROM piton_instance";

/// How many workers there are at a time, and under which name the result is told.
const COUNTS: [(usize, &str); 3] = [(1, "1 worker"), (2, "2 workers"), (4, "4 workers")];

pub(super) async fn measure(
    bench: &Bench<'_>,
    server: &PostgresServer,
    name: &'static str,
) -> Result<Row> {
    let progress = Progress::start(name, bench.plan.workers_rounds * COUNTS.len());
    let mut rounds: BTreeMap<usize, Vec<Round>> = BTreeMap::new();
    for _ in 0..bench.plan.workers_rounds {
        for (workers, _) in COUNTS {
            let measured = round(server, workers, bench.plan.workers_instances).await?;
            rounds.entry(workers).or_default().push(measured);
            progress.step();
        }
    }
    let median = |workers: usize, of: fn(&Round) -> f64| {
        stats::median(&rounds[&workers].iter().map(of).collect::<Vec<f64>>())
    };
    let speed = |round: &Round| round.steps_per_second;
    let (first, most) = (median(1, speed), median(4, speed));
    let mut also: Vec<Figure> = COUNTS
        .iter()
        .map(|(workers, name)| (*name, median(*workers, speed)))
        .map(|(name, value)| Figure { name, value, unit: "steps/s", goal: None })
        .collect();
    for (workers, name) in [(1, "machine busy, 1 worker"), (4, "machine busy, 4 workers")] {
        let value = median(workers, |round| round.machine_busy * 100.0);
        also.push(Figure { name, value, unit: "%", goal: None });
    }
    let note = |workers| Sessions::all(&rounds[&workers]).to_string();
    Ok(Row {
        workload: name,
        store: STORE,
        value: most / first,
        unit: "times one",
        ceiling: None,
        ratio: None,
        goal: None,
        also,
        note: format!("the server's sessions, 1 worker: {}; 4 workers: {}", note(1), note(4)),
    })
}

/// What one round measured.
struct Round {
    steps_per_second: f64,
    /// Of all cores of the machine, between 0 and 1.
    machine_busy: f64,
    sessions: Sessions,
}

/// How often sessions were seen busy with what.
#[derive(Default)]
struct Sessions(BTreeMap<String, usize>);

impl Sessions {
    fn all(rounds: &[Round]) -> Self {
        let mut all = Self::default();
        for (what, times) in rounds.iter().flat_map(|round| &round.sessions.0) {
            *all.0.entry(what.clone()).or_default() += times;
        }
        all
    }
}

impl std::fmt::Display for Sessions {
    /// The four most frequent.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all: usize = self.0.values().sum();
        let mut most: Vec<(&String, &usize)> = self.0.iter().collect();
        most.sort_unstable_by_key(|(_, times)| std::cmp::Reverse(**times));
        for (n, (what, times)) in most.into_iter().take(4).enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            write!(f, "{comma}{what} {:.0} %", *times as f64 * 100.0 / all as f64)?;
        }
        Ok(())
    }
}

async fn round(server: &PostgresServer, workers: usize, instances: u64) -> Result<Round> {
    let database = server.database().await?;
    create(database.options(), instances).await?;
    let mut connection = database.options().connect().await?;
    let before = machine_ticks();
    let workers: Vec<Worker> =
        (0..workers).map(|_| Worker::start(&database.options())).collect::<Result<_>>()?;
    let sessions = watch(&mut connection).await?;
    let machine_busy = busy_share(before, machine_ticks());
    drop(workers);
    let span_ms: i64 = sqlx::query(SPAN_MS).fetch_one(&mut connection).await?.try_get(0)?;
    drop(connection);
    database.remove().await?;
    let steps_per_second = (instances * throughput::STEPS * 1_000) as f64 / span_ms as f64;
    Ok(Round { steps_per_second, machine_busy, sessions })
}

async fn create(database: PgConnectOptions, instances: u64) -> Result<()> {
    let engine = Engine::builder(database.to_url_lossy().to_string());
    let engine = engine.register(throughput::ten_steps_workflow()).no_runner().start().await?;
    let ten_steps = engine.workflow::<u64, u64>("ten_steps")?;
    for first in (0..instances).step_by(BATCH as usize) {
        let batch =
            (first..instances.min(first + BATCH)).map(|n| BatchItem::new(format!("i-{n}"), n));
        ten_steps.create_batch(batch).await?;
    }
    engine.shutdown(super::PATIENCE).await?;
    Ok(())
}

/// Looks at the server until all is done.
async fn watch(connection: &mut PgConnection) -> Result<Sessions> {
    let mut sessions = Sessions::default();
    loop {
        let left: i64 = sqlx::query(LEFT).fetch_one(&mut *connection).await?.try_get(0)?;
        if left == 0 {
            return Ok(sessions);
        }
        for row in sqlx::query(BUSY_WITH).fetch_all(&mut *connection).await? {
            *sessions.0.entry(row.try_get(0)?).or_default() += 1;
        }
        timer::sleep(SAMPLE_EVERY).await;
    }
}

/// A worker process: this binary, called by itself. It ends with this.
struct Worker(Child);

impl Worker {
    fn start(database: &PgConnectOptions) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--worker").arg(database.to_url_lossy().to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        Ok(Self(command.spawn().context("cannot start a worker")?))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a worker process does: advances runs until its standard input ends.
pub(crate) async fn work(url: &str) -> Result<()> {
    let engine = Engine::builder(url).register(throughput::ten_steps_workflow());
    let engine = engine.concurrency(CONCURRENCY).start().await?;
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    engine.shutdown(super::PATIENCE).await?;
    Ok(())
}

/// Ticks of all cores, busy and altogether; zero where there is no `/proc`.
fn machine_ticks() -> (u64, u64) {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = line.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are counted among the users.
    let all: u64 = ticks.iter().take(8).sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    (all - idle, all)
}

fn busy_share(before: (u64, u64), after: (u64, u64)) -> f64 {
    (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64
}
