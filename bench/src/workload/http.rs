//! Creating instances over HTTP: what the engine and the API cost beside HTTP itself.
//!
//! 64 connections create instances as fast as they are answered. The ceiling is a handler of the same server that
//! parses the same body and answers the same JSON, and does nothing. Client and server share the process, so that
//! both pay for the client alike.
//!
//! What is judged is the route, in a process without a runner. Beside it: the same with a runner, which shares the
//! cores with the route and executes what is created, a workflow without steps.

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

use super::{Bench, Database, PATIENCE, STORE};
use crate::progress::Progress;
use crate::report::{Figure, Goal, Row};
use crate::{process, stats, timer};

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
    let (mut ceilings, mut rounds, mut executed) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..plan.throughput_rounds {
        let runtime: Arc<dyn Runtime> = TokioRuntime::current()?;
        let app = Router::new().route(PATH, post(empty));
        ceilings.push(serve_and_load(app, runtime, plan.throughput_round).await?);

        for (runner, samples) in [(false, &mut rounds), (true, &mut executed)] {
            let database = bench.database(&format!("http-{round}"));
            samples.push(engine_round(&database, runner, plan.throughput_round).await?);
        }
        progress.step();
    }
    let rate = |rounds: &[Round]| -> Vec<f64> { rounds.iter().map(|r| r.per_second).collect() };
    let (value, ceiling) = (stats::median(&rate(&rounds)), stats::median(&rate(&ceilings)));
    let value_executed = stats::median(&rate(&executed));
    let mut also = vec![Figure {
        name: "with a runner",
        value: value_executed,
        unit: "creates/s",
        goal: None,
    }];
    for (name, rounds) in [("CPU per create", &rounds), ("CPU per empty answer", &ceilings)] {
        let costs: Vec<f64> = rounds.iter().filter_map(|round| round.cpu_us).collect();
        if !costs.is_empty() {
            also.push(Figure { name, value: stats::median(&costs), unit: "µs", goal: None });
        }
    }
    Ok(Row {
        workload: name,
        store: STORE,
        value,
        unit: "creates/s",
        ceiling: Some(ceiling),
        ratio: Some(value / ceiling),
        goal: Some(Goal::at_least(0.5, 0.7)),
        also,
        note: format!(
            "medians of {} rounds, {CONNECTIONS} connections; the ceiling is a handler that does nothing",
            rounds.len()
        ),
    })
}

async fn engine_round(database: &Database, runner: bool, span: Duration) -> Result<Round> {
    let builder = database.engine().register(workflow("nothing", nothing));
    let builder = if runner { builder } else { builder.no_runner() };
    let engine = builder.start().await?;
    let api = Api::new(engine.clone()).open_to_everyone().router();
    let app = Router::new().nest("/api/workflows", api);
    let round = serve_and_load(app, engine.runtime(), span).await?;
    engine.shutdown(PATIENCE).await?;
    Ok(round)
}

/// What one round measured.
#[derive(Clone, Copy, Debug)]
struct Round {
    per_second: f64,
    /// CPU time of the whole process for one request, the client's included.
    cpu_us: Option<f64>,
}

/// Serves an app and creates instances for a while.
async fn serve_and_load(app: Router, runtime: Arc<dyn Runtime>, span: Duration) -> Result<Round> {
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

async fn load(address: SocketAddr, span: Duration) -> Result<Round> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let (start, cpu) = (timer::now(), process::cpu_time());
    let mut connections = JoinSet::new();
    for number in 0..CONNECTIONS {
        connections.spawn(create_until(client.clone(), address, number, start + span));
    }
    let mut created = 0;
    while let Some(connection) = connections.join_next().await {
        created += connection??;
    }
    let created = f64::from(created);
    let cpu = process::cpu_time().zip(cpu).and_then(|(after, before)| after.checked_sub(before));
    Ok(Round {
        per_second: created / start.elapsed().as_secs_f64(),
        cpu_us: cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / created),
    })
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
