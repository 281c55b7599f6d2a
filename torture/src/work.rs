//! The loaded process: an engine, and clients that note what they were told.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use piton::{Engine, InstanceHandle, InstanceStatus, WorkflowHandle};
use piton_testing::runtime::SplitMix64;

use crate::climb::{Climb, GO, TABLE};
use crate::ledger::{Ack, Files, Lines};

/// How many clients there are at a time.
const CLIENTS: u32 = 16;

/// How many instances a client lists at a time when it looks for what an earlier process left.
const PAGE: u32 = 100;

type Climbs = WorkflowHandle<u32, u32>;

/// What the clients share.
struct Crowd {
    climbs: Climbs,
    acks: Lines,
}

/// Works until it is killed, or until `instances` were created and have ended.
pub(crate) fn run(directory: &Path, instances: Option<u32>) -> Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    runtime.block_on(work(&Files::new(directory), instances))
}

async fn work(files: &Files, instances: Option<u32>) -> Result<()> {
    rusqlite::Connection::open(files.database())?.execute_batch(TABLE)?;
    let witness = Arc::new(Lines::open(&files.witness())?);
    let url = format!("sqlite:{}", files.database().display());
    let engine = Engine::builder(&url).register(Climb { witness }).start().await?;
    let climbs = engine.workflow::<u32, u32>("climb")?;
    let crowd = Arc::new(Crowd { climbs, acks: Lines::open(&files.acks())? });
    for id in left_over(&crowd.climbs).await? {
        let instance = crowd.climbs.get(&id).await?;
        crowd.see_through(&instance, &mut SplitMix64::new(0)).await?;
    }
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let crowd = Arc::clone(&crowd);
        let climbs = instances.map_or(u32::MAX, |instances| instances / CLIENTS);
        clients.push(async move { crowd.client(number, climbs).await });
    }
    for client in futures(clients) {
        client.await??;
    }
    engine.shutdown("10 seconds").await?;
    Ok(())
}

/// Runs the clients at the same time.
#[expect(clippy::disallowed_methods, reason = "this is a host of the engine, not the engine")]
fn futures<F>(clients: Vec<F>) -> Vec<tokio::task::JoinHandle<F::Output>>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    clients.into_iter().map(tokio::spawn).collect()
}

/// What an earlier process left unfinished.
async fn left_over(climbs: &Climbs) -> Result<Vec<String>> {
    let mut ids = Vec::new();
    for status in [InstanceStatus::Active, InstanceStatus::Waiting, InstanceStatus::Paused] {
        let mut cursor = None;
        loop {
            let page = climbs.list().status(status).page_size(PAGE);
            let page = match cursor.take() {
                Some(cursor) => page.after(cursor),
                None => page,
            };
            let page = page.await?;
            ids.extend(page.items.iter().map(|instance| instance.id.to_string()));
            cursor = page.cursor.filter(|_| page.has_next_page);
            if cursor.is_none() {
                break;
            }
        }
    }
    Ok(ids)
}

impl Crowd {
    /// Creates one instance after the other and plays with each until it has ended.
    async fn client(&self, number: u32, climbs: u32) -> Result<()> {
        let process = std::process::id();
        let mut random = SplitMix64::new(u64::from(process) << 32 | u64::from(number));
        for climb in 0..climbs {
            let id = format!("{process}-{number}-{climb}");
            let instance = self.climbs.create(climb).id(&id).await?;
            self.acks.add(&Ack::Created { id: id.clone() }.line());
            self.see_through(&instance, &mut random).await?;
        }
        Ok(())
    }

    /// Does this and that to an instance, gives it the event it waits for, and sees it end.
    async fn see_through(
        &self,
        instance: &InstanceHandle<u32>,
        random: &mut SplitMix64,
    ) -> Result<()> {
        let id = || instance.id().to_owned();
        match random.below(10) {
            0 => drop(instance.pause().await?),
            1 => {
                let run = instance.restart().await?.run_number;
                self.acks.add(&Ack::Restarted { id: id(), run }.line());
            }
            2 => {
                let run = instance.terminate().await?.run_number;
                self.acks.add(&Ack::Terminated { id: id(), run }.line());
                return Ok(());
            }
            _ => {}
        }
        // A repeat by the next process is recognised by its key: it is sent once per run, however often it is tried.
        let run = instance.describe().await?.run_number;
        let key = format!("{}-{run}", instance.id());
        instance.send_event(GO, &1).idempotency_key(&key).await?;
        self.acks.add(&Ack::Sent { id: id(), key }.line());
        instance.resume().await?;
        instance.result().await?;
        self.acks.add(&Ack::Done { id: id(), run }.line());
        Ok(())
    }
}
