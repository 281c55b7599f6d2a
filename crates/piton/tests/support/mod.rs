//! What the behaviour tests share beside the harness: ways to look at a run, and to hold a test until it is there.
//!
//! Nothing here sleeps or looks at a real clock: a test holds a body open with a [`Gate`], moves the virtual clock
//! itself, and waits for a state with [`eventually`], never for a length of time.

mod probe;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use piton::prelude::*;
use piton::store::Store;
use piton::{
    EngineBuilder, InstanceHandle, InstanceStatus, LogLine, LogRecord, Registration, StepRecord,
    StepStatus, StepType, Tick,
};
use piton_testing::Harness;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use probe::{Alive, Gate, Probe, Trail};

/// The future of a workflow's function.
pub(crate) type Flow<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// A workflow written as a closure over shared state: `flow("name", &gate, |gate, event, step| Box::pin(async move { … }))`.
pub(crate) fn flow<S, P, T, F>(name: &str, state: &S, function: F) -> Registration
where
    S: Clone + Send + Sync + 'static,
    P: Serialize + DeserializeOwned + Send + 'static,
    T: Serialize + DeserializeOwned + Send + 'static,
    F: for<'a> Fn(S, Event<P>, &'a Step) -> Flow<'a, T> + Send + Sync + 'static,
{
    let state = state.clone();
    boxed(name, move |event, step| function(state.clone(), event, step))
}

/// Gives the compiler the signature it cannot infer for a closure that borrows its step.
fn boxed<P, T, F>(name: &str, function: F) -> Registration
where
    P: Serialize + DeserializeOwned + Send + 'static,
    T: Serialize + DeserializeOwned + Send + 'static,
    F: for<'a> Fn(Event<P>, &'a Step) -> Flow<'a, T> + Send + Sync + 'static,
{
    workflow(name, function)
}

/// A tick under way: awaiting it waits until every run it took has departed.
pub(crate) type UnderWay<'a> = Pin<Box<dyn Future<Output = Result<Tick>> + 'a>>;

/// Advances what is due until a body arrives at the gate. The passes go on by themselves, also if the returned
/// tick is dropped.
pub(crate) async fn tick_until_arrived<'a>(
    engine: &'a Engine,
    gate: &Gate,
) -> Result<UnderWay<'a>> {
    let mut tick: UnderWay<'a> = Box::pin(engine.tick(1_000));
    tokio::select! {
        rested = &mut tick => panic!("came to rest before the gate: {:?}", rested?),
        () = gate.arrived() => Ok(tick),
    }
}

/// How many looks are taken as fast as they can be. Most things are seen by then.
const LOOKS_IN_HASTE: u32 = 100_000;

/// How many looks make [`eventually`] give up: minutes, also where a look costs nothing.
const LOOKS_MAX: u32 = LOOKS_IN_HASTE + 200_000;

/// Lets others go on between two looks, and takes its time if there were many: a server, or a disk, may be slow.
async fn before_the_next(look: u32) {
    if look >= LOOKS_IN_HASTE {
        #[expect(clippy::disallowed_methods, reason = "what is waited for happens in real time")]
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    tokio::task::yield_now().await;
}

/// Looks again and again until there is something to see. Virtual time stands still meanwhile.
pub(crate) async fn eventually<T, F>(what: &str, mut look: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<Option<T>>>,
{
    for looked in 0..LOOKS_MAX {
        if let Some(seen) = look().await? {
            return Ok(seen);
        }
        before_the_next(looked).await;
    }
    panic!("never saw: {what}");
}

/// Looks again and again until the condition holds.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    for looked in 0..LOOKS_MAX {
        if holds().await? {
            return Ok(());
        }
        before_the_next(looked).await;
    }
    panic!("it never came to pass: {what}");
}

/// Waits until the instance has this status.
pub(crate) async fn until_status<O>(
    instance: &InstanceHandle<O>,
    status: InstanceStatus,
) -> Result<()> {
    let what = format!("{instance:?} {status}");
    eventually(&what, || async { Ok((instance.status().await? == status).then_some(())) }).await
}

/// The result of an instance that has ended: says so instead of waiting for ever if it has not.
pub(crate) async fn ended<O: DeserializeOwned>(instance: &InstanceHandle<O>) -> Result<O> {
    let state = instance.describe().await?;
    assert!(state.status.is_terminal(), "not ended: {state:#?}");
    instance.result().await
}

/// Waits until the instance's log has a system line with this text in it.
pub(crate) async fn until_told<O>(instance: &InstanceHandle<O>, text: &str) -> Result<()> {
    eventually(text, || async {
        let told = system_lines(instance, None).await?;
        Ok(told.iter().any(|line| line.contains(text)).then_some(()))
    })
    .await
}

/// Every log line of a run, oldest first, however many pages they take.
pub(crate) async fn log_lines<O>(
    instance: &InstanceHandle<O>,
    run: Option<u32>,
) -> Result<Vec<LogLine>> {
    let (mut lines, mut cursor) = (Vec::new(), None);
    loop {
        let mut query = instance.history().with_logs().page_size(100);
        if let Some(run) = run {
            query = query.run_number(run);
        }
        if let Some(cursor) = cursor.take() {
            query = query.logs_after(cursor);
        }
        let page = query.await?.logs.unwrap();
        lines.extend(page.items.into_iter().map(|record: LogRecord| record.line));
        if !page.has_next_page {
            return Ok(lines);
        }
        cursor = page.cursor;
    }
}

/// What the engine's own log lines of a run say.
pub(crate) async fn system_lines<O>(
    instance: &InstanceHandle<O>,
    run: Option<u32>,
) -> Result<Vec<String>> {
    let lines = log_lines(instance, run).await?;
    let system = lines.into_iter().filter(|line| &*line.category == "system");
    Ok(system.map(|line| line.message.to_string()).collect())
}

/// The steps of a run, oldest first, as `name status`.
pub(crate) async fn steps_of<O>(
    instance: &InstanceHandle<O>,
    run: Option<u32>,
) -> Result<Vec<String>> {
    let mut query = instance.history().page_size(100);
    if let Some(run) = run {
        query = query.run_number(run);
    }
    let steps = query.await?.steps.items;
    Ok(steps.iter().map(|step| format!("{} {}", step.name, step.status)).collect())
}

/// The payloads of a run's events that nobody has taken, oldest first.
pub(crate) async fn buffered<O>(instance: &InstanceHandle<O>) -> Result<Vec<String>> {
    let events = instance.history().page_size(100).await?.events.items;
    let free = events.into_iter().filter(|event| event.delivered_at.is_none());
    Ok(free.map(|event| event.payload.as_str().to_owned()).collect())
}

/// Another engine on the same store, which does something when it is ticked: a second process, as far as the
/// engines can tell.
pub(crate) async fn another_engine(
    harness: &Harness,
    workflows: impl IntoIterator<Item = Registration>,
) -> Result<Engine> {
    engine_on(harness.store(), harness, workflows, EngineBuilder::no_runner).await
}

/// An engine in the harness's world on any store.
pub(crate) async fn engine_on(
    store: Arc<dyn Store>,
    harness: &Harness,
    workflows: impl IntoIterator<Item = Registration>,
    configure: impl FnOnce(EngineBuilder) -> EngineBuilder,
) -> Result<Engine> {
    let runtime = Arc::clone(harness.runtime()) as _;
    let builder = Engine::builder_with_store(store).runtime(runtime);
    let builder = workflows.into_iter().fold(builder, EngineBuilder::register);
    configure(builder).start().await
}

/// Lets every run in flight take note of what the store has told it so far: what the store is asked here
/// it answers after everything before.
pub(crate) async fn settle(harness: &Harness) -> Result<()> {
    for _ in 0..4 {
        harness.store().release(Vec::new()).await?;
        for _ in 0..64 {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// The handle of an instance in the process that runs now.
pub(crate) async fn find<O: DeserializeOwned + 'static>(
    harness: &Harness,
    instance: &InstanceHandle<O>,
) -> Result<InstanceHandle<O>> {
    harness.engine().workflow::<serde_json::Value, O>(instance.workflow())?.get(instance.id()).await
}

/// All steps of the current run, in the order in which they were first recorded.
pub(crate) async fn steps<O>(instance: &InstanceHandle<O>) -> Result<Vec<StepRecord>> {
    let (mut all, mut cursor) = (Vec::new(), None);
    loop {
        let mut query = instance.history().page_size(100);
        if let Some(cursor) = cursor {
            query = query.steps_after(cursor);
        }
        let page = query.await?.steps;
        all.extend(page.items);
        if !page.has_next_page {
            return Ok(all);
        }
        cursor = page.cursor;
    }
}

/// A step of the current run, if it is recorded.
pub(crate) async fn find_step<O>(
    instance: &InstanceHandle<O>,
    name: &str,
) -> Result<Option<StepRecord>> {
    Ok(steps(instance).await?.into_iter().find(|step| step.name.as_str() == name))
}

/// A recorded step of the current run.
pub(crate) async fn step<O>(instance: &InstanceHandle<O>, name: &str) -> Result<StepRecord> {
    let step = find_step(instance, name).await?;
    Ok(step.unwrap_or_else(|| panic!("step {name:?} is not recorded")))
}

/// Waits until a step of the current run has this status.
pub(crate) async fn until_step<O>(
    instance: &InstanceHandle<O>,
    name: &str,
    status: StepStatus,
) -> Result<StepRecord> {
    let what = format!("step {name:?} is {status}");
    until(&what, async || {
        let step = find_step(instance, name).await?;
        Ok(step.is_some_and(|step| step.status == status))
    })
    .await?;
    step(instance, name).await
}

/// What a step is and where it stands, for comparing whole histories at a glance.
pub(crate) fn outline(steps: &[StepRecord]) -> Vec<(&str, StepType, StepStatus)> {
    steps.iter().map(|step| (step.name.as_str(), step.step_type, step.status)).collect()
}
