//! Serving a router on a socket, with the bounds that a router cannot set: on connections, and on the time a caller
//! may take to say what it wants.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use piton::Span;
use piton::runtime::Runtime;
use tokio::net::{TcpListener, TcpStream};

use crate::api::places;

/// What is said to a connection that there is no room for.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
    connection: close\r\ncontent-length: 65\r\n\r\n{\"message\":\"too many connections; try again\",\"code\":\"OVERLOADED\"}";

/// How long to wait after `accept` failed, for lack of file descriptors for example.
const ACCEPT_PAUSE: Span = Span::literal("50 ms");

/// Bounds of a server.
///
/// ```
/// let mut limits = piton_http::ServerLimits::default();
/// limits.connections_max = 10_000;
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerLimits {
    /// Connections at the same time; further ones get 503 and are closed. Default 2048.
    pub connections_max: usize,
    /// How long a caller may take to send the head of a request, and how long a connection may be idle.
    /// Default 20 seconds.
    pub head_time_max: Duration,
    /// Headers of a request. Default 64.
    pub headers_max: usize,
    /// How long requests in flight have to finish after the shutdown began. Default 5 seconds.
    pub drain_time_max: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections_max: 2048,
            head_time_max: Duration::from_secs(20),
            headers_max: 64,
            drain_time_max: Duration::from_secs(5),
        }
    }
}

/// Serves `app` until `shutdown` ends, then lets requests in flight finish.
///
/// ```
/// use piton_http::{Api, ServerLimits, serve};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> anyhow::Result<()> {
/// # let engine = piton::Engine::builder("memory:").start().await?;
/// # let ctrl_c = async {};
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
/// let app = axum::Router::new().nest("/api/workflows", Api::new(engine.clone()).open_to_everyone().router());
/// serve(listener, app, ServerLimits::default(), engine.runtime(), ctrl_c).await?;
/// engine.shutdown("10 seconds").await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// If the listener has no address any more.
pub async fn serve(
    listener: TcpListener,
    app: Router,
    limits: ServerLimits,
    runtime: Arc<dyn Runtime>,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    listener.local_addr()?;
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new());
    http.header_read_timeout(limits.head_time_max);
    http.max_headers(limits.headers_max);
    let connections = places(limits.connections_max);
    let graceful = GracefulShutdown::new();
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut shutdown => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                runtime.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(room) = Arc::clone(&connections).try_acquire_owned() else {
            turn_away(stream);
            continue;
        };
        // Answers are small and complete: waiting for more to send only delays them.
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(app.clone());
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
        let serving = async move {
            // A caller that hangs up or says nonsense is none of our failures.
            let _ = connection.await;
            drop(room);
        };
        runtime.spawn(Box::pin(serving)).detach();
    }
    drop(listener);
    let patience =
        Span::from_millis(limits.drain_time_max.as_millis().try_into().unwrap_or(i64::MAX));
    tokio::select! {
        () = graceful.shutdown() => {}
        () = runtime.sleep(patience) => tracing::warn!("requests were still in flight at the end"),
    }
    Ok(())
}

/// Says no without waiting: the answer fits into the socket's buffer, or the caller gets none.
fn turn_away(stream: TcpStream) {
    let _ = stream.try_write(FULL);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_canned_answer_has_the_length_it_says() {
        let text = std::str::from_utf8(FULL).expect("ASCII");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(
            head.contains(&format!("content-length: {}", body.len())),
            "{head}\n{}",
            body.len()
        );
        serde_json::from_str::<serde_json::Value>(body).expect("JSON");
    }
}
