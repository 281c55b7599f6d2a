//! One small workflow, nothing else running: from create to result.
//!
//! It cannot be faster than its commits: the creation and three steps, the last of which carries the completion. The
//! ceiling is four bare commits of one step row each, in turns with the workflows.

use std::time::Duration;

use anyhow::{Result, ensure};
use piton::prelude::*;

use super::{Bench, PATIENCE, STORE};
use crate::progress::Progress;
use crate::raw::{Order, RawSteps, StepRows};
use crate::report::{Figure, Goal, Row};
use crate::{stats, timer};

const STEPS: u64 = 3;

/// The creation and each step; the end of the run shares the commit of the last step.
pub(super) const COMMITS: usize = 4;

/// Delays by others only ever add: on a busy machine the fast samples are the true ones.
const UNDISTURBED: f64 = 0.1;

pub(super) async fn three_steps(first: Event<u64>, step: &Step) -> piton::Result<u64> {
    let mut sum = *first;
    for i in 0..STEPS {
        sum += step.run(format!("step {i}"), async { Ok(i) }).await?;
    }
    Ok(sum)
}

pub(super) async fn measure(bench: &Bench<'_>, name: &'static str) -> Result<Row> {
    let (warm_up, samples_max) = (bench.plan.latency_warm_up, bench.plan.latency_samples);
    let progress = Progress::start(name, samples_max);
    let steps = sample_rows(bench).await?;
    let database = bench.database("latency-raw");
    let mut raw = RawSteps::create(database.path(), &steps)?;

    let database = bench.database("latency");
    let builder = database.engine().register(workflow("three_steps", three_steps));
    let engine = builder.start().await?;
    let three_steps = engine.workflow::<u64, u64>("three_steps")?;
    let mut samples = Samples::default();
    let deadline = timer::now() + bench.plan.samples_for;
    for sample in 0..warm_up + samples_max {
        if timer::now() >= deadline && !samples.is_empty() {
            break;
        }
        let start = timer::now();
        let sum = three_steps.create(0).await?.result().await?;
        let value = start.elapsed();
        ensure!(sum == 3, "three steps added up to {sum}");
        // The thread that waits in `block_on` has nothing else to do: it may block.
        let ceiling = raw.insert(COMMITS, 1, Order::ByStep)?;
        if sample >= warm_up {
            samples.push(value, ceiling);
            progress.step();
        }
    }
    engine.shutdown(PATIENCE).await?;
    Ok(samples.row(name, STORE, "commits"))
}

/// Workflows and their bare commits, measured in turns.
#[derive(Default)]
pub(super) struct Samples {
    values: Vec<f64>,
    ceilings: Vec<f64>,
}

impl Samples {
    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub(super) fn push(&mut self, value: Duration, ceiling: Duration) {
        self.values.push(value.as_secs_f64() * 1e6);
        self.ceilings.push(ceiling.as_secs_f64() * 1e6);
    }

    /// The row of the report; `bare` says what the ceiling consists of.
    pub(super) fn row(&self, name: &'static str, store: &'static str, bare: &str) -> Row {
        let Self { values, ceilings } = self;
        let (value, ceiling) = (stats::median(values), stats::median(ceilings));
        let (p99, samples) = (stats::percentile(values, 0.99), values.len());
        let undisturbed = |samples: &[f64]| stats::percentile(samples, UNDISTURBED);
        let ratio_undisturbed = undisturbed(values) / undisturbed(ceilings);
        Row {
            workload: name,
            store,
            value,
            unit: "µs",
            ceiling: Some(ceiling),
            ratio: Some(value / ceiling),
            goal: Some(Goal::at_most(2.0, 1.3)),
            also: vec![
                Figure { name: "p99", value: p99, unit: "µs", goal: None },
                Figure {
                    name: "ratio undisturbed",
                    value: ratio_undisturbed,
                    unit: "",
                    goal: None,
                },
            ],
            note: format!(
                "medians of {samples} workflows and of {samples} times {COMMITS} {bare}; undisturbed is the ratio of the p10, \
                 the better one on a busy machine, where a ratio below 1 is an artefact of scheduling"
            ),
        }
    }
}

/// The rows that such a workflow records.
async fn sample_rows(bench: &Bench<'_>) -> Result<StepRows> {
    let database = bench.database("latency-sample");
    let builder = database.engine().register(workflow("three_steps", three_steps));
    let engine = builder.start().await?;
    engine.workflow::<u64, u64>("three_steps")?.create(0).await?.result().await?;
    engine.shutdown(PATIENCE).await?;
    drop(engine);
    StepRows::read(database.path())
}
