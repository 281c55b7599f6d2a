//! Writes to the program's own table in the very transaction that records the step: exactly once.
//!
//! An outside effect can only be repeated safely; a row in the same database can do better. Ten transfers move
//! money between two accounts. Each is a row and two updates, there exactly if its step is recorded, whatever
//! crashes in between.

use piton::prelude::*;
use piton::rusqlite::Connection;
use piton::store::SqlValue;
use serde::{Deserialize, Serialize};

const DATABASE: &str = "bank.db";

#[derive(Clone, Serialize, Deserialize)]
struct Transfer {
    from: String,
    to: String,
    cents: i64,
}

async fn transfer(order: Event<Transfer>, step: &Step) -> Result<()> {
    let (order, id) = (&order.payload, order.instance_id.as_str());
    step.run_with("move money", |cx| async move {
        let tx = cx.transaction();
        // Portable statements, executed in this order when the step is recorded ...
        tx.execute(
            "INSERT INTO transfer (id, cents) VALUES (?1, ?2)",
            [SqlValue::from(id), SqlValue::from(order.cents)],
        );
        // ... and anything else that `rusqlite` can do.
        let Transfer { from, to, cents } = order.clone();
        tx.sqlite(move |tx| {
            let add = "UPDATE account SET cents = cents + ?2 WHERE owner = ?1";
            tx.execute(add, (from, -cents))?;
            tx.execute(add, (to, cents))?;
            Ok(())
        });
        Ok(())
    })
    .retries(Retries::none())
    .await
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let database = Connection::open(DATABASE)?;
    database.execute_batch(
        "CREATE TABLE IF NOT EXISTS account (owner TEXT PRIMARY KEY, cents INTEGER CHECK (cents >= 0));
         CREATE TABLE IF NOT EXISTS transfer (id TEXT PRIMARY KEY, cents INTEGER);
         INSERT OR REPLACE INTO account VALUES ('ada', 1000), ('bob', 0);",
    )?;

    let engine = Engine::builder(format!("sqlite:{DATABASE}"))
        .register(workflow("transfer", transfer))
        .start()
        .await?;
    let transfers = engine.workflow::<Transfer, ()>("transfer")?;
    let order = Transfer { from: "ada".into(), to: "bob".into(), cents: 70 };
    for _ in 0..10 {
        transfers.create(order.clone()).await?.result().await?;
    }

    // A statement that fails undoes the whole transaction: the account must not be overdrawn.
    let too_much = Transfer { cents: 5_000, ..order };
    let refused = transfers.create(too_much).await?.result().await;
    println!("5000 cents: {}", refused.expect_err("there is not enough money"));

    let count: i64 = database.query_row("SELECT count(*) FROM transfer", [], |row| row.get(0))?;
    let bob: i64 =
        database
            .query_row("SELECT cents FROM account WHERE owner = 'bob'", [], |row| row.get(0))?;
    println!("{count} transfers, bob has {bob} cents");
    engine.shutdown("5 seconds").await?;
    Ok(())
}
