//! `cargo xtask ci`: all that must hold before a change is merged.

use anyhow::Result;

use crate::stages::Stages;
use crate::{bench, cargo, sim, test, tidy, torture};

/// How many histories are simulated: a minute or two on two cores.
const SIM_SEEDS: &str = "20000";

/// How often a loaded process is killed: some seconds. Hundreds are for `cargo xtask torture`.
const KILLS: &str = "20";

/// The same on PostgreSQL, where the server is restarted, too: some seconds.
const MANY_KILLS: &str = "5";
const MANY_INSTANCES: &str = "300";

/// In how many states a power loss may leave the files: a minute or two.
const POWER_STATES: &str = "10000";

/// Run all that continuous integration runs, cheapest first, up to the first failure.
///
/// The stages: formatting, tidy, clippy and rustdoc without a warning, all tests, twenty thousand simulated histories that
/// reach every rare state, the planted bugs that the simulator must find, twenty kills, five
/// more of processes that share a PostgreSQL server, ten thousand power losses, a tiny benchmark so that it cannot rot, and `cargo deny check` if cargo-deny is installed. Ends with a table of how long each of them took.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask ci                        before every commit
  cargo install --locked cargo-deny     to have licences and advisories checked, too")]
pub(crate) struct Args;

pub(crate) fn run(stages: &mut Stages) -> Result<()> {
    stages.run("fmt", || cargo::run(cargo::command(["fmt", "--all", "--check"])))?;
    tidy::run(stages)?;
    stages.run("clippy", clippy)?;
    stages.run("doc", doc)?;
    test::run_all(&["--profile", "ci"], stages)?;
    stages.run("sim", || sim::run_with(&["--seeds", SIM_SEEDS, "--every-rare-state"]))?;
    stages.run("planted", || sim::run_with(&["--planted"]))?;
    stages.run("torture", || torture::run_with(["kill", "--kills", KILLS]))?;
    let many = ["many", "--kills", MANY_KILLS, "--instances", MANY_INSTANCES];
    stages.run("torture pg", || torture::run_with(many))?;
    if torture::install_strace().is_ok() {
        stages.run("power", || torture::run_with(["power", "--states", POWER_STATES]))?;
    } else {
        stages.skip("power", "strace is missing and could not be installed");
    }
    stages.run("bench", || bench::run_with(["--tiny"]))?;
    stages.run("bench pg", || bench::run_with(["--tiny", "--store", "postgres"]))?;
    // Last, as the only stage that needs the network: an advisory of today must not hide a broken test.
    if cargo::is_installed("deny") {
        stages.run("deny", || cargo::run(cargo::command(["deny", "check"])))?;
    } else {
        stages.skip("deny", "not installed; `cargo install --locked cargo-deny`");
    }
    Ok(())
}

fn clippy() -> Result<()> {
    let targets = ["clippy", "--workspace", "--all-targets", "--all-features"];
    let lints = ["--", "-D", "warnings"];
    cargo::run(cargo::command(targets.iter().chain(&lints)))
}

fn doc() -> Result<()> {
    let mut command = cargo::command(["doc", "--workspace", "--no-deps", "--all-features"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    cargo::run(command)
}
