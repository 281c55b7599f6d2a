//! DBOS for Rust on PostgreSQL, in process, with its default configuration.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use dbos::{Config, DBOS, StartOptions, WorkflowRef, step};
use peer_driver::postgres::Database;
use peer_driver::{Engine, Options, Threads, resumed, until, waiting};

/// How long a workflow waits for its event.
const PATIENCE: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    peer_driver::main(Threads::All, start)
}

#[derive(Clone)]
struct Dbos {
    dbos: DBOS,
    chain: WorkflowRef<u64, u64>,
    listener: WorkflowRef<u64, ()>,
    sleeper: WorkflowRef<(u64, SystemTime), ()>,
    database: Database,
}

async fn start(options: Options) -> Result<Dbos> {
    let database = Database::create(options.require("database")?).await?;
    let config = Config::new("peer-dbos", database.url());
    let dbos = DBOS::new(Config { app_version: Some("1".to_owned()), ..config });
    let steps = options.steps;
    let chain = dbos.register_workflow("chain", move |first: u64| chain(first, steps))?;
    let listener = dbos.register_workflow("listener", listener)?;
    let sleeper = dbos.register_workflow("sleeper", sleeper)?;
    dbos.launch().await?;
    Ok(Dbos { dbos, chain, listener, sleeper, database })
}

async fn chain(first: u64, steps: u64) -> dbos::Result<u64> {
    let mut sum = first;
    for i in 0..steps {
        sum += step(&format!("step {i}"), || async move { dbos::Result::Ok(i) }).await?;
    }
    Ok(sum)
}

async fn listener(number: u64) -> dbos::Result<()> {
    step("before", || async {
        waiting();
        dbos::Result::Ok(())
    })
    .await?;
    let _: Option<u64> = dbos::recv(Some("go"), PATIENCE).await?;
    after(number).await
}

async fn sleeper((number, moment): (u64, SystemTime)) -> dbos::Result<()> {
    dbos::sleep(until(moment)).await?;
    after(number).await
}

async fn after(number: u64) -> dbos::Result<()> {
    step("after", || async move {
        resumed(number);
        dbos::Result::Ok(())
    })
    .await
}

impl Engine for Dbos {
    async fn chain(&self, first: u64) -> Result<u64> {
        Ok(self.chain.run(first).await?)
    }

    async fn start_listener(&self, number: u64) -> Result<()> {
        let id = format!("listener-{number}");
        let options = StartOptions { workflow_id: Some(&id), ..StartOptions::default() };
        self.listener.start_with(number, options).await?;
        Ok(())
    }

    async fn send_event(&self, number: u64) -> Result<()> {
        let id = format!("listener-{number}");
        let options = dbos::SendOptions { topic: Some("go"), ..Default::default() };
        Ok(self.dbos.send_with(&id, &number, options).await?)
    }

    async fn start_sleeper(&self, number: u64, moment: SystemTime) -> Result<()> {
        self.sleeper.start((number, moment)).await?;
        Ok(())
    }

    async fn remove(self) -> Result<()> {
        self.database.remove().await
    }
}
