//! The log lines of a pass: written by user code at any time, committed with the next boundary.

use std::sync::Arc;

use piton_core::record::{LogLine, SYSTEM_CATEGORY};
use piton_core::story::{self, SystemLine};
use piton_core::{Json, Limits, LogLevel, StepName, Timestamp};

use crate::runtime::Ids;

/// The category of a line that names none.
pub(crate) const DEFAULT_CATEGORY: &str = "workflow";

/// Bytes of messages and data a run may hold before they are committed.
const BYTES_PENDING_MAX: usize = 16 * 1024 * 1024;

/// A log line as user code wrote it.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) level: LogLevel,
    pub(crate) message: String,
    pub(crate) category: Option<String>,
    pub(crate) data: Option<Json>,
    pub(crate) step: Option<(StepName, u32)>,
}

/// Lines that are not committed yet, and what is known about replay.
pub(crate) struct Logbook {
    limits: Arc<Limits>,
    ids: Arc<Ids>,
    lines: Vec<LogLine>,
    bytes: usize,
    dropped: usize,
    /// Steps recorded before this claim that the code has not passed yet.
    unpassed: usize,
    /// Something happened in this pass that was not recorded before it.
    live: bool,
}

impl Logbook {
    pub(crate) fn new(limits: Arc<Limits>, ids: Arc<Ids>, recorded: usize) -> Self {
        Self {
            limits,
            ids,
            lines: Vec::new(),
            bytes: 0,
            dropped: 0,
            unpassed: recorded,
            live: false,
        }
    }

    pub(super) fn new_id(&self, prefix: &str) -> Arc<str> {
        self.ids.next(prefix)
    }

    /// The code passed a step that was recorded before this claim.
    pub(crate) fn passed(&mut self) {
        self.unpassed = self.unpassed.saturating_sub(1);
    }

    /// The code does something it has not done before: from here on nothing is a replay.
    pub(crate) fn went_live(&mut self) {
        self.live = true;
    }

    /// Whether the code is still passing steps that were recorded before this claim.
    pub(crate) fn is_replay(&self) -> bool {
        self.unpassed > 0 && !self.live
    }

    pub(crate) fn has_lines(&self) -> bool {
        !self.lines.is_empty()
    }

    pub(crate) fn take(&mut self) -> Vec<LogLine> {
        self.dropped = 0;
        self.bytes = 0;
        std::mem::take(&mut self.lines)
    }

    /// Lines of a boundary that was rolled back go before everything written since.
    pub(crate) fn put_back(&mut self, mut lines: Vec<LogLine>) {
        lines.append(&mut self.lines);
        self.lines = lines;
    }

    /// Notes a line of the engine's own. Replay tells nothing new, so it tells nothing.
    pub(crate) fn system(&mut self, line: SystemLine, now: Timestamp) {
        if self.is_replay() {
            return;
        }
        let mut stored = system_line(&self.ids, line, now);
        cut(&mut stored.message, self.limits.log_message_bytes_max);
        self.lines.push(stored);
    }

    /// Notes a line of the user's, mended where it breaks a rule; each mending is told.
    pub(crate) fn write(&mut self, draft: Draft, now: Timestamp) {
        let bytes = draft.message.len() + draft.data.as_ref().map_or(0, Json::len_bytes);
        self.bytes += bytes;
        if self.lines.len() >= self.limits.log_lines_pending_max || self.bytes > BYTES_PENDING_MAX {
            let max = self.limits.log_lines_pending_max;
            self.dropped += 1;
            if self.dropped == 1 {
                let told = format!(
                    "more than {max} log lines (log_lines_pending_max) or 16 MiB between two boundaries: the rest is dropped"
                );
                self.system(story::log_line_mended(&told), now);
            }
            return;
        }
        let (category, wrong) = check_category(draft.category, &self.limits);
        let mut mended: Vec<String> = wrong.into_iter().collect();
        let mut message: Arc<str> = draft.message.into();
        let max = self.limits.log_message_bytes_max;
        if message.len() > max {
            mended.push(format!(
                "a log message of {} bytes was cut to the limit of {max} (log_message_bytes_max)",
                message.len()
            ));
            cut(&mut message, max);
        }
        let too_large =
            |data: &Json| self.limits.check_payload(|| "the data of a log line".into(), data).err();
        let (data, wrong) = match draft.data {
            Some(data) => match too_large(&data) {
                Some(refusal) => (None, Some(refusal.message)),
                None => (Some(data), None),
            },
            None => (None, None),
        };
        mended.extend(wrong);
        let (step, attempt) = draft.step.map_or((None, None), |(s, a)| (Some(s), Some(a)));
        self.lines.push(LogLine {
            id: self.ids.next("log"),
            step,
            attempt,
            level: draft.level,
            category,
            message,
            data,
            is_replay: self.is_replay(),
            created_at: now,
        });
        for told in mended {
            self.system(story::log_line_mended(&told), now);
        }
    }
}

/// The category to store a line under, and what was wrong with the one asked for.
fn check_category(asked: Option<String>, limits: &Limits) -> (Arc<str>, Option<String>) {
    let max = limits.log_category_bytes_max;
    match asked {
        None => (Arc::from(DEFAULT_CATEGORY), None),
        Some(category) if category == SYSTEM_CATEGORY => (
            Arc::from(DEFAULT_CATEGORY),
            Some("log category `system` is reserved for the engine; the line is stored as `workflow`".into()),
        ),
        Some(category) if category.is_empty() || category.len() > max => {
            let len = category.len();
            let told = format!("a log category of {len} bytes is outside 1..={max} (log_category_bytes_max); the line is stored as `workflow`");
            (Arc::from(DEFAULT_CATEGORY), Some(told))
        }
        Some(category) => (category.into(), None),
    }
}

/// A line of the engine's own, with its id.
pub(crate) fn system_line(ids: &Ids, line: SystemLine, now: Timestamp) -> LogLine {
    line.written(ids.next("log"), now)
}

/// Cuts a text at a character boundary.
fn cut(text: &mut Arc<str>, max: usize) {
    if text.len() > max {
        *text = Arc::from(&text[..text.floor_char_boundary(max)]);
    }
}
