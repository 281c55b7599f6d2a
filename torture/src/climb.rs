//! The workflow under load: steps, a sleep, a wait, a retry, two steps at once, and rows of its own.

use std::time::{SystemTime, UNIX_EPOCH};

use piton::StepContext;
use piton::prelude::*;

use crate::ledger::{Files, Lines};

/// The steps with a body in their order; those of one rank run at the same time. **When a step of a higher rank has
/// begun, all of the lower ones are committed**, and must never be executed again in that run.
pub(crate) const RANKS: [(&str, u32); 5] =
    [("pack", 1), ("climb", 2), ("left", 3), ("right", 3), ("rest", 4)];

/// The steps that write a row of their own in their transaction.
pub(crate) const WITH_ROW: [&str; 3] = ["pack", "right", "rest"];

/// Where they write it. No constraint keeps a row from being there twice: that is for the verdict to see.
pub(crate) const TABLE: &str = "CREATE TABLE IF NOT EXISTS climbed (step TEXT NOT NULL)";
const ROW: &str = "INSERT INTO climbed (step) VALUES ($1)";

pub(crate) const GO: &str = "go";

pub(crate) struct Climb {
    witness: Lines,
}

impl Workflow for Climb {
    const NAME: &'static str = "climb";
    type Params = u32;
    type Output = u32;

    async fn run(&self, number: Event<u32>, step: &Step) -> Result<u32> {
        self.step(step, "pack", 0).await?;
        step.sleep("look up", 3).await?;
        self.step(step, "climb", *number % 3).await?;
        let go: u32 = step.wait_for_event("signal", GO).timeout("1 day").await?;
        try_join!(self.step(step, "left", 0), self.step(step, "right", *number % 2))?;
        self.step(step, "rest", 0).await?;
        Ok(*number + go)
    }
}

impl Climb {
    pub(crate) fn new(files: &Files) -> anyhow::Result<Self> {
        Ok(Self { witness: Lines::open(&files.witness())? })
    }

    /// A step whose first `failures` attempts fail.
    async fn step(&self, step: &Step, name: &str, failures: u32) -> Result<()> {
        let body = |cx: StepContext| async move {
            let key = cx.idempotency_key();
            let (words, attempt) = (key.replace('/', " "), cx.attempt());
            let (process, now_ms) = (std::process::id(), now_ms());
            self.witness.add(&format!("{words} {attempt} {process} {now_ms}"));
            if WITH_ROW.contains(&name) {
                cx.transaction().execute(ROW, (key,));
            }
            if cx.attempt() <= failures {
                return Err(Error::new("slipped"));
            }
            Ok(())
        };
        step.run_with(name, body).retries(Retries::constant(5, 4)).await
    }
}

/// What the clock of this machine says, and so that of a server on it.
#[expect(clippy::disallowed_methods, reason = "what really happened is noted in real time")]
fn now_ms() -> u128 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis())
}
