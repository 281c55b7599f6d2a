//! Many processes on one PostgreSQL database: start `api` once and `worker` as often as you like.
//!
//! ```text
//! many_workers URL worker             advances runs until it is told to stop, by a line on its standard input
//! many_workers URL api COUNT          creates COUNT orders, waits for all of them, and advances nothing itself
//! ```
//!
//! Each order is packed in five steps. A step notes its work in the program's own table, in the very transaction that
//! records the step: so the table has each note exactly once, whatever happens to the workers.

use anyhow::{Context, bail};
use piton::EngineBuilder;
use piton::prelude::*;
use piton::sqlx::{Connection, Executor, PgConnection};

const STEPS: u32 = 5;

async fn pack(order: Event<u32>, step: &Step) -> Result<u32> {
    let id = order.instance_id.as_str();
    for n in 0..STEPS {
        step.run_with(format!("item {n}"), |cx| async move {
            let note = "INSERT INTO packed (order_id, item) VALUES ($1, $2)";
            cx.transaction().execute(note, (id, i64::from(n)));
            Ok(())
        })
        .await?;
        step.sleep(format!("breath {n}"), "20 ms").await?;
    }
    Ok(*order)
}

fn engine(url: &str) -> EngineBuilder {
    // A short lease: the work of a process that dies is taken over within two seconds.
    Engine::builder(url).register(workflow("pack", pack)).lease("2 seconds").quarantine_after(1_000)
}

async fn work(url: &str) -> anyhow::Result<()> {
    let engine = engine(url).concurrency(16).start().await?;
    println!("working");
    // Blocks a thread of its own: there is nothing else to wait for.
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
    // Runs that are not done are handed to the other workers at once.
    engine.shutdown("5 seconds").await?;
    Ok(())
}

async fn create(url: &str, count: u32) -> anyhow::Result<()> {
    let mut database = PgConnection::connect(url).await?;
    database
        .execute("CREATE TABLE IF NOT EXISTS packed (order_id TEXT, item BIGINT, PRIMARY KEY (order_id, item))")
        .await?;
    let engine = engine(url).no_runner().start().await?;
    let orders = engine.workflow::<u32, u32>("pack")?;
    let mut created = Vec::new();
    for n in 0..count {
        created.push(orders.create(n).id(format!("order-{n}")).await?);
    }
    println!("created");
    for (n, order) in (0..count).zip(created) {
        let packed = order.result().await?;
        anyhow::ensure!(packed == n, "order {n} came back as {packed}");
    }
    println!("{count} orders packed");
    engine.shutdown("5 seconds").await?;
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [url, "worker"] => work(url).await,
        [url, "api", count] => create(url, count.parse().context("COUNT is a number")?).await,
        _ => bail!("usage: many_workers URL worker | many_workers URL api COUNT"),
    }
}
