//! The language of the playground. An op or a field that does not exist is refused when the instance is created.

use std::fmt;

use piton::{IntoSpan, Retries, RetryLimit, Span, Timestamp};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A program: ops that are executed one after the other.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    pub(super) ops: Vec<Op>,
}

/// One op.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "camelCase", try_from = "Fields")]
pub(super) enum Op {
    /// A step with a body.
    Do(Do),
    /// `step.sleep`.
    Sleep { name: String, duration: Length },
    /// `step.sleep_until`.
    SleepUntil { name: String, at: Moment },
    /// `step.wait_for_event`.
    Wait {
        name: String,
        #[serde(rename = "type")]
        event_type: String,
        timeout: Option<Length>,
    },
    /// Goes on after an error of its ops, with the error as its result.
    Catch { ops: Vec<Op> },
    /// All at the same time; all results.
    All { ops: Vec<Op> },
    /// All at the same time; the first result.
    Race { ops: Vec<Op> },
    /// A durable log line.
    Log { level: Level, message: String, data: Option<Value>, category: Option<String> },
    /// Ends the workflow with an error.
    Throw {
        message: String,
        name: Option<String>,
        #[serde(rename = "nonRetryable")]
        non_retryable: bool,
    },
    /// Panics in the workflow's own code.
    Panic { message: String },
    /// What the workflow was given beside its params.
    Event {},
}

/// A step with a body that takes time, fails and returns as it is told.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Do {
    pub(super) name: String,
    /// The result; by default the name.
    pub(super) value: Option<Value>,
    /// How long the body takes.
    pub(super) ms: i64,
    /// Which attempts fail.
    pub(super) fail: Fail,
    /// What they fail with.
    pub(super) message: Option<String>,
    pub(super) non_retryable: bool,
    pub(super) config: Config,
}

/// The configuration of a step.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    pub(super) retries: Option<RetryConfig>,
    /// Of one attempt.
    pub(super) timeout: Option<Length>,
}

/// A retry policy.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RetryConfig {
    limit: Limit,
    delay: Length,
    #[serde(default)]
    backoff: Backoff,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Limit {
    Times(u32),
    Infinite(Infinity),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Infinity {
    Infinity,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Backoff {
    Constant,
    Linear,
    #[default]
    Exponential,
}

impl RetryConfig {
    pub(super) fn policy(&self) -> Retries {
        let limit = match self.limit {
            Limit::Times(times) => RetryLimit::Times(times),
            Limit::Infinite(Infinity::Infinity) => RetryLimit::Infinite,
        };
        match self.backoff {
            Backoff::Constant => Retries::constant(limit, self.delay.0),
            Backoff::Linear => Retries::linear(limit, self.delay.0),
            Backoff::Exponential => Retries::exponential(limit, self.delay.0),
        }
    }
}

/// Which attempts of a body fail: the first so many, or all.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Fail {
    First(u32),
    Always(bool),
}

/// The level of a log line.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

/// A duration, as text or as milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Length(pub(super) Span);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Read;
        impl Visitor<'_> for Read {
            type Value = Length;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as \"10 seconds\", or milliseconds")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Length, E> {
                text.into_span().map(Length).map_err(E::custom)
            }
            fn visit_i64<E>(self, ms: i64) -> Result<Length, E> {
                Ok(Length(Span::from_millis(ms)))
            }
            fn visit_u64<E: de::Error>(self, ms: u64) -> Result<Length, E> {
                ms.into_span().map(Length).map_err(E::custom)
            }
        }
        json.deserialize_any(Read)
    }
}

/// A time, as milliseconds since 1970 or as ISO-8601.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Moment(pub(super) Timestamp);

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Read;
        impl Visitor<'_> for Read {
            type Value = Moment;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("milliseconds since 1970, or a time such as \"2026-09-21T14:13:20Z\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Moment, E> {
                text.parse().map(Moment).map_err(E::custom)
            }
            fn visit_i64<E>(self, ms: i64) -> Result<Moment, E> {
                Ok(Moment(Timestamp::from_millis(ms)))
            }
            fn visit_u64<E>(self, ms: u64) -> Result<Moment, E> {
                Ok(Moment(Timestamp::from_millis(i64::try_from(ms).unwrap_or(i64::MAX))))
            }
        }
        json.deserialize_any(Read)
    }
}

/// The names of the ops.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Kind {
    Do,
    Sleep,
    SleepUntil,
    Wait,
    Catch,
    All,
    Race,
    Log,
    Throw,
    Panic,
    Event,
}

/// All fields that any op has. Read first, so that an error names the very place where it is.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Fields {
    op: Kind,
    name: Option<String>,
    #[serde(default, deserialize_with = "present")]
    value: Option<Value>,
    ms: Option<u32>,
    fail: Option<Fail>,
    message: Option<String>,
    non_retryable: Option<bool>,
    config: Option<Config>,
    duration: Option<Length>,
    at: Option<Moment>,
    r#type: Option<String>,
    timeout: Option<Length>,
    ops: Option<Vec<Op>>,
    level: Option<Level>,
    #[serde(default, deserialize_with = "present")]
    data: Option<Value>,
    category: Option<String>,
}

/// `null` is a value, too.
fn present<'de, D: Deserializer<'de>>(json: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(json).map(Some)
}

impl Fields {
    /// Refuses fields that belong to other ops.
    fn only(&self, allowed: &[&str]) -> Result<(), String> {
        let given = [
            ("name", self.name.is_some()),
            ("value", self.value.is_some()),
            ("ms", self.ms.is_some()),
            ("fail", self.fail.is_some()),
            ("message", self.message.is_some()),
            ("nonRetryable", self.non_retryable.is_some()),
            ("config", self.config.is_some()),
            ("duration", self.duration.is_some()),
            ("at", self.at.is_some()),
            ("type", self.r#type.is_some()),
            ("timeout", self.timeout.is_some()),
            ("ops", self.ops.is_some()),
            ("level", self.level.is_some()),
            ("data", self.data.is_some()),
            ("category", self.category.is_some()),
        ];
        let foreign = given.iter().find(|(field, given)| *given && !allowed.contains(field));
        match foreign {
            Some((field, _)) => Err(format!("this op has no field `{field}`")),
            None => Ok(()),
        }
    }
}

fn need<T>(field: &str, value: Option<T>) -> Result<T, String> {
    value.ok_or_else(|| format!("this op needs the field `{field}`"))
}

impl TryFrom<Fields> for Op {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Self, String> {
        fields.only(match fields.op {
            Kind::Do => &["name", "value", "ms", "fail", "message", "nonRetryable", "config"],
            Kind::Sleep => &["name", "duration"],
            Kind::SleepUntil => &["name", "at"],
            Kind::Wait => &["name", "type", "timeout"],
            Kind::Catch | Kind::All | Kind::Race => &["ops"],
            Kind::Log => &["level", "message", "data", "category"],
            Kind::Throw => &["message", "name", "nonRetryable"],
            Kind::Panic => &["message"],
            Kind::Event => &[],
        })?;
        Ok(match fields.op {
            Kind::Do => Op::Do(Do {
                name: need("name", fields.name)?,
                value: fields.value,
                ms: fields.ms.unwrap_or(0).into(),
                fail: fields.fail.unwrap_or(Fail::First(0)),
                message: fields.message,
                non_retryable: fields.non_retryable.unwrap_or(false),
                config: fields.config.unwrap_or_default(),
            }),
            Kind::Sleep => Op::Sleep {
                name: need("name", fields.name)?,
                duration: need("duration", fields.duration)?,
            },
            Kind::SleepUntil => {
                Op::SleepUntil { name: need("name", fields.name)?, at: need("at", fields.at)? }
            }
            Kind::Wait => Op::Wait {
                name: need("name", fields.name)?,
                event_type: need("type", fields.r#type)?,
                timeout: fields.timeout,
            },
            Kind::Catch => Op::Catch { ops: need("ops", fields.ops)? },
            Kind::All => Op::All { ops: need("ops", fields.ops)? },
            Kind::Race => {
                let ops = need("ops", fields.ops)?;
                if ops.is_empty() {
                    return Err("a race needs at least one op in `ops`".to_owned());
                }
                Op::Race { ops }
            }
            Kind::Log => Op::Log {
                level: fields.level.unwrap_or(Level::Info),
                message: need("message", fields.message)?,
                data: fields.data,
                category: fields.category,
            },
            Kind::Throw => Op::Throw {
                message: need("message", fields.message)?,
                name: fields.name,
                non_retryable: fields.non_retryable.unwrap_or(false),
            },
            Kind::Panic => {
                Op::Panic { message: fields.message.unwrap_or_else(|| "panic".to_owned()) }
            }
            Kind::Event => Op::Event {},
        })
    }
}
