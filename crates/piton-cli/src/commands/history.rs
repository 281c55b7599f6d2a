//! `instances history`: gathers the pages of a run, for [`super::timeline`] to draw.

use crate::api::{Event, HistoryPage, Instance, LogLine, PAGE_SIZE_MAX, Query, Step};
use crate::args::HistoryArgs;
use crate::clock;
use crate::failure::Result;
use crate::session::Session;
use crate::time::Moment;

use super::timeline;

/// One run, as far as it was read.
#[derive(Default)]
pub(crate) struct Run {
    pub(crate) number: u32,
    pub(crate) steps: Vec<Step>,
    pub(crate) events: Vec<Event>,
    pub(crate) logs: Vec<LogLine>,
    /// Set if there is more: up to here nothing is missing.
    pub(crate) complete_until: Option<Moment>,
}

pub(crate) fn history(session: &Session, args: &HistoryArgs) -> Result<()> {
    let instance = session.client.instance(&args.target)?;
    let run = gather(session, args)?;
    let drawn = timeline::draw(&instance, &run, session.paint, clock::now(), args.full);
    session.print(&drawn.text)?;
    if run.complete_until.is_some() {
        session.note("there is more: --all shows everything");
    }
    if drawn.cut {
        session.note("long values are cut at `…`: --full shows them whole");
    }
    if !args.include_logs && has_more_to_say(&instance) {
        session.note("with log lines: --include-logs");
    }
    Ok(())
}

fn has_more_to_say(instance: &Instance) -> bool {
    instance.details.status == "errored"
}

/// Reads the first page of everything, or all pages. The three kinds end at different pages.
fn gather(session: &Session, args: &HistoryArgs) -> Result<Run> {
    let mut run = Run::default();
    let mut query = first_query(args);
    let (mut steps_left, mut events_left, mut logs_left) = (true, true, args.include_logs);
    loop {
        let page = session.client.history(&args.target, query)?;
        run.number = page.run_number;
        let next = next_query(args, &page);
        // What has come to its end starts anew without a cursor: it must not be taken twice.
        if steps_left {
            run.steps.extend(page.steps);
        }
        if events_left {
            run.events.extend(page.events);
        }
        if logs_left {
            run.logs.extend(page.logs);
        }
        steps_left &= page.steps_has_next_page;
        events_left &= page.events_has_next_page;
        logs_left &= page.logs_has_next_page;
        if !args.all || !(steps_left || events_left || logs_left) {
            run.complete_until = horizon(&run, steps_left, events_left, logs_left);
            return Ok(run);
        }
        query = next;
    }
}

/// The newest moment of the kind that was cut off first: beyond it the timeline would have holes.
///
/// Not the moment of its last record: records have an order of their own, and clocks may step back between two.
fn horizon(run: &Run, steps: bool, events: bool, logs: bool) -> Option<Moment> {
    let step = run.steps.iter().filter(|_| steps).filter_map(|step| step.started_at).max();
    let event = run.events.iter().filter(|_| events).map(|event| event.created_at).max();
    let log = run.logs.iter().filter(|_| logs).map(|line| line.created_at).max();
    step.into_iter().chain(event).chain(log).min()
}

fn first_query(args: &HistoryArgs) -> Query {
    let query = Query::default()
        .maybe("runNumber", args.logs.run.map(|run| run.to_string()).as_deref())
        .with("pageSize", &PAGE_SIZE_MAX.to_string());
    if !args.include_logs {
        return query;
    }
    query
        .with("includeLogs", "true")
        .maybe("logLevel", args.logs.log_level.as_deref())
        .maybe("logCategory", args.logs.log_category.as_deref())
}

fn next_query(args: &HistoryArgs, page: &HistoryPage) -> Query {
    let logs_cursor = page.logs_cursor.as_deref().filter(|_| args.include_logs);
    first_query(args)
        .maybe("stepsCursor", page.steps_cursor.as_deref())
        .maybe("eventsCursor", page.events_cursor.as_deref())
        .maybe("logsCursor", logs_cursor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_steps_back_hides_no_step_that_was_read() {
        let step = |ms: i64| -> Step {
            let at = Moment(ms).iso();
            let json = format!(
                r#"{{"name": "s", "type": "do", "status": "completed", "attempts": 1, "startedAt": "{at}"}}"#
            );
            serde_json::from_str(&json).expect("a step")
        };
        let run = Run { steps: vec![step(1), step(3), step(2)], ..Run::default() };
        assert_eq!(horizon(&run, true, false, false), Some(Moment(3)));
        assert_eq!(horizon(&run, false, false, false), None);
    }
}
