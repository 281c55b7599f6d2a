//! The processes of `many`: workers that advance runs, and one that creates them and keeps the books.

use std::io::Read;
use std::path::Path;

use anyhow::Result;
use piton::{Engine, EngineBuilder};

use crate::climb::Climb;
use crate::ledger::{Files, Lines};
use crate::work::Crowd;

/// How long a worker may be silent before others take over, in milliseconds.
pub(crate) const LEASE_MS: u64 = 2_000;

/// Clients of the API process.
const CLIENTS: u32 = 50;

/// Advances runs until it is killed, or until its standard input ends.
pub(crate) fn worker(directory: &Path, url: &str) -> Result<()> {
    let files = Files::new(directory);
    block_on(async {
        let engine = start(url, &files, |builder| builder.concurrency(32)).await?;
        // "Engine(runner_… on postgres)"
        let told = format!("{engine:?}");
        let runner = told.trim_start_matches("Engine(").split(' ').next().unwrap_or_default();
        Lines::open(&files.runners())?.add(&format!("{} {runner}", std::process::id()));
        tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
        Ok(())
    })
}

/// Creates instances, sees all of them end, and notes what it was told.
pub(crate) fn api(directory: &Path, url: &str, instances: u32) -> Result<()> {
    let files = Files::new(directory);
    block_on(async {
        let engine = start(url, &files, EngineBuilder::no_runner).await?;
        let crowd = Crowd::new(&engine, &files)?;
        crowd.let_loose(CLIENTS, instances.div_ceil(CLIENTS)).await
    })
}

fn block_on(work: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let done = runtime.block_on(work);
    // What still waits for the standard input must not keep the process alive.
    runtime.shutdown_background();
    done
}

/// Starts an engine; the server may be away at this very moment.
async fn start(
    url: &str,
    files: &Files,
    role: impl Fn(EngineBuilder) -> EngineBuilder,
) -> Result<Engine> {
    loop {
        // What kills a worker here is never the run's own fault.
        let builder = Engine::builder(url).register(Climb::new(files)?).quarantine_after(10_000);
        let lease_ms = i64::try_from(LEASE_MS)?;
        let builder = role(builder.lease(lease_ms).poll_interval("100 ms"));
        match builder.start().await {
            Ok(engine) => return Ok(engine),
            Err(error) if error.code() == Some("STORE_UNUSABLE") => {
                tokio::task::yield_now().await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}
