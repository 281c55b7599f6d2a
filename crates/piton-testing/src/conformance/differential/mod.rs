//! Two stores, the same random calls, the same answers.
//!
//! A sequence is a list of dice, one for each call: everything about a call follows from its die and from what
//! the stores hold when it is made. So a seed names a sequence, and a failing one can be made shorter by
//! leaving calls out. Row keys, generated ids and numbers that only have to grow differ between stores and are
//! put into a common form before answers are compared (module `normal`).

mod calls;
mod dice;
mod hooks;
mod normal;
mod reads;

use std::fmt;
use std::ops::Range;

use super::{Stage, threads};
use crate::runtime::SplitMix64;

use calls::Pair;

/// Calls in one sequence: enough to bring a handful of instances through several runs.
const CALLS: usize = 75;

/// Where two stores first disagreed.
pub struct Difference {
    trace: Vec<String>,
}

impl fmt::Display for Difference {
    /// The calls and common answers that lead to the difference, which is last.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.trace.join("\n"))
    }
}

impl fmt::Debug for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Asks two fresh stores the questions of one seed.
///
/// # Errors
///
/// The shortest sequence that was found to show a difference.
pub async fn compare(
    seed: u64,
    left: &impl AsyncFn() -> Stage,
    right: &impl AsyncFn() -> Stage,
) -> Result<(), Difference> {
    let mut dice = SplitMix64::new(seed);
    let mut calls: Vec<u64> = (0..CALLS).map(|_| dice.next_u64()).collect();
    let Err(mut difference) = play(&calls, left, right).await else {
        return Ok(());
    };
    for leave_out in (0..calls.len()).rev() {
        let mut fewer = calls.clone();
        fewer.remove(leave_out);
        if let Err(shorter) = play(&fewer, left, right).await {
            (calls, difference) = (fewer, shorter);
        }
    }
    Err(difference)
}

async fn play(
    calls: &[u64],
    left: &impl AsyncFn() -> Stage,
    right: &impl AsyncFn() -> Stage,
) -> Result<(), Difference> {
    let mut pair = Pair::new(left().await, right().await);
    for (n, die) in calls.iter().enumerate() {
        pair.call(*die).await?;
        if n % 16 == 15 {
            pair.read_everything(*die).await?;
        }
    }
    pair.read_everything(1).await
}

/// Expects two stores to answer alike for every seed.
///
/// # Panics
///
/// If they do not, with the seed and the calls that show it.
pub fn assert_alike(
    seeds: Range<u64>,
    left: impl AsyncFn() -> Stage,
    right: impl AsyncFn() -> Stage,
) {
    threads().block_on(async {
        for seed in seeds {
            if let Err(difference) = compare(seed, &left, &right).await {
                panic!("seed {seed}: the stores disagree\n{difference}");
            }
        }
    });
}
