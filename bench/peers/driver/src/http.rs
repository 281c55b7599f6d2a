//! The one HTTP client that all engines behind HTTP are called with.

use anyhow::{Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// A client that keeps its connections.
#[derive(Clone, Debug)]
pub struct Client(hyper_util::client::legacy::Client<HttpConnector, Full<Bytes>>);

impl Default for Client {
    fn default() -> Client {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Client(hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector))
    }
}

impl Client {
    pub async fn get(&self, url: &str) -> Result<Bytes> {
        self.send(Request::get(url).body(Full::default())?).await
    }

    /// Posts JSON.
    pub async fn post(&self, url: &str, body: impl Into<Bytes>) -> Result<Bytes> {
        let request = Request::post(url).header("content-type", "application/json");
        self.send(request.body(Full::new(body.into()))?).await
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Bytes> {
        let url = request.uri().clone();
        let response = self.0.request(request).await?;
        let status = response.status();
        let answer = response.into_body().collect().await?.to_bytes();
        ensure!(status.is_success(), "{url}: {status}: {}", String::from_utf8_lossy(&answer));
        Ok(answer)
    }
}
