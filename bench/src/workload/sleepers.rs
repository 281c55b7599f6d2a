//! A hundred thousand instances that wake in the same millisecond, and new work that must not wait for them.
//!
//! The instances are created in batches and fall asleep for real. When the moment has come the clock runs until the
//! last one is complete; meanwhile a new instance is created every now and then, and the longest time from before its
//! creation until its first body starts is the second figure.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use piton::prelude::*;
use piton::{BatchItem, InstanceStatus, WorkflowHandle};
use tokio::task::JoinSet;

use super::starts::Starts;
use super::{Bench, PATIENCE, STORE};
use crate::plan::SLEEPERS_FULL;
use crate::progress::Progress;
use crate::report::{Figure, Goal, Row};
use crate::timer;

/// Instances of one `create_batch`.
const BATCH: usize = 100;

/// How many instances are put to sleep first to learn how long that takes, at most.
const TRIAL_MAX: usize = 2_000;

/// How much longer than the trial says all may take to fall asleep; on a busy machine a trial can be far off.
const SLACKS: [f64; 3] = [1.5, 3.0, 6.0];

/// The least time between the choice of the moment and the moment.
const LEAD: Duration = Duration::from_secs(1);

/// Between two looks whether all are asleep, or done.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Between two instances of new work.
const NEW_WORK_EVERY: Duration = Duration::from_millis(50);

/// Sleeps far beyond the end of the benchmark.
const TRIAL_SLEEP: &str = "1 day";

async fn trial(_: Event<u64>, step: &Step) -> piton::Result<()> {
    step.sleep("until the moment", TRIAL_SLEEP).await
}

struct Sleeper {
    woken: Arc<AtomicUsize>,
}

impl Workflow for Sleeper {
    const NAME: &'static str = "sleeper";
    type Params = Timestamp;
    type Output = ();

    async fn run(&self, moment: Event<Timestamp>, step: &Step) -> piton::Result<()> {
        step.sleep_until("until the moment", *moment).await?;
        self.woken.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

struct NewWork {
    starts: Starts,
}

impl Workflow for NewWork {
    const NAME: &'static str = "new_work";
    type Params = u64;
    type Output = ();

    async fn run(&self, number: Event<u64>, step: &Step) -> piton::Result<()> {
        step.run("first", async {
            self.starts.tell(*number);
            Ok(())
        })
        .await
    }
}

pub(super) async fn measure(bench: &Bench<'_>, name: &'static str) -> Result<Row> {
    for slack in SLACKS {
        if let Some(row) = attempt(bench, name, slack).await? {
            return Ok(row);
        }
    }
    bail!("falling asleep took longer than foreseen each time; try again on a quieter machine")
}

/// `None` if the moment came before all were asleep.
async fn attempt(bench: &Bench<'_>, name: &'static str, slack: f64) -> Result<Option<Row>> {
    let count = bench.plan.sleepers;
    let progress = Progress::start(name, 2 * count);
    let (woken, starts) = (Arc::new(AtomicUsize::new(0)), Starts::default());
    let database = bench.database("sleepers");
    let engine = database
        .engine()
        .register(workflow("trial", trial))
        .register(Sleeper { woken: Arc::clone(&woken) })
        .register(NewWork { starts: starts.clone() })
        .start()
        .await?;
    let sleepers = engine.workflow::<Timestamp, ()>(Sleeper::NAME)?;

    let lead = LEAD + time_to_sleep(&engine, count).await?.mul_f64(slack);
    let (moment, moment_at) = (timer::now() + lead, after(timer::wall(), lead));
    put_to_sleep(&sleepers, count, |_| moment_at, |done| progress.reach(done)).await?;
    if timer::now() >= moment {
        engine.shutdown(PATIENCE).await?;
        return Ok(None);
    }
    timer::sleep_until(moment).await;

    let new_work = NewWorkStream::begin(engine.workflow(NewWork::NAME)?, starts);
    let done = until_all_done(&sleepers, || progress.reach(count + woken.load(Ordering::Relaxed)));
    let elapsed = done.await?.duration_since(moment);
    let delays = new_work.end().await?;
    check(&sleepers, &woken, count).await?;
    engine.shutdown(PATIENCE).await?;
    Ok(Some(row(name, count, elapsed, &delays)))
}

fn row(name: &'static str, count: usize, elapsed: Duration, delays: &[Duration]) -> Row {
    // With fewer instances there is less time for everything.
    let scale = count as f64 / SLEEPERS_FULL as f64;
    let worst = delays.iter().max().map_or(0.0, Duration::as_secs_f64);
    let scaled = if count == SLEEPERS_FULL {
        String::new()
    } else {
        format!("; must and aim scaled from {SLEEPERS_FULL} to {count} instances")
    };
    Row {
        workload: name,
        store: STORE,
        value: elapsed.as_secs_f64(),
        unit: "s",
        ceiling: None,
        ratio: None,
        goal: Some(Goal::at_most(60.0 * scale, 10.0 * scale)),
        also: vec![Figure {
            name: "new work starts",
            value: worst,
            unit: "s",
            goal: Some(Goal::at_most(5.0 * scale, 1.0 * scale)),
        }],
        note: format!(
            "{count} instances; the worst of {} starts of new work{scaled}",
            delays.len()
        ),
    }
}

/// How long `count` instances will take to be created and to fall asleep, by a trial with some.
async fn time_to_sleep(engine: &Engine, count: usize) -> Result<Duration> {
    let trial = engine.workflow::<u64, ()>("trial")?;
    let some = count.min(TRIAL_MAX);
    let start = timer::now();
    put_to_sleep(&trial, some, |number| number as u64, |_| ()).await?;
    Ok(start.elapsed().mul_f64(count as f64 / some as f64))
}

/// Creates instances in batches and waits until none of them is active.
async fn put_to_sleep<P: serde::Serialize + Send + 'static>(
    workflow: &WorkflowHandle<P, ()>,
    count: usize,
    params: impl Fn(usize) -> P,
    report: impl Fn(usize),
) -> Result<()> {
    let numbers: Vec<usize> = (0..count).collect();
    for batch in numbers.chunks(BATCH) {
        let items = batch.iter().map(|n| BatchItem::new(format!("sleeper-{n}"), params(*n)));
        let created = workflow.create_batch(items).await?;
        ensure!(created.len() == batch.len(), "some of a batch exist already");
        report(batch[0] + batch.len());
    }
    while is_any(workflow, InstanceStatus::Active).await? {
        timer::sleep(LOOK_AGAIN).await;
    }
    Ok(())
}

async fn is_any<P: 'static>(
    workflow: &WorkflowHandle<P, ()>,
    status: InstanceStatus,
) -> Result<bool> {
    Ok(!workflow.list().status(status).page_size(1).await?.items.is_empty())
}

/// The moment at which every instance is complete.
async fn until_all_done(
    sleepers: &WorkflowHandle<Timestamp, ()>,
    report: impl Fn(),
) -> Result<Instant> {
    // In this order: an instance goes from waiting to active and never back.
    for status in [InstanceStatus::Waiting, InstanceStatus::Active] {
        while is_any(sleepers, status).await? {
            timer::sleep(LOOK_AGAIN).await;
            report();
        }
    }
    Ok(timer::now())
}

async fn check(
    sleepers: &WorkflowHandle<Timestamp, ()>,
    woken: &AtomicUsize,
    count: usize,
) -> Result<()> {
    for status in [InstanceStatus::Errored, InstanceStatus::Terminated, InstanceStatus::Paused] {
        ensure!(!is_any(sleepers, status).await?, "an instance is {status} instead of complete");
    }
    let woken = woken.load(Ordering::Relaxed);
    ensure!(woken >= count, "{woken} of {count} instances woke");
    Ok(())
}

/// New work that comes at a steady pace until told to end.
struct NewWorkStream {
    is_over: Arc<AtomicBool>,
    task: JoinSet<Result<Vec<Duration>>>,
}

impl NewWorkStream {
    fn begin(new_work: WorkflowHandle<u64, ()>, starts: Starts) -> NewWorkStream {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut task = JoinSet::new();
        task.spawn(create_new_work(new_work, starts, Arc::clone(&is_over)));
        NewWorkStream { is_over, task }
    }

    /// How long each took to start.
    async fn end(mut self) -> Result<Vec<Duration>> {
        self.is_over.store(true, Ordering::Relaxed);
        self.task.join_next().await.context("the stream is one task")??
    }
}

async fn create_new_work(
    new_work: WorkflowHandle<u64, ()>,
    starts: Starts,
    is_over: Arc<AtomicBool>,
) -> Result<Vec<Duration>> {
    let mut under_way = JoinSet::new();
    let mut number = 0;
    while !is_over.load(Ordering::Relaxed) {
        under_way.spawn(start_delay(new_work.clone(), starts.clone(), number));
        number += 1;
        timer::sleep(NEW_WORK_EVERY).await;
    }
    let mut delays = Vec::new();
    while let Some(delay) = under_way.join_next().await {
        delays.push(delay??);
    }
    Ok(delays)
}

async fn start_delay(
    new_work: WorkflowHandle<u64, ()>,
    starts: Starts,
    number: u64,
) -> Result<Duration> {
    let started = starts.expect(number);
    let asked_at = timer::now();
    let instance = new_work.create(number).await?;
    let delay = started.await?.duration_since(asked_at);
    instance.result().await?;
    Ok(delay)
}

fn after(moment: Timestamp, span: Duration) -> Timestamp {
    (std::time::SystemTime::from(moment) + span).into()
}
