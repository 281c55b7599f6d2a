//! The chart for the docs: bars of steps per second, one panel for each workload, each with a linear scale from zero.

use std::fmt::Write;

use super::report::{Entry, Report, Table, millis, thousands};

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

/// Panels side by side, one column for each number of steps.
pub(super) fn draw(report: &Report) -> String {
    let mut columns: Vec<Vec<&Table>> = Vec::new();
    for table in &report.tables {
        match columns.last_mut() {
            Some(column) if column[0].workload.steps == table.workload.steps => column.push(table),
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
         viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"Steps per second\">\n\
         <style>{STYLE}</style>\n<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n{panels}</svg>\n"
    )
}

fn panel(svg: &mut String, table: &Table, left: usize, top: usize) {
    let title = format!("{}: steps/s", table.workload);
    text(svg, "title", left, top + 14, &title);
    let fastest = table.entries.iter().filter_map(Entry::steps_per_second).fold(1.0, f64::max);
    for (number, entry) in table.entries.iter().enumerate() {
        let top = top + TITLE + number * ROW;
        let baseline = top + BAR - 4;
        text(svg, "name", left, baseline, &entry.engine);
        let start = left + NAME_WIDTH;
        let Some(steps) = entry.steps_per_second() else {
            text(svg, "value", start, baseline, "not measured");
            continue;
        };
        let longest = (PANEL_WIDTH - NAME_WIDTH - VALUE_WIDTH) as f64;
        let length = (steps / fastest * longest).max(1.0);
        let class = if entry.engine.starts_with("Piton") { "piton" } else { "peer" };
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{start}\" y=\"{top}\" width=\"{length:.1}\" height=\"{BAR}\"/>"
        );
        let p50 =
            entry.p50_us().map_or_else(String::new, |p50| format!(", p50 {} ms", millis(p50)));
        let value = format!("{}{p50}", thousands(steps));
        text(svg, "value", start + length as usize + 6, baseline, &value);
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
            "10 steps, 64 in flight: steps/s",
            r#"class="piton" x="150" y="48" width="190.0""#,
            r#"class="peer" x="150" y="70" width="3.2""#,
            "120,000, p50 1.23 ms",
            "absent &lt;&amp;&gt;",
            "not measured",
        ] {
            assert!(svg.contains(part), "{part} is not in\n{svg}");
        }
    }
}
