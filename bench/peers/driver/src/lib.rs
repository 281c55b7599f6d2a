//! What all drivers of the side-by-side benchmark share, so that they differ in nothing but the engine.
//!
//! A driver is one process that measures one workload once:
//!
//! ```text
//! driver --steps 10 --in-flight 64 --seconds 3 --dir DIR | --database URL
//! {"workflows":12345,"steps":123450,"seconds":3.0,"p50_us":1234,"p99_us":2345}
//! ```
//!
//! Beside those a driver takes options of its own. Its one line on standard output is the result; what goes wrong is told
//! on standard error, with an exit code other than 0.

#![forbid(unsafe_code)]

#[cfg(feature = "http")]
pub mod http;
mod load;
mod options;
#[cfg(feature = "postgres")]
pub mod postgres;

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use tokio::runtime::Builder;

pub use load::{Measured, measure};
pub use options::Options;

/// On how many threads an engine's tasks run.
#[derive(Clone, Copy, Debug)]
pub enum Threads {
    /// One on every core: what `#[tokio::main]` gives.
    All,
    /// One core is left to a thread that the engine brings along.
    AllButOne,
}

/// The body of a driver's `main`: reads the options, measures and prints.
pub fn main<F>(threads: Threads, drive: impl FnOnce(Options) -> F) -> ExitCode
where
    F: Future<Output = Result<Measured>>,
{
    match run(threads, drive) {
        Ok(measured) => {
            println!("{measured}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run<F>(threads: Threads, drive: impl FnOnce(Options) -> F) -> Result<Measured>
where
    F: Future<Output = Result<Measured>>,
{
    let options = Options::parse(std::env::args().skip(1))?;
    let cores = std::thread::available_parallelism().context("how many cores are there?")?.get();
    let workers = match threads {
        Threads::All => cores,
        Threads::AllButOne => cores.saturating_sub(1).max(1),
    };
    let runtime = Builder::new_multi_thread().worker_threads(workers).enable_all().build()?;
    let measured = runtime.block_on(drive(options));
    // What an engine leaves behind must not keep a finished measurement waiting.
    runtime.shutdown_background();
    measured
}

/// The result of a workflow of `steps` steps that was started with `first`: each step adds its number.
pub fn check_sum(first: u64, steps: u64, sum: u64) -> Result<()> {
    let expected = first + steps * (steps - 1) / 2;
    ensure!(sum == expected, "{steps} steps added up to {sum} from {first}");
    Ok(())
}
