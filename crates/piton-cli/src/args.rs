//! The command line. What each command prints, with examples, is in [`crate::help`].

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};

use crate::{help, time};

/// See and steer Piton's workflows.
#[derive(Debug, Parser)]
#[command(
    name = "piton",
    version,
    about = "See and steer Piton's workflows from a terminal",
    long_about = "See and steer Piton's workflows from a terminal: which instances there are, what each is doing or waiting\n\
                  for, what happened to it; start one, send it an event, pause, resume, restart or end it.\n\
                  Everything goes through Piton's HTTP API.",
    after_help = "Examples and everything about configuration: piton --help",
    after_long_help = help::ROOT,
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) connection: Connection,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Which server, and how patiently.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connection {
    /// The whole address of the API, such as https://host/api/workflows
    #[arg(long, global = true, env = "PITON_BASE_URL", value_name = "URL", hide_env_values = true)]
    pub(crate) base_url: Option<String>,
    /// Send this header: "Name: value"; can be repeated [env: PITON_HEADERS, one per line]
    #[arg(short = 'H', long, global = true, value_name = "HEADER")]
    pub(crate) header: Vec<String>,
    /// Use this profile of the config file
    #[arg(long, global = true, env = "PITON_PROFILE", value_name = "NAME", hide_env_values = true)]
    pub(crate) profile: Option<String>,
    /// Read this config file
    #[arg(long, global = true, env = "PITON_CONFIG", value_name = "FILE", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
    /// How long to wait for an answer, such as 10s [default: 30s]
    #[arg(
        long, global = true, env = "PITON_TIMEOUT", value_name = "DURATION", hide_env_values = true,
        value_parser = time::duration
    )]
    pub(crate) timeout: Option<Duration>,
    /// How often to try again what is safe to repeat [default: 2]
    #[arg(long, global = true, env = "PITON_RETRIES", value_name = "N", hide_env_values = true)]
    pub(crate) retries: Option<u32>,
    /// No hints and notes on stderr
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Which workflows there are
    #[command(subcommand, visible_alias = "w", after_help = help::WORKFLOWS, arg_required_else_help = true)]
    Workflows(WorkflowsCommand),
    /// See and steer instances
    #[command(subcommand, visible_alias = "i", after_help = help::INSTANCES, arg_required_else_help = true)]
    Instances(InstancesCommand),
    /// See and retry hooks
    #[command(subcommand, after_help = help::HOOKS, arg_required_else_help = true)]
    Hooks(HooksCommand),
    /// Print completions for a shell
    #[command(after_help = help::COMPLETIONS)]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the man page, or write all of them
    #[command(after_help = help::MAN)]
    Man {
        /// Write a page for each command into this folder
        folder: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum WorkflowsCommand {
    /// Print the names of all workflows that the server knows
    #[command(visible_alias = "ls", after_help = help::WORKFLOWS)]
    List,
}

#[derive(Debug, Subcommand)]
pub(crate) enum InstancesCommand {
    /// List instances, with what each is doing or waiting for
    #[command(visible_alias = "ls", after_help = help::LIST)]
    List(ListArgs),
    /// Show one instance: status, what it waits for, times, result
    #[command(after_help = help::GET)]
    Get(GetArgs),
    /// Show what happened: steps and events on one timeline
    #[command(after_help = help::HISTORY)]
    History(HistoryArgs),
    /// Print the log lines of an instance
    #[command(after_help = help::LOGS)]
    Logs(LogsArgs),
    /// Watch an instance until it ends
    #[command(after_help = help::WATCH)]
    Watch(Target),
    /// Print what an instance returned, and wait for it if you like
    #[command(after_help = help::RESULT)]
    Result(ResultArgs),
    /// Start an instance
    #[command(after_help = help::CREATE)]
    Create(CreateArgs),
    /// Send an event to an instance
    #[command(after_help = help::SEND_EVENT)]
    SendEvent(SendEventArgs),
    /// Stop an instance for a while
    #[command(after_help = help::PAUSE)]
    Pause(Target),
    /// Let a paused instance go on
    #[command(after_help = help::RESUME)]
    Resume(Target),
    /// Run an instance again, from the start and with the same params
    #[command(after_help = help::RESTART)]
    Restart(Target),
    /// End an instance
    #[command(after_help = help::TERMINATE)]
    Terminate(Target),
}

#[derive(Debug, Subcommand)]
pub(crate) enum HooksCommand {
    /// List hooks, with what each waits for or came to
    #[command(visible_alias = "ls", after_help = help::HOOKS_LIST)]
    List(HooksListArgs),
    /// Show one hook: status, attempts, times, the last error
    #[command(after_help = help::HOOKS_GET)]
    Get(HookGetArgs),
    /// Let a failed hook be processed again, or a pending one at once
    #[command(after_help = help::HOOKS_RETRY)]
    Retry(HookArgs),
}

#[derive(Debug, Args)]
pub(crate) struct HooksListArgs {
    /// Only of this namespace
    #[arg(long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// Only of this name, such as user.created
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Only with this status
    #[arg(short, long, value_parser = PossibleValuesParser::new(["pending", "processing", "completed", "failed"]))]
    pub(crate) status: Option<String>,
    /// At most so many
    #[arg(short = 'n', long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    /// All there are
    #[arg(short, long, conflicts_with = "limit")]
    pub(crate) all: bool,
}

/// Which hook.
#[derive(Debug, Args)]
pub(crate) struct HookArgs {
    /// The id of the hook
    #[arg(short, long, value_name = "ID")]
    pub(crate) id: String,
}

#[derive(Debug, Args)]
pub(crate) struct HookGetArgs {
    #[command(flatten)]
    pub(crate) hook: HookArgs,
    /// With its payload, whole
    #[arg(short, long)]
    pub(crate) full: bool,
}

/// Which instance.
#[derive(Clone, Debug, Args)]
pub(crate) struct Target {
    /// The name of the workflow
    #[arg(short, long, value_name = "NAME")]
    pub(crate) workflow: String,
    /// The id of the instance
    #[arg(short, long, value_name = "ID")]
    pub(crate) id: String,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only of this workflow
    #[arg(short, long, value_name = "NAME")]
    pub(crate) workflow: Option<String>,
    /// Only with this status
    #[arg(short, long, value_parser = statuses())]
    pub(crate) status: Option<String>,
    /// Only created in the last while, such as 2h
    #[arg(long, value_name = "DURATION", value_parser = time::duration)]
    pub(crate) since: Option<Duration>,
    /// At most so many of each workflow
    #[arg(short = 'n', long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    /// All there are
    #[arg(short, long, conflicts_with = "limit")]
    pub(crate) all: bool,
    /// Ids and statuses only: one request per page
    #[arg(short, long)]
    pub(crate) brief: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// With params, output and the current step, whole
    #[arg(short, long)]
    pub(crate) full: bool,
}

#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) logs: LogFilter,
    /// With log lines
    #[arg(short = 'l', long)]
    pub(crate) include_logs: bool,
    /// Everything, not only the first hundred of each kind
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Results, payloads and data whole
    #[arg(short, long)]
    pub(crate) full: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) filter: LogFilter,
    /// Go on with new lines until the instance ends
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Data whole
    #[arg(long)]
    pub(crate) full: bool,
}

/// Which log lines.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct LogFilter {
    /// Of this run: 0, plus one for each restart [default: the current one]
    #[arg(short, long, value_name = "N")]
    pub(crate) run: Option<u32>,
    /// Only log lines of this level
    #[arg(long, value_name = "LEVEL", value_parser = PossibleValuesParser::new(["debug", "info", "warn", "error"]))]
    pub(crate) log_level: Option<String>,
    /// Only log lines of this category; `system` is the engine's own
    #[arg(long, value_name = "CATEGORY")]
    pub(crate) log_category: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ResultArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Wait until it ends, or so long
    #[arg(long, value_name = "DURATION", num_args = 0..=1, value_parser = time::duration, default_missing_value = "365d")]
    pub(crate) wait: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// The name of the workflow
    #[arg(short, long, value_name = "NAME")]
    pub(crate) workflow: String,
    /// An id of your own, unique in the workflow
    #[arg(short, long, value_name = "ID")]
    pub(crate) id: Option<String>,
    /// What the workflow gets: JSON, @FILE, or - for stdin
    #[arg(short, long, value_name = "JSON", allow_hyphen_values = true)]
    pub(crate) params: Option<String>,
    /// Makes a repeated call return the instance of the first
    #[arg(long, value_name = "KEY")]
    pub(crate) idempotency_key: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SendEventArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// The type of the event: what the instance waits for
    #[arg(short = 't', long = "type", value_name = "TYPE")]
    pub(crate) event_type: String,
    /// What it carries: JSON, @FILE, or - for stdin
    #[arg(short, long, value_name = "JSON", allow_hyphen_values = true)]
    pub(crate) payload: Option<String>,
    /// Makes a repeated call store the event once
    #[arg(long, value_name = "KEY")]
    pub(crate) idempotency_key: Option<String>,
}

fn statuses() -> PossibleValuesParser {
    PossibleValuesParser::new(["active", "waiting", "paused", "complete", "errored", "terminated"])
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_of_the_tree_exists_and_every_command_is_in_the_tree() {
        let mut cli = Cli::command();
        cli.build();
        for group in cli.get_subcommands().filter(|command| command.has_subcommands()) {
            for command in group.get_subcommands() {
                let (group, name) = (group.get_name(), command.get_name());
                let together = matches!(name, "resume");
                assert!(
                    together || help::ROOT.contains(&format!("piton {group} {name}")),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn every_example_is_a_command_line() {
        let all = [
            help::ROOT,
            help::WORKFLOWS,
            help::INSTANCES,
            help::LIST,
            help::GET,
            help::HISTORY,
            help::LOGS,
            help::WATCH,
            help::RESULT,
            help::CREATE,
            help::PAUSE,
            help::RESUME,
            help::RESTART,
            help::TERMINATE,
            help::SEND_EVENT,
            help::HOOKS,
            help::HOOKS_LIST,
            help::HOOKS_GET,
            help::HOOKS_RETRY,
        ];
        let examples =
            all.iter().flat_map(|text| text.lines()).filter(|l| l.starts_with("  piton "));
        let mut tried = 0;
        for line in examples.filter(|line| line.contains(" -w ") || line.contains("--status")) {
            // What stands after three blanks is an explanation, after a pipe another program.
            let line = line.trim().split("   ").next().unwrap_or_default();
            let line = line.split(" | ").next().unwrap_or_default();
            let mut words = vec![];
            for (at, part) in line.split('\'').enumerate() {
                match at % 2 {
                    0 => words.extend(part.split_whitespace()),
                    _ => words.push(part),
                }
            }
            if let Err(error) = Cli::try_parse_from(&words) {
                panic!("{line}: {error}");
            }
            tried += 1;
        }
        assert!(tried > 20, "{tried}");
    }
}
