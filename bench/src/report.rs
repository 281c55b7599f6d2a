//! The results: what was measured, what it must be and should be, as a table and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

/// The result of one workload.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) workload: &'static str,
    pub(crate) store: &'static str,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    /// The same by bare SQLite in the same run, where there is such a thing.
    pub(crate) ceiling: Option<f64>,
    /// `value / ceiling`.
    pub(crate) ratio: Option<f64>,
    /// About the ratio if there is one, otherwise about the value.
    #[serde(flatten)]
    pub(crate) goal: Option<Goal>,
    /// What else the workload measured.
    pub(crate) also: Vec<Figure>,
    pub(crate) note: String,
}

/// A number beside the main one.
#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    #[serde(flatten)]
    pub(crate) goal: Option<Goal>,
}

/// What a number must be, and what we aim for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Goal {
    pub(crate) must: f64,
    pub(crate) aim: f64,
    better: Better,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Better {
    More,
    Less,
}

/// How a number stands to its goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Aim,
    Must,
    Missed,
}

impl Goal {
    pub(crate) fn at_least(must: f64, aim: f64) -> Goal {
        Goal { must, aim, better: Better::More }
    }

    pub(crate) fn at_most(must: f64, aim: f64) -> Goal {
        Goal { must, aim, better: Better::Less }
    }

    fn judge(self, value: f64) -> Verdict {
        let reaches = |bound: f64| match self.better {
            Better::More => value >= bound,
            Better::Less => value <= bound,
        };
        match (reaches(self.aim), reaches(self.must)) {
            (true, _) => Verdict::Aim,
            (false, true) => Verdict::Must,
            (false, false) => Verdict::Missed,
        }
    }
}

impl Verdict {
    fn mark(self) -> &'static str {
        match self {
            Verdict::Aim => "aim met",
            Verdict::Must => "must met",
            Verdict::Missed => "MISSED",
        }
    }
}

impl Row {
    /// The verdicts on the row's number and on those beside it.
    fn verdicts(&self) -> impl Iterator<Item = Verdict> {
        let judged = self.ratio.unwrap_or(self.value);
        let main = self.goal.map(|goal| goal.judge(judged));
        let also = self.also.iter().filter_map(|figure| Some(figure.goal?.judge(figure.value)));
        main.into_iter().chain(also)
    }

    /// Whether something falls short of what it must be.
    pub(crate) fn is_missed(&self) -> bool {
        self.verdicts().any(|verdict| verdict == Verdict::Missed)
    }
}

/// The rows as JSON.
pub(crate) fn json(rows: &[Row]) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(rows)? + "\n")
}

const HEAD: [&str; 7] = ["workload", "value", "ceiling", "ratio", "must", "aim", ""];

/// The rows as an aligned table, with what else was measured below each, and the notes at the end.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut lines: Vec<[String; 7]> = vec![HEAD.map(str::to_owned)];
    for row in rows {
        let judged = row.ratio.unwrap_or(row.value);
        let unit = if row.ratio.is_some() { "" } else { row.unit };
        let [must, aim, mark] = goal_cells(row.goal, judged, unit);
        let name = format!("{} ({})", row.workload, row.store);
        let ceiling = row.ceiling.map_or(String::new(), |ceiling| with_unit(ceiling, row.unit));
        let ratio = row.ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
        lines.push([name, with_unit(row.value, row.unit), ceiling, ratio, must, aim, mark]);
        for Figure { name, value, unit, goal } in &row.also {
            let [must, aim, mark] = goal_cells(*goal, *value, unit);
            let (value, none) = (with_unit(*value, unit), String::new());
            lines.push([format!("  {name}"), value, none.clone(), none, must, aim, mark]);
        }
    }
    let mut table = align(&lines);
    for row in rows.iter().filter(|row| !row.note.is_empty()) {
        let _ = writeln!(table, "{}: {}", row.workload, row.note);
    }
    table
}

fn goal_cells(goal: Option<Goal>, value: f64, unit: &str) -> [String; 3] {
    let Some(goal) = goal else { return Default::default() };
    let sign = match goal.better {
        Better::More => ">=",
        Better::Less => "<=",
    };
    let must = format!("{sign} {}", with_unit(goal.must, unit));
    [must, with_unit(goal.aim, unit), goal.judge(value).mark().to_owned()]
}

/// The first and the last column to the left, numbers to the right.
fn align(lines: &[[String; 7]]) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: [usize; 7] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let mut table = String::new();
    for line in lines {
        let cells = line.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 || column == 6 {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        let cells: Vec<String> = cells.collect();
        let _ = writeln!(table, "{}", cells.join("  ").trim_end());
    }
    table
}

fn with_unit(value: f64, unit: &str) -> String {
    let number = number(value);
    if unit.is_empty() { number } else { format!("{number} {unit}") }
}

/// Three digits that matter, and thousands set apart.
fn number(value: f64) -> String {
    let size = value.abs();
    if size >= 1_000.0 {
        return thousands(value);
    }
    if size >= 100.0 || value == value.trunc() && size >= 10.0 {
        format!("{value:.0}")
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && digit.is_ascii_digit() && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let throughput = Row {
            workload: "throughput_256",
            store: "sqlite",
            value: 61_234.0,
            unit: "steps/s",
            ceiling: Some(150_000.0),
            ratio: Some(0.408),
            goal: Some(Goal::at_least(0.35, 0.60)),
            also: Vec::new(),
            note: String::new(),
        };
        let start = Figure {
            name: "worst start",
            value: 6.5,
            unit: "s",
            goal: Some(Goal::at_most(5.0, 1.0)),
        };
        let sleepers = Row {
            workload: "sleepers_100k",
            store: "sqlite",
            value: 8.25,
            unit: "s",
            ceiling: None,
            ratio: None,
            goal: Some(Goal::at_most(60.0, 10.0)),
            also: vec![start],
            note: "all woke".to_owned(),
        };
        vec![throughput, sleepers]
    }

    #[test]
    fn the_table_is_aligned_and_marks_what_is_missed() {
        let expected = "\
workload                          value          ceiling  ratio     must   aim
throughput_256 (sqlite)  61,234 steps/s  150,000 steps/s   0.41  >= 0.35  0.60  must met
sleepers_100k (sqlite)           8.25 s                          <= 60 s  10 s  aim met
  worst start                    6.50 s                        <= 5.00 s  1.00 s  MISSED
sleepers_100k: all woke
";
        let table = table(&rows());
        let words = |text: &str| -> Vec<String> {
            text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
        };
        assert_eq!(words(&table), words(expected));
        let marks: Vec<usize> = ["must met", "aim met", "MISSED"]
            .iter()
            .filter_map(|mark| table.lines().find_map(|line| line.find(mark)))
            .collect();
        assert!(marks.windows(2).all(|pair| pair[0] == pair[1]), "not aligned:\n{table}");
    }

    #[test]
    fn one_missed_figure_makes_a_row_missed() {
        let missed: Vec<bool> = rows().iter().map(Row::is_missed).collect();
        assert_eq!(missed, [false, true]);
    }

    #[test]
    fn a_row_has_the_promised_keys_in_json() {
        let rows: serde_json::Value = serde_json::from_str(&json(&rows()).unwrap()).unwrap();
        for key in ["workload", "store", "value", "unit", "ceiling", "ratio"] {
            assert!(rows[1].get(key).is_some(), "{key} is missing in {rows}");
        }
        assert_eq!(rows[0]["must"], 0.35);
        assert!(rows[1]["ceiling"].is_null());
    }

    #[test]
    fn numbers_show_three_digits() {
        let shown = [0.4567, 4.567, 45.67, 456.7, 4567.8, 1_234_567.0, 60.0].map(number);
        assert_eq!(shown, ["0.46", "4.57", "45.7", "457", "4,568", "1,234,567", "60"]);
    }
}
