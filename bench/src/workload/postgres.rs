//! The workloads on PostgreSQL, against bare batched inserts over one connection to the same server.
//!
//! Each round has a database of its own, so that none works on the leftovers of another.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use piton::prelude::*;
use piton::{Engine, EngineBuilder};
use sqlx::postgres::{PgArguments, PgConnectOptions, PgRow};
use sqlx::{
    Arguments, AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection, Row as _,
};

use super::{Bench, PATIENCE, event, latency, throughput};
use crate::progress::Progress;
use crate::raw::ROWS_PER_TRANSACTION;
use crate::report::{Figure, Goal, Row};
use crate::{process, stats, timer};

pub(super) const STORE: &str = "postgres";

/// Pairs of the latency workload that are not counted: caches fill.
const WARM_UP: usize = 10;

/// Names the server to measure on; `cargo xtask bench` starts a private one.
const URL: &str = "PITON_TEST_POSTGRES_URL";

/// A server to measure on.
#[derive(Debug)]
pub(crate) struct PostgresServer {
    options: PgConnectOptions,
    version: String,
    settings: String,
    databases: AtomicU32,
}

impl fmt::Display for PostgresServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgreSQL {}, {}", self.version, self.settings)
    }
}

impl PostgresServer {
    /// The server that the environment names.
    pub(crate) async fn find() -> Result<PostgresServer> {
        let url = std::env::var(URL)
            .with_context(|| format!("use `cargo xtask bench --store postgres`, or set {URL}"))?;
        let options: PgConnectOptions = url.parse()?;
        let mut conn = options.connect().await.context("cannot connect to the server")?;
        let setting = async |conn: &mut PgConnection, name: &str| -> Result<String> {
            let row = sqlx::query("SELECT current_setting($1)").bind(name).fetch_one(conn).await?;
            Ok(row.try_get(0)?)
        };
        let version = setting(&mut conn, "server_version").await?;
        let mut settings = Vec::new();
        for name in ["fsync", "synchronous_commit", "shared_buffers", "wal_sync_method"] {
            settings.push(format!("{name} {}", setting(&mut conn, name).await?));
        }
        let databases = AtomicU32::new(0);
        Ok(PostgresServer { options, version, settings: settings.join(", "), databases })
    }

    pub(super) async fn database(&self) -> Result<PostgresDatabase> {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let name = format!("piton_bench_{}_{number}", std::process::id());
        let mut conn = self.options.connect().await?;
        conn.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await?;
        Ok(PostgresDatabase { server: self.options.clone(), name })
    }
}

/// A fresh database.
pub(super) struct PostgresDatabase {
    server: PgConnectOptions,
    name: String,
}

impl PostgresDatabase {
    pub(super) fn options(&self) -> PgConnectOptions {
        self.server.clone().database(&self.name)
    }

    /// An engine on this database, as shipped.
    fn engine(&self) -> EngineBuilder {
        Engine::builder(self.options().to_url_lossy().to_string())
    }

    pub(super) async fn remove(self) -> Result<()> {
        let mut conn = self.server.connect().await?;
        conn.execute(AssertSqlSafe(format!("DROP DATABASE {} WITH (FORCE)", self.name))).await?;
        Ok(())
    }
}

/// Bare inserts of the rows that the engine has recorded, into a table like the engine's.
struct RawSteps {
    conn: PgConnection,
    rows: Vec<PgRow>,
    insert: String,
    written: usize,
}

/// The columns of `piton_step` behind the key, and how they are sent.
const COLUMNS: &str = "instance_key, run_number, position, seq, name, type, status, attempts, attempts_max, timeout_ms, \
    next_retry_at, wake_at, event_type, created_at, started_at, updated_at, result, error";

impl RawSteps {
    /// Copies the rows of one instance of a database that an engine has filled.
    async fn create(sample: &PostgresDatabase, table: &str) -> Result<RawSteps> {
        let mut conn = sample.options().connect().await?;
        let like = format!("CREATE TABLE {table} (LIKE piton_step INCLUDING ALL)");
        conn.execute(AssertSqlSafe(like)).await?;
        let select = format!(
            "SELECT {COLUMNS} FROM piton_step
            WHERE instance_key = (SELECT min(instance_key) FROM piton_step) ORDER BY position"
        );
        let rows = sqlx::query(AssertSqlSafe(select)).fetch_all(&mut conn).await?;
        ensure!(!rows.is_empty(), "the engine recorded no steps");
        conn.execute("SET plan_cache_mode = force_generic_plan").await?;
        let marks: Vec<String> = (1..=18).map(|n| format!("${n}")).collect();
        let marks = marks.join(", ");
        let insert = format!("INSERT INTO {table} ({COLUMNS}) SELECT * FROM unnest({marks})");
        Ok(RawSteps { conn, rows, insert, written: 0 })
    }

    /// Inserts: each transaction has one step of each of `rows_each` instances, then the next step of each.
    async fn insert(&mut self, transactions: usize, rows_each: usize) -> Result<Duration> {
        let steps = self.rows.len();
        let start = timer::now();
        for _ in 0..transactions {
            let transaction = self.written / rows_each;
            let first = transaction / steps * rows_each;
            let row = &self.rows[transaction % steps];
            let keys =
                (first..first + rows_each).map(|key| i64::try_from(key).unwrap_or(0)).collect();
            let params = params(row, keys)?;
            sqlx::query_with(AssertSqlSafe(self.insert.as_str()), params)
                .execute(&mut self.conn)
                .await?;
            self.written += rows_each;
        }
        Ok(start.elapsed())
    }
}

/// The same row under each of these keys, column by column.
fn params(row: &PgRow, keys: Vec<i64>) -> Result<PgArguments> {
    let mut params = PgArguments::default();
    let count = keys.len();
    params.add(keys).map_err(|error| anyhow::anyhow!(error))?;
    for column in 1..18 {
        let added = match column {
            1..=3 => params.add(vec![row.try_get::<i32, _>(column)?; count]),
            7 | 13..=15 => params.add(vec![row.try_get::<i64, _>(column)?; count]),
            8..=11 => params.add(vec![row.try_get::<Option<i64>, _>(column)?; count]),
            _ => params.add(vec![row.try_get::<Option<&str>, _>(column)?; count]),
        };
        added.map_err(|error| anyhow::anyhow!(error))?;
    }
    Ok(params)
}

pub(super) async fn throughput(
    bench: &Bench<'_>,
    server: &PostgresServer,
    name: &'static str,
    in_flight: usize,
) -> Result<Row> {
    let plan = &bench.plan;
    let progress = Progress::start(name, plan.throughput_rounds);
    let sample = server.database().await?;
    throughput::engine_round(sample.engine(), in_flight, throughput::WARM_UP).await?;
    let (mut ceilings, mut rounds, mut cpu) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..plan.throughput_rounds {
        let mut raw = RawSteps::create(&sample, &format!("raw_{round}")).await?;
        let (mut rows, mut elapsed) = (0, Duration::ZERO);
        while elapsed < plan.ceiling_round {
            elapsed += raw.insert(throughput::STEPS as usize, ROWS_PER_TRANSACTION).await?;
            rows += throughput::STEPS as usize * ROWS_PER_TRANSACTION;
        }
        raw.conn.close().await?;
        ceilings.push(rows as f64 / elapsed.as_secs_f64());
        let database = server.database().await?;
        let measured =
            throughput::engine_round(database.engine(), in_flight, plan.throughput_round).await?;
        rounds.push(measured.steps_per_second);
        cpu.extend(measured.cpu_us_per_step);
        database.remove().await?;
        progress.step();
    }
    sample.remove().await?;
    let (value, ceiling) = (stats::median(&rounds), stats::median(&ceilings));
    let mut also = Vec::new();
    if !cpu.is_empty() && process::cpu_time().is_some() {
        let value = stats::median(&cpu);
        also.push(Figure { name: "CPU per step, engine alone", value, unit: "µs", goal: None });
    }
    Ok(Row {
        workload: name,
        store: STORE,
        value,
        unit: "steps/s",
        ceiling: Some(ceiling),
        ratio: Some(value / ceiling),
        // With 64 in flight the design compares with peers, not with the ceiling.
        goal: (in_flight == 256).then(|| Goal::at_least(0.20, 0.35)),
        also,
        note: format!(
            "medians of {} rounds, engine {}, ceiling {} (step rows alone, {ROWS_PER_TRANSACTION} per statement)",
            rounds.len(),
            throughput::range(&rounds),
            throughput::range(&ceilings),
        ),
    })
}

pub(super) async fn latency(
    bench: &Bench<'_>,
    server: &PostgresServer,
    name: &'static str,
) -> Result<Row> {
    let samples_max = bench.plan.latency_samples;
    let progress = Progress::start(name, samples_max);
    let database = server.database().await?;
    let engine =
        database.engine().register(workflow("three_steps", latency::three_steps)).start().await?;
    let three_steps = engine.workflow::<u64, u64>("three_steps")?;
    three_steps.create(0).await?.result().await?;
    let mut raw = RawSteps::create(&database, "raw").await?;
    let mut samples = latency::Samples::default();
    let deadline = timer::now() + bench.plan.samples_for;
    for sample in 0..WARM_UP + samples_max {
        if timer::now() >= deadline && !samples.is_empty() {
            break;
        }
        let start = timer::now();
        let sum = three_steps.create(0).await?.result().await?;
        let value = start.elapsed();
        ensure!(sum == 3, "three steps added up to {sum}");
        let ceiling = raw.insert(latency::COMMITS, 1).await?;
        if sample >= WARM_UP {
            samples.push(value, ceiling);
            progress.step();
        }
    }
    engine.shutdown(PATIENCE).await?;
    raw.conn.close().await?;
    database.remove().await?;
    Ok(samples.row(name, STORE, "bare inserts, a commit each"))
}

pub(super) async fn event(
    bench: &Bench<'_>,
    server: &PostgresServer,
    name: &'static str,
) -> Result<Row> {
    let database = server.database().await?;
    let row = event::measure_on(bench, name, database.engine()).await?;
    database.remove().await?;
    Ok(Row { store: STORE, ..row })
}
