//! Whether the process lives (`/healthz`) and whether it should be sent work (`/readyz`).
//!
//! Both are outside of the guard: they tell nothing about anyone's data, and they must answer while the API is
//! overloaded.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use piton::{Engine, Span};
use serde_json::json;

/// Due work that has waited this long shows that nothing is being advanced, whatever the process says about itself.
const OVERDUE_MAX: Span = Span::literal("60 seconds");

/// How long the store may take to answer.
const ANSWER_TIME_MAX: Span = Span::literal("2 seconds");

/// `/healthz` and `/readyz`, to be merged into the host's router.
///
/// `/readyz` is 503 when the store does not answer, or when this process has a runner and the oldest due task has been
/// due for more than a minute.
pub fn health(engine: Engine) -> Router {
    Router::new()
        .route("/healthz", get(|| async { Json(json!({"status": "ok"})) }))
        .route("/readyz", get(ready))
        .with_state(Arc::new(engine))
}

async fn ready(State(engine): State<Arc<Engine>>) -> Response {
    let runtime = engine.runtime();
    let due = tokio::select! {
        due = engine.next_wake_at() => due.map_err(|error| error.message().to_owned()),
        () = runtime.sleep(ANSWER_TIME_MAX) => Err("the store does not answer".to_owned()),
    };
    let overdue = |due: piton::Timestamp| runtime.now().since(due);
    match due {
        Err(reason) => {
            tracing::warn!(reason, "not ready: the store cannot be used");
            not_ready("the store cannot be used")
        }
        Ok(Some(due)) if engine.has_runner() && overdue(due) > OVERDUE_MAX => {
            not_ready("due work is not being advanced")
        }
        Ok(_) => Json(json!({"status": "ready"})).into_response(),
    }
}

fn not_ready(reason: &str) -> Response {
    let body = json!({"status": "not ready", "reason": reason});
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
}
