//! An engine on a virtual clock that moves only when the test says so.

use std::fmt;
use std::sync::Arc;

use piton::runtime::Runtime;
use piton::store::{MemoryStore, SqliteStore, Store};
use piton::{Engine, EngineBuilder, InstanceHandle, Registration, Result, WorkflowHandle};
use piton_core::{IntoSpan, Span, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::VirtualRuntime;

/// Which store a harness works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// In memory.
    Memory,
    /// A SQLite file in a temporary directory.
    Sqlite,
    /// A schema on the server named by `PITON_TEST_POSTGRES_URL`.
    #[cfg(feature = "postgres")]
    Postgres,
}

/// Where the data of a harness is.
enum Place {
    Memory,
    Directory(tempfile::TempDir),
    #[cfg(feature = "postgres")]
    Postgres(crate::postgres::Scratch),
}

impl Place {
    fn new(kind: StoreKind) -> Result<Self> {
        Ok(match kind {
            StoreKind::Memory => Self::Memory,
            StoreKind::Sqlite => Self::Directory(tempfile::tempdir()?),
            #[cfg(feature = "postgres")]
            StoreKind::Postgres => {
                Self::Postgres(crate::postgres::Scratch::new().ok_or_else(|| {
                    piton::Error::new("set PITON_TEST_POSTGRES_URL, or run `cargo xtask test`")
                })?)
            }
        })
    }

    async fn open(&self, runtime: &Arc<VirtualRuntime>) -> Result<Arc<dyn Store>> {
        let runtime: Arc<dyn Runtime> = Arc::clone(runtime) as _;
        Ok(match self {
            Self::Memory => MemoryStore::new(runtime),
            Self::Directory(directory) => {
                SqliteStore::open(&directory.path().join("test.db"), runtime)?
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(scratch) => scratch.open(runtime).await?,
        })
    }
}

/// How many runs one tick of a harness advances at most.
const TICK_RUNS_MAX: usize = 10_000;

/// How many ticks make `run_until_idle` give up: a workflow that never rests is a bug in the test.
const IDLE_TICKS_MAX: usize = 100_000;

/// An engine without a background runner, on a virtual clock and seeded randomness.
///
/// # Example
///
/// ```
/// use piton::prelude::*;
/// use piton_testing::Harness;
///
/// async fn nap(_: Event<()>, step: &Step) -> Result<String> {
///     step.sleep("a year", "365 days").await?;
///     Ok("rested".to_owned())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// let harness = Harness::memory([workflow("nap", nap)]).await?;
/// let instance = harness.create::<_, String>("nap", ()).await?;
/// harness.run_until_idle().await?;
/// harness.advance("365 days");
/// harness.run_until_idle().await?;
/// assert_eq!(instance.result().await?, "rested");
/// # Ok(())
/// # }
/// ```
pub struct Harness {
    engine: Engine,
    store: Arc<dyn Store>,
    runtime: Arc<VirtualRuntime>,
    place: Place,
}

impl Harness {
    /// A harness on the in-memory store.
    ///
    /// # Errors
    ///
    /// If a workflow's name is not valid.
    pub async fn memory(workflows: impl IntoIterator<Item = Registration>) -> Result<Self> {
        Self::on(StoreKind::Memory, workflows).await
    }

    /// A harness on a store of the given kind.
    ///
    /// # Errors
    ///
    /// If the store cannot be opened or a workflow's name is not valid.
    pub async fn on(
        kind: StoreKind,
        workflows: impl IntoIterator<Item = Registration>,
    ) -> Result<Self> {
        Self::with(kind, workflows, |builder| builder).await
    }

    /// A harness with an engine configured by `configure`.
    ///
    /// # Errors
    ///
    /// If the store cannot be opened or the configuration is not valid.
    pub async fn with(
        kind: StoreKind,
        workflows: impl IntoIterator<Item = Registration>,
        configure: impl FnOnce(EngineBuilder) -> EngineBuilder,
    ) -> Result<Self> {
        let runtime = VirtualRuntime::new(1);
        let place = Place::new(kind)?;
        let store = place.open(&runtime).await?;
        let engine = start(&store, &runtime, workflows, configure).await?;
        Ok(Self { engine, store, runtime, place })
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The store, for looking at rows and for acting as another runner.
    pub fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    /// The virtual world.
    pub fn runtime(&self) -> &Arc<VirtualRuntime> {
        &self.runtime
    }

    /// A handle to a workflow.
    ///
    /// # Errors
    ///
    /// If it is not registered, or with other types.
    pub fn workflow<P: 'static, O: 'static>(&self, name: &str) -> Result<WorkflowHandle<P, O>> {
        self.engine.workflow(name)
    }

    /// Creates an instance.
    ///
    /// # Errors
    ///
    /// As [`WorkflowHandle::create`].
    pub async fn create<P, O>(&self, workflow: &str, params: P) -> Result<InstanceHandle<O>>
    where
        P: Serialize + Send + 'static,
        O: DeserializeOwned + 'static,
    {
        self.workflow::<P, O>(workflow)?.create(params).await
    }

    /// Advances every due run as far as it goes, once. Returns how many there were.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn tick(&self) -> Result<usize> {
        Ok(self.engine.tick(TICK_RUNS_MAX).await?.processed)
    }

    /// Ticks until nothing is due at this moment of virtual time. Returns how many runs were advanced.
    ///
    /// # Errors
    ///
    /// If the store fails.
    ///
    /// # Panics
    ///
    /// If there is no end to it.
    pub async fn run_until_idle(&self) -> Result<usize> {
        let mut processed = 0;
        for _ in 0..IDLE_TICKS_MAX {
            match self.tick().await? {
                0 => return Ok(processed),
                more => processed += more,
            }
        }
        panic!("still not idle after {IDLE_TICKS_MAX} ticks");
    }

    /// Moves the virtual clock.
    ///
    /// # Panics
    ///
    /// If `span` is not a duration.
    pub fn advance(&self, span: impl IntoSpan) {
        self.runtime.advance(span.into_span().expect("a duration, like \"1 hour\""));
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        self.runtime.now()
    }

    /// Jumps over all waits until nothing is left to wait for.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn run_to_end(&self) -> Result<()> {
        loop {
            self.run_until_idle().await?;
            let Some(next) = self.engine.next_wake_at().await? else {
                return Ok(());
            };
            self.runtime.advance(next.since(self.now()).max(Span::ZERO));
        }
    }

    /// Stops this process as `kill -9` would and starts another on the same data, with the workflows of
    /// the next deploy.
    ///
    /// # Errors
    ///
    /// If the store cannot be opened again.
    pub async fn crash_and_restart(
        self,
        workflows: impl IntoIterator<Item = Registration>,
    ) -> Result<Self> {
        let Self { engine, mut store, runtime, place } = self;
        drop(engine);
        // What is in memory would be gone with the store.
        if !matches!(place, Place::Memory) {
            // Closing waits for the lock on the file to be gone; what was not committed is lost all the same.
            store.close().await.ok();
            drop(store);
            store = place.open(&runtime).await?;
        }
        let engine = start(&store, &runtime, workflows, |builder| builder).await?;
        Ok(Self { engine, store, runtime, place })
    }
}

async fn start(
    store: &Arc<dyn Store>,
    runtime: &Arc<VirtualRuntime>,
    workflows: impl IntoIterator<Item = Registration>,
    configure: impl FnOnce(EngineBuilder) -> EngineBuilder,
) -> Result<Engine> {
    let builder =
        Engine::builder_with_store(Arc::clone(store)).runtime(Arc::clone(runtime) as _).no_runner();
    let builder = workflows.into_iter().fold(builder, EngineBuilder::register);
    configure(builder).start().await
}

impl fmt::Debug for Harness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Harness").field("engine", &self.engine).finish_non_exhaustive()
    }
}
