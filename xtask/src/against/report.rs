//! The numbers, to be kept as JSON and gone on with.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::contestant::Contestant;
use super::round::Cost;
use super::table::{millis, thousands};
use super::workload::{Plan, Workload};

/// What a driver prints.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) workflows: u64,
    pub(super) steps: u64,
    pub(super) seconds: f64,
    pub(super) p50_us: u64,
    pub(super) p99_us: u64,
}

/// One round of one engine.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Sample {
    #[serde(flatten)]
    pub(super) measured: Measured,
    pub(super) cost: Cost,
}

impl Sample {
    pub(super) fn steps_per_second(&self) -> f64 {
        self.measured.steps as f64 / self.measured.seconds
    }

    pub(super) fn p50_us(&self) -> f64 {
        self.measured.p50_us as f64
    }
}

/// What is shown while it goes on.
impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measured { workflows, seconds, .. } = self.measured;
        if workflows == 0 {
            return write!(f, "started in {:.0} ms", self.cost.start_ms);
        }
        let steps = thousands(self.steps_per_second());
        let p50 = millis(self.p50_us());
        write!(f, "{steps:>8} steps/s   p50 {p50} ms   {workflows} workflows in {seconds:.2} s")
    }
}

/// All that was measured.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) machine: String,
    pub(super) tables: Vec<Table>,
}

/// One workload.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Table {
    pub(super) workload: Workload,
    pub(super) rounds: usize,
    pub(super) seconds: f64,
    pub(super) entries: Vec<Entry>,
}

/// One engine on one workload.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) engine: String,
    pub(super) version: String,
    durability: String,
    pub(super) program_bytes: Option<u64>,
    pub(super) samples: Vec<Sample>,
    /// Why it was left out, and what went wrong in a round.
    pub(super) problems: Vec<String>,
}

impl Report {
    pub(super) fn new() -> Report {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let cpu = cpu_model().unwrap_or_else(|| std::env::consts::ARCH.to_owned());
        Report { machine: format!("{cores} cores, {cpu}"), tables: Vec::new() }
    }

    /// A file of earlier workloads is gone on with: each of them was measured in one piece, all engines in turns.
    pub(super) fn read_or_new(file: &Path) -> Result<Report> {
        if !file.exists() {
            return Ok(Report::new());
        }
        let what = || format!("cannot go on with {}: remove it to begin anew", file.display());
        let text = fs::read_to_string(file).with_context(what)?;
        serde_json::from_str(&text).with_context(what)
    }

    /// Takes the place of an earlier table of the same workload.
    pub(super) fn put(&mut self, table: Table) {
        self.tables.retain(|other| other.workload != table.workload);
        self.tables.push(table);
        self.tables.sort_by_key(|table| table.workload);
    }

    pub(super) fn json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

impl Table {
    pub(super) fn new(workload: Workload, plan: Plan, entries: Vec<Entry>) -> Table {
        Table { workload, rounds: plan.rounds, seconds: plan.seconds, entries }
    }
}

impl Entry {
    pub(super) fn new(contestant: &Contestant) -> Entry {
        Entry {
            engine: contestant.engine.name().to_owned(),
            version: contestant.version.clone(),
            durability: contestant.engine.durability().to_owned(),
            program_bytes: contestant.program_bytes(),
            samples: Vec::new(),
            problems: contestant.skipped().map(str::to_owned).into_iter().collect(),
        }
    }

    pub(super) fn add(&mut self, measured: Result<Sample>) {
        match measured {
            Ok(sample) => self.samples.push(sample),
            Err(error) => self.problems.push(format!("{error:#}")),
        }
    }

    /// What fails more often than not is not tried again.
    pub(super) fn is_given_up(&self) -> bool {
        self.problems.len() > self.samples.len()
    }

    /// Lowest, middle and highest of the rounds.
    pub(super) fn spread(&self, value: impl Fn(&Sample) -> f64) -> Option<[f64; 3]> {
        let mut values: Vec<f64> = self.samples.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.get(values.len() / 2)?;
        Some([*values.first()?, *middle, *values.last()?])
    }

    pub(super) fn median(&self, value: impl Fn(&Sample) -> f64) -> Option<f64> {
        self.spread(value).map(|[_, median, _]| median)
    }
}

fn cpu_model() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use anyhow::anyhow;

    use super::super::round::Part;
    use super::super::usage::Spent;
    use super::*;

    fn sample(steps: u64) -> Sample {
        let part = Part {
            spent: Spent { cpu_seconds: 0.5, written_bytes: 1_000_000 },
            memory_bytes: 20_000_000,
            memory_peak_bytes: 30_000_000,
        };
        Sample {
            measured: Measured {
                workflows: steps / 10,
                steps,
                seconds: 1.0,
                p50_us: 1234,
                p99_us: 56_789,
            },
            cost: Cost { start_ms: 12.0, driver: part, server: Some(part), disk_bytes: 2_000_000 },
        }
    }

    pub(in crate::against) fn entry(engine: &str, samples: &[u64], problem: Option<&str>) -> Entry {
        let mut entry = Entry {
            engine: engine.to_owned(),
            version: "1.0".to_owned(),
            durability: "synced".to_owned(),
            program_bytes: Some(7_000_000),
            samples: Vec::new(),
            problems: Vec::new(),
        };
        samples.iter().for_each(|steps| entry.add(Ok(sample(*steps))));
        problem.into_iter().for_each(|why| entry.add(Err(anyhow!("{why}"))));
        entry
    }

    /// Every kind of table, with three engines, one of which was left out.
    pub(in crate::against) fn report() -> Report {
        let entries = || {
            vec![
                entry("Piton, SQLite", &[100_000, 300_000, 120_000], None),
                entry("slow", &[1_000, 2_000, 3_000], Some("timeout")),
                entry("absent <&>", &[], Some("no npm")),
            ]
        };
        let mut report = Report { machine: "2 cores".to_owned(), tables: Vec::new() };
        let workloads = [Workload::Chain { steps: 10, in_flight: 64 }, Workload::Burst];
        for workload in
            workloads.into_iter().chain([Workload::Event, Workload::Sleep, Workload::Idle])
        {
            report.put(Table::new(workload, workload.plan(false), entries()));
        }
        report
    }

    #[test]
    fn a_later_table_takes_the_place_of_an_earlier_one_of_the_same_workload() {
        let mut report = report();
        let one = Workload::Chain { steps: 3, in_flight: 1 };
        report.put(Table::new(one, one.plan(true), Vec::new()));
        report.put(Table::new(one, one.plan(false), Vec::new()));
        let rounds: Vec<usize> = report.tables.iter().map(|table| table.rounds).collect();
        assert_eq!(rounds, [3, 3, 3, 3, 1, 3]);
    }

    #[test]
    fn a_report_is_read_back_and_gone_on_with() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("results.json");
        assert!(Report::read_or_new(&file).unwrap().tables.is_empty());
        fs::write(&file, report().json().unwrap()).unwrap();
        assert_eq!(Report::read_or_new(&file).unwrap().to_string(), report().to_string());
        fs::write(&file, "{}").unwrap();
        let error = Report::read_or_new(&file).unwrap_err().to_string();
        assert!(error.contains("remove it to begin anew"), "{error}");
    }

    #[test]
    fn what_fails_more_often_than_not_is_given_up() {
        assert!(!entry("a", &[], None).is_given_up());
        assert!(entry("a", &[], Some("why")).is_given_up());
        assert!(!entry("a", &[1], Some("why")).is_given_up());
    }
}
