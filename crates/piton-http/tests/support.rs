//! A server on a free port, a client, and a few workflows.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use piton::prelude::*;
use piton::runtime::TaskOwner;
use piton_http::{Api, ServerLimits};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(crate) const JSON: (&str, &str) = ("content-type", "application/json");

/// What a server is made of; [`Setup::start`] makes one.
pub(crate) struct Setup {
    pub(crate) database: String,
    pub(crate) api: Box<dyn FnOnce(Api) -> Api>,
    pub(crate) limits: ServerLimits,
    pub(crate) runner: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            database: "memory:".to_owned(),
            api: Box::new(Api::open_to_everyone),
            limits: ServerLimits::default(),
            runner: true,
        }
    }
}

pub(crate) struct Server {
    pub(crate) engine: Engine,
    pub(crate) address: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
    _serving: TaskOwner,
}

/// A server that is open to everyone, in memory.
pub(crate) async fn server() -> Server {
    Setup::default().start().await
}

/// A server whose API is made by `api`, in memory.
pub(crate) async fn server_with(api: impl FnOnce(Api) -> Api + 'static) -> Server {
    Setup { api: Box::new(api), ..Setup::default() }.start().await
}

impl Setup {
    pub(crate) async fn start(self) -> Server {
        let hooks = piton::hooks::Hooks::new()
            .on("done", |(): (), _| async { Ok(()) })
            .on("flaky", |_: Value, _| async { Err(Error::new("as asked")) });
        let builder = register(Engine::builder(self.database)).hooks(hooks);
        let builder = if self.runner { builder } else { builder.no_runner() };
        let engine = builder.start().await.unwrap();
        let api = (self.api)(Api::new(engine.clone())).router();
        let app =
            Router::new().nest("/api/workflows", api).merge(piton_http::health(engine.clone()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (runtime, limits) = (engine.runtime(), self.limits);
        let serving =
            piton_http::serve(listener, app, limits, Arc::clone(&runtime), std::future::pending());
        let serving = runtime.spawn(Box::pin(async { serving.await.unwrap() }));
        let client = Client::builder(TokioExecutor::new()).build_http();
        Server { engine, address, client, _serving: serving }
    }
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Reply {
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.body);
        self.body
    }

    /// Checks an error's status and code, and that it has the form of all errors.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16, code: &str) -> &Self {
        assert_eq!(
            (self.status.as_u16(), &self.body["code"]),
            (status, &json!(code)),
            "{}",
            self.body
        );
        assert!(
            self.body["message"].as_str().is_some_and(|message| !message.is_empty()),
            "{}",
            self.body
        );
        let known = ["message", "code", "issues"];
        assert!(
            self.body.as_object().unwrap().keys().all(|key| known.contains(&key.as_str())),
            "{}",
            self.body
        );
        self
    }

    /// Where the first issue of an error is.
    #[track_caller]
    pub(crate) fn issue_path(&self) -> &str {
        assert!(self.body["issues"][0]["message"].is_string(), "{}", self.body);
        self.body["issues"][0]["path"].as_str().unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

impl Server {
    /// Any request; `path` is below the mount point.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Reply {
        self.send_to(method, &format!("/api/workflows{path}"), headers, body).await
    }

    /// Any request to any path.
    pub(crate) async fn send_to(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Reply {
        let uri = format!("http://{}{path}", self.address);
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).unwrap();
        let response = self.client.request(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let body =
            if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).unwrap() };
        Reply { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, &[], "").await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Reply {
        self.send(Method::POST, path, &[JSON], body.to_string()).await
    }

    /// Creates an instance that must not exist.
    pub(crate) async fn create(&self, workflow: &str, id: &str, params: Value) {
        let body = json!({"id": id, "params": params});
        self.post(&format!("/{workflow}/instances"), body).await.ok();
    }

    /// Waits until an instance has ended.
    pub(crate) async fn ended(&self, workflow: &str, id: &str) -> Value {
        self.get(&format!("/{workflow}/instances/{id}/result?wait=60s")).await.ok()["details"]
            .take()
    }

    /// Waits until an instance waits.
    pub(crate) async fn waits(&self, workflow: &str, id: &str) {
        loop {
            let instance = self.get(&format!("/{workflow}/instances/{id}")).await.ok();
            if instance["details"]["status"] == "waiting" {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// A connection without a client in between.
    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }
}

/// Sends bytes and reads what comes until the other side closes.
pub(crate) async fn say(stream: &mut TcpStream, bytes: &[u8]) -> String {
    stream.write_all(bytes).await.unwrap();
    let mut heard = Vec::new();
    // A connection that is reset has said all it will say.
    let _ = stream.read_to_end(&mut heard).await;
    String::from_utf8(heard).unwrap()
}

fn register(builder: piton::EngineBuilder) -> piton::EngineBuilder {
    builder
        .register(workflow("echo", echo))
        .register(workflow("order", order))
        .register(workflow("wait", wait))
        .register(workflow("fail", fail))
        .register(workflow("nap", nap))
        .register(workflow("talk", talk))
        .register(workflow("hang", hang))
        .register(workflow("explode", explode))
}

/// Returns what it was given.
async fn echo(params: Event<Value>, step: &Step) -> Result<Value> {
    step.run("echo", async { Ok(params.payload.clone()) }).await
}

#[derive(Serialize, Deserialize)]
struct OrderParams {
    item: String,
    cents: u64,
}

/// Has params of a type.
async fn order(params: Event<OrderParams>, _: &Step) -> Result<String> {
    Ok(params.item.clone())
}

/// Waits for the event `go`.
async fn wait(_: Event<Value>, step: &Step) -> Result<Value> {
    step.wait_for_event("wait", "go").await
}

/// Fails.
async fn fail(_: Event<Value>, step: &Step) -> Result<()> {
    let broken = Err(Error::non_retryable("no luck").named("Unlucky"));
    step.run("try", async { broken }).await
}

/// Sleeps for an hour.
async fn nap(_: Event<Value>, step: &Step) -> Result<()> {
    step.sleep("nap", "1 hour").await
}

/// Cannot even be decoded.
#[derive(Serialize)]
struct Explosive;

impl<'de> Deserialize<'de> for Explosive {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> std::result::Result<Self, D::Error> {
        panic!("a detail that is nobody's business");
    }
}

/// Has params that panic when they are read.
async fn explode(_: Event<Explosive>, _: &Step) -> Result<()> {
    Ok(())
}

/// Has a step that never ends.
async fn hang(_: Event<Value>, step: &Step) -> Result<Value> {
    step.run("hang", std::future::pending()).await
}

/// Writes as many log lines as it is told, a hundred to a step.
async fn talk(lines: Event<u32>, step: &Step) -> Result<()> {
    for chunk in 0..*lines / 100 {
        for line in 0..100 {
            step.log().info(format!("line {}", chunk * 100 + line)).category("talk");
        }
        step.run(format!("say {chunk}"), async { Ok(()) }).await?;
    }
    Ok(())
}
