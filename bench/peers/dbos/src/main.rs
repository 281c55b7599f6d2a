//! DBOS for Rust on PostgreSQL, in process, with its default configuration.

use std::process::ExitCode;

use anyhow::Result;
use dbos::{Config, DBOS, step};
use peer_driver::postgres::Database;
use peer_driver::{Measured, Options, Threads, check_sum, measure};

fn main() -> ExitCode {
    peer_driver::main(Threads::All, drive)
}

async fn drive(options: Options) -> Result<Measured> {
    let database = Database::create(options.require("database")?).await?;
    let config = Config::new("peer-dbos", database.url());
    let dbos = DBOS::new(Config { app_version: Some("1".to_owned()), ..config });
    let steps = options.steps;
    let chain = dbos.register_workflow("chain", move |first: u64| chain(first, steps))?;
    dbos.launch().await?;
    let measured = measure(&options, move |number| {
        let chain = chain.clone();
        async move { check_sum(number, steps, chain.run(number).await?) }
    });
    let measured = measured.await;
    dbos.shutdown().await;
    database.remove().await?;
    measured
}

async fn chain(first: u64, steps: u64) -> dbos::Result<u64> {
    let mut sum = first;
    for i in 0..steps {
        sum += step(&format!("step {i}"), || async move { dbos::Result::Ok(i) }).await?;
    }
    Ok(sum)
}
