//! The demo server as its users meet it: how it starts and stops, and what the playground takes and gives.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails where it should")]

mod alarm;
mod many;
mod support;

use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use piton::Engine;
use piton_demo::{Tools, register};
use piton_http::Api;
use piton_testing::postgres::ScratchDatabase;
use serde_json::{Value, json};
use tower::ServiceExt;

use support::{Demo, demo};

#[test]
fn it_refuses_an_address_that_others_can_reach_unless_it_has_a_token() {
    let directory = tempfile::tempdir().unwrap();
    let args = ["--listen", "0.0.0.0:0", "--database", "memory:"];
    for no_token in [None, Some(""), Some(" ")] {
        let output =
            demo(directory.path(), &args).envs(no_token.map(|it| ("PITON_TOKEN", it))).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert!(said.contains("--token") && said.contains("--insecure-no-auth"), "{said}");
    }
}

#[test]
fn it_says_where_it_listens_answers_there_and_shuts_down_on_a_signal() {
    let directory = tempfile::tempdir().unwrap();
    serve_and_audit(directory.path(), "sqlite:demo.db");
    if let Some(database) = ScratchDatabase::new() {
        serve_and_audit(directory.path(), &database.url());
    }
}

/// Starts a server, asks it something, tells it to stop, and audits what it leaves.
fn serve_and_audit(directory: &Path, database: &str) {
    let mut server = Demo::start(directory, &["--database", database]);
    let curl = |line: &String| line.contains("curl");
    assert_eq!(server.printed.by_ref().map(Result::unwrap).filter(curl).take(3).count(), 3);
    assert_eq!(server.ask("/healthz", None).0, 200);
    server.signal("-TERM");
    server.wait();

    let audited = demo(directory, &["audit", "--database", database]).output().unwrap();
    let found = String::from_utf8_lossy(&audited.stdout);
    assert!(
        audited.status.success() && found.ends_with("29 questions, nothing found\n"),
        "{found}"
    );
}

#[test]
fn a_database_that_cannot_be_used_is_named_with_advice_and_without_its_password() {
    let directory = tempfile::tempdir().unwrap();
    for (database, advice) in [
        ("postgres://ada:secret@127.0.0.1:1/nowhere", "check the URL"),
        ("postgres:// /secret", "postgres://user:password@host/database"),
        ("mysql://ada:secret@localhost/nowhere", "is no kind of database"),
    ] {
        let output = demo(directory.path(), &["--database", database]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert!(said.contains(advice) && !said.contains("secret"), "{said}");
    }
}

#[test]
fn what_cannot_be_used_is_told_with_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().map(|address| (taken, address.to_string())).unwrap();
    for (args, told) in [
        (["--lease", "soon"], "--lease"),
        (["--poll-interval", "now and then"], "--poll-interval"),
        (["--database", "nowhere"], "cannot start on this database"),
        (["--listen", &taken.1], "--listen 127.0.0.1:0"),
    ] {
        let output = demo(directory.path(), &args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(told), "{args:?}: {said}");
    }
}

#[test]
fn a_second_start_prints_an_id_that_nobody_has_used() {
    let directory = tempfile::tempdir().unwrap();
    for expected in ["order-1", "order-2"] {
        let mut demo = Demo::start(directory.path(), &["--database", "sqlite:demo.db"]);
        let mut lines = demo.printed.by_ref().map(Result::unwrap);
        let body = lines.find(|line| line.contains("\"params\"")).unwrap();
        let body = body.trim().trim_start_matches("-d '").trim_end_matches('\'');
        let body = serde_json::from_str::<Value>(body).unwrap();
        assert_eq!(body["id"], expected);
        assert_eq!(demo.ask("/api/workflows/order/instances", Some(&body)).0, 200);
    }
}

#[test]
fn a_second_server_on_one_file_refuses_to_start_and_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let args = ["--database", "sqlite:demo.db"];
    let first = Demo::start(directory.path(), &args);
    let second = demo(directory.path(), &["--listen", "127.0.0.1:0", args[0], args[1]]).output();
    let second = second.unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success());
    assert!(said.contains("demo.db") && said.contains("is in use by process"), "{said}");
    assert_eq!(first.ask("/healthz", None).0, 200, "the first one is none the worse for it");
    // Not even a crash leaves a lock behind.
    first.signal("-KILL");
    drop(first);
    assert_eq!(Demo::start(directory.path(), &args).ask("/healthz", None).0, 200);
}

#[test]
fn both_dispatchers_bring_a_run_to_its_end_after_a_crash_too() {
    for dispatcher in ["polling", "alarm"] {
        let directory = tempfile::tempdir().unwrap();
        let args = ["--database", "sqlite:demo.db", "--dispatcher", dispatcher];
        let demo = Demo::start(directory.path(), &args);
        let nap = json!({"op": "sleep", "name": "nap", "duration": "20 ms"});
        let wait = json!({"op": "wait", "name": "go", "type": "go"});
        let end = json!({"op": "do", "name": "end"});
        let program = json!({"id": "p", "params": {"ops": [nap, wait, end]}});
        let instances = "/api/workflows/playground/instances";
        assert_eq!(demo.ask(instances, Some(&program)).0, 200);
        // Dropped: killed wherever it is.
        drop(demo);
        let demo = Demo::start(directory.path(), &args);
        let event = json!({"type": "go", "payload": 1});
        assert_eq!(demo.ask(&format!("{instances}/p/events"), Some(&event)).0, 200);
        let (_, answer) = demo.ask(&format!("{instances}/p/result?wait=60s"), None);
        assert_eq!(answer["details"]["status"], "complete", "{dispatcher}: {answer}");
    }
}

/// Creates a playground instance in memory and, if it was taken, waits for its end.
async fn play(params: Value) -> (StatusCode, Value) {
    let tools = Arc::new(Tools::new(None).unwrap());
    let engine = register(Engine::builder("memory:"), &tools).start().await.unwrap();
    let app = Api::new(engine).open_to_everyone().router();
    let body = json!({"id": "p", "params": params}).to_string();
    let create = Request::post("/playground/instances")
        .header("host", "localhost")
        .header("content-type", "application/json")
        .body(Body::from(body))
        .unwrap();
    let created = ask(&app, create).await;
    if created.0 != StatusCode::OK {
        return created;
    }
    let result =
        Request::get("/playground/instances/p/result?wait=60s").header("host", "localhost");
    let (status, mut answer) = ask(&app, result.body(Body::empty()).unwrap()).await;
    (status, answer["details"].take())
}

async fn ask(app: &axum::Router, request: Request<Body>) -> (StatusCode, Value) {
    let response = app.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap())
}

#[tokio::test]
async fn what_the_playground_does_not_know_is_refused_with_its_place() {
    for (op, place) in [
        (json!({"op": "fly"}), "params.ops[0].op"),
        (json!({"op": "do", "name": "a", "colour": 1}), "params.ops[0].colour"),
        (
            json!({"op": "all", "ops": [{"op": "do", "name": "a", "x": 1}]}),
            "params.ops[0].ops[0].x",
        ),
        (json!({"op": "do", "name": "a", "duration": 1}), "params.ops[0]"),
        (json!({"op": "sleep", "name": "a"}), "params.ops[0]"),
        (json!({"op": "sleep", "name": "a", "duration": "soon"}), "params.ops[0].duration"),
    ] {
        let (status, error) = play(json!({"ops": [op]})).await;
        assert_eq!((status.as_u16(), &error["issues"][0]["path"]), (400, &json!(place)), "{error}");
    }
}

#[tokio::test]
async fn the_ops_of_the_playground_give_what_they_promise() {
    let once = json!({"retries": {"limit": "Infinity", "delay": 1, "backoff": "constant"}});
    let program = json!({"ops": [
        {"op": "do", "name": "named"},
        {"op": "do", "name": "valued", "value": null},
        {"op": "do", "name": "flaky", "value": 1, "fail": 1, "config": once},
        {"op": "sleep", "name": "nap", "duration": 1},
        {"op": "sleepUntil", "name": "till", "at": 0},
        {"op": "catch", "ops": [{"op": "throw", "message": "no", "name": "MyError"}]},
        {"op": "catch", "ops": [{"op": "do", "name": "fine"}]},
        {"op": "all", "ops": [{"op": "do", "name": "x"}, {"op": "do", "name": "y"}]},
        {"op": "race", "ops": [{"op": "sleep", "name": "long", "duration": "1 hour"}, {"op": "do", "name": "z"}]},
        {"op": "log", "message": "hi"},
    ]});
    let caught = json!({"caught": {"name": "MyError", "message": "no"}});
    let expected =
        json!(["named", null, 1, "slept", "slept", caught, ["fine"], ["x", "y"], "z", null]);
    let (_, details) = play(program).await;
    assert_eq!(details, json!({"status": "complete", "output": expected}));
    let (_, details) = play(json!({"ops": [{"op": "panic", "message": "boom"}]})).await;
    assert_eq!(
        (&details["status"], &details["error"]["name"]),
        (&json!("errored"), &json!("Panic"))
    );
}
