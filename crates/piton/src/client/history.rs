//! What happened in a run: steps, events and log lines, a page of each at a time.

use std::fmt;
use std::sync::Arc;

use piton_core::record::{EventRecord, LogRecord, StepRecord};
use piton_core::{Code, InstanceId, LogLevel, Refusal, WorkflowName, limits};

use super::instance::not_found;
use super::page::PageBounds;
use super::{Cursor, Page, cursor};
use crate::Result;
use crate::engine::Shared;
use crate::runtime::BoxFuture;
use crate::store::{LogFilter, PageQuery, Secret};

/// A page of the history of a run.
///
/// ```
/// # use piton::prelude::*;
/// # async fn two(_: Event<()>, step: &Step) -> Result<()> {
/// #     step.run("a", async { Ok(()) }).await?;
/// #     step.log().warn("low").category("stock");
/// #     step.run("b", async { Ok(()) }).await
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// # let engine = Engine::builder("memory:").register(workflow("two", two)).start().await?;
/// # let instance = engine.workflow::<(), ()>("two")?.create(()).await?;
/// # instance.result().await?;
/// let history = instance.history().await?;
/// let names: Vec<_> = history.steps.items.iter().map(|step| step.name.as_str()).collect();
/// assert_eq!(names, ["a", "b"]);
/// assert!(history.logs.is_none(), "nobody asked for them");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct History {
    /// The run.
    pub run_number: u32,
    /// Its steps, in the order they were first recorded.
    pub steps: Page<StepRecord>,
    /// Its events, in the order they arrived.
    pub events: Page<EventRecord>,
    /// Its log lines, in the order they were stored, if asked for.
    pub logs: Option<Page<LogRecord>>,
}

/// A history in the making; await it.
///
/// ```
/// # use piton::prelude::*;
/// # async fn two(_: Event<()>, step: &Step) -> Result<()> {
/// #     step.run("a", async { Ok(()) }).await?;
/// #     step.log().warn("low").category("stock");
/// #     step.run("b", async { Ok(()) }).await
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// # let engine = Engine::builder("memory:").register(workflow("two", two)).start().await?;
/// # let instance = engine.workflow::<(), ()>("two")?.create(()).await?;
/// # instance.result().await?;
/// let query = instance.history().newest_first().page_size(10); // nothing is read yet
/// assert_eq!(query.await?.steps.items.len(), 2);
/// # Ok(())
/// # }
/// ```
#[must_use = "a history does nothing unless it is awaited"]
pub struct HistoryQuery {
    shared: Arc<Shared>,
    workflow: WorkflowName,
    id: InstanceId,
    run: Option<u32>,
    page_size: u32,
    descending: bool,
    logs: Option<LogFilter>,
    steps_after: Option<Cursor>,
    events_after: Option<Cursor>,
    logs_after: Option<Cursor>,
}

impl HistoryQuery {
    pub(super) fn new(shared: Arc<Shared>, workflow: WorkflowName, id: InstanceId) -> Self {
        Self {
            shared,
            workflow,
            id,
            run: None,
            page_size: limits::PAGE_SIZE_DEFAULT,
            descending: false,
            logs: None,
            steps_after: None,
            events_after: None,
            logs_after: None,
        }
    }

    /// Of this run instead of the current one.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn two(_: Event<()>, step: &Step) -> Result<()> {
    /// #     step.run("a", async { Ok(()) }).await?;
    /// #     step.log().warn("low").category("stock");
    /// #     step.run("b", async { Ok(()) }).await
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("two", two)).start().await?;
    /// # let instance = engine.workflow::<(), ()>("two")?.create(()).await?;
    /// # instance.result().await?;
    /// instance.restart().await?;
    /// let before = instance.history().run_number(0).await?;
    /// assert_eq!(before.steps.items.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn run_number(mut self, run: u32) -> Self {
        self.run = Some(run);
        self
    }

    /// How many steps, events and log lines a page has: 1 to 100 of each, default 25.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn two(_: Event<()>, step: &Step) -> Result<()> {
    /// #     step.run("a", async { Ok(()) }).await?;
    /// #     step.log().warn("low").category("stock");
    /// #     step.run("b", async { Ok(()) }).await
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("two", two)).start().await?;
    /// # let instance = engine.workflow::<(), ()>("two")?.create(()).await?;
    /// # instance.result().await?;
    /// let steps = instance.history().page_size(1).await?.steps;
    /// assert_eq!((steps.items.len(), steps.has_next_page), (1, true));
    /// # Ok(())
    /// # }
    /// ```
    pub fn page_size(mut self, size: u32) -> Self {
        self.page_size = size;
        self
    }

    /// Newest first.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn two(_: Event<()>, step: &Step) -> Result<()> {
    /// #     step.run("a", async { Ok(()) }).await?;
    /// #     step.log().warn("low").category("stock");
    /// #     step.run("b", async { Ok(()) }).await
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("two", two)).start().await?;
    /// # let instance = engine.workflow::<(), ()>("two")?.create(()).await?;
    /// # instance.result().await?;
    /// let history = instance.history().newest_first().await?;
    /// assert_eq!(history.steps.items[0].name.as_str(), "b");
    /// # Ok(())
    /// # }
    /// ```
    pub fn newest_first(mut self) -> Self {
        self.descending = true;
        self
    }

    /// With log lines.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn two(_: Event<()>, step: &Step) -> Result<()> {
    /// #     step.run("a", async { Ok(()) }).await?;
    /// #     step.log().warn("low").category("stock");
    /// #     step.run("b", async { Ok(()) }).await
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("two", two)).start().await?;
    /// # let instance = engine.workflow::<(), ()>("two")?.create(()).await?;
    /// # instance.result().await?;
    /// let logs = instance.history().with_logs().await?.logs.expect("asked for");
    /// assert!(logs.items.iter().any(|log| &*log.line.message == "low"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_logs(mut self) -> Self {
        self.logs.get_or_insert_default();
        self
    }

    /// With log lines of this level.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton::LogLevel;
    /// # async fn two(_: Event<()>, step: &Step) -> Result<()> {
    /// #     step.run("a", async { Ok(()) }).await?;
    /// #     step.log().warn("low").category("stock");
    /// #     step.run("b", async { Ok(()) }).await
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("two", two)).start().await?;
    /// # let instance = engine.workflow::<(), ()>("two")?.create(()).await?;
    /// # instance.result().await?;
    /// let logs = instance.history().log_level(LogLevel::Warn).await?.logs.expect("asked for");
    /// assert_eq!(&*logs.items[0].line.message, "low");
    /// # Ok(())
    /// # }
    /// ```
    pub fn log_level(mut self, level: LogLevel) -> Self {
        self.logs.get_or_insert_default().level = Some(level);
        self
    }

    /// With log lines of this category.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn two(_: Event<()>, step: &Step) -> Result<()> {
    /// #     step.run("a", async { Ok(()) }).await?;
    /// #     step.log().warn("low").category("stock");
    /// #     step.run("b", async { Ok(()) }).await
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("two", two)).start().await?;
    /// # let instance = engine.workflow::<(), ()>("two")?.create(()).await?;
    /// # instance.result().await?;
    /// let logs = instance.history().log_category("stock").await?.logs.expect("asked for");
    /// assert_eq!(&*logs.items[0].line.message, "low");
    /// # Ok(())
    /// # }
    /// ```
    pub fn log_category(mut self, category: impl Into<Arc<str>>) -> Self {
        self.logs.get_or_insert_default().category = Some(category.into());
        self
    }

    /// Steps behind another page.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn two(_: Event<()>, step: &Step) -> Result<()> {
    /// #     step.run("a", async { Ok(()) }).await?;
    /// #     step.log().warn("low").category("stock");
    /// #     step.run("b", async { Ok(()) }).await
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("two", two)).start().await?;
    /// # let instance = engine.workflow::<(), ()>("two")?.create(()).await?;
    /// # instance.result().await?;
    /// let first = instance.history().page_size(1).await?.steps;
    /// let cursor = first.cursor.expect("there is a second page");
    /// let second = instance.history().page_size(1).steps_after(cursor).await?.steps;
    /// assert_eq!(second.items[0].name.as_str(), "b");
    /// # Ok(())
    /// # }
    /// ```
    pub fn steps_after(mut self, cursor: Cursor) -> Self {
        self.steps_after = Some(cursor);
        self
    }

    /// Events behind another page.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn wait(_: Event<()>, step: &Step) -> Result<u32> { step.wait_for_event("w", "go").await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("wait", wait)).no_runner().start().await?;
    /// # let instance = engine.workflow::<(), u32>("wait")?.create(()).await?;
    /// # instance.tick().await?;
    /// # for n in 1..=2 { instance.send_event("go", &n).await?; }
    /// let first = instance.history().page_size(1).await?.events;
    /// let cursor = first.cursor.expect("there is a second page");
    /// let second = instance.history().page_size(1).events_after(cursor).await?.events;
    /// assert_eq!(second.items[0].payload.as_str(), "2");
    /// # Ok(())
    /// # }
    /// ```
    pub fn events_after(mut self, cursor: Cursor) -> Self {
        self.events_after = Some(cursor);
        self
    }

    /// Log lines behind another page.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn two(_: Event<()>, step: &Step) -> Result<()> {
    /// #     step.run("a", async { Ok(()) }).await?;
    /// #     step.log().warn("low").category("stock");
    /// #     step.run("b", async { Ok(()) }).await
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("two", two)).start().await?;
    /// # let instance = engine.workflow::<(), ()>("two")?.create(()).await?;
    /// # instance.result().await?;
    /// let read = instance.history().with_logs().await?.logs.expect("asked for");
    /// let seen = read.cursor.expect("the last page of logs has one too");
    /// let news = instance.history().with_logs().logs_after(seen).await?.logs.expect("asked for");
    /// assert!(news.items.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn logs_after(mut self, cursor: Cursor) -> Self {
        self.logs_after = Some(cursor);
        self
    }

    async fn read(mut self) -> Result<History> {
        let store = Arc::clone(&self.shared.store);
        let secret = store.secret();
        let bounds = PageBounds::new(self.page_size, &self.shared.limits)?;
        let view = store.instance(self.workflow.clone(), self.id.clone()).await?;
        let instance = view.ok_or_else(|| not_found(&self.workflow, &self.id))?.record;
        let run = self.run.unwrap_or(instance.run);
        if run > instance.run {
            let message =
                format!("instance {:?} has no run {run}; its newest is {}", self.id, instance.run);
            return Err(Refusal::new(Code::InvalidRunNumber, message).into());
        }
        let page = |after| PageQuery {
            instance: instance.key,
            run,
            after,
            descending: self.descending,
            limit: bounds.limit(),
        };
        let scope = |list, filter: &str| self.scope(list, run, filter);
        let steps = position(&self.steps_after, &secret, scope("steps", ""))?;
        let events = position(&self.events_after, &secret, scope("events", ""))?;
        let log_scope = scope("logs", &filter_text(self.logs.as_ref()));
        let logs = position(&self.logs_after, &secret, log_scope)?;

        let rows = store.steps(page(steps)).await?;
        let step_cursor =
            |row: &StepRecord| Cursor::new(&secret, scope("steps", ""), (row.position.into(), 0));
        let steps = Page::new(rows, bounds, step_cursor);
        let rows = store.events(page(events)).await?;
        let events =
            Page::new(rows, bounds, |row| Cursor::new(&secret, scope("events", ""), (row.seq, 0)));
        let log_page = page(logs);
        let logs = match self.logs.take() {
            None => None,
            Some(filter) => {
                let rows = store.logs(log_page, filter).await?;
                let mut page =
                    Page::new(rows, bounds, |row| Cursor::new(&secret, log_scope, (row.seq, 0)));
                page.cursor = page.cursor.or(self.logs_after.take());
                Some(page)
            }
        };
        Ok(History { run_number: run, steps, events, logs })
    }

    fn scope(&self, list: &str, run: u32, filter: &str) -> u64 {
        let order = if self.descending { "desc" } else { "asc" };
        cursor::scope(&[
            list,
            self.workflow.as_str(),
            self.id.as_str(),
            &run.to_string(),
            order,
            filter,
        ])
    }
}

fn position(cursor: &Option<Cursor>, secret: &Secret, scope: u64) -> Result<Option<u64>, Refusal> {
    cursor.as_ref().map(|cursor| Ok(cursor.position(secret, scope)?.0)).transpose()
}

fn filter_text(filter: Option<&LogFilter>) -> String {
    let Some(filter) = filter else { return String::new() };
    let (level, category) = (filter.level.map_or("", |l| l.as_str()), filter.category.as_deref());
    format!("{level}/{}", category.unwrap_or_default())
}

impl IntoFuture for HistoryQuery {
    type Output = Result<History>;
    type IntoFuture = BoxFuture<Result<History>>;

    fn into_future(self) -> BoxFuture<Result<History>> {
        Box::pin(self.read())
    }
}

impl fmt::Debug for HistoryQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HistoryQuery({}/{})", self.workflow, self.id)
    }
}
