//! Crash tests for free: a workflow is run again and again, and its process killed before and after each commit.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use piton::{Registration, StepRecord};
use piton_core::{Json, StepStatus, StepType};
use serde::Serialize;
use serde_json::Value;

use crate::access::{Access, NextCommit};
use crate::mocks::Executed;
use crate::{Harness, Rows, StoreKind};

/// The id of the instance under test.
const INSTANCE: &str = "crash-test";

/// How many boundaries a run may have: each is a run of its own, twice.
const BOUNDARIES_MAX: usize = 1_000;

/// Runs the workflow with these params once without a crash, and then once for each commit with the process killed just
/// before it, and once with it killed just after it: another process takes over, and must come to the same end.
///
/// For a workflow that waits for events, calls other workflows or needs mocks, use [`CrashTest`].
///
/// ```
/// # use piton::prelude::*;
/// # use piton_testing::survives_crash_at_every_boundary;
/// async fn double(n: Event<u64>, step: &Step) -> Result<u64> {
///     let doubled = step.run("double", async { Ok(*n * 2) }).await?;
///     step.sleep("rest", "2 weeks").await?;
///     step.run("again", async { Ok(doubled * 2) }).await
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// let survived = survives_crash_at_every_boundary(workflow("double", double), 7).await?;
/// assert_eq!(survived.crashes, 2 * survived.boundaries);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The story of the first crash that made a difference: to the outcome, to the recorded steps, or to the bodies that were
/// executed. What a body returns must not depend on when it is executed; mock one whose result does.
pub async fn survives_crash_at_every_boundary(
    workflow: impl Into<Registration>,
    params: impl Serialize,
) -> Result<Survived, CrashStory> {
    CrashTest::new(workflow, params).run().await
}

/// What a crash test did.
///
/// ```
/// # use piton::prelude::*;
/// # use piton_testing::CrashTest;
/// # async fn pay(_: Event<()>, step: &Step) -> Result<u32> { step.run("charge", async { Ok(7) }).await }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// let survived = CrashTest::new(workflow("pay", pay), ()).run().await?;
/// assert_eq!(survived.crashes, 2 * survived.boundaries);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Survived {
    /// How many boundaries the run has.
    pub boundaries: usize,
    /// How many crashes it survived.
    pub crashes: usize,
}

/// Makes a world ready for a run.
type Prepare = dyn for<'h> Fn(&'h Harness) -> Pin<Box<dyn Future<Output = piton::Result<()>> + 'h>>;

/// A crash test in the making; see [`survives_crash_at_every_boundary`].
///
/// ```
/// # use piton::prelude::*;
/// # use piton_testing::{CrashTest, StoreKind};
/// # async fn approve(_: Event<()>, step: &Step) -> Result<String> {
/// #     let by: String = step.wait_for_event("approval", "approved").await?;
/// #     step.run("send mail", async { Ok(format!("approved by {by}")) }).await
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// CrashTest::new(workflow("approve", approve), ())
///     .prepare(|harness| {
///         harness.mock_wait("approval").receives("Ada");
///         harness.mock("send mail").returns("sent");
///     })
///     .store(StoreKind::Sqlite)
///     .run()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a crash test does nothing unless it is run"]
pub struct CrashTest {
    workflows: Vec<Registration>,
    params: Value,
    kind: StoreKind,
    prepare: Box<Prepare>,
}

impl CrashTest {
    /// A crash test of a workflow with these params.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::CrashTest;
    /// # async fn pay(_: Event<()>, step: &Step) -> Result<u32> { step.run("charge", async { Ok(7) }).await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// CrashTest::new(workflow("pay", pay), ()).run().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// If the params cannot be written as JSON.
    pub fn new(workflow: impl Into<Registration>, params: impl Serialize) -> Self {
        Self {
            workflows: vec![workflow.into()],
            params: serde_json::to_value(params).expect("the params can be written as JSON"),
            kind: StoreKind::Memory,
            prepare: Box::new(|_| Box::pin(std::future::ready(Ok(())))),
        }
    }

    /// Registers another workflow, which the one under test creates instances of or sends events to.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn order(_: Event<()>, step: &Step) -> Result<()> {
    /// #     step.run_with("order", |cx| async move { cx.transaction().create("pay", "p-1", &()) }).await
    /// # }
    /// # use piton_testing::CrashTest;
    /// # async fn pay(_: Event<()>, step: &Step) -> Result<u32> { step.run("charge", async { Ok(7) }).await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// CrashTest::new(workflow("order", order), ()).register(workflow("pay", pay)).run().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn register(mut self, workflow: impl Into<Registration>) -> Self {
        self.workflows.push(workflow.into());
        self
    }

    /// Which store it works on. Default: in memory.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::{CrashTest, StoreKind};
    /// # async fn pay(_: Event<()>, step: &Step) -> Result<u32> { step.run("charge", async { Ok(7) }).await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// CrashTest::new(workflow("pay", pay), ()).store(StoreKind::Sqlite).run().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn store(mut self, kind: StoreKind) -> Self {
        self.kind = kind;
        self
    }

    /// Prepares each world before its run: mocks, and instances that the workflow expects.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::CrashTest;
    /// # async fn stock(_: Event<u32>, step: &Step) -> Result<u32> { step.wait_for_event("sale", "sold").await }
    /// # async fn sell(_: Event<()>, step: &Step) -> Result<()> {
    /// #     step.run_with("sell", |cx| async move { cx.transaction().send_event("stock", "main", "sold", &1) }).await
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// CrashTest::new(workflow("sell", sell), ())
    ///     .register(workflow("stock", stock))
    ///     .prepare_with(async |harness| {
    ///         harness.workflow::<u32, u32>("stock")?.create(7).id("main").await?;
    ///         Ok(())
    ///     })
    ///     .run()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn prepare_with<F>(mut self, prepare: F) -> Self
    where
        F: AsyncFn(&Harness) -> piton::Result<()> + 'static,
    {
        let prepare = Rc::new(prepare);
        self.prepare = Box::new(move |harness| {
            let prepare = Rc::clone(&prepare);
            Box::pin(async move { prepare(harness).await })
        });
        self
    }

    /// Like [`prepare_with`](Self::prepare_with), for mocks alone.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::CrashTest;
    /// # async fn pay(_: Event<()>, step: &Step) -> Result<u32> { step.run("charge", async { Ok(7) }).await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let test = CrashTest::new(workflow("pay", pay), ());
    /// test.prepare(|harness| harness.mock("charge").returns(&8)).run().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn prepare(mut self, prepare: impl Fn(&Harness) + 'static) -> Self {
        self.prepare = Box::new(move |harness| {
            prepare(harness);
            Box::pin(std::future::ready(Ok(())))
        });
        self
    }

    /// Runs it.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn guess(_: Event<()>, step: &Step) -> Result<u64> {
    /// #     static CALLS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    /// #     step.run("guess", async { Ok(CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) }).await
    /// # }
    /// # use piton_testing::CrashTest;
    /// # async fn pay(_: Event<()>, step: &Step) -> Result<u32> { step.run("charge", async { Ok(7) }).await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// CrashTest::new(workflow("pay", pay), ()).run().await?;
    /// CrashTest::new(workflow("guess", guess), ()).run().await.unwrap_err(); // never the same twice
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The story of the first crash that made a difference.
    pub async fn run(self) -> Result<Survived, CrashStory> {
        let undisturbed = self.run_undisturbed().await.map_err(|error| self.broken(&error))?;
        let boundaries = undisturbed.boundaries.len();
        if boundaries > BOUNDARIES_MAX {
            let message = format!(
                "{boundaries} boundaries are more than {BOUNDARIES_MAX}; test a smaller case"
            );
            return Err(CrashStory(message));
        }
        let mut crashes = 0;
        for at in 1..=boundaries {
            for fate in [NextCommit::IsLost, NextCommit::LosesItsAnswer] {
                let crashed = self.run_with_crash(at, fate).await;
                let crashed = crashed.map_err(|error| self.broken(&error))?;
                let differences = crashed.compare(&undisturbed.end);
                if !differences.is_empty() {
                    return Err(self.story(&undisturbed, &crashed, at, fate, &differences));
                }
                crashes += 1;
            }
        }
        Ok(Survived { boundaries, crashes })
    }

    fn name(&self) -> &str {
        self.workflows[0].name()
    }

    async fn run_undisturbed(&self) -> piton::Result<Undisturbed> {
        let (harness, access) = self.world(None).await?;
        harness.run_to_end().await?;
        let end = End::new(self.rows(&harness).await?);
        Ok(Undisturbed { boundaries: access.boundaries(), end })
    }

    async fn run_with_crash(&self, at: usize, fate: NextCommit) -> piton::Result<Crashed> {
        let (harness, access) = self.world(Some((at, fate))).await?;
        let reached = run_until_crash(&harness, &access).await?;
        let at_crash = self.rows(&harness).await?;
        let before = harness.mocks.executed();
        let harness = harness.crash_and_restart(self.workflows.iter().cloned()).await?;
        harness.run_to_end().await?;
        let end = End::new(self.rows(&harness).await?);
        let after = executed_since(&before, harness.mocks.executed());
        Ok(Crashed { reached, boundaries: access.boundaries(), at_crash, after, end })
    }

    /// A fresh world with the instance in it, in which the process dies at a boundary.
    async fn world(
        &self,
        crash: Option<(usize, NextCommit)>,
    ) -> piton::Result<(Harness, Arc<Access>)> {
        let access = OnceLock::new();
        let harness = Harness::builder().store(self.kind).workflows(self.workflows.iter().cloned());
        let through = harness.through(|store| {
            let access: &Arc<Access> = access.get_or_init(|| Access::to(store));
            Arc::clone(access) as _
        });
        let harness = through.start().await?;
        let access = access.into_inner().expect("the engine has been started on it");
        if let Some((at, fate)) = crash {
            access.crash_at(at, fate);
        }
        (self.prepare)(&harness).await?;
        let workflow = harness.workflow::<Value, Value>(self.name())?;
        workflow.create(self.params.clone()).id(INSTANCE).await?;
        Ok((harness, access))
    }

    async fn rows(&self, harness: &Harness) -> piton::Result<Rows> {
        let rows = harness.rows_of(self.name(), INSTANCE, None).await?;
        Ok(rows.expect("the instance was created"))
    }

    fn broken(&self, error: &piton::Error) -> CrashStory {
        CrashStory(format!("the crash test of {:?} could not be run: {error:?}", self.name()))
    }

    fn story(
        &self,
        undisturbed: &Undisturbed,
        crashed: &Crashed,
        at: usize,
        fate: NextCommit,
        differences: &[String],
    ) -> CrashStory {
        let (name, count) = (self.name(), undisturbed.boundaries.len());
        let when = if fate == NextCommit::IsLost { "before" } else { "after" };
        let mut story =
            format!("{name:?} does not survive a crash just {when} boundary {at} of {count}");
        for (index, boundary) in crashed.boundaries.iter().take(at).enumerate() {
            story += &format!("\n  boundary {}: {boundary}", index + 1);
        }
        story += "\n  crash, and another process takes over";
        for difference in differences {
            story += &format!("\n  - {difference}");
        }
        CrashStory(story)
    }
}

impl fmt::Debug for CrashTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CrashTest({})", self.name())
    }
}

/// Goes on until the process dies. `false` if the run ended before it did.
async fn run_until_crash(harness: &Harness, access: &Access) -> piton::Result<bool> {
    loop {
        let ticked = harness.tick().await;
        if access.has_crashed() {
            return Ok(true);
        }
        if ticked? == 0 && harness.advance_to_next_wake().await?.is_none() {
            return Ok(false);
        }
    }
}

fn executed_since(
    before: &BTreeMap<Executed, u32>,
    mut now: BTreeMap<Executed, u32>,
) -> BTreeMap<Executed, u32> {
    for (executed, count) in before {
        if let Some(now) = now.get_mut(executed) {
            *now -= count;
        }
    }
    now.retain(|executed, count| *count > 0 && executed.place.instance_id == INSTANCE);
    now
}

/// The run without a crash.
struct Undisturbed {
    boundaries: Vec<String>,
    end: End,
}

/// A run with a crash in it.
struct Crashed {
    /// The boundary was reached at which the process was to die.
    reached: bool,
    boundaries: Vec<String>,
    at_crash: Rows,
    /// The bodies that were executed after the crash.
    after: BTreeMap<Executed, u32>,
    end: End,
}

impl Crashed {
    fn compare(&self, undisturbed: &End) -> Vec<String> {
        let mut differences = self.executed_again();
        if !self.reached {
            differences.push("this time the run ended before it came to that boundary".to_owned());
        }
        differences.extend(self.end.compare(undisturbed));
        differences
    }

    /// Bodies that were executed although what they did was recorded, or more often than a crash explains.
    fn executed_again(&self) -> Vec<String> {
        let tell = |(executed, count): (&Executed, &u32)| {
            let (step, attempt) = (&executed.place.step, executed.attempt);
            let recorded = self.at_crash.step(step).is_some_and(|row| row.attempts >= attempt);
            let body = format!("the body of step {step:?}, attempt {attempt}, was executed");
            match (recorded, *count) {
                (true, _) => Some(format!("{body} again, although it had been recorded")),
                (false, 1) => None,
                (false, count) => Some(format!("{body} {count} times after the crash")),
            }
        };
        self.after.iter().filter_map(tell).collect()
    }
}

/// How a run ended, without anything that depends on the time.
struct End {
    outcome: String,
    steps: BTreeMap<String, StepEnd>,
}

#[derive(PartialEq)]
struct StepEnd {
    step_type: StepType,
    status: StepStatus,
    attempts: u32,
    result: Option<Json>,
    error: Option<(String, String)>,
}

impl End {
    fn new(rows: Rows) -> Self {
        let instance = &rows.instance;
        let detail = match (&instance.output, &instance.error) {
            (_, Some(error)) => format!(" with {}: {}", error.name, error.message),
            (Some(output), None) => format!(" with {}", output.as_str()),
            (None, None) => String::new(),
        };
        let steps = rows.steps.iter().map(|step| (step.name.to_string(), StepEnd::new(step)));
        Self { outcome: format!("{}{detail}", instance.status), steps: steps.collect() }
    }

    fn compare(&self, undisturbed: &End) -> Vec<String> {
        let mut differences = Vec::new();
        if self.outcome != undisturbed.outcome {
            let (crashed, undisturbed) = (&self.outcome, &undisturbed.outcome);
            differences.push(format!("the run ended {crashed}; without a crash, {undisturbed}"));
        }
        let names: BTreeSet<&String> = self.steps.keys().chain(undisturbed.steps.keys()).collect();
        for name in names {
            match (self.steps.get(name), undisturbed.steps.get(name)) {
                (Some(crashed), Some(undisturbed)) if crashed == undisturbed => {}
                (Some(crashed), Some(undisturbed)) => differences
                    .push(format!("step {name:?} is {crashed}; without a crash, {undisturbed}")),
                (Some(crashed), None) => differences
                    .push(format!("step {name:?} is {crashed}; without a crash there is none")),
                (None, Some(undisturbed)) => differences.push(format!(
                    "there is no step {name:?}; without a crash it is {undisturbed}"
                )),
                (None, None) => {}
            }
        }
        differences
    }
}

impl StepEnd {
    fn new(step: &StepRecord) -> Self {
        // A wait's result has the time of its event in it.
        let result = step.result.clone().map(|result| match step.step_type {
            StepType::WaitForEvent => without_timestamp(&result),
            StepType::Do | StepType::Sleep => result,
        });
        let error = step.error.as_ref().map(|error| (error.name.clone(), error.message.clone()));
        let StepRecord { step_type, status, attempts, .. } = *step;
        Self { step_type, status, attempts, result, error }
    }
}

fn without_timestamp(received: &Json) -> Json {
    let mut value = serde_json::from_str::<Value>(received.as_str()).unwrap_or(Value::Null);
    if let Some(fields) = value.as_object_mut() {
        fields.remove("timestamp");
    }
    crate::mocks::json(&value)
}

impl fmt::Display for StepEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} after {} attempts", self.status, self.attempts)?;
        match (&self.result, &self.error) {
            (_, Some((name, message))) => write!(f, " with {name}: {message}"),
            (Some(result), None) => write!(f, " with {}", result.as_str()),
            (None, None) => Ok(()),
        }
    }
}

/// Why a workflow does not survive a crash: what was committed, where it crashed, and what became different.
///
/// ```
/// # use piton::prelude::*;
/// # async fn guess(_: Event<()>, step: &Step) -> Result<u64> {
/// #     static CALLS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
/// #     step.run("guess", async { Ok(CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) }).await
/// # }
/// # use piton_testing::CrashTest;
/// # async fn pay(_: Event<()>, step: &Step) -> Result<u32> { step.run("charge", async { Ok(7) }).await }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// let story = CrashTest::new(workflow("guess", guess), ()).run().await.unwrap_err();
/// println!("{story}");
/// # Ok(())
/// # }
/// ```
pub struct CrashStory(String);

impl fmt::Display for CrashStory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for CrashStory {
    /// What a test that returns it prints.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CrashStory {}
