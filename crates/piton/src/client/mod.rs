//! What a process does with instances: create, look, steer, wait for results.

mod create;
pub(crate) mod cursor;
mod export;
mod history;
mod instance;
mod page;
mod results;

use std::any::TypeId;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use piton_core::record::InstanceKey;
use piton_core::{
    Code, InstanceId, InstanceStatus, Limits, Refusal, Timestamp, WorkflowName, limits,
};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::Result;
use crate::engine::Shared;
use crate::runner::Runner;
use crate::store::{InstanceQuery, ListPlace};
use crate::workflow::Program;

pub use create::{BatchItem, Create};
pub use cursor::Cursor;
pub use export::{Export, ExportedEvent, ExportedStep, RunExport};
pub use history::{History, HistoryQuery};
pub use instance::{CurrentStep, Instance, InstanceHandle, SendEvent};
pub use page::Page;
pub(crate) use page::PageBounds;
pub(crate) use results::{Outcome, Waiters, watch_results};

/// A handle to one workflow, typed with its params and output.
///
/// ```
/// # use piton::prelude::*;
/// # async fn one(_: Event<()>, step: &Step) -> Result<u32> { step.run("a", async { Ok(7) }).await }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// # let engine = Engine::builder("memory:").register(workflow("one", one)).start().await?;
/// # let instance = engine.workflow::<(), u32>("one")?.create(()).await?;
/// # instance.result().await?;
/// let one = engine.workflow::<(), u32>("one")?;
/// let instance = one.create(()).await?;
/// assert_eq!(instance.result().await?, 7);
/// assert_eq!(one.list().await?.items.len(), 2);
/// # Ok(())
/// # }
/// ```
pub struct WorkflowHandle<P, O> {
    shared: Arc<Shared>,
    runner: Arc<Runner>,
    name: WorkflowName,
    program: Arc<dyn Program>,
    types: PhantomData<fn(P) -> O>,
}

impl<P: 'static, O: 'static> WorkflowHandle<P, O> {
    pub(crate) fn new(
        shared: Arc<Shared>,
        runner: Arc<Runner>,
        name: WorkflowName,
        program: Arc<dyn Program>,
    ) -> Result<Self> {
        let registered = program.types();
        check_type::<P>(&name, "params", registered.params)?;
        check_type::<O>(&name, "output", registered.output)?;
        Ok(Self { shared, runner, name, program, types: PhantomData })
    }

    /// The name of the workflow.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
    /// # let noop = engine.workflow::<(), ()>("noop")?;
    /// assert_eq!(noop.name(), "noop");
    /// # Ok(())
    /// # }
    /// ```
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// An instance that exists.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
    /// let noop = engine.workflow::<(), ()>("noop")?;
    /// noop.create(()).id("one").await?;
    /// noop.get("one").await?.result().await?;
    /// assert_eq!(noop.get("two").await.unwrap_err().code(), Some("INSTANCE_NOT_FOUND"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `INSTANCE_NOT_FOUND`, `INVALID_INSTANCE_ID`.
    pub async fn get(&self, id: &str) -> Result<InstanceHandle<O>> {
        let id = InstanceId::parse(id, &self.shared.limits)?;
        let view = self.shared.store.instance(self.name.clone(), id.clone()).await?;
        match view {
            Some(view) => Ok(self.handle(view.record.id, view.record.key)),
            None => Err(instance::not_found(&self.name, &id)),
        }
    }

    /// Lists instances, newest first, a page at a time.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton::InstanceStatus;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
    /// let noop = engine.workflow::<(), ()>("noop")?;
    /// noop.create(()).await?.result().await?;
    /// let page = noop.list().status(InstanceStatus::Complete).page_size(10).await?;
    /// assert_eq!(page.items.len(), 1);
    /// assert!(!page.has_next_page);
    /// # Ok(())
    /// # }
    /// ```
    pub fn list(&self) -> List {
        List {
            shared: Arc::clone(&self.shared),
            workflow: self.name.clone(),
            status: None,
            created_after: None,
            created_before: None,
            page_size: limits::PAGE_SIZE_DEFAULT,
            cursor: None,
        }
    }

    fn handle(&self, id: InstanceId, key: InstanceKey) -> InstanceHandle<O> {
        let (shared, runner) = (Arc::clone(&self.shared), Arc::clone(&self.runner));
        InstanceHandle::new(shared, runner, self.name.clone(), id, key)
    }

    fn limits(&self) -> &Limits {
        &self.shared.limits
    }
}

impl<P, O> Clone for WorkflowHandle<P, O> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            runner: Arc::clone(&self.runner),
            name: self.name.clone(),
            program: Arc::clone(&self.program),
            types: PhantomData,
        }
    }
}

impl<P, O> fmt::Debug for WorkflowHandle<P, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkflowHandle({})", self.name)
    }
}

/// A handle's type must be the registered one; JSON, parsed or not, fits everything.
fn check_type<T: 'static>(
    name: &WorkflowName,
    what: &str,
    registered: (TypeId, &str),
) -> Result<()> {
    let asked = TypeId::of::<T>();
    let json = [TypeId::of::<Value>(), TypeId::of::<Box<RawValue>>()];
    if asked == registered.0 || json.contains(&asked) {
        return Ok(());
    }
    let (asked, registered) = (std::any::type_name::<T>(), registered.1);
    let message = format!(
        "the {what} of workflow {name:?} are of type {registered}, not {asked}; use that type or serde_json::Value"
    );
    Err(Refusal::new(Code::ValidationError, message).into())
}

/// A list of instances in the making; await it for a page.
///
/// ```
/// # use piton::prelude::*;
/// # use piton::InstanceStatus;
/// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
/// # let noop = engine.workflow::<(), ()>("noop")?;
/// let list = noop.list().status(InstanceStatus::Errored).page_size(100); // nothing is read yet
/// assert!(list.await?.items.is_empty());
/// # Ok(())
/// # }
/// ```
#[must_use = "a list does nothing unless it is awaited"]
pub struct List {
    shared: Arc<Shared>,
    workflow: WorkflowName,
    status: Option<InstanceStatus>,
    created_after: Option<Timestamp>,
    created_before: Option<Timestamp>,
    page_size: u32,
    cursor: Option<Cursor>,
}

impl List {
    /// Only instances with this status.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton::InstanceStatus;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).no_runner().start().await?;
    /// # let noop = engine.workflow::<(), ()>("noop")?;
    /// noop.create(()).await?;
    /// assert_eq!(noop.list().status(InstanceStatus::Active).await?.items.len(), 1);
    /// assert_eq!(noop.list().status(InstanceStatus::Complete).await?.items.len(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn status(mut self, status: InstanceStatus) -> Self {
        self.status = Some(status);
        self
    }

    /// Only instances created at this moment or later.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
    /// # let noop = engine.workflow::<(), ()>("noop")?;
    /// let moment = noop.create(()).await?.describe().await?.created_at;
    /// assert_eq!(noop.list().created_after(moment).await?.items.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn created_after(mut self, moment: Timestamp) -> Self {
        self.created_after = Some(moment);
        self
    }

    /// Only instances created before this moment.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
    /// # let noop = engine.workflow::<(), ()>("noop")?;
    /// let moment = noop.create(()).await?.describe().await?.created_at;
    /// assert_eq!(noop.list().created_before(moment).await?.items.len(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn created_before(mut self, moment: Timestamp) -> Self {
        self.created_before = Some(moment);
        self
    }

    /// How many instances a page has: 1 to 100, default 25.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
    /// # let noop = engine.workflow::<(), ()>("noop")?;
    /// # for _ in 0..3 { noop.create(()).await?; }
    /// assert_eq!(noop.list().page_size(2).await?.items.len(), 2);
    /// assert_eq!(noop.list().page_size(0).await.unwrap_err().code(), Some("VALIDATION_ERROR"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn page_size(mut self, size: u32) -> Self {
        self.page_size = size;
        self
    }

    /// Goes on where another page ended.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
    /// # let noop = engine.workflow::<(), ()>("noop")?;
    /// # for _ in 0..3 { noop.create(()).await?; }
    /// let first = noop.list().page_size(2).await?;
    /// let rest = noop.list().page_size(2).after(first.cursor.expect("there is more")).await?;
    /// assert_eq!(rest.items.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn after(mut self, cursor: Cursor) -> Self {
        self.cursor = Some(cursor);
        self
    }

    async fn page(self) -> Result<Page<Instance>> {
        let scope = self.scope();
        let Self { shared, workflow, status, created_after, created_before, page_size, cursor } =
            self;
        let bounds = PageBounds::new(page_size, &shared.limits)?;
        let secret = shared.store.secret();
        let behind = cursor.map(|cursor| cursor.position(&secret, scope)).transpose()?.map(place);
        let limit = bounds.limit();
        let query =
            InstanceQuery { workflow, status, created_after, created_before, behind, limit };
        let rows = shared.store.instances(query).await?;
        let page =
            Page::new(rows, bounds, |last| Cursor::new(&secret, scope, position(last.into())));
        let Page { items, cursor, has_next_page } = page;
        let cursor = cursor.filter(|_| has_next_page);
        let items = items.into_iter().map(|record| Instance::from_record(record, None)).collect();
        Ok(Page { items, cursor, has_next_page })
    }

    fn scope(&self) -> u64 {
        let moment = |time: Option<Timestamp>| time.map_or(String::new(), |time| time.to_string());
        let (after, before) = (moment(self.created_after), moment(self.created_before));
        let status = self.status.map_or("", InstanceStatus::as_str);
        cursor::scope(&["instances", self.workflow.as_str(), status, &after, &before])
    }
}

fn position(place: ListPlace) -> cursor::Position {
    (place.created_at.as_millis().cast_unsigned(), place.key.0.cast_unsigned())
}

fn place((created_at, key): cursor::Position) -> ListPlace {
    ListPlace {
        created_at: Timestamp::from_millis(created_at.cast_signed()),
        key: InstanceKey(key.cast_signed()),
    }
}

impl IntoFuture for List {
    type Output = Result<Page<Instance>>;
    type IntoFuture = crate::runtime::BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.page())
    }
}

impl fmt::Debug for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "List({})", self.workflow)
    }
}
