//! `cargo xtask sim`: the simulator, always built for release.

use std::ffi::OsString;

use anyhow::Result;

use crate::cargo;
use crate::stages::Stages;

/// Run the real engine in a simulated world of faults and check every invariant.
///
/// Runs `cargo run --release -p piton-testing --bin piton-sim` with the options passed on; the same seed gives the same
/// history on every machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask sim --seeds 20000           twenty thousand seeds, up to the first violation
  cargo xtask sim --seeds 1000 --from 7   a thousand, from seed 7
  cargo xtask sim --seed 42 --trace       one seed, with one line per action
  cargo xtask sim --planted               finds every planted bug, and prints after how many seeds")]
pub(crate) struct Args {
    /// What the simulator takes: `--seeds N`, `--from S`, `--seed S`, `--trace`, `--planted`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
    options: Vec<OsString>,
}

pub(crate) fn run(args: &Args, stages: &mut Stages) -> Result<()> {
    stages.run("sim", || run_with(&args.options))
}

/// Runs the simulator with its own arguments.
pub(crate) fn run_with(options: &[impl AsRef<std::ffi::OsStr>]) -> Result<()> {
    let mut command = cargo::command(["run", "--release", "-p", "piton-testing"]);
    if options.iter().any(|option| option.as_ref() == "--planted") {
        command.args(["--features", "planted"]);
    }
    command.args(["--bin", "piton-sim", "--"]).args(options);
    cargo::run(command)
}
