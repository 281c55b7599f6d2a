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

#[tokio::test]
async fn every_route_that_reads_has_the_query_parameters_of_the_document_and_no_others() {
    let server = server().await;
    let document = server.get("/openapi.json").await.ok();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let named =
            path.replace("{workflow}", "wait").replace("{instance}", "a").replace("{hook}", "h");
        for (method, operation) in methods.as_object().unwrap() {
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let known: Vec<_> = parameters
                .filter(|parameter| parameter["in"] == "query")
                .map(|parameter| parameter["name"].as_str().unwrap())
                .collect();
            if method != "get" && known.is_empty() {
                continue;
            }
            let method: Method = method.to_uppercase().parse().unwrap();
            let misspelt = format!("{named}?colour=red");
            let refused = server.send_to(method.clone(), &misspelt, &[JSON], "{}").await;
            assert_eq!(refused.refused(400, "VALIDATION_ERROR").issue_path(), "colour", "{path}");
            let told = refused.body["message"].as_str().unwrap();
            let named = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            assert!(told.ends_with(&format!(": it has {named}")), "{method} {path}: {told}");
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
