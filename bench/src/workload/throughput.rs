//! Many small workflows at once: how many steps a second.
//!
//! A client keeps a fixed number of instances outstanding, each with ten steps that do nothing. Everything counts:
//! creation, claims, completion and the client's wait for each result. The ceiling is bare SQLite that inserts the
//! same step rows in the same order and nothing else: one step of each of 256 instances per transaction. All take
//! turns, so that noise of the machine hits all alike.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use piton::prelude::*;
use piton::{EngineBuilder, Registration, WorkflowHandle};
use tokio::task::JoinSet;

use super::{Bench, Database, PATIENCE, STORE};
use crate::progress::Progress;
use crate::raw::{Order, ROWS_PER_TRANSACTION, RawSteps, StepRows};
use crate::report::{Figure, Goal, Row};
use crate::{process, stats, timer};

pub(super) const STEPS: u64 = 10;

/// How long the engine runs to make the rows that the ceiling copies.
pub(super) const WARM_UP: Duration = Duration::from_millis(100);

/// A workflow of ten steps that do nothing.
pub(super) fn ten_steps_workflow() -> Registration {
    workflow("ten_steps", ten_steps)
}

async fn ten_steps(first: Event<u64>, step: &Step) -> piton::Result<u64> {
    let mut sum = *first;
    for i in 0..STEPS {
        sum += step.run(format!("step {i}"), async { Ok(i) }).await?;
    }
    Ok(sum)
}

/// Measures steps per second with `in_flight` workflows outstanding.
pub(super) async fn measure(
    bench: &Bench<'_>,
    name: &'static str,
    in_flight: usize,
) -> Result<Row> {
    let plan = &bench.plan;
    let progress = Progress::start(name, plan.throughput_rounds);
    let sample = bench.database("throughput-sample");
    engine_round(sample.engine(), in_flight, WARM_UP).await?;
    let steps = StepRows::read(sample.path())?;

    let (mut ceilings, mut key_order, mut rounds) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..plan.throughput_rounds {
        for (order, samples) in
            [(Order::ByStep, &mut ceilings), (Order::ByInstance, &mut key_order)]
        {
            let raw = bench.database(&format!("throughput-raw-{round}"));
            samples.push(raw_round(&raw, &steps, plan.ceiling_round, order)?);
        }
        let database = bench.database(&format!("throughput-{round}"));
        rounds.push(engine_round(database.engine(), in_flight, plan.throughput_round).await?);
        progress.step();
    }
    Ok(row(name, in_flight, &rounds, &ceilings, &key_order))
}

/// What one round measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub(super) steps_per_second: f64,
    /// CPU time of the whole process; unlike the speed it hardly depends on what else the machine does.
    pub(super) cpu_us_per_step: Option<f64>,
}

impl Round {
    pub(super) fn new(steps: usize, elapsed: Duration, cpu: Option<Duration>) -> Round {
        let steps = steps as f64;
        Round {
            steps_per_second: steps / elapsed.as_secs_f64(),
            cpu_us_per_step: cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / steps),
        }
    }
}

fn row(
    name: &'static str,
    in_flight: usize,
    rounds: &[Round],
    ceilings: &[Round],
    key_order: &[Round],
) -> Row {
    let speeds = |rounds: &[Round]| -> Vec<f64> {
        rounds.iter().map(|round| round.steps_per_second).collect()
    };
    let (value, ceiling) = (stats::median(&speeds(rounds)), stats::median(&speeds(ceilings)));
    let mut also = vec![Figure {
        name: "ceiling in key order",
        value: stats::median(&speeds(key_order)),
        unit: "steps/s",
        goal: None,
    }];
    for (name, rounds) in [("CPU per step", rounds), ("CPU per bare step", ceilings)] {
        let costs: Vec<f64> = rounds.iter().filter_map(|round| round.cpu_us_per_step).collect();
        if !costs.is_empty() {
            also.push(Figure { name, value: stats::median(&costs), unit: "µs", goal: None });
        }
    }
    Row {
        workload: name,
        store: STORE,
        value,
        unit: "steps/s",
        ceiling: Some(ceiling),
        ratio: Some(value / ceiling),
        // With 64 in flight the design compares with peers, not with the ceiling.
        goal: (in_flight == 256).then(|| Goal::at_least(0.35, 0.60)),
        also,
        note: format!(
            "medians of {} rounds, engine {}, ceiling {} (step rows alone, {ROWS_PER_TRANSACTION} per transaction)",
            rounds.len(),
            range(&speeds(rounds)),
            range(&speeds(ceilings)),
        ),
    }
}

pub(super) fn range(samples: &[f64]) -> String {
    let (low, high) = (stats::percentile(samples, 0.0), stats::percentile(samples, 1.0));
    format!("{low:.0}..{high:.0}")
}

/// CPU time that this process has used since `before`.
fn cpu_since(before: Option<Duration>) -> Option<Duration> {
    process::cpu_time()?.checked_sub(before?)
}

/// Bare SQLite.
fn raw_round(database: &Database, steps: &StepRows, span: Duration, order: Order) -> Result<Round> {
    let mut raw = RawSteps::create(database.path(), steps)?;
    let cpu = process::cpu_time();
    let (mut rows, mut elapsed) = (0, Duration::ZERO);
    while elapsed < span {
        // As many as the steps of an instance: every instance is completed.
        let transactions = STEPS as usize;
        elapsed += raw.insert(transactions, ROWS_PER_TRANSACTION, order)?;
        rows += transactions * ROWS_PER_TRANSACTION;
    }
    Ok(Round::new(rows, elapsed, cpu_since(cpu)))
}

/// The engine.
pub(super) async fn engine_round(
    engine: EngineBuilder,
    in_flight: usize,
    span: Duration,
) -> Result<Round> {
    let engine = engine.register(ten_steps_workflow()).concurrency(in_flight).start().await?;
    let ten_steps = engine.workflow::<u64, u64>("ten_steps")?;
    let (start, cpu) = (timer::now(), process::cpu_time());
    let mut clients = JoinSet::new();
    for _ in 0..in_flight {
        clients.spawn(keep_one_outstanding(ten_steps.clone(), start + span));
    }
    let mut completed = 0;
    while let Some(client) = clients.join_next().await {
        completed += client??;
    }
    // Before the shutdown: the time of threads that have ended is not counted.
    let (elapsed, cpu) = (start.elapsed(), cpu_since(cpu));
    engine.shutdown(PATIENCE).await?;
    Ok(Round::new(usize::try_from(completed * STEPS)?, elapsed, cpu))
}

/// Creates instances one after the other until the deadline; how many completed.
async fn keep_one_outstanding(
    ten_steps: WorkflowHandle<u64, u64>,
    deadline: Instant,
) -> Result<u64> {
    let mut completed = 0;
    while timer::now() < deadline {
        let sum = ten_steps.create(completed).await?.result().await?;
        ensure!(sum == completed + 45, "ten steps added up to {sum} from {completed}");
        completed += 1;
    }
    Ok(completed)
}
