//! What every request passes before its handler: the request id, the host check, the policies, the bounds on requests
//! and time, and what becomes of a panic.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use piton::Span;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::Instrument;

use crate::api::Core;
use crate::auth::{AuthRequest, Permission, Policies};
use crate::call::{Call, Target};
use crate::error::{ApiError, Cause};
use crate::query::Query;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A longer request id than this is not taken over from the caller.
const REQUEST_ID_BYTES_MAX: usize = 64;

/// A route of the API, as the guard sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    /// Below the mount point; empty if there is no such route.
    pub(crate) path: &'static str,
    /// What it asks for; `None` if there is no such route or method.
    pub(crate) permission: Option<Permission>,
    /// Whether its requests may wait for something to happen.
    pub(crate) waits: bool,
}

/// Serves a request of this route with this handler, if it gets that far.
pub(crate) async fn guard<F, R>(
    core: Arc<Core>,
    route: Route,
    request: Request,
    handler: impl FnOnce(Arc<Core>, Call) -> F,
) -> Response
where
    F: Future<Output = R>,
    R: IntoResponse,
{
    let id = request_id(&core, request.headers());
    let method = request.method();
    let span = tracing::info_span!("request", %method, route = route.path, id = ?id, status = tracing::field::Empty);
    let answered = answer(core, route, request, handler).instrument(span.clone()).await;
    let mut response = answered.unwrap_or_else(|response| response);
    span.record("status", response.status().as_u16());
    if let Some(Cause(cause)) = response.extensions_mut().remove() {
        span.in_scope(|| tracing::error!(cause, "a request failed"));
        if response.status() == StatusCode::INTERNAL_SERVER_ERROR {
            response = ApiError::broken(id.to_str().unwrap_or_default()).into_response();
        }
    }
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// `Err` is an answer as well: that of whoever stopped the request on its way.
async fn answer<F, R>(
    core: Arc<Core>,
    route: Route,
    request: Request,
    handler: impl FnOnce(Arc<Core>, Call) -> F,
) -> Result<Response, Response>
where
    F: Future<Output = R>,
    R: IntoResponse,
{
    let _room = room(&core, route).map_err(IntoResponse::into_response)?;
    let (mut parts, body) = request.into_parts();
    core.hosts.check(&parts).map_err(IntoResponse::into_response)?;
    let target = RawPathParams::from_request_parts(&mut parts, &()).await;
    let target = target.map(|params| Target::from(&params));
    // One clock for the policies and the handler: whatever hangs, the request gives its room back.
    let mut time_is_up = core.runtime.sleep(time_max(&core, route));
    if !core.policies.is_open() {
        let verdict = core.policies.check(about(route, &parts, target.as_ref().ok()));
        tokio::select! {
            biased;
            verdict = verdict => verdict?,
            () = &mut time_is_up => return Err(Policies::out_of_time()),
        }
    }
    let target =
        target.map_err(|_| ApiError::invalid("path", "the path is not UTF-8").into_response())?;
    check_content_type(&parts).map_err(IntoResponse::into_response)?;

    let work = AssertUnwindSafe(handler(core, Call::new(target, parts, body))).catch_unwind();
    tokio::select! {
        biased;
        done = work => done.map(IntoResponse::into_response).map_err(|panic| {
            let cause = piton::Error::from_panic(&*panic);
            ApiError::internal(format!("a handler panicked: {}", cause.message())).into_response()
        }),
        () = time_is_up => Err(ApiError::timed_out().into_response()),
    }
}

fn time_max(core: &Core, route: Route) -> Span {
    let extra = if route.waits { core.wait_max } else { Span::ZERO };
    Span::from_millis(core.request_time_max.as_millis().saturating_add(extra.as_millis()))
}

/// Room for one more request. Those that wait have a bound of their own, so that they never keep others out.
fn room(core: &Core, route: Route) -> Result<OwnedSemaphorePermit, ApiError> {
    let places = if route.waits { &core.waiting } else { &core.in_flight };
    let room = Semaphore::try_acquire_owned(Arc::clone(places));
    room.map_err(|_| ApiError::overloaded("too many requests at the same time; try again"))
}

fn about(route: Route, parts: &Parts, target: Option<&Target>) -> AuthRequest {
    let named =
        |part: fn(&Target) -> &String| target.map(part).filter(|name| !name.is_empty()).cloned();
    AuthRequest {
        method: parts.method.clone(),
        route: route.path,
        permission: route.permission,
        workflow: named(|target| &target.workflow),
        instance: named(|target| &target.instance),
        hook: named(|target| &target.hook),
        hook_namespace: hook_namespace(route, parts),
        headers: parts.headers.clone(),
    }
}

/// A namespace that is given twice is refused by the handler.
fn hook_namespace(route: Route, parts: &Parts) -> Option<String> {
    let of_hooks = route.path.starts_with("/_hooks");
    let query = of_hooks.then(|| Query::of(parts.uri.query()))?;
    query.get("namespace").ok().flatten().map(str::to_owned)
}

/// What changes something must be JSON. A web page of somebody else's cannot send that without asking first, and
/// nobody answers such questions here.
///
/// A call without a body may leave the header out, unless it comes from a browser: those say where they come from.
fn check_content_type(parts: &Parts) -> Result<(), ApiError> {
    if parts.method != Method::POST {
        return Ok(());
    }
    let headers = &parts.headers;
    match headers.get(header::CONTENT_TYPE) {
        Some(value) if is_json(value) => Ok(()),
        None if !has_body(headers) && !from_browser(headers) => Ok(()),
        Some(_) | None => Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UNSUPPORTED_MEDIA_TYPE",
            "send JSON, with `Content-Type: application/json`",
        )),
    }
}

fn is_json(value: &HeaderValue) -> bool {
    let text = value.to_str().unwrap_or_default();
    let media_type = text.split_once(';').map_or(text, |(media_type, _)| media_type);
    media_type.trim().eq_ignore_ascii_case("application/json")
}

fn has_body(headers: &HeaderMap) -> bool {
    let length = headers.get(header::CONTENT_LENGTH);
    headers.contains_key(header::TRANSFER_ENCODING) || length.is_some_and(|length| length != "0")
}

fn from_browser(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site")
}

/// The caller's own id for the request if it is harmless, otherwise a new one.
fn request_id(core: &Core, headers: &HeaderMap) -> HeaderValue {
    let harmless = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(byte);
    let taken_over = headers.get(REQUEST_ID).filter(|value| {
        let bytes = value.as_bytes();
        (1..=REQUEST_ID_BYTES_MAX).contains(&bytes.len()) && bytes.iter().all(harmless)
    });
    taken_over.cloned().unwrap_or_else(|| {
        let id = core.ids.next("req");
        HeaderValue::from_str(&id).expect("an id of ours is letters, digits and an underscore")
    })
}
