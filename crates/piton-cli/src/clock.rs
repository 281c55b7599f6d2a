//! The only place that asks what time it is, or waits.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::time::Moment;

/// The time by this machine's clock.
#[expect(clippy::disallowed_methods, reason = "this program has no engine, and so no runtime")]
pub(crate) fn now() -> Moment {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Moment(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Waits.
#[expect(clippy::disallowed_methods, reason = "between two polls there is nothing else to wait on")]
pub(crate) fn wait(time: Duration) {
    std::thread::sleep(time);
}
