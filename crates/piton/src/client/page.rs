//! A page of a list: bounded in rows and in bytes.

use piton_core::hook::HookRecord;
use piton_core::record::{EventRecord, InstanceRecord, LogRecord, RecordedError, StepRecord};
use piton_core::{Json, Limits, Refusal};

use super::Cursor;

/// One page of a list.
///
/// ```
/// # use piton::prelude::*;
/// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
/// # let noop = engine.workflow::<(), ()>("noop")?;
/// # for _ in 0..3 { noop.create(()).await?; }
/// let mut page = noop.list().page_size(2).await?;
/// let mut count = page.items.len();
/// while let Some(cursor) = page.cursor {
///     page = noop.list().page_size(2).after(cursor).await?;
///     count += page.items.len();
/// }
/// assert_eq!(count, 3);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Page<T> {
    /// What is on the page.
    pub items: Vec<T>,
    /// Where the next page starts. For logs it is there on the last page too, so that a follower can go
    /// on from there.
    pub cursor: Option<Cursor>,
    /// Whether there is more now.
    pub has_next_page: bool,
}

impl<T> Page<T> {
    /// Makes a page of rows that were read with a limit of one more than the page's size.
    pub(crate) fn new(
        mut items: Vec<T>,
        bounds: PageBounds,
        cursor: impl FnOnce(&T) -> Cursor,
    ) -> Self
    where
        T: Weighed,
    {
        let mut bytes = 0_usize;
        let fits = |row: &&T| {
            bytes = bytes.saturating_add(row.payload_bytes());
            bytes <= bounds.bytes
        };
        let fitting = items.iter().take(bounds.rows as usize).take_while(fits).count().max(1);
        let has_next_page = items.len() > fitting;
        items.truncate(fitting);
        let cursor = items.last().map(cursor);
        Self { items, cursor, has_next_page }
    }
}

/// How much a page may have.
#[derive(Clone, Copy)]
pub(crate) struct PageBounds {
    rows: u32,
    bytes: usize,
}

impl PageBounds {
    pub(crate) fn new(rows: u32, limits: &Limits) -> Result<Self, Refusal> {
        Ok(Self { rows: limits.check_page_size(rows)?, bytes: limits.page_bytes_max })
    }

    /// How many rows to read: one more shows that there is a next page.
    pub(crate) fn limit(self) -> u32 {
        self.rows.saturating_add(1)
    }
}

/// A row of a page, by what it weighs.
pub(crate) trait Weighed {
    fn payload_bytes(&self) -> usize;
}

fn json_bytes(json: Option<&Json>) -> usize {
    json.map_or(0, Json::len_bytes)
}

fn error_bytes(error: Option<&RecordedError>) -> usize {
    let bytes =
        |error: &RecordedError| error.message.len() + error.stack.as_ref().map_or(0, String::len);
    error.map_or(0, bytes)
}

impl Weighed for InstanceRecord {
    fn payload_bytes(&self) -> usize {
        self.params.len_bytes()
            + json_bytes(self.output.as_ref())
            + error_bytes(self.error.as_ref())
    }
}

impl Weighed for StepRecord {
    fn payload_bytes(&self) -> usize {
        json_bytes(self.result.as_ref()) + error_bytes(self.error.as_ref())
    }
}

impl Weighed for EventRecord {
    fn payload_bytes(&self) -> usize {
        self.payload.len_bytes()
    }
}

impl Weighed for HookRecord {
    fn payload_bytes(&self) -> usize {
        self.payload.len_bytes() + error_bytes(self.error.as_ref())
    }
}

impl Weighed for LogRecord {
    fn payload_bytes(&self) -> usize {
        self.line.message.len() + json_bytes(self.line.data.as_ref())
    }
}
