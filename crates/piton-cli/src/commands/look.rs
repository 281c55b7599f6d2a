//! `instances get` and `instances result`.

use std::time::Duration;

use serde_json::value::RawValue;

use crate::api::{Instance, Item, Step};
use crate::args::{GetArgs, ResultArgs, Target};
use crate::clock;
use crate::failure::{Failure, Result};
use crate::paint::Paint;
use crate::sentences::{attempts, doing, problem};
use crate::session::Session;
use crate::text::{json_line, json_pretty, safe, shell_quoted, short};
use crate::time::{Moment, words};

/// How long one request waits for a result; the server allows a minute.
const WAIT_PIECE: Duration = Duration::from_secs(20);

pub(crate) fn get(session: &Session, args: &GetArgs) -> Result<()> {
    let instance = session.client.instance(&args.target)?;
    let now = clock::now();
    session.print(&summary(&instance, session.paint, now))?;
    if args.full {
        session.print(&in_full(&instance, now))?;
    }
    if let Some(next) = next(session, &instance, &args.target) {
        session.note(&next);
    }
    Ok(())
}

/// The sheet of facts about an instance.
pub(crate) fn summary(instance: &Instance, paint: Paint, now: Moment) -> String {
    let Instance { id, details, meta } = instance;
    let mut lines =
        vec![format!("{}  {}", paint.bold(&safe(id)), paint.status(&safe(&details.status)))];
    let mut fact = |name: &str, value: String| {
        lines.push(format!("  {}  {value}", paint.dim(&format!("{name:<9}"))));
    };
    fact("workflow", safe(&meta.workflow_name));
    if meta.run_number > 0 {
        fact("run", format!("{} (restarted; earlier runs: history --run 0)", meta.run_number));
    }
    match (&details.error, &details.output) {
        (Some(error), _) => fact("error", problem(error)),
        (None, Some(output)) => fact("output", short(&json_line(output.get()))),
        (None, None) if details.ended() => {}
        (None, None) => fact("now", doing(instance, now)),
    }
    fact("created", meta.created_at.both(now));
    match meta.started_at {
        Some(at) => fact("started", at.both(now)),
        None => fact("started", "not yet".to_owned()),
    }
    match (meta.completed_at, meta.started_at) {
        (Some(ended), Some(started)) => {
            fact("ended", format!("{}, after {}", ended.both(now), words(ended.0 - started.0)));
        }
        (Some(ended), None) => fact("ended", ended.both(now)),
        (None, _) => fact("updated", meta.updated_at.both(now)),
    }
    lines.join("\n")
}

fn in_full(instance: &Instance, now: Moment) -> String {
    let mut parts = vec![titled_json("params", instance.meta.params.as_deref())];
    if instance.details.status == "complete" {
        parts.push(titled_json("output", instance.details.output.as_deref()));
    }
    if let Some(step) = &instance.meta.current_step {
        parts.push(step_in_full(step, now));
    }
    parts.join("\n")
}

fn titled_json(title: &str, value: Option<&RawValue>) -> String {
    format!("  {title}\n{}", json_pretty(value.map_or("null", RawValue::get), "    "))
}

fn step_in_full(step: &Step, now: Moment) -> String {
    let mut lines = vec!["  current step".to_owned()];
    let mut fact = |name: &str, value: Option<String>| {
        lines.extend(value.map(|value| format!("    {name:<11}{value}")));
    };
    fact("name", Some(safe(&step.name)));
    fact("type", Some(safe(&step.step_type)));
    fact("status", Some(safe(&step.status)));
    fact("attempt", (step.step_type == "do").then(|| attempts(step, 0)));
    fact("timeout", step.timeout_ms.map(words));
    fact("event", step.wait_event_type.as_deref().map(safe));
    fact("wakes", step.wake_at.map(|at| at.both(now)));
    fact("retries", step.next_retry_at.map(|at| at.both(now)));
    fact("error", step.error.as_ref().map(problem));
    lines.join("\n")
}

/// The command that most likely comes next.
fn next(session: &Session, instance: &Instance, target: &Target) -> Option<String> {
    let waits_for = instance.meta.current_step.as_ref().and_then(|s| s.wait_event_type.as_deref());
    let command = match (instance.details.status.as_str(), waits_for) {
        ("waiting" | "active", Some(event)) => {
            let send = session.command("send-event", target);
            format!("{send} -t {} --payload JSON", shell_quoted(event))
        }
        ("paused", _) => session.command("resume", target),
        ("errored", _) => session.command("history", target),
        _ => return None,
    };
    Some(format!("next: {command}"))
}

pub(crate) fn result(session: &Session, args: &ResultArgs) -> Result<()> {
    let item = wait_for_result(session, args)?;
    let target = &args.target;
    if !item.details.ended() {
        let message = format!("`{}` has not ended: it is {}", item.id, item.details.status);
        let next = match args.wait {
            None => "wait for it with --wait".to_owned(),
            Some(_) => format!("see what it waits for: {}", session.command("get", target)),
        };
        return Err(Failure::refused(message).next(next));
    }
    if let Some(error) = &item.details.error {
        let message = format!("`{}` failed: {}: {}", item.id, error.name, error.message);
        let next = format!("see what happened: {}", session.command("history", target));
        return Err(Failure::refused(message).next(next));
    }
    if item.details.status != "complete" {
        let message = format!("`{}` was {}: it has no result", item.id, item.details.status);
        let next = format!("run it again: {}", session.command("restart", target));
        return Err(Failure::refused(message).next(next));
    }
    let output = item.details.output.as_deref().map_or("null", RawValue::get);
    session.print(&json_pretty(output, ""))
}

fn wait_for_result(session: &Session, args: &ResultArgs) -> Result<Item> {
    // The first answer shows that there is such a server and instance; only then it is worth being patient.
    let first = session.client.result(&args.target, Duration::ZERO)?;
    let Some(wait) = args.wait.filter(|_| !first.details.ended()) else {
        return Ok(first);
    };
    session.note(&format!(
        "`{}` is {}; waiting for its end",
        safe(&first.id),
        safe(&first.details.status)
    ));
    let until = clock::now().0.saturating_add(i64::try_from(wait.as_millis()).unwrap_or(i64::MAX));
    loop {
        let left = u64::try_from(until - clock::now().0).unwrap_or_default();
        let piece = WAIT_PIECE.min(Duration::from_millis(left));
        let item = session.patiently(|| session.client.result(&args.target, piece))?;
        if item.details.ended() || piece < WAIT_PIECE {
            return Ok(item);
        }
    }
}
