//! What processes cost, read from `/proc`. Elsewhere than on Linux nothing is known.

use std::collections::HashMap;
use std::fs;
use std::iter::Sum;
use std::ops::Sub;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Ticks of CPU time per second, as `/proc` counts them on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// What a process and all that it started has spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Spent {
    pub(super) cpu_seconds: f64,
    /// What was handed to the disk.
    pub(super) written_bytes: u64,
}

impl Spent {
    pub(super) fn of(family: &[u32]) -> Spent {
        family.iter().filter_map(|pid| Spent::of_one(*pid)).sum()
    }

    fn of_one(pid: u32) -> Option<Spent> {
        let stat = Stat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
        let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
        let written_bytes = number_behind(&io, "write_bytes:").unwrap_or(0);
        Some(Spent { cpu_seconds: stat.ticks as f64 / TICKS_PER_SECOND, written_bytes })
    }
}

impl Sum for Spent {
    fn sum<I: Iterator<Item = Spent>>(all: I) -> Spent {
        all.fold(Spent::default(), |sum, one| Spent {
            cpu_seconds: sum.cpu_seconds + one.cpu_seconds,
            written_bytes: sum.written_bytes + one.written_bytes,
        })
    }
}

impl Sub for Spent {
    type Output = Spent;

    fn sub(self, earlier: Spent) -> Spent {
        Spent {
            cpu_seconds: (self.cpu_seconds - earlier.cpu_seconds).max(0.0),
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
        }
    }
}

/// Resident memory of processes; what they share is counted once.
pub(super) fn memory_bytes(family: &[u32]) -> u64 {
    let of_one = |pid: &u32| {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        Some(number_behind(&rollup, "Pss:")? * 1024)
    };
    family.iter().filter_map(of_one).sum()
}

/// A process and all that descend from it.
pub(super) fn family(ancestor: u32) -> Vec<u32> {
    let mut parents = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if let Some(stat) = Stat::parse(&stat) {
            parents.insert(pid, stat.parent);
        }
    }
    let descends = |pid: &u32| {
        let mut line = std::iter::successors(Some(*pid), |pid| parents.get(pid).copied());
        line.any(|pid| pid == ancestor)
    };
    let mut family: Vec<u32> = parents.keys().copied().filter(descends).collect();
    family.sort_unstable();
    family
}

/// The lengths of all files below a directory.
pub(super) fn files_bytes(directory: &Path) -> u64 {
    let mut sum = 0;
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        // What vanishes meanwhile counts as nothing.
        let Ok(meta) = entry.metadata() else { continue };
        sum += if meta.is_dir() { files_bytes(&entry.path()) } else { meta.len() };
    }
    sum
}

/// What is of use in `/proc/PID/stat`.
#[derive(Debug, PartialEq)]
struct Stat {
    parent: u32,
    /// CPU time of the process and of its children that have ended.
    ticks: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Stat> {
        // The name in parentheses may contain anything.
        let behind_name = text.rsplit_once(") ")?.1;
        let fields: Vec<&str> = behind_name.split(' ').collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        let ticks = number(11)? + number(12)? + number(13)? + number(14)?;
        Some(Stat { parent: number(1)?.try_into().ok()?, ticks })
    }
}

fn number_behind(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_may_have_any_name() {
        let text = "42 (a) b) S 7 42 42 0 -1 4194560 1 2 3 4 100 20 3 4 20 0 1 0 5 6 7";
        assert_eq!(Stat::parse(text), Some(Stat { parent: 7, ticks: 127 }));
        assert_eq!(Stat::parse("nonsense"), None);
    }

    #[test]
    fn numbers_stand_behind_their_names() {
        let text = "wchar: 1\nwrite_bytes: 8192\ncancelled_write_bytes: 7\nPss:    12 kB\n";
        assert_eq!(number_behind(text, "write_bytes:"), Some(8192));
        assert_eq!(number_behind(text, "Pss:"), Some(12));
        assert_eq!(number_behind(text, "Rss:"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_is_of_its_own_family_and_has_memory() {
        let family = family(std::process::id());
        assert!(family.contains(&std::process::id()), "{family:?}");
        assert!(memory_bytes(&family) > 0);
    }

    #[test]
    fn files_are_counted_in_all_directories() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(dir.path().join("a/b"), "12345").unwrap();
        fs::write(dir.path().join("c"), "678").unwrap();
        assert_eq!(files_bytes(dir.path()), 8);
        assert_eq!(files_bytes(&dir.path().join("absent")), 0);
    }
}
