//! A Restate server: this process has the service that it calls, and the client that calls it.
//!
//! The options `--ingress URL` and `--admin URL` name the server.

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use peer_driver::http::Client;
use peer_driver::{Engine, Options, Threads, resumed, until, waiting};
use restate_sdk::prelude::*;
use tokio::net::TcpListener;

fn main() -> ExitCode {
    peer_driver::main(Threads::All, start)
}

/// By number of the waiting workflow: the name of what it waits for.
type Awakeables = Arc<Mutex<HashMap<u64, String>>>;

struct Bench {
    steps: u64,
    awakeables: Awakeables,
}

#[service]
impl Bench {
    #[handler]
    async fn chain(&self, cx: Context<'_>, first: u64) -> HandlerResult<u64> {
        let mut sum = first;
        for i in 0..self.steps {
            let step = cx.run(|| async move { Ok(i) }).name(format!("step {i}"));
            sum += step.await?;
        }
        Ok(sum)
    }

    #[handler]
    async fn listener(&self, cx: Context<'_>, number: u64) -> HandlerResult<()> {
        let (name, event) = cx.awakeable::<u64>();
        let awakeables = Arc::clone(&self.awakeables);
        cx.run(|| async move {
            awakeables.lock().unwrap_or_else(PoisonError::into_inner).insert(number, name);
            waiting();
            Ok(())
        })
        .await?;
        event.await?;
        cx.run(|| async move {
            resumed(number);
            Ok(())
        })
        .await?;
        Ok(())
    }

    #[handler]
    async fn sleeper(
        &self,
        cx: Context<'_>,
        Json((number, moment)): Json<(u64, SystemTime)>,
    ) -> HandlerResult<()> {
        cx.sleep(until(moment)).await?;
        cx.run(|| async move {
            resumed(number);
            Ok(())
        })
        .await?;
        Ok(())
    }
}

#[derive(Clone)]
struct Restate {
    client: Client,
    ingress: String,
    awakeables: Awakeables,
}

#[expect(clippy::disallowed_methods, reason = "a server that ends with the process")]
async fn start(options: Options) -> Result<Restate> {
    let client = Client::default();
    let awakeables = Awakeables::default();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let service = Bench { steps: options.steps, awakeables: Arc::clone(&awakeables) };
    let server = HttpServer::new(Endpoint::builder().bind(service).build());
    tokio::spawn(server.serve(listener));
    let deployment = format!(r#"{{"uri":"http://{address}","force":true}}"#);
    let deployments = format!("{}/deployments", options.require("admin")?);
    client.post(&deployments, deployment).await.context("cannot register the service")?;
    let ingress = options.require("ingress")?.to_owned();
    Ok(Restate { client, ingress, awakeables })
}

impl Engine for Restate {
    async fn chain(&self, first: u64) -> Result<u64> {
        let url = format!("{}/Bench/chain", self.ingress);
        let sum = self.client.post(&url, first.to_string()).await?;
        Ok(std::str::from_utf8(&sum)?.parse()?)
    }

    async fn start_listener(&self, number: u64) -> Result<()> {
        let url = format!("{}/Bench/listener/send", self.ingress);
        self.client.post(&url, number.to_string()).await?;
        Ok(())
    }

    async fn send_event(&self, number: u64) -> Result<()> {
        let name = {
            let awakeables = self.awakeables.lock().unwrap_or_else(PoisonError::into_inner);
            awakeables.get(&number).context("it does not wait")?.clone()
        };
        let url = format!("{}/restate/awakeables/{name}/resolve", self.ingress);
        self.client.post(&url, number.to_string()).await?;
        Ok(())
    }

    async fn start_sleeper(&self, number: u64, moment: SystemTime) -> Result<()> {
        let url = format!("{}/Bench/sleeper/send", self.ingress);
        self.client.post(&url, serde_json::to_string(&(number, moment))?).await?;
        Ok(())
    }
}
