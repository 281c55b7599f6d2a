//! Colours and tables.

use std::io::IsTerminal;

/// Colours on a terminal that wants them, nothing elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    on: bool,
}

impl Paint {
    #[cfg(test)]
    pub(crate) const PLAIN: Paint = Paint { on: false };

    /// For stdout. See <https://no-color.org>.
    pub(crate) fn for_stdout() -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { on: std::io::stdout().is_terminal() && !set("NO_COLOR") && !dumb }
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.on && !text.is_empty() && !code.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    /// A status of an instance or a step, or a level of a log line, in the colour of its urgency.
    pub(crate) fn status(self, text: &str) -> String {
        self.with(Self::colour(text), text)
    }

    fn colour(status: &str) -> &'static str {
        match status.trim() {
            "complete" | "completed" => "32",
            "errored" | "error" | "failed" => "31",
            "terminated" | "paused" | "warn" => "33",
            "active" | "waiting" | "running" | "pending" | "processing" => "36",
            _ => "",
        }
    }
}

/// How the cells of a column are painted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Column {
    Plain,
    Dim,
    Status,
}

/// Rows of safe text under a heading, with aligned columns. The last column is not padded.
pub(crate) fn table(paint: Paint, columns: &[(&str, Column)], rows: &[Vec<String>]) -> String {
    let width = |at: usize, heading: &str| {
        let cells = rows.iter().map(|row| row[at].chars().count());
        cells.chain([heading.chars().count()]).max().unwrap_or_default()
    };
    let widths: Vec<usize> =
        columns.iter().enumerate().map(|(at, (heading, _))| width(at, heading)).collect();
    let line = |cells: &[String], paint_cell: &dyn Fn(usize, &str) -> String| {
        let mut line = String::new();
        for (at, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            let padding = if at + 1 == cells.len() { 0 } else { width - cell.chars().count() + 2 };
            line.push_str(&paint_cell(at, cell));
            line.push_str(&" ".repeat(padding));
        }
        line.trim_end().to_owned()
    };
    let headings: Vec<String> = columns.iter().map(|(heading, _)| (*heading).to_owned()).collect();
    let mut lines = vec![line(&headings, &|_, cell| paint.bold(cell))];
    lines.extend(rows.iter().map(|row| {
        line(row, &|at, cell| match columns[at].1 {
            Column::Plain => cell.to_owned(),
            Column::Dim => paint.dim(cell),
            Column::Status => paint.status(cell),
        })
    }));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_characters() {
        let rows = [
            vec!["ü".into(), "active".into(), "x".into()],
            vec!["long id".into(), String::new(), "y".into()],
        ];
        let columns = [("ID", Column::Plain), ("STATUS", Column::Status), ("NOW", Column::Dim)];
        assert_eq!(
            table(Paint::PLAIN, &columns, &rows),
            "ID       STATUS  NOW\nü        active  x\nlong id          y"
        );
    }

    #[test]
    fn colours_go_around_the_text_and_not_into_the_width() {
        let paint = Paint { on: true };
        let rows = [vec!["active".into(), "x".into()]];
        let columns = [("STATUS", Column::Status), ("NOW", Column::Plain)];
        let painted = table(paint, &columns, &rows);
        assert_eq!(painted, "\x1b[1mSTATUS\x1b[0m  \x1b[1mNOW\x1b[0m\n\x1b[36mactive\x1b[0m  x");
    }
}
