//! Puts a harness together: workflows, store, seed, clock and the engine's own settings.

use std::fmt;
use std::sync::Arc;

use piton::store::Store;
use piton::{EngineBuilder, Registration, Result};
use piton_core::Timestamp;

use crate::VirtualRuntime;
use crate::harness::{Harness, engine_builder};
use crate::mocks::Mocks;
use crate::runtime::START;
use crate::stores::{Home, StoreKind};

/// The seed of a harness that names none.
const SEED: u64 = 1;

/// Gives an engine its settings: the first one, and each that takes over after a crash.
pub(crate) type Configure = Box<dyn Fn(EngineBuilder) -> EngineBuilder + Send + Sync>;

/// Puts something in front of a store.
type Through<'a> = Box<dyn FnOnce(Arc<dyn Store>) -> Arc<dyn Store> + Send + 'a>;

/// A harness in the making; see [`Harness::builder`].
///
/// ```
/// # use piton::prelude::*;
/// # use piton_testing::{Harness, StoreKind};
/// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// let harness = Harness::builder()
///     .register(workflow("noop", noop))
///     .store(StoreKind::Sqlite)
///     .seed(7)
///     .start_at(Timestamp::from_millis(0))
///     .configure(|engine| engine.parked_runs(0))
///     .start()
///     .await?;
/// assert_eq!(harness.now(), Timestamp::from_millis(0));
/// # Ok(())
/// # }
/// ```
#[must_use = "a harness does nothing unless it is started"]
pub struct HarnessBuilder<'a> {
    kind: StoreKind,
    workflows: Vec<Registration>,
    seed: u64,
    start_at: Timestamp,
    configure: Configure,
    through: Through<'a>,
}

impl<'a> HarnessBuilder<'a> {
    pub(crate) fn new() -> Self {
        Self {
            kind: StoreKind::Memory,
            workflows: Vec::new(),
            seed: SEED,
            start_at: START,
            configure: Box::new(|engine| engine),
            through: Box::new(|store| store),
        }
    }

    /// Adds a workflow.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::Harness;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let harness = Harness::builder().register(workflow("noop", noop)).start().await?;
    /// assert_eq!(harness.engine().workflows(), ["noop"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn register(mut self, workflow: impl Into<Registration>) -> Self {
        self.workflows.push(workflow.into());
        self
    }

    /// Adds workflows.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::Harness;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let workflows = ["noop", "still-noop"].map(|name| workflow(name, noop));
    /// let harness = Harness::builder().workflows(workflows).start().await?;
    /// assert_eq!(harness.engine().workflows(), ["noop", "still-noop"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn workflows(mut self, workflows: impl IntoIterator<Item = Registration>) -> Self {
        self.workflows.extend(workflows);
        self
    }

    /// Which store it works on. Default: in memory.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::StoreKind;
    /// # use piton_testing::Harness;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let harness = Harness::builder().store(StoreKind::Sqlite).start().await?;
    /// assert_eq!(harness.store().kind(), "sqlite");
    /// # Ok(())
    /// # }
    /// ```
    pub fn store(mut self, kind: StoreKind) -> Self {
        self.kind = kind;
        self
    }

    /// Where random numbers start from: the same seed gives the same ids. Default 1.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::Harness;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let (one, two) = (Harness::builder().seed(7), Harness::builder().seed(7));
    /// let (one, two) = (one.register(workflow("noop", noop)), two.register(workflow("noop", noop)));
    /// let (one, two) = (one.start().await?, two.start().await?);
    /// let (one, two) = (one.create::<_, ()>("noop", ()).await?, two.create::<_, ()>("noop", ()).await?);
    /// assert_eq!(one.id(), two.id());
    /// # Ok(())
    /// # }
    /// ```
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// What the clock shows first. Default: [`START`].
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::Harness;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let harness = Harness::builder().start_at(Timestamp::from_millis(0)).start().await?;
    /// assert_eq!(harness.now(), Timestamp::from_millis(0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn start_at(mut self, time: Timestamp) -> Self {
        self.start_at = time;
        self
    }

    /// Changes the settings of the engine, also of those that take over in
    /// [`crash_and_restart`](Harness::crash_and_restart).
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::Harness;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let limits = Limits { steps_max: 5, ..Limits::default() };
    /// let harness = Harness::builder().configure(move |engine| engine.limits(limits.clone())).start().await?;
    /// assert_eq!(harness.engine().limits().steps_max, 5);
    /// # Ok(())
    /// # }
    /// ```
    pub fn configure(
        mut self,
        configure: impl Fn(EngineBuilder) -> EngineBuilder + Send + Sync + 'static,
    ) -> Self {
        self.configure = Box::new(configure);
        self
    }

    /// The engine reaches the store through something else.
    pub(crate) fn through(
        mut self,
        through: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store> + Send + 'a,
    ) -> Self {
        self.through = Box::new(through);
        self
    }

    /// Opens the store and starts the engine.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::Harness;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let harness = Harness::builder().register(workflow("noop", noop)).start().await?;
    /// let refused = Harness::builder().register(workflow("no spaces", noop)).start().await.unwrap_err();
    /// assert_eq!(refused.code(), Some("INVALID_WORKFLOW_NAME"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store cannot be opened, or a name or setting is not valid.
    pub async fn start(self) -> Result<Harness> {
        let Self { kind, workflows, seed, start_at, configure, through } = self;
        let runtime = VirtualRuntime::new(seed);
        runtime.set_time(start_at);
        let home = Home::new(kind)?;
        let store = home.open(&runtime).await?;
        let mocks = Arc::new(Mocks::default());
        let builder = engine_builder(through(Arc::clone(&store)), &runtime, &mocks, workflows);
        let engine = configure(builder).start().await?;
        Ok(Harness { engine, store, runtime, mocks, configure, home })
    }
}

impl fmt::Debug for HarnessBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.workflows.iter().map(Registration::name).collect::<Vec<_>>();
        f.debug_struct("HarnessBuilder").field("workflows", &names).finish_non_exhaustive()
    }
}
