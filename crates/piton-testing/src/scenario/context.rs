//! What the closures of a scenario see: the harness, the clock, the variables, and ways to look things up.

use std::any::{Any, type_name};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use piton::Result;
use piton::hooks::{HookRecord, HookStatus};
use piton_core::record::{EventRecord, InstanceRecord, RunNumber, StepRecord};
use piton_core::{Refusal, Timestamp};
use serde_json::Value;

use crate::{Harness, Rows, VirtualRuntime};

/// A variable of a scenario: a name with the type of what it holds.
///
/// Declare one as a constant, `const ID: Var<String> = Var::new("id");`, or write its name where it is used and let the
/// compiler find the type.
///
/// ```
/// # use piton_testing::scenario::{Scenario, Var, steps::*};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// const MOMENT: Var<piton::Timestamp> = Var::new("moment");
/// let scenario = Scenario::new("a minute").step(advance_time("1 minute").store_as(MOMENT));
/// let finished = scenario.step(assert(|cx| assert_eq!(*cx.var(MOMENT), cx.now()))).run().await?;
/// assert_eq!(finished.var(MOMENT), finished.var::<piton::Timestamp>("moment"));
/// # Ok(())
/// # }
/// ```
pub struct Var<T> {
    name: &'static str,
    holds: PhantomData<fn() -> T>,
}

impl<T> Var<T> {
    /// The variable with this name.
    ///
    /// ```
    /// use piton_testing::scenario::Var;
    /// const ID: Var<String> = Var::new("id");
    /// ```
    pub const fn new(name: &'static str) -> Self {
        Self { name, holds: PhantomData }
    }
}

impl<T> Clone for Var<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Var<T> {}

impl<T> From<&'static str> for Var<T> {
    fn from(name: &'static str) -> Self {
        Self::new(name)
    }
}

impl<T> fmt::Debug for Var<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Var<{}>({:?})", type_name::<T>(), self.name)
    }
}

/// The variables of a scenario.
#[derive(Default)]
pub(super) struct Vars(BTreeMap<&'static str, Stored>);

struct Stored {
    value: Box<dyn Any>,
    type_name: &'static str,
}

impl Vars {
    /// Stores a value, over whatever was there.
    pub(super) fn put<T: 'static>(&mut self, key: Var<T>, value: T) {
        let stored = Stored { value: Box::new(value), type_name: type_name::<T>() };
        self.0.insert(key.name, stored);
    }

    pub(super) fn get<T: 'static>(&self, key: Var<T>) -> Option<&T> {
        let stored = self.0.get(key.name)?;
        let value = stored.value.downcast_ref();
        Some(value.unwrap_or_else(|| {
            let (name, held, wanted) = (key.name, stored.type_name, type_name::<T>());
            panic!("variable {name:?} holds a {held}, not a {wanted}")
        }))
    }

    pub(super) fn require<T: 'static>(&self, key: Var<T>) -> &T {
        self.get(key).unwrap_or_else(|| {
            let names: Vec<_> = self.0.keys().collect();
            panic!("no step has stored variable {:?} (stored: {names:?})", key.name)
        })
    }
}

impl fmt::Debug for Vars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(name, stored)| (name, stored.type_name))).finish()
    }
}

/// Where a scenario stands.
///
/// ```
/// # use piton_testing::scenario::Context;
/// # use piton_testing::scenario::{Scenario, steps::*};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// fn nothing_waits(cx: &Context) {
///     assert_eq!(cx.runtime().next_sleep_at(), None, "{} at {}", cx.name(), cx.now());
/// }
/// Scenario::new("nothing").step(assert(nothing_waits)).run().await?;
/// # Ok(())
/// # }
/// ```
pub struct Context {
    pub(super) name: String,
    pub(super) harness: Harness,
    pub(super) vars: Vars,
}

impl Context {
    pub(super) fn new(name: String, harness: Harness) -> Self {
        Self { name, harness, vars: Vars::default() }
    }

    /// The name of the scenario.
    ///
    /// ```
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let step = assert(|cx| assert_eq!(cx.name(), "a nap"));
    /// # Scenario::new("a nap").step(step).run().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The harness: for mocks, and for what no step does.
    ///
    /// ```
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let step = assert(|cx| cx.harness().mock("send mail").returns("sent"));
    /// # Scenario::new("a nap").step(step).run().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn harness(&self) -> &Harness {
        &self.harness
    }

    /// The virtual world.
    ///
    /// ```
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let step = assert(|cx| assert_eq!(cx.runtime().next_sleep_at(), None));
    /// # Scenario::new("a nap").step(step).run().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn runtime(&self) -> &Arc<VirtualRuntime> {
        self.harness.runtime()
    }

    /// What the clock shows.
    ///
    /// ```
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let step = assert(|cx| assert_eq!(cx.now(), piton_testing::runtime::START));
    /// # Scenario::new("a nap").step(step).run().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn now(&self) -> Timestamp {
        self.harness.now()
    }

    /// A variable. `None` if no step has stored it yet.
    ///
    /// ```
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// let step = assert(|cx| assert_eq!(cx.get::<String>("id"), None));
    /// # Scenario::new("a nap").step(step).run().await?;
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
    /// # use piton::prelude::*;
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # async fn nap(_: Event<()>, step: &Step) -> Result<()> { step.sleep("nap", "1 hour").await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let scenario = Scenario::new("a nap").workflow(workflow("nap", nap));
    /// let scenario = scenario
    ///     .step(create("nap").id("n-1").store_as("id"))
    ///     .step(assert(|cx| assert_eq!(cx.var::<String>("id"), "n-1")));
    /// # scenario.run().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// If no step has stored it yet, or it holds a value of another type.
    pub fn var<T: 'static>(&self, key: impl Into<Var<T>>) -> &T {
        self.vars.require(key.into())
    }

    /// Ways to look things up.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # async fn nap(_: Event<()>, step: &Step) -> Result<()> { step.sleep("nap", "1 hour").await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let scenario = Scenario::new("a nap").workflow(workflow("nap", nap));
    /// let scenario = scenario.step(create("nap").id("n-1")).step(assert_later(async |cx| {
    ///     assert_eq!(cx.utils().require_instance("nap", "n-1").await?.run, 0);
    ///     Ok(())
    /// }));
    /// # scenario.run().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn utils(&self) -> Utils<'_> {
        Utils { harness: &self.harness }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("name", &self.name).field("vars", &self.vars).finish()
    }
}

/// Looks up rows, so that a test needs no SQL.
///
/// ```
/// # use piton::prelude::*;
/// # use piton_testing::scenario::{Scenario, steps::*};
/// # async fn nap(_: Event<()>, step: &Step) -> Result<()> { step.sleep("nap", "1 hour").await }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// # let scenario = Scenario::new("a nap").workflow(workflow("nap", nap));
/// let scenario = scenario.step(create("nap").id("n-1")).step(assert_later(async |cx| {
///     let utils = cx.utils();
///     assert!(utils.get_instance("nap", "n-2").await?.is_none());
///     assert!(utils.get_instance("nap", "n-1").await?.is_some());
///     Ok(())
/// }));
/// # scenario.run().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Utils<'a> {
    harness: &'a Harness,
}

/// Which rows to look up: those of the current run, oldest first, unless it says otherwise.
///
/// ```
/// use piton_testing::scenario::{Order, RowOptions};
/// let newest_first = RowOptions { order: Order::Descending, ..RowOptions::default() };
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct RowOptions {
    /// Of this run.
    pub run_number: Option<RunNumber>,
    /// In this order.
    pub order: Order,
}

/// The order of rows.
///
/// ```
/// use piton_testing::scenario::Order;
/// assert_eq!(Order::default(), Order::Ascending);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Oldest first.
    #[default]
    Ascending,
    /// Newest first.
    Descending,
}

impl Order {
    fn sort<T>(self, mut rows: Vec<T>) -> Vec<T> {
        if self == Self::Descending {
            rows.reverse();
        }
        rows
    }
}

/// Which hooks to look up: all that there are, unless it says otherwise.
#[derive(Clone, Debug, Default)]
pub struct HookOptions {
    /// Of this namespace.
    pub namespace: Option<String>,
    /// Of this name, such as `on_workflow_enqueued`.
    pub hook_name: Option<String>,
    /// With this status.
    pub status: Option<HookStatus>,
    /// About an instance of this workflow, as the payload says.
    pub workflow: Option<String>,
    /// About this instance, as the payload says.
    pub instance_id: Option<String>,
}

/// What a test should seldom need: the rows behind what workflows do.
#[derive(Clone, Copy, Debug)]
pub struct Internal<'a> {
    harness: &'a Harness,
}

impl Internal<'_> {
    /// The hooks that are stored, oldest first.
    ///
    /// # Errors
    ///
    /// If a name is not valid, or the store cannot be read.
    pub async fn get_hooks(&self, options: HookOptions) -> Result<Vec<HookRecord>> {
        let client = self.harness.engine().hooks();
        let (mut hooks, mut cursor) = (Vec::new(), None);
        loop {
            let mut list = match &options.namespace {
                Some(namespace) => client.namespace(namespace)?.list(),
                None => client.list().all_namespaces(),
            };
            if let Some(name) = &options.hook_name {
                list = list.name(name);
            }
            if let Some(status) = options.status {
                list = list.status(status);
            }
            if let Some(cursor) = cursor.take() {
                list = list.after(cursor);
            }
            let page = list.page_size(100).await?;
            hooks.extend(page.items);
            if !page.has_next_page {
                break;
            }
            cursor = page.cursor;
        }
        hooks.retain(|hook| options.fits(hook));
        hooks.reverse();
        Ok(hooks)
    }
}

impl HookOptions {
    fn fits(&self, hook: &HookRecord) -> bool {
        let payload: Value = serde_json::from_str(hook.payload.as_str()).unwrap_or_default();
        let says = |field: &str, wanted: &Option<String>| {
            wanted.as_deref().is_none_or(|wanted| payload[field] == wanted)
        };
        says("workflowName", &self.workflow) && says("instanceId", &self.instance_id)
    }
}

/// Which run is to be advanced, and why.
///
/// ```
/// # use piton::prelude::*;
/// # use piton_testing::scenario::{Reason, TickPayload, Var};
/// # use piton_testing::scenario::{Scenario, steps::*};
/// # async fn nap(_: Event<()>, step: &Step) -> Result<()> { step.sleep("nap", "1 hour").await }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// # let scenario = Scenario::new("a nap").workflow(workflow("nap", nap));
/// const PAYLOAD: Var<TickPayload> = Var::new("payload");
/// let scenario = scenario
///     .step(create("nap").id("n-1"))
///     .step(read(async |cx| cx.utils().build_payload("nap", "n-1", Reason::Create).await).store_as(PAYLOAD))
///     .step(tick_payload(PAYLOAD));
/// # scenario.run().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TickPayload {
    /// The workflow.
    pub workflow: String,
    /// The instance.
    pub instance_id: String,
    /// The run. A payload for an older run advances nothing.
    pub run_number: RunNumber,
    /// Why, for people.
    pub reason: Reason,
    /// From when on. A payload of the future advances nothing.
    pub timestamp: Timestamp,
}

/// Why a run is to be advanced.
///
/// ```
/// # use piton_testing::scenario::{Reason, steps::*};
/// let step = tick("nap", "n-1").reason(Reason::Wake);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It was created.
    Create,
    /// An event arrived.
    Event,
    /// It was resumed.
    Resume,
    /// A failed step is to be tried again.
    Retry,
    /// A sleep ended or a wait timed out.
    Wake,
}

impl<'a> Utils<'a> {
    /// Rows that a test should seldom need.
    pub fn internal(&self) -> Internal<'a> {
        Internal { harness: self.harness }
    }

    /// An instance's row, if there is such an instance.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # async fn nap(_: Event<()>, step: &Step) -> Result<()> { step.sleep("nap", "1 hour").await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let scenario = Scenario::new("a nap").workflow(workflow("nap", nap));
    /// let scenario = scenario.step(assert_later(async |cx| {
    ///     assert!(cx.utils().get_instance("nap", "n-1").await?.is_none());
    ///     Ok(())
    /// }));
    /// # scenario.run().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `WORKFLOW_NOT_FOUND`, or if the store cannot be read.
    pub async fn get_instance(&self, workflow: &str, id: &str) -> Result<Option<InstanceRecord>> {
        Ok(self.rows(workflow, id, None).await?.map(|rows| rows.instance))
    }

    /// An instance's row.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # async fn nap(_: Event<()>, step: &Step) -> Result<()> { step.sleep("nap", "1 hour").await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let scenario = Scenario::new("a nap").workflow(workflow("nap", nap));
    /// let scenario = scenario.step(create("nap").id("n-1")).step(assert_later(async |cx| {
    ///     assert_eq!(cx.utils().require_instance("nap", "n-1").await?.started_at, None);
    ///     Ok(())
    /// }));
    /// # scenario.run().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `WORKFLOW_NOT_FOUND`, `INSTANCE_NOT_FOUND`, or if the store cannot be read.
    pub async fn require_instance(&self, workflow: &str, id: &str) -> Result<InstanceRecord> {
        Ok(self.require_rows(workflow, id, None).await?.instance)
    }

    /// The steps of a run.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::scenario::RowOptions;
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # async fn nap(_: Event<()>, step: &Step) -> Result<()> { step.sleep("nap", "1 hour").await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let scenario = Scenario::new("a nap").workflow(workflow("nap", nap));
    /// let scenario = scenario.step(create("nap").id("n-1")).step(tick_all()).step(assert_later(async |cx| {
    ///     let steps = cx.utils().get_steps("nap", "n-1", RowOptions::default()).await?;
    ///     assert_eq!(steps[0].name.as_str(), "nap");
    ///     Ok(())
    /// }));
    /// # scenario.run().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`require_instance`](Self::require_instance).
    pub async fn get_steps(
        &self,
        workflow: &str,
        id: &str,
        options: RowOptions,
    ) -> Result<Vec<StepRecord>> {
        let rows = self.require_rows(workflow, id, options.run_number).await?;
        Ok(options.order.sort(rows.steps))
    }

    /// The events of a run.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::scenario::RowOptions;
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # async fn nap(_: Event<()>, step: &Step) -> Result<()> { step.sleep("nap", "1 hour").await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let scenario = Scenario::new("a nap").workflow(workflow("nap", nap));
    /// let scenario = scenario.step(create("nap").id("n-1")).step(event("nap", "n-1", "alarm"));
    /// let scenario = scenario.step(assert_later(async |cx| {
    ///     let events = cx.utils().get_events("nap", "n-1", RowOptions::default()).await?;
    ///     assert_eq!(events[0].event_type.as_str(), "alarm");
    ///     Ok(())
    /// }));
    /// # scenario.run().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`require_instance`](Self::require_instance).
    pub async fn get_events(
        &self,
        workflow: &str,
        id: &str,
        options: RowOptions,
    ) -> Result<Vec<EventRecord>> {
        let rows = self.require_rows(workflow, id, options.run_number).await?;
        Ok(options.order.sort(rows.events))
    }

    /// What a [`tick_payload`](super::steps::tick_payload) needs to advance the instance's current run now.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::scenario::{Reason, later};
    /// # use piton_testing::scenario::{Scenario, steps::*};
    /// # async fn nap(_: Event<()>, step: &Step) -> Result<()> { step.sleep("nap", "1 hour").await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let scenario = Scenario::new("a nap").workflow(workflow("nap", nap));
    /// let payload = later(async |cx| cx.utils().build_payload("nap", "n-1", Reason::Create).await);
    /// let scenario = scenario.step(create("nap").id("n-1")).step(tick_payload(payload));
    /// # scenario.run().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`require_instance`](Self::require_instance).
    pub async fn build_payload(
        &self,
        workflow: &str,
        id: &str,
        reason: Reason,
    ) -> Result<TickPayload> {
        let instance = self.require_instance(workflow, id).await?;
        Ok(TickPayload {
            workflow: workflow.to_owned(),
            instance_id: id.to_owned(),
            run_number: instance.run,
            reason,
            timestamp: self.harness.now(),
        })
    }

    async fn require_rows(&self, workflow: &str, id: &str, run: Option<u32>) -> Result<Rows> {
        let rows = self.rows(workflow, id, run).await?;
        rows.ok_or_else(|| Refusal::no_instance(workflow, id).into())
    }

    async fn rows(&self, workflow: &str, id: &str, run: Option<u32>) -> Result<Option<Rows>> {
        // Refuses a workflow that is not registered: a misspelt one has no instances either.
        self.harness.workflow::<Value, Value>(workflow)?;
        self.harness.rows_of(workflow, id, run).await
    }
}
