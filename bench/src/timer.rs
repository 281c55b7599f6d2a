//! The clocks of the benchmark, and its only waiting.
//!
//! There is no engine here whose time could be injected (rule R6): what is measured is real time.

use std::time::{Duration, Instant, SystemTime};

use piton::Timestamp;

/// Now, on the clock that durations are measured with.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Now, on the clock that sleeping workflows wake by.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(crate) fn wall() -> Timestamp {
    SystemTime::now().into()
}

/// Waits in real time.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(crate) async fn sleep(span: Duration) {
    tokio::time::sleep(span).await;
}

/// Waits until a moment; one in the past is now.
pub(crate) async fn sleep_until(moment: Instant) {
    sleep(moment.saturating_duration_since(now())).await;
}
