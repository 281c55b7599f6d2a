//! Ten thousand rows, page by page, while more are being added: nothing is lost and nothing is seen twice.

use std::collections::BTreeSet;

use futures_util::{StreamExt, stream};
use piton::BatchItem;
use serde_json::{Value, json};

use crate::support::{Server, Setup};

const ROWS: usize = 10_000;

async fn on_sqlite(directory: &tempfile::TempDir) -> Server {
    let database = format!("sqlite:{}", directory.path().join("a.db").display());
    Setup { database, runner: false, ..Setup::default() }.start().await
}

/// Walks all pages; `add` is called between any two of them.
async fn walk(
    server: &Server,
    path: &str,
    names: [&str; 3],
    add: impl AsyncFn(usize),
) -> Vec<Value> {
    let [rows, cursor, has_next_page] = names;
    let mut seen = Vec::new();
    let mut next = String::new();
    for page in 0.. {
        let answer = server.get(&format!("{path}{next}")).await.ok();
        let items = answer[rows].as_array().unwrap();
        assert!(items.len() <= 100);
        seen.extend(items.iter().cloned());
        if answer[has_next_page] != json!(true) {
            break;
        }
        next = format!("&{cursor}={}", answer[cursor].as_str().unwrap());
        add(page).await;
    }
    seen
}

#[track_caller]
fn assert_once_each(seen: &[Value], field: &str, expected: impl Iterator<Item = String>) {
    let names: Vec<&str> = seen.iter().map(|row| row[field].as_str().unwrap()).collect();
    let distinct: BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(distinct.len(), names.len(), "something was seen twice");
    for name in expected {
        assert!(distinct.contains(name.as_str()), "{name} was lost");
    }
}

#[tokio::test]
async fn pages_of_instances_lose_and_repeat_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let server = on_sqlite(&directory).await;
    let workflow = server.engine.workflow::<Value, Value>("nap").unwrap();
    let create = async |prefix: &str, ids: std::ops::Range<usize>| {
        let batch = ids.map(|n| BatchItem::new(format!("{prefix}-{n}"), json!(null)));
        workflow.create_batch(batch).await.unwrap();
    };
    for start in (0..ROWS).step_by(100) {
        create("old", start..start + 100).await;
    }
    let names = ["instances", "cursor", "hasNextPage"];
    let add = async |page| create("new", page * 10..page * 10 + 10).await;
    let old = || (0..ROWS).map(|n| format!("old-{n}"));
    let seen = walk(&server, "/nap/instances?pageSize=100", names, add).await;
    assert_once_each(&seen, "id", old());
    let path = "/nap/instances?pageSize=100&status=active&createdAfter=2000-01-01";
    let seen = walk(&server, path, names, async |page| create("newer", page..page + 1).await).await;
    assert_once_each(&seen, "id", old());
}

#[tokio::test]
async fn pages_of_events_lose_and_repeat_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let server = on_sqlite(&directory).await;
    server.create("nap", "a", json!(null)).await;
    let instance = server.engine.workflow::<Value, Value>("nap").unwrap().get("a").await.unwrap();
    let send = async |prefix: &str, numbers: std::ops::Range<usize>| {
        let sends =
            numbers.map(|n| instance.send_event("e", &format!("{prefix}-{n}")).into_future());
        stream::iter(sends).buffer_unordered(256).for_each(async |sent| sent.unwrap()).await;
    };
    send("old", 0..ROWS).await;
    for order in ["asc", "desc"] {
        let path = format!("/nap/instances/a/history?pageSize=100&order={order}");
        let names = ["events", "eventsCursor", "eventsHasNextPage"];
        let prefix = format!("new-{order}");
        let seen =
            walk(&server, &path, names, async |page| send(&prefix, page..page + 1).await).await;
        assert_once_each(&seen, "payload", (0..ROWS).map(|n| format!("old-{n}")));
    }
}

#[tokio::test]
async fn pages_of_logs_lose_and_repeat_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let server = on_sqlite(&directory).await;
    server.create("talk", "a", json!(ROWS)).await;
    // The lines are written while the pages are read: one tick is the whole run.
    let engine = server.engine.clone();
    let names = ["logs", "logsCursor", "logsHasNextPage"];
    let path = "/talk/instances/a/history?pageSize=100&includeLogs=true&logCategory=talk";
    let mut seen = Vec::new();
    let talking = async { assert_eq!(engine.tick(1).await.unwrap().processed, 1) };
    let following = async {
        let mut next = String::new();
        while seen.len() < ROWS {
            let page = server.get(&format!("{path}{next}")).await.ok();
            seen.extend(page["logs"].as_array().unwrap().iter().cloned());
            if let Some(cursor) = page["logsCursor"].as_str() {
                next = format!("&logsCursor={cursor}");
            }
        }
    };
    tokio::join!(talking, following);
    let expected: Vec<String> = (0..ROWS).map(|n| format!("line {n}")).collect();
    let followed: Vec<&str> = seen.iter().map(|line| line["message"].as_str().unwrap()).collect();
    assert_eq!(followed, expected, "a follower sees every line once, in order");
    let seen = walk(&server, &format!("{path}&order=desc"), names, async |_| {}).await;
    assert_once_each(&seen, "message", expected.into_iter());
    let path = "/talk/instances/a/history?pageSize=7";
    let seen =
        walk(&server, path, ["steps", "stepsCursor", "stepsHasNextPage"], async |_| {}).await;
    assert_once_each(&seen, "name", (0..ROWS / 100).map(|n| format!("say {n}")));
}

#[tokio::test]
async fn a_cursor_outlives_a_restart_and_is_worth_nothing_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    let server = on_sqlite(&directory).await;
    for id in ["a", "b"] {
        server.create("nap", id, json!(null)).await;
    }
    let page = server.get("/nap/instances?pageSize=1").await.ok();
    let next = format!("/nap/instances?pageSize=1&cursor={}", page["cursor"].as_str().unwrap());
    server.engine.shutdown("1 second").await.unwrap();
    drop(server);
    let rest = on_sqlite(&directory).await.get(&next).await.ok();
    assert_eq!((&rest["instances"][0]["id"], &rest["hasNextPage"]), (&json!("a"), &json!(false)));

    let elsewhere = Setup::default().start().await;
    for id in ["a", "b"] {
        elsewhere.create("nap", id, json!(null)).await;
    }
    elsewhere.get(&next).await.refused(400, "INVALID_CURSOR");
}
