//! What all drivers of the side-by-side benchmark share, so that they differ in nothing but the engine.
//!
//! A driver is one process that starts one engine and measures one workload once:
//!
//! ```text
//! driver --workload chain --steps 10 --count 64 --seconds 2 --dir DIR | --database URL
//! ready
//! start
//! stop
//! {"workflows":12345,"steps":123450,"seconds":2.0,"p50_us":1234,"p99_us":2345}
//! ```
//!
//! Beside those a driver takes options of its own. The lines on standard output say how far it is, for whoever looks at it
//! from outside ([`Phase`]); the last one is the result. Then everything stays as it is until standard input ends. What
//! goes wrong is told on standard error, with an exit code other than 0.

#![forbid(unsafe_code)]

mod engine;
#[cfg(feature = "http")]
pub mod http;
mod load;
mod options;
mod phase;
#[cfg(feature = "postgres")]
pub mod postgres;
mod result;
mod waits;

use std::process::ExitCode;

use anyhow::{Context, Result};
use tokio::runtime::Builder;

pub use engine::Engine;
pub use options::Options;
pub use phase::Phase;
pub use result::Measured;
pub use waits::{resumed, until, waiting};

use options::Kind;

/// On how many threads an engine's tasks run.
#[derive(Clone, Copy, Debug)]
pub enum Threads {
    /// One on every core: what `#[tokio::main]` gives.
    All,
    /// One core is left to a thread that the engine brings along.
    AllButOne,
}

/// The body of a driver's `main`: reads the options, starts the engine, measures and prints.
pub fn main<E: Engine>(
    threads: Threads,
    start: impl AsyncFnOnce(Options) -> Result<E>,
) -> ExitCode {
    match run(threads, start) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run<E: Engine>(threads: Threads, start: impl AsyncFnOnce(Options) -> Result<E>) -> Result<()> {
    let options = Options::parse(std::env::args().skip(1))?;
    let cores = std::thread::available_parallelism().context("how many cores are there?")?.get();
    let workers = match threads {
        Threads::All => cores,
        Threads::AllButOne => cores.saturating_sub(1).max(1),
    };
    let runtime = Builder::new_multi_thread().worker_threads(workers).enable_all().build()?;
    let driven = runtime.block_on(async {
        let engine = start(options.clone()).await.context("the engine did not start")?;
        Phase::Ready.tell();
        let measured = measure(&engine, &options).await;
        if let Ok(measured) = &measured {
            println!("{measured}");
            tokio::task::spawn_blocking(phase::until_let_go).await?;
        }
        engine.remove().await?;
        measured.map(drop)
    });
    // The engine is not shut down: its state is of no use to anybody, and what it leaves behind must not keep a finished
    // measurement waiting.
    runtime.shutdown_background();
    driven
}

async fn measure<E: Engine>(engine: &E, options: &Options) -> Result<Measured> {
    match options.kind {
        Kind::Chain => load::chain(engine, options).await,
        Kind::Burst => load::burst(engine, options).await,
        Kind::WarmBurst => {
            load::first_calls(engine, options).await?;
            load::burst(engine, options).await
        }
        Kind::Event => waits::event(engine, options).await,
        Kind::Sleep => waits::sleep(engine, options).await,
        Kind::Idle => load::idle(options).await,
    }
}
