//! Through the HTTP API: one request creates the instance, a second one waits for its result.

use anyhow::{Context, Result};
use axum::Router;
use peer_driver::http::Client;
use peer_driver::{Measured, Options, check_sum, measure};
use piton::prelude::*;
use piton_http::{Api, ServerLimits};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::{CHAIN, Chain, PATIENCE};

pub(crate) async fn drive(options: &Options, database: String) -> Result<Measured> {
    let steps = options.steps;
    let engine = Engine::builder(database).register(Chain { steps }).start().await?;
    let app = Router::new().nest("/api", Api::new(engine.clone()).open_to_everyone().router());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let instances = format!("http://{}/api/{CHAIN}/instances", listener.local_addr()?);
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async {
        let _ = stopped.await;
    };
    let serving =
        piton_http::serve(listener, app, ServerLimits::default(), engine.runtime(), shutdown);
    let driving = async {
        let client = Client::default();
        let call = move |number| call(client.clone(), instances.clone(), number, steps);
        let measured = measure(options, call).await;
        let _ = stop.send(());
        measured
    };
    let (served, measured) = tokio::join!(serving, driving);
    served?;
    engine.shutdown(PATIENCE).await?;
    measured
}

async fn call(client: Client, instances: String, number: u64, steps: u64) -> Result<()> {
    let id = format!("chain-{number}");
    let body = json!({"id": id, "params": number}).to_string();
    client.post(&instances, body).await?;
    let result = client.get(&format!("{instances}/{id}/result?wait=30s")).await?;
    let result: Value = serde_json::from_slice(&result)?;
    let sum = result["details"]["output"].as_u64();
    check_sum(number, steps, sum.with_context(|| format!("no result: {result}"))?)
}
