//! duroxide on its SQLite provider, in process, with its default options.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use duroxide::providers::sqlite::SqliteProvider;
use duroxide::runtime::Runtime;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::{ActivityContext, Client, OrchestrationContext, OrchestrationRegistry};
use peer_driver::{Measured, Options, Threads, check_sum, measure};

/// How long one workflow may take.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    peer_driver::main(Threads::All, drive)
}

async fn drive(options: Options) -> Result<Measured> {
    let file = options.dir()?.join("duroxide.db");
    // The provider opens files that exist.
    std::fs::File::create(&file).with_context(|| format!("cannot create {}", file.display()))?;
    let url = format!("sqlite:{}", file.display());
    let store = Arc::new(SqliteProvider::new(&url, None).await?);
    let steps = options.steps;
    let activities = ActivityRegistry::builder().register_typed("step", step).build();
    let orchestrations = OrchestrationRegistry::builder()
        .register_typed("chain", move |cx: OrchestrationContext, first: u64| {
            chain(cx, first, steps)
        })
        .build();
    let runtime =
        Runtime::start_with_store(Arc::<SqliteProvider>::clone(&store), activities, orchestrations)
            .await;
    let client = Arc::new(Client::new(store));
    let measured = measure(&options, move |number| call(Arc::clone(&client), number, steps)).await;
    runtime.shutdown(None).await;
    measured
}

async fn call(client: Arc<Client>, number: u64, steps: u64) -> Result<()> {
    let id = format!("chain-{number}");
    client.start_orchestration_typed(&id, "chain", number).await?;
    let sum = client.wait_for_orchestration_typed(&id, PATIENCE).await?;
    check_sum(number, steps, sum.map_err(|message| anyhow!(message))?)
}

async fn step(_: ActivityContext, number: u64) -> Result<u64, String> {
    Ok(number)
}

async fn chain(cx: OrchestrationContext, first: u64, steps: u64) -> Result<u64, String> {
    let mut sum = first;
    for i in 0..steps {
        sum += cx.schedule_activity_typed::<u64, u64>("step", &i).await?;
    }
    Ok(sum)
}
