//! Hooks: how many a second are triggered, processed and settled, and how soon one runs.
//!
//! Clients keep triggering hooks, each in a transaction of its own that the store's group commit shares; the engine's
//! own dispatcher processes them with a handler that only counts. Everything counts: the trigger, the claim and the
//! outcome. The ceiling is bare SQLite that inserts the same rows into the same table with its indexes, and nothing else.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use piton::hooks::{HookClient, Hooks};
use rusqlite::types::Value;
use rusqlite::{Connection, Transaction, TransactionBehavior, params_from_iter};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::throughput::range;
use super::{Bench, Database, PATIENCE, STORE};
use crate::progress::Progress;
use crate::raw::ROWS_PER_TRANSACTION;
use crate::report::{Figure, Goal, Row};
use crate::{stats, timer};

/// Clients that trigger at the same time.
const CLIENTS: usize = 256;

/// Hooks whose way from the trigger to the handler is timed, one at a time.
const LATENCY_SAMPLES: usize = 200;

pub(super) async fn measure(bench: &Bench<'_>, name: &'static str) -> Result<Row> {
    let plan = &bench.plan;
    let progress = Progress::start(name, plan.throughput_rounds);
    let sample = bench.database("hooks-sample");
    engine_round(&sample, Duration::from_millis(50)).await?;
    let (mut ceilings, mut rounds) = (Vec::new(), Vec::new());
    for round in 0..plan.throughput_rounds {
        let raw = bench.database(&format!("hooks-raw-{round}"));
        ceilings.push(raw_round(raw.path(), sample.path(), plan.ceiling_round)?);
        let database = bench.database(&format!("hooks-{round}"));
        rounds.push(engine_round(&database, plan.throughput_round).await?);
        progress.step();
    }
    let latency = bench.database("hooks-latency");
    let delays_ms = delays(&latency).await?;
    let (value, ceiling) = (stats::median(&rounds), stats::median(&ceilings));
    Ok(Row {
        workload: name,
        store: STORE,
        value,
        unit: "hooks/s",
        ceiling: Some(ceiling),
        ratio: Some(value / ceiling),
        goal: Some(Goal::at_least(0.3, 0.5)),
        also: vec![
            Figure {
                name: "trigger to handler, p99",
                value: stats::percentile(&delays_ms, 0.99),
                unit: "ms",
                goal: Some(Goal::at_most(10.0, 2.0)),
            },
            Figure {
                name: "trigger to handler, p50",
                value: stats::median(&delays_ms),
                unit: "ms",
                goal: None,
            },
        ],
        note: format!(
            "medians of {} rounds, engine {}, ceiling {} (hook rows alone, {ROWS_PER_TRANSACTION} per transaction)",
            rounds.len(),
            range(&rounds),
            range(&ceilings),
        ),
    })
}

/// Hooks a second, from the first trigger until the last has been processed.
async fn engine_round(database: &Database, span: Duration) -> Result<f64> {
    let handled = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&handled);
    let hooks = Hooks::new().on("bench", move |_: u64, _| {
        count.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok(()))
    });
    let engine = database.engine().hooks(hooks).start().await?;
    let start = timer::now();
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(keep_triggering(engine.hooks(), start + span));
    }
    let mut triggered = 0;
    while let Some(client) = clients.join_next().await {
        triggered += client??;
    }
    while handled.load(Ordering::Relaxed) < triggered {
        timer::sleep(Duration::from_millis(1)).await;
    }
    let elapsed = start.elapsed();
    engine.shutdown(PATIENCE).await?;
    Ok(triggered as f64 / elapsed.as_secs_f64())
}

async fn keep_triggering(hooks: HookClient, deadline: Instant) -> Result<u64> {
    let mut triggered = 0;
    while timer::now() < deadline {
        hooks.send("bench", &triggered).await?;
        triggered += 1;
    }
    Ok(triggered)
}

/// How long it takes from before a trigger until its handler runs, in milliseconds, with nothing else going on.
async fn delays(database: &Database) -> Result<Vec<f64>> {
    let (told, mut ran) = mpsc::channel(1);
    let hooks = Hooks::new().on("bench", move |_: u64, _| {
        let told = told.clone();
        async move { Ok(told.send(timer::now()).await?) }
    });
    let engine = database.engine().hooks(hooks).start().await?;
    let mut delays = Vec::with_capacity(LATENCY_SAMPLES);
    for number in 0..LATENCY_SAMPLES as u64 {
        let triggered_at = timer::now();
        engine.hooks().send("bench", &number).await?;
        let at = ran.recv().await.context("the handler is gone")?;
        delays.push(at.duration_since(triggered_at).as_secs_f64() * 1e3);
    }
    engine.shutdown(PATIENCE).await?;
    Ok(delays)
}

/// Rows a second by bare SQLite, copied from a hook that the engine stored.
fn raw_round(path: &Path, sample: &Path, span: Duration) -> Result<f64> {
    let sample = Connection::open(sample)?;
    let (definitions, row) = hook_row(&sample)?;
    let conn = Connection::open(path)?;
    conn.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
    conn.pragma_update(None, "synchronous", "full")?;
    for definition in &definitions {
        conn.execute_batch(definition)?;
    }
    let marks = vec!["?"; row.len()].join(", ");
    let mut insert = conn.prepare(&format!("INSERT INTO piton_hook VALUES ({marks})"))?;
    let mut row = row;
    let (start, mut rows) = (timer::now(), 0_u64);
    while start.elapsed() < span {
        let transaction = Transaction::new_unchecked(&conn, TransactionBehavior::Immediate)?;
        for _ in 0..ROWS_PER_TRANSACTION {
            rows += 1;
            row[0] = Value::Text(format!("hook_{rows:026}"));
            insert.execute(params_from_iter(&row))?;
        }
        transaction.commit()?;
    }
    Ok(rows as f64 / start.elapsed().as_secs_f64())
}

/// The table with its indexes, and a row as a trigger writes it.
fn hook_row(sample: &Connection) -> Result<(Vec<String>, Vec<Value>)> {
    let mut definitions = sample.prepare(
        "SELECT sql FROM sqlite_schema WHERE tbl_name = 'piton_hook' AND sql IS NOT NULL ORDER BY rowid",
    )?;
    let definitions = definitions.query_map([], |row| row.get(0))?;
    let definitions = definitions.collect::<rusqlite::Result<Vec<String>>>()?;
    let mut select = sample.prepare(
        "SELECT id, namespace, name, 'pending', 0, attempts_max, retry_delay_ms, retry_delay_max_ms, retry_backoff,
            created_at, 0, NULL, created_at, created_at, NULL, payload, NULL, 0, 0 FROM piton_hook LIMIT 1",
    )?;
    let columns = select.column_count();
    let row = select.query_row([], |row| (0..columns).map(|column| row.get(column)).collect())?;
    Ok((definitions, row))
}
