//! What stands in for step bodies and for the outside world in a test.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use piton::Error;
use piton::intercept::{AskedStep, Instead, Interceptor};
use piton::store::NewEvent;
use piton_core::{EventType, Json, Span};
use serde::Serialize;
use tokio::sync::Notify;

/// The mocks of a harness, and its count of executed bodies. They outlive a crash of its engine.
#[derive(Default)]
pub(crate) struct Mocks {
    state: Mutex<State>,
    event_due: Notify,
}

#[derive(Default)]
struct State {
    steps: Vec<StepRule>,
    waits: Vec<WaitRule>,
    executed: BTreeMap<Executed, u32>,
    /// Waits that were sent their event: a replay reaches them again.
    served: BTreeSet<StepPlace>,
    events_due: VecDeque<NewEvent>,
}

/// An attempt whose body was executed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Executed {
    pub(crate) place: StepPlace,
    pub(crate) attempt: u32,
}

/// Which step of which run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StepPlace {
    pub(crate) workflow: String,
    pub(crate) instance_id: String,
    pub(crate) run_number: u32,
    pub(crate) step: String,
}

impl StepPlace {
    fn of(step: &AskedStep<'_>) -> Self {
        Self {
            workflow: step.workflow.to_string(),
            instance_id: step.instance_id.to_string(),
            run_number: step.run_number,
            step: step.name.to_string(),
        }
    }
}

/// Which steps a mock is for.
#[derive(Clone, Debug)]
struct Target {
    step: String,
    workflow: Option<String>,
    attempt: Option<u32>,
}

impl Target {
    fn matches(&self, step: &AskedStep<'_>) -> bool {
        let workflow = self.workflow.as_deref();
        self.step == step.name.as_str()
            && workflow.is_none_or(|name| name == step.workflow.as_str())
    }
}

struct StepRule {
    target: Target,
    instead: Replacement,
    used: bool,
}

#[derive(Clone)]
enum Replacement {
    Return(Json),
    Fail(Arc<dyn Fn() -> Error + Send + Sync>),
    TimeOut,
}

struct WaitRule {
    target: Target,
    outcome: WaitOutcome,
    used: bool,
}

#[derive(Clone)]
enum WaitOutcome {
    Receive(Json),
    TimeOut,
}

impl Mocks {
    /// How often bodies of steps with this name were executed, in all runs.
    pub(crate) fn executions(&self, step: &str) -> u32 {
        let state = self.lock();
        let of_step = state.executed.iter().filter(|(executed, _)| executed.place.step == step);
        of_step.map(|(_, count)| count).sum()
    }

    /// How often each attempt's body was executed.
    pub(crate) fn executed(&self) -> BTreeMap<Executed, u32> {
        self.lock().executed.clone()
    }

    /// The mocks that nothing has met so far, by step.
    pub(crate) fn unused(&self) -> Vec<String> {
        let state = self.lock();
        let steps = state.steps.iter().filter(|rule| !rule.used).map(|rule| &rule.target.step);
        let waits = state.waits.iter().filter(|rule| !rule.used).map(|rule| &rule.target.step);
        steps.chain(waits).cloned().collect()
    }

    /// The next event for a wait that was reached; waits until there is one.
    pub(crate) async fn next_event(&self) -> NewEvent {
        loop {
            let due = self.event_due.notified();
            if let Some(event) = self.take_event() {
                return event;
            }
            due.await;
        }
    }

    pub(crate) fn take_event(&self) -> Option<NewEvent> {
        self.lock().events_due.pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// What replaces this attempt: a rule for this very attempt before one for all, a later one before an earlier.
    fn replacement(&mut self, step: &AskedStep<'_>, attempt: u32) -> Option<Replacement> {
        let applies = |rule: &&mut StepRule| {
            rule.target.matches(step) && rule.target.attempt.is_none_or(|n| n == attempt)
        };
        let newest_first = self.steps.iter_mut().rev().filter(applies);
        let rule = newest_first.reduce(|best, rule| {
            let more_precise = rule.target.attempt.is_some() && best.target.attempt.is_none();
            if more_precise { rule } else { best }
        })?;
        rule.used = true;
        Some(rule.instead.clone())
    }

    fn wait_outcome(&mut self, step: &AskedStep<'_>) -> Option<WaitOutcome> {
        let rule = self.waits.iter_mut().rev().find(|rule| rule.target.matches(step))?;
        rule.used = true;
        Some(rule.outcome.clone())
    }
}

impl Interceptor for Mocks {
    fn attempt(&self, step: &AskedStep<'_>, attempt: u32) -> Instead {
        let mut state = self.lock();
        match state.replacement(step, attempt) {
            Some(Replacement::Return(result)) => Instead::Return(result),
            Some(Replacement::Fail(error)) => {
                drop(state);
                Instead::Fail(error())
            }
            Some(Replacement::TimeOut) => Instead::TimeOut,
            None => {
                let executed = Executed { place: StepPlace::of(step), attempt };
                *state.executed.entry(executed).or_default() += 1;
                Instead::Body
            }
        }
    }

    fn wait(&self, step: &AskedStep<'_>, event_type: &EventType, timeout: Span) -> Span {
        let mut state = self.lock();
        match state.wait_outcome(step) {
            None => timeout,
            Some(WaitOutcome::TimeOut) => Span::ZERO,
            Some(WaitOutcome::Receive(payload)) => {
                if state.served.insert(StepPlace::of(step)) {
                    state.events_due.push_back(NewEvent {
                        workflow: step.workflow.clone(),
                        id: step.instance_id.clone(),
                        event_type: event_type.clone(),
                        payload,
                        idempotency_key: None,
                        hooks: Vec::new(),
                    });
                    self.event_due.notify_one();
                }
                timeout
            }
        }
    }
}

/// What happens instead of a step's body; see [`Harness::mock`](crate::Harness::mock).
///
/// It holds for every attempt unless [`attempt`](Self::attempt) names one. A mock for one attempt goes before one for
/// all, a later one before an earlier.
///
/// ```
/// # use piton::prelude::*;
/// # use piton_testing::Harness;
/// # async fn pay(_: Event<()>, step: &Step) -> Result<u32> { step.run("charge", async { Ok(7) }).await }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// # let harness = Harness::memory([workflow("pay", pay)]).await?;
/// # let instance = harness.create::<_, u32>("pay", ()).await?;
/// harness.mock("charge").returns(&8);
/// harness.mock("charge").attempt(1).fails(Error::new("the gateway is busy"));
/// harness.run_to_end().await?;
/// assert_eq!(harness.result(&instance).await?, 8);
/// # Ok(())
/// # }
/// ```
#[must_use = "a mock does nothing until it says what happens"]
pub struct MockStep<'h> {
    mocks: &'h Mocks,
    target: Target,
}

impl<'h> MockStep<'h> {
    pub(crate) fn new(mocks: &'h Mocks, step: String) -> Self {
        Self { mocks, target: Target { step, workflow: None, attempt: None } }
    }

    /// Only in runs of this workflow.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::Harness;
    /// # async fn pay(_: Event<()>, step: &Step) -> Result<u32> { step.run("charge", async { Ok(7) }).await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let harness = Harness::memory([workflow("pay", pay)]).await?;
    /// # let instance = harness.create::<_, u32>("pay", ()).await?;
    /// harness.mock("charge").of("refund").returns(&8);
    /// harness.run_to_end().await?;
    /// assert_eq!(harness.result(&instance).await?, 7, "this is another workflow");
    /// # Ok(())
    /// # }
    /// ```
    pub fn of(mut self, workflow: impl Into<String>) -> Self {
        self.target.workflow = Some(workflow.into());
        self
    }

    /// Only this attempt, counted from 1.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::Harness;
    /// # async fn pay(_: Event<()>, step: &Step) -> Result<u32> { step.run("charge", async { Ok(7) }).await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let harness = Harness::memory([workflow("pay", pay)]).await?;
    /// # let instance = harness.create::<_, u32>("pay", ()).await?;
    /// harness.mock("charge").attempt(1).fails(Error::new("the gateway is busy"));
    /// harness.run_to_end().await?;
    /// assert_eq!(harness.result(&instance).await?, 7);
    /// assert_eq!(harness.rows(&instance).await?.steps[0].attempts, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// If it is 0.
    pub fn attempt(mut self, attempt: u32) -> Self {
        assert!(attempt > 0, "attempts are counted from 1");
        self.target.attempt = Some(attempt);
        self
    }

    /// The attempt succeeds with this result.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::Harness;
    /// # async fn pay(_: Event<()>, step: &Step) -> Result<u32> { step.run("charge", async { Ok(7) }).await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let harness = Harness::memory([workflow("pay", pay)]).await?;
    /// # let instance = harness.create::<_, u32>("pay", ()).await?;
    /// harness.mock("charge").returns(&8);
    /// harness.run_to_end().await?;
    /// assert_eq!(harness.result(&instance).await?, 8);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// If it cannot be written as JSON.
    pub fn returns(self, result: &(impl Serialize + ?Sized)) {
        let result = json(result);
        self.add(Replacement::Return(result));
    }

    /// The attempt fails with this error; it is retried as the step's policy says, unless no retry can help.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::Harness;
    /// # async fn pay(_: Event<()>, step: &Step) -> Result<u32> { step.run("charge", async { Ok(7) }).await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let harness = Harness::memory([workflow("pay", pay)]).await?;
    /// # let instance = harness.create::<_, u32>("pay", ()).await?;
    /// harness.mock("charge").fails(Error::non_retryable("card declined"));
    /// harness.run_to_end().await?;
    /// assert_eq!(harness.result(&instance).await.unwrap_err().message(), "card declined");
    /// # Ok(())
    /// # }
    /// ```
    pub fn fails(self, error: impl Into<Error>) {
        let error = error.into();
        let (name, message) = (error.name().to_owned(), error.message().to_owned());
        let retryable = error.is_retryable();
        self.add(Replacement::Fail(Arc::new(move || {
            let error = Error::new(message.clone()).named(name.clone());
            if retryable { error } else { error.into_non_retryable() }
        })));
    }

    /// The attempt fails as one that took longer than its timeout. The clock does not move.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::Harness;
    /// # async fn pay(_: Event<()>, step: &Step) -> Result<u32> { step.run("charge", async { Ok(7) }).await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let harness = Harness::memory([workflow("pay", pay)]).await?;
    /// # let instance = harness.create::<_, u32>("pay", ()).await?;
    /// harness.mock("charge").times_out();
    /// harness.run_to_end().await?;
    /// assert_eq!(harness.result(&instance).await.unwrap_err().name(), "StepTimeout");
    /// # Ok(())
    /// # }
    /// ```
    pub fn times_out(self) {
        self.add(Replacement::TimeOut);
    }

    fn add(self, instead: Replacement) {
        let rule = StepRule { target: self.target, instead, used: false };
        self.mocks.lock().steps.push(rule);
    }
}

impl fmt::Debug for MockStep<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MockStep({:?})", self.target.step)
    }
}

/// What a wait for an event meets; see [`Harness::mock_wait`](crate::Harness::mock_wait).
///
/// ```
/// # use piton::prelude::*;
/// # use piton_testing::Harness;
/// # async fn approve(_: Event<()>, step: &Step) -> Result<Option<u32>> {
/// #     step.wait_for_event("approval", "approved").outcome().await
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// # let harness = Harness::memory([workflow("approve", approve)]).await?;
/// # let instance = harness.create::<_, Option<u32>>("approve", ()).await?;
/// harness.mock_wait("approval").receives(&7);
/// harness.run_until_idle().await?;
/// assert_eq!(harness.result(&instance).await?, Some(7));
/// # Ok(())
/// # }
/// ```
#[must_use = "a mock does nothing until it says what happens"]
pub struct MockWait<'h> {
    mocks: &'h Mocks,
    target: Target,
}

impl<'h> MockWait<'h> {
    pub(crate) fn new(mocks: &'h Mocks, step: String) -> Self {
        Self { mocks, target: Target { step, workflow: None, attempt: None } }
    }

    /// Only in runs of this workflow.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::Harness;
    /// # async fn approve(_: Event<()>, step: &Step) -> Result<Option<u32>> {
    /// #     step.wait_for_event("approval", "approved").outcome().await
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let harness = Harness::memory([workflow("approve", approve)]).await?;
    /// # let instance = harness.create::<_, Option<u32>>("approve", ()).await?;
    /// harness.mock_wait("approval").of("approve").receives(&7);
    /// harness.run_until_idle().await?;
    /// assert_eq!(harness.result(&instance).await?, Some(7));
    /// # Ok(())
    /// # }
    /// ```
    pub fn of(mut self, workflow: impl Into<String>) -> Self {
        self.target.workflow = Some(workflow.into());
        self
    }

    /// Each run that reaches the wait is sent an event of the type it waits for, once.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::Harness;
    /// # async fn approve(_: Event<()>, step: &Step) -> Result<Option<u32>> {
    /// #     step.wait_for_event("approval", "approved").outcome().await
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let harness = Harness::memory([workflow("approve", approve)]).await?;
    /// # let instance = harness.create::<_, Option<u32>>("approve", ()).await?;
    /// harness.mock_wait("approval").receives(&7);
    /// harness.run_until_idle().await?;
    /// assert_eq!(harness.result(&instance).await?, Some(7));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// If the payload cannot be written as JSON.
    pub fn receives(self, payload: &(impl Serialize + ?Sized)) {
        let payload = json(payload);
        self.add(WaitOutcome::Receive(payload));
    }

    /// The wait's deadline is the moment it is reached: it times out, unless its event is there already.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::Harness;
    /// # async fn approve(_: Event<()>, step: &Step) -> Result<Option<u32>> {
    /// #     step.wait_for_event("approval", "approved").outcome().await
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let harness = Harness::memory([workflow("approve", approve)]).await?;
    /// # let instance = harness.create::<_, Option<u32>>("approve", ()).await?;
    /// harness.mock_wait("approval").times_out();
    /// harness.run_until_idle().await?;
    /// assert_eq!(harness.result(&instance).await?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn times_out(self) {
        self.add(WaitOutcome::TimeOut);
    }

    fn add(self, outcome: WaitOutcome) {
        let rule = WaitRule { target: self.target, outcome, used: false };
        self.mocks.lock().waits.push(rule);
    }
}

impl fmt::Debug for MockWait<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MockWait({:?})", self.target.step)
    }
}

pub(crate) fn json(value: &(impl Serialize + ?Sized)) -> Json {
    let text = serde_json::to_string(value).expect("the value can be written as JSON");
    Json::from_valid_text(text)
}
