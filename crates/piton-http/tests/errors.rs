//! Every row of the error table, and what an error never says.

use axum::http::Method;
use serde_json::{Value, json};

use crate::support::{JSON, Server, server};

#[tokio::test]
async fn what_is_not_there_is_404() {
    let server = server().await;
    server.get("/nobody/instances").await.refused(404, "WORKFLOW_NOT_FOUND");
    server.get("/no%20name/instances").await.refused(404, "WORKFLOW_NOT_FOUND");
    server.post("/nobody/instances", json!({})).await.refused(404, "WORKFLOW_NOT_FOUND");
    server.get("/echo/instances/a").await.refused(404, "INSTANCE_NOT_FOUND");
    server.get("/echo/instances/a/result").await.refused(404, "INSTANCE_NOT_FOUND");
    server.get("/echo/instances/a/history").await.refused(404, "INSTANCE_NOT_FOUND");
    for action in ["pause", "resume", "terminate", "restart"] {
        let path = format!("/echo/instances/a/{action}");
        server.post(&path, json!({})).await.refused(404, "INSTANCE_NOT_FOUND");
    }
    let event = server.post("/echo/instances/a/events", json!({"type": "go"})).await;
    event.refused(404, "INSTANCE_NOT_FOUND");
    for path in ["/echo", "/echo/instances/a/b", "/echo/instances/a/b/c", "/_runner"] {
        server.get(path).await.refused(404, "ROUTE_NOT_FOUND");
    }
}

#[tokio::test]
async fn a_wrong_method_is_405_and_says_which_are_right() {
    let server = server().await;
    let put = server.send(Method::PUT, "/echo/instances", &[JSON], "{}").await;
    put.refused(405, "METHOD_NOT_ALLOWED");
    assert_eq!(put.header("allow"), Some("GET,HEAD,POST"));
    let post = server.post("/echo/instances/a", json!({})).await;
    assert_eq!(post.refused(405, "METHOD_NOT_ALLOWED").header("allow"), Some("GET,HEAD"));
    server.get("/_runner/tick").await.refused(405, "METHOD_NOT_ALLOWED");
    server.post("", json!({})).await.refused(405, "METHOD_NOT_ALLOWED");
}

#[tokio::test]
async fn invalid_ids_and_types_are_400() {
    let server = server().await;
    let long = "x".repeat(101);
    for id in ["", "-a", "a b", "ä", &long] {
        let refused = server.post("/echo/instances", json!({"id": id})).await;
        assert_eq!(refused.refused(400, "INVALID_INSTANCE_ID").issue_path(), "id");
        let batch = json!({"instances": [{"id": "fine"}, {"id": id}]});
        let refused = server.post("/echo/instances/batch", batch).await;
        let refused = refused.refused(400, "INVALID_INSTANCE_ID");
        assert_eq!(refused.issue_path(), "instances[1].id");
    }
    server.get("/echo/instances/fine").await.refused(404, "INSTANCE_NOT_FOUND");
    server.get("/echo/instances/a%20b").await.refused(400, "INVALID_INSTANCE_ID");
    server.get("/echo/instances/%ff").await.refused(400, "VALIDATION_ERROR");
    server.create("nap", "a", json!(null)).await;
    for event_type in ["", "-a", "a b", &long] {
        let refused = server.post("/nap/instances/a/events", json!({"type": event_type})).await;
        refused.refused(400, "INVALID_EVENT_TYPE");
    }
}

#[tokio::test]
async fn invalid_cursors_are_400() {
    let server = server().await;
    for id in ["a", "b", "c"] {
        server.create("nap", id, json!(null)).await;
    }
    let page = server.get("/nap/instances?pageSize=1").await.ok();
    let cursor = page["cursor"].as_str().unwrap();
    server.get(&format!("/nap/instances?pageSize=2&cursor={cursor}")).await.ok();
    let mut tampered = cursor.to_owned();
    let last = if tampered.pop() == Some('0') { '1' } else { '0' };
    tampered.push(last);
    for path in [
        format!("/nap/instances?cursor={tampered}"),
        "/nap/instances?cursor=".to_owned(),
        "/nap/instances?cursor=%00".to_owned(),
        format!("/nap/instances?status=active&cursor={cursor}"),
        format!("/nap/instances?createdAfter=2000-01-01&cursor={cursor}"),
        format!("/wait/instances?cursor={cursor}"),
        format!("/nap/instances/a/history?stepsCursor={cursor}"),
        format!("/nap/instances/a/history?eventsCursor={cursor}"),
        format!("/nap/instances/a/history?includeLogs=true&logsCursor={cursor}"),
    ] {
        server.get(&path).await.refused(400, "INVALID_CURSOR");
    }
}

#[tokio::test]
async fn invalid_run_numbers_are_400() {
    let server = server().await;
    server.create("nap", "a", json!(null)).await;
    for run in ["1", "-1", "x", "", "4294967296"] {
        let path = format!("/nap/instances/a/history?runNumber={run}");
        server.get(&path).await.refused(400, "INVALID_RUN_NUMBER");
    }
}

#[tokio::test]
async fn invalid_queries_are_400_and_name_the_parameter() {
    let server = server().await;
    server.create("nap", "a", json!(null)).await;
    for (path, parameter) in [
        ("/nap/instances?status=Active", "status"),
        ("/nap/instances?status=", "status"),
        ("/nap/instances?status=active&status=paused", "status"),
        ("/nap/instances?pageSize=0", "pageSize"),
        ("/nap/instances?pageSize=101", "pageSize"),
        ("/nap/instances?pageSize=ten", "pageSize"),
        ("/nap/instances?pageSize=-1", "pageSize"),
        ("/nap/instances?createdAfter=soon", "createdAfter"),
        ("/nap/instances?createdBefore=2026-02-30", "createdBefore"),
        ("/nap/instances/a/history?order=up", "order"),
        ("/nap/instances/a/history?includeLogs=1", "includeLogs"),
        ("/nap/instances/a/history?logLevel=loud", "logLevel"),
        ("/nap/instances/a/history?logCategory=", "logCategory"),
        ("/nap/instances/a/history?pageSize=1000", "pageSize"),
        ("/nap/instances/a/result?wait=soon", "wait"),
        ("/nap/instances/a/result?wait=61s", "wait"),
        ("/nap/instances/a/result?wait=-1s", "wait"),
    ] {
        let refused = server.get(path).await;
        assert_eq!(refused.refused(400, "VALIDATION_ERROR").issue_path(), parameter, "{path}");
    }
    let misspelt = server.get("/nap/instances?pageSize=1&limt=5").await;
    assert_eq!(misspelt.refused(400, "VALIDATION_ERROR").issue_path(), "limt");
    assert_eq!(
        misspelt.body["message"],
        "limt: not a query parameter of this route: it has status, createdAfter, createdBefore, pageSize, cursor"
    );
}

#[tokio::test]
async fn invalid_bodies_are_400_and_name_the_place() {
    let server = server().await;
    server.create("nap", "a", json!(null)).await;
    let deep = format!("{{\"params\":{}{}}}", "[".repeat(200), "]".repeat(200));
    for (path, body, place) in [
        ("/echo/instances", "", ""),
        ("/echo/instances", "{", ""),
        ("/echo/instances", "{} {}", ""),
        ("/echo/instances", "[]", ""),
        ("/echo/instances", "null", ""),
        ("/echo/instances", r#"{"id":7}"#, "id"),
        ("/echo/instances", r#"{"id":"a","id":"b"}"#, ""),
        ("/echo/instances", r#"{"params":"\ud800"}"#, ""),
        ("/echo/instances", r#"{"params":1e999}"#, ""),
        ("/echo/instances", &deep, ""),
        ("/echo/instances/batch", "{}", ""),
        ("/echo/instances/batch", r#"{"instances":{}}"#, "instances"),
        ("/echo/instances/batch", r#"{"instances":[{"params":1}]}"#, "instances[0]"),
        ("/nap/instances/a/events", "{}", ""),
        ("/nap/instances/a/events", r#"{"type":null}"#, "type"),
    ] {
        let refused = server.send(Method::POST, path, &[JSON], body.to_owned()).await;
        assert_eq!(refused.refused(400, "VALIDATION_ERROR").issue_path(), place, "{path} {body}");
    }
    let batch: Vec<_> = (0..101).map(|n| json!({"id": format!("i{n}")})).collect();
    let refused = server.post("/echo/instances/batch", json!({"instances": batch})).await;
    assert_eq!(refused.refused(400, "VALIDATION_ERROR").issue_path(), "instances");
    assert_eq!(
        server.get("/echo/instances").await.ok()["instances"],
        json!([]),
        "nothing was created"
    );
}

#[tokio::test]
async fn an_invalid_idempotency_key_is_400() {
    let server = server().await;
    server.create("nap", "a", json!(null)).await;
    let long = "k".repeat(257);
    for key in ["", &long] {
        for path in ["/echo/instances", "/nap/instances/a/events"] {
            let headers = [JSON, ("idempotency-key", key)];
            let refused = server.send(Method::POST, path, &headers, r#"{"type":"go"}"#).await;
            assert_eq!(refused.refused(400, "VALIDATION_ERROR").issue_path(), "idempotency-key");
        }
    }
    let headers = [JSON, ("idempotency-key", "a"), ("idempotency-key", "b")];
    let refused = server.send(Method::POST, "/echo/instances", &headers, "{}").await;
    refused.refused(400, "VALIDATION_ERROR");
}

#[tokio::test]
async fn params_that_the_workflow_cannot_take_are_400_and_name_the_place() {
    let server = server().await;
    for (params, place) in [
        (json!({"item": "rope", "cents": "many"}), "params.cents"),
        (json!({"item": "rope"}), "params"),
        (json!(null), "params"),
    ] {
        let refused = server.post("/order/instances", json!({"params": params})).await;
        assert_eq!(refused.refused(400, "WORKFLOW_PARAMS_INVALID").issue_path(), place);
    }
    let batch = json!({"instances": [
        {"id": "a", "params": {"item": "rope", "cents": 1}},
        {"id": "b", "params": {"item": "rope", "cents": "many"}},
    ]});
    let refused = server.post("/order/instances/batch", batch).await;
    let refused = refused.refused(400, "WORKFLOW_PARAMS_INVALID");
    assert_eq!(refused.issue_path(), "instances[1].params.cents");
    let said = refused.body["message"].as_str().unwrap();
    assert!(said.starts_with("instance 1 of the batch: "), "{said}");
    server.get("/order/instances/a").await.refused(404, "INSTANCE_NOT_FOUND");
}

#[tokio::test]
async fn params_beside_the_envelope_are_told_where_they_belong() {
    let server = server().await;
    let bare = json!({"item": "rope", "cents": 4200});
    let alone = server.post("/order/instances", bare.clone()).await;
    let batch = json!({"instances": [{"id": "b", "item": "rope", "cents": 4200}]});
    let batch = server.post("/order/instances/batch", batch).await;
    for refused in [alone, batch] {
        refused.refused(400, "WORKFLOW_PARAMS_INVALID");
        let said = refused.body["message"].as_str().unwrap();
        assert!(said.contains("there are no `params`: send {\"params\": …}"), "{said}");
    }
    let wrong = server.post("/order/instances", json!({"params": {"item": "rope"}})).await;
    wrong.refused(400, "WORKFLOW_PARAMS_INVALID");
    let said = wrong.body["message"].as_str().unwrap();
    assert!(!said.contains("there are no"), "{said}");
}

#[tokio::test]
async fn what_breaks_inside_is_500_and_tells_nothing_but_where_to_look() {
    let server = server().await;
    let headers = [JSON, ("x-request-id", "trace-7")];
    let broken = server.send(Method::POST, "/explode/instances", &headers, "{}").await;
    let said = broken.refused(500, "INTERNAL").body.to_string();
    assert!(said.contains("trace-7") && !said.contains("nobody's business"), "{said}");
    assert_eq!(broken.header("x-request-id"), Some("trace-7"));
    server.create("echo", "next", json!(1)).await;
}

#[tokio::test]
async fn conflicts_are_409() {
    let server = server().await;
    server.create("wait", "a", json!(null)).await;
    let again = server.post("/wait/instances", json!({"id": "a"})).await;
    again.refused(409, "INSTANCE_ID_ALREADY_EXISTS");
    server.post("/wait/instances/a/terminate", json!({})).await.ok();
    for action in ["pause", "terminate"] {
        let refused = server.post(&format!("/wait/instances/a/{action}"), json!({})).await;
        refused.refused(409, "INSTANCE_TERMINAL");
    }
    let event = server.post("/wait/instances/a/events", json!({"type": "go"})).await;
    event.refused(409, "INSTANCE_TERMINAL");
}

#[tokio::test]
async fn a_mebibyte_passes_and_more_is_413() {
    let server = server().await;
    server.create("nap", "n", json!(null)).await;
    let mebibyte = "x".repeat(1024 * 1024 - 2);
    let more = format!("{mebibyte}x");
    server.create("echo", "fits", json!(mebibyte)).await;
    assert_eq!(server.ended("echo", "fits").await["output"], json!(mebibyte));
    let refused = server.post("/echo/instances", json!({"params": more})).await;
    refused.refused(413, "PAYLOAD_TOO_LARGE");
    let event = json!({"type": "go", "payload": more});
    server.post("/nap/instances/n/events", event).await.refused(413, "PAYLOAD_TOO_LARGE");
    let huge = json!({"params": "x".repeat(2 * 1024 * 1024)});
    server.post("/echo/instances", huge).await.refused(413, "PAYLOAD_TOO_LARGE");
}

#[tokio::test]
async fn ticks_are_off_by_default() {
    let server = server().await;
    server.post("/_runner/tick", json!({})).await.refused(403, "RUNNER_TICK_DISABLED");
}

#[tokio::test]
async fn a_store_that_is_gone_is_503_and_says_when_to_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("secret-name.db");
    let database = format!("sqlite:{}", path.display());
    let server = crate::support::Setup { database, ..Default::default() }.start().await;
    server.create("wait", "a", json!(null)).await;
    let vandal = piton::rusqlite::Connection::open(&path).unwrap();
    vandal.execute("ALTER TABLE piton_instance RENAME TO elsewhere", ()).unwrap();
    for reply in all_calls(&server, "a").await {
        reply.refused(503, "STORE_UNAVAILABLE");
        assert_eq!(reply.header("retry-after"), Some("1"));
        let said = reply.body.to_string();
        assert!(!said.contains("secret-name") && !said.contains("piton_instance"), "{said}");
    }
}

#[tokio::test]
async fn a_server_whose_engine_was_shut_down_is_503_and_says_so() {
    let server = server().await;
    server.create("wait", "a", json!(null)).await;
    server.engine.shutdown("1 second").await.unwrap();
    for reply in all_calls(&server, "a").await {
        reply.refused(503, "OVERLOADED");
        assert_eq!(reply.header("retry-after"), Some("1"));
        assert_eq!(reply.body["message"], "the server is shutting down; try again");
    }
}

/// One call of each kind that needs the store.
async fn all_calls(server: &Server, id: &str) -> Vec<crate::support::Reply> {
    let mut replies = vec![
        server.get("/wait/instances").await,
        server.post("/wait/instances", json!({})).await,
        server.post("/wait/instances/batch", json!({"instances": [{"id": "b"}]})).await,
    ];
    for path in ["", "/history", "/result"] {
        replies.push(server.get(&format!("/wait/instances/{id}{path}")).await);
    }
    for action in ["pause", "resume", "terminate", "restart"] {
        replies.push(server.post(&format!("/wait/instances/{id}/{action}"), json!({})).await);
    }
    let event: Value = json!({"type": "go"});
    replies.push(server.post(&format!("/wait/instances/{id}/events"), event).await);
    replies
}
