//! The whole record of one run as one document: to keep, to look at elsewhere, and to replay against today's code.

use std::fmt;
use std::sync::Arc;

use piton_core::record::{EventRecord, InstanceRecord, RecordedError, StepRecord};
use piton_core::{
    Code, EventType, InstanceId, InstanceStatus, Json, Refusal, StepName, StepStatus, StepType,
    Timestamp, WorkflowName,
};
use serde::{Deserialize, Deserializer, Serialize};

use super::instance::not_found;
use crate::engine::Shared;
use crate::runtime::BoxFuture;
use crate::store::PageQuery;
use crate::{Error, Result};

/// How often a run is read that changes while it is read.
const READS_MAX: usize = 20;

/// How many rows are read at a time.
const ROWS_PER_READ: u32 = 1_000;

/// The record of one run. Its form as JSON is stable: times are milliseconds since the Unix epoch, payloads are the
/// very documents that were recorded, and what is absent is left out.
///
/// ```
/// # use piton::prelude::*;
/// # use piton::RunExport;
/// # async fn one(_: Event<()>, step: &Step) -> Result<u32> { step.run("a", async { Ok(7) }).await }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// # let engine = Engine::builder("memory:").register(workflow("one", one)).start().await?;
/// # let instance = engine.workflow::<(), u32>("one")?.create(()).await?;
/// # instance.result().await?;
/// let export = instance.export().await?;
/// let text = serde_json::to_string_pretty(&export)?;
/// let read: RunExport = serde_json::from_str(&text)?;
/// assert_eq!(read, export);
/// assert_eq!(read.steps[0].name, "a");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RunExport {
    /// The version of this form: 1.
    pub format: u32,
    /// The workflow.
    pub workflow: String,
    /// The instance.
    pub instance_id: String,
    /// The run.
    pub run_number: u32,
    /// How the run stands; absent for a run before the current one, of which only the rows are kept.
    #[serde(default, with = "word::optional", skip_serializing_if = "Option::is_none")]
    pub status: Option<InstanceStatus>,
    /// What the instance was created with.
    pub params: Json,
    /// What the run returned, if it is complete.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub output: Option<Json>,
    /// Why the run failed, if it is errored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RecordedError>,
    /// When the instance was created: the timestamp of its event.
    pub created_at: Timestamp,
    /// Its steps, in the order in which they were first recorded.
    pub steps: Vec<ExportedStep>,
    /// Its events, in the order in which they arrived.
    pub events: Vec<ExportedEvent>,
}

/// A step in a [`RunExport`].
///
/// ```
/// # use piton::prelude::*;
/// # async fn one(_: Event<()>, step: &Step) -> Result<u32> { step.run("a", async { Ok(7) }).await }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// # let engine = Engine::builder("memory:").register(workflow("one", one)).start().await?;
/// # let instance = engine.workflow::<(), u32>("one")?.create(()).await?;
/// # instance.result().await?;
/// let export = instance.export().await?;
/// let step = &export.steps[0];
/// assert_eq!((step.name.as_str(), step.attempts), ("a", 1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
#[expect(missing_docs, reason = "they are the fields of `StepRecord`")]
pub struct ExportedStep {
    pub position: u32,
    pub seq: u32,
    pub name: String,
    #[serde(rename = "type", with = "word")]
    pub step_type: StepType,
    #[serde(with = "word")]
    pub status: StepStatus,
    pub attempts: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts_max: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_retry_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_type: Option<String>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub result: Option<Json>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RecordedError>,
    pub created_at: Timestamp,
    pub started_at: Timestamp,
    pub updated_at: Timestamp,
}

/// An event in a [`RunExport`].
///
/// ```
/// # use piton::prelude::*;
/// # async fn wait(_: Event<()>, step: &Step) -> Result<u32> { step.wait_for_event("w", "go").await }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// # let engine = Engine::builder("memory:").register(workflow("wait", wait)).no_runner().start().await?;
/// # let instance = engine.workflow::<(), u32>("wait")?.create(()).await?;
/// # instance.tick().await?;
/// instance.send_event("go", &7).await?;
/// let export = instance.export().await?;
/// let event = &export.events[0];
/// assert_eq!((event.event_type.as_str(), event.payload.as_str()), ("go", "7"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
#[expect(missing_docs, reason = "they are the fields of `EventRecord`")]
pub struct ExportedEvent {
    pub id: String,
    #[serde(rename = "type")]
    pub event_type: String,
    pub payload: Json,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumed_by: Option<String>,
}

impl RunExport {
    /// The version of the form that this build reads and writes.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton::RunExport;
    /// # async fn one(_: Event<()>, step: &Step) -> Result<u32> { step.run("a", async { Ok(7) }).await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("one", one)).start().await?;
    /// # let instance = engine.workflow::<(), u32>("one")?.create(()).await?;
    /// # instance.result().await?;
    /// assert_eq!(instance.export().await?.format, RunExport::FORMAT);
    /// # Ok(())
    /// # }
    /// ```
    pub const FORMAT: u32 = 1;

    fn new(rows: Rows) -> Self {
        let Rows { instance, run, steps, events } = rows;
        let current = instance.run == run;
        Self {
            format: Self::FORMAT,
            workflow: instance.workflow.to_string(),
            instance_id: instance.id.to_string(),
            run_number: run,
            status: current.then_some(instance.status),
            params: instance.params,
            output: instance.output.filter(|_| current),
            error: instance.error.filter(|_| current),
            created_at: instance.created_at,
            steps: steps.into_iter().map(ExportedStep::from).collect(),
            events: events.into_iter().map(ExportedEvent::from).collect(),
        }
    }
}

impl From<StepRecord> for ExportedStep {
    fn from(step: StepRecord) -> Self {
        Self {
            position: step.position,
            seq: step.seq,
            name: step.name.to_string(),
            step_type: step.step_type,
            status: step.status,
            attempts: step.attempts,
            attempts_max: step.attempts_max,
            timeout_ms: step.timeout_ms,
            next_retry_at: step.next_retry_at,
            wake_at: step.wake_at,
            event_type: step.event_type.map(|event_type| event_type.to_string()),
            result: step.result,
            error: step.error,
            created_at: step.created_at,
            started_at: step.started_at,
            updated_at: step.updated_at,
        }
    }
}

impl From<ExportedStep> for StepRecord {
    fn from(step: ExportedStep) -> Self {
        Self {
            position: step.position,
            seq: step.seq,
            name: StepName::from_stored(step.name),
            step_type: step.step_type,
            status: step.status,
            attempts: step.attempts,
            attempts_max: step.attempts_max,
            timeout_ms: step.timeout_ms,
            next_retry_at: step.next_retry_at,
            wake_at: step.wake_at,
            event_type: step.event_type.map(EventType::from_stored),
            result: step.result,
            error: step.error,
            created_at: step.created_at,
            started_at: step.started_at,
            updated_at: step.updated_at,
        }
    }
}

impl From<EventRecord> for ExportedEvent {
    fn from(event: EventRecord) -> Self {
        Self {
            id: event.id.to_string(),
            event_type: event.event_type.to_string(),
            payload: event.payload,
            created_at: event.created_at,
            delivered_at: event.delivered_at,
            consumed_by: event.consumed_by.map(|step| step.to_string()),
        }
    }
}

/// What an export is made of.
#[derive(PartialEq)]
struct Rows {
    instance: InstanceRecord,
    run: u32,
    steps: Vec<StepRecord>,
    events: Vec<EventRecord>,
}

/// An export in the making; await it.
///
/// ```
/// # use piton::prelude::*;
/// # async fn one(_: Event<()>, step: &Step) -> Result<u32> { step.run("a", async { Ok(7) }).await }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// # let engine = Engine::builder("memory:").register(workflow("one", one)).start().await?;
/// # let instance = engine.workflow::<(), u32>("one")?.create(()).await?;
/// # instance.result().await?;
/// let export = instance.export(); // nothing is read yet
/// assert_eq!(export.await?.workflow, "one");
/// # Ok(())
/// # }
/// ```
#[must_use = "an export does nothing unless it is awaited"]
pub struct Export {
    shared: Arc<Shared>,
    workflow: WorkflowName,
    id: InstanceId,
    run: Option<u32>,
}

impl Export {
    pub(super) fn new(shared: Arc<Shared>, workflow: WorkflowName, id: InstanceId) -> Self {
        Self { shared, workflow, id, run: None }
    }

    /// Of this run instead of the current one.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn one(_: Event<()>, step: &Step) -> Result<u32> { step.run("a", async { Ok(7) }).await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("one", one)).start().await?;
    /// # let instance = engine.workflow::<(), u32>("one")?.create(()).await?;
    /// # instance.result().await?;
    /// instance.restart().await?;
    /// assert_eq!(instance.export().await?.run_number, 1);
    /// assert_eq!(instance.export().run_number(0).await?.run_number, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn run_number(mut self, run: u32) -> Self {
        self.run = Some(run);
        self
    }

    /// The rows of one moment.
    ///
    /// They are read one table after the other, and what was committed never comes back. So if two reads are the same,
    /// then nothing was changed between the last look of the first and the first look of the second.
    async fn read(self) -> Result<RunExport> {
        let mut before = self.rows().await?;
        for _ in 0..READS_MAX {
            let rows = self.rows().await?;
            if rows == before {
                return Ok(RunExport::new(rows));
            }
            before = rows;
        }
        let message =
            format!("instance {:?} changes all the time: pause it, and export it then", self.id);
        Err(Error::store(message))
    }

    async fn rows(&self) -> Result<Rows> {
        let Self { shared, workflow, id, run } = self;
        let view = shared.store.instance(workflow.clone(), id.clone()).await?;
        let instance = view.ok_or_else(|| not_found(workflow, id))?.record;
        let run = run.unwrap_or(instance.run);
        if run > instance.run {
            let message =
                format!("instance {id:?} has no run {run}; its newest is {}", instance.run);
            return Err(Refusal::new(Code::InvalidRunNumber, message).into());
        }
        let page = |after| PageQuery {
            instance: instance.key,
            run,
            after,
            descending: false,
            limit: ROWS_PER_READ,
        };
        let (mut steps, mut after) = (Vec::<StepRecord>::new(), None);
        loop {
            let rows = shared.store.steps(page(after)).await?;
            let Some(last) = rows.last() else { break };
            after = Some(last.position.into());
            steps.extend(rows);
        }
        let (mut events, mut after) = (Vec::<EventRecord>::new(), None);
        loop {
            let rows = shared.store.events(page(after)).await?;
            let Some(last) = rows.last() else { break };
            after = Some(last.seq);
            events.extend(rows);
        }
        Ok(Rows { instance, run, steps, events })
    }
}

impl IntoFuture for Export {
    type Output = Result<RunExport>;
    type IntoFuture = BoxFuture<Result<RunExport>>;

    fn into_future(self) -> BoxFuture<Result<RunExport>> {
        Box::pin(self.read())
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Export({}/{})", self.workflow, self.id)
    }
}

/// Statuses and types as the words they are stored and shown as.
mod word {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<T: Display, S: Serializer>(word: &T, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(word)
    }

    pub(super) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }

    /// A word that may be absent.
    pub(super) mod optional {
        use std::fmt::Display;
        use std::str::FromStr;

        use serde::{Deserializer, Serializer};

        pub(in super::super) fn serialize<T: Display, S: Serializer>(
            word: &Option<T>,
            to: S,
        ) -> Result<S::Ok, S::Error> {
            match word {
                Some(word) => super::serialize(word, to),
                None => to.serialize_none(),
            }
        }

        pub(in super::super) fn deserialize<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
        where
            T: FromStr<Err: Display>,
            D: Deserializer<'de>,
        {
            super::deserialize(from).map(Some)
        }
    }
}

/// A document that is `null` is there; one that is absent is not.
fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(from).map(Some)
}
