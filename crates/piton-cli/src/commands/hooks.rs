//! `hooks list`, `hooks get` and `hooks retry`.

use crate::api::{Hook, PAGE_SIZE_MAX, Query};
use crate::args::{HookArgs, HookGetArgs, HooksCommand, HooksListArgs};
use crate::clock;
use crate::failure::{Failure, Result};
use crate::paint::{Column, table};
use crate::sentences::problem;
use crate::session::Session;
use crate::text::{json_pretty, safe, shell_quoted, short};
use crate::time::Moment;

pub(crate) fn run(session: &Session, command: &HooksCommand) -> Result<()> {
    let done = match command {
        HooksCommand::List(args) => list(session, args),
        HooksCommand::Get(args) => get(session, args),
        HooksCommand::Retry(args) => retry(session, args),
    };
    done.map_err(|failure| advise(session, failure))
}

fn advise(session: &Session, failure: Failure) -> Failure {
    if failure.has_code("HOOK_NOT_FOUND") {
        let list = session.command_without_target("hooks list");
        return failure.next(format!("see which there are: {list}"));
    }
    session.advise(failure, "", None)
}

fn list(session: &Session, args: &HooksListArgs) -> Result<()> {
    let mut left = if args.all { usize::MAX } else { args.limit as usize };
    let (mut hooks, mut cursor) = (Vec::new(), None);
    let more = loop {
        let query = Query::default()
            .maybe("namespace", args.namespace.as_deref())
            .maybe("name", args.name.as_deref())
            .maybe("status", args.status.as_deref())
            .with("pageSize", &left.min(PAGE_SIZE_MAX).to_string())
            .maybe("cursor", cursor.as_deref());
        let page = session.client.hooks(query)?;
        left = left.saturating_sub(page.hooks.len());
        hooks.extend(page.hooks);
        cursor = page.cursor;
        if !page.has_next_page || cursor.is_none() || left == 0 {
            break page.has_next_page;
        }
    };
    if hooks.is_empty() {
        session.note(&nothing(args));
        return Ok(());
    }
    session.print(&rows(session, &hooks))?;
    if more {
        session.note("there are more: --all lists them all, --limit N more of them");
    }
    Ok(())
}

fn nothing(args: &HooksListArgs) -> String {
    let which = args.status.as_deref().map(|status| format!("{status} ")).unwrap_or_default();
    let named = args.name.as_deref().map(|n| format!(" named `{}`", safe(n))).unwrap_or_default();
    let namespace = args.namespace.as_deref();
    let place = namespace.map(|n| format!(" in namespace `{}`", safe(n))).unwrap_or_default();
    format!("there are no {which}hooks{named}{place}")
}

fn rows(session: &Session, hooks: &[Hook]) -> String {
    let now = clock::now();
    let columns = [
        ("ID", Column::Plain),
        ("NAME", Column::Plain),
        ("STATUS", Column::Status),
        ("TRIES", Column::Plain),
        ("CREATED", Column::Dim),
        ("NOW", Column::Plain),
    ];
    let cells: Vec<Vec<String>> = hooks
        .iter()
        .map(|hook| {
            vec![
                safe(&hook.id),
                safe(&hook.name),
                safe(&hook.status),
                tries(hook),
                hook.created_at.relative_to(now),
                short(&doing(hook, now)),
            ]
        })
        .collect();
    table(session.paint, &columns, &cells)
}

/// `2/6`: the second of at most six.
fn tries(hook: &Hook) -> String {
    let max = hook.max_attempts.map_or("∞".to_owned(), |max| max.to_string());
    format!("{}/{max}", hook.attempts)
}

/// What it waits for or came to.
fn doing(hook: &Hook, now: Moment) -> String {
    let error = hook.error.as_ref().map(problem);
    let after = error.as_deref().map(|error| format!(", after {error}")).unwrap_or_default();
    match (hook.status.as_str(), hook.due_at) {
        // Nobody has tried it since: it is only due.
        ("pending", Some(at)) => format!("due {}{after}", at.relative_to(now)),
        ("processing", Some(at)) if at < now => {
            format!("lease ran out {}{after}", at.relative_to(now))
        }
        ("processing", Some(at)) => format!("in hand, lease ends {}{after}", at.relative_to(now)),
        _ => error.unwrap_or_default(),
    }
}

fn get(session: &Session, args: &HookGetArgs) -> Result<()> {
    let hook = session.client.hook(&args.hook.id)?;
    let now = clock::now();
    session.print(&summary(session, &hook, now))?;
    if args.full {
        let payload = json_pretty(hook.payload.get(), "    ");
        session.print(&format!("  payload\n{payload}"))?;
    }
    if hook.status == "failed" {
        let id = shell_quoted(&hook.id);
        let retry = session.command_without_target(&format!("hooks retry -i {id}"));
        session.note(&format!("next: {retry}"));
    }
    Ok(())
}

fn summary(session: &Session, hook: &Hook, now: Moment) -> String {
    let paint = session.paint;
    let mut lines =
        vec![format!("{}  {}", paint.bold(&safe(&hook.id)), paint.status(&safe(&hook.status)))];
    let mut fact = |name: &str, value: String| {
        lines.push(format!("  {}  {value}", paint.dim(&format!("{name:<9}"))));
    };
    fact("name", safe(&hook.name));
    fact("namespace", safe(&hook.namespace));
    fact("tries", tries(hook));
    if let Some(error) = &hook.error {
        fact("error", problem(error));
    }
    fact("created", hook.created_at.both(now));
    if let Some(at) = hook.last_attempt_at {
        fact("tried", at.both(now));
    }
    match (hook.status.as_str(), hook.due_at) {
        ("processing", Some(at)) => fact("lease", format!("until {}", at.both(now))),
        (_, Some(at)) => fact("due", at.both(now)),
        (_, None) => fact("finished", hook.updated_at.both(now)),
    }
    lines.join("\n")
}

fn retry(session: &Session, args: &HookArgs) -> Result<()> {
    let hook = session.client.retry_hook(&args.id)?;
    session.print(&format!("{} is {}, due now", safe(&hook.id), safe(&hook.status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(status: &str, due_at: &str, error: Option<&str>) -> Hook {
        let error = error.map(|message| serde_json::json!({"name": "Error", "message": message}));
        let hook = serde_json::json!({
            "id": "hook_1", "namespace": "app", "name": "paid", "status": status, "attempts": 6, "maxAttempts": 1,
            "payload": null, "createdAt": "1970-01-01T00:00:00.000Z", "updatedAt": "1970-01-01T00:00:00.000Z",
            "lastAttemptAt": null, "dueAt": due_at, "error": error,
        });
        serde_json::from_str(&hook.to_string()).expect("a hook")
    }

    #[test]
    fn a_hook_says_what_it_waits_for() {
        let (early, late) = ("1970-01-01T00:00:05.000Z", "1970-01-01T00:00:15.000Z");
        for (status, due_at, error, said) in [
            ("pending", early, None, "due 5 s ago"),
            ("pending", late, None, "due in 5 s"),
            ("pending", early, Some("no luck"), "due 5 s ago, after Error: no luck"),
            ("pending", late, Some("no luck"), "due in 5 s, after Error: no luck"),
            ("processing", late, None, "in hand, lease ends in 5 s"),
            ("processing", early, Some("no"), "lease ran out 5 s ago, after Error: no"),
            ("failed", late, Some("no luck"), "Error: no luck"),
        ] {
            assert_eq!(doing(&hook(status, due_at, error), Moment(10_000)), said, "{status}");
        }
        assert_eq!(tries(&hook("failed", late, None)), "6/1");
    }
}
