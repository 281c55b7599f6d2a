//! The chart for the docs: bars, one panel for each workload, each with a linear scale from zero.

use std::fmt::Write;

use super::report::{Entry, Report, Sample, Table};
use super::table::{millis, thousands};
use super::workload::Workload;

const PANEL_WIDTH: usize = 460;
const MARGIN: usize = 20;
const NAME_WIDTH: usize = 130;
/// What the longest bar leaves for its number.
const VALUE_WIDTH: usize = 140;
const BAR: usize = 16;
const ROW: usize = 22;
const TITLE: usize = 28;

const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#222}.title{font-weight:600;font-size:14px}\
.piton{fill:#c2410c}.peer{fill:#64748b}";

/// Panels side by side: one column for each number of steps, one for the rest.
pub(super) fn draw(report: &Report) -> String {
    let mut columns: Vec<Vec<&Table>> = Vec::new();
    for table in &report.tables {
        match columns.last_mut() {
            Some(column) if column_of(column[0]) == column_of(table) => column.push(table),
            _ => columns.push(vec![table]),
        }
    }
    let mut panels = String::new();
    let mut height = 0;
    for (number, column) in columns.iter().enumerate() {
        let mut top = MARGIN;
        for table in column {
            panel(&mut panels, table, MARGIN + number * (PANEL_WIDTH + MARGIN), top);
            top += TITLE + table.entries.len() * ROW + MARGIN;
        }
        height = height.max(top);
    }
    let width = MARGIN + columns.len() * (PANEL_WIDTH + MARGIN);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"Piton and other engines\">\n\
         <style>{STYLE}</style>\n<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n{panels}</svg>\n"
    )
}

fn column_of(table: &Table) -> Option<u32> {
    match table.workload {
        Workload::Chain { steps, .. } => Some(steps),
        Workload::Burst
        | Workload::WarmBurst
        | Workload::Event
        | Workload::Sleep
        | Workload::Idle => None,
    }
}

/// The one number that a bar stands for.
fn unit(workload: Workload) -> &'static str {
    match workload {
        Workload::Chain { .. } => "steps/s, more is better",
        Workload::Burst | Workload::WarmBurst => "ms to the last result, less is better",
        Workload::Event => "p50 in ms, less is better",
        Workload::Sleep => "ms to the last one resumed, less is better",
        Workload::Idle => "memory in MB, less is better",
    }
}

/// How long the bar is, and what is written beside it.
fn value(workload: Workload, entry: &Entry) -> Option<(f64, String)> {
    let elapsed_us = |sample: &Sample| sample.measured.seconds * 1e6;
    Some(match workload {
        Workload::Chain { .. } => {
            let steps = entry.median(Sample::steps_per_second)?;
            let p50 = millis(entry.median(Sample::p50_us)?);
            (steps, format!("{}, p50 {p50} ms", thousands(steps)))
        }
        Workload::Burst | Workload::WarmBurst => {
            let elapsed = entry.median(elapsed_us)?;
            (elapsed, millis(elapsed))
        }
        Workload::Event => {
            let p50 = entry.median(Sample::p50_us)?;
            (p50, millis(p50))
        }
        Workload::Sleep => {
            let elapsed = entry.median(elapsed_us)?;
            let asleep = thousands(entry.median(|sample| sample.measured.workflows as f64)?);
            (elapsed, format!("{}, {asleep} asleep", millis(elapsed)))
        }
        Workload::Idle => {
            let bytes = |sample: &Sample| {
                let server = sample.cost.server.map_or(0, |part| part.memory_bytes);
                (sample.cost.driver.memory_bytes + server) as f64
            };
            let megabytes = entry.median(bytes)? / 1e6;
            (megabytes, thousands(megabytes))
        }
    })
}

fn panel(svg: &mut String, table: &Table, left: usize, top: usize) {
    let workload = table.workload;
    text(svg, "title", left, top + 14, &format!("{workload}: {}", unit(workload)));
    let values: Vec<Option<(f64, String)>> =
        table.entries.iter().map(|entry| value(workload, entry)).collect();
    let largest =
        values.iter().flatten().map(|(value, _)| *value).fold(f64::MIN_POSITIVE, f64::max);
    for (number, (entry, value)) in table.entries.iter().zip(&values).enumerate() {
        let top = top + TITLE + number * ROW;
        let baseline = top + BAR - 4;
        text(svg, "name", left, baseline, &entry.engine);
        let start = left + NAME_WIDTH;
        let Some((value, label)) = value else {
            text(svg, "value", start, baseline, "no result");
            continue;
        };
        let longest = (PANEL_WIDTH - NAME_WIDTH - VALUE_WIDTH) as f64;
        let length = (value / largest * longest).max(1.0);
        let class = if entry.engine.starts_with("Piton") { "piton" } else { "peer" };
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{start}\" y=\"{top}\" width=\"{length:.1}\" height=\"{BAR}\"/>"
        );
        text(svg, "value", start + length as usize + 6, baseline, label);
    }
}

fn text(svg: &mut String, class: &str, x: usize, y: usize, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(svg, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{text}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::against::report::tests::report;

    #[test]
    fn every_engine_has_a_bar_in_proportion_or_says_why_not() {
        let svg = draw(&report());
        for part in [
            "10 steps, 64 in flight: steps/s, more is better",
            "Event to resumed step: p50 in ms, less is better",
            "200 asleep",
            r#"class="piton" x="150" y="48" width="190.0""#,
            r#"class="peer" x="150" y="70" width="3.2""#,
            "120,000, p50 1.23 ms",
            "absent &lt;&amp;&gt;",
            "no result",
        ] {
            assert!(svg.contains(part), "{part} is not in\n{svg}");
        }
    }
}
