//! The one door to everything a developer types: `cargo xtask test`, `ci`, `sim`, `torture`, `power`, `bench` and `tidy`.
//!
//! Each command is a sequence of named, timed [`Stages`]; the first one that fails ends it. A command says what it runs
//! before it runs it, so that any line can be repeated by hand.

mod against;
mod bench;
mod cargo;
mod ci;
mod postgres;
mod sim;
mod stages;
mod test;
mod tidy;
mod torture;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use crate::stages::Stages;

/// Build, test, check and measure Piton.
#[derive(Debug, Parser)]
#[command(
    name = "xtask",
    bin_name = "cargo xtask",
    after_help = "Before a commit: cargo xtask ci\nOne command in detail: cargo xtask test --help"
)]
enum Command {
    Test(test::Args),
    Ci(ci::Args),
    Bench(bench::Args),
    Sim(sim::Args),
    Torture(torture::KillArgs),
    Power(torture::PowerArgs),
    Tidy(tidy::Args),
}

impl Command {
    fn run(&self, stages: &mut Stages) -> Result<()> {
        match self {
            Command::Test(args) => test::run(args, stages),
            Command::Ci(ci::Args) => ci::run(stages),
            Command::Bench(args) => bench::run(args, stages),
            Command::Sim(args) => sim::run(args, stages),
            Command::Torture(args) => torture::kill(args, stages),
            Command::Power(args) => torture::power(args, stages),
            Command::Tidy(tidy::Args) => tidy::run(stages),
        }
    }
}

fn main() -> ExitCode {
    let command = Command::parse();
    let mut stages = Stages::default();
    let outcome = command.run(&mut stages);
    println!("\n{stages}");
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Command::command().debug_assert();
    }

    #[test]
    fn everything_after_the_dashes_goes_to_the_test_runner() {
        let command =
            Command::parse_from(["xtask", "test", "--", "-p", "piton-core", "--nocapture"]);
        let Command::Test(args) = command else { panic!("parsed as another command: {command:?}") };
        assert_eq!(args.runner_args, ["-p", "piton-core", "--nocapture"]);
    }
}
