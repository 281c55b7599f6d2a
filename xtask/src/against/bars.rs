//! The ratios that Piton stands for, computed from what was measured.

use super::report::{Entry, Report, Sample};
use super::workload::Workload;

pub(super) const HEAD: [&str; 4] = ["bar", "at least", "measured", ""];

const SQLITE: &str = "Piton, SQLite";
const POSTGRES: &str = "Piton, PostgreSQL";
const RESTATE: &str = "Restate";
const DBOS: &str = "DBOS for Rust";

/// One ratio.
#[derive(Debug)]
pub(super) struct Bar {
    text: String,
    needed: f64,
    measured: f64,
}

impl Bar {
    pub(super) fn cells(&self) -> [String; 4] {
        let Bar { text, needed, measured } = self;
        let share = measured / needed;
        let word =
            if share >= 1.0 { "met".to_owned() } else { format!("missed: {share:.2} of it") };
        [text.clone(), format!("{needed}x"), format!("{measured:.1}x"), word]
    }
}

/// Those for which there are numbers.
pub(super) fn of(report: &Report) -> Vec<Bar> {
    let mut bars = Vec::new();
    for steps in [10, 3] {
        let at_64 = |own: &str, peer: &str, needed: f64| {
            let of = |engine: &str| report.steps_per_second(engine, steps, 64);
            let text = format!("{own} against {peer}, {steps} steps, 64 in flight, steps/s");
            Some(Bar { text, needed, measured: of(own)? / of(peer)? })
        };
        let at_best = |peer: &str| {
            let text = format!("{SQLITE} against {peer}, {steps} steps, each at its best, steps/s");
            let measured = report.best(SQLITE, steps)? / report.best(peer, steps)?;
            Some(Bar { text, needed: 8.0, measured })
        };
        bars.extend([
            at_64(POSTGRES, DBOS, 8.0),
            at_64(SQLITE, RESTATE, 15.0),
            at_64(SQLITE, DBOS, 15.0),
            at_best(RESTATE),
            at_best(DBOS),
        ]);
    }
    bars.push(report.latency());
    bars.into_iter().flatten().collect()
}

impl Report {
    fn chains(&self, steps: u32) -> impl Iterator<Item = (u32, &[Entry])> {
        self.tables.iter().filter_map(move |table| {
            let Workload::Chain { steps: of, in_flight } = table.workload else { return None };
            (of == steps).then_some((in_flight, table.entries.as_slice()))
        })
    }

    fn steps_per_second(&self, engine: &str, steps: u32, in_flight: u32) -> Option<f64> {
        let (_, entries) = self.chains(steps).find(|(number, _)| *number == in_flight)?;
        find(entries, engine)?.median(Sample::steps_per_second)
    }

    /// At the number of workflows in flight that suits it best, if there was a choice.
    fn best(&self, engine: &str, steps: u32) -> Option<f64> {
        if self.chains(steps).count() < 2 {
            return None;
        }
        let all = self
            .chains(steps)
            .filter_map(|(_, entries)| find(entries, engine)?.median(Sample::steps_per_second));
        all.max_by(f64::total_cmp)
    }

    /// How much longer the fastest peer takes for three steps.
    fn latency(&self) -> Option<Bar> {
        let (_, entries) = self.chains(3).find(|(in_flight, _)| *in_flight == 1)?;
        let peers = entries.iter().filter(|entry| !entry.engine.starts_with("Piton"));
        let p50 = |entry: &Entry| Some((entry.median(Sample::p50_us)?, entry.engine.clone()));
        let (peer, name) = peers.filter_map(p50).min_by(|(a, _), (b, _)| a.total_cmp(b))?;
        let own = find(entries, SQLITE)?.median(Sample::p50_us)?;
        let text =
            format!("p50 of the fastest peer ({name}) against {SQLITE}, 3 steps, one in flight");
        Some(Bar { text, needed: 2.0, measured: peer / own })
    }
}

fn find<'a>(entries: &'a [Entry], engine: &str) -> Option<&'a Entry> {
    entries.iter().find(|entry| entry.engine == engine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::against::report::Table;
    use crate::against::report::tests::entry;

    fn table(in_flight: u32, piton: u64, restate: u64) -> Table {
        let workload = Workload::Chain { steps: 10, in_flight };
        let entries = vec![entry(SQLITE, &[piton], None), entry(RESTATE, &[restate], None)];
        Table::new(workload, workload.plan(true), entries)
    }

    #[test]
    fn bars_are_computed_where_there_are_numbers() {
        let mut report = Report::new();
        report.put(table(64, 30_000, 1_000));
        report.put(table(256, 20_000, 5_000));
        let cells: Vec<String> = of(&report).iter().map(|bar| bar.cells().join(" | ")).collect();
        assert_eq!(
            cells,
            [
                "Piton, SQLite against Restate, 10 steps, 64 in flight, steps/s | 15x | 30.0x | met",
                "Piton, SQLite against Restate, 10 steps, each at its best, steps/s | 8x | 6.0x | missed: 0.75 of it",
            ]
        );
    }
}
