//! An event to a waiting instance: how long until the next step's body starts.
//!
//! The engine is idle: one instance waits at a time. The clock runs from before the event is sent.

use std::time::Duration;

use anyhow::{Result, ensure};
use piton::prelude::*;
use piton::{EngineBuilder, InstanceHandle, InstanceStatus};

use super::starts::Starts;
use super::{Bench, PATIENCE, STORE};
use crate::progress::Progress;
use crate::report::{Figure, Goal, Row};
use crate::{stats, timer};

/// Between two looks whether the instance waits already.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Events that are not counted.
const WARM_UP: u64 = 10;

struct Waiter {
    starts: Starts,
}

impl Workflow for Waiter {
    const NAME: &'static str = "waiter";
    type Params = u64;
    type Output = u64;

    async fn run(&self, number: Event<u64>, step: &Step) -> piton::Result<u64> {
        let sent: u64 = step.wait_for_event("go", "go").await?;
        step.run("after", async {
            self.starts.tell(*number);
            Ok(sent)
        })
        .await
    }
}

pub(super) async fn measure(bench: &Bench<'_>, name: &'static str) -> Result<Row> {
    let database = bench.database("event");
    let mut row = measure_on(bench, name, database.engine()).await?;
    row.goal = Some(Goal::at_most(5.0, 2.0));
    Ok(row)
}

pub(super) async fn measure_on(
    bench: &Bench<'_>,
    name: &'static str,
    engine: EngineBuilder,
) -> Result<Row> {
    let samples_max = bench.plan.event_samples;
    let progress = Progress::start(name, samples_max);
    let starts = Starts::default();
    let engine = engine.register(Waiter { starts: starts.clone() }).start().await?;
    let waiter = engine.workflow::<u64, u64>(Waiter::NAME)?;
    let mut delays_ms = Vec::with_capacity(samples_max);
    let deadline = timer::now() + bench.plan.samples_for;
    for number in 0..WARM_UP + samples_max as u64 {
        if timer::now() >= deadline && !delays_ms.is_empty() {
            break;
        }
        let instance = waiter.create(number).await?;
        wait_until_waiting(&instance).await?;
        let started = starts.expect(number);
        let sent_at = timer::now();
        instance.send_event("go", &number).await?;
        let delay = started.await?.duration_since(sent_at);
        let received = instance.result().await?;
        ensure!(received == number, "sent {number}, received {received}");
        if number >= WARM_UP {
            delays_ms.push(delay.as_secs_f64() * 1e3);
            progress.step();
        }
    }
    engine.shutdown(PATIENCE).await?;
    let (p50, samples) = (stats::median(&delays_ms), delays_ms.len());
    Ok(Row {
        workload: name,
        store: STORE,
        value: stats::percentile(&delays_ms, 0.99),
        unit: "ms",
        ceiling: None,
        ratio: None,
        goal: None,
        also: vec![Figure { name: "p50", value: p50, unit: "ms", goal: None }],
        note: format!("p99 of {samples} events, one at a time"),
    })
}

async fn wait_until_waiting(instance: &InstanceHandle<u64>) -> Result<()> {
    while instance.status().await? != InstanceStatus::Waiting {
        timer::sleep(LOOK_AGAIN).await;
    }
    Ok(())
}
