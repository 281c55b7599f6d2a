//! Every route: what it does and what its answer looks like, to the last field.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Method, Request};
use piton::runtime::Runtime;
use piton::{Engine, InstanceStatus, Span};
use piton_testing::VirtualRuntime;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::{JSON, Setup, server};

/// Replaces what differs from run to run: times, ids that were made, and cursors.
fn masked(mut value: Value) -> Value {
    mask(&mut value);
    value
}

fn mask(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Some(word) = mask_text(text) {
                *text = word.to_owned();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mask),
        Value::Object(fields) => fields.values_mut().for_each(mask),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn mask_text(text: &str) -> Option<&'static str> {
    let is_time =
        text.len() == 24 && text.ends_with('Z') && text.parse::<piton::Timestamp>().is_ok();
    let made = ["inst_", "evt_", "log_"].into_iter().find(|prefix| text.starts_with(prefix));
    match made {
        Some(prefix) => Some(prefix),
        None if is_time => Some("TIME"),
        None if text.parse::<piton::Cursor>().is_ok() => Some("CURSOR"),
        None => None,
    }
}

#[tokio::test]
async fn workflows_are_listed_by_name() {
    let server = server().await;
    let names = ["echo", "explode", "fail", "hang", "nap", "order", "talk", "wait"];
    let names = names.map(|name| json!({"name": name}));
    assert_eq!(server.get("").await.ok(), json!({"workflows": names}));
}

#[tokio::test]
async fn an_instance_is_created_with_an_id_or_gets_one() {
    let server = server().await;
    let created = server.post("/echo/instances", json!({"id": "a", "params": 7})).await.ok();
    assert_eq!(created, json!({"id": "a", "details": {"status": "active"}}));
    let created = server.post("/echo/instances", json!({})).await.ok();
    let id = created["id"].as_str().unwrap();
    assert_eq!(masked(created.clone()), json!({"id": "inst_", "details": {"status": "active"}}));
    assert_eq!(server.ended("echo", id).await, json!({"status": "complete", "output": null}));
}

#[tokio::test]
async fn unknown_fields_of_a_body_are_ignored_and_null_is_nothing() {
    let server = server().await;
    let body = json!({"id": "a", "params": [1], "colour": "red"});
    server.post("/echo/instances", body).await.ok();
    server.post("/echo/instances", json!({"id": null, "params": null})).await.ok();
}

#[tokio::test]
async fn params_and_outputs_come_back_as_they_were_written() {
    let server = server().await;
    let text = r#"{"id":"a","params":{"big":18446744073709551615,"pi":3.141592653589793,"nul":"\u0000","z":1,"a":[[]]}}"#;
    server.send(Method::POST, "/echo/instances", &[JSON], text).await.ok();
    let sent: Value = serde_json::from_str(text).unwrap();
    assert_eq!(server.ended("echo", "a").await["output"], sent["params"]);
    assert_eq!(server.get("/echo/instances/a").await.ok()["meta"]["params"], sent["params"]);
}

#[tokio::test]
async fn a_batch_leaves_out_what_exists_and_keeps_its_order() {
    let server = server().await;
    server.create("wait", "b", json!(null)).await;
    let batch =
        json!({"instances": [{"id": "c"}, {"id": "b"}, {"id": "a", "params": 1}, {"id": "a"}]});
    let created = server.post("/wait/instances/batch", batch).await.ok();
    let item = |id| json!({"id": id, "details": {"status": "active"}});
    assert_eq!(created, json!({"instances": [item("c"), item("a")]}));
    let nothing = server.post("/wait/instances/batch", json!({"instances": []})).await.ok();
    assert_eq!(nothing, json!({"instances": []}));
}

#[tokio::test]
async fn an_instance_called_batch_can_be_looked_at_and_steered() {
    let server = server().await;
    server.create("wait", "batch", json!(null)).await;
    assert_eq!(server.get("/wait/instances/batch").await.ok()["id"], "batch");
    server.post("/wait/instances/batch/terminate", json!({})).await.ok();
}

#[tokio::test]
async fn an_instance_that_waits_shows_what_for() {
    let server = server().await;
    server.create("wait", "a", json!({"x": 1})).await;
    server.waits("wait", "a").await;
    let expected = json!({
        "id": "a",
        "details": {"status": "waiting"},
        "meta": {
            "workflowName": "wait",
            "runNumber": 0,
            "params": {"x": 1},
            "pauseRequested": false,
            "createdAt": "TIME",
            "updatedAt": "TIME",
            "startedAt": "TIME",
            "completedAt": null,
            "currentStep": {
                "stepKey": "wait",
                "name": "wait",
                "type": "waitForEvent",
                "status": "waiting",
                "attempts": 0,
                "maxAttempts": 1,
                "timeoutMs": null,
                "nextRetryAt": null,
                "wakeAt": "TIME",
                "waitEventType": "go",
            },
        },
    });
    assert_eq!(masked(server.get("/wait/instances/a").await.ok()), expected);
}

#[tokio::test]
async fn an_instance_that_ended_has_an_output_or_an_error() {
    let server = server().await;
    server.create("echo", "a", json!("hi")).await;
    assert_eq!(server.ended("echo", "a").await, json!({"status": "complete", "output": "hi"}));
    server.create("fail", "b", json!(null)).await;
    let error = json!({"name": "Unlucky", "message": "no luck"});
    assert_eq!(server.ended("fail", "b").await, json!({"status": "errored", "error": error}));
    let failed = server.get("/fail/instances/b").await.ok();
    assert_eq!(failed["details"]["error"], error);
    assert_eq!(masked(failed["meta"]["completedAt"].clone()), json!("TIME"));
    assert_eq!(failed["meta"].get("currentStep"), None);
}

#[tokio::test]
async fn a_result_is_waited_for_and_otherwise_told_as_it_stands() {
    let server = server().await;
    server.create("wait", "a", json!(null)).await;
    server.waits("wait", "a").await;
    let stands = json!({"id": "a", "details": {"status": "waiting"}});
    assert_eq!(server.get("/wait/instances/a/result").await.ok(), stands);
    assert_eq!(server.get("/wait/instances/a/result?wait=1ms").await.ok(), stands);
    let (result, sent) = tokio::join!(
        server.get("/wait/instances/a/result?wait=60s"),
        server.post("/wait/instances/a/events", json!({"type": "go", "payload": 5})),
    );
    sent.ok();
    assert_eq!(result.ok(), json!({"id": "a", "details": {"status": "complete", "output": 5}}));
    server.create("wait", "b", json!(null)).await;
    let (result, terminated) = tokio::join!(
        server.get("/wait/instances/b/result?wait=60s"),
        server.post("/wait/instances/b/terminate", json!({})),
    );
    terminated.ok();
    assert_eq!(result.ok(), json!({"id": "b", "details": {"status": "terminated"}}));
}

#[tokio::test]
async fn an_event_is_answered_with_how_the_instance_stands() {
    let server = server().await;
    server.create("nap", "a", json!(null)).await;
    server.waits("nap", "a").await;
    let event = json!({"type": "hello", "payload": {"n": 1}});
    let answer = server.post("/nap/instances/a/events", event).await.ok();
    assert_eq!(answer, json!({"status": {"status": "waiting"}}));
    server.post("/nap/instances/a/events", json!({"type": "hello"})).await.ok();
    let events = server.get("/nap/instances/a/history").await.ok()["events"].take();
    let event = |payload| {
        json!({
            "id": "evt_", "runNumber": 0, "type": "hello", "payload": payload, "createdAt": "TIME",
            "deliveredAt": null, "consumedByStepKey": null,
        })
    };
    assert_eq!(masked(events), json!([event(json!({"n": 1})), event(json!(null))]));
}

#[tokio::test]
async fn an_instance_is_paused_resumed_restarted_and_terminated() {
    let server = server().await;
    server.create("wait", "a", json!(null)).await;
    server.waits("wait", "a").await;
    let status = async || server.get("/wait/instances/a").await.ok()["details"]["status"].take();
    for (action, expected) in
        [("pause", "paused"), ("pause", "paused"), ("terminate", "terminated")]
    {
        let done = server.post(&format!("/wait/instances/a/{action}"), json!({})).await.ok();
        assert_eq!(done, json!({"ok": true}));
        assert_eq!(status().await, expected);
    }
    server.post("/wait/instances/a/resume", json!({})).await.ok();
    assert_eq!(status().await, "terminated", "resume does nothing to what is not paused");
    server.post("/wait/instances/a/restart", json!({})).await.ok();
    server.waits("wait", "a").await;
    assert_eq!(server.get("/wait/instances/a").await.ok()["meta"]["runNumber"], 1);
    server.post("/wait/instances/a/pause", json!({})).await.ok();
    server.post("/wait/instances/a/resume", json!({})).await.ok();
    server.post("/wait/instances/a/events", json!({"type": "go", "payload": 1})).await.ok();
    assert_eq!(server.ended("wait", "a").await["status"], "complete");
}

#[tokio::test]
async fn a_call_without_a_body_needs_no_content_type() {
    let server = server().await;
    server.create("wait", "a", json!(null)).await;
    server.send(Method::POST, "/wait/instances/a/pause", &[], "").await.ok();
}

#[tokio::test]
async fn a_history_has_steps_events_and_logs() {
    let server = server().await;
    server.create("wait", "a", json!(null)).await;
    server.post("/wait/instances/a/events", json!({"type": "go", "payload": "x"})).await.ok();
    server.ended("wait", "a").await;
    let history = server.get("/wait/instances/a/history").await.ok();
    let mut step = history["steps"][0].clone();
    assert!(step["result"]["timestamp"].take().is_number());
    assert_eq!(
        masked(step),
        json!({
            "runNumber": 0, "stepKey": "wait", "name": "wait", "type": "waitForEvent", "status": "completed",
            "attempts": 0, "maxAttempts": 1, "timeoutMs": null, "nextRetryAt": null, "wakeAt": "TIME",
            "waitEventType": "go", "result": {"type": "go", "payload": "x", "timestamp": null},
            "createdAt": "TIME", "startedAt": "TIME", "updatedAt": "TIME",
        })
    );
    let fields: Vec<_> = history.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["events", "eventsHasNextPage", "runNumber", "steps", "stepsHasNextPage"]);
    assert_eq!(history["events"][0]["consumedByStepKey"], "wait");

    let history =
        server.get("/wait/instances/a/history?includeLogs=true&logCategory=system").await.ok();
    let logs = history["logs"].as_array().unwrap();
    let mut line = masked(logs[0].clone());
    assert!(line["message"].take().as_str().unwrap().starts_with("claimed by"));
    assert_eq!(
        line,
        json!({
            "id": "log_", "runNumber": 0, "stepKey": null, "attempt": null, "level": "debug", "category": "system",
            "message": null, "data": null, "isReplay": false, "createdAt": "TIME",
        })
    );
    assert_eq!(masked(history["logsCursor"].clone()), "CURSOR", "on the last page, too");
    assert_eq!(history["logsHasNextPage"], false);
}

#[tokio::test]
async fn a_failed_step_shows_its_error_and_attempts() {
    let server = server().await;
    server.create("fail", "a", json!(null)).await;
    server.ended("fail", "a").await;
    let step = server.get("/fail/instances/a/history").await.ok()["steps"][0].take();
    let expected = json!({"name": "Unlucky", "message": "no luck"});
    assert_eq!((&step["status"], &step["error"]), (&json!("errored"), &expected));
    assert_eq!((&step["attempts"], &step["maxAttempts"]), (&json!(1), &json!(6)));
    assert_eq!(step["result"], json!(null));
}

#[tokio::test]
async fn histories_of_old_runs_stay_readable_in_either_order() {
    let server = server().await;
    server.create("talk", "a", json!(300)).await;
    server.ended("talk", "a").await;
    server.post("/talk/instances/a/restart", json!({})).await.ok();
    server.ended("talk", "a").await;
    for run in [0, 1] {
        let path = format!("/talk/instances/a/history?runNumber={run}&order=desc&pageSize=2");
        let history = server.get(&path).await.ok();
        assert_eq!(history["runNumber"], run);
        let names: Vec<_> =
            history["steps"].as_array().unwrap().iter().map(|step| &step["name"]).collect();
        assert_eq!(names, ["say 2", "say 1"]);
        assert_eq!(history["stepsHasNextPage"], true);
        let cursor = history["stepsCursor"].as_str().unwrap();
        let rest = server.get(&format!("{path}&stepsCursor={cursor}")).await.ok();
        assert_eq!(rest["steps"][0]["name"], "say 0");
        assert_eq!((&rest["stepsHasNextPage"], rest.get("stepsCursor")), (&json!(false), None));
    }
}

#[tokio::test]
async fn logs_can_be_filtered_and_followed() {
    let server = server().await;
    server.create("talk", "a", json!(100)).await;
    server.ended("talk", "a").await;
    let path =
        "/talk/instances/a/history?includeLogs=true&logLevel=info&logCategory=talk&pageSize=60";
    let first = server.get(path).await.ok();
    assert_eq!(
        (first["logs"].as_array().unwrap().len(), &first["logsHasNextPage"]),
        (60, &json!(true))
    );
    let more = |page: &Value| format!("{path}&logsCursor={}", page["logsCursor"].as_str().unwrap());
    let second = server.get(&more(&first)).await.ok();
    assert_eq!(second["logs"][0]["message"], "line 60");
    assert_eq!(
        (second["logs"].as_array().unwrap().len(), &second["logsHasNextPage"]),
        (40, &json!(false))
    );
    let nothing_yet = server.get(&more(&second)).await.ok();
    assert_eq!(
        (&nothing_yet["logs"], &nothing_yet["logsCursor"]),
        (&json!([]), &second["logsCursor"])
    );
    let errors = server.get("/talk/instances/a/history?includeLogs=true&logLevel=error").await.ok();
    assert_eq!(errors["logs"], json!([]));
}

#[tokio::test]
async fn instances_are_listed_newest_first_and_by_status_and_time() {
    let server = server().await;
    assert_eq!(
        server.get("/wait/instances").await.ok(),
        json!({"instances": [], "hasNextPage": false})
    );
    for id in ["a", "b", "c"] {
        server.create("wait", id, json!(null)).await;
        server.waits("wait", id).await;
    }
    server.post("/wait/instances/b/terminate", json!({})).await.ok();
    let ids = async |query: &str| -> Vec<String> {
        let page = server.get(&format!("/wait/instances{query}")).await.ok();
        let items = page["instances"].as_array().unwrap().clone();
        items.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids("").await, ["c", "b", "a"]);
    assert_eq!(ids("?status=waiting").await, ["c", "a"]);
    assert_eq!(ids("?status=terminated&pageSize=1").await, ["b"]);
    for status in InstanceStatus::ALL {
        ids(&format!("?status={status}")).await;
    }
    assert_eq!(
        ids("?createdAfter=2000-01-01&createdBefore=9999-01-01T00:00:00Z").await,
        ["c", "b", "a"]
    );
    assert_eq!(ids("?createdBefore=2000-01-01T00:00:00%2B01:00").await, [""; 0]);
    assert_eq!(ids("?createdAfter=99999999999999").await, [""; 0]);
    let newest = server.get("/wait/instances/c").await.ok()["meta"]["createdAt"].clone();
    assert!(
        ids(&format!("?createdAfter={}", newest.as_str().unwrap())).await.contains(&"c".to_owned())
    );
    let page = server.get("/wait/instances?pageSize=2").await.ok();
    let item = |id, status| json!({"id": id, "details": {"status": status}, "createdAt": "TIME"});
    let expected = json!({
        "instances": [item("c", "waiting"), item("b", "terminated")], "cursor": "CURSOR", "hasNextPage": true,
    });
    assert_eq!(masked(page.clone()), expected);
    let cursor = page["cursor"].as_str().unwrap();
    assert_eq!(ids(&format!("?pageSize=2&cursor={cursor}")).await, ["a"]);
}

#[tokio::test]
async fn a_create_that_is_repeated_with_its_key_is_answered_like_the_first() {
    let server = server().await;
    let create = async |key: &str, body: Value| {
        let headers = [JSON, ("Idempotency-Key", key)];
        server.send(Method::POST, "/wait/instances", &headers, body.to_string()).await
    };
    let first = create("k1", json!({"params": 1})).await.ok();
    let again = create("k1", json!({"params": 1})).await.ok();
    assert_eq!(first["id"], again["id"]);
    assert_ne!(create("k2", json!({"params": 1})).await.ok()["id"], first["id"]);
    create("k1", json!({"params": 2})).await.refused(409, "INSTANCE_ID_ALREADY_EXISTS");
    let own = json!({"id": "mine", "params": 1});
    assert_eq!(create("k3", own.clone()).await.ok()["id"], "mine");
    assert_eq!(create("k3", own.clone()).await.ok()["id"], "mine");
    server.post("/wait/instances", own).await.refused(409, "INSTANCE_ID_ALREADY_EXISTS");
    let all = server.get("/wait/instances").await.ok();
    assert_eq!(all["instances"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn an_event_that_is_repeated_with_its_key_is_stored_once() {
    let server = server().await;
    server.create("nap", "a", json!(null)).await;
    for _ in 0..3 {
        let headers = [JSON, ("Idempotency-Key", "k")];
        let event = json!({"type": "hello"}).to_string();
        server.send(Method::POST, "/nap/instances/a/events", &headers, event).await.ok();
    }
    let history = server.get("/nap/instances/a/history").await.ok();
    assert_eq!(history["events"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_tick_advances_due_work_where_nothing_else_does() {
    let api = Box::new(|api: piton_http::Api| api.open_to_everyone().enable_tick());
    let server = Setup { api, runner: false, ..Setup::default() }.start().await;
    for id in ["a", "b", "c"] {
        server.create("echo", id, json!(id)).await;
    }
    let tick = server.post("/_runner/tick", json!({"maxInstances": 2, "maxSteps": 100})).await.ok();
    assert_eq!(tick, json!({"processed": 2}));
    let tick = server.send(Method::POST, "/_runner/tick", &[], "").await.ok();
    assert_eq!(tick, json!({"processed": 1}));
    assert_eq!(server.ended("echo", "c").await["output"], "c");
    for runs in [0, 257] {
        let refused = server.post("/_runner/tick", json!({"maxInstances": runs})).await;
        assert_eq!(refused.refused(400, "VALIDATION_ERROR").issue_path(), "maxInstances");
    }
}

#[tokio::test]
async fn health_and_readiness_are_told_without_a_policy() {
    let server = server().await;
    let health = server.send_to(Method::GET, "/healthz", &[], "").await;
    assert_eq!(health.ok(), json!({"status": "ok"}));
    let ready = server.send_to(Method::GET, "/readyz", &[], "").await;
    assert_eq!(ready.ok(), json!({"status": "ready"}));
}

#[tokio::test]
async fn readiness_is_looked_at_once_a_second() {
    let clock = VirtualRuntime::new(1);
    let runtime: Arc<dyn Runtime> = clock.clone();
    let engine = Engine::builder("memory:").no_runner().runtime(runtime).start().await.unwrap();
    let health = piton_http::health(engine.clone());
    let ready = async || {
        let request = Request::get("/readyz").body(Body::empty()).unwrap();
        health.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    assert_eq!(ready().await, 200);
    engine.shutdown("1 second").await.unwrap();
    clock.advance(Span::from_millis(999));
    assert_eq!(ready().await, 200);
    clock.advance(Span::from_millis(1));
    assert_eq!(ready().await, 503);
}

#[tokio::test]
async fn everything_works_on_sqlite_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let database = format!("sqlite:{}", directory.path().join("a.db").display());
    let server = Setup { database, ..Setup::default() }.start().await;
    server.create("wait", "a", json!({"x": [1]})).await;
    server
        .post("/wait/instances/a/events", json!({"type": "go", "payload": {"y": null}}))
        .await
        .ok();
    assert_eq!(
        server.ended("wait", "a").await,
        json!({"status": "complete", "output": {"y": null}})
    );
    let list = server.get("/wait/instances?status=complete&createdAfter=2000-01-01").await.ok();
    assert_eq!(list["instances"][0]["id"], "a");
    let history = server.get("/wait/instances/a/history?includeLogs=true").await.ok();
    assert_eq!(history["events"][0]["payload"], json!({"y": null}));
    server.engine.shutdown("1 second").await.unwrap();
}
