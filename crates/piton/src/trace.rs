//! An opt-in `tracing` layer that stores events emitted inside a run as its durable log lines.

use std::fmt::{self, Write};

use piton_core::{Json, LogLevel};
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::pass::{Draft, scope};

/// A layer for `tracing_subscriber` that turns events inside a workflow into durable log lines.
///
/// ```
/// use piton::prelude::*;
/// use tracing_subscriber::prelude::*;
///
/// tracing_subscriber::registry().with(piton::durable_log_layer()).init();
///
/// async fn pay(cents: Event<u64>, step: &Step) -> Result<()> {
///     step.run("charge", async {
///         tracing::info!(cents = *cents, "charging"); // stored, with step and attempt
///         Ok(())
///     })
///     .await
/// }
/// # let _ = workflow("pay", pay);
/// ```
pub fn durable_log_layer() -> DurableLogLayer {
    DurableLogLayer { level: Level::INFO }
}

/// See [`durable_log_layer`].
///
/// ```
/// use tracing_subscriber::filter::LevelFilter;
/// use tracing_subscriber::prelude::*;
///
/// let durable: piton::DurableLogLayer = piton::durable_log_layer();
/// tracing_subscriber::registry().with(durable).with(LevelFilter::INFO).init();
/// ```
#[derive(Clone, Debug)]
pub struct DurableLogLayer {
    level: Level,
}

impl DurableLogLayer {
    /// Stores events down to this level. Default `INFO`.
    ///
    /// ```
    /// use tracing_subscriber::prelude::*;
    ///
    /// let durable = piton::durable_log_layer().with_level(tracing::Level::DEBUG);
    /// tracing_subscriber::registry().with(durable).init();
    /// ```
    #[must_use]
    pub fn with_level(mut self, level: Level) -> Self {
        self.level = level;
        self
    }
}

impl<S: Subscriber> Layer<S> for DurableLogLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        if *metadata.level() > self.level {
            return;
        }
        // Outside of workflow code there is no run to log to.
        let Some(scope) = scope::current() else { return };
        let mut fields = Fields::default();
        event.record(&mut fields);
        let Fields { message, data } = fields;
        let data =
            (!data.is_empty()).then(|| Json::from_valid_text(Value::Object(data).to_string()));
        let category: String = metadata.target().chars().take(64).collect();
        scope.pass.write_log(Draft {
            level: level(*metadata.level()),
            message,
            category: Some(category),
            data,
            step: scope.step,
        });
    }
}

fn level(level: Level) -> LogLevel {
    match level {
        Level::ERROR => LogLevel::Error,
        Level::WARN => LogLevel::Warn,
        Level::INFO => LogLevel::Info,
        _ => LogLevel::Debug,
    }
}

/// The fields of an event: the message apart, the rest as JSON.
#[derive(Default)]
struct Fields {
    message: String,
    data: Map<String, Value>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.data.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            // Writing to a string cannot fail.
            let _ = write!(self.message, "{value:?}");
        } else {
            self.put(field, format!("{value:?}"));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
        } else {
            self.put(field, value);
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }
}
