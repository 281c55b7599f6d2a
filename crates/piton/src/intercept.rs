//! A seam for tests: it sees the steps that workflow code asks for, and may put something in the place of a body.
//!
//! **An engine without an [`Interceptor`] pays nothing but the look whether there is one**, and nothing in the engine
//! depends on one. The mocks of `piton-testing` are built on it.

use piton_core::{EventType, InstanceId, Json, Span, StepName, StepType, WorkflowName};

use crate::Error;

/// Sees the steps of an engine's runs. Set it with
/// [`EngineBuilder::interceptor`](crate::EngineBuilder::interceptor).
///
/// The calls come from inside a pass: they must be quick, and cannot wait for anything.
///
/// ```
/// # use piton::prelude::*;
/// # use piton::Json;
/// # use piton::intercept::{AskedStep, Instead, Interceptor};
/// # async fn pay(_: Event<()>, step: &Step) -> Result<u64> { step.run("charge", async { Ok(125) }).await }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// struct FreeOfCharge;
///
/// impl Interceptor for FreeOfCharge {
///     fn attempt(&self, step: &AskedStep<'_>, _attempt: u32) -> Instead {
///         if step.name.as_str() == "charge" { Instead::Return(Json::from_valid_text("0")) } else { Instead::Body }
///     }
/// }
/// # let engine = Engine::builder("memory:").register(workflow("pay", pay));
/// let engine = engine.interceptor(std::sync::Arc::new(FreeOfCharge)).start().await?;
/// let instance = engine.workflow::<(), u64>("pay")?.create(()).await?;
/// assert_eq!(instance.result().await?, 0);
/// # Ok(())
/// # }
/// ```
pub trait Interceptor: Send + Sync + 'static {
    /// The code asks for a step, for the first time or in a replay, before anything else happens.
    ///
    /// ```
    /// # use piton::intercept::{AskedStep, Interceptor};
    /// struct Print;
    ///
    /// impl Interceptor for Print {
    ///     fn asked(&self, step: &AskedStep<'_>) {
    ///         println!("{} asks for {:?}", step.instance_id, step.name);
    ///     }
    /// }
    /// ```
    fn asked(&self, step: &AskedStep<'_>) {
        let _ = step;
    }

    /// An attempt of a step is about to start: its body, or what to do instead.
    ///
    /// ```
    /// # use piton::intercept::{AskedStep, Instead, Interceptor};
    /// struct FirstAttemptsFail;
    ///
    /// impl Interceptor for FirstAttemptsFail {
    ///     fn attempt(&self, _: &AskedStep<'_>, attempt: u32) -> Instead {
    ///         if attempt == 1 { Instead::Fail(piton::Error::new("no luck")) } else { Instead::Body }
    ///     }
    /// }
    /// ```
    fn attempt(&self, step: &AskedStep<'_>, attempt: u32) -> Instead {
        let _ = (step, attempt);
        Instead::Body
    }

    /// The code asks for a wait: how long it lasts. Has no effect on a wait that is recorded already.
    ///
    /// ```
    /// # use piton::intercept::{AskedStep, Interceptor};
    /// # use piton::{EventType, Span};
    /// struct Impatient;
    ///
    /// impl Interceptor for Impatient {
    ///     fn wait(&self, _: &AskedStep<'_>, _: &EventType, timeout: Span) -> Span {
    ///         timeout.min(Span::literal("1 second"))
    ///     }
    /// }
    /// ```
    fn wait(&self, step: &AskedStep<'_>, event_type: &EventType, timeout: Span) -> Span {
        let _ = (step, event_type);
        timeout
    }
}

/// A step that the code asks for.
///
/// ```
/// # use piton::intercept::AskedStep;
/// fn path(step: &AskedStep<'_>) -> String {
///     format!("{}/{}/{}/{}", step.workflow, step.instance_id, step.run_number, step.name)
/// }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AskedStep<'a> {
    /// The workflow.
    pub workflow: &'a WorkflowName,
    /// The instance.
    pub instance_id: &'a InstanceId,
    /// The run.
    pub run_number: u32,
    /// The step's name.
    pub name: &'a StepName,
    /// Its type.
    pub step_type: StepType,
}

/// What happens in an attempt.
///
/// ```
/// # use piton::intercept::Instead;
/// fn mocked(result: Option<piton::Json>) -> Instead {
///     result.map_or(Instead::Body, Instead::Return)
/// }
/// assert!(matches!(mocked(None), Instead::Body));
/// ```
#[derive(Debug)]
pub enum Instead {
    /// The body runs.
    Body,
    /// The attempt succeeds with this result.
    Return(Json),
    /// The attempt fails with this error.
    Fail(Error),
    /// The attempt fails as if it had taken longer than its timeout.
    TimeOut,
    /// The attempt hangs: nothing happens until it times out.
    Hang,
}
