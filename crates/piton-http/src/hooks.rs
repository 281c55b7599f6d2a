//! The handlers of hooks: list, look, retry.

use std::sync::Arc;

use axum::Json;
use axum::http::StatusCode;
use piton::hooks::{HookRecord, HookStatus};

use crate::api::Core;
use crate::call::Call;
use crate::error::{ApiError, ErrorBody};
use crate::shapes::{HookItem, HookPage};

type Answer<T> = Result<Json<T>, ApiError>;

/// The hooks of all namespaces, newest first, a page at a time.
#[utoipa::path(
    get, path = "/_hooks", tag = "hooks",
    params(
        ("namespace" = Option<String>, Query, max_length = 100, description = "Only hooks of this namespace."),
        ("name" = Option<String>, Query, max_length = 100, description = "Only hooks of this name."),
        ("status" = Option<crate::shapes::HookStanding>, Query, description = "Only hooks with this status."),
        ("pageSize" = Option<u32>, Query, minimum = 1, maximum = 100, description = "How many hooks a page has. Default 25."),
        ("cursor" = Option<String>, Query, description = "Where the last page ended. Good only with the same filters."),
    ),
    responses((status = 200, body = HookPage), (status = "default", body = ErrorBody))
)]
pub(crate) async fn list_hooks(core: Arc<Core>, call: Call) -> Answer<HookPage> {
    let query = call.query(&["namespace", "name", "status", "pageSize", "cursor"])?;
    let hooks = core.engine.hooks();
    let mut list = match query.get("namespace")? {
        Some(namespace) => hooks.namespace(namespace)?.list(),
        None => hooks.list().all_namespaces(),
    };
    if let Some(name) = query.get("name")? {
        list = list.name(name);
    }
    if let Some(status) = query.parsed::<HookStatus>("status")? {
        list = list.status(status);
    }
    if let Some(size) = query.page_size(core.engine.limits())? {
        list = list.page_size(size);
    }
    if let Some(cursor) = query.cursor("cursor")? {
        list = list.after(cursor);
    }
    let page = list.await?;
    Ok(Json(HookPage {
        hooks: page.items.into_iter().map(HookItem::of).collect(),
        cursor: page.cursor.map(|cursor| cursor.to_string()),
        has_next_page: page.has_next_page,
    }))
}

/// All about one hook.
#[utoipa::path(
    get, path = "/_hooks/{hook}", tag = "hooks",
    params(
        ("hook" = String, Path, example = "hook_01J9ZCZ3Q0T5V8W3X7Y2B4N6M8", description = "The id of the hook."),
        ("namespace" = Option<String>, Query, max_length = 100, description = "Only if it is of this namespace."),
    ),
    responses((status = 200, body = HookItem), (status = "default", body = ErrorBody))
)]
pub(crate) async fn get_hook(core: Arc<Core>, call: Call) -> Answer<HookItem> {
    Ok(Json(HookItem::of(hook_of(&core, call).await?)))
}

/// Makes a hook due now: a failed one starts anew with all its attempts, a pending one need not wait any longer.
#[utoipa::path(
    post, path = "/_hooks/{hook}/retry", tag = "hooks",
    params(
        ("hook" = String, Path, example = "hook_01J9ZCZ3Q0T5V8W3X7Y2B4N6M8", description = "The id of the hook."),
        ("namespace" = Option<String>, Query, max_length = 100, description = "Only if it is of this namespace."),
    ),
    responses((status = 200, body = HookItem), (status = "default", body = ErrorBody))
)]
pub(crate) async fn retry_hook(core: Arc<Core>, call: Call) -> Answer<HookItem> {
    let hook = hook_of(&core, call).await?;
    Ok(Json(HookItem::of(core.engine.hooks().retry(&hook.id).await?)))
}

/// The hook in the path. One of another namespace than the caller asks for is not there: policies rely on it.
async fn hook_of(core: &Core, call: Call) -> Result<HookRecord, ApiError> {
    let (query, id) = (call.query(&["namespace"])?, call.target.hook);
    let hook = core.engine.hooks().get(&id).await?;
    match query.get("namespace")? {
        Some(namespace) if hook.namespace.as_str() != namespace => {
            let message = format!("there is no hook {id:?} in this namespace");
            Err(ApiError::new(StatusCode::NOT_FOUND, "HOOK_NOT_FOUND", message))
        }
        Some(_) | None => Ok(hook),
    }
}
