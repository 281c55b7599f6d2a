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
use tokio::sync::Mutex;

/// Due work that has waited this long shows that nothing is being advanced, whatever the process says about itself.
const OVERDUE_MAX: Span = Span::literal("60 seconds");

/// How long the store may take to answer.
const ANSWER_TIME_MAX: Span = Span::literal("2 seconds");

/// How long an answer is good for everyone who asks. Nobody can make the store work harder by asking more often.
const ANSWER_KEPT_US: u64 = 1_000_000;

/// `/healthz` and `/readyz`, to be merged into the host's router.
///
/// `/readyz` is 503 when the store does not answer, or when this process has a runner and the oldest due task has been
/// due for more than a minute. It looks at most once a second, however often it is asked.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> piton::Result<()> {
/// # let engine = piton::Engine::builder("memory:").start().await?;
/// let app: axum::Router = axum::Router::new().merge(piton_http::health(engine));
/// # Ok(()) }
/// ```
pub fn health(engine: Engine) -> Router {
    Router::new()
        .route("/healthz", get(|| async { Json(json!({"status": "ok"})) }))
        .route("/readyz", get(ready))
        .with_state(Readiness { engine, last: Arc::default() })
}

/// Whether to send work, or why not.
type Verdict = Result<(), &'static str>;

#[derive(Clone)]
struct Readiness {
    engine: Engine,
    /// The last verdict and when it was found, by the monotonic clock. Locked while someone looks, so that those who
    /// ask in the meantime get what that one finds.
    last: Arc<Mutex<Option<(u64, Verdict)>>>,
}

async fn ready(State(Readiness { engine, last }): State<Readiness>) -> Response {
    let runtime = engine.runtime();
    let is_fresh = |at: u64| runtime.monotonic_us().saturating_sub(at) < ANSWER_KEPT_US;
    let mut known = Arc::clone(&last).lock_owned().await;
    if !known.is_some_and(|(at, _)| is_fresh(at)) {
        *known = None;
        // A task of its own, so that those who ask and hang up do not start one look after the other.
        let looking = async move {
            let verdict = look(&engine).await;
            *known = Some((engine.runtime().monotonic_us(), verdict));
        };
        runtime.spawn(Box::pin(looking)).detach();
        known = last.lock_owned().await;
    }
    let verdict = known.map_or(Err("it cannot be told"), |(_, verdict)| verdict);
    drop(known);
    match verdict {
        Ok(()) => Json(json!({"status": "ready"})).into_response(),
        Err(reason) => {
            let body = json!({"status": "not ready", "reason": reason});
            (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
        }
    }
}

async fn look(engine: &Engine) -> Verdict {
    let runtime = engine.runtime();
    let due = tokio::select! {
        due = engine.next_claimable_at() => due.map_err(|error| error.message().to_owned()),
        () = runtime.sleep(ANSWER_TIME_MAX) => Err("the store does not answer".to_owned()),
    };
    let overdue = |due: piton::Timestamp| runtime.now().since(due);
    match due {
        Err(reason) => {
            tracing::warn!(reason, "not ready: the store cannot be used");
            Err("the store cannot be used")
        }
        Ok(Some(due)) if engine.has_runner() && overdue(due) > OVERDUE_MAX => {
            Err("due work is not being advanced")
        }
        Ok(_) => Ok(()),
    }
}
