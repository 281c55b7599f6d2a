//! What an instance is doing or waiting for, in a sentence.

use crate::api::{Details, Instance, Meta, Problem, Step};
use crate::text::{json_line, safe, short};
use crate::time::{Moment, words};

/// What it is doing, waiting for or came to.
pub(crate) fn doing(instance: &Instance, now: Moment) -> String {
    let Instance { details, meta, .. } = instance;
    match details.status.as_str() {
        "paused" => match meta.current_step.as_ref().map(|step| step_now(step, now)) {
            Some(step) => format!("paused until it is resumed; {step}"),
            None => "paused until it is resumed".to_owned(),
        },
        "complete" | "errored" | "terminated" => outcome(details),
        _ => {
            let step = running(meta, now);
            match details.pause_requested {
                true => format!("{step}; will pause when that has ended"),
                false => step,
            }
        }
    }
}

fn running(meta: &Meta, now: Moment) -> String {
    match &meta.current_step {
        Some(step) => step_now(step, now),
        None if meta.started_at.is_none() => "about to start".to_owned(),
        None => "between two steps".to_owned(),
    }
}

/// What it came to, in one line.
pub(crate) fn outcome(details: &Details) -> String {
    match (&details.error, &details.output) {
        (Some(error), _) => problem(error),
        (None, Some(output)) => format!("returned {}", short(&json_line(output.get()))),
        (None, None) if details.status == "complete" => "returned null".to_owned(),
        (None, None) => String::new(),
    }
}

/// `CardDeclined: no money`.
pub(crate) fn problem(problem: &Problem) -> String {
    format!("{}: {}", safe(&problem.name), safe(&problem.message))
}

fn step_now(step: &Step, now: Moment) -> String {
    let name = safe(&step.name);
    match step.step_type.as_str() {
        "sleep" => format!("sleeping in `{name}`{}", due(step.wake_at, now, "wakes up")),
        "waitForEvent" => {
            let event = safe(step.wait_event_type.as_deref().unwrap_or("?"));
            let inside = if name == event { String::new() } else { format!(" in `{name}`") };
            format!("waiting for event `{event}`{inside}{}", due(step.wake_at, now, "times out"))
        }
        _ => match step.next_retry_at.filter(|_| step.status == "waiting") {
            Some(at) => {
                let again = due(Some(at), now, &format!("attempt {}", attempts(step, 1)));
                let after = step.error.as_ref().map(|error| format!(" after {}", problem(error)));
                format!("retrying `{name}`{again}{}", after.unwrap_or_default())
            }
            None => format!("running `{name}`, attempt {}", attempts(step, 0)),
        },
    }
}

/// `2/6`: the attempt and how many there may be.
pub(crate) fn attempts(step: &Step, more: u32) -> String {
    let attempt = step.attempts.max(1) + more;
    match step.max_attempts {
        Some(most) => format!("{attempt}/{most}"),
        None => format!("{attempt}/∞"),
    }
}

/// `, times out in 23 h`, and more if that moment has passed and nobody did anything about it.
fn due(at: Option<Moment>, now: Moment, what: &str) -> String {
    /// Clocks differ, and runners poll once a second.
    const LATE_MS: i64 = 5_000;
    match at.map(|at| at.0 - now.0) {
        None => String::new(),
        Some(left) if left > 0 => format!(", {what} in {}", words(left)),
        Some(left) if left > -LATE_MS => format!(", {what} now"),
        Some(left) => {
            let late = words(-left);
            format!(", {what}: due for {late}; is a server with a runner for this workflow up?")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(details: &str, step: &str) -> String {
        let json = format!(
            r#"{{"id": "i", "details": {details}, "meta": {{"workflowName": "w", "runNumber": 0, "params": null,
                "createdAt": "1970-01-01T00:00:00.000Z", "updatedAt": "1970-01-01T00:00:00.000Z", "startedAt": null,
                "completedAt": null{}{step}}}}}"#,
            if step.is_empty() { "" } else { r#", "currentStep": "# }
        );
        doing(&serde_json::from_str(&json).expect("an instance"), Moment(0))
    }

    fn step(step_type: &str, rest: &str) -> String {
        format!(
            r#"{{"stepKey": "s", "name": "s", "type": "{step_type}", "status": "waiting", "attempts": 2,
                "maxAttempts": 6, "timeoutMs": null{rest}}}"#
        )
    }

    #[test]
    fn waits_are_told_in_a_sentence() {
        let waiting = r#"{"status": "waiting"}"#;
        let cases = [
            (
                step(
                    "waitForEvent",
                    r#", "waitEventType": "approved", "wakeAt": "1970-01-01T23:00:00.000Z""#,
                ),
                "waiting for event `approved` in `s`, times out in 23 h",
            ),
            (
                step("sleep", r#", "wakeAt": "1970-01-15T00:00:00.000Z""#),
                "sleeping in `s`, wakes up in 14 days",
            ),
            (
                step("sleep", r#", "wakeAt": "1969-12-31T23:59:00.000Z""#),
                "sleeping in `s`, wakes up: due for 1 min; is a server with a runner for this workflow up?",
            ),
            (
                step(
                    "do",
                    r#", "nextRetryAt": "1970-01-01T00:00:08.000Z", "error": {"name": "E", "message": "no\n"}"#,
                ),
                "retrying `s`, attempt 3/6 in 8 s after E: no\\n",
            ),
            (String::new(), "about to start"),
        ];
        for (step, expected) in cases {
            assert_eq!(said(waiting, &step), expected);
        }
    }

    #[test]
    fn pauses_and_ends_are_told_too() {
        let running = step("do", "").replace("waiting", "running").replace(": 6", ": null");
        assert_eq!(said(r#"{"status": "active"}"#, &running), "running `s`, attempt 2/∞");
        assert_eq!(
            said(r#"{"status": "active", "pauseRequested": true}"#, &running),
            "running `s`, attempt 2/∞; will pause when that has ended"
        );
        assert_eq!(said(r#"{"status": "paused"}"#, ""), "paused until it is resumed");
        assert_eq!(said(r#"{"status": "complete", "output": [1,2]}"#, ""), "returned [1, 2]");
        assert_eq!(said(r#"{"status": "complete"}"#, ""), "returned null");
        assert_eq!(
            said(r#"{"status": "errored", "error": {"name": "E", "message": "m"}}"#, ""),
            "E: m"
        );
        assert_eq!(said(r#"{"status": "terminated"}"#, ""), "");
    }
}
