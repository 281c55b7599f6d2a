//! Who is let in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::http::{Method, StatusCode};
use axum::response::IntoResponse;
use piton_http::{Api, AuthRequest, BearerTokens, Decision, Permission, Policy, Verdict, policy};
use serde_json::{Value, json};

use crate::support::{JSON, Server, server_with};

const TOKEN: (&str, &str) = ("authorization", "Bearer s3cret");

/// Every route, as the OpenAPI document knows it, and some that are not there; each with every method.
fn everything() -> Vec<(Method, String)> {
    let document = serde_json::to_value(piton_http::openapi("")).unwrap();
    let known = document["paths"].as_object().unwrap().keys().cloned();
    let others =
        ["/openapi.json", "/nothing/here", "/wait", "/wait/instances/a/unknown", "/_runner"];
    let paths = known.chain(others.map(str::to_owned));
    let methods = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::OPTIONS,
        Method::TRACE,
    ];
    let named = |path: String| path.replace("{workflow}", "wait").replace("{instance}", "a");
    let paths: Vec<_> = paths.map(named).collect();
    methods
        .iter()
        .flat_map(|method| paths.iter().map(move |path| (method.clone(), path.clone())))
        .collect()
}

#[tokio::test]
async fn without_a_token_nothing_but_health_answers() {
    let tokens = BearerTokens::new().token("s3cret", Permission::ALL).unwrap();
    let server = server_with(|api| api.authorize(tokens).enable_tick()).await;
    create(&server, &[TOKEN]).await.ok();
    let wrong: [&[(&str, &str)]; 6] = [
        &[],
        &[("authorization", "Bearer wrong")],
        &[("authorization", "Bearer ")],
        &[("authorization", "Basic s3cret")],
        &[("authorization", "s3cret")],
        &[("x-token", "s3cret")],
    ];
    for headers in wrong {
        for (method, path) in everything() {
            let headers = [headers, &[JSON]].concat();
            let reply = server.send(method.clone(), &path, &headers, "{}").await;
            assert_eq!(reply.status, StatusCode::UNAUTHORIZED, "{method} {path}");
            assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
            if method != Method::HEAD {
                reply.refused(401, "UNAUTHORIZED");
            }
        }
    }
    for path in ["/healthz", "/readyz"] {
        server.send_to(Method::GET, path, &[], "").await.ok();
    }
    let instance = server.send(Method::GET, "/wait/instances/a", &[TOKEN], "").await.ok();
    assert_ne!(instance["details"]["status"], "terminated", "nobody did anything");
}

#[tokio::test]
async fn a_token_is_never_empty_and_may_be_given_twice() {
    for empty in ["", " ", "\t\n"] {
        BearerTokens::new().token(empty, Permission::ALL).unwrap_err();
    }
    let tokens = BearerTokens::new().token("s3cret\n", [Permission::Create]).unwrap();
    let tokens = tokens.token(" s3cret", [Permission::Read]).unwrap();
    let server = server_with(|api| api.authorize(tokens)).await;
    create(&server, &[TOKEN]).await.ok();
    server.send(Method::GET, "/wait/instances/a", &[TOKEN], "").await.ok();
    let pause = server.send(Method::POST, "/wait/instances/a/pause", &[TOKEN], "").await;
    pause.refused(403, "FORBIDDEN");
}

#[tokio::test]
async fn a_token_in_the_url_is_no_token() {
    let tokens = BearerTokens::new().token("s3cret", Permission::ALL).unwrap();
    let server = server_with(|api| api.authorize(tokens)).await;
    server.get("?token=s3cret&access_token=s3cret").await.refused(401, "UNAUTHORIZED");
}

#[tokio::test]
async fn a_router_without_a_policy_answers_nobody() {
    let server = server_with(|api| api).await;
    for (method, path) in everything() {
        let reply = server.send(method.clone(), &path, &[JSON], "{}").await;
        assert_eq!(reply.status, StatusCode::FORBIDDEN, "{method} {path}");
    }
}

/// What each permission is about.
const CALLS: [(Permission, Method, &str, &str); 12] = [
    (Permission::Read, Method::GET, "", ""),
    (Permission::Read, Method::GET, "/openapi.json", ""),
    (Permission::Read, Method::GET, "/wait/instances", ""),
    (Permission::Read, Method::GET, "/wait/instances/a", ""),
    (Permission::Read, Method::GET, "/wait/instances/a/history", ""),
    (Permission::Read, Method::GET, "/wait/instances/a/result", ""),
    (Permission::Create, Method::POST, "/wait/instances", "{}"),
    (Permission::Create, Method::POST, "/wait/instances/batch", r#"{"instances":[]}"#),
    (Permission::Events, Method::POST, "/wait/instances/a/events", r#"{"type":"hello"}"#),
    (Permission::Manage, Method::POST, "/wait/instances/a/pause", "{}"),
    (Permission::Manage, Method::POST, "/wait/instances/a/resume", "{}"),
    (Permission::Tick, Method::POST, "/_runner/tick", "{}"),
];

#[tokio::test]
async fn a_token_may_do_what_it_is_for_and_nothing_else() {
    let name = |permission| format!("{permission:?}-token");
    let tokens = Permission::ALL
        .into_iter()
        .fold(BearerTokens::new(), |tokens, one| tokens.token(name(one), [one]).unwrap());
    let server = server_with(|api| api.authorize(tokens).enable_tick()).await;
    let bearer = |permission| format!("bearer {}", name(permission));
    create(&server, &[("authorization", &bearer(Permission::Create))]).await.ok();
    for (needed, method, path, body) in CALLS {
        for permission in Permission::ALL {
            let token = bearer(permission);
            let headers = [JSON, ("authorization", &token)];
            let reply = server.send(method.clone(), path, &headers, body).await;
            if permission == needed {
                reply.ok();
            } else {
                reply.refused(403, "FORBIDDEN");
            }
        }
    }
}

async fn create(server: &Server, headers: &[(&str, &str)]) -> crate::support::Reply {
    let headers = [headers, &[JSON]].concat();
    server.send(Method::POST, "/wait/instances", &headers, r#"{"id":"a"}"#).await
}

#[tokio::test]
async fn each_permission_can_have_a_policy_of_its_own() {
    let no = || policy(|_| async { Ok(Decision::Deny("closed today".to_owned())) });
    let yes = || policy(|_| async { Ok(Decision::Allow) });
    type Set = fn(Api, Box<dyn Policy>) -> Api;
    struct Boxed(Box<dyn Policy>);
    impl Policy for Boxed {
        fn decide(&self, request: Arc<AuthRequest>) -> Verdict {
            self.0.decide(request)
        }
    }
    let sets: [(Permission, Set); 5] = [
        (Permission::Create, |api, policy| api.authorize_create(Boxed(policy))),
        (Permission::Read, |api, policy| api.authorize_read(Boxed(policy))),
        (Permission::Manage, |api, policy| api.authorize_manage(Boxed(policy))),
        (Permission::Events, |api, policy| api.authorize_events(Boxed(policy))),
        (Permission::Tick, |api, policy| api.authorize_tick(Boxed(policy))),
    ];
    for (closed, set) in sets {
        // Allowed for everyone, but for one permission; then nobody, but for one permission.
        let all_but_one =
            server_with(move |api| set(api.authorize(yes()), Box::new(no())).enable_tick()).await;
        let only_one = server_with(move |api| set(api, Box::new(yes())).enable_tick()).await;
        create(&all_but_one, &[]).await;
        for (needed, method, path, body) in CALLS {
            let reply = all_but_one.send(method.clone(), path, &[JSON], body).await;
            if needed == closed {
                assert_eq!(reply.refused(403, "FORBIDDEN").body["message"], "closed today");
            } else {
                assert_ne!(reply.status, StatusCode::FORBIDDEN, "{method} {path}");
            }
            let reply = only_one.send(method.clone(), path, &[JSON], body).await;
            assert_eq!(reply.status == StatusCode::FORBIDDEN, needed != closed, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn a_policy_sees_the_request_but_not_its_body() {
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let notes = Arc::clone(&seen);
    let spy = policy(move |request| {
        let who = request.headers.get("x-who").map(|who| who.to_str().unwrap().to_owned());
        let line = format!(
            "{} {} {:?} {:?} {:?} {who:?}",
            request.method, request.route, request.permission, request.workflow, request.instance
        );
        notes.lock().unwrap().push(line);
        async { Ok(Decision::Unauthorized("who are you?".to_owned())) }
    });
    let server = server_with(|api| api.authorize(spy)).await;
    // Neither the body, which is no JSON, nor its announced size is looked at.
    let headers = [JSON, ("x-who", "Ada")];
    let reply = server.send(Method::POST, "/wait/instances/a/events", &headers, "{").await;
    assert_eq!(reply.refused(401, "UNAUTHORIZED").body["message"], "who are you?");
    server.get("/no/such/route").await.refused(401, "UNAUTHORIZED");
    assert_eq!(
        *seen.lock().unwrap(),
        [
            "POST /{workflow}/instances/{instance}/events Some(Events) Some(\"wait\") Some(\"a\") Some(\"Ada\")",
            "GET  None None None None",
        ]
    );
}

#[tokio::test]
async fn a_policy_that_fails_or_panics_denies() {
    let fails =
        policy(|_| async { Err(piton::Error::new("the directory is down: ldap://10.0.0.1")) });
    let server = server_with(|api| api.authorize(fails)).await;
    let reply = server.get("").await;
    assert!(!reply.refused(403, "FORBIDDEN").body.to_string().contains("ldap"));

    let server = server_with(|api| {
        api.authorize(policy(|request| async move {
            assert!(request.headers.contains_key("x-calm"), "panicked on purpose");
            Ok(Decision::Allow)
        }))
    })
    .await;
    server.get("").await.refused(403, "FORBIDDEN");
    server.send(Method::GET, "", &[("x-calm", "yes")], "").await.ok();

    struct Panics;
    impl Policy for Panics {
        fn decide(&self, _: Arc<AuthRequest>) -> Verdict {
            panic!("before there is a future");
        }
    }
    let server = server_with(|api| api.authorize(Panics)).await;
    server.get("").await.refused(403, "FORBIDDEN");
}

#[tokio::test]
async fn a_policy_that_hangs_denies_and_gives_its_room_back() {
    let hangs = policy(|_| std::future::pending());
    let server =
        server_with(|api| api.authorize(hangs).in_flight_max(1).request_time_max("10 ms").unwrap())
            .await;
    for _ in 0..2 {
        server.get("").await.refused(403, "FORBIDDEN");
    }
}

#[tokio::test]
async fn a_policy_may_answer_itself() {
    let teapot = policy(|_| async {
        let answer = (StatusCode::IM_A_TEAPOT, axum::Json(json!({"tea": true}))).into_response();
        Ok(Decision::Answer(Box::new(answer)))
    });
    let server = server_with(|api| api.authorize(teapot)).await;
    let reply = server.get("").await;
    assert_eq!((reply.status, &reply.body), (StatusCode::IM_A_TEAPOT, &json!({"tea": true})));
}

#[tokio::test]
async fn the_policy_for_all_is_asked_before_the_one_for_a_permission() {
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    let second = policy(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Ok(Decision::Allow) }
    });
    let first = policy(|request: Arc<AuthRequest>| async move {
        let known = request.headers.contains_key("x-known");
        Ok(if known { Decision::Allow } else { Decision::Deny("no".to_owned()) })
    });
    let server = server_with(|api| api.authorize(first).authorize_read(second)).await;
    server.get("").await.refused(403, "FORBIDDEN");
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    let listed: Value = server.send(Method::GET, "", &[("x-known", "1")], "").await.ok();
    assert!(listed["workflows"].is_array());
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}
