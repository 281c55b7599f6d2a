//! What a driver prints in the end.

use std::fmt;
use std::time::Duration;

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    workflows: usize,
    steps: u64,
    seconds: f64,
    p50_us: u128,
    p99_us: u128,
}

impl Measured {
    /// `steps` is how many of them each latency stands for.
    pub(crate) fn new(steps: u64, elapsed: Duration, mut latencies: Vec<Duration>) -> Measured {
        latencies.sort_unstable();
        // Nearest rank, so that the answer is one of the samples.
        let percentile = |share: f64| {
            let rank = (share * latencies.len() as f64).ceil() as usize;
            latencies.get(rank.max(1) - 1).map_or(0, Duration::as_micros)
        };
        Measured {
            workflows: latencies.len(),
            steps: latencies.len() as u64 * steps,
            seconds: elapsed.as_secs_f64(),
            p50_us: percentile(0.5),
            p99_us: percentile(0.99),
        }
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measured { workflows, steps, seconds, p50_us, p99_us } = self;
        write!(f, r#"{{"workflows":{workflows},"steps":{steps},"seconds":{seconds},"#)?;
        write!(f, r#""p50_us":{p50_us},"p99_us":{p99_us}}}"#)
    }
}
