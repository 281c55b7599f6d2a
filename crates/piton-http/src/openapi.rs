//! The OpenAPI document, made of the handlers and shapes themselves.

use std::sync::Arc;

use axum::Json;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Content, Ref, ResponseBuilder};
use utoipa::{Modify, OpenApi, ToSchema};

use crate::api::Core;
use crate::call::Call;
use crate::error::ErrorBody;
use crate::{hooks, routes};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Piton",
        description = "Durable workflows: create instances, look at them, send them events, steer them.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    modifiers(&Bearer, &TimedOut),
    security((), ("bearer" = [])),
    tags(
        (name = "workflows", description = "What can be created"),
        (name = "instances", description = "Executions of workflows"),
        (name = "runner", description = "Advancing due work from outside"),
        (name = "hooks", description = "Durable callbacks, and what became of them")
    ),
    components(schemas(routes::Order, routes::Level)),
    paths(
        routes::list_workflows,
        routes::list_instances,
        routes::create_instance,
        routes::create_batch,
        routes::get_instance,
        routes::get_result,
        routes::get_history,
        routes::send_event,
        routes::pause,
        routes::resume,
        routes::terminate,
        routes::restart,
        routes::tick,
        hooks::list_hooks,
        hooks::get_hook,
        hooks::retry_hook
    )
)]
struct Document;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("bearer", SecurityScheme::Http(scheme));
    }
}

/// What every operation may answer, and what no caller may take for a refusal.
struct TimedOut;

impl Modify for TimedOut {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let schema = Ref::from_schema_name(ErrorBody::name());
        let response = ResponseBuilder::new()
            .description(
                "`TIMED_OUT`: it took too long, and whether it was carried out is not known.",
            )
            .content("application/json", Content::new(Some(schema)))
            .build();
        for item in document.paths.paths.values_mut() {
            for operation in [&mut item.get, &mut item.post].into_iter().flatten() {
                let responses = &mut operation.responses.responses;
                responses.insert("504".to_owned(), response.clone().into());
            }
        }
    }
}

/// The OpenAPI 3.1 document of an API that is mounted at `mount`, such as `/api/workflows`.
///
/// ```
/// let document = piton_http::openapi("/api/workflows");
/// assert!(document.paths.paths.contains_key("/api/workflows/{workflow}/instances"));
/// ```
pub fn openapi(mount: &str) -> utoipa::openapi::OpenApi {
    let routes = Document::openapi();
    let mut document = routes.clone();
    document.paths = utoipa::openapi::Paths::new();
    document.nest(mount, routes)
}

pub(crate) async fn serve(_: Arc<Core>, call: Call) -> Json<utoipa::openapi::OpenApi> {
    // Whatever comes before the name of this route is where the host has mounted the API.
    let mount = call.path().strip_suffix("/openapi.json").unwrap_or_default();
    Json(openapi(mount))
}
