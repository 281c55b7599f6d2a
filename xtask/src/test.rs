//! `cargo xtask test`: every test of the workspace.

use anyhow::Result;
use private_postgres::Place;

use crate::cargo;
use crate::postgres::Database;
use crate::stages::Stages;

/// Run all tests: unit, integration, example and documentation tests.
///
/// Runs `cargo nextest run --workspace` if cargo-nextest is installed, otherwise `cargo test` for the same targets, and
/// then `cargo test --doc --workspace`, because nextest does not run documentation tests.
///
/// The tests of the PostgreSQL store run on a private server, started for them and stopped afterwards; set
/// PITON_TEST_POSTGRES_URL to have them use another one. Each test has a schema of its own there.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask test                      everything
  cargo xtask test -- -p piton-core     one crate
  cargo xtask test -- retry             the tests with `retry` in their name")]
pub(crate) struct Args {
    /// Passed on to the test runner, to narrow or tune the run; documentation tests are then left out
    #[arg(last = true, value_name = "RUNNER ARGS")]
    pub(crate) runner_args: Vec<String>,
}

pub(crate) fn run(args: &Args, stages: &mut Stages) -> Result<()> {
    if args.runner_args.is_empty() {
        return run_all(&[], stages);
    }
    // No `--workspace`: it would override a `-p` among the arguments. Without either, cargo takes every crate anyway.
    stages.run("tests", || run_tests(&[], &args.runner_args))?;
    stages.skip("doc tests", "runner arguments were given");
    Ok(())
}

/// All tests. `nextest_args` reach nextest only, not the `cargo test` that stands in for it.
pub(crate) fn run_all(nextest_args: &[&str], stages: &mut Stages) -> Result<()> {
    stages.run("tests", || run_tests(nextest_args, &["--workspace".to_owned()]))?;
    stages.run("doc tests", || cargo::run(cargo::command(["test", "--doc", "--workspace"])))
}

fn run_tests(nextest_args: &[&str], args: &[String]) -> Result<()> {
    let database = Database::open(Place::Memory)?;
    let mut command = if cargo::is_installed("nextest") {
        cargo::command(["nextest", "run"].iter().chain(nextest_args))
    } else {
        println!("cargo-nextest is not installed, so `cargo test` runs the tests");
        cargo::command(["test", "--lib", "--bins", "--tests", "--examples"])
    };
    command.args(args);
    database.tell(&mut command);
    cargo::run(command)
}
