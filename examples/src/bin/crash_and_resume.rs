//! Dies in the middle of its work and, started again, goes on where it was.
//!
//! ```text
//! crash_and_resume work.db witness.txt --crash-after 7    # dies in the seventh step body
//! crash_and_resume work.db witness.txt                    # does the rest
//! ```
//!
//! Every step body that is executed adds a line `instance run step attempt process` to the witness file before it
//! does anything else, and every reported result a line `done instance`. When a step's body starts, the results of
//! all steps before it are committed: no line of theirs may follow. Every second step also adds a row to the table
//! `climbed` in its own transaction. A test kills this program fifty times and checks both.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Parser;
use futures_util::future::try_join_all;
use piton::BatchItem;
use piton::prelude::*;
use piton::rusqlite::Connection;

/// Dies in the middle of its work and, started again, goes on where it was.
#[derive(Parser)]
struct Args {
    /// The SQLite file
    database: PathBuf,
    /// The file that every executed step body adds a line to
    witness: PathBuf,
    /// How many instances there are to be
    #[arg(long, default_value_t = 3)]
    instances: u32,
    /// How many steps a new instance has
    #[arg(long, default_value_t = 5)]
    steps: u32,
    /// Abort this process in the body of the step that it executes as its N-th
    #[arg(long, value_name = "N")]
    crash_after: Option<u64>,
}

/// The workflow with what it needs: a place to write to, and the moment to die.
struct Climb {
    witness: Arc<Witness>,
    crash_after: Option<u64>,
    executed: AtomicU64,
}

impl Workflow for Climb {
    const NAME: &'static str = "climb";
    type Params = u32;
    type Output = Vec<u32>;

    /// Returns, for each step, the process that executed it.
    async fn run(&self, steps: Event<u32>, step: &Step) -> Result<Vec<u32>> {
        let mut processes = Vec::new();
        for n in 1..=*steps {
            let body = step.run_with(format!("step-{n}"), |cx| async move {
                let key = cx.idempotency_key();
                if n % 2 == 0 {
                    cx.transaction().execute("INSERT INTO climbed (step) VALUES (?1)", [&key]);
                }
                self.execute(&key, cx.attempt())
            });
            processes.push(body.await?);
            if n == *steps / 2 {
                step.sleep("rest half way", "5 ms").await?;
            }
        }
        Ok(processes)
    }
}

impl Climb {
    /// The body of every step. The key names it: `climb/instance/run/step`.
    fn execute(&self, key: &str, attempt: u32) -> Result<u32> {
        let key = key.trim_start_matches("climb/").replace('/', " ");
        let process = std::process::id();
        self.witness.note(&format!("{key} {attempt} {process}"))?;
        let executed = self.executed.fetch_add(1, Ordering::SeqCst) + 1;
        if self.crash_after == Some(executed) {
            println!("crashing in the middle of {key}");
            std::process::abort();
        }
        Ok(process)
    }
}

/// A file that only grows, and the same lines for people.
struct Witness(File);

impl Witness {
    /// One write, then a sync: the line is there before anything that follows.
    fn note(&self, line: &str) -> std::io::Result<()> {
        (&self.0).write_all(format!("{line}\n").as_bytes())?;
        self.0.sync_data()?;
        println!("{line}");
        Ok(())
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Args { database, witness, instances, steps, crash_after } = Args::parse();
    Connection::open(&database)?.execute_batch("CREATE TABLE IF NOT EXISTS climbed (step TEXT)")?;
    let file = OpenOptions::new().create(true).append(true).open(&witness)?;
    let reported = std::fs::read_to_string(witness)?;
    let witness = Arc::new(Witness(file));
    let climb = Climb { witness: Arc::clone(&witness), crash_after, executed: AtomicU64::new(0) };
    // Instances that a crash has left behind go on as soon as the engine starts.
    let engine = Engine::builder(format!("sqlite:{}", database.display()))
        .register(climb)
        // This program is meant to be killed; nobody is to blame for not getting anywhere.
        .quarantine_after(u32::MAX)
        .start()
        .await?;

    let climbs = engine.workflow::<u32, Vec<u32>>(Climb::NAME)?;
    let ids = (1..=instances).map(|n| format!("climb-{n}"));
    let ids: Vec<_> = ids.filter(|id| !reported.contains(&format!("done {id}\n"))).collect();
    for batch in ids.chunks(100) {
        // Those that exist already are left alone.
        climbs.create_batch(batch.iter().map(|id| BatchItem::new(id, steps))).await?;
    }
    try_join_all(ids.iter().map(async |id| {
        climbs.get(id).await?.result().await?;
        witness.note(&format!("done {id}"))?;
        anyhow::Ok(())
    }))
    .await?;

    println!("all {instances} instances are complete");
    engine.shutdown("5 seconds").await?;
    Ok(())
}
