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
pub trait Interceptor: Send + Sync + 'static {
    /// The code asks for a step, for the first time or in a replay, before anything else happens.
    fn asked(&self, step: &AskedStep<'_>) {
        let _ = step;
    }

    /// An attempt of a step is about to start: its body, or what to do instead.
    fn attempt(&self, step: &AskedStep<'_>, attempt: u32) -> Instead {
        let _ = (step, attempt);
        Instead::Body
    }

    /// The code asks for a wait: how long it lasts. Has no effect on a wait that is recorded already.
    fn wait(&self, step: &AskedStep<'_>, event_type: &EventType, timeout: Span) -> Span {
        let _ = (step, event_type);
        timeout
    }
}

/// A step that the code asks for.
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
