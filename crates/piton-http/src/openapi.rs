//! The OpenAPI document, made of the handlers and shapes themselves.

use axum::Json;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};

use crate::routes;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Piton",
        description = "Durable workflows: create instances, look at them, send them events, steer them. Paths are \
            relative to where the API is mounted, usually `/api/workflows`.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    servers((url = "/api/workflows", description = "where the demo server mounts it")),
    modifiers(&Bearer),
    security((), ("bearer" = [])),
    tags(
        (name = "workflows", description = "What can be created"),
        (name = "instances", description = "Executions of workflows"),
        (name = "runner", description = "Advancing due work from outside")
    ),
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
        routes::tick
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

/// The OpenAPI 3.1 document of the API.
pub fn openapi() -> utoipa::openapi::OpenApi {
    Document::openapi()
}

pub(crate) async fn serve() -> Json<utoipa::openapi::OpenApi> {
    Json(openapi())
}
