//! Piton with its default options: on SQLite (`--dir`), on PostgreSQL (`--database`), or on SQLite through its HTTP API
//! (`--dir` and `--through http`).

mod http;
mod workflows;

use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Result;
use peer_driver::postgres::Database;
use peer_driver::{Options, Threads};
use piton::WorkflowHandle;
use piton::prelude::*;

use http::Http;
use workflows::{CHAIN, GO, LISTENER, SLEEPER};

fn main() -> ExitCode {
    // The store's writer is a thread of its own.
    peer_driver::main(Threads::AllButOne, start)
}

/// How Piton is called.
#[derive(Clone)]
enum Caller {
    InProcess(Box<InProcess>),
    Http(Http),
}

async fn start(options: Options) -> Result<Caller> {
    let (url, database) = match options.get("database") {
        Some(server) => {
            let database = Database::create(server).await?;
            (database.url(), Some(database))
        }
        None => (format!("sqlite:{}", options.dir()?.join("piton.db").display()), None),
    };
    let engine = workflows::start(url, options.steps).await?;
    Ok(match options.get("through") {
        Some("http") => Caller::Http(Http::serve(&engine).await?),
        Some(other) => anyhow::bail!("--through {other}: only `http` is known"),
        None => Caller::InProcess(Box::new(InProcess::new(&engine, database)?)),
    })
}

#[derive(Clone)]
struct InProcess {
    /// It stops with its last handle.
    _engine: Engine,
    chain: WorkflowHandle<u64, u64>,
    listener: WorkflowHandle<u64, ()>,
    sleeper: WorkflowHandle<(u64, SystemTime), ()>,
    database: Option<Database>,
}

impl InProcess {
    fn new(engine: &Engine, database: Option<Database>) -> Result<InProcess> {
        Ok(InProcess {
            _engine: engine.clone(),
            chain: engine.workflow(CHAIN)?,
            listener: engine.workflow(LISTENER)?,
            sleeper: engine.workflow(SLEEPER)?,
            database,
        })
    }
}

impl peer_driver::Engine for Caller {
    async fn chain(&self, first: u64) -> Result<u64> {
        match self {
            Caller::InProcess(piton) => Ok(piton.chain.create(first).await?.result().await?),
            Caller::Http(http) => http.chain(first).await,
        }
    }

    async fn start_listener(&self, number: u64) -> Result<()> {
        let id = format!("listener-{number}");
        match self {
            Caller::InProcess(piton) => piton.listener.create(number).id(id).await.map(drop)?,
            Caller::Http(http) => http.create(LISTENER, &id, number).await?,
        }
        Ok(())
    }

    async fn send_event(&self, number: u64) -> Result<()> {
        let id = format!("listener-{number}");
        match self {
            Caller::InProcess(piton) => {
                piton.listener.get(&id).await?.send_event(GO, &number).await?;
            }
            Caller::Http(http) => http.send_event(LISTENER, &id, number).await?,
        }
        Ok(())
    }

    async fn start_sleeper(&self, number: u64, moment: SystemTime) -> Result<()> {
        let params = (number, moment);
        match self {
            Caller::InProcess(piton) => piton.sleeper.create(params).await.map(drop)?,
            Caller::Http(http) => {
                http.create(SLEEPER, &format!("sleeper-{number}"), params).await?;
            }
        }
        Ok(())
    }

    async fn remove(self) -> Result<()> {
        if let Caller::InProcess(piton) = self
            && let Some(database) = piton.database
        {
            database.remove().await?;
        }
        Ok(())
    }
}
