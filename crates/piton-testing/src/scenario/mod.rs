//! Tests as a list of steps: create, send, let time pass, tick, look, assert.
//!
//! A [`Scenario`] names its workflows and its [`steps`], and runs them one after the other on a [`Harness`]: in memory
//! unless it says otherwise, and **nothing is advanced that no step advances**. What a step found can be kept in a
//! variable ([`Var`]) for later steps; every input of a step is a value, a variable, or [`given`] a closure over the
//! [`Context`], and is looked at when its step is reached. However a scenario ends, with success, an error or a panic,
//! its engine and its data are gone afterwards.
//!
//! ```
//! use piton::prelude::*;
//! use piton::{Instance, InstanceStatus};
//! use piton_testing::scenario::{Scenario, Var, steps::*};
//!
//! async fn nap(_: Event<()>, step: &Step) -> Result<String> {
//!     step.sleep("nap", "1 hour").await?;
//!     Ok("rested".to_owned())
//! }
//!
//! const ASLEEP: Var<Instance> = Var::new("asleep");
//! const AWAKE: Var<Instance> = Var::new("awake");
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> piton::Result<()> {
//! Scenario::new("a nap takes an hour")
//!     .workflow(workflow("nap", nap))
//!     .step(create("nap").id("n-1"))
//!     .step(run_until_idle("nap", "n-1"))
//!     .step(status("nap", "n-1").store_as(ASLEEP))
//!     .step(advance_time("1 hour"))
//!     .step(run_until_idle("nap", "n-1"))
//!     .step(status("nap", "n-1").store_as(AWAKE))
//!     .step(assert(|cx| {
//!         assert_eq!(cx.var(ASLEEP).status, InstanceStatus::Waiting);
//!         assert_eq!(cx.var(AWAKE).status, InstanceStatus::Complete);
//!     }))
//!     .run()
//!     .await?;
//! # Ok(())
//! # }
//! ```

mod context;
mod input;
pub mod steps;

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use piton::runtime::Runtime;
use piton::{EngineBuilder, Error, Registration};
use piton_core::Timestamp;

use crate::{Harness, HarnessBuilder, StoreKind, VirtualRuntime};

use context::Vars;
pub use context::{
    Context, HookOptions, Internal, Order, Reason, RowOptions, TickPayload, Utils, Var,
};
pub use input::{Input, IntoInput, given, later};
use steps::ScenarioStep;

/// A test as a list of steps; see the [module](self).
///
/// ```
/// # use piton::prelude::*;
/// # use piton_testing::scenario::{Scenario, steps::*};
/// # async fn nap(_: Event<()>, step: &Step) -> Result<()> { step.sleep("nap", "1 hour").await }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// let scenario = Scenario::new("a nap").workflow(workflow("nap", nap)).step(create("nap").id("n-1"));
/// scenario.step(run_all_until_idle()).run().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a scenario does nothing unless it is run"]
pub struct Scenario {
    name: String,
    harness: HarnessBuilder<'static>,
    steps: Vec<ScenarioStep>,
}

impl Scenario {
    /// A scenario with a name for its errors.
    ///
    /// ```
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// assert_eq!(Scenario::new("nothing happens").run().await?.name(), "nothing happens");
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), harness: Harness::builder(), steps: Vec::new() }
    }

    /// Registers a workflow.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # async fn nap(_: Event<()>, step: &Step) -> Result<()> { step.sleep("nap", "1 hour").await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// Scenario::new("a nap").workflow(workflow("nap", nap)).step(create("nap")).run().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn workflow(mut self, workflow: impl Into<Registration>) -> Self {
        self.harness = self.harness.register(workflow);
        self
    }

    /// Which store it works on. Default: in memory.
    ///
    /// ```
    /// # use piton_testing::StoreKind;
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let scenario = Scenario::new("in a file").store(StoreKind::Sqlite);
    /// scenario.step(assert(|cx| assert_eq!(cx.harness().store().kind(), "sqlite"))).run().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn store(mut self, kind: StoreKind) -> Self {
        self.harness = self.harness.store(kind);
        self
    }

    /// Where random numbers start from.
    ///
    /// ```
    /// # use piton::runtime::Runtime;
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let draw = async || Scenario::new("luck").seed(7).run().await.map(|end| end.runtime().random_u64());
    /// assert_eq!(draw().await?, draw().await?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn seed(mut self, seed: u64) -> Self {
        self.harness = self.harness.seed(seed);
        self
    }

    /// What the clock shows first.
    ///
    /// ```
    /// # use piton::Timestamp;
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let finished = Scenario::new("long ago").start_at(Timestamp::from_millis(0)).run().await?;
    /// assert_eq!(finished.now(), Timestamp::from_millis(0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn start_at(mut self, time: Timestamp) -> Self {
        self.harness = self.harness.start_at(time);
        self
    }

    /// Changes the settings of the engine.
    ///
    /// ```
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// Scenario::new("without parking").configure(|engine| engine.parked_runs(0)).run().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn configure(
        mut self,
        configure: impl Fn(EngineBuilder) -> EngineBuilder + Send + Sync + 'static,
    ) -> Self {
        self.harness = self.harness.configure(configure);
        self
    }

    /// Adds a step; see [`steps`].
    ///
    /// ```
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// Scenario::new("a day").step(advance_time("1 day")).run().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn step(mut self, step: impl Into<ScenarioStep>) -> Self {
        self.steps.push(step.into());
        self
    }

    /// Runs the steps in their order, and cleans up, whatever happens.
    ///
    /// ```
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let error = Scenario::new("nobody").step(create("nobody")).run().await.unwrap_err();
    /// assert_eq!(error.step_number(), Some(1));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The first step that fails or panics, with its number and kind.
    pub async fn run(self) -> Result<Finished, ScenarioError> {
        let Self { name, harness, steps } = self;
        let failed = |failure| ScenarioError { scenario: name.clone(), step: None, failure };
        let harness = harness.start().await.map_err(|error| failed(Failure::Error(error)))?;
        let mut context = Context::new(name.clone(), harness);
        let outcome = run_steps(&mut context, steps).await;
        let Context { harness, vars, .. } = context;
        let runtime = Arc::clone(harness.runtime());
        clean_up(harness).await;
        match outcome {
            Ok(()) => Ok(Finished { name, vars, runtime }),
            Err((step, failure)) => {
                Err(ScenarioError { scenario: name, step: Some(step), failure })
            }
        }
    }
}

async fn run_steps(
    context: &mut Context,
    steps: Vec<ScenarioStep>,
) -> Result<(), (StepId, Failure)> {
    for (index, step) in steps.into_iter().enumerate() {
        let id = StepId { number: index + 1, kind: step.kind() };
        match AssertUnwindSafe(step.run(context)).catch_unwind().await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err((id, Failure::Error(error))),
            Err(payload) => {
                return Err((
                    id,
                    Failure::Panic(Error::from_panic(&*payload).message().to_owned()),
                ));
            }
        }
    }
    Ok(())
}

/// Stops the engine and closes the store; the files of the store go with the harness.
async fn clean_up(harness: Harness) {
    // A store that a step has closed already has nothing left to clean up.
    let _ = harness.engine().shutdown(0).await;
}

impl fmt::Debug for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<_> = self.steps.iter().map(ScenarioStep::kind).collect();
        f.debug_struct("Scenario").field("name", &self.name).field("steps", &steps).finish()
    }
}

/// What is left of a scenario that succeeded.
///
/// ```
/// # use piton::prelude::*;
/// # use piton_testing::scenario::{Scenario, steps::*};
/// # async fn nap(_: Event<()>, step: &Step) -> Result<()> { step.sleep("nap", "1 hour").await }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// let scenario = Scenario::new("a nap").workflow(workflow("nap", nap));
/// let finished = scenario.step(create("nap").id("n-1").store_as("id")).run().await?;
/// assert_eq!(finished.var::<String>("id"), "n-1");
/// # Ok(())
/// # }
/// ```
pub struct Finished {
    name: String,
    vars: Vars,
    runtime: Arc<VirtualRuntime>,
}

impl Finished {
    /// The name of the scenario.
    ///
    /// ```
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// assert_eq!(Scenario::new("nothing").run().await?.name(), "nothing");
    /// # Ok(())
    /// # }
    /// ```
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A variable. `None` if no step stored it.
    ///
    /// ```
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let finished = Scenario::new("nothing").run().await?;
    /// assert_eq!(finished.get::<String>("id"), None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// If it holds a value of another type.
    pub fn get<T: 'static>(&self, key: impl Into<Var<T>>) -> Option<&T> {
        self.vars.get(key.into())
    }

    /// A variable.
    ///
    /// ```
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let finished = Scenario::new("a day").step(advance_time("1 day").store_as("then")).run().await?;
    /// assert_eq!(*finished.var::<piton::Timestamp>("then"), finished.now());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// If no step stored it, or it holds a value of another type.
    pub fn var<T: 'static>(&self, key: impl Into<Var<T>>) -> &T {
        self.vars.require(key.into())
    }

    /// The virtual world in which it ran.
    ///
    /// ```
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let finished = Scenario::new("nothing").run().await?;
    /// assert_eq!(finished.runtime().next_sleep_at(), None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn runtime(&self) -> &Arc<VirtualRuntime> {
        &self.runtime
    }

    /// What the clock shows at the end.
    ///
    /// ```
    /// # use piton_testing::runtime::START;
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let finished = Scenario::new("a day").step(advance_time("1 day")).run().await?;
    /// assert_eq!(finished.now().since(START), piton::Span::literal("1 day"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn now(&self) -> Timestamp {
        self.runtime.now()
    }
}

impl fmt::Debug for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finished").field("name", &self.name).field("vars", &self.vars).finish()
    }
}

/// Why a scenario failed.
///
/// ```
/// # use piton_testing::scenario::{Scenario, steps::*};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// let error = Scenario::new("nobody").step(create("nobody")).run().await.unwrap_err();
/// assert!(error.to_string().starts_with("scenario \"nobody\", step 1 (create): no workflow"));
/// # Ok(())
/// # }
/// ```
pub struct ScenarioError {
    scenario: String,
    /// `None` if it did not come to the first step.
    step: Option<StepId>,
    failure: Failure,
}

#[derive(Clone, Copy)]
struct StepId {
    number: usize,
    kind: &'static str,
}

enum Failure {
    Error(Error),
    Panic(String),
}

impl ScenarioError {
    /// The number of the step that failed, counted from 1; `None` if the scenario could not be started.
    ///
    /// ```
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let error = Scenario::new("nobody").step(create("nobody")).run().await.unwrap_err();
    /// assert_eq!(error.step_number(), Some(1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn step_number(&self) -> Option<usize> {
        self.step.map(|step| step.number)
    }

    /// The kind of the step that failed: `create`, `tick`, `assert` …
    ///
    /// ```
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let error = Scenario::new("nobody").step(create("nobody")).run().await.unwrap_err();
    /// assert_eq!(error.step_kind(), Some("create"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn step_kind(&self) -> Option<&'static str> {
        self.step.map(|step| step.kind)
    }

    /// The error of the step; `None` if it panicked, as a failed assertion does.
    ///
    /// ```
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let error = Scenario::new("nobody").step(create("nobody")).run().await.unwrap_err();
    /// assert_eq!(error.error().expect("no panic").code(), Some("WORKFLOW_NOT_FOUND"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn error(&self) -> Option<&Error> {
        match &self.failure {
            Failure::Error(error) => Some(error),
            Failure::Panic(_) => None,
        }
    }
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scenario {:?}", self.scenario)?;
        match self.step {
            Some(StepId { number, kind }) => write!(f, ", step {number} ({kind})")?,
            None => f.write_str(" could not be started")?,
        }
        match &self.failure {
            Failure::Error(error) => write!(f, ": {error:?}"),
            Failure::Panic(message) => write!(f, " panicked: {message}"),
        }
    }
}

impl fmt::Debug for ScenarioError {
    /// What a test that returns it prints.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::error::Error for ScenarioError {}
