//! The routes of hooks.

use axum::http::StatusCode;
use piton::Retries;
use piton::hooks::HookStatus;
use serde_json::json;

use crate::support::{Server, Setup, server_with};

async fn failed(server: &Server) -> String {
    let sent = server.engine.hooks().send("flaky", &json!({"order": 7})).retry(Retries::none());
    let id = sent.await.unwrap();
    while server.engine.hooks().get(&id).await.unwrap().status != HookStatus::Failed {
        tokio::task::yield_now().await;
    }
    id
}

#[tokio::test]
async fn a_failed_hook_is_listed_shown_and_retried() {
    let server = server_with(piton_http::Api::open_to_everyone).await;
    assert_eq!(server.get("/_hooks").await.ok(), json!({"hooks": [], "hasNextPage": false}));
    let id = failed(&server).await;
    let mut shown = server.get(&format!("/_hooks/{id}")).await.ok();
    for time in ["createdAt", "updatedAt", "lastAttemptAt"] {
        assert!(shown[time].as_str().unwrap().ends_with('Z'), "{shown}");
        shown[time] = json!("TIME");
    }
    let expected = json!({
        "id": id, "namespace": "app", "name": "flaky", "status": "failed", "attempts": 1,
        "maxAttempts": 1, "payload": {"order": 7}, "createdAt": "TIME", "updatedAt": "TIME",
        "lastAttemptAt": "TIME", "dueAt": null, "error": {"name": "Error", "message": "as asked"},
    });
    assert_eq!(shown, expected);
    for query in ["", "?status=failed", "?namespace=app&name=flaky", "?pageSize=1"] {
        let page = server.get(&format!("/_hooks{query}")).await.ok();
        assert_eq!(page["hooks"][0]["id"], json!(id), "{query}");
    }
    let none = server.get("/_hooks?status=completed").await.ok();
    assert_eq!(none["hooks"], json!([]));
    let retried = server.post(&format!("/_hooks/{id}/retry"), json!({})).await.ok();
    assert_eq!((&retried["status"], &retried["attempts"]), (&json!("pending"), &json!(0)));
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_a_code() {
    let server = server_with(piton_http::Api::open_to_everyone).await;
    server.get("/_hooks/hook_none").await.refused(404, "HOOK_NOT_FOUND");
    server.post("/_hooks/hook_none/retry", json!({})).await.refused(404, "HOOK_NOT_FOUND");
    for (path, there_are) in [
        ("/_hooks?status=stuck", "pending, processing, completed, failed"),
        ("/nap/instances?status=stuck", "active, waiting, paused, complete, errored, terminated"),
    ] {
        let refused = server.get(path).await;
        let message = refused.refused(400, "VALIDATION_ERROR").body["message"].as_str().unwrap();
        assert!(message.ends_with(there_are), "{message}");
    }
    server.get("/_hooks?namespace=a%20b").await.refused(400, "INVALID_HOOK_NAME");
    server.get("/_hooks?cursor=x").await.refused(400, "INVALID_CURSOR");
    let done = server.engine.hooks().send("done", &()).await.unwrap();
    while server.engine.hooks().get(&done).await.unwrap().status != HookStatus::Completed {
        tokio::task::yield_now().await;
    }
    let retry = server.post(&format!("/_hooks/{done}/retry"), json!({})).await;
    retry.refused(409, "HOOK_NOT_RETRIABLE");
}

#[tokio::test]
async fn hooks_are_for_those_who_may_manage() {
    use piton_http::{BearerTokens, Permission};
    let server = server_with(|api| {
        let tokens = BearerTokens::new().token("reader", [Permission::Read]).unwrap();
        api.authorize(tokens.token("operator", [Permission::Manage]).unwrap())
    })
    .await;
    let get = async |token: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", bearer.as_str())];
        server.send(axum::http::Method::GET, "/_hooks", &headers, "").await
    };
    get("reader").await.refused(403, "FORBIDDEN");
    get("operator").await.ok();
}

#[tokio::test]
async fn a_policy_sees_the_namespace_and_nothing_of_another_one_is_shown() {
    use piton_http::{Decision, policy};
    let server = server_with(|api| {
        api.authorize(policy(|request| async move {
            Ok(match request.hook_namespace.as_deref() {
                Some("mail") => Decision::Allow,
                Some(_) | None => Decision::Deny("only mail".to_owned()),
            })
        }))
    })
    .await;
    let id = failed(&server).await;
    server.get("/_hooks").await.refused(403, "FORBIDDEN");
    server.get("/_hooks?namespace=app").await.refused(403, "FORBIDDEN");
    server.get("/_hooks?namespace=mail&namespace=app").await.refused(403, "FORBIDDEN");
    server.get(&format!("/_hooks/{id}")).await.refused(403, "FORBIDDEN");
    assert_eq!(server.get("/_hooks?namespace=mail").await.ok()["hooks"], json!([]));
    let of_app = format!("/_hooks/{id}?namespace=mail");
    server.get(&of_app).await.refused(404, "HOOK_NOT_FOUND");
    let retry = server.post(&format!("/_hooks/{id}/retry?namespace=mail"), json!({})).await;
    retry.refused(404, "HOOK_NOT_FOUND");
}

#[tokio::test]
async fn ticks_at_once_run_every_hook_once() {
    let api = Box::new(|api: piton_http::Api| api.open_to_everyone().enable_tick());
    let server = Setup { api, runner: false, ..Setup::default() }.start().await;
    let mut ids = Vec::new();
    for _ in 0..40 {
        ids.push(server.engine.hooks().send("done", &()).await.unwrap());
    }
    let tick = || async { server.post("/_runner/tick", json!({"maxInstances": 7})).await };
    let mut processed = 0;
    while server.engine.next_wake_at().await.unwrap().is_some() {
        let (a, b, c, d) = tokio::join!(tick(), tick(), tick(), tick());
        for reply in [a, b, c, d] {
            // One at a time: who comes in between is told to come back.
            if reply.status != StatusCode::OK {
                reply.refused(503, "OVERLOADED");
                continue;
            }
            let hooks = reply.ok()["hooks"].as_u64().unwrap_or(0);
            assert!(hooks <= 7, "a tick takes as many hooks as runs: {hooks}");
            processed += hooks;
        }
    }
    assert_eq!(processed, 40);
    for id in ids {
        let hook = server.engine.hooks().get(&id).await.unwrap();
        assert_eq!((hook.status, hook.attempts), (HookStatus::Completed, 1));
    }
}
