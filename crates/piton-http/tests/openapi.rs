//! The OpenAPI document: served, committed, and about the routes that there are.

use std::path::Path;

use axum::http::{Method, StatusCode};
use serde_json::Value;

use crate::support::{JSON, server};

const MOUNT: &str = "/api/workflows";

/// Where the document is committed. `UPDATE=1 cargo test -p piton-http openapi` writes it.
fn committed() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json")
}

#[test]
fn the_committed_document_is_current() {
    let mut current = serde_json::to_string_pretty(&piton_http::openapi(MOUNT)).unwrap();
    current.push('\n');
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(committed(), &current).unwrap();
    }
    let committed = std::fs::read_to_string(committed()).unwrap_or_default();
    assert!(
        committed == current,
        "docs/openapi.json is old: UPDATE=1 cargo test -p piton-http openapi"
    );
}

#[tokio::test]
async fn the_document_is_served_and_every_route_in_it_exists() {
    let server = server().await;
    let document = server.get("/openapi.json").await.ok();
    assert_eq!(document, serde_json::to_value(piton_http::openapi(MOUNT)).unwrap());
    assert_eq!(document["openapi"], "3.1.0");
    for (path, methods) in document["paths"].as_object().unwrap() {
        let named =
            path.replace("{workflow}", "wait").replace("{instance}", "a").replace("{hook}", "h");
        for method in methods.as_object().unwrap().keys() {
            let method: Method = method.to_uppercase().parse().unwrap();
            let reply = server.send_to(method.clone(), &named, &[JSON], "{}").await;
            assert_ne!(reply.status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
            assert_ne!(reply.body["code"], "ROUTE_NOT_FOUND", "{method} {path}");
        }
    }
}

#[test]
fn every_operation_has_a_summary_and_every_answer_a_schema() {
    let document = serde_json::to_value(piton_http::openapi(MOUNT)).unwrap();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            assert!(operation["summary"].is_string(), "{method} {path}");
            for (status, response) in operation["responses"].as_object().unwrap() {
                let schema: &Value = &response["content"]["application/json"]["schema"];
                assert!(schema.is_object(), "{method} {path} {status}");
            }
        }
    }
}
