//! The machine the numbers come from: without it they mean little.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::{stats, timer};

/// Writes of the fsync measurement; the median of these is reported.
const FSYNC_SAMPLES: usize = 51;

/// What one page of a database is.
const FSYNC_BYTES: usize = 4096;

/// How long the machine is watched before anything is measured.
const WATCH: Duration = Duration::from_millis(500);

/// The share of the cores that something else may use before the numbers are in doubt.
const BUSY_MAX: f64 = 0.1;

/// The head of a report.
#[derive(Debug)]
pub(crate) struct Machine {
    cores: usize,
    cpu: Option<String>,
    fsync_us: f64,
    file_system: Option<String>,
    dir: String,
    /// The share of the cores that others use.
    busy: Option<f64>,
}

impl Machine {
    /// Looks at the machine and at the disk behind `dir`.
    pub(crate) async fn look(dir: &Path) -> Result<Machine> {
        Ok(Machine {
            cores: Machine::cores(),
            cpu: cpu_model(),
            fsync_us: fsync_us(dir).context("cannot measure fsync")?,
            file_system: file_system(dir),
            dir: dir.display().to_string(),
            busy: busy().await,
        })
    }

    /// How many cores this process may use.
    pub(crate) fn cores() -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    /// What makes the numbers of this run doubtful.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if matches!(self.file_system.as_deref(), Some("tmpfs" | "ramfs")) {
            warnings.push(format!(
                "{} is in memory, where an fsync is free: choose a directory on a disk with --dir",
                self.dir
            ));
        }
        // One thread of bare SQLite gets one share of the cores, the engine one for each of its threads.
        if let Some(busy) = self.busy.filter(|busy| *busy > BUSY_MAX) {
            warnings.push(format!(
                "{:.0} % of the cores are busy with something else, which hurts bare SQLite more than the engine: \
                 throughput ratios are too high and latencies are anyone's guess",
                busy * 100.0
            ));
        }
        warnings
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

/// The share of all cores that is in use while this process does nothing.
async fn busy() -> Option<f64> {
    let before = core_times()?;
    timer::sleep(WATCH).await;
    let after = core_times()?;
    let (all, idle) = (after.0.checked_sub(before.0)?, after.1.checked_sub(before.1)?);
    (all > 0).then(|| 1.0 - idle as f64 / all as f64)
}

/// Ticks of all cores since boot: all, and those without work.
fn core_times() -> Option<(u64, u64)> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let ticks = stat.lines().next()?.split_whitespace().skip(1).map(str::parse);
    let ticks: Vec<u64> = ticks.collect::<Result<_, _>>().ok()?;
    let (idle, io_wait) = (ticks.get(3)?, ticks.get(4)?);
    Some((ticks.iter().take(8).sum(), idle + io_wait))
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
