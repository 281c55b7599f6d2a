//! `cargo xtask torture` and `cargo xtask power`: real processes, real files, always built for release.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cargo;
use crate::stages::Stages;

/// Kill a loaded process at random moments and check that nothing is lost, done twice or stuck.
///
/// A process with steps, sleeps, events, retries, step transactions, pauses, restarts and terminates is killed with
/// SIGKILL and started again. After each kill what its clients were told, what its bodies did and what the database has
/// are compared, and the audit is run. At the end everything must have ended.
///
/// On PostgreSQL three workers and an API process share a private server. Workers are killed, or stopped beyond their
/// lease; the server is restarted every few seconds; connections are cut, also after COMMIT was sent. What was told, done
/// and stored is compared at the end.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask torture --kills 500         a few minutes
  cargo xtask torture --kills 20 --seed 7 another plan of kills
  cargo xtask torture --store postgres --kills 100 --instances 5000")]
pub(crate) struct KillArgs {
    /// Torture this store: `sqlite` or `postgres`
    #[arg(long, default_value = "sqlite", value_parser = ["sqlite", "postgres"])]
    store: String,
    /// How many instances to bring to their end, on PostgreSQL
    #[arg(long, default_value_t = 5_000)]
    instances: u32,
    /// How often to kill
    #[arg(long, default_value_t = 100)]
    kills: u32,
    /// Decides when; where each kill hits, the machine decides
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Cut the power at random moments, on paper, and check that nothing acknowledged is lost.
///
/// Records the writes and syncs of a loaded process with strace, builds the files that a power loss could have left, and
/// opens each of them. A control that does not sync its commits must be seen to lose.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask power --states 10000        about a minute and a half
  cargo xtask power --states 1000 --seed 7")]
pub(crate) struct PowerArgs {
    /// How many states to try
    #[arg(long, default_value_t = 10_000)]
    states: u64,
    /// Decides where the power is cut and what is left
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn kill(args: &KillArgs, stages: &mut Stages) -> Result<()> {
    let (kills, seed) = (args.kills.to_string(), args.seed.to_string());
    let plan = ["--kills", &kills, "--seed", &seed];
    stages.run("torture", || match args.store.as_str() {
        "postgres" => {
            let instances = args.instances.to_string();
            run_with(["many", "--instances", &instances].iter().chain(&plan))
        }
        _ => run_with(["kill"].iter().chain(&plan)),
    })
}

pub(crate) fn power(args: &PowerArgs, stages: &mut Stages) -> Result<()> {
    let PowerArgs { states, seed } = args;
    install_strace()?;
    stages.run("power", || {
        run_with(["power", "--states", &states.to_string(), "--seed", &seed.to_string()])
    })
}

pub(crate) fn run_with<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Result<()> {
    let mut command = cargo::command(["run", "--release", "-p", "piton-torture", "--"]);
    command.args(arguments);
    cargo::run(command)
}

/// Installs strace where it is missing and apt-get may, and says so.
pub(crate) fn install_strace() -> Result<()> {
    if has_strace() {
        return Ok(());
    }
    println!("strace, which records the writes, is missing: apt-get install --yes strace");
    let installed = Command::new("apt-get").args(["install", "--yes", "strace"]).status();
    let installed = installed.context("cannot start apt-get; install strace by hand")?;
    ensure!(installed.success() && has_strace(), "strace could not be installed; do it by hand");
    Ok(())
}

fn has_strace() -> bool {
    let mut version = Command::new("strace");
    version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}
