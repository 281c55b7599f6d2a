//! Creating instances over HTTP: what the engine and the API cost beside HTTP itself.
//!
//! 64 connections create instances as fast as they are answered. The ceiling is a handler of the same server that
//! parses the same body and answers the same JSON, and does nothing. Client and server share the process, so that
//! both pay for the client alike. The engine runs what is created: a workflow without steps.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use axum::routing::post;
use axum::{Json, Router};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use piton::prelude::*;
use piton::runtime::{Runtime, TokioRuntime};
use piton_http::{Api, ServerLimits};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::{Bench, PATIENCE, STORE};
use crate::progress::Progress;
use crate::report::{Goal, Row};
use crate::{stats, timer};

const CONNECTIONS: usize = 64;

const PATH: &str = "/api/workflows/nothing/instances";

async fn nothing(_: Event<Value>, _: &Step) -> piton::Result<()> {
    Ok(())
}

/// Parses what a create parses, and answers what it answers.
async fn empty(Json(body): Json<Value>) -> Json<Value> {
    Json(json!({"id": body["id"], "details": {"status": "active"}}))
}

/// Measures creates per second.
pub(super) async fn measure(bench: &Bench<'_>, name: &'static str) -> Result<Row> {
    let plan = &bench.plan;
    let progress = Progress::start(name, plan.throughput_rounds);
    let (mut ceilings, mut rounds) = (Vec::new(), Vec::new());
    for round in 0..plan.throughput_rounds {
        let runtime: Arc<dyn Runtime> = TokioRuntime::current()?;
        let app = Router::new().route(PATH, post(empty));
        ceilings.push(serve_and_load(app, runtime, plan.throughput_round).await?);

        let database = bench.database(&format!("http-{round}"));
        let engine = database.engine().register(workflow("nothing", nothing)).start().await?;
        let api = Api::new(engine.clone()).open_to_everyone().router();
        let app = Router::new().nest("/api/workflows", api);
        rounds.push(serve_and_load(app, engine.runtime(), plan.throughput_round).await?);
        engine.shutdown(PATIENCE).await?;
        progress.step();
    }
    let (value, ceiling) = (stats::median(&rounds), stats::median(&ceilings));
    Ok(Row {
        workload: name,
        store: STORE,
        value,
        unit: "creates/s",
        ceiling: Some(ceiling),
        ratio: Some(value / ceiling),
        goal: Some(Goal::at_least(0.5, 0.7)),
        also: Vec::new(),
        note: format!(
            "medians of {} rounds, {CONNECTIONS} connections; the ceiling is a handler that does nothing",
            rounds.len()
        ),
    })
}

/// Serves an app and creates instances for a while; how many a second.
async fn serve_and_load(app: Router, runtime: Arc<dyn Runtime>, span: Duration) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async {
        let _ = stopped.await;
    };
    let serving = piton_http::serve(listener, app, ServerLimits::default(), runtime, shutdown);
    let loading = async {
        let rate = load(address, span).await;
        let _ = stop.send(());
        rate
    };
    let (served, rate) = tokio::join!(serving, loading);
    served?;
    rate
}

async fn load(address: SocketAddr, span: Duration) -> Result<f64> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let start = timer::now();
    let mut connections = JoinSet::new();
    for number in 0..CONNECTIONS {
        connections.spawn(create_until(client.clone(), address, number, start + span));
    }
    let mut created = 0;
    while let Some(connection) = connections.join_next().await {
        created += connection??;
    }
    Ok(f64::from(created) / start.elapsed().as_secs_f64())
}

async fn create_until(
    client: Client<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
    connection: usize,
    deadline: Instant,
) -> Result<u32> {
    let mut created = 0;
    while timer::now() < deadline {
        let body = json!({"id": format!("c{connection}-{created}"), "params": {"item": "rope", "cents": 4200}});
        let request = hyper::Request::post(format!("http://{address}{PATH}"))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body.to_string())))?;
        let response = client.request(request).await?;
        let status = response.status();
        let answer = response.into_body().collect().await?.to_bytes();
        ensure!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&answer));
        created += 1;
    }
    Ok(created)
}
