//! What this process costs, read from `/proc`. Elsewhere than on Linux nothing is known.

use std::fs;
use std::time::Duration;

/// The CPU time of all threads of this process so far.
///
/// From `schedstat`, which counts nanoseconds: the ticks of `stat` are 10 ms, too coarse for an idle process.
pub(crate) fn cpu_time() -> Option<Duration> {
    let mut nanos = 0;
    for thread in fs::read_dir("/proc/self/task").ok()? {
        let text = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        nanos += text.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    Some(Duration::from_nanos(nanos))
}

/// The memory of this process that is its own: resident and not backed by a file.
pub(crate) fn memory_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}
