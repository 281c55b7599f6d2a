//! The numbers as tables in Markdown, which read well in a terminal, too.

use std::fmt;

use super::bars;
use super::report::{Entry, Report, Sample, Table};
use super::round::{Cost, Part};
use super::workload::Workload;

/// The workload whose costs are shown.
const COSTS_OF: Workload = Workload::Chain { steps: 10, in_flight: 64 };

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.machine)?;
        for table in &self.tables {
            writeln!(f, "\n{table}")?;
            if table.workload == COSTS_OF {
                writeln!(f, "\n### What a step costs ({})\n\n{}", table.workload, costs(table))?;
            }
        }
        let bars = bars::of(self);
        if bars.is_empty() {
            return Ok(());
        }
        let rows = bars.iter().map(|bar| bar.cells().into()).collect();
        writeln!(f, "\n### Bars\n\n{}", Grid { head: &bars::HEAD, rows })
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Table { workload, rounds, .. } = self;
        writeln!(f, "### {workload}\n\nMedians of {rounds} rounds.\n")?;
        let grid = match workload {
            Workload::Chain { .. } => chain(self),
            Workload::Burst | Workload::WarmBurst => burst(self),
            Workload::Event => event(self),
            Workload::Sleep => sleep(self),
            Workload::Idle => idle(self),
        };
        write!(f, "{grid}")?;
        for entry in self.entries.iter().filter(|entry| !entry.problems.is_empty()) {
            let Entry { engine, samples, problems, .. } = entry;
            let why = problems.last().map_or("", String::as_str);
            match samples.len() {
                0 => writeln!(f, "\n{engine}: no result: {why}")?,
                _ => writeln!(f, "\n{engine}: {} failed: {why}", problems.len())?,
            }
        }
        Ok(())
    }
}

/// Rows of cells; those of the first column are set to the left.
struct Grid {
    head: &'static [&'static str],
    rows: Vec<Vec<String>>,
}

impl Grid {
    /// A row for each engine. One without a number has nothing but its name.
    fn of_engines(
        head: &'static [&'static str],
        table: &Table,
        cells: impl Fn(&Entry) -> Option<Vec<String>>,
    ) -> Grid {
        let row = |entry: &Entry| {
            let mut row = vec![format!("{} {}", entry.engine, entry.version)];
            row.extend(cells(entry).unwrap_or_default());
            row.resize(head.len(), "-".to_owned());
            row
        };
        Grid { head, rows: table.entries.iter().map(row).collect() }
    }
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head: Vec<String> = self.head.iter().map(|cell| (*cell).to_owned()).collect();
        let width = |column: usize| {
            let all = self.rows.iter().chain([&head]);
            all.map(|row| row[column].chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..head.len()).map(width).collect();
        let line = |f: &mut fmt::Formatter<'_>, row: &[String]| {
            write!(f, "|")?;
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                match column {
                    0 => write!(f, " {cell:<width$} |")?,
                    _ => write!(f, " {cell:>width$} |")?,
                }
            }
            writeln!(f)
        };
        line(f, &head)?;
        let rule = |(column, width): (usize, &usize)| match column {
            0 => "-".repeat(*width),
            _ => format!("{}:", "-".repeat(width - 1)),
        };
        line(f, &widths.iter().enumerate().map(rule).collect::<Vec<_>>())?;
        self.rows.iter().try_for_each(|row| line(f, row))
    }
}

fn chain(table: &Table) -> Grid {
    let head = &[
        "engine",
        "steps/s",
        "lowest to highest",
        "workflows/s",
        "p50 ms",
        "p99 ms",
        "Piton on SQLite does",
    ];
    let first = table.entries.first().and_then(|entry| entry.median(Sample::steps_per_second));
    Grid::of_engines(head, table, |entry| {
        let [low, steps, high] = entry.spread(Sample::steps_per_second)?;
        let workflows = |sample: &Sample| {
            let measured = sample.measured;
            measured.workflows as f64 / measured.seconds
        };
        Some(vec![
            thousands(steps),
            format!("{} to {}", thousands(low), thousands(high)),
            thousands(entry.median(workflows)?),
            millis(entry.median(Sample::p50_us)?),
            millis(entry.median(p99_us)?),
            first.map_or("-".to_owned(), |first| format!("{:.1}x", first / steps)),
        ])
    })
}

fn burst(table: &Table) -> Grid {
    let head =
        &["engine", "all results after ms", "lowest to highest", "steps/s", "p50 ms", "p99 ms"];
    Grid::of_engines(head, table, |entry| {
        let [low, all, high] = entry.spread(elapsed_us)?;
        Some(vec![
            millis(all),
            format!("{} to {}", millis(low), millis(high)),
            thousands(entry.median(Sample::steps_per_second)?),
            millis(entry.median(Sample::p50_us)?),
            millis(entry.median(p99_us)?),
        ])
    })
}

fn event(table: &Table) -> Grid {
    let head = &["engine", "p50 ms", "lowest to highest", "p99 ms", "events in a round"];
    Grid::of_engines(head, table, |entry| {
        let [low, p50, high] = entry.spread(Sample::p50_us)?;
        Some(vec![
            millis(p50),
            format!("{} to {}", millis(low), millis(high)),
            millis(entry.median(p99_us)?),
            thousands(entry.median(workflows)?),
        ])
    })
}

fn sleep(table: &Table) -> Grid {
    let head = &["engine", "asleep", "last one resumed after ms", "p50 ms late", "p99 ms late"];
    Grid::of_engines(head, table, |entry| {
        Some(vec![
            thousands(entry.median(workflows)?),
            millis(entry.median(elapsed_us)?),
            millis(entry.median(Sample::p50_us)?),
            millis(entry.median(p99_us)?),
        ])
    })
}

fn idle(table: &Table) -> Grid {
    let head = &[
        "engine",
        "start ms",
        "lowest to highest",
        "memory MB, process + server",
        "CPU %, process + server",
        "programs MB",
    ];
    Grid::of_engines(head, table, |entry| {
        let [low, start, high] = entry.spread(|sample| sample.cost.start_ms)?;
        let seconds = |sample: &Sample| sample.measured.seconds;
        Some(vec![
            format!("{start:.0}"),
            format!("{low:.0} to {high:.0}"),
            parts(entry, |part, _| part.memory_bytes as f64 / 1e6)?,
            parts(entry, |part, sample| part.spent.cpu_seconds / seconds(sample) * 1e2)?,
            entry.program_bytes.map_or("-".to_owned(), |bytes| amount(bytes as f64 / 1e6)),
        ])
    })
}

fn costs(table: &Table) -> Grid {
    let head = &[
        "engine",
        "CPU µs, process + server",
        "peak memory MB, process + server",
        "KB written",
        "KB kept on disk",
    ];
    Grid::of_engines(head, table, |entry| {
        let steps = |sample: &Sample| sample.measured.steps as f64;
        let written = |sample: &Sample| {
            let Cost { driver, server, .. } = sample.cost;
            let all =
                driver.spent.written_bytes + server.map_or(0, |part| part.spent.written_bytes);
            all as f64 / 1e3 / steps(sample)
        };
        let kept = |sample: &Sample| sample.cost.disk_bytes as f64 / 1e3 / steps(sample);
        Some(vec![
            parts(entry, |part, sample| part.spent.cpu_seconds * 1e6 / steps(sample))?,
            parts(entry, |part, _| part.memory_peak_bytes as f64 / 1e6)?,
            amount(entry.median(written)?),
            amount(entry.median(kept)?),
        ])
    })
}

fn p99_us(sample: &Sample) -> f64 {
    sample.measured.p99_us as f64
}

fn elapsed_us(sample: &Sample) -> f64 {
    sample.measured.seconds * 1e6
}

fn workflows(sample: &Sample) -> f64 {
    sample.measured.workflows as f64
}

/// `12 + 34`: a median for the process that has the engine and the client, and one for its server.
fn parts(entry: &Entry, value: impl Fn(&Part, &Sample) -> f64) -> Option<String> {
    let driver = amount(entry.median(|sample| value(&sample.cost.driver, sample))?);
    if entry.samples.iter().any(|sample| sample.cost.server.is_none()) {
        return Some(driver);
    }
    let of_server = |sample: &Sample| sample.cost.server.map_or(0.0, |part| value(&part, sample));
    Some(format!("{driver} + {}", amount(entry.median(of_server)?)))
}

/// Two digits at least.
fn amount(number: f64) -> String {
    match number {
        small if small < 1.0 => format!("{small:.2}"),
        middle if middle < 10.0 => format!("{middle:.1}"),
        large => thousands(large),
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
    if millis < 10.0 { format!("{millis:.2}") } else { thousands(millis) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::against::report::tests::report;

    #[test]
    fn tables_have_medians_spread_costs_and_reasons() {
        let text = report().to_string();
        for part in [
            "### 10 steps, 64 in flight",
            "| Piton, SQLite 1.0 | 120,000 | 100,000 to 300,000 |      12,000 |   1.23 |     57 |",
            "60.0x",
            "\nslow: 1 failed: timeout",
            "\nabsent <&>: no result: no npm",
            "### What a step costs",
            "4.2 + 4.2",
            "30 + 30",
            "### 1,000 starts on a cold process",
            "1,000 to 1,000",
            "### Event to resumed step",
            "### Asleep to one moment",
            "### At rest",
            "20 + 20",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(thousands(7.4), "7");
        assert_eq!(thousands(123_456.0), "123,456");
        assert_eq!(thousands(1_000_000.0), "1,000,000");
    }

    #[test]
    fn small_amounts_keep_two_digits() {
        assert_eq!([0.123, 4.56, 12.3, 1234.0].map(amount), ["0.12", "4.6", "12", "1,234"]);
    }
}
