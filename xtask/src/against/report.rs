//! The numbers: as tables to read, as JSON to keep.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::contestant::Contestant;
use super::workload::Workload;

/// What a driver prints.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Sample {
    workflows: u64,
    steps: u64,
    seconds: f64,
    p50_us: u64,
    p99_us: u64,
}

impl Sample {
    fn steps_per_second(&self) -> f64 {
        self.steps as f64 / self.seconds
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = thousands(self.steps_per_second());
        write!(f, "{steps:>8} steps/s   p50 {} ms", millis(self.p50_us as f64))
    }
}

/// All that was measured.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Report {
    machine: String,
    pub(super) tables: Vec<Table>,
}

/// One workload.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Table {
    pub(super) workload: Workload,
    rounds: usize,
    seconds: f64,
    pub(super) entries: Vec<Entry>,
}

/// One engine on one workload.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) engine: String,
    version: String,
    durability: String,
    samples: Vec<Sample>,
    /// Why it was left out, and what went wrong in a round.
    problems: Vec<String>,
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
    pub(super) fn new(
        workload: Workload,
        rounds: usize,
        window: Duration,
        entries: Vec<Entry>,
    ) -> Table {
        Table { workload, rounds, seconds: window.as_secs_f64(), entries }
    }
}

impl Entry {
    pub(super) fn new(contestant: &Contestant) -> Entry {
        Entry {
            engine: contestant.engine.name().to_owned(),
            version: contestant.version.clone(),
            durability: contestant.engine.durability().to_owned(),
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

    /// Lowest, middle and highest of the rounds.
    fn spread(&self, value: impl Fn(&Sample) -> f64) -> Option<[f64; 3]> {
        let mut values: Vec<f64> = self.samples.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.get(values.len() / 2)?;
        Some([*values.first()?, *middle, *values.last()?])
    }

    /// The median of the rounds.
    pub(super) fn steps_per_second(&self) -> Option<f64> {
        self.spread(Sample::steps_per_second).map(|[_, median, _]| median)
    }

    /// The median of the rounds.
    pub(super) fn p50_us(&self) -> Option<f64> {
        self.spread(|sample| sample.p50_us as f64).map(|[_, median, _]| median)
    }

    fn cells(&self, first: Option<f64>) -> [String; 7] {
        let name = format!("{} {}", self.engine, self.version);
        let steps = self.spread(Sample::steps_per_second);
        let workflows = self.spread(|sample| sample.workflows as f64 / sample.seconds);
        let p99 = self.spread(|sample| sample.p99_us as f64);
        let (Some([low, steps, high]), Some([_, workflows, _]), Some([_, p99, _]), Some(p50)) =
            (steps, workflows, p99, self.p50_us())
        else {
            let reason = self.problems.last().map_or("not measured", String::as_str);
            return [
                name,
                "-".into(),
                reason.into(),
                "-".into(),
                "-".into(),
                "-".into(),
                "-".into(),
            ];
        };
        let mut spread = format!("{} to {}", thousands(low), thousands(high));
        if !self.problems.is_empty() {
            spread += &format!(", {} failed", self.problems.len());
        }
        let ratio = first.map_or("-".to_owned(), |first| format!("{:.1}x", first / steps));
        [name, thousands(steps), spread, thousands(workflows), millis(p50), millis(p99), ratio]
    }
}

const HEAD: [&str; 7] = [
    "engine",
    "steps/s",
    "lowest to highest",
    "workflows/s",
    "p50 ms",
    "p99 ms",
    "Piton on SQLite does",
];

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.machine)?;
        for table in &self.tables {
            writeln!(f, "\n{table}")?;
        }
        Ok(())
    }
}

/// A table in Markdown, which reads well in a terminal, too.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Table { workload, rounds, seconds, entries } = self;
        writeln!(f, "### {workload}\n\nMedians of {rounds} rounds of {seconds} s.\n")?;
        let first = entries.first().and_then(Entry::steps_per_second);
        let head = HEAD.map(str::to_owned);
        let rows: Vec<[String; 7]> = entries.iter().map(|entry| entry.cells(first)).collect();
        let width = |column: usize| {
            let all = rows.iter().chain([&head]);
            all.map(|row| row[column].chars().count()).max().unwrap_or(0)
        };
        let widths: [usize; 7] = std::array::from_fn(width);
        let line = |f: &mut fmt::Formatter<'_>, row: &[String; 7]| {
            write!(f, "|")?;
            for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
                if column == 0 {
                    write!(f, " {cell:<width$} |")?;
                } else {
                    write!(f, " {cell:>width$} |")?;
                }
            }
            writeln!(f)
        };
        line(f, &head)?;
        let rule = std::array::from_fn(|column| {
            let dashes = "-".repeat(widths[column] - 1);
            if column == 0 { format!("{dashes}-") } else { format!("{dashes}:") }
        });
        line(f, &rule)?;
        rows.iter().try_for_each(|row| line(f, row))
    }
}

/// `12,345`
pub(super) fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub(super) fn millis(micros: f64) -> String {
    let millis = micros / 1000.0;
    if millis < 10.0 { format!("{millis:.2}") } else { format!("{millis:.0}") }
}

fn cpu_model() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use anyhow::anyhow;

    use super::*;

    fn sample(steps: u64) -> Sample {
        Sample { workflows: steps / 10, steps, seconds: 1.0, p50_us: 1234, p99_us: 56_789 }
    }

    /// Two engines, one of which was left out.
    pub(in crate::against) fn report() -> Report {
        let entry = |engine: &str, samples: &[u64], problem: Option<&str>| {
            let mut entry = Entry {
                engine: engine.to_owned(),
                version: "1.0".to_owned(),
                durability: "synced".to_owned(),
                samples: Vec::new(),
                problems: Vec::new(),
            };
            samples.iter().for_each(|steps| entry.add(Ok(sample(*steps))));
            problem.into_iter().for_each(|why| entry.add(Err(anyhow!("{why}"))));
            entry
        };
        let entries = vec![
            entry("Piton, SQLite", &[100_000, 300_000, 120_000], None),
            entry("slow", &[1_000, 2_000, 3_000], Some("timeout")),
            entry("absent <&>", &[], Some("no npm")),
        ];
        let workload = Workload { steps: 10, in_flight: 64 };
        let table = Table::new(workload, 3, Duration::from_secs(1), entries);
        Report { machine: "2 cores".to_owned(), tables: vec![table] }
    }

    #[test]
    fn the_table_has_medians_spread_and_reasons() {
        let text = report().to_string();
        for part in [
            "### 10 steps, 64 in flight",
            "| Piton, SQLite 1.0 | 120,000 |       100,000 to 300,000 |      12,000 |   1.23 |     57 |",
            "1,000 to 3,000, 1 failed",
            "60.0x",
            "no npm",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn a_later_table_takes_the_place_of_an_earlier_one_of_the_same_workload() {
        let mut report = report();
        let one = Workload { steps: 3, in_flight: 1 };
        report.put(Table::new(one, 1, Duration::from_secs(1), Vec::new()));
        report.put(Table::new(one, 2, Duration::from_secs(1), Vec::new()));
        let rounds: Vec<usize> = report.tables.iter().map(|table| table.rounds).collect();
        assert_eq!(rounds, [2, 3]);
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
    fn thousands_are_set_apart() {
        assert_eq!(thousands(7.4), "7");
        assert_eq!(thousands(123_456.0), "123,456");
        assert_eq!(thousands(1_000_000.0), "1,000,000");
    }
}
