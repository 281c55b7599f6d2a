//! The safe defaults, each as someone would try to get around it.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use piton_http::{Api, ServerLimits};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::support::{JSON, Server, Setup, say, server, server_with};

#[tokio::test]
async fn a_request_under_a_foreign_host_name_is_refused() {
    let server = server().await;
    for host in
        ["evil.example", "evil.example:7420", "localhost.evil.example", "127.0.0.1.evil.example"]
    {
        server.send(Method::GET, "", &[("host", host)], "").await.refused(403, "FORBIDDEN");
    }
    for host in ["localhost", "LOCALHOST:7420", "127.0.0.1", "[::1]:7420", "192.168.1.7"] {
        server.send(Method::GET, "", &[("host", host)], "").await.ok();
    }
    let heard = say(&mut server.connect().await, b"GET /api/workflows HTTP/1.0\r\n\r\n").await;
    assert!(heard.starts_with("HTTP/1.0 403"), "{heard}");
}

#[tokio::test]
async fn a_host_name_can_be_allowed() {
    let server = server_with(|api| api.open_to_everyone().allow_hosts(["piton.example"])).await;
    server.send(Method::GET, "", &[("host", "piton.example:443")], "").await.ok();
    server.send(Method::GET, "", &[("host", "other.example")], "").await.refused(403, "FORBIDDEN");
    let server = server_with(|api| api.open_to_everyone().allow_any_host()).await;
    server.send(Method::GET, "", &[("host", "other.example")], "").await.ok();
}

#[tokio::test]
async fn what_changes_something_must_be_json() {
    let server = server().await;
    server.create("wait", "a", json!(null)).await;
    for content_type in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/jsonx",
        "",
    ] {
        for path in ["/wait/instances", "/wait/instances/a/pause", "/wait/instances/a/events"] {
            let headers = [("content-type", content_type)];
            let refused = server.send(Method::POST, path, &headers, r#"{"type":"go"}"#).await;
            refused.refused(415, "UNSUPPORTED_MEDIA_TYPE");
        }
    }
    let refused = server.send(Method::POST, "/wait/instances", &[], "{}").await;
    refused.refused(415, "UNSUPPORTED_MEDIA_TYPE");
    let headers = [("content-type", "Application/JSON; charset=utf-8")];
    server.send(Method::POST, "/wait/instances", &headers, "{}").await.ok();
}

#[tokio::test]
async fn a_page_of_somebody_elses_can_change_nothing() {
    let server = server().await;
    server.create("wait", "a", json!(null)).await;
    for header in
        [("origin", "https://evil.example"), ("origin", "null"), ("sec-fetch-site", "cross-site")]
    {
        let refused = server.send(Method::POST, "/wait/instances/a/terminate", &[header], "").await;
        refused.refused(415, "UNSUPPORTED_MEDIA_TYPE");
    }
    // With JSON a browser asks first, and gets no permission.
    let headers = [("origin", "https://evil.example"), ("access-control-request-method", "POST")];
    let preflight = server.send(Method::OPTIONS, "/wait/instances", &headers, "").await;
    preflight.refused(405, "METHOD_NOT_ALLOWED");
    let read = server.send(Method::GET, "", &headers, "").await;
    for reply in [preflight, read] {
        assert!(reply.headers.keys().all(|name| !name.as_str().starts_with("access-control")));
    }
}

#[tokio::test]
async fn a_body_is_cut_off_at_its_limit_even_if_it_does_not_say_how_long_it_is() {
    let server = server().await;
    let mut stream = server.connect().await;
    let head = "POST /api/workflows/echo/instances HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
        transfer-encoding: chunked\r\nconnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    for _ in 0..18 {
        if stream.write_all(chunk.as_bytes()).await.is_err() {
            break;
        }
    }
    let heard = say(&mut stream, b"").await;
    assert!(heard.starts_with("HTTP/1.1 413") && heard.contains("PAYLOAD_TOO_LARGE"), "{heard}");
}

/// Starts a request and never ends it.
async fn half_a_request(server: &Server) -> tokio::net::TcpStream {
    let mut stream = server.connect().await;
    let head = "POST /api/workflows/echo/instances HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
        connection: close\r\ncontent-length: 100\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn an_overloaded_server_says_so_at_once_and_stays_healthy() {
    let server = server_with(|api| api.open_to_everyone().in_flight_max(1)).await;
    let held = half_a_request(&server).await;
    let refused = loop {
        let reply = server.get("").await;
        if reply.status != StatusCode::OK {
            break reply;
        }
    };
    assert_eq!(refused.refused(503, "OVERLOADED").header("retry-after"), Some("1"));
    server.send_to(Method::GET, "/healthz", &[], "").await.ok();
    server.send_to(Method::GET, "/readyz", &[], "").await.ok();
    drop(held);
    while server.get("").await.status != StatusCode::OK {}
}

#[tokio::test]
async fn bounds_may_be_as_large_as_a_number_gets() {
    let api = Box::new(|api: Api| {
        api.open_to_everyone().in_flight_max(usize::MAX).waiting_max(usize::MAX)
    });
    let mut limits = ServerLimits::default();
    limits.connections_max = usize::MAX;
    let server = Setup { api, limits, ..Setup::default() }.start().await;
    server.get("").await.ok();
}

#[tokio::test]
async fn a_tick_keeps_others_out_until_it_ends_even_if_its_caller_is_gone() {
    let api = Box::new(|api: Api| {
        api.open_to_everyone().enable_tick().request_time_max("50 ms").unwrap()
    });
    let server = Setup { api, runner: false, ..Setup::default() }.start().await;
    let hang = server.engine.workflow::<serde_json::Value, serde_json::Value>("hang").unwrap();
    hang.create(json!(null)).await.unwrap();
    let refused = loop {
        let reply = server.post("/_runner/tick", json!({})).await;
        if reply.status != StatusCode::GATEWAY_TIMEOUT {
            break reply;
        }
        reply.refused(504, "TIMED_OUT");
    };
    assert_eq!(refused.refused(503, "OVERLOADED").header("retry-after"), Some("1"));
}

#[tokio::test]
async fn those_who_wait_for_results_have_a_bound_of_their_own() {
    let server = server_with(|api| api.open_to_everyone().waiting_max(1)).await;
    server.create("wait", "a", json!(null)).await;
    let path = "/wait/instances/a/result?wait=60s";
    let first = server.get(path);
    let second = async {
        let refused = loop {
            let reply = server.get("/wait/instances/a/result").await;
            if reply.status != StatusCode::OK {
                break reply;
            }
        };
        refused.refused(503, "OVERLOADED");
        server.post("/wait/instances/a/events", json!({"type": "go", "payload": 1})).await.ok();
    };
    let (first, ()) = tokio::join!(first, second);
    assert_eq!(first.ok()["details"]["output"], 1);
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_ended() {
    let server = server_with(|api| api.open_to_everyone().request_time_max("50 ms").unwrap()).await;
    let mut stream = half_a_request(&server).await;
    stream.write_all(b" ").await.unwrap();
    let mut heard = vec![0; 12];
    tokio::io::AsyncReadExt::read_exact(&mut stream, &mut heard).await.unwrap();
    assert_eq!(heard, b"HTTP/1.1 504");
    let heard = say(&mut stream, b"").await;
    assert!(heard.contains("TIMED_OUT") && heard.contains("not known"), "{heard}");
    assert!(!heard.contains("retry-after"), "{heard}");
}

#[tokio::test]
async fn a_caller_that_does_not_say_what_it_wants_is_cut_off() {
    let mut limits = ServerLimits::default();
    limits.head_time_max = Duration::from_millis(50);
    let server = Setup { limits, ..Setup::default() }.start().await;
    let heard = say(
        &mut server.connect().await,
        b"GET /api/workflows HTTP/1.1\r\nhost: localhost\r\nx-slow: ",
    )
    .await;
    assert!(heard.is_empty() || heard.starts_with("HTTP/1.1 408"), "{heard}");
    say(&mut server.connect().await, b"").await;
    // A connection that was used and is idle is cut off as well.
    let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let heard = say(&mut server.connect().await, request).await;
    assert!(heard.starts_with("HTTP/1.1 200"), "{heard}");
}

#[tokio::test]
async fn a_connection_too_many_is_told_so() {
    let mut limits = ServerLimits::default();
    limits.connections_max = 1;
    let server = Setup { limits, ..Setup::default() }.start().await;
    server.send_to(Method::GET, "/healthz", &[], "").await.ok();
    let heard = say(&mut server.connect().await, b"").await;
    assert!(heard.starts_with("HTTP/1.1 503") && heard.contains("retry-after: 1"), "{heard}");
    assert!(heard.contains("OVERLOADED"), "{heard}");
    // The one connection that there is room for still works.
    server.get("").await.ok();
}

#[tokio::test]
async fn a_request_with_too_many_headers_is_refused() {
    let server = server().await;
    let headers: String = (0..100).map(|n| format!("x-{n}: 1\r\n")).collect();
    let request = format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
    let heard = say(&mut server.connect().await, request.as_bytes()).await;
    assert!(heard.starts_with("HTTP/1.1 431"), "{heard}");
}

#[tokio::test]
async fn every_answer_has_a_request_id_and_a_harmless_one_is_kept() {
    let server = server().await;
    let made = server.get("").await;
    assert!(made.header("x-request-id").unwrap().starts_with("req_"));
    let other = server.get("/nothing/here").await;
    assert_ne!(other.header("x-request-id"), made.header("x-request-id"));
    let kept = server.send(Method::GET, "", &[("x-request-id", "trace-1.2:3")], "").await;
    assert_eq!(kept.header("x-request-id"), Some("trace-1.2:3"));
    let long = "x".repeat(65);
    for harmful in ["a b", "<script>", "", &long] {
        let made = server.send(Method::GET, "", &[("x-request-id", harmful), JSON], "").await;
        assert!(made.header("x-request-id").unwrap().starts_with("req_"), "{harmful}");
    }
}
