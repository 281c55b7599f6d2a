//! Through the HTTP API: one request creates the instance, a second one waits for its result.

use anyhow::{Context, Result};
use axum::Router;
use peer_driver::http::Client;
use piton::Engine;
use piton_http::{Api, ServerLimits};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::workflows::{CHAIN, GO};

/// The client of a server in this process.
#[derive(Clone)]
pub(crate) struct Http {
    client: Client,
    api: String,
}

impl Http {
    #[expect(clippy::disallowed_methods, reason = "a server that ends with the process")]
    pub(crate) async fn serve(engine: &Engine) -> Result<Http> {
        let app = Router::new().nest("/api", Api::new(engine.clone()).open_to_everyone().router());
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let api = format!("http://{}/api", listener.local_addr()?);
        let (limits, runtime) = (ServerLimits::default(), engine.runtime());
        let never = std::future::pending();
        tokio::spawn(piton_http::serve(listener, app, limits, runtime, never));
        Ok(Http { client: Client::default(), api })
    }

    pub(crate) async fn chain(&self, first: u64) -> Result<u64> {
        let id = format!("chain-{first}");
        self.create(CHAIN, &id, first).await?;
        let url = format!("{}/{CHAIN}/instances/{id}/result?wait=30s", self.api);
        let result: Value = serde_json::from_slice(&self.client.get(&url).await?)?;
        let sum = result["details"]["output"].as_u64();
        sum.with_context(|| format!("no result: {result}"))
    }

    pub(crate) async fn create(
        &self,
        workflow: &str,
        id: &str,
        params: impl Serialize,
    ) -> Result<()> {
        let url = format!("{}/{workflow}/instances", self.api);
        let body = json!({"id": id, "params": params}).to_string();
        self.client.post(&url, body).await?;
        Ok(())
    }

    pub(crate) async fn send_event(&self, workflow: &str, id: &str, payload: u64) -> Result<()> {
        let url = format!("{}/{workflow}/instances/{id}/events", self.api);
        let body = json!({"type": GO, "payload": payload}).to_string();
        self.client.post(&url, body).await?;
        Ok(())
    }
}
