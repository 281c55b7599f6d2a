//! A run as one timeline: steps, events and log lines in the order of time, with the gaps between them.

use crate::api::{Event, Instance, Step};
use crate::paint::Paint;
use crate::sentences::{attempts, problem};
use crate::text::{json_line, safe, short};
use crate::time::{Moment, words};

use super::history::Run;
use super::logs::log_text;

/// Shorter ones are not worth a line.
const GAP_MIN_MS: i64 = 1_000;

pub(crate) struct Drawn {
    pub(crate) text: String,
    /// Whether a value was too long for its line.
    pub(crate) cut: bool,
}

/// A line of the timeline.
struct Entry {
    at: Moment,
    /// `do`, `sleep`, `wait`, `event`, `log`.
    kind: String,
    status: String,
    text: String,
}

/// A stretch of time in which it is known what the run was waiting for.
struct Wait {
    from: Moment,
    to: Moment,
    what: String,
    /// A body at work is no gap at all.
    busy: bool,
}

pub(crate) fn draw(instance: &Instance, run: &Run, paint: Paint, now: Moment, full: bool) -> Drawn {
    let mut writer = Writer { paint, full, cut: false };
    let mut entries: Vec<Entry> = Vec::new();
    entries.extend(run.steps.iter().map(|step| writer.step(step)));
    entries.extend(run.events.iter().map(|event| writer.event(event)));
    entries.extend(run.logs.iter().map(|line| Entry {
        at: line.created_at,
        kind: "log".to_owned(),
        status: safe(&line.level),
        text: writer.note_cut(log_text(line, paint, full)),
    }));
    let is_current = instance.meta.run_number == run.number;
    if let Some(until) = run.complete_until {
        entries.retain(|entry| entry.at <= until);
    }
    // Stable: what happened in the same millisecond stays in the order of its kind.
    entries.sort_by_key(|entry| entry.at);
    // The end comes last, whatever the clocks say: a line may be stamped a moment after it.
    if is_current && run.complete_until.is_none() {
        entries.extend(writer.end(instance));
    }
    let waits: Vec<Wait> = run.steps.iter().filter_map(|step| wait_of(step, now)).collect();
    let mut lines = vec![head(instance, run, paint)];
    lines.extend(body(&entries, &waits, paint));
    if entries.is_empty() {
        lines.push("  nothing is recorded yet".to_owned());
    }
    if let Some(gap) = last_gap(instance, &entries, &waits, now).filter(|_| is_current) {
        lines.push(gap_line(paint, &gap));
    }
    Drawn { text: lines.join("\n"), cut: writer.cut }
}

fn head(instance: &Instance, run: &Run, paint: Paint) -> String {
    let Instance { id, details, meta } = instance;
    let which = match (meta.run_number, run.number == meta.run_number) {
        (0, _) => String::new(),
        (_, true) => format!(", run {}", run.number),
        (current, false) => format!(", run {} of 0 to {current}", run.number),
    };
    // The status is that of the current run.
    let status = match run.number == meta.run_number {
        true => format!("{}  ", paint.status(&safe(&details.status))),
        false => String::new(),
    };
    let (id, created) = (paint.bold(&safe(id)), meta.created_at.date_and_time());
    format!("{id}  {status}{}{which}, created {created} UTC", safe(&meta.workflow_name))
}

fn body(entries: &[Entry], waits: &[Wait], paint: Paint) -> Vec<String> {
    let width = |text: fn(&Entry) -> &str| {
        entries.iter().map(|entry| text(entry).chars().count()).max().unwrap_or_default()
    };
    let (kinds, statuses) = (width(|entry| &entry.kind), width(|entry| &entry.status));
    let mut lines = Vec::new();
    let mut last: Option<Moment> = None;
    for entry in entries {
        if let Some(gap) = last.and_then(|last| gap(last, entry.at, waits)) {
            lines.push(gap_line(paint, &gap));
        }
        last = Some(entry.at);
        let time = paint.dim(&entry.at.with_ms());
        let status = paint.status(&format!("{:<statuses$}", entry.status));
        lines.push(
            format!("  {time}  {:<kinds$}  {status}  {}", entry.kind, entry.text)
                .trim_end()
                .to_owned(),
        );
    }
    lines
}

fn gap_line(paint: Paint, gap: &str) -> String {
    paint.dim(&format!("{:>25}  {gap}", "┆"))
}

/// What to say about the time between two entries, if it is long enough to be wondered about.
fn gap(from: Moment, to: Moment, waits: &[Wait]) -> Option<String> {
    let covers = |wait: &&Wait| wait.from <= from && wait.to.0 + GAP_MIN_MS > to.0;
    if let Some(wait) = waits.iter().find(|wait| covers(wait)) {
        let long = to.0 - from.0 >= GAP_MIN_MS && !wait.busy;
        return long.then(|| format!("{} {}", words(to.0 - from.0), wait.what));
    }
    // What ended in between ended the quiet: only the time after it is a gap.
    let ended = waits.iter().map(|wait| wait.to).filter(|end| *end > from && *end < to).max();
    let quiet = to.0 - ended.unwrap_or(from).0;
    (quiet >= GAP_MIN_MS).then(|| format!("{} with nothing recorded", words(quiet)))
}

/// From the last entry of a run that goes on, to now.
fn last_gap(instance: &Instance, entries: &[Entry], waits: &[Wait], now: Moment) -> Option<String> {
    let last = entries.last().filter(|_| !instance.details.ended())?;
    let since = gap(last.at, now, waits)?;
    Some(format!("{since}, until now"))
}

/// The time that a step explains.
fn wait_of(step: &Step, now: Moment) -> Option<Wait> {
    let (from, updated) = (step.started_at?, step.updated_at?);
    let name = safe(&step.name);
    let to = if step.status == "waiting" { now } else { updated };
    Some(match step.step_type.as_str() {
        "sleep" => Wait { from, to, what: format!("asleep in `{name}`"), busy: false },
        "waitForEvent" => {
            let event = safe(step.wait_event_type.as_deref().unwrap_or("?"));
            Wait { from, to, what: format!("waiting for event `{event}`"), busy: false }
        }
        _ if step.attempts > 1 || step.status == "waiting" => {
            let from = step.created_at.map_or(from, |created| created.min(from));
            Wait { from, to, what: format!("between attempts at `{name}`"), busy: false }
        }
        _ => Wait { from, to, what: String::new(), busy: true },
    })
}

/// Turns records into entries.
struct Writer {
    paint: Paint,
    full: bool,
    cut: bool,
}

impl Writer {
    fn step(&mut self, step: &Step) -> Entry {
        let at = step.started_at.or(step.created_at).unwrap_or(Moment(0));
        let mut parts = vec![safe(&step.name)];
        let took = step.updated_at.map(|end| words(end.0 - at.0));
        let kind = match step.step_type.as_str() {
            "do" => {
                if step.attempts > 1 || step.status != "completed" {
                    parts.push(format!("attempt {}", attempts(step, 0)));
                }
                parts.extend(took);
                "do"
            }
            "sleep" => {
                let time = step.wake_at.map(|wake| words(wake.0 - at.0)).or(took);
                parts.extend(time.map(|time| format!("for {time}")));
                "sleep"
            }
            "waitForEvent" => {
                let event = step.wait_event_type.as_deref().unwrap_or("?");
                parts.push(format!("event `{}`", safe(event)));
                match step.status.as_str() {
                    "waiting" => parts.extend(
                        step.wake_at.map(|wake| format!("until {} UTC", wake.date_and_time())),
                    ),
                    _ => parts.extend(took.map(|took| format!("after {took}"))),
                }
                "wait"
            }
            other => other,
        };
        if let Some(error) = &step.error {
            parts.push(problem(error));
        } else if let Some(result) = step.result.as_ref().filter(|_| kind == "do") {
            parts.push(self.value(result.get()));
        }
        let text = parts.join("  ");
        Entry { at, kind: safe(kind), status: safe(&step.status), text }
    }

    fn event(&mut self, event: &Event) -> Entry {
        let mut parts = vec![safe(&event.event_type)];
        parts.extend(event.payload.as_ref().map(|payload| self.value(payload.get())));
        let status = match &event.consumed_by_step_key {
            Some(step) => {
                parts.push(self.paint.dim(&format!("(taken by {})", safe(step))));
                "taken"
            }
            None => "kept",
        };
        let (kind, status) = ("event".to_owned(), status.to_owned());
        Entry { at: event.created_at, kind, status, text: parts.join("  ") }
    }

    fn end(&mut self, instance: &Instance) -> Option<Entry> {
        let details = &instance.details;
        let at = instance.meta.completed_at.filter(|_| details.ended())?;
        let text = match (&details.error, &details.output) {
            (Some(error), _) => problem(error),
            (None, Some(output)) => self.value(output.get()),
            (None, None) => String::new(),
        };
        Some(Entry { at, kind: "end".to_owned(), status: safe(&details.status), text })
    }

    fn value(&mut self, raw: &str) -> String {
        let line = json_line(raw);
        let shown = if self.full { line } else { short(&line) };
        self.note_cut(shown)
    }

    fn note_cut(&mut self, text: String) -> String {
        self.cut |= !self.full && text.contains('…');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> String {
        Moment(ms).iso()
    }

    fn step(name: &str, step_type: &str, status: &str, from: i64, to: i64, rest: &str) -> Step {
        let json = format!(
            r#"{{"name": "{name}", "type": "{step_type}", "status": "{status}", "attempts": 1, "maxAttempts": 6,
                "createdAt": "{from}", "startedAt": "{from}", "updatedAt": "{to}"{rest}}}"#,
            from = at(from),
            to = at(to)
        );
        serde_json::from_str(&json).expect("a step")
    }

    fn instance(status: &str, completed: Option<i64>) -> Instance {
        let completed = completed.map_or("null".to_owned(), |ms| format!("\"{}\"", at(ms)));
        let json = format!(
            r#"{{"id": "i", "details": {{"status": "{status}"}}, "meta": {{"workflowName": "w", "runNumber": 0,
                "params": null, "createdAt": "{0}", "updatedAt": "{0}", "startedAt": "{0}",
                "completedAt": {completed}}}}}"#,
            at(0)
        );
        serde_json::from_str(&json).expect("an instance")
    }

    fn event(json: &str) -> Event {
        serde_json::from_str(json).expect("an event")
    }

    #[test]
    fn gaps_are_visible_and_explained_where_possible() {
        let wait = r#", "waitEventType": "approved", "wakeAt": "1970-01-02T00:00:00.000Z""#;
        let run = Run {
            steps: vec![
                step("reserve", "do", "completed", 5, 25, r#", "result": "ok""#),
                step("approval", "waitForEvent", "completed", 25, 7_200_010, wait),
                step("charge", "do", "completed", 7_205_010, 7_208_010, ""),
                step("ship", "do", "completed", 7_208_011, 7_208_012, ""),
            ],
            events: vec![event(
                r#"{"type": "approved", "payload": {"by":"Ada"}, "createdAt": "1970-01-01T02:00:00.000Z", "consumedByStepKey": "approval"}"#,
            )],
            ..Run::default()
        };
        let drawn = draw(
            &instance("complete", Some(7_208_013)),
            &run,
            Paint::PLAIN,
            Moment(9_000_000),
            false,
        );
        let expected = "\
i  complete  w, created 1970-01-01 00:00:00 UTC
  1970-01-01 00:00:00.005  do     completed  reserve  20 ms  \"ok\"
  1970-01-01 00:00:00.025  wait   completed  approval  event `approved`  after 1 h 59 min
                        ┆  1 h 59 min waiting for event `approved`
  1970-01-01 02:00:00.000  event  taken      approved  {\"by\": \"Ada\"}  (taken by approval)
                        ┆  5 s with nothing recorded
  1970-01-01 02:00:05.010  do     completed  charge  3 s
  1970-01-01 02:00:08.011  do     completed  ship  1 ms
  1970-01-01 02:00:08.013  end    complete";
        assert_eq!(drawn.text, expected);
        assert!(!drawn.cut);
    }

    #[test]
    fn a_run_that_goes_on_ends_with_what_it_waits_for() {
        let run = Run {
            steps: vec![step(
                "nap",
                "sleep",
                "waiting",
                0,
                0,
                r#", "wakeAt": "1970-01-02T00:00:00.000Z""#,
            )],
            ..Run::default()
        };
        let drawn = draw(&instance("waiting", None), &run, Paint::PLAIN, Moment(60_000), false);
        let lines: Vec<&str> = drawn.text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "  1970-01-01 00:00:00.000  sleep  waiting  nap  for 1 day",
                "                        ┆  1 min asleep in `nap`, until now",
            ]
        );
    }

    #[test]
    fn long_values_are_cut_unless_all_is_wanted() {
        let result = format!(r#", "result": "{}""#, "x".repeat(200));
        let run =
            Run { steps: vec![step("s", "do", "completed", 0, 1, &result)], ..Run::default() };
        let instance = instance("active", None);
        let drawn = draw(&instance, &run, Paint::PLAIN, Moment(0), false);
        assert!(drawn.cut && drawn.text.ends_with('…'), "{}", drawn.text);
        let drawn = draw(&instance, &run, Paint::PLAIN, Moment(0), true);
        assert!(!drawn.cut && drawn.text.ends_with("xx\""), "{}", drawn.text);
    }
}
