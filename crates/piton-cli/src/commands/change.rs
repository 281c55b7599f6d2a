//! What changes something: create, send an event, pause, resume, restart, terminate.

use std::hash::{BuildHasher, RandomState};
use std::io::Read;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::api::Instance;
use crate::args::{CreateArgs, SendEventArgs, Target};
use crate::clock;
use crate::failure::{Failure, Result};
use crate::sentences::doing;
use crate::session::Session;
use crate::text::safe;

#[derive(Serialize)]
struct NewInstance<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<Box<RawValue>>,
}

#[derive(Serialize)]
struct NewEvent<'a> {
    #[serde(rename = "type")]
    event_type: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
}

pub(crate) fn create(session: &Session, args: &CreateArgs) -> Result<()> {
    let params = args.params.as_deref().map(|value| json("--params", value)).transpose()?;
    let body = to_json(&NewInstance { id: args.id.as_deref(), params });
    // With an id of its own, a second call has to say that it exists, which a key would prevent.
    let made_up = args.id.is_none().then(random_key);
    let key = args.idempotency_key.as_deref().or(made_up.as_deref());
    let created = session.client.create(&args.workflow, &body, key)?;
    session.print(&safe(&created.id))?;
    let target = Target { workflow: args.workflow.clone(), id: created.id };
    session.note(&format!("created; see what it does: {}", session.command("get", &target)));
    Ok(())
}

pub(crate) fn send_event(session: &Session, args: &SendEventArgs) -> Result<()> {
    let payload = args.payload.as_deref().map(|value| json("--payload", value)).transpose()?;
    let body = to_json(&NewEvent { event_type: &args.event_type, payload });
    let key = args.idempotency_key.clone().unwrap_or_else(random_key);
    session.client.send_event(&args.target, &body, &key)?;
    let (event, id) = (safe(&args.event_type), safe(&args.target.id));
    session.print(&format!("sent event `{event}` to {id}"))?;
    // Whether it was taken is seen by looking again; that the look fails changes nothing about the event.
    if let Ok(instance) = session.client.instance(&args.target) {
        session.note(&after_event(session, args, &instance));
    }
    Ok(())
}

/// What became of the event, as far as one can see: a wrong type is the usual mistake.
fn after_event(session: &Session, args: &SendEventArgs, instance: &Instance) -> String {
    let waits_for = instance.meta.current_step.as_ref().and_then(|s| s.wait_event_type.as_deref());
    match waits_for {
        Some(other) if other != args.event_type && instance.details.status == "waiting" => format!(
            "note: it waits for event `{}`; yours is kept until it waits for `{}`",
            safe(other),
            safe(&args.event_type)
        ),
        _ if instance.details.status == "paused" => {
            format!("note: it is paused; go on: {}", session.command("resume", &args.target))
        }
        _ => format!("next: {}", session.command("watch", &args.target)),
    }
}

pub(crate) fn steer(session: &Session, target: &Target, verb: &str) -> Result<()> {
    // Afterwards nobody could tell an end long ago from one that came quickly.
    let before = (verb == "resume").then(|| session.client.instance(target).ok()).flatten();
    session.client.steer(target, verb)?;
    let id = safe(&target.id);
    let Ok(instance) = session.client.instance(target) else {
        return session.print(&format!("{id}: {verb} was accepted"));
    };
    if before.is_some_and(|before| before.details.ended()) {
        let status = safe(&instance.details.status);
        session.print(&format!("{id} has ended ({status}): there is nothing to resume"))?;
        session.note(&format!("run it again: {}", session.command("restart", target)));
        return Ok(());
    }
    let status = match instance.details.pause_requested {
        true => "about to be paused".to_owned(),
        false => safe(&instance.details.status),
    };
    let run = match verb {
        "restart" => format!(", run {}", instance.meta.run_number),
        _ => String::new(),
    };
    session.print(&format!("{id} is {status}{run}"))?;
    let now = doing(&instance, clock::now());
    if !instance.details.ended() && !now.is_empty() {
        session.note(&format!("now: {now}"));
    }
    Ok(())
}

/// JSON from a flag: the text itself, `@FILE`, or `-` for stdin. It is sent as it was written.
fn json(flag: &str, value: &str) -> Result<Box<RawValue>> {
    let text = match value.strip_prefix('@') {
        _ if value == "-" => {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .map_err(|error| Failure::usage(format!("{flag} -: cannot read stdin: {error}")))?;
            text
        }
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("{flag}: cannot read {path}: {error}")))?,
        None => value.to_owned(),
    };
    RawValue::from_string(text.trim().to_owned()).map_err(|error| {
        Failure::usage(format!("{flag} is not JSON: {error}"))
            .next(format!("quote it for your shell: {flag} '{{\"key\": \"value\"}}', or {flag} '\"text\"';\n{flag} @FILE reads a file, {flag} - reads stdin"))
    })
}

fn to_json(body: &impl Serialize) -> String {
    serde_json::to_string(body).expect("strings and JSON become JSON")
}

/// A key that no other call has: 128 bits of the process's random hash keys, mixed with the time.
fn random_key() -> String {
    let word = || RandomState::new().hash_one((clock::now().0, std::process::id()));
    format!("piton-cli-{:016x}{:016x}", word(), word())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_comes_from_the_flag_or_a_file_as_it_was_written() {
        let raw = json("--params", " {\"b\": 1.10, \"a\": 12345678901234567890} ").expect("JSON");
        assert_eq!(raw.get(), "{\"b\": 1.10, \"a\": 12345678901234567890}");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.json");
        std::fs::write(&path, "[1]\n").expect("written");
        assert_eq!(json("--params", &format!("@{}", path.display())).expect("a file").get(), "[1]");
        let failure = json("--params", "{item: 1}").expect_err("not JSON").to_string();
        assert!(
            failure.contains("--params is not JSON") && failure.contains("quote it"),
            "{failure}"
        );
        assert!(json("--params", "@/no/such/file").is_err());
    }

    #[test]
    fn keys_differ() {
        assert_ne!(random_key(), random_key());
        assert!(random_key().len() <= 64);
    }
}
