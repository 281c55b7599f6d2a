//! What every command works with: the client, where to write, and how to go on after the server was away.

use std::io::Write;
use std::time::Duration;

use crate::args::{Connection, Target};
use crate::clock;
use crate::config::Settings;
use crate::failure::{Failure, Result};
use crate::http::Client;
use crate::paint::Paint;
use crate::text::shell_quoted;

/// How long commands that wait for something go on trying to reach a server that went away.
const AWAY_MAX: Duration = Duration::from_mins(10);
const AWAY_POLL: Duration = Duration::from_millis(500);

/// One invocation.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) paint: Paint,
    quiet: bool,
    /// How this program was called, for commands to copy.
    program: String,
}

impl Session {
    pub(crate) fn new(connection: &Connection) -> Result<Self> {
        let client = Client::new(Settings::resolve(connection)?);
        let mut program = "piton".to_owned();
        // What is in the environment stays there; flags have to be repeated.
        let flagged = |value: Option<&str>, variable: &str| {
            value.filter(|value| std::env::var(variable).as_deref() != Ok(*value)).map(shell_quoted)
        };
        if let Some(profile) = flagged(connection.profile.as_deref(), "PITON_PROFILE") {
            program.push_str(&format!(" --profile {profile}"));
        }
        if let Some(url) = flagged(connection.base_url.as_deref(), "PITON_BASE_URL") {
            program.push_str(&format!(" --base-url {url}"));
        }
        Ok(Self { client, paint: Paint::for_stdout(), quiet: connection.quiet, program })
    }

    /// A line of what was asked for.
    pub(crate) fn print(&self, line: &str) -> Result<()> {
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{line}")?;
        Ok(stdout.flush()?)
    }

    /// A line beside it.
    pub(crate) fn note(&self, line: &str) {
        if !self.quiet {
            eprintln!("{line}");
        }
    }

    /// A command to copy: `piton instances get -w order -i order-1`.
    pub(crate) fn command(&self, verb: &str, target: &Target) -> String {
        let (workflow, id) = (shell_quoted(&target.workflow), shell_quoted(&target.id));
        format!("{} instances {verb} -w {workflow} -i {id}", self.program)
    }

    /// A command to copy, about no instance.
    pub(crate) fn command_without_target(&self, command: &str) -> String {
        format!("{} {command}", self.program)
    }

    /// Adds what to do next to a refusal.
    pub(crate) fn advise(&self, failure: Failure, workflow: &str, id: Option<&str>) -> Failure {
        let target = |id: &str| Target { workflow: workflow.to_owned(), id: id.to_owned() };
        let list = format!("instances list -w {}", shell_quoted(workflow));
        let next = match (failure.code.as_deref(), id) {
            (Some("WORKFLOW_NOT_FOUND"), _) => {
                format!("see which there are: {}", self.command_without_target("workflows list"))
            }
            (Some("WORKFLOW_PARAMS_INVALID"), _) => {
                "change --params to what the workflow takes".to_owned()
            }
            (Some("PAYLOAD_TOO_LARGE"), _) => {
                "keep the data elsewhere, and send where it is".to_owned()
            }
            (Some("INSTANCE_NOT_FOUND"), _) => {
                format!("see which there are: {}", self.command_without_target(&list))
            }
            (Some("INSTANCE_ID_ALREADY_EXISTS"), Some(id)) => format!(
                "see it:       {}\nrun it again: {}",
                self.command("get", &target(id)),
                self.command("restart", &target(id))
            ),
            (Some("INSTANCE_TERMINAL"), Some(id)) => format!(
                "it has ended: {}\nrun it again: {}",
                self.command("get", &target(id)),
                self.command("restart", &target(id))
            ),
            (Some("UNAUTHORIZED"), _) => "say who you are, such as with -H \"Authorization: Bearer TOKEN\", PITON_HEADERS or a profile".to_owned(),
            (Some("FORBIDDEN"), _) => {
                "the headers you send do not allow this; see -H and --profile in piton --help".to_owned()
            }
            (Some("INVALID_RUN_NUMBER"), _) => {
                "runs are counted from 0; each restart adds one; `get` shows the current one".to_owned()
            }
            (Some("OVERLOADED" | "STORE_UNAVAILABLE"), _) => {
                "try again in a moment, or with more --retries".to_owned()
            }
            _ => return failure,
        };
        failure.next(next)
    }

    /// Calls until there is an answer, for commands that have had one before: a server may be restarted meanwhile.
    pub(crate) fn patiently<T>(&self, call: impl Fn() -> Result<T>) -> Result<T> {
        let since = clock::now();
        let mut told = false;
        loop {
            let failure = match call() {
                Ok(answer) => {
                    if told {
                        self.note("the server is back");
                    }
                    return Ok(answer);
                }
                Err(failure) => failure,
            };
            let away = Duration::from_millis((clock::now().0 - since.0).unsigned_abs());
            if !failure.passing || away > AWAY_MAX {
                return Err(failure);
            }
            if !told {
                self.note("the server is away; waiting for it");
                told = true;
            }
            clock::wait(AWAY_POLL);
        }
    }
}
