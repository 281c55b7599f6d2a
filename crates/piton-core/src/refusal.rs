//! Why something was refused: a stable code and a sentence.

use std::fmt;

/// The stable, machine-readable codes of every refusal. They never change their meaning.
///
/// ```
/// assert_eq!(piton_core::Code::InstanceNotFound.to_string(), "INSTANCE_NOT_FOUND");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Code {
    /// No workflow of that name is registered.
    WorkflowNotFound,
    /// No instance of that id exists in the workflow.
    InstanceNotFound,
    /// The workflow has an instance of that id already.
    InstanceIdAlreadyExists,
    /// The instance has ended; it takes no events and cannot be paused or terminated.
    InstanceTerminal,
    /// A workflow name is empty, too long or has characters outside `[A-Za-z0-9_-]`.
    InvalidWorkflowName,
    /// An instance id is empty, too long or has characters outside `[A-Za-z0-9_-]`.
    InvalidInstanceId,
    /// An event type is empty, too long or has characters outside `[A-Za-z0-9_-]`.
    InvalidEventType,
    /// A step name is empty or too long.
    InvalidStepName,
    /// The name or the namespace of a hook is empty, too long or has characters outside `[A-Za-z0-9_.-]`.
    InvalidHookName,
    /// No hook has that id.
    HookNotFound,
    /// The hook is done or is being processed: there is nothing to retry.
    HookNotRetriable,
    /// A page cursor is damaged or belongs to another list.
    InvalidCursor,
    /// The instance never had that run.
    InvalidRunNumber,
    /// A duration cannot be understood or is out of range.
    InvalidDuration,
    /// Some other input is out of range.
    ValidationError,
    /// The params do not decode into the workflow's type.
    WorkflowParamsInvalid,
    /// A payload is larger than its limit.
    PayloadTooLarge,
    /// Two steps of one name were awaited at the same time.
    DuplicateStepKey,
    /// A step name was used before with another type of step.
    StepTypeMismatch,
    /// The run has more steps than the limit allows.
    TooManySteps,
    /// A stored value does not decode into the type the code asks for.
    DecodeFailed,
    /// A value cannot be written as JSON.
    EncodeFailed,
    /// Writes inside a step's transaction broke a unique constraint.
    UniqueConstraint,
    /// Writes inside a step's transaction failed.
    StepTransaction,
    /// The store cannot be used now; trying again later may work.
    StoreUnavailable,
    /// The database file, its version or its place is not usable.
    StoreUnusable,
    /// The engine has been shut down, or is about to be.
    ShuttingDown,
    /// The instance was terminated, so that it has no result.
    NoResult,
    /// Broken invariant inside the engine.
    Internal,
}

impl Code {
    /// The code as it is written everywhere.
    ///
    /// ```
    /// assert_eq!(piton_core::Code::NoResult.as_str(), "NO_RESULT");
    /// ```
    pub const fn as_str(self) -> &'static str {
        match self {
            Code::WorkflowNotFound => "WORKFLOW_NOT_FOUND",
            Code::InstanceNotFound => "INSTANCE_NOT_FOUND",
            Code::InstanceIdAlreadyExists => "INSTANCE_ID_ALREADY_EXISTS",
            Code::InstanceTerminal => "INSTANCE_TERMINAL",
            Code::InvalidWorkflowName => "INVALID_WORKFLOW_NAME",
            Code::InvalidInstanceId => "INVALID_INSTANCE_ID",
            Code::InvalidEventType => "INVALID_EVENT_TYPE",
            Code::InvalidStepName => "INVALID_STEP_NAME",
            Code::InvalidHookName => "INVALID_HOOK_NAME",
            Code::HookNotFound => "HOOK_NOT_FOUND",
            Code::HookNotRetriable => "HOOK_NOT_RETRIABLE",
            Code::InvalidCursor => "INVALID_CURSOR",
            Code::InvalidRunNumber => "INVALID_RUN_NUMBER",
            Code::InvalidDuration => "INVALID_DURATION",
            Code::ValidationError => "VALIDATION_ERROR",
            Code::WorkflowParamsInvalid => "WORKFLOW_PARAMS_INVALID",
            Code::PayloadTooLarge => "PAYLOAD_TOO_LARGE",
            Code::DuplicateStepKey => "DUPLICATE_STEP_KEY",
            Code::StepTypeMismatch => "STEP_TYPE_MISMATCH",
            Code::TooManySteps => "TOO_MANY_STEPS",
            Code::DecodeFailed => "DECODE_FAILED",
            Code::EncodeFailed => "ENCODE_FAILED",
            Code::UniqueConstraint => "UNIQUE_CONSTRAINT",
            Code::StepTransaction => "STEP_TRANSACTION",
            Code::StoreUnavailable => "STORE_UNAVAILABLE",
            Code::StoreUnusable => "STORE_UNUSABLE",
            Code::ShuttingDown => "SHUTTING_DOWN",
            Code::NoResult => "NO_RESULT",
            Code::Internal => "INTERNAL",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A refusal: what was wrong, where, and what to do about it.
///
/// ```
/// use piton_core::{Code, Limits, StepName};
/// let refusal = StepName::parse("", &Limits::default()).unwrap_err();
/// assert_eq!(refusal.code, Code::InvalidStepName);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The stable code.
    pub code: Code,
    /// A sentence for people: lowercase, no final dot.
    pub message: String,
    /// Where in the input it is wrong, if that is known.
    pub issues: Vec<Issue>,
}

/// One thing that is wrong with an input, and where.
///
/// ```
/// use piton_core::{Code, Refusal};
/// let refusal = Refusal::new(Code::ValidationError, "bad params").at("cents", "not a number");
/// assert_eq!(refusal.issues[0].path, "cents");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// The place, such as `ops[2].timeout`; empty for the input as a whole.
    pub path: String,
    /// What is wrong there.
    pub message: String,
}

impl Issue {
    /// The same issue, seen from outside of the part it is about: `ops[0]` inside of `params` is `params.ops[0]`.
    ///
    /// ```
    /// use piton_core::Issue;
    /// let issue = Issue { path: "cents".to_owned(), message: "not a number".to_owned() };
    /// assert_eq!(issue.inside("[1].params").path, "[1].params.cents");
    /// ```
    #[must_use]
    pub fn inside(mut self, place: &str) -> Self {
        let joined = self.path.is_empty() || self.path.starts_with('[');
        let separator = if joined { "" } else { "." };
        self.path = format!("{place}{separator}{}", self.path);
        self
    }
}

impl Refusal {
    /// A refusal with its code and sentence.
    ///
    /// ```
    /// use piton_core::{Code, Refusal};
    /// let refusal = Refusal::new(Code::ValidationError, "a batch is empty");
    /// assert_eq!(refusal.message, "a batch is empty");
    /// ```
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), issues: Vec::new() }
    }

    /// The same, with the place where the input is wrong.
    ///
    /// ```
    /// use piton_core::{Code, Refusal};
    /// let refusal = Refusal::new(Code::ValidationError, "bad params").at("cents", "not a number");
    /// assert_eq!(refusal.issues.len(), 1);
    /// ```
    #[must_use]
    pub fn at(mut self, path: impl Into<String>, message: impl Into<String>) -> Self {
        self.issues.push(Issue { path: path.into(), message: message.into() });
        self
    }
}

/// What stores refuse, told in one place so that all of them use the same words.
impl Refusal {
    /// There is no such instance.
    pub fn no_instance(workflow: impl fmt::Display, id: impl fmt::Display) -> Self {
        let message = format!("workflow `{workflow}` has no instance `{id}`");
        Self::new(Code::InstanceNotFound, message)
    }

    /// There is such an instance already.
    pub fn id_exists(workflow: impl fmt::Display, id: impl fmt::Display) -> Self {
        let message = format!("workflow `{workflow}` has an instance `{id}` already");
        Self::new(Code::InstanceIdAlreadyExists, message)
    }

    /// A row says something that no version of this code has ever written.
    pub fn damaged_row(table: &str, key: i64, reason: impl fmt::Display) -> Self {
        let message = format!(
            "a row of {table} for instance key {key} cannot be read: {reason}; \
             it was changed by something else: repair it with any SQL client"
        );
        Self::new(Code::DecodeFailed, message)
    }
}

impl From<crate::DurationError> for Refusal {
    fn from(error: crate::DurationError) -> Self {
        Self::new(Code::InvalidDuration, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_words_that_never_change() {
        assert_eq!(Code::InstanceIdAlreadyExists.as_str(), "INSTANCE_ID_ALREADY_EXISTS");
        assert_eq!(Code::Internal.to_string(), "INTERNAL");
    }
}
