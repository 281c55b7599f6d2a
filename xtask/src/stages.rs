//! Named, timed stages: what a command is made of, and the table it leaves behind.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// The stages of one command, in the order in which they ran. Displays as a table of their durations.
#[derive(Debug, Default)]
pub(crate) struct Stages {
    finished: Vec<Stage>,
}

#[derive(Debug)]
struct Stage {
    name: &'static str,
    outcome: Outcome,
}

#[derive(Debug)]
enum Outcome {
    Passed(Duration),
    Failed(Duration),
    Skipped(&'static str),
}

impl Stages {
    /// Runs one stage; its error names the stage.
    pub(crate) fn run(
        &mut self,
        name: &'static str,
        action: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        println!("\n==> {name}");
        let started_at = now();
        let result = action();
        let elapsed = started_at.elapsed();
        let outcome =
            if result.is_ok() { Outcome::Passed(elapsed) } else { Outcome::Failed(elapsed) };
        self.finished.push(Stage { name, outcome });
        result.with_context(|| format!("stage `{name}` failed"))
    }

    /// Records that a stage did not run and why, so that a green table hides nothing.
    pub(crate) fn skip(&mut self, name: &'static str, reason: &'static str) {
        println!("\n==> {name}: skipped: {reason}");
        self.finished.push(Stage { name, outcome: Outcome::Skipped(reason) });
    }
}

/// The developer's own clock: there is no engine here whose time could be injected (rule R6).
#[expect(clippy::disallowed_methods, reason = "measures the stages of a developer's command")]
fn now() -> Instant {
    Instant::now()
}

impl Outcome {
    fn elapsed(&self) -> Duration {
        match self {
            Outcome::Passed(elapsed) | Outcome::Failed(elapsed) => *elapsed,
            Outcome::Skipped(_) => Duration::ZERO,
        }
    }
}

impl fmt::Display for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Stage { name, outcome } in &self.finished {
            let seconds = outcome.elapsed().as_secs_f64();
            match outcome {
                Outcome::Passed(_) => writeln!(f, "{name:<12}{seconds:>8.1} s  ok")?,
                Outcome::Failed(_) => writeln!(f, "{name:<12}{seconds:>8.1} s  FAILED")?,
                Outcome::Skipped(reason) => {
                    writeln!(f, "{name:<12}{:>8}    skipped: {reason}", "-")?
                }
            }
        }
        let total: Duration = self.finished.iter().map(|stage| stage.outcome.elapsed()).sum();
        write!(f, "{:<12}{:>8.1} s", "total", total.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn an_error_names_the_stage_and_its_cause() {
        let error = Stages::default().run("clippy", || bail!("3 warnings")).unwrap_err();
        assert_eq!(format!("{error:#}"), "stage `clippy` failed: 3 warnings");
    }

    #[test]
    fn the_table_shows_what_passed_failed_and_was_skipped() {
        let stage = |name, outcome| Stage { name, outcome };
        let stages = Stages {
            finished: vec![
                stage("fmt", Outcome::Passed(Duration::from_millis(400))),
                stage("deny", Outcome::Skipped("not installed")),
                stage("tests", Outcome::Failed(Duration::from_millis(83_200))),
            ],
        };
        let expected = "\
fmt              0.4 s  ok
deny               -    skipped: not installed
tests           83.2 s  FAILED
total           83.6 s";
        assert_eq!(stages.to_string(), expected);
    }
}
