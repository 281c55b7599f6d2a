//! A Restate server: this process has the service that it calls, and the client that calls it.
//!
//! The options `--ingress URL` and `--admin URL` name the server.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use peer_driver::http::Client;
use peer_driver::{Measured, Options, Threads, check_sum, measure};
use restate_sdk::prelude::*;
use tokio::net::TcpListener;

fn main() -> ExitCode {
    peer_driver::main(Threads::All, drive)
}

struct Chain {
    steps: u64,
}

#[service]
impl Chain {
    #[handler]
    async fn run(&self, cx: Context<'_>, first: u64) -> HandlerResult<u64> {
        let mut sum = first;
        for i in 0..self.steps {
            let step = cx.run(|| async move { Ok(i) }).name(format!("step {i}"));
            sum += step.await?;
        }
        Ok(sum)
    }
}

async fn drive(options: Options) -> Result<Measured> {
    let client = Client::default();
    let steps = options.steps;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = HttpServer::new(Endpoint::builder().bind(Chain { steps }).build());
    let serving = server.serve(listener);
    let driving = async {
        let deployment = format!(r#"{{"uri":"http://{address}","force":true}}"#);
        let deployments = format!("{}/deployments", options.require("admin")?);
        client.post(&deployments, deployment).await.context("cannot register the service")?;
        let run = format!("{}/Chain/run", options.require("ingress")?);
        measure(&options, move |number| call(client.clone(), run.clone(), number, steps)).await
    };
    tokio::select! {
        () = serving => anyhow::bail!("the service ended"),
        measured = driving => measured,
    }
}

async fn call(client: Client, run: String, number: u64, steps: u64) -> Result<()> {
    let answer = client.post(&run, number.to_string()).await?;
    check_sum(number, steps, std::str::from_utf8(&answer)?.parse()?)
}
