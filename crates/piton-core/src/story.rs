//! The engine's own log lines: what happened to a run, told in one place so that every store and the
//! runner tell it in the same words.

use std::sync::{Arc, LazyLock};

use crate::record::{LogLine, RecordedError, RunNumber, SYSTEM_CATEGORY};
use crate::{InstanceStatus, Json, LogLevel, Span, StepName, Timestamp};

/// A line of category `system` that is about to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct SystemLine {
    /// Its level.
    pub level: LogLevel,
    /// What happened.
    pub message: String,
    /// The step it is about.
    pub step: Option<StepName>,
    /// The attempt it is about.
    pub attempt: Option<u32>,
    /// Structured detail.
    pub data: Option<Json>,
}

static SYSTEM: LazyLock<Arc<str>> = LazyLock::new(|| Arc::from(SYSTEM_CATEGORY));

impl SystemLine {
    /// The line as it is stored.
    pub fn written(self, id: Arc<str>, now: Timestamp) -> LogLine {
        LogLine {
            id,
            step: self.step,
            attempt: self.attempt,
            level: self.level,
            category: Arc::clone(&SYSTEM),
            message: self.message.into(),
            data: self.data,
            is_replay: false,
            created_at: now,
        }
    }
}

fn line(level: LogLevel, message: impl Into<String>) -> SystemLine {
    SystemLine { level, message: message.into(), step: None, attempt: None, data: None }
}

fn about(step: &StepName, attempt: Option<u32>, line: SystemLine) -> SystemLine {
    SystemLine { step: Some(step.clone()), attempt, ..line }
}

/// A runner took the run.
pub fn claimed(runner: &str, epoch: u64) -> SystemLine {
    line(LogLevel::Debug, format!("claimed by {runner} (epoch {epoch})"))
}

/// A runner took the run from one that let its lease run out.
pub fn taken_over(runner: &str, epoch: u64) -> SystemLine {
    line(LogLevel::Warn, format!("lease ran out; claimed by {runner} (epoch {epoch})"))
}

/// The run is handed back by a runner that shuts down.
pub fn released() -> SystemLine {
    line(LogLevel::Debug, "released by its runner")
}

/// A pause was asked for while a body runs.
pub fn pause_requested() -> SystemLine {
    line(LogLevel::Info, "pause requested; takes effect at the next boundary")
}

/// The instance is paused.
pub fn paused() -> SystemLine {
    line(LogLevel::Info, "paused")
}

/// The instance is resumed, or a requested pause was taken back.
pub fn resumed() -> SystemLine {
    line(LogLevel::Info, "resumed")
}

/// The instance was terminated.
pub fn terminated() -> SystemLine {
    line(LogLevel::Info, "terminated")
}

/// A new run starts; says how the one before it stood.
pub fn restarted(
    run: RunNumber,
    before: InstanceStatus,
    error: Option<&RecordedError>,
) -> SystemLine {
    let was = run.saturating_sub(1);
    let why = error.map(|e| format!(": {}: {}", e.name, e.message)).unwrap_or_default();
    line(LogLevel::Info, format!("restarted as run {run}; run {was} was {before}{why}"))
}

/// The instance was taken out of circulation.
pub fn quarantined(error: &RecordedError) -> SystemLine {
    line(LogLevel::Error, format!("quarantined: {}", error.message))
}

/// A runner found that the run is no longer its own.
pub fn fenced(runner: &str, epoch: u64) -> SystemLine {
    line(LogLevel::Warn, format!("{runner} was fenced: it no longer holds the run (epoch {epoch})"))
}

/// An attempt failed and will be tried again.
pub fn retrying(step: &StepName, attempt: u32, delay: Span, error: &RecordedError) -> SystemLine {
    let message =
        format!("attempt {attempt} failed, next in {delay}: {}: {}", error.name, error.message);
    about(step, Some(attempt), line(LogLevel::Warn, message))
}

/// A step failed for good.
pub fn step_failed(step: &StepName, attempt: u32, error: &RecordedError) -> SystemLine {
    let message =
        format!("failed for good after attempt {attempt}: {}: {}", error.name, error.message);
    about(step, Some(attempt), line(LogLevel::Error, message))
}

/// A wait for an event timed out.
pub fn wait_timed_out(step: &StepName, error: &RecordedError) -> SystemLine {
    about(step, None, line(LogLevel::Warn, format!("timed out: {}", error.message)))
}

/// The code used the name of a step again.
pub fn step_name_reused(step: &StepName) -> SystemLine {
    let message =
        "this step name was used before in this run: the recorded result is returned again";
    about(step, None, line(LogLevel::Warn, message))
}

/// A log line of the user's was changed to fit the rules.
pub fn log_line_mended(what: &str) -> SystemLine {
    line(LogLevel::Warn, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_about_a_step_says_which_and_which_attempt() {
        let step = StepName::from_stored("charge");
        let error = RecordedError::new("Gateway", "busy");
        let line = step_failed(&step, 3, &error);
        assert_eq!((line.step, line.attempt), (Some(step), Some(3)));
    }
}
