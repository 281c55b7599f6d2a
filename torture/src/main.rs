//! What a real process and a real disk do to Piton: kill -9 and power loss.
//!
//! - `kill`: a loaded process is killed at random moments, again and again; then what the outside was told is compared
//!   with what the database has, and with what was executed.
//! - `many`: several processes on PostgreSQL, which are killed, stopped and cut off while the server is restarted.
//! - `power`: the writes and syncs of a loaded process are recorded; then the power is cut, on paper, at thousands of
//!   moments, and each database that could be left is opened.
//! - `work`: the loaded process itself.

mod climb;
mod control;
mod kill;
mod ledger;
mod many;
mod power;
mod processes;
mod recording;
mod verdict;
mod work;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

#[derive(Debug, Parser)]
enum Command {
    /// Kill a loaded process at random moments and check that nothing is lost, done twice or stuck.
    Kill(kill::Args),
    /// Kill, stop and cut off processes that share a PostgreSQL server, and check the same.
    Many(many::Args),
    /// Cut the power at random moments and check that nothing acknowledged is lost.
    Power(power::Args),
    /// The loaded process: works until it is killed.
    #[command(hide = true)]
    Work {
        /// Where its files are.
        directory: PathBuf,
        /// Creates no more than this many instances; then drains and ends.
        #[arg(long)]
        instances: Option<u32>,
    },
    /// One of the processes of `many` that advance runs.
    #[command(hide = true)]
    Worker {
        /// Where its files are.
        directory: PathBuf,
        /// Where the database is.
        url: String,
    },
    /// The process of `many` that creates runs.
    #[command(hide = true)]
    Api {
        /// Where its files are.
        directory: PathBuf,
        /// Where the database is.
        url: String,
        /// How many instances it creates and sees end.
        #[arg(long)]
        instances: u32,
    },
    /// A plain SQLite writer that does not sync its commits.
    #[command(hide = true)]
    Control {
        /// Where its files are.
        directory: PathBuf,
        /// How many rows it writes.
        #[arg(long)]
        rows: u32,
    },
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Kill(args) => kill::run(&args),
        Command::Many(args) => many::run(&args),
        Command::Power(args) => power::run(&args),
        Command::Worker { directory, url } => processes::worker(&directory, &url),
        Command::Api { directory, url, instances } => processes::api(&directory, &url, instances),
        Command::Work { directory, instances } => work::run(&directory, instances),
        Command::Control { directory, rows } => control::run(&directory, rows),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
