//! duroxide on its SQLite provider, in process, with its default options.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow};
use duroxide::providers::sqlite::SqliteProvider;
use duroxide::runtime::Runtime;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::{ActivityContext, Client, OrchestrationContext, OrchestrationRegistry};
use peer_driver::{Engine, Options, Threads, resumed, until, waiting};

/// How long one workflow may take.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    peer_driver::main(Threads::All, start)
}

#[derive(Clone)]
struct Duroxide {
    client: Arc<Client>,
    /// Stops when it is dropped.
    _runtime: Arc<Runtime>,
}

async fn start(options: Options) -> Result<Duroxide> {
    let file = options.dir()?.join("duroxide.db");
    // The provider opens files that exist.
    std::fs::File::create(&file).with_context(|| format!("cannot create {}", file.display()))?;
    let url = format!("sqlite:{}", file.display());
    let store = Arc::new(SqliteProvider::new(&url, None).await?);
    let steps = options.steps;
    let activities = ActivityRegistry::builder()
        .register_typed("step", |_: ActivityContext, number: u64| async move { Ok(number) })
        .register_typed("before", |_: ActivityContext, (): ()| async {
            waiting();
            Ok(())
        })
        .register_typed("after", |_: ActivityContext, number: u64| async move {
            resumed(number);
            Ok(())
        })
        .build();
    let orchestrations = OrchestrationRegistry::builder()
        .register_typed("chain", move |cx: OrchestrationContext, first: u64| {
            chain(cx, first, steps)
        })
        .register_typed("listener", listener)
        .register_typed("sleeper", sleeper)
        .build();
    let runtime =
        Runtime::start_with_store(Arc::<SqliteProvider>::clone(&store), activities, orchestrations)
            .await;
    Ok(Duroxide { client: Arc::new(Client::new(store)), _runtime: runtime })
}

async fn chain(cx: OrchestrationContext, first: u64, steps: u64) -> Result<u64, String> {
    let mut sum = first;
    for i in 0..steps {
        sum += cx.schedule_activity_typed::<u64, u64>("step", &i).await?;
    }
    Ok(sum)
}

async fn listener(cx: OrchestrationContext, number: u64) -> Result<(), String> {
    cx.schedule_activity_typed::<(), ()>("before", &()).await?;
    cx.schedule_wait("go").await;
    cx.schedule_activity_typed::<u64, ()>("after", &number).await
}

async fn sleeper(
    cx: OrchestrationContext,
    (number, moment): (u64, SystemTime),
) -> Result<(), String> {
    cx.schedule_timer(until(moment)).await;
    cx.schedule_activity_typed::<u64, ()>("after", &number).await
}

impl Engine for Duroxide {
    async fn chain(&self, first: u64) -> Result<u64> {
        let id = format!("chain-{first}");
        self.client.start_orchestration_typed(&id, "chain", first).await?;
        let sum = self.client.wait_for_orchestration_typed(&id, PATIENCE).await?;
        sum.map_err(|message: String| anyhow!(message))
    }

    async fn start_listener(&self, number: u64) -> Result<()> {
        let id = format!("listener-{number}");
        Ok(self.client.start_orchestration_typed(&id, "listener", number).await?)
    }

    async fn send_event(&self, number: u64) -> Result<()> {
        Ok(self.client.raise_event(format!("listener-{number}"), "go", "").await?)
    }

    async fn start_sleeper(&self, number: u64, moment: SystemTime) -> Result<()> {
        let id = format!("sleeper-{number}");
        Ok(self.client.start_orchestration_typed(&id, "sleeper", (number, moment)).await?)
    }
}
