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
#[must_use = "a scenario does nothing unless it is run"]
pub struct Scenario {
    name: String,
    harness: HarnessBuilder<'static>,
    steps: Vec<ScenarioStep>,
}

impl Scenario {
    /// A scenario with a name for its errors.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), harness: Harness::builder(), steps: Vec::new() }
    }

    /// Registers a workflow.
    pub fn workflow(mut self, workflow: impl Into<Registration>) -> Self {
        self.harness = self.harness.register(workflow);
        self
    }

    /// Which store it works on. Default: in memory.
    pub fn store(mut self, kind: StoreKind) -> Self {
        self.harness = self.harness.store(kind);
        self
    }

    /// Where random numbers start from.
    pub fn seed(mut self, seed: u64) -> Self {
        self.harness = self.harness.seed(seed);
        self
    }

    /// What the clock shows first.
    pub fn start_at(mut self, time: Timestamp) -> Self {
        self.harness = self.harness.start_at(time);
        self
    }

    /// Changes the settings of the engine.
    pub fn configure(
        mut self,
        configure: impl Fn(EngineBuilder) -> EngineBuilder + Send + Sync + 'static,
    ) -> Self {
        self.harness = self.harness.configure(configure);
        self
    }

    /// Adds a step; see [`steps`].
    pub fn step(mut self, step: impl Into<ScenarioStep>) -> Self {
        self.steps.push(step.into());
        self
    }

    /// Runs the steps in their order, and cleans up, whatever happens.
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
pub struct Finished {
    name: String,
    vars: Vars,
    runtime: Arc<VirtualRuntime>,
}

impl Finished {
    /// The name of the scenario.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A variable. `None` if no step stored it.
    ///
    /// # Panics
    ///
    /// If it holds a value of another type.
    pub fn get<T: 'static>(&self, key: impl Into<Var<T>>) -> Option<&T> {
        self.vars.get(key.into())
    }

    /// A variable.
    ///
    /// # Panics
    ///
    /// If no step stored it, or it holds a value of another type.
    pub fn var<T: 'static>(&self, key: impl Into<Var<T>>) -> &T {
        self.vars.require(key.into())
    }

    /// The virtual world in which it ran.
    pub fn runtime(&self) -> &Arc<VirtualRuntime> {
        &self.runtime
    }

    /// What the clock shows at the end.
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
    pub fn step_number(&self) -> Option<usize> {
        self.step.map(|step| step.number)
    }

    /// The kind of the step that failed: `create`, `tick`, `assert` …
    pub fn step_kind(&self) -> Option<&'static str> {
        self.step.map(|step| step.kind)
    }

    /// The error of the step; `None` if it panicked, as a failed assertion does.
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
