//! One file per command, or per kind of command.

mod change;
mod history;
mod hooks;
mod list;
mod logs;
mod look;
mod shell;
mod timeline;
mod watch;

use crate::args::{Cli, Command, InstancesCommand, WorkflowsCommand};
use crate::failure::Result;
use crate::session::Session;

/// Does what the command line says.
pub(crate) fn run(cli: &Cli) -> Result<()> {
    let session = || Session::new(&cli.connection);
    match &cli.command {
        Command::Workflows(WorkflowsCommand::List) => list::workflows(&session()?),
        Command::Instances(command) => instances(&session()?, command),
        Command::Hooks(command) => hooks::run(&session()?, command),
        Command::Completions { shell } => shell::completions(*shell),
        Command::Man { folder } => shell::man(folder.as_deref()),
    }
}

fn instances(session: &Session, command: &InstancesCommand) -> Result<()> {
    use InstancesCommand as Is;
    let done = match command {
        Is::List(args) => list::instances(session, args),
        Is::Get(args) => look::get(session, args),
        Is::History(args) => history::history(session, args),
        Is::Logs(args) => logs::logs(session, args),
        Is::Watch(target) => watch::watch(session, target),
        Is::Result(args) => look::result(session, args),
        Is::Create(args) => change::create(session, args),
        Is::SendEvent(args) => change::send_event(session, args),
        Is::Pause(target) => change::steer(session, target, "pause"),
        Is::Resume(target) => change::steer(session, target, "resume"),
        Is::Restart(target) => change::steer(session, target, "restart"),
        Is::Terminate(target) => change::steer(session, target, "terminate"),
    };
    let (workflow, id) = subject(command);
    done.map_err(|failure| session.advise(failure, workflow.unwrap_or_default(), id))
}

/// What a command is about.
fn subject(command: &InstancesCommand) -> (Option<&str>, Option<&str>) {
    use InstancesCommand as Is;
    let target = match command {
        Is::List(args) => return (args.workflow.as_deref(), None),
        Is::Create(args) => return (Some(&args.workflow), args.id.as_deref()),
        Is::Get(args) => &args.target,
        Is::History(args) => &args.target,
        Is::Logs(args) => &args.target,
        Is::Result(args) => &args.target,
        Is::SendEvent(args) => &args.target,
        Is::Watch(target)
        | Is::Pause(target)
        | Is::Resume(target)
        | Is::Restart(target)
        | Is::Terminate(target) => target,
    };
    (Some(&target.workflow), Some(&target.id))
}
