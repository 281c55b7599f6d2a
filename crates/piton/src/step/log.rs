//! `step.log()`: durable log lines, as short to write as any other.

use std::fmt;
use std::sync::Arc;

use piton_core::{LogLevel, StepName};
use serde::Serialize;

use crate::codec;
use crate::pass::{Draft, Pass};

/// Where log lines of a run are written; see [`Step::log`](super::Step::log).
///
/// ```
/// # use piton::prelude::*;
/// # async fn f(_: Event<()>, step: &Step) -> Result<()> {
/// let log = step.log();
/// log.info("charging");
/// # Ok(()) }
/// # let _ = workflow("f", f);
/// ```
#[must_use = "say what to log: .info(\"…\")"]
pub struct Log {
    pass: Arc<Pass>,
    step: Option<(StepName, u32)>,
}

macro_rules! levels {
    ($($(#[$doc:meta])* $method:ident => $level:ident),* $(,)?) => {$(
        $(#[$doc])*
        ///
        /// ```
        /// # use piton::prelude::*;
        /// # async fn f(_: Event<()>, step: &Step) -> Result<()> {
        #[doc = concat!("step.log().", stringify!($method), "(\"charging\");")]
        /// # Ok(()) }
        /// # let _ = workflow("f", f);
        /// ```
        pub fn $method(self, message: impl Into<String>) -> LogBuilder {
            self.line(LogLevel::$level, message.into())
        }
    )*};
}

impl Log {
    pub(super) fn new(pass: Arc<Pass>, step: Option<(StepName, u32)>) -> Self {
        Self { pass, step }
    }

    levels! {
        /// A line for developers.
        debug => Debug,
        /// A line for operators.
        info => Info,
        /// A line about something to look at.
        warn => Warn,
        /// A line about something that went wrong.
        error => Error,
    }

    fn line(self, level: LogLevel, message: String) -> LogBuilder {
        let draft = Draft { level, message, category: None, data: None, step: self.step };
        LogBuilder { pass: self.pass, draft: Some(draft) }
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Log")
    }
}

/// A log line that is written when this value goes out of scope: at the end of the statement.
///
/// A line that breaks a limit is stored in a mended form, with a `system` line that tells of it: logging
/// never fails a workflow.
///
/// ```
/// # use piton::prelude::*;
/// # async fn f(_: Event<()>, step: &Step) -> Result<()> {
/// step.log().info("charging").category("payments").data(serde_json::json!({ "cents": 125 }));
/// # Ok(()) }
/// # let _ = workflow("f", f);
/// ```
pub struct LogBuilder {
    pass: Arc<Pass>,
    draft: Option<Draft>,
}

impl LogBuilder {
    /// Adds structured data.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn f(_: Event<()>, step: &Step) -> Result<()> {
    /// step.log().info("charging").data(serde_json::json!({ "cents": 125 }));
    /// # Ok(()) }
    /// # let _ = workflow("f", f);
    /// ```
    pub fn data(mut self, data: impl Serialize) -> Self {
        if let Some(draft) = &mut self.draft {
            match codec::encode(|| "the data of a log line".to_owned(), &data) {
                Ok(data) => draft.data = Some(data),
                Err(error) => draft.message = format!("{} ({error})", draft.message),
            }
        }
        self
    }

    /// Sets the category; the default is `workflow`, and `system` is the engine's own.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn f(_: Event<()>, step: &Step) -> Result<()> {
    /// step.log().warn("card expires soon").category("payments");
    /// # Ok(()) }
    /// # let _ = workflow("f", f);
    /// ```
    pub fn category(mut self, category: impl Into<String>) -> Self {
        if let Some(draft) = &mut self.draft {
            draft.category = Some(category.into());
        }
        self
    }
}

impl Drop for LogBuilder {
    fn drop(&mut self) {
        if let Some(draft) = self.draft.take() {
            self.pass.write_log(draft);
        }
    }
}

impl fmt::Debug for LogBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogBuilder")
    }
}
