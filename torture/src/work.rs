//! The loaded process: an engine, and clients that note what they were told.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use piton::runtime::Runtime;
use piton::{Engine, InstanceHandle, InstanceStatus, Span, WorkflowHandle};
use piton_testing::runtime::SplitMix64;

use crate::climb::{Climb, GO, TABLE};
use crate::ledger::{Ack, Files, Lines};

/// How many clients there are at a time.
const CLIENTS: u32 = 16;

/// How many instances a client lists at a time when it looks for what an earlier process left.
const PAGE: u32 = 100;

type Climbs = WorkflowHandle<u32, u32>;

/// How long a client waits for a result before it looks whether the run it waits for is still the one it meant: a
/// restart that was never answered may have taken place later than anybody thought.
const RESULT_WAIT: Span = Span::literal("5 seconds");

/// What the clients share.
pub(crate) struct Crowd {
    climbs: Climbs,
    acks: Lines,
    runtime: Arc<dyn Runtime>,
}

/// Works until it is killed, or until `instances` were created and have ended.
pub(crate) fn run(directory: &Path, instances: Option<u32>) -> Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    runtime.block_on(work(&Files::new(directory), instances))
}

async fn work(files: &Files, instances: Option<u32>) -> Result<()> {
    rusqlite::Connection::open(files.database())?.execute_batch(TABLE)?;
    let climb = Climb::new(files)?;
    let url = format!("sqlite:{}", files.database().display());
    let engine = Engine::builder(&url).register(climb).start().await?;
    let crowd = Crowd::new(&engine, files)?;
    for id in left_over(&crowd.climbs).await? {
        let instance = crowd.climbs.get(&id).await?;
        crowd.see_through(&instance, &mut SplitMix64::new(0)).await?;
    }
    let each = instances.map_or(u32::MAX, |instances| instances / CLIENTS);
    crowd.let_loose(CLIENTS, each).await?;
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
    pub(crate) fn new(engine: &Engine, files: &Files) -> Result<Arc<Self>> {
        let climbs = engine.workflow::<u32, u32>("climb")?;
        let (acks, runtime) = (Lines::open(&files.acks())?, engine.runtime());
        Ok(Arc::new(Self { climbs, acks, runtime }))
    }

    /// Lets clients work at the same time, each on so many instances, one after the other.
    pub(crate) async fn let_loose(self: &Arc<Self>, clients: u32, each: u32) -> Result<()> {
        let client = |number| {
            let crowd = Arc::clone(self);
            async move { crowd.client(number, each).await }
        };
        for client in futures((0..clients).map(client).collect()) {
            client.await??;
        }
        Ok(())
    }

    /// Creates one instance after the other and plays with each until it has ended.
    async fn client(&self, number: u32, climbs: u32) -> Result<()> {
        let process = std::process::id();
        let mut random = SplitMix64::new(u64::from(process) << 32 | u64::from(number));
        for climb in 0..climbs {
            let id = format!("{process}-{number}-{climb}");
            let created = insist(|| self.climbs.create(climb).id(&id)).await;
            let instance = match created {
                // Created by a call that was not answered.
                Err(error) if error.code() == Some("INSTANCE_ID_ALREADY_EXISTS") => {
                    insist(|| self.climbs.get(&id)).await?
                }
                created => created?,
            };
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
            0 => drop(insist(|| instance.pause()).await?),
            // Not tried again: nobody knows whether that would be the first or the second.
            1 => match instance.restart().await {
                Ok(restarted) => {
                    let run = restarted.run_number;
                    self.acks.add(&Ack::Restarted { id: id(), run }.line());
                }
                Err(error) if is_unavailable(&error) => {}
                Err(error) => return Err(error.into()),
            },
            2 => match insist(|| instance.terminate()).await {
                Ok(terminated) => {
                    let run = terminated.run_number;
                    self.acks.add(&Ack::Terminated { id: id(), run }.line());
                    return Ok(());
                }
                // By a call that was not answered.
                Err(error) if error.code() == Some("INSTANCE_TERMINAL") => return Ok(()),
                Err(error) => return Err(error.into()),
            },
            _ => {}
        }
        while !self.bring_to_its_end(instance).await? {}
        Ok(())
    }

    /// Whether the run that is current now came to its end in time.
    async fn bring_to_its_end(&self, instance: &InstanceHandle<u32>) -> Result<bool> {
        // A repeat is recognised by its key: an event is sent once per run, however often it is tried.
        let run = insist(|| instance.describe()).await?.run_number;
        let key = format!("{}-{run}", instance.id());
        let send = || instance.send_event(GO, &1).idempotency_key(&key);
        match insist(send).await {
            Ok(_) => {}
            // The end was reached meanwhile, by a run that was given the event before.
            Err(error) if error.code() == Some("INSTANCE_TERMINAL") => return Ok(true),
            Err(error) => return Err(error.into()),
        }
        let id = instance.id().to_owned();
        self.acks.add(&Ack::Sent { id: id.clone(), key }.line());
        insist(|| instance.resume()).await?;
        tokio::select! {
            result = insist(|| instance.result()) => drop(result?),
            () = self.runtime.sleep(RESULT_WAIT) => return Ok(false),
        }
        self.acks.add(&Ack::Done { id, run }.line());
        Ok(true)
    }
}

/// Tries again while the store is away. A call that was not answered may have taken place.
async fn insist<T, F>(call: impl Fn() -> F) -> piton::Result<T>
where
    F: IntoFuture<Output = piton::Result<T>>,
{
    loop {
        match call().await {
            Err(error) if is_unavailable(&error) => tokio::task::yield_now().await,
            answered => return answered,
        }
    }
}

fn is_unavailable(error: &piton::Error) -> bool {
    error.code() == Some("STORE_UNAVAILABLE")
}
