//! The shortest story of a violation: the same seed with as much as possible left out.
//!
//! Whatever is left out changes the order of everything after it, so each cut is tried in several orders (the
//! salt), and the shortest simulation that breaks the same invariant is kept.

use super::plan::{Cuts, Part};
use super::{Report, simulate_with};

/// How many polls of tasks are spent on it: some seconds.
const POLLS_MAX: u64 = 40_000_000;

/// How many orders of what is left are tried for each cut.
const SALTS: u64 = 12;

/// What programs are cut down to first, and what the number of runners is cut down from.
const OPS: usize = 8;
const RUNNERS: u32 = 3;

/// Leaves out of a failing simulation what its violation does not need. Returns the story of what is left.
pub fn shrink(report: &Report) -> Report {
    let Some(violation) = &report.violation else { return report.clone() };
    let mut best = simulate_with(report.seed, &report.cuts, false);
    let mut polls = 0;
    loop {
        let mut shorter = false;
        for cut in Cut::all(best.actions) {
            let Some(cuts) = cut.added_to(&best.cuts).filter(|_| polls < POLLS_MAX) else {
                continue;
            };
            if let Some(found) = try_salts(best.seed, &cuts, violation.invariant, &mut polls) {
                best = found;
                shorter = true;
            }
        }
        if !shorter {
            return simulate_with(best.seed, &best.cuts, true);
        }
    }
}

/// One thing that could be left out.
enum Cut {
    Part(Part),
    Action(u64),
    Runner,
    Op,
}

impl Cut {
    fn all(actions: u64) -> impl Iterator<Item = Cut> {
        let parts = Part::ALL.iter().copied().map(Cut::Part);
        parts.chain((0..actions).map(Cut::Action)).chain([Cut::Runner, Cut::Op])
    }

    /// `None` if it is left out already.
    fn added_to(&self, cuts: &Cuts) -> Option<Cuts> {
        let mut cuts = cuts.clone();
        let new = match self {
            Cut::Part(part) => cuts.without.insert(*part),
            Cut::Action(number) => cuts.skip.insert(*number),
            Cut::Runner => {
                let max = cuts.runners_max.unwrap_or(RUNNERS) - 1;
                cuts.runners_max.replace(max) != Some(max) && max > 0
            }
            Cut::Op => {
                let max = cuts.ops_max.unwrap_or(OPS) - 1;
                cuts.ops_max.replace(max) != Some(max) && max > 0
            }
        };
        new.then_some(cuts)
    }
}

/// The shortest simulation with these cuts that breaks the same invariant.
fn try_salts(seed: u64, cuts: &Cuts, invariant: &str, polls: &mut u64) -> Option<Report> {
    let mut shortest: Option<Report> = None;
    for salt in 0..SALTS {
        let report = simulate_with(seed, &Cuts { salt, ..cuts.clone() }, false);
        *polls += report.polls;
        let breaks = report.violation.as_ref().is_some_and(|found| found.invariant == invariant);
        let shorter = |best: &Report| report.transactions < best.transactions;
        if breaks && shortest.as_ref().is_none_or(shorter) {
            shortest = Some(report);
        }
    }
    shortest
}
