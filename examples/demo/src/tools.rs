//! What the workflows of the demo work with: services that are only pretended, and a witness of what was executed.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use piton::prelude::*;
use piton::runtime::{Runtime, TokioRuntime};
use piton::{Span, StepContext};

/// A file that gets a line for each step body that is executed.
pub struct Witness(File);

impl Witness {
    /// Opens the file for appending.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let cannot = |error| anyhow::anyhow!("cannot write to {}: {error}", path.display());
        Ok(Self(file.map_err(cannot)?))
    }
}

/// What a step body may use.
pub struct Tools {
    witness: Option<Witness>,
    runtime: Arc<dyn Runtime>,
}

impl Tools {
    /// Tools on the tokio runtime this is called from.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn new(witness: Option<Witness>) -> piton::Result<Self> {
        Ok(Self { witness, runtime: TokioRuntime::current()? })
    }

    /// Notes that a body is being executed. One write, so that lines of different bodies never mix.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub(crate) fn note(&self, step: &Step, name: &str, cx: &StepContext) -> Result<()> {
        if let Some(Witness(file)) = &self.witness {
            let (instance, run, attempt) = (step.instance_id(), step.run_number(), cx.attempt());
            let line = format!("{instance} {run} {name} {attempt}\n");
            let mut file = file;
            file.write_all(line.as_bytes())?;
        }
        Ok(())
    }

    /// Takes time, as a call to another service would.
    pub(crate) async fn work_for(&self, ms: i64) {
        if ms > 0 {
            self.runtime.sleep(Span::from_millis(ms)).await;
        }
    }

    /// A step that pretends to call a service, which answers with `answer`.
    pub(crate) async fn call<T>(&self, step: &Step, name: &str, answer: impl Fn() -> T) -> Result<T>
    where
        T: serde::Serialize + serde::de::DeserializeOwned + Send,
    {
        let answer = &answer;
        step.run_with(name, |cx| async move {
            self.note(step, name, &cx)?;
            self.work_for(20).await;
            Ok(answer())
        })
        .await
    }
}

impl fmt::Debug for Tools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tools")
    }
}
