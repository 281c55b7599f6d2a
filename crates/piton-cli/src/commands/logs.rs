//! `instances logs`, and the tail of a log that `watch` shows as well.

use std::time::Duration;

use crate::api::{LogLine, PAGE_SIZE_MAX, Query};
use crate::args::{LogFilter, LogsArgs, Target};
use crate::clock;
use crate::failure::Result;
use crate::paint::Paint;
use crate::session::Session;
use crate::text::{json_line, safe, short};

/// How often to look for new lines.
pub(crate) const FOLLOW_POLL: Duration = Duration::from_secs(1);

pub(crate) fn logs(session: &Session, args: &LogsArgs) -> Result<()> {
    let mut tail = Tail::new(&args.target, args.filter.clone());
    let mut any = false;
    let mut print = |line: &LogLine| {
        any = true;
        session.print(&log_line(line, session.paint, args.full))
    };
    if args.follow {
        return follow(session, args, &mut tail, &mut print);
    }
    while tail.page(session, &mut print)? {}
    if !any {
        session.note("there are no such log lines");
    }
    Ok(())
}

fn follow(
    session: &Session,
    args: &LogsArgs,
    tail: &mut Tail<'_>,
    print: &mut impl FnMut(&LogLine) -> Result<()>,
) -> Result<()> {
    // The first call fails at once if there is no such server or instance; only then it is worth being patient.
    let mut instance = session.client.instance(&args.target)?;
    let mut run = args.filter.run.unwrap_or(instance.meta.run_number);
    tail.start_run(run);
    loop {
        // Lines are read after the status: those of a run that had ended by then are all there.
        while tail.page(session, print)? {}
        let current = instance.meta.run_number;
        if run < current && args.filter.run.is_none() {
            session.note(&format!("restarted: this is run {current}"));
            run = current;
            tail.start_run(run);
            continue;
        }
        if run < current || instance.details.ended() {
            session.note(&format!("the instance is {}", safe(&instance.details.status)));
            return Ok(());
        }
        clock::wait(FOLLOW_POLL);
        instance = session.patiently(|| session.client.instance(&args.target))?;
    }
}

/// Reads a log page by page; each line is seen once, however often the connection breaks.
pub(crate) struct Tail<'a> {
    target: &'a Target,
    pub(crate) filter: LogFilter,
    /// Where the last page that arrived whole has ended.
    cursor: Option<String>,
    /// Whether a page has arrived: before that, an error is the caller's to see.
    answered: bool,
}

impl<'a> Tail<'a> {
    pub(crate) fn new(target: &'a Target, filter: LogFilter) -> Self {
        Self { target, filter, cursor: None, answered: false }
    }

    /// Starts with the log of another run.
    pub(crate) fn start_run(&mut self, run: u32) {
        self.filter.run = Some(run);
        self.cursor = None;
    }

    /// Sees the lines of the next page. Returns whether there are more.
    pub(crate) fn page(
        &mut self,
        session: &Session,
        see: &mut impl FnMut(&LogLine) -> Result<()>,
    ) -> Result<bool> {
        let ask = || session.client.history(self.target, self.query());
        let page = if self.answered { session.patiently(ask)? } else { ask()? };
        self.answered = true;
        for line in &page.logs {
            see(line)?;
        }
        // An empty log has no cursor yet.
        self.cursor = page.logs_cursor.or(self.cursor.take());
        Ok(page.logs_has_next_page)
    }

    fn query(&self) -> Query {
        Query::default()
            .maybe("runNumber", self.filter.run.map(|run| run.to_string()).as_deref())
            .with("includeLogs", "true")
            .with("pageSize", &PAGE_SIZE_MAX.to_string())
            .maybe("logLevel", self.filter.log_level.as_deref())
            .maybe("logCategory", self.filter.log_category.as_deref())
            .maybe("logsCursor", self.cursor.as_deref())
    }
}

/// `2026-11-15 12:00:00.000  info   orders  approved by Ada  {"n": 1}  (charge card 2)  replay`.
pub(crate) fn log_line(line: &LogLine, paint: Paint, full: bool) -> String {
    let level = format!("{:<5}", safe(&line.level));
    let time = paint.dim(&line.created_at.with_ms());
    format!("{time}  {}  {}", paint.status(&level), log_text(line, paint, full))
}

/// The line without time and level.
pub(crate) fn log_text(line: &LogLine, paint: Paint, full: bool) -> String {
    let mut parts = vec![format!("[{}] {}", safe(&line.category), safe(&line.message))];
    if let Some(data) = &line.data {
        let data = json_line(data.get());
        parts.push(if full { data } else { short(&data) });
    }
    if let Some(step) = &line.step_key {
        let attempt = line.attempt.map(|n| format!(", attempt {n}")).unwrap_or_default();
        parts.push(paint.dim(&format!("({}{attempt})", safe(step))));
    }
    if line.is_replay {
        parts.push(paint.dim("replay"));
    }
    parts.join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_all_it_has() {
        let json = r#"{"id": "1", "runNumber": 0, "stepKey": "charge", "attempt": 2, "level": "warn", "category": "orders",
            "message": "slow\u001b[31m", "data": {"ms":5}, "isReplay": true, "createdAt": "2026-11-15T12:00:00.007Z"}"#;
        let line: LogLine = serde_json::from_str(json).expect("a line");
        assert_eq!(
            log_line(&line, Paint::PLAIN, false),
            "2026-11-15 12:00:00.007  warn   [orders] slow\\u{1b}[31m  {\"ms\": 5}  (charge, attempt 2)  replay"
        );
    }
}
