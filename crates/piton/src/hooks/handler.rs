//! What runs for a hook.

use std::future::Future;
use std::marker::PhantomData;

use piton_core::Json;
use piton_core::record::RecordedError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::HookContext;
use crate::runtime::BoxFuture;
use crate::{Result, codec};

/// What runs for the hooks of one name: for handlers with state of their own; others are closures, see
/// [`Hooks::on`](super::Hooks::on).
///
/// It runs at least once for each hook. An error counts as a failed attempt, and so do a panic and a payload that does
/// not decode; an error that is not retryable ends the hook at once.
pub trait HookHandler: Send + Sync + 'static {
    /// Handles one attempt.
    fn handle(&self, payload: Json, context: HookContext) -> BoxFuture<Result<()>>;
}

/// A closure with a typed payload.
pub(super) struct Typed<P, F> {
    function: F,
    payload: PhantomData<fn(P)>,
}

impl<P, F> Typed<P, F> {
    pub(super) fn new(function: F) -> Self {
        Self { function, payload: PhantomData }
    }
}

impl<P, F, Fut> HookHandler for Typed<P, F>
where
    P: DeserializeOwned + 'static,
    F: Fn(P, HookContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<()>> + Send + 'static,
{
    fn handle(&self, payload: Json, context: HookContext) -> BoxFuture<Result<()>> {
        let what = || format!("the payload of hook {:?}", context.name());
        match codec::decode(what, &payload) {
            Ok(payload) => Box::pin((self.function)(payload, context)),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
}

/// The payload of `on_workflow_enqueued`: a run can be advanced, now or from the hook's `process_at` on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct WorkflowEnqueued {
    /// The workflow.
    pub workflow_name: String,
    /// The instance.
    pub instance_id: String,
    /// The run.
    pub run_number: u32,
    /// Why: `create`, `event`, `resume`, `retry` or `wake`.
    pub reason: String,
}

/// The payload of the hooks that tell of a run's end or of a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct InstanceNews {
    /// The workflow.
    pub workflow_name: String,
    /// The instance.
    pub instance_id: String,
    /// The run that ended, or the new one after a restart.
    pub run_number: u32,
    /// What it ended with, if that was an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RecordedError>,
}
