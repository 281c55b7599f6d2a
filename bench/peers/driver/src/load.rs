//! The load: a fixed number of workflows is outstanding at any time, and what ends within a window of time is counted.
//!
//! ```text
//!   first calls │ full load, not counted │ full load, counted │ the rest ends
//!   one by one  │        WARM_UP         │   options.span     │ within PATIENCE
//! ```
//!
//! The rest is waited for, so that nothing is left in a server for the next round.

#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark measures real time and has no engine's clock"
)]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::task::JoinSet;

use crate::Options;

/// Workflows that run one after the other before anything else: connections are made, caches fill.
const FIRST_CALLS: u64 = 40;

/// But not longer than this: an engine that polls takes its time.
const FIRST_CALLS_MAX: Duration = Duration::from_secs(3);

const WARM_UP: Duration = Duration::from_millis(750);

/// How long workflows may take to end after the window.
const PATIENCE: Duration = Duration::from_secs(30);

/// What ended within the window.
#[derive(Clone, Debug)]
pub struct Measured {
    workflows: usize,
    steps: u64,
    seconds: f64,
    p50_us: u128,
    p99_us: u128,
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measured { workflows, steps, seconds, p50_us, p99_us } = self;
        write!(f, r#"{{"workflows":{workflows},"steps":{steps},"seconds":{seconds},"#)?;
        write!(f, r#""p50_us":{p50_us},"p99_us":{p99_us}}}"#)
    }
}

/// Measures: `call` runs one workflow from its start to its checked result; it is given a number that no other call is.
pub async fn measure<C, F>(options: &Options, call: C) -> Result<Measured>
where
    C: Fn(u64) -> F + Send + Sync + 'static,
    F: Future<Output = Result<()>> + Send + 'static,
{
    let load = Arc::new(Load { call, next: AtomicU64::new(0), stop: AtomicBool::new(false) });
    let first_calls = Instant::now();
    for _ in 0..FIRST_CALLS {
        load.call_one().await.context("a first call failed")?;
        if first_calls.elapsed() > FIRST_CALLS_MAX {
            break;
        }
    }
    let window_start = Instant::now() + WARM_UP;
    let window_end = window_start + options.span;
    let mut callers = JoinSet::new();
    for _ in 0..options.in_flight {
        callers.spawn(Arc::clone(&load).keep_one_outstanding(window_start, window_end));
    }
    tokio::time::sleep_until(window_end.into()).await;
    load.stop.store(true, Ordering::Relaxed);
    let ended = tokio::time::timeout(PATIENCE, async {
        let mut latencies = Vec::new();
        while let Some(caller) = callers.join_next().await {
            latencies.extend(caller??);
        }
        Result::<_>::Ok(latencies)
    });
    let latencies = ended.await.context("workflows did not end in time")??;
    summarize(options, latencies)
}

struct Load<C> {
    call: C,
    next: AtomicU64,
    stop: AtomicBool,
}

impl<C, F> Load<C>
where
    C: Fn(u64) -> F,
    F: Future<Output = Result<()>>,
{
    async fn call_one(&self) -> Result<()> {
        (self.call)(self.next.fetch_add(1, Ordering::Relaxed)).await
    }

    /// How long each workflow took that ended within the window.
    async fn keep_one_outstanding(
        self: Arc<Self>,
        window_start: Instant,
        window_end: Instant,
    ) -> Result<Vec<Duration>> {
        let mut latencies = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            self.call_one().await?;
            let end = Instant::now();
            if (window_start..window_end).contains(&end) {
                latencies.push(end - start);
            }
        }
        Ok(latencies)
    }
}

fn summarize(options: &Options, mut latencies: Vec<Duration>) -> Result<Measured> {
    if latencies.is_empty() {
        bail!("no workflow ended within {:?}", options.span);
    }
    latencies.sort_unstable();
    // Nearest rank, so that the answer is one of the samples.
    let percentile = |share: f64| {
        let rank = (share * latencies.len() as f64).ceil() as usize;
        latencies[rank.clamp(1, latencies.len()) - 1].as_micros()
    };
    Ok(Measured {
        workflows: latencies.len(),
        steps: latencies.len() as u64 * options.steps,
        seconds: options.span.as_secs_f64(),
        p50_us: percentile(0.5),
        p99_us: percentile(0.99),
    })
}
