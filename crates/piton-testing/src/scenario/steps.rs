//! The eleven kinds of steps. Each is a builder; hand it to [`Scenario::step`](super::Scenario::step).

use std::fmt;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use piton::{BatchItem, History, HistoryQuery, Instance, Result};
use piton_core::{Span, Timestamp};
use serde_json::Value;

use super::{Context, Input, IntoInput, Reason, TickPayload, Var};
use crate::Progress;

type Work = Box<dyn for<'a> FnOnce(&'a mut Context) -> LocalBoxFuture<'a, Result<()>>>;

/// A step of a scenario.
///
/// ```
/// use piton_testing::scenario::steps::{ScenarioStep, advance_time, tick_all};
/// let day: [ScenarioStep; 2] = [advance_time("1 day").into(), tick_all().into()];
/// ```
pub struct ScenarioStep {
    kind: &'static str,
    work: Work,
}

impl ScenarioStep {
    fn new<T: 'static>(
        kind: &'static str,
        store_as: Option<Var<T>>,
        work: impl AsyncFnOnce(&Context) -> Result<T> + 'static,
    ) -> Self {
        let work: Work = Box::new(move |context| {
            let done = async move {
                let value = work(context).await?;
                if let Some(key) = store_as {
                    context.vars.put(key, value);
                }
                Ok(())
            };
            done.boxed_local()
        });
        Self { kind, work }
    }

    pub(super) fn kind(&self) -> &'static str {
        self.kind
    }

    pub(super) async fn run(self, context: &mut Context) -> Result<()> {
        (self.work)(context).await
    }
}

impl fmt::Debug for ScenarioStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScenarioStep({})", self.kind)
    }
}

macro_rules! stores {
    ($step:ident, $value:ty, $what:literal, $example:literal) => {
        impl $step {
            #[doc = concat!("Keeps ", $what, " in a variable, over whatever was there.")]
            ///
            /// ```
            /// # use piton_testing::scenario::steps::*;
            #[doc = concat!("let step = ", $example, ".store_as(\"found\");")]
            /// ```
            pub fn store_as(mut self, key: impl Into<Var<$value>>) -> Self {
                self.store_as = Some(key.into());
                self
            }
        }

        impl fmt::Debug for $step {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($step))
            }
        }
    };
}

/// An instance that a step is about.
struct Target {
    workflow: Input<String>,
    id: Input<String>,
}

impl Target {
    fn new(workflow: impl IntoInput<String>, id: impl IntoInput<String>) -> Self {
        Self { workflow: workflow.into_input(), id: id.into_input() }
    }

    async fn resolve(self, cx: &Context) -> Result<(String, String)> {
        Ok((self.workflow.resolve(cx).await?, self.id.resolve(cx).await?))
    }
}

/// Creates an instance.
///
/// ```
/// # use piton_testing::scenario::steps::*;
/// let step = create("pay").params(serde_json::json!({ "cents": 125 })).id("p-1");
/// ```
pub fn create(workflow: impl IntoInput<String>) -> Create {
    let params = Input::value(Ok(Value::Null));
    Create { workflow: workflow.into_input(), params, id: None, store_as: None }
}

/// See [`create`].
///
/// ```
/// # use piton_testing::scenario::steps::*;
/// let step: Create = create("nap");
/// ```
#[must_use]
pub struct Create {
    workflow: Input<String>,
    params: Input<Value>,
    id: Option<Input<String>>,
    store_as: Option<Var<String>>,
}

stores!(Create, String, "the instance's id", r#"create("nap")"#);

impl Create {
    /// With these params; `null` if nothing is said.
    ///
    /// ```
    /// # use piton_testing::scenario::steps::*;
    /// let step = create("pay").params(125);
    /// ```
    pub fn params(mut self, params: impl IntoInput<Value>) -> Self {
        self.params = params.into_input();
        self
    }

    /// With this id.
    ///
    /// ```
    /// # use piton_testing::scenario::steps::*;
    /// let step = create("nap").id("n-1");
    /// ```
    pub fn id(mut self, id: impl IntoInput<String>) -> Self {
        self.id = Some(id.into_input());
        self
    }
}

impl From<Create> for ScenarioStep {
    fn from(step: Create) -> Self {
        ScenarioStep::new("create", step.store_as, async move |cx: &Context| {
            let workflow = step.workflow.resolve(cx).await?;
            let params = step.params.resolve(cx).await?;
            let mut create = cx.harness.workflow::<Value, Value>(&workflow)?.create(params);
            if let Some(id) = step.id {
                create = create.id(id.resolve(cx).await?);
            }
            Ok(create.await?.id().to_owned())
        })
    }
}

/// Creates instances in one transaction; ids that exist are skipped.
///
/// ```
/// # use piton_testing::scenario::steps::*;
/// let step = create_batch("pay", [("p-1", 125), ("p-2", 250)]);
/// ```
pub fn create_batch(
    workflow: impl IntoInput<String>,
    instances: impl IntoInput<Vec<(String, Value)>>,
) -> CreateBatch {
    let (workflow, instances) = (workflow.into_input(), instances.into_input());
    CreateBatch { workflow, instances, store_as: None }
}

/// See [`create_batch`].
///
/// ```
/// # use piton_testing::scenario::steps::*;
/// let step: CreateBatch = create_batch("nap", [("n-1", ())]);
/// ```
#[must_use]
pub struct CreateBatch {
    workflow: Input<String>,
    instances: Input<Vec<(String, Value)>>,
    store_as: Option<Var<Vec<String>>>,
}

stores!(
    CreateBatch,
    Vec<String>,
    "the ids of what was created",
    r#"create_batch("nap", [("n-1", ()), ("n-2", ())])"#
);

impl From<CreateBatch> for ScenarioStep {
    fn from(step: CreateBatch) -> Self {
        ScenarioStep::new("create_batch", step.store_as, async move |cx: &Context| {
            let workflow = step.workflow.resolve(cx).await?;
            let instances = step.instances.resolve(cx).await?.into_iter();
            let batch = instances.map(|(id, params)| BatchItem::new(id, params));
            let workflow = cx.harness.workflow::<Value, Value>(&workflow)?;
            let created = workflow.create_batch(batch).await?;
            Ok(created.iter().map(|instance| instance.id().to_owned()).collect())
        })
    }
}

/// Sends an event to an instance.
///
/// ```
/// # use piton_testing::scenario::steps::*;
/// let step = event("approve", "a-1", "approved").payload("by Ada");
/// ```
pub fn event(
    workflow: impl IntoInput<String>,
    id: impl IntoInput<String>,
    event_type: impl IntoInput<String>,
) -> SendEvent {
    let payload = Input::value(Ok(Value::Null));
    let event_type = event_type.into_input();
    SendEvent { target: Target::new(workflow, id), event_type, payload, store_as: None }
}

/// See [`event`].
///
/// ```
/// # use piton_testing::scenario::steps::*;
/// let step: SendEvent = event("approve", "a-1", "approved");
/// ```
#[must_use]
pub struct SendEvent {
    target: Target,
    event_type: Input<String>,
    payload: Input<Value>,
    store_as: Option<Var<Instance>>,
}

stores!(SendEvent, Instance, "the instance's state after it", r#"event("nap", "n-1", "alarm")"#);

impl SendEvent {
    /// With this payload; `null` if nothing is said.
    ///
    /// ```
    /// # use piton_testing::scenario::steps::*;
    /// let step = event("approve", "a-1", "approved").payload("by Ada");
    /// ```
    pub fn payload(mut self, payload: impl IntoInput<Value>) -> Self {
        self.payload = payload.into_input();
        self
    }
}

impl From<SendEvent> for ScenarioStep {
    fn from(step: SendEvent) -> Self {
        ScenarioStep::new("event", step.store_as, async move |cx: &Context| {
            let (workflow, id) = step.target.resolve(cx).await?;
            let event_type = step.event_type.resolve(cx).await?;
            let payload = step.payload.resolve(cx).await?;
            let instance = cx.harness.instance(&workflow, &id).await?;
            instance.send_event(&event_type, &payload).await?;
            instance.describe().await
        })
    }
}

/// What a tick is for.
enum TickOf {
    Everything,
    Instance { target: Target, reason: Input<Reason>, timestamp: Option<Input<Timestamp>> },
    Payload(Input<TickPayload>),
}

impl TickOf {
    fn instance(workflow: impl IntoInput<String>, id: impl IntoInput<String>) -> Self {
        let reason = Input::value(Ok(Reason::Create));
        Self::Instance { target: Target::new(workflow, id), reason, timestamp: None }
    }

    /// `None` is everything that is due.
    async fn resolve(self, cx: &Context) -> Result<Option<TickPayload>> {
        Ok(match self {
            Self::Everything => None,
            Self::Payload(payload) => Some(payload.resolve(cx).await?),
            Self::Instance { target, reason, timestamp } => {
                let (workflow, id) = target.resolve(cx).await?;
                let reason = reason.resolve(cx).await?;
                let mut payload = cx.utils().build_payload(&workflow, &id, reason).await?;
                if let Some(timestamp) = timestamp {
                    payload.timestamp = timestamp.resolve(cx).await?;
                }
                Some(payload)
            }
        })
    }

    fn set_reason(&mut self, new: Reason) {
        if let Self::Instance { reason, .. } = self {
            *reason = Input::value(Ok(new));
        }
    }

    fn set_timestamp(&mut self, new: Input<Timestamp>) {
        if let Self::Instance { timestamp, .. } = self {
            *timestamp = Some(new);
        }
    }
}

/// Ticks once. Returns how many runs were advanced.
async fn tick_once(cx: &Context, payload: Option<&TickPayload>) -> Result<usize> {
    let Some(payload) = payload else { return cx.harness.tick().await };
    let TickPayload { workflow, instance_id, run_number, timestamp, reason: _ } = payload;
    let instance = cx.utils().require_instance(workflow, instance_id).await?;
    if instance.run != *run_number || *timestamp > cx.now() {
        return Ok(0);
    }
    cx.harness.tick_instance(workflow, instance_id).await
}

/// Advances one instance once, as far as it goes, if it is due. No other is touched.
///
/// ```
/// # use piton_testing::scenario::steps::*;
/// let step = tick("nap", "n-1");
/// ```
pub fn tick(workflow: impl IntoInput<String>, id: impl IntoInput<String>) -> Tick {
    Tick { of: TickOf::instance(workflow, id), store_as: None }
}

/// Advances what a payload names; see [`Utils::build_payload`](super::Utils::build_payload).
///
/// ```
/// # use piton_testing::scenario::{Reason, later};
/// # use piton_testing::scenario::steps::*;
/// let step = tick_payload(later(async |cx| cx.utils().build_payload("nap", "n-1", Reason::Wake).await));
/// ```
pub fn tick_payload(payload: impl IntoInput<TickPayload>) -> Tick {
    Tick { of: TickOf::Payload(payload.into_input()), store_as: None }
}

/// Advances every instance that is due, once, as far as it goes.
///
/// ```
/// # use piton_testing::scenario::steps::*;
/// let step = tick_all().store_as("advanced");
/// ```
pub fn tick_all() -> Tick {
    Tick { of: TickOf::Everything, store_as: None }
}

/// See [`tick`].
///
/// ```
/// # use piton_testing::scenario::steps::*;
/// let step: Tick = tick("nap", "n-1");
/// ```
#[must_use]
pub struct Tick {
    of: TickOf,
    store_as: Option<Var<usize>>,
}

stores!(Tick, usize, "how many runs were advanced", r#"tick("nap", "n-1")"#);

impl Tick {
    /// Why, for people who read the test.
    ///
    /// ```
    /// # use piton_testing::scenario::Reason;
    /// # use piton_testing::scenario::steps::*;
    /// let step = tick("nap", "n-1").reason(Reason::Wake);
    /// ```
    pub fn reason(mut self, reason: Reason) -> Self {
        self.of.set_reason(reason);
        self
    }

    /// From when on; nothing is advanced if the clock has not come there.
    ///
    /// ```
    /// # use piton_testing::scenario::given;
    /// # use piton_testing::scenario::steps::*;
    /// let step = tick("nap", "n-1").timestamp(given(|cx| cx.now()));
    /// ```
    pub fn timestamp(mut self, timestamp: impl IntoInput<Timestamp>) -> Self {
        self.of.set_timestamp(timestamp.into_input());
        self
    }
}

impl From<Tick> for ScenarioStep {
    fn from(step: Tick) -> Self {
        ScenarioStep::new("tick", step.store_as, async move |cx: &Context| {
            let payload = step.of.resolve(cx).await?;
            tick_once(cx, payload.as_ref()).await
        })
    }
}

/// How many ticks [`run_until_idle`] makes at most.
const TICKS_MAX: usize = 1_000;

/// Ticks one instance until it is no longer due at this moment.
///
/// ```
/// # use piton_testing::scenario::steps::*;
/// let step = run_until_idle("nap", "n-1");
/// ```
pub fn run_until_idle(
    workflow: impl IntoInput<String>,
    id: impl IntoInput<String>,
) -> RunUntilIdle {
    RunUntilIdle::new(TickOf::instance(workflow, id))
}

/// Ticks what a payload names until it is no longer due at this moment.
///
/// ```
/// # use piton_testing::scenario::{Reason, later};
/// # use piton_testing::scenario::steps::*;
/// let payload = later(async |cx| cx.utils().build_payload("nap", "n-1", Reason::Wake).await);
/// let step = run_until_idle_payload(payload);
/// ```
pub fn run_until_idle_payload(payload: impl IntoInput<TickPayload>) -> RunUntilIdle {
    RunUntilIdle::new(TickOf::Payload(payload.into_input()))
}

/// Ticks until nothing is due at this moment.
///
/// ```
/// # use piton_testing::scenario::steps::*;
/// let step = run_all_until_idle();
/// ```
pub fn run_all_until_idle() -> RunUntilIdle {
    RunUntilIdle::new(TickOf::Everything)
}

/// See [`run_until_idle`].
///
/// ```
/// # use piton_testing::scenario::steps::*;
/// let step: RunUntilIdle = run_until_idle("nap", "n-1");
/// ```
#[must_use]
pub struct RunUntilIdle {
    of: TickOf,
    ticks_max: Input<usize>,
    store_as: Option<Var<Progress>>,
}

stores!(
    RunUntilIdle,
    Progress,
    "how many runs were advanced in how many ticks",
    r#"run_until_idle("nap", "n-1")"#
);

impl RunUntilIdle {
    fn new(of: TickOf) -> Self {
        Self { of, ticks_max: Input::value(Ok(TICKS_MAX)), store_as: None }
    }

    /// Why, for people who read the test.
    ///
    /// ```
    /// # use piton_testing::scenario::Reason;
    /// # use piton_testing::scenario::steps::*;
    /// let step = run_until_idle("nap", "n-1").reason(Reason::Wake);
    /// ```
    pub fn reason(mut self, reason: Reason) -> Self {
        self.of.set_reason(reason);
        self
    }

    /// From when on; nothing is advanced if the clock has not come there.
    ///
    /// ```
    /// # use piton_testing::scenario::given;
    /// # use piton_testing::scenario::steps::*;
    /// let step = run_until_idle("nap", "n-1").timestamp(given(|cx| cx.now()));
    /// ```
    pub fn timestamp(mut self, timestamp: impl IntoInput<Timestamp>) -> Self {
        self.of.set_timestamp(timestamp.into_input());
        self
    }

    /// At most this many ticks; 1000 if nothing is said.
    ///
    /// ```
    /// # use piton_testing::scenario::steps::*;
    /// let step = run_until_idle("nap", "n-1").max_ticks(10);
    /// ```
    pub fn max_ticks(mut self, ticks: impl IntoInput<usize>) -> Self {
        self.ticks_max = ticks.into_input();
        self
    }
}

impl From<RunUntilIdle> for ScenarioStep {
    fn from(step: RunUntilIdle) -> Self {
        ScenarioStep::new("run_until_idle", step.store_as, async move |cx: &Context| {
            let payload = step.of.resolve(cx).await?;
            let ticks_max = step.ticks_max.resolve(cx).await?;
            let mut progress = Progress { processed: 0, ticks: 0 };
            while progress.ticks < ticks_max {
                let processed = tick_once(cx, payload.as_ref()).await?;
                progress.processed += processed;
                progress.ticks += 1;
                if processed == 0 {
                    break;
                }
            }
            Ok(progress)
        })
    }
}

/// Looks at an instance.
///
/// ```
/// # use piton_testing::scenario::steps::*;
/// let step = status("nap", "n-1").store_as("asleep");
/// ```
pub fn status(workflow: impl IntoInput<String>, id: impl IntoInput<String>) -> Status {
    Status { target: Target::new(workflow, id), store_as: None }
}

/// See [`status`].
///
/// ```
/// # use piton_testing::scenario::steps::*;
/// let step: Status = status("nap", "n-1");
/// ```
#[must_use]
pub struct Status {
    target: Target,
    store_as: Option<Var<Instance>>,
}

stores!(Status, Instance, "the instance's state", r#"status("nap", "n-1")"#);

impl From<Status> for ScenarioStep {
    fn from(step: Status) -> Self {
        ScenarioStep::new("status", step.store_as, async move |cx: &Context| {
            let (workflow, id) = step.target.resolve(cx).await?;
            cx.harness.instance(&workflow, &id).await?.describe().await
        })
    }
}

/// Reads the history of an instance.
///
/// ```
/// # use piton_testing::scenario::steps::*;
/// let step = history("nap", "n-1").store_as("history");
/// ```
pub fn history(workflow: impl IntoInput<String>, id: impl IntoInput<String>) -> ReadHistory {
    ReadHistory {
        target: Target::new(workflow, id),
        query: Box::new(|query| query),
        store_as: None,
    }
}

/// See [`history`].
///
/// ```
/// # use piton_testing::scenario::steps::*;
/// let step: ReadHistory = history("nap", "n-1");
/// ```
#[must_use]
pub struct ReadHistory {
    target: Target,
    query: Box<dyn FnOnce(HistoryQuery) -> HistoryQuery>,
    store_as: Option<Var<History>>,
}

stores!(ReadHistory, History, "the page of history", r#"history("nap", "n-1")"#);

impl ReadHistory {
    /// Which run, page and order: `history("nap", "n-1").query(|query| query.page_size(50).newest_first())`.
    ///
    /// ```
    /// # use piton_testing::scenario::steps::*;
    /// let step = history("nap", "n-1").query(|query| query.with_logs().newest_first());
    /// ```
    pub fn query(mut self, query: impl FnOnce(HistoryQuery) -> HistoryQuery + 'static) -> Self {
        self.query = Box::new(query);
        self
    }
}

impl From<ReadHistory> for ScenarioStep {
    fn from(step: ReadHistory) -> Self {
        ScenarioStep::new("history", step.store_as, async move |cx: &Context| {
            let (workflow, id) = step.target.resolve(cx).await?;
            let instance = cx.harness.instance(&workflow, &id).await?;
            (step.query)(instance.history()).await
        })
    }
}

/// Lets time pass.
///
/// ```
/// # use piton_testing::scenario::steps::*;
/// let step = advance_time("14 days");
/// ```
pub fn advance_time(span: impl IntoInput<Span>) -> MoveClock {
    let span = span.into_input();
    let work = super::later(async move |cx: &Context| {
        cx.harness.advance(span.resolve(cx).await?);
        Ok(cx.now())
    });
    MoveClock { kind: "advance_time", work, store_as: None }
}

/// Sets the clock: to a [`Timestamp`], or to milliseconds since the Unix epoch.
///
/// ```
/// # use piton_testing::scenario::steps::*;
/// let step = set_time(1_767_225_600_000);
/// ```
pub fn set_time(time: impl IntoInput<Timestamp>) -> MoveClock {
    let time = time.into_input();
    let work = super::later(async move |cx: &Context| {
        cx.harness.set_time(time.resolve(cx).await?);
        Ok(cx.now())
    });
    MoveClock { kind: "set_time", work, store_as: None }
}

/// See [`advance_time`] and [`set_time`].
///
/// ```
/// # use piton_testing::scenario::steps::*;
/// let step: MoveClock = advance_time("14 days");
/// ```
#[must_use]
pub struct MoveClock {
    kind: &'static str,
    work: Input<Timestamp>,
    store_as: Option<Var<Timestamp>>,
}

stores!(MoveClock, Timestamp, "the time after it", r#"advance_time("1 hour")"#);

impl From<MoveClock> for ScenarioStep {
    fn from(step: MoveClock) -> Self {
        let MoveClock { kind, work, store_as } = step;
        ScenarioStep::new(kind, store_as, async move |cx: &Context| work.resolve(cx).await)
    }
}

/// Looks something up: `read(async |cx| cx.utils().require_instance("nap", "n-1").await)`.
///
/// ```
/// # use piton_testing::scenario::steps::*;
/// let step = read(async |cx| cx.utils().require_instance("nap", "n-1").await).store_as("row");
/// ```
pub fn read<T: 'static>(read: impl AsyncFnOnce(&Context) -> Result<T> + 'static) -> Read<T> {
    Read { read: super::later(read), store_as: None }
}

/// See [`read`].
///
/// ```
/// # use piton_testing::scenario::steps::*;
/// let step: Read<usize> = read(async |cx| cx.harness().tick().await);
/// ```
#[must_use]
pub struct Read<T> {
    read: Input<T>,
    store_as: Option<Var<T>>,
}

impl<T> Read<T> {
    /// Keeps what was found in a variable, over whatever was there.
    ///
    /// ```
    /// # use piton_testing::scenario::steps::*;
    /// let step = read(async |cx| cx.harness().tick().await).store_as("advanced");
    /// ```
    pub fn store_as(mut self, key: impl Into<Var<T>>) -> Self {
        self.store_as = Some(key.into());
        self
    }
}

impl<T> fmt::Debug for Read<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Read")
    }
}

impl<T: 'static> From<Read<T>> for ScenarioStep {
    fn from(step: Read<T>) -> Self {
        let Read { read, store_as } = step;
        ScenarioStep::new("read", store_as, async move |cx: &Context| read.resolve(cx).await)
    }
}

/// Checks something, with the assertions of Rust.
///
/// ```
/// # use piton_testing::scenario::steps::*;
/// let step = assert(|cx| assert_eq!(cx.get::<usize>("advanced"), Some(&1)));
/// ```
pub fn assert(check: impl FnOnce(&Context) + 'static) -> ScenarioStep {
    let work = async move |cx: &Context| {
        check(cx);
        Ok(())
    };
    ScenarioStep::new("assert", None, work)
}

/// Like [`assert()`], for what has to be looked up first.
///
/// ```
/// # use piton_testing::scenario::steps::*;
/// let step = assert_later(async |cx| {
///     assert!(cx.utils().get_instance("nap", "n-1").await?.is_none());
///     Ok(())
/// });
/// ```
pub fn assert_later(check: impl AsyncFnOnce(&Context) -> Result<()> + 'static) -> ScenarioStep {
    ScenarioStep::new("assert", None, check)
}
