//! The machine the numbers come from: without it they mean little.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

use crate::{stats, timer};

/// Writes of the fsync measurement; the median of these is reported.
const FSYNC_SAMPLES: usize = 51;

/// What one page of a database is.
const FSYNC_BYTES: usize = 4096;

/// The head of a report.
#[derive(Debug)]
pub(crate) struct Machine {
    cores: usize,
    cpu: Option<String>,
    fsync_us: f64,
    file_system: Option<String>,
    dir: String,
}

impl Machine {
    /// Looks at the machine and at the disk behind `dir`.
    pub(crate) fn look(dir: &Path) -> Result<Machine> {
        Ok(Machine {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            cpu: cpu_model(),
            fsync_us: fsync_us(dir).context("cannot measure fsync")?,
            file_system: file_system(dir),
            dir: dir.display().to_string(),
        })
    }

    /// Whether `dir` is in memory, where an fsync costs nothing and every ratio is about something else.
    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self.file_system.as_deref(), Some("tmpfs" | "ramfs"))
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cpu = self.cpu.as_deref().unwrap_or(std::env::consts::ARCH);
        writeln!(f, "machine  {} cores, {cpu}, {}", self.cores, std::env::consts::OS)?;
        let file_system = self.file_system.as_deref().unwrap_or("unknown file system");
        writeln!(f, "disk     {} ({file_system}), fsync {:.0} µs", self.dir, self.fsync_us)?;
        write!(f, "sqlite   {}, WAL, synchronous=FULL", rusqlite::version())
    }
}

fn cpu_model() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The median time to append a page to a file and to know it is on the disk.
fn fsync_us(dir: &Path) -> Result<f64> {
    let mut file = tempfile::tempfile_in(dir)?;
    let page = [0x5a; FSYNC_BYTES];
    let mut samples = Vec::with_capacity(FSYNC_SAMPLES);
    for _ in 0..FSYNC_SAMPLES {
        let start = timer::now();
        file.write_all(&page)?;
        file.sync_data()?;
        samples.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(stats::median(&samples))
}

/// The type of the file system that `dir` is on: that of the longest mount point above it.
fn file_system(dir: &Path) -> Option<String> {
    let dir = fs::canonicalize(dir).ok()?;
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        Some((words.next()?, words.next()?))
    });
    // Of two mounts on one place the later one is seen, and that is which `max_by_key` returns.
    let above = mounts.filter(|(place, _)| dir.starts_with(place));
    above.max_by_key(|(place, _)| place.len()).map(|(_, kind)| kind.to_owned())
}
