//! The command line of a driver.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// What to measure, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// Steps of one workflow.
    pub steps: u64,
    /// Workflows that are outstanding at any time.
    pub in_flight: usize,
    /// How long is measured, behind the warm-up.
    pub span: Duration,
    others: BTreeMap<String, String>,
}

impl Options {
    /// Reads `--name value` pairs.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Options> {
        let mut others = BTreeMap::new();
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let name = arg.strip_prefix("--").with_context(|| format!("`{arg}` is no option"))?;
            let value = args.next().with_context(|| format!("--{name} needs a value"))?;
            others.insert(name.to_owned(), value);
        }
        let mut number = |name: &str| -> Result<f64> {
            let value = others.remove(name).with_context(|| format!("--{name} is missing"))?;
            value.parse().with_context(|| format!("--{name} {value} is no number"))
        };
        let (steps, in_flight) = (number("steps")? as u64, number("in-flight")? as usize);
        let span = Duration::try_from_secs_f64(number("seconds")?).context("--seconds")?;
        ensure!(steps > 0 && in_flight > 0, "--steps and --in-flight are at least 1");
        Ok(Options { steps, in_flight, span, others })
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
