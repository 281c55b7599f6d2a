//! What a caller is told when something went wrong: `{"message", "code"}`, with the status of the code.
//!
//! The message of a refusal is for the caller. What broke inside (a path, a statement, a panic) is for the log: it
//! travels beside the answer as a [`Cause`], and the caller gets the id under which it was logged.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use piton::{Code, Error, Issue, Refusal};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

/// How long a caller that was sent away should wait, in seconds.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// The body of every error.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "message": "workflow `order` has no instance `order-7`",
    "code": "INSTANCE_NOT_FOUND"
}))]
pub(crate) struct ErrorBody {
    /// What happened, for people.
    message: String,
    /// What happened, for programs. It never changes its meaning.
    code: String,
    /// Where the input is wrong; with `VALIDATION_ERROR`, and with others that know the place.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "issue_bodies")]
    #[schema(value_type = Vec<IssueBody>)]
    issues: Vec<Issue>,
}

/// One thing that is wrong with an input.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct IssueBody<'a> {
    /// The place: `params.ops[0].op`, or the name of a query parameter or header.
    path: &'a str,
    /// What is wrong there.
    message: &'a str,
}

/// An error on its way to the caller.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    body: Box<ErrorBody>,
    cause: Option<Cause>,
}

/// What really happened, for the log only.
#[derive(Clone, Debug)]
pub(crate) struct Cause(pub(crate) String);

impl ApiError {
    pub(crate) fn new(
        status: StatusCode,
        code: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        let body = ErrorBody { message: message.into(), code: code.into(), issues: Vec::new() };
        Self { status, body: Box::new(body), cause: None }
    }

    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", message)
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "FORBIDDEN", message)
    }

    pub(crate) fn overloaded(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "OVERLOADED", message)
    }

    /// Nobody knows how far it came. Unlike [`overloaded`](Self::overloaded) it does not invite to try again.
    pub(crate) fn timed_out() -> Self {
        let message = "the request took too long; whether it was carried out is not known";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "TIMED_OUT", message)
    }

    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, Code::PayloadTooLarge.as_str(), message)
    }

    /// A broken promise of ours. The guard puts [`broken`](Self::broken) in its place, and the cause into the log.
    pub(crate) fn internal(cause: impl Into<String>) -> Self {
        Self { cause: Some(Cause(cause.into())), ..Self::broken("") }
    }

    /// All that a caller is told about it: the id it is logged under.
    pub(crate) fn broken(request_id: &str) -> Self {
        let message = format!(
            "something broke inside the server; its log has the details under {request_id}"
        );
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, Code::Internal.as_str(), message)
    }

    /// Input that is wrong at one place.
    pub(crate) fn invalid(path: impl Into<String>, message: impl Into<String>) -> Self {
        let (path, message) = (path.into(), message.into());
        let code = Code::ValidationError.as_str();
        let whole = if path.is_empty() { message.clone() } else { format!("{path}: {message}") };
        let mut error = Self::new(StatusCode::BAD_REQUEST, code, whole);
        error.body.issues.push(Issue { path, message });
        error
    }

    /// The same error, seen from outside the part it is about: `ops[0]` becomes `params.ops[0]`.
    pub(crate) fn inside(mut self, place: &str) -> Self {
        let issues = std::mem::take(&mut self.body.issues).into_iter();
        self.body.issues = issues.map(|issue| issue.inside(place)).collect();
        self
    }

    /// The same error, with what to do about it.
    pub(crate) fn hint(mut self, hint: &str) -> Self {
        self.body.message = format!("{}; {hint}", self.body.message);
        self
    }

    /// An error of the engine about `place` in the input.
    pub(crate) fn at(error: Error, place: &str) -> Self {
        let mut error = Self::from(error);
        if error.body.issues.is_empty() && error.status == StatusCode::BAD_REQUEST {
            let message = error.body.message.clone();
            error.body.issues.push(Issue { path: String::new(), message });
        }
        error.inside(place)
    }

    fn unavailable(code: &'static str, message: &str, error: &Error) -> Self {
        let cause = Some(Cause(format!("{error:?}")));
        Self { cause, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message) }
    }
}

/// The status of a refusal; `None` if no request should be able to cause it.
fn status_of(code: &str) -> Option<StatusCode> {
    Some(match code {
        "WORKFLOW_NOT_FOUND" | "INSTANCE_NOT_FOUND" | "HOOK_NOT_FOUND" => StatusCode::NOT_FOUND,
        "INVALID_INSTANCE_ID"
        | "INVALID_EVENT_TYPE"
        | "INVALID_HOOK_NAME"
        | "INVALID_CURSOR"
        | "INVALID_RUN_NUMBER"
        | "VALIDATION_ERROR"
        | "WORKFLOW_PARAMS_INVALID" => StatusCode::BAD_REQUEST,
        "INSTANCE_ID_ALREADY_EXISTS" | "INSTANCE_TERMINAL" | "HOOK_NOT_RETRIABLE" => {
            StatusCode::CONFLICT
        }
        "PAYLOAD_TOO_LARGE" => StatusCode::PAYLOAD_TOO_LARGE,
        _ => return None,
    })
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let code = error.code().unwrap_or_default();
        if let Some(status) = status_of(code) {
            let mut refused = Self::new(status, code, error.message());
            refused.body.issues = error.issues().to_vec();
            return refused;
        }
        match code {
            // No instance can belong to a name that no workflow can have.
            "INVALID_WORKFLOW_NAME" => {
                Self::new(StatusCode::NOT_FOUND, "WORKFLOW_NOT_FOUND", error.message())
            }
            "STORE_UNAVAILABLE" | "STORE_UNUSABLE" => {
                let message = "the store cannot be used now; try again later";
                Self::unavailable("STORE_UNAVAILABLE", message, &error)
            }
            "SHUTTING_DOWN" => {
                let message = "the server is shutting down; try again";
                Self::unavailable("OVERLOADED", message, &error)
            }
            _ => Self::internal(format!("{error:?}")),
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        Self::from(Error::from(refusal))
    }
}

fn issue_bodies<S: Serializer>(issues: &[Issue], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(issues.iter().map(|Issue { path, message }| IssueBody { path, message }))
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(self.body)).into_response();
        let headers = response.headers_mut();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(cause) = self.cause {
            response.extensions_mut().insert(cause);
        }
        response
    }
}
