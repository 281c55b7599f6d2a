//! The handlers, one per route: read the request, ask the engine, write the answer.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use piton::{BatchItem, Code, ErrorKind, Instance, InstanceHandle, LogLevel, Span, WorkflowHandle};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use crate::api::Core;
use crate::body;
use crate::call::{Call, Target};
use crate::error::{ApiError, ErrorBody};
use crate::query::Query;
use crate::shapes::{
    Batch, Details, Done, EventAnswer, HistoryAnswer, InstanceAnswer, InstanceItem, InstancePage,
    ListedInstance, TickAnswer, WorkflowItem, Workflows,
};

type Answer<T> = Result<Json<T>, ApiError>;
type RawWorkflow = WorkflowHandle<Box<RawValue>, Box<RawValue>>;
type RawInstance = InstanceHandle<Box<RawValue>>;

/// The header that makes a repeat harmless; also what an issue about it is said to be at.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Runs that a tick advances when nobody says how many, and at most.
const TICK_INSTANCES_DEFAULT: usize = 100;
const TICK_INSTANCES_MAX: usize = 256;

/// The part of a path that names a workflow.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "the schema of what the guard reads")]
struct WorkflowPath {
    /// The name of the workflow.
    #[param(pattern = "^[a-zA-Z0-9_][a-zA-Z0-9_-]*$", max_length = 64, example = "order")]
    workflow: String,
}

/// The parts of a path that name an instance.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "the schema of what the guard reads")]
struct InstancePath {
    /// The name of the workflow.
    #[param(pattern = "^[a-zA-Z0-9_][a-zA-Z0-9_-]*$", max_length = 64, example = "order")]
    workflow: String,
    /// The id of the instance.
    #[param(pattern = "^[a-zA-Z0-9_][a-zA-Z0-9_-]*$", max_length = 100, example = "order-7")]
    instance: String,
}

impl Core {
    fn workflow(&self, target: &Target) -> Result<RawWorkflow, ApiError> {
        Ok(self.engine.workflow(&target.workflow)?)
    }

    async fn instance(&self, target: &Target) -> Result<RawInstance, ApiError> {
        Ok(self.workflow(target)?.get(&target.instance).await?)
    }

    async fn read(&self, call: &mut Call) -> Result<Bytes, ApiError> {
        let body = std::mem::take(&mut call.body);
        body::read(call.headers(), body, self.engine.limits().payload_bytes_max).await
    }
}

/// The workflows that instances can be created of.
#[utoipa::path(
    get, path = "", tag = "workflows",
    responses((status = 200, body = Workflows), (status = "default", body = ErrorBody))
)]
pub(crate) async fn list_workflows(core: Arc<Core>, call: Call) -> Answer<Workflows> {
    call.query(&[])?;
    let names = core.engine.workflows().into_iter();
    Ok(Json(Workflows { workflows: names.map(|name| WorkflowItem { name }).collect() }))
}

/// The instances of a workflow, newest first, a page at a time.
#[utoipa::path(
    get, path = "/{workflow}/instances", tag = "instances",
    params(
        WorkflowPath,
        ("status" = Option<crate::shapes::Status>, Query, description = "Only instances with this status."),
        ("createdAfter" = Option<String>, Query, description = "Only instances created at this time or later: ISO-8601, or milliseconds since 1970."),
        ("createdBefore" = Option<String>, Query, description = "Only instances created before this time."),
        ("pageSize" = Option<u32>, Query, minimum = 1, maximum = 100, description = "How many instances a page has. Default 25."),
        ("cursor" = Option<String>, Query, description = "Where the last page ended. Good only with the same filters."),
    ),
    responses((status = 200, body = InstancePage), (status = "default", body = ErrorBody))
)]
pub(crate) async fn list_instances(core: Arc<Core>, call: Call) -> Answer<InstancePage> {
    let workflow = core.workflow(&call.target)?;
    let query = call.query(&["status", "createdAfter", "createdBefore", "pageSize", "cursor"])?;
    let mut list = workflow.list();
    if let Some(status) = query.parsed("status")? {
        list = list.status(status);
    }
    if let Some(time) = query.time("createdAfter")? {
        list = list.created_after(time);
    }
    if let Some(time) = query.time("createdBefore")? {
        list = list.created_before(time);
    }
    if let Some(size) = query.page_size(core.engine.limits())? {
        list = list.page_size(size);
    }
    if let Some(cursor) = query.cursor("cursor")? {
        list = list.after(cursor);
    }
    let page = list.await?;
    Ok(Json(InstancePage {
        instances: page.items.into_iter().map(ListedInstance::from).collect(),
        cursor: page.cursor.map(|cursor| cursor.to_string()),
        has_next_page: page.has_next_page,
    }))
}

/// What an instance is created with.
#[derive(Deserialize, ToSchema)]
#[schema(example = json!({"id": "order-7", "params": {"item": "rope", "cents": 4200}}))]
pub(crate) struct NewInstance<'a> {
    /// Its id, unique within the workflow: up to 100 letters, digits, `_` and `-`, not starting with `-`. One is made
    /// if there is none.
    #[schema(pattern = "^[a-zA-Z0-9_][a-zA-Z0-9_-]*$", min_length = 1, max_length = 100)]
    id: Option<String>,
    /// Its params: what the workflow takes. `null` if there are none.
    #[serde(borrow)]
    #[schema(value_type = serde_json::Value)]
    params: Option<&'a RawValue>,
}

fn document(raw: Option<&RawValue>) -> Box<RawValue> {
    raw.unwrap_or(RawValue::NULL).to_owned()
}

fn idempotency_key(core: &Core, headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let mut keys = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(key) = keys.next() else { return Ok(None) };
    let Ok(key) = key.to_str() else {
        return Err(ApiError::invalid(IDEMPOTENCY_KEY, "has characters outside of ASCII"));
    };
    if keys.next().is_some() {
        return Err(ApiError::invalid(IDEMPOTENCY_KEY, "given more than once"));
    }
    let checked = core.engine.limits().check_idempotency_key(key);
    checked.map_err(|refusal| ApiError::at(refusal.into(), IDEMPOTENCY_KEY))?;
    Ok(Some(key.to_owned()))
}

/// Creates an instance. When the answer is there it is durable.
#[utoipa::path(
    post, path = "/{workflow}/instances", tag = "instances",
    params(
        WorkflowPath,
        ("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 256, description = "A repeat with the same key, id and params is answered like the first."),
    ),
    request_body = NewInstance,
    responses((status = 200, body = InstanceItem), (status = "default", body = ErrorBody))
)]
pub(crate) async fn create_instance(core: Arc<Core>, mut call: Call) -> Answer<InstanceItem> {
    let workflow = core.workflow(&call.target)?;
    let key = idempotency_key(&core, call.headers())?;
    let bytes = core.read(&mut call).await?;
    let new: NewInstance<'_> = body::parse(&bytes)?;
    let mut create = workflow.create(document(new.params));
    if let Some(id) = new.id {
        create = create.id(id);
    }
    let refused = |error| about_create(error, new.params.is_some());
    let Some(key) = key else {
        let created = create.await.map_err(refused)?;
        return Ok(Json(InstanceItem::fresh(created.id())));
    };
    let created = create.idempotency_key(key).await.map_err(refused)?;
    let details = standing(|| created.describe()).await;
    Ok(Json(InstanceItem { id: created.id().to_owned(), details }))
}

/// How an instance stands after something about it was stored.
///
/// That is done whatever the store says now, and an error would tell the caller otherwise. So a read that fails is
/// tried once more, and then the answer is what is known: when it was stored the instance had not ended.
async fn standing<F>(describe: impl Fn() -> F) -> Details
where
    F: Future<Output = piton::Result<Instance>>,
{
    for _ in 0..2 {
        match describe().await {
            Ok(described) => return InstanceItem::of(described).details,
            Err(error) => tracing::warn!(?error, "cannot read how an instance stands"),
        }
    }
    Details::fresh()
}

fn about_create(error: piton::Error, has_params: bool) -> ApiError {
    match error.code() {
        Some(code) if code == Code::InvalidInstanceId.as_str() => ApiError::at(error, "id"),
        Some(_) | None => missing_params(error, has_params).inside("params"),
    }
}

/// Params beside `params` instead of in it are the usual mistake, and what they do not decode as does not help then.
fn missing_params(error: piton::Error, has_params: bool) -> ApiError {
    let without = !has_params && error.code() == Some(Code::WorkflowParamsInvalid.as_str());
    let error = ApiError::from(error);
    if without {
        return error
            .hint("there are no `params`: send {\"params\": …} with what the workflow takes");
    }
    error
}

/// Instances to be created together.
#[derive(Deserialize, ToSchema)]
#[schema(example = json!({"instances": [{"id": "order-7", "params": {"item": "rope", "cents": 4200}}]}))]
pub(crate) struct NewInstances<'a> {
    /// Up to 100.
    #[serde(borrow)]
    #[schema(max_items = 100)]
    instances: Vec<NewBatchInstance<'a>>,
}

/// One of them.
#[derive(Deserialize, ToSchema)]
pub(crate) struct NewBatchInstance<'a> {
    /// Its id.
    #[schema(pattern = "^[a-zA-Z0-9_][a-zA-Z0-9_-]*$", min_length = 1, max_length = 100)]
    id: String,
    /// Its params.
    #[serde(borrow)]
    #[schema(value_type = serde_json::Value)]
    params: Option<&'a RawValue>,
}

/// Creates up to 100 instances in one transaction. Ids that exist are skipped and left out of the answer.
#[utoipa::path(
    post, path = "/{workflow}/instances/batch", tag = "instances",
    params(WorkflowPath),
    request_body = NewInstances,
    responses((status = 200, body = Batch), (status = "default", body = ErrorBody))
)]
pub(crate) async fn create_batch(core: Arc<Core>, mut call: Call) -> Result<Response, ApiError> {
    if call.target.instance != "batch" {
        return Ok(instance_method_not_allowed(core, call).await);
    }
    let workflow = core.workflow(&call.target)?;
    let bytes = core.read(&mut call).await?;
    let NewInstances { instances } = body::parse(&bytes)?;
    let max = core.engine.limits().batch_max;
    if instances.len() > max {
        let message = format!("more than {max} instances; split the batch");
        return Err(ApiError::invalid("instances", message));
    }
    let has_params = instances.iter().any(|new| new.params.is_some());
    let batch = instances.into_iter().map(|new| BatchItem::new(new.id, document(new.params)));
    let created = workflow.create_batch(batch).await;
    let created = created.map_err(|error| missing_params(error, has_params).inside("instances"))?;
    let instances = created.iter().map(|created| InstanceItem::fresh(created.id())).collect();
    Ok(Json(Batch { instances }).into_response())
}

/// All about an instance, with what it is doing or waiting for.
#[utoipa::path(
    get, path = "/{workflow}/instances/{instance}", tag = "instances",
    params(InstancePath),
    responses((status = 200, body = InstanceAnswer), (status = "default", body = ErrorBody))
)]
pub(crate) async fn get_instance(core: Arc<Core>, call: Call) -> Answer<InstanceAnswer> {
    call.query(&[])?;
    let instance = core.instance(&call.target).await?.describe().await?;
    Ok(Json(InstanceAnswer::from(instance)))
}

/// How an instance ended, or how it stands when the wait is over.
#[utoipa::path(
    get, path = "/{workflow}/instances/{instance}/result", tag = "instances",
    params(
        InstancePath,
        ("wait" = Option<String>, Query, example = "5s", description = "How long to wait for the end: up to 60 seconds. Default: not at all."),
    ),
    responses((status = 200, body = InstanceItem), (status = "default", body = ErrorBody))
)]
pub(crate) async fn get_result(core: Arc<Core>, call: Call) -> Answer<InstanceItem> {
    let wait = call.query(&["wait"])?.span("wait", core.wait_max)?;
    let instance = core.instance(&call.target).await?;
    if wait > Span::ZERO {
        tokio::select! {
            ended = instance.result() => stop_on_failure(ended.err())?,
            () = core.runtime.sleep(wait) => {}
        }
    }
    Ok(Json(InstanceItem::of(instance.describe().await?)))
}

/// How the instance ended is no failure; that nobody can tell is one.
fn stop_on_failure(ended: Option<piton::Error>) -> Result<(), ApiError> {
    match ended {
        Some(error) if matches!(error.kind(), ErrorKind::Store | ErrorKind::ShuttingDown) => {
            Err(error.into())
        }
        Some(_) | None => Ok(()),
    }
}

/// The steps, events and log lines of a run, a page of each at a time.
#[utoipa::path(
    get, path = "/{workflow}/instances/{instance}/history", tag = "instances",
    params(
        InstancePath,
        ("runNumber" = Option<u32>, Query, description = "The run. Default: the current one."),
        ("pageSize" = Option<u32>, Query, minimum = 1, maximum = 100, description = "How many of each a page has. Default 25."),
        ("order" = Option<Order>, Query, description = "Oldest or newest first. Default `asc`."),
        ("stepsCursor" = Option<String>, Query, description = "Where the last page of steps ended."),
        ("eventsCursor" = Option<String>, Query, description = "Where the last page of events ended."),
        ("includeLogs" = Option<bool>, Query, description = "With log lines. Default `false`."),
        ("logsCursor" = Option<String>, Query, description = "Where the last page of log lines ended."),
        ("logLevel" = Option<Level>, Query, description = "Only log lines of this level."),
        ("logCategory" = Option<String>, Query, max_length = 64, description = "Only log lines of this category."),
    ),
    responses((status = 200, body = HistoryAnswer), (status = "default", body = ErrorBody))
)]
pub(crate) async fn get_history(core: Arc<Core>, call: Call) -> Answer<HistoryAnswer> {
    let query = call.query(HISTORY_QUERY)?;
    let instance = core.instance(&call.target).await?;
    let mut history = instance.history();
    if let Some(run) = run_number(&query)? {
        history = history.run_number(run);
    }
    if let Some(size) = query.page_size(core.engine.limits())? {
        history = history.page_size(size);
    }
    match query.get("order")? {
        None | Some("asc") => {}
        Some("desc") => history = history.newest_first(),
        Some(other) => {
            return Err(ApiError::invalid("order", format!("{other:?} is neither asc nor desc")));
        }
    }
    if let Some(cursor) = query.cursor("stepsCursor")? {
        history = history.steps_after(cursor);
    }
    if let Some(cursor) = query.cursor("eventsCursor")? {
        history = history.events_after(cursor);
    }
    let (level, cursor) = (query.parsed::<LogLevel>("logLevel")?, query.cursor("logsCursor")?);
    let category = log_category(&query, core.engine.limits().log_category_bytes_max)?;
    if query.flag("includeLogs")? {
        history = history.with_logs();
        history = level.into_iter().fold(history, piton::HistoryQuery::log_level);
        history = category.into_iter().fold(history, piton::HistoryQuery::log_category);
        history = cursor.into_iter().fold(history, piton::HistoryQuery::logs_after);
    }
    Ok(Json(HistoryAnswer::from(history.await?)))
}

/// What a history can be asked for.
const HISTORY_QUERY: &[&str] = &[
    "runNumber",
    "pageSize",
    "order",
    "stepsCursor",
    "eventsCursor",
    "includeLogs",
    "logsCursor",
    "logLevel",
    "logCategory",
];

/// The order of a history.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "the schema of a word that is read by hand")]
pub(crate) enum Order {
    Asc,
    Desc,
}

/// The level of a log line.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "the schema of a word that the engine's own enum reads")]
pub(crate) enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

fn run_number(query: &Query) -> Result<Option<u32>, ApiError> {
    let Some(text) = query.get("runNumber")? else {
        return Ok(None);
    };
    let run = text.parse().map_err(|_| {
        let code = Code::InvalidRunNumber.as_str();
        ApiError::new(StatusCode::BAD_REQUEST, code, format!("{text:?} is not the number of a run"))
    })?;
    Ok(Some(run))
}

fn log_category(query: &Query, bytes_max: usize) -> Result<Option<&str>, ApiError> {
    match query.get("logCategory")? {
        Some(category) if category.is_empty() || category.len() > bytes_max => {
            let message = format!("a category has 1 to {bytes_max} bytes");
            Err(ApiError::invalid("logCategory", message))
        }
        category => Ok(category),
    }
}

/// An event on its way to an instance.
#[derive(Deserialize, ToSchema)]
#[schema(example = json!({"type": "approved", "payload": {"by": "Ada"}}))]
pub(crate) struct NewEvent<'a> {
    /// Its type: what the workflow waits for.
    #[serde(rename = "type")]
    #[schema(pattern = "^[a-zA-Z0-9_][a-zA-Z0-9_-]*$", min_length = 1, max_length = 100)]
    event_type: String,
    /// What it carries. `null` if there is nothing.
    #[serde(borrow)]
    #[schema(value_type = serde_json::Value)]
    payload: Option<&'a RawValue>,
}

/// Sends an event. It is kept until the workflow waits for its type.
#[utoipa::path(
    post, path = "/{workflow}/instances/{instance}/events", tag = "instances",
    params(
        InstancePath,
        ("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 256, description = "A repeat with the same key is answered like the first and stored once."),
    ),
    request_body = NewEvent,
    responses((status = 200, body = EventAnswer), (status = "default", body = ErrorBody))
)]
pub(crate) async fn send_event(core: Arc<Core>, mut call: Call) -> Answer<EventAnswer> {
    let key = idempotency_key(&core, call.headers())?;
    let bytes = core.read(&mut call).await?;
    let NewEvent { event_type, payload } = body::parse(&bytes)?;
    let instance = core.instance(&call.target).await?;
    let mut send = instance.send_event(&event_type, payload.unwrap_or(RawValue::NULL));
    if let Some(key) = key {
        send = send.idempotency_key(key);
    }
    send.await?;
    Ok(Json(EventAnswer { status: standing(|| instance.describe()).await }))
}

/// Stops an instance: at once if it waits, otherwise when its running steps have ended.
#[utoipa::path(
    post, path = "/{workflow}/instances/{instance}/pause", tag = "instances",
    params(InstancePath),
    responses((status = 200, body = Done), (status = "default", body = ErrorBody))
)]
pub(crate) async fn pause(core: Arc<Core>, call: Call) -> Answer<Done> {
    core.instance(&call.target).await?.pause().await?;
    Ok(Json(Done { ok: true }))
}

/// Lets a paused instance go on. Does nothing to others.
#[utoipa::path(
    post, path = "/{workflow}/instances/{instance}/resume", tag = "instances",
    params(InstancePath),
    responses((status = 200, body = Done), (status = "default", body = ErrorBody))
)]
pub(crate) async fn resume(core: Arc<Core>, call: Call) -> Answer<Done> {
    core.instance(&call.target).await?.resume().await?;
    Ok(Json(Done { ok: true }))
}

/// Ends an instance for good.
#[utoipa::path(
    post, path = "/{workflow}/instances/{instance}/terminate", tag = "instances",
    params(InstancePath),
    responses((status = 200, body = Done), (status = "default", body = ErrorBody))
)]
pub(crate) async fn terminate(core: Arc<Core>, call: Call) -> Answer<Done> {
    core.instance(&call.target).await?.terminate().await?;
    Ok(Json(Done { ok: true }))
}

/// Starts the next run with the same params, whatever the status. Old runs stay readable.
#[utoipa::path(
    post, path = "/{workflow}/instances/{instance}/restart", tag = "instances",
    params(InstancePath),
    responses((status = 200, body = Done), (status = "default", body = ErrorBody))
)]
pub(crate) async fn restart(core: Arc<Core>, call: Call) -> Answer<Done> {
    core.instance(&call.target).await?.restart().await?;
    Ok(Json(Done { ok: true }))
}

/// How much a tick may do.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({"maxInstances": 10}))]
pub(crate) struct TickOrder {
    /// How many runs to advance at most, and how many hooks of each namespace to process: 1 to 256, default 100.
    #[schema(minimum = 1, maximum = 256)]
    max_instances: Option<usize>,
    /// Accepted and not used: a run that was claimed is advanced until it rests.
    #[schema(minimum = 1)]
    max_steps: Option<u32>,
}

/// Advances due runs, processes due hooks, and answers when they rest. Switched off unless the host enables it.
#[utoipa::path(
    post, path = "/_runner/tick", tag = "runner",
    request_body = Option<TickOrder>,
    responses((status = 200, body = TickAnswer), (status = "default", body = ErrorBody))
)]
pub(crate) async fn tick(core: Arc<Core>, mut call: Call) -> Answer<TickAnswer> {
    if !core.tick_enabled {
        let message = "ticks are switched off on this server";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "RUNNER_TICK_DISABLED", message));
    }
    let bytes = core.read(&mut call).await?;
    let order: TickOrder = match &*bytes {
        [] => TickOrder::default(),
        bytes => body::parse::<Option<_>>(bytes)?.unwrap_or_default(),
    };
    order.check()?;
    let runs = order.max_instances.unwrap_or(TICK_INSTANCES_DEFAULT);
    let tick = one_tick(&core, runs).await?;
    let hooks = Some(tick.hooks).filter(|hooks| *hooks > 0);
    Ok(Json(TickAnswer { processed: tick.processed, hooks }))
}

/// Ticks unless another tick of this router is still at work.
///
/// A task of its own ends what was begun when the caller is gone or out of time, and keeps others out until then.
async fn one_tick(core: &Core, runs: usize) -> Result<piton::Tick, ApiError> {
    let turn = Arc::clone(&core.ticking).try_acquire_owned();
    let turn = turn.map_err(|_| ApiError::overloaded("another tick is at work; try again"))?;
    let (done, result) = tokio::sync::oneshot::channel();
    let engine = core.engine.clone();
    let ticking = async move {
        let ticked = engine.tick(runs).await;
        drop(turn);
        // Nobody listens if the request was given up.
        let _ = done.send(ticked);
    };
    core.runtime.spawn(Box::pin(ticking)).detach();
    let ticked = result.await.map_err(|_| ApiError::internal("a tick panicked"))?;
    Ok(ticked?)
}

impl TickOrder {
    fn check(&self) -> Result<(), ApiError> {
        if self.max_steps == Some(0) {
            return Err(ApiError::invalid("maxSteps", "not a number from 1"));
        }
        match self.max_instances {
            Some(runs) if !(1..=TICK_INSTANCES_MAX).contains(&runs) => {
                let message = format!("{runs} is not a number from 1 to {TICK_INSTANCES_MAX}");
                Err(ApiError::invalid("maxInstances", message))
            }
            Some(_) | None => Ok(()),
        }
    }
}

pub(crate) async fn route_not_found(_: Arc<Core>, _: Call) -> ApiError {
    nothing_here()
}

fn nothing_here() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "ROUTE_NOT_FOUND", "there is nothing at this path")
}

/// A fallback for the host's own router that answers in the same form as the API does: `ROUTE_NOT_FOUND`.
///
/// ```
/// let app: axum::Router = axum::Router::new().fallback(piton_http::not_found);
/// ```
pub async fn not_found() -> Response {
    nothing_here().into_response()
}

/// An instance can only be looked at, although its route has a `POST`: that is for the batch.
pub(crate) async fn instance_method_not_allowed(_: Arc<Core>, call: Call) -> Response {
    let allowed = if call.target.instance == "batch" { "GET,HEAD,POST" } else { "GET,HEAD" };
    let allow = (header::ALLOW, HeaderValue::from_static(allowed));
    ([allow], wrong_method()).into_response()
}

pub(crate) async fn method_not_allowed(_: Arc<Core>, _: Call) -> ApiError {
    wrong_method()
}

fn wrong_method() -> ApiError {
    let message = "the path exists, but not with this method";
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", message)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn what_was_stored_is_no_error_because_a_read_fails_afterwards() {
        let reads = Cell::new(0);
        let details = standing(|| {
            reads.set(reads.get() + 1);
            std::future::ready(Err(piton::Error::new("the store is gone")))
        });
        let details = serde_json::to_value(details.await).expect("JSON");
        assert_eq!((details, reads.get()), (serde_json::json!({"status": "active"}), 2));
    }
}
