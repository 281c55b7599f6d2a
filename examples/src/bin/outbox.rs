//! Hooks without any workflow: what must happen after a commit happens, even if the process dies in between.
//!
//! A user signs up: one transaction of the program's own inserts the row and triggers the hook that sends the mail. There is
//! no mail without a user and no user without a mail. To see that, let it hang where it hurts, kill it, and start it again:
//!
//! ```sh
//! cargo run --bin outbox -- --hang commit     # kill it: the user is there, the mail is not sent yet
//! cargo run --bin outbox -- --hang handler    # kill it: the mail may have been sent, nobody knows
//! cargo run --bin outbox                      # sends what is left
//! cargo run --bin outbox -- --abort bob ada bob cy    # bob's mail kills the process
//! cargo run --bin outbox -- --abort bob               # again and again, until it is given up
//! ```

use clap::{Parser, ValueEnum};
use piton::Span;
use piton::hooks::{HookContext, HookStatus, Hooks};
use piton::prelude::*;
use piton::rusqlite::{Connection, TransactionBehavior};
use serde::{Deserialize, Serialize};

const DATABASE: &str = "users.db";

#[derive(Parser)]
struct Args {
    /// Hang instead of going on, to be killed.
    #[arg(long)]
    hang: Option<Moment>,
    /// Abort the process in the handler of this user.
    #[arg(long, value_name = "USER")]
    abort: Option<String>,
    /// Who signs up.
    users: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Moment {
    /// After the transaction has committed, before anything else.
    Commit,
    /// In the middle of sending the mail.
    Handler,
}

#[derive(Serialize, Deserialize)]
struct User {
    name: String,
}

/// Adds a user, and sees to it that the mail will be sent.
fn sign_up(database: &mut Connection, name: &str) -> Result<()> {
    let user = User { name: name.to_owned() };
    let tx = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    tx.execute("INSERT INTO user (name) VALUES (?1)", [&user.name])?;
    piton::hooks::trigger(&tx, "user.created", &user)
        .retry(Retries::exponential(5, "1 second").cap("1 minute"))
        .store()?;
    tx.commit()?;
    Ok(())
}

/// Sends the mail.
async fn welcome(user: User, cx: HookContext, hang: Option<Moment>) -> Result<()> {
    if hang == Some(Moment::Handler) {
        println!("about to welcome {}", user.name);
        std::future::pending::<()>().await;
    }
    // The mail service gets the key too: it sends one mail per key, however often it is asked.
    println!("welcome, {} (attempt {})", user.name, cx.attempt());
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let (hang, abort) = (args.hang, args.abort);
    let hooks = Hooks::new().on("user.created", move |user: User, cx| {
        if abort.as_deref() == Some(&user.name) {
            std::process::abort();
        }
        welcome(user, cx, hang)
    });
    let builder = Engine::builder(format!("sqlite:{DATABASE}"));
    let builder = if hang == Some(Moment::Commit) { builder.no_runner() } else { builder };
    let engine = builder.hooks(hooks).start().await?;

    let mut database = Connection::open(DATABASE)?;
    database.execute_batch("CREATE TABLE IF NOT EXISTS user (name TEXT PRIMARY KEY)")?;
    for name in &args.users {
        sign_up(&mut database, name)?;
    }
    // A transaction of our own: nobody has told the engine of it.
    engine.hooks().wake();
    if hang.is_some() {
        println!("committed");
        std::future::pending::<()>().await;
    }
    // Until nothing waits any more: a hook in hand counts, until its outcome is recorded.
    while engine.next_wake_at().await?.is_some() {
        engine.runtime().sleep(Span::from_millis(5)).await;
    }
    let users: i64 = database.query_row("SELECT count(*) FROM user", [], |row| row.get(0))?;
    let failed = engine.hooks().list().status(HookStatus::Failed).await?.items;
    for hook in &failed {
        let why = hook.error.as_ref().map_or("", |error| &error.message);
        println!("given up: {} {why}", hook.payload.as_str());
    }
    if failed.is_empty() {
        println!("{users} users, all welcomed");
    }
    engine.shutdown("1 second").await?;
    Ok(())
}
