//! A proxy that stands between an engine and its server and cuts connections at the worst moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use piton::sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinSet;

/// Bytes that are passed on at once.
const CHUNK: usize = 64 * 1024;

/// A proxy. It is gone when this is dropped.
#[derive(Debug)]
pub struct Proxy {
    url: String,
    swallow: Arc<Swallow>,
    /// Aborted with this.
    _accepting: JoinSet<()>,
}

/// Answers that are to be thrown away, and that were.
#[derive(Debug, Default)]
struct Swallow {
    /// So many are passed on before.
    passed: AtomicU32,
    wanted: AtomicU32,
    done: AtomicU32,
}

impl Swallow {
    /// Whether this answer is one of them.
    fn takes(&self) -> bool {
        let one = |left: u32| left.checked_sub(1);
        if self.passed.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one).is_ok() {
            return false;
        }
        let takes = self.wanted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one).is_ok();
        self.done.fetch_add(u32::from(takes), Ordering::SeqCst);
        takes
    }
}

impl Proxy {
    /// Stands before the server of a URL, whether that is up at the moment or not.
    ///
    /// # Errors
    ///
    /// If the URL cannot be understood or there is no free port.
    pub async fn before(url: &str) -> piton::Result<Self> {
        let server: PgConnectOptions = url.parse()?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let through = server.clone().host("127.0.0.1").port(port);
        let database = server.get_database().unwrap_or("postgres");
        let url = format!(
            "postgres://{}@127.0.0.1:{port}/{database}?sslmode=disable",
            through.get_username()
        );
        let swallow = Arc::new(Swallow::default());
        let counter = Arc::clone(&swallow);
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut serving = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (server, counter) = (server.clone(), Arc::clone(&counter));
                serving.spawn(async move {
                    let _ = serve(client, &server, &counter).await;
                });
            }
        });
        Ok(Self { url, swallow, _accepting: accepting })
    }

    /// The URL that leads through it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The next `count` answers of the server are thrown away, and their connections with them.
    pub fn swallow_answers(&self, count: u32) {
        self.swallow.wanted.store(count, Ordering::SeqCst);
    }

    /// The server's next `passed` answers are passed on, and the one after them is thrown away.
    pub fn swallow_answer_after(&self, passed: u32) {
        self.swallow.wanted.store(0, Ordering::SeqCst);
        self.swallow.passed.store(passed, Ordering::SeqCst);
        self.swallow.wanted.store(1, Ordering::SeqCst);
    }

    /// How many answers were thrown away so far.
    pub fn swallowed(&self) -> u32 {
        self.swallow.done.load(Ordering::SeqCst)
    }
}

async fn serve(
    client: TcpStream,
    server: &PgConnectOptions,
    swallow: &Swallow,
) -> std::io::Result<()> {
    match server.get_socket() {
        Some(directory) => {
            let socket = directory.join(format!(".s.PGSQL.{}", server.get_port()));
            pass_on(client, UnixStream::connect(socket).await?, swallow).await
        }
        None => {
            let address = (server.get_host(), server.get_port());
            pass_on(client, TcpStream::connect(address).await?, swallow).await
        }
    }
}

async fn pass_on<S>(client: TcpStream, server: S, swallow: &Swallow) -> std::io::Result<()>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let asking = async {
        tokio::io::copy(&mut from_client, &mut to_server).await?;
        to_server.shutdown().await
    };
    let answering = async {
        let mut chunk = vec![0; CHUNK];
        loop {
            let length = from_server.read(&mut chunk).await?;
            if length == 0 || swallow.takes() {
                return Ok(());
            }
            to_client.write_all(&chunk[..length]).await?;
        }
    };
    // Whoever ends first takes the connection with it, in both directions.
    tokio::select! {
        done = asking => done,
        done = answering => done,
    }
}
