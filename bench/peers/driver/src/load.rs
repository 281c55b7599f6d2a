//! The load: workflows of trivial steps, a fixed number outstanding at any time, or all at once.
//!
//! ```text
//!   first calls │ full load, not counted:     │ full load, counted:       │ the rest is dropped
//!   one by one  │ WARM_UP, and until as many  │ options.span, and until   │
//!               │ have ended as are in flight │ as many have ended again  │
//! ```
//!
//! Many slow workflows that start together end together, too. To count the whole waves of them, not a cut of one, a window
//! holds at least as many ends as there are workflows in flight.

#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark measures real time and has no engine's clock"
)]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::{Engine, Measured, Options, Phase};

/// Workflows that run one after the other before anything else: connections are made, caches fill.
const FIRST_CALLS: u64 = 40;

/// But not longer than this: an engine that polls takes its time.
const FIRST_CALLS_MAX: Duration = Duration::from_secs(2);

const WARM_UP: Duration = Duration::from_millis(750);

/// The longest that warm-up and window may take together.
const LOAD_MAX: Duration = Duration::from_secs(12);

/// The longest that a burst may take.
const BURST_MAX: Duration = Duration::from_secs(15);

/// How often the numbers are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The first of the numbers that first calls do not use.
const NUMBERS: u64 = 1_000_000;

/// A client that keeps a number of workflows outstanding.
pub(crate) async fn chain<E: Engine>(engine: &E, options: &Options) -> Result<Measured> {
    first_calls(engine, options).await?;
    let load = Arc::new(Load::new(engine, options));
    let mut callers = JoinSet::new();
    for caller in 0..options.count {
        callers.spawn(Arc::clone(&load).keep_one_outstanding(caller));
    }
    let measured = tokio::select! {
        Some(ended) = callers.join_next() => match ended?? {},
        measured = watch(&load, options) => measured,
    };
    callers.shutdown().await;
    measured
}

/// Waits for the window, and for its end.
async fn watch<E: Engine>(load: &Load<E>, options: &Options) -> Result<Measured> {
    let begin = Instant::now();
    let at_least = |since: Instant, span: Duration, ended: usize| async move {
        while since.elapsed() < span || load.ended.load(Ordering::Relaxed) < ended {
            let all = load.ended.load(Ordering::Relaxed);
            ensure!(
                begin.elapsed() < LOAD_MAX,
                "{all} workflows ended in {LOAD_MAX:?}: too few for {} in flight",
                options.count
            );
            sleep(LOOK_EVERY).await;
        }
        Result::<_>::Ok(Instant::now())
    };
    let start = at_least(begin, WARM_UP, options.count).await?;
    Phase::Start.tell();
    let ended = load.ended.load(Ordering::Relaxed) + options.count;
    let stop = at_least(start, options.span, ended).await?;
    Phase::Stop.tell();
    Ok(Measured::new(options.steps, stop - start, load.latencies(start, stop)))
}

struct Load<E> {
    engine: E,
    steps: u64,
    next: AtomicU64,
    ended: AtomicUsize,
    /// By caller: when a workflow ended, and how long it took.
    ends: Vec<Mutex<Vec<(Instant, Duration)>>>,
}

impl<E: Engine> Load<E> {
    fn new(engine: &E, options: &Options) -> Load<E> {
        Load {
            engine: engine.clone(),
            steps: options.steps,
            next: AtomicU64::new(NUMBERS),
            ended: AtomicUsize::new(0),
            ends: (0..options.count).map(|_| Mutex::default()).collect(),
        }
    }

    /// Ends with an error only.
    async fn keep_one_outstanding(
        self: Arc<Self>,
        caller: usize,
    ) -> Result<std::convert::Infallible> {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let took = call(&self.engine, number, self.steps).await?;
            let mut ends = self.ends[caller].lock().unwrap_or_else(PoisonError::into_inner);
            ends.push((Instant::now(), took));
            self.ended.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn latencies(&self, start: Instant, stop: Instant) -> Vec<Duration> {
        let mut latencies = Vec::new();
        for ends in &self.ends {
            let ends = ends.lock().unwrap_or_else(PoisonError::into_inner);
            let counted = ends.iter().filter(|(end, _)| (start..stop).contains(end));
            latencies.extend(counted.map(|(_, took)| *took));
        }
        latencies
    }
}

/// All workflows at once.
pub(crate) async fn burst<E: Engine>(engine: &E, options: &Options) -> Result<Measured> {
    Phase::Start.tell();
    let (start, steps) = (Instant::now(), options.steps);
    let mut calls = JoinSet::new();
    for number in 0..options.count as u64 {
        let engine = engine.clone();
        calls.spawn(async move { call(&engine, NUMBERS + number, steps).await });
    }
    let mut latencies = Vec::new();
    let ended = timeout(BURST_MAX, async {
        while let Some(call) = calls.join_next().await {
            latencies.push(call??);
        }
        Result::<_>::Ok(())
    });
    match ended.await {
        Ok(ended) => ended?,
        Err(_) => bail!("{} of {} ended in {BURST_MAX:?}", latencies.len(), options.count),
    }
    let elapsed = start.elapsed();
    Phase::Stop.tell();
    Ok(Measured::new(steps, elapsed, latencies))
}

/// Nothing is done for a while.
pub(crate) async fn idle(options: &Options) -> Result<Measured> {
    // What the start has left to do is not idleness.
    sleep(WARM_UP).await;
    Phase::Start.tell();
    sleep(options.span).await;
    Phase::Stop.tell();
    Ok(Measured::new(0, options.span, Vec::new()))
}

pub(crate) async fn first_calls<E: Engine>(engine: &E, options: &Options) -> Result<()> {
    let start = Instant::now();
    for number in 0..FIRST_CALLS {
        call(engine, number, options.steps).await.context("a first call failed")?;
        if start.elapsed() > FIRST_CALLS_MAX {
            break;
        }
    }
    Ok(())
}

/// One workflow from its start to its checked result.
async fn call<E: Engine>(engine: &E, number: u64, steps: u64) -> Result<Duration> {
    let start = Instant::now();
    let sum = engine.chain(number).await?;
    let took = start.elapsed();
    let expected = number + steps * (steps - 1) / 2;
    ensure!(sum == expected, "{steps} steps added up to {sum} from {number}");
    Ok(took)
}
