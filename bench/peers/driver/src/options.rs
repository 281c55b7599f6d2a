//! The command line of a driver.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// What to measure, and where.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) kind: Kind,
    /// Steps of one workflow.
    pub steps: u64,
    /// Workflows in flight, in the burst, waiting or sleeping.
    pub(crate) count: usize,
    /// How long is measured; for sleepers, how long they may take to fall asleep.
    pub(crate) span: Duration,
    others: BTreeMap<String, String>,
}

/// What is done.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A number of workflows is outstanding at any time.
    Chain,
    /// All at once, nothing before.
    Burst,
    /// All at once, behind the first calls.
    WarmBurst,
    /// Events to waiting workflows, one by one.
    Event,
    /// All sleep to the same moment.
    Sleep,
    /// Nothing.
    Idle,
}

impl Options {
    /// Reads `--name value` pairs.
    pub(crate) fn parse(args: impl IntoIterator<Item = String>) -> Result<Options> {
        let mut others = BTreeMap::new();
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let name = arg.strip_prefix("--").with_context(|| format!("`{arg}` is no option"))?;
            let value = args.next().with_context(|| format!("--{name} needs a value"))?;
            others.insert(name.to_owned(), value);
        }
        let mut take =
            |name: &str| others.remove(name).with_context(|| format!("--{name} is missing"));
        let kind = match take("workload")?.as_str() {
            "chain" => Kind::Chain,
            "burst" => Kind::Burst,
            "warm-burst" => Kind::WarmBurst,
            "event" => Kind::Event,
            "sleep" => Kind::Sleep,
            "idle" => Kind::Idle,
            other => bail!("--workload {other} is not known"),
        };
        let mut number = |name: &str| -> Result<f64> {
            let value = take(name)?;
            value.parse().with_context(|| format!("--{name} {value} is no number"))
        };
        let (steps, count) = (number("steps")? as u64, number("count")? as usize);
        let span = Duration::try_from_secs_f64(number("seconds")?).context("--seconds")?;
        ensure!(steps > 0 && count > 0, "--steps and --count are at least 1");
        Ok(Options { kind, steps, count, span, others })
    }

    /// The value of an option that only some drivers know.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.others.get(name).map(String::as_str)
    }

    /// The value of an option that this driver cannot do without.
    pub fn require(&self, name: &str) -> Result<&str> {
        self.get(name).with_context(|| format!("--{name} is missing"))
    }

    /// The directory for the engine's files.
    pub fn dir(&self) -> Result<PathBuf> {
        Ok(PathBuf::from(self.require("dir")?))
    }
}
