//! The answers of the API, and the paths they are found under.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::args::Target;
use crate::failure::{Failure, Result};
use crate::http::{Client, escaped};
use crate::time::Moment;

/// The most that the server puts on a page.
pub(crate) const PAGE_SIZE_MAX: usize = 100;

#[derive(Deserialize)]
pub(crate) struct Workflows {
    pub(crate) workflows: Vec<Workflow>,
}

#[derive(Deserialize)]
pub(crate) struct Workflow {
    pub(crate) name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Details {
    pub(crate) status: String,
    pub(crate) error: Option<Problem>,
    pub(crate) output: Option<Box<RawValue>>,
    #[serde(default)]
    pub(crate) pause_requested: bool,
}

impl Details {
    /// Whether the run is over.
    pub(crate) fn ended(&self) -> bool {
        matches!(self.status.as_str(), "complete" | "errored" | "terminated")
    }
}

#[derive(Deserialize)]
pub(crate) struct Problem {
    pub(crate) name: String,
    pub(crate) message: String,
}

#[derive(Deserialize)]
pub(crate) struct Item {
    pub(crate) id: String,
    pub(crate) details: Details,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Instances {
    pub(crate) instances: Vec<Item>,
    pub(crate) cursor: Option<String>,
    pub(crate) has_next_page: bool,
}

#[derive(Deserialize)]
pub(crate) struct Instance {
    pub(crate) id: String,
    pub(crate) details: Details,
    pub(crate) meta: Meta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Meta {
    pub(crate) workflow_name: String,
    pub(crate) run_number: u32,
    pub(crate) params: Option<Box<RawValue>>,
    pub(crate) created_at: Moment,
    pub(crate) updated_at: Moment,
    pub(crate) started_at: Option<Moment>,
    pub(crate) completed_at: Option<Moment>,
    pub(crate) current_step: Option<Step>,
}

/// A step: the current one, or one in a history.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Step {
    pub(crate) name: String,
    #[serde(rename = "type")]
    pub(crate) step_type: String,
    pub(crate) status: String,
    pub(crate) attempts: u32,
    /// `None` is no limit.
    pub(crate) max_attempts: Option<u32>,
    pub(crate) timeout_ms: Option<i64>,
    pub(crate) next_retry_at: Option<Moment>,
    pub(crate) wake_at: Option<Moment>,
    pub(crate) wait_event_type: Option<String>,
    pub(crate) error: Option<Problem>,
    pub(crate) result: Option<Box<RawValue>>,
    pub(crate) created_at: Option<Moment>,
    pub(crate) started_at: Option<Moment>,
    pub(crate) updated_at: Option<Moment>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Event {
    #[serde(rename = "type")]
    pub(crate) event_type: String,
    pub(crate) payload: Option<Box<RawValue>>,
    pub(crate) created_at: Moment,
    pub(crate) consumed_by_step_key: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LogLine {
    pub(crate) step_key: Option<String>,
    pub(crate) attempt: Option<u32>,
    pub(crate) level: String,
    pub(crate) category: String,
    pub(crate) message: String,
    pub(crate) data: Option<Box<RawValue>>,
    pub(crate) is_replay: bool,
    pub(crate) created_at: Moment,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HistoryPage {
    pub(crate) run_number: u32,
    pub(crate) steps: Vec<Step>,
    pub(crate) events: Vec<Event>,
    pub(crate) steps_cursor: Option<String>,
    pub(crate) steps_has_next_page: bool,
    pub(crate) events_cursor: Option<String>,
    pub(crate) events_has_next_page: bool,
    #[serde(default)]
    pub(crate) logs: Vec<LogLine>,
    pub(crate) logs_cursor: Option<String>,
    #[serde(default)]
    pub(crate) logs_has_next_page: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Hook {
    pub(crate) id: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) status: String,
    pub(crate) attempts: u32,
    /// `None` is no limit.
    pub(crate) max_attempts: Option<u32>,
    pub(crate) payload: Box<RawValue>,
    pub(crate) created_at: Moment,
    pub(crate) updated_at: Moment,
    pub(crate) last_attempt_at: Option<Moment>,
    pub(crate) due_at: Option<Moment>,
    pub(crate) error: Option<Problem>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Hooks {
    pub(crate) hooks: Vec<Hook>,
    pub(crate) cursor: Option<String>,
    pub(crate) has_next_page: bool,
}

/// An answer that says nothing but that it is done.
#[derive(Deserialize)]
pub(crate) struct Done {}

/// A query string on its way.
#[derive(Default)]
pub(crate) struct Query(String);

impl Query {
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.0.push(if self.0.is_empty() { '?' } else { '&' });
        self.0.push_str(&format!("{name}={}", escaped(value)));
        self
    }

    pub(crate) fn maybe(self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }
}

/// `/order/instances`.
pub(crate) fn instances_path(workflow: &str) -> Result<String> {
    Ok(format!("/{}/instances", part("workflow", workflow)?))
}

fn instance_path(target: &Target) -> Result<String> {
    let instances = instances_path(&target.workflow)?;
    Ok(format!("{instances}/{}", part("id", &target.id)?))
}

/// A name for a path. Those that a URL gives another meaning cannot be names.
fn part(flag: &str, name: &str) -> Result<String> {
    if name.is_empty() || name == "." || name == ".." {
        return Err(Failure::usage(format!("--{flag} cannot be `{name}`")));
    }
    Ok(escaped(name))
}

impl Client {
    pub(crate) fn workflows(&self) -> Result<Workflows> {
        self.get("")
    }

    pub(crate) fn instances(&self, workflow: &str, query: Query) -> Result<Instances> {
        self.get(&format!("{}{}", instances_path(workflow)?, query.0))
    }

    pub(crate) fn instance(&self, target: &Target) -> Result<Instance> {
        self.get(&instance_path(target)?)
    }

    pub(crate) fn history(&self, target: &Target, query: Query) -> Result<HistoryPage> {
        self.get(&format!("{}/history{}", instance_path(target)?, query.0))
    }

    /// How it ended, or stands after `wait`.
    pub(crate) fn result(&self, target: &Target, wait: Duration) -> Result<Item> {
        let query = Query::default().with("wait", &format!("{}ms", wait.as_millis()));
        self.get_within(&format!("{}/result{}", instance_path(target)?, query.0), wait)
    }

    /// `pause`, `resume`, `restart` or `terminate`.
    pub(crate) fn steer(&self, target: &Target, verb: &str) -> Result<Done> {
        self.post(&format!("{}/{verb}", instance_path(target)?), "{}", None)
    }

    pub(crate) fn create(&self, workflow: &str, body: &str, key: Option<&str>) -> Result<Item> {
        self.post(&instances_path(workflow)?, body, key)
    }

    pub(crate) fn send_event(&self, target: &Target, body: &str, key: &str) -> Result<Done> {
        self.post(&format!("{}/events", instance_path(target)?), body, Some(key))
    }

    pub(crate) fn hooks(&self, query: Query) -> Result<Hooks> {
        self.get(&format!("/_hooks{}", query.0))
    }

    pub(crate) fn hook(&self, id: &str) -> Result<Hook> {
        self.get(&format!("/_hooks/{}", part("id", id)?))
    }

    pub(crate) fn retry_hook(&self, id: &str) -> Result<Hook> {
        self.post(&format!("/_hooks/{}/retry", part("id", id)?), "{}", None)
    }
}
