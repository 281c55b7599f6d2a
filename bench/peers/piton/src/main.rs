//! Piton with its default options: on SQLite (`--dir`), on PostgreSQL (`--database`), or on SQLite through its HTTP API
//! (`--dir` and `--through http`).

mod http;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use peer_driver::postgres::Database;
use peer_driver::{Measured, Options, Threads, check_sum, measure};
use piton::prelude::*;

/// How long the engine may take to stop.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the workflow is registered as.
const CHAIN: &str = "chain";

fn main() -> ExitCode {
    // The store's writer is a thread of its own.
    peer_driver::main(Threads::AllButOne, drive)
}

async fn drive(options: Options) -> Result<Measured> {
    if let Some(server) = options.get("database") {
        let database = Database::create(server).await?;
        let measured = in_process(&options, database.url()).await;
        database.remove().await?;
        return measured;
    }
    let file = format!("sqlite:{}", options.dir()?.join("piton.db").display());
    match options.get("through") {
        Some("http") => http::drive(&options, file).await,
        Some(other) => anyhow::bail!("--through {other}: only `http` is known"),
        None => in_process(&options, file).await,
    }
}

struct Chain {
    steps: u64,
}

impl Workflow for Chain {
    const NAME: &'static str = CHAIN;
    type Params = u64;
    type Output = u64;

    async fn run(&self, first: Event<u64>, step: &Step) -> piton::Result<u64> {
        let mut sum = *first;
        for i in 0..self.steps {
            sum += step.run(format!("step {i}"), async move { Ok(i) }).await?;
        }
        Ok(sum)
    }
}

async fn in_process(options: &Options, database: String) -> Result<Measured> {
    let steps = options.steps;
    let engine = Engine::builder(database).register(Chain { steps }).start().await?;
    let chain = engine.workflow::<u64, u64>(CHAIN)?;
    let measured = measure(options, move |number| {
        let chain = chain.clone();
        async move { check_sum(number, steps, chain.create(number).await?.result().await?) }
    });
    let measured = measured.await;
    engine.shutdown(PATIENCE).await?;
    measured
}
