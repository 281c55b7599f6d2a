//! Delivery by HTTP: what a receiver gets, and what never leaves.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;

use piton::Retries;
use piton::hooks::{HookRecord, Hooks, Processor};
use piton::prelude::*;
use piton_http::{Webhook, signature};
use serde_json::{Value, json};

const SECRET: &str = "a secret of enough bytes";

/// A receiver that answers one request like this and hands it over.
fn receiver(answer: &'static str) -> (u16, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (got, request) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut text = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            let read = stream.read(&mut chunk).unwrap_or(0);
            text.extend_from_slice(&chunk[..read]);
            let whole = String::from_utf8_lossy(&text).into_owned();
            let Some((head, body)) = whole.split_once("\r\n\r\n") else { continue };
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
            });
            if read == 0 || length.is_some_and(|length: usize| body.len() >= length) {
                let _ = got.send(whole);
                break;
            }
        }
        let _ = stream.write_all(answer.as_bytes());
    });
    (port, request)
}

/// Delivers one hook and says what became of it.
async fn deliver(webhook: Webhook, payload: Value) -> HookRecord {
    let hooks = Hooks::new().handler("order.paid", webhook);
    let builder = Engine::builder("memory:").no_runner().hooks(hooks);
    let engine = builder.start().await.unwrap();
    let client = engine.hooks();
    let id = client.send("order.paid", &payload).retry(Retries::constant(1, "1 s")).await.unwrap();
    client.processor().unwrap().process().await.unwrap();
    client.get(&id).await.unwrap()
}

fn to(port: u16) -> Webhook {
    let webhook = Webhook::to(format!("http://127.0.0.1:{port}/in"), SECRET).unwrap();
    webhook.allow_host(format!("127.0.0.1:{port}")).allow_plain_http().allow_inner_network()
}

fn error(hook: &HookRecord) -> &str {
    &hook.error.as_ref().unwrap().name
}

fn message(hook: &HookRecord) -> &str {
    &hook.error.as_ref().unwrap().message
}

#[tokio::test]
async fn a_delivery_is_signed_and_names_its_hook() {
    let (port, request) = receiver("HTTP/1.1 204 No Content\r\n\r\n");
    let hook = deliver(to(port), json!({"order": 7})).await;
    assert_eq!(hook.status.as_str(), "completed");
    let request = request.recv().unwrap();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /in HTTP/1.1\r\n"), "{head}");
    let header = |name: &str| {
        let line = head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        line.unwrap_or_else(|| panic!("no {name} in {head}"))
    };
    assert_eq!(header("idempotency-key"), &*hook.id);
    assert_eq!(header("piton-hook-name"), "order.paid");
    let signed = header("piton-signature");
    let seconds: i64 = signed["t=".len()..].split(',').next().unwrap().parse().unwrap();
    let expected =
        format!("t={seconds},v1={}", signature(SECRET.as_bytes(), seconds, body.as_bytes()));
    assert_eq!(signed, expected);
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!((&body["payload"], &body["attempt"]), (&json!({"order": 7}), &json!(1)));
}

#[tokio::test]
async fn what_the_receiver_refuses_is_retried_and_redirects_lead_nowhere() {
    for answer in [
        "HTTP/1.1 500 Oh No\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/secret\r\ncontent-length: 0\r\n\r\n",
    ] {
        let (port, _request) = receiver(answer);
        let hook = deliver(to(port), json!({})).await;
        assert_eq!((hook.status.as_str(), error(&hook)), ("pending", "WebhookRefused"));
    }
}

#[tokio::test]
async fn nothing_goes_where_it_was_not_allowed_to() {
    let (port, request) = receiver("HTTP/1.1 204 No Content\r\n\r\n");
    let base = || Webhook::to(format!("http://127.0.0.1:{port}/"), SECRET).unwrap();
    let host = format!("127.0.0.1:{port}");
    let anywhere = || base().allow_plain_http().allow_inner_network();
    for (webhook, name, status) in [
        (base().allow_plain_http().allow_inner_network(), "WebhookForbidden", "failed"),
        (base().allow_host(&host).allow_inner_network(), "WebhookForbidden", "failed"),
        (base().allow_host(&host).allow_plain_http(), "WebhookFailed", "pending"),
        (anywhere().allow_host("127.0.0.1"), "WebhookForbidden", "failed"),
        (anywhere().allow_host("127.0.0.1:1"), "WebhookForbidden", "failed"),
        (to(port).body_bytes_max(10), "WebhookTooLarge", "failed"),
    ] {
        let hook = deliver(webhook, json!({"order": 7})).await;
        assert_eq!((error(&hook), hook.status.as_str()), (name, status));
    }
    let at = Webhook::to_address_at("/callback", SECRET).unwrap().allow_host("*.example");
    for payload in [
        json!({}),
        json!({"callback": "https://evil.test/"}),
        json!({"callback": "https://hooks.example:8443/"}),
        json!({"callback": 7}),
    ] {
        assert_eq!(error(&deliver(at.clone(), payload).await), "WebhookForbidden");
    }
    assert!(request.try_recv().is_err(), "nothing was sent");
    assert!(Webhook::to("https://hooks.example/", "short").is_err());
}

#[tokio::test]
async fn what_keeps_a_delivery_back_says_what_to_do() {
    let base = || Webhook::to("http://127.0.0.1:9/in?token=1", SECRET).unwrap();
    let allowed = || base().allow_host("127.0.0.1:9");
    let at = || Webhook::to_address_at("/callback", SECRET).unwrap().allow_host("*.example");
    for (webhook, payload, expected) in [
        (base(), json!({}), "127.0.0.1:9 is http without TLS: use https, or allow_plain_http()"),
        (
            base().allow_plain_http(),
            json!({}),
            "127.0.0.1:9 is not allowed: name it with allow_host(\"127.0.0.1:9\")",
        ),
        (
            allowed().allow_plain_http(),
            json!({}),
            "127.0.0.1:9: 127.0.0.1 is not a public address: allow it with allow_inner_network()",
        ),
        (
            at(),
            json!({"callback": "ftp://hooks.example/"}),
            "the payload at /callback: \"ftp://hooks.example/\" is not an address such as https://hooks.example/in",
        ),
        (
            at().allow_host("http://127.0.0.1:9"),
            json!({}),
            "allow_host(\"http://127.0.0.1:9\") names no host: write it like \"hooks.example\", \"*.example\" or \
             \"127.0.0.1:8443\"",
        ),
    ] {
        assert_eq!(message(&deliver(webhook, payload).await), expected);
    }
    assert!(at().allow_host("http://127.0.0.1:9").timeout("1 second").is_err());
    for wrong in ["not a url", "hooks.example/in", "/in", "ftp://hooks.example/", "https://"] {
        let refused = Webhook::to(wrong, SECRET).unwrap_err();
        assert!(refused.message().contains("is not an address such as"), "{wrong}: {refused}");
    }
}

#[tokio::test]
async fn a_receiver_that_is_not_there_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let silent = to(port).timeout("20 ms").unwrap();
    let hook = deliver(silent, json!({})).await;
    assert_eq!(message(&hook), format!("no answer from 127.0.0.1:{port} within 20 ms"));
    drop(listener);
    let hook = deliver(to(port), json!({})).await;
    let expected = format!("127.0.0.1:{port} cannot be reached: ");
    assert!(message(&hook).starts_with(&expected), "{}", message(&hook));
}
