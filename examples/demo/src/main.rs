//! `piton-demo`: a server with a few workflows to try Piton with nothing but curl.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use axum::Router;
use clap::{Parser, ValueEnum};
use piton::{DurationError, Engine, IntoSpan, Span};
use piton_http::{Api, BearerTokens, Permission, ServerLimits};
use serde_json::Value;
use tokio::net::TcpListener;
use tracing::level_filters::LevelFilter;

use piton_demo::{AlarmHost, Later, Tools, Witness, advance_by_hooks, arm_after, register};

/// A server with a few workflows, to try Piton with nothing but curl.
///
/// Everything is kept in one SQLite file, or in a PostgreSQL database that any number of servers may share: stop the server
/// in the middle of anything, start it again, and it goes on.
#[derive(Parser)]
#[command(version, about, long_about)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Where to listen; port 0 takes any free one
    #[arg(long, env = "PITON_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:7420")]
    listen: SocketAddr,
    /// Where to keep everything: sqlite:FILE, postgres://… or memory:
    #[arg(
        long,
        env = "PITON_DATABASE",
        value_name = "URL",
        default_value = "sqlite:piton-demo.db",
        global = true
    )]
    database: String,
    /// Answer only callers that send this token as `Authorization: Bearer TOKEN`
    #[arg(long, env = "PITON_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Answer everyone, on an address that others can reach
    #[arg(long, env = "PITON_INSECURE_NO_AUTH")]
    insecure_no_auth: bool,
    /// Answer requests for this host name, too; addresses and localhost are always answered
    #[arg(long, env = "PITON_ALLOW_HOST", value_name = "NAME", value_delimiter = ',')]
    allow_host: Vec<String>,
    /// Switch on POST /api/workflows/_runner/tick
    #[arg(long, env = "PITON_ENABLE_TICK")]
    enable_tick: bool,
    /// Only answer requests, and leave the work to other processes or to ticks
    #[arg(long, env = "PITON_NO_RUNNER")]
    no_runner: bool,
    /// Who notices that something is due: a runner and dispatchers that poll, or one alarm and nothing else
    #[arg(long, env = "PITON_DISPATCHER", value_name = "KIND", default_value = "polling")]
    dispatcher: Dispatcher,
    /// How many runs to advance at the same time
    #[arg(long, env = "PITON_CONCURRENCY", value_name = "RUNS")]
    concurrency: Option<usize>,
    /// How long a claim lasts without renewal, such as "30 seconds"
    #[arg(long, env = "PITON_LEASE", value_name = "DURATION", value_parser = duration)]
    lease: Option<Span>,
    /// How often to look for due work when nothing else tells of it
    #[arg(long, env = "PITON_POLL_INTERVAL", value_name = "DURATION", value_parser = duration)]
    poll_interval: Option<Span>,
    /// Append `instance run step attempt` to this file for each executed step body
    #[arg(long, env = "PITON_WITNESS", value_name = "FILE")]
    witness: Option<PathBuf>,
    /// What to log to stderr: off, error, warn, info, debug or trace
    #[arg(long, env = "PITON_LOG", value_name = "LEVEL", default_value = "info")]
    log: LevelFilter,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Dispatcher {
    /// Look every so often, and at once when this process changes something
    Polling,
    /// Run nothing until an alarm goes off, as on hosts that own one (a durable object, a systemd timer, a cloud
    /// scheduler): it is set for the next hook, and a hook tells of each run that can go on
    Alarm,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Check the database, also while servers use it, and say what was found
    Audit,
}

fn duration(text: &str) -> Result<Span, DurationError> {
    text.into_span()
}

/// How often an alarm goes off at least, when nobody says.
const POLL_INTERVAL: Span = Span::literal("5 seconds");

/// Between the signal and the end of waits for results: others have that long to finish undisturbed.
const GRACE: Span = Span::literal("500 ms");

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = Args::parse();
    // A variable that is set to nothing is not a secret.
    args.token = args.token.filter(|token| !token.trim().is_empty());
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(args.log).init();
    if let Some(Command::Audit) = args.command {
        return audit(&args.database);
    }
    ensure!(
        args.listen.ip().is_loopback() || args.token.is_some() || args.insecure_no_auth,
        "{} can be reached by others: set a token with --token, or say --insecure-no-auth",
        args.listen
    );
    let alarm = args.dispatcher == Dispatcher::Alarm;
    ensure!(
        !(alarm && args.no_runner),
        "--no-runner leaves the work to others, and --dispatcher alarm does it: choose one"
    );
    let engine = start_engine(&args).await?;
    let poll_interval = args.poll_interval.unwrap_or(POLL_INTERVAL);
    let host = if alarm { AlarmHost::new(&engine, poll_interval) } else { None };
    let listener =
        TcpListener::bind(args.listen).await.with_context(|| cannot_listen(args.listen))?;
    let order = unused_order(&engine).await?;
    let signals = StopSignals::listen()?;
    greet(&args, listener.local_addr()?, &order);
    let app = app(&args, &engine, host.clone())?;
    let waiting = async {
        match &host {
            Some(host) => host.run().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        served = serve(app, engine, listener, signals) => served,
        () = waiting => Ok(()),
    }
}

fn audit(database: &str) -> Result<()> {
    let report = piton_audit::audit(database)?;
    print!("{report}");
    ensure!(report.is_clean(), "the database is not as it should be");
    Ok(())
}

fn cannot_listen(address: SocketAddr) -> String {
    format!(
        "cannot listen on {address}: if another server is there, stop it, or choose another address, \
         such as --listen {}:0 for any free port",
        address.ip()
    )
}

/// An id to order under: what an earlier start has printed may have been typed.
async fn unused_order(engine: &Engine) -> Result<String> {
    let orders = engine.workflow::<Value, Value>("order")?;
    for number in 1.. {
        let id = format!("order-{number}");
        match orders.get(&id).await {
            Ok(_) => {}
            Err(error) if error.code() == Some("INSTANCE_NOT_FOUND") => return Ok(id),
            Err(error) => return Err(error.into()),
        }
    }
    anyhow::bail!("every number is an order already")
}

async fn start_engine(args: &Args) -> Result<Engine> {
    let witness = args.witness.as_deref().map(Witness::open).transpose()?;
    let tools = Arc::new(Tools::new(witness)?);
    let mut builder = register(Engine::builder(&args.database), &tools);
    let later = Later::default();
    if args.dispatcher == Dispatcher::Alarm {
        builder = builder.no_runner().hooks(advance_by_hooks(&later));
    }
    if let Some(runs) = args.concurrency {
        builder = builder.concurrency(runs);
    }
    if let Some(lease) = &args.lease {
        builder = builder.lease(*lease);
    }
    if let Some(interval) = &args.poll_interval {
        builder = builder.poll_interval(*interval);
    }
    if args.no_runner {
        builder = builder.no_runner();
    }
    let engine = builder.start().await;
    // Not the whole URL: it may hold a password.
    let kind =
        args.database.split_once(':').map(|(scheme, _)| format!("{scheme} ")).unwrap_or_default();
    let engine = engine
        .map_err(anyhow::Error::from)
        .with_context(|| format!("cannot start on this {kind}database"))?;
    let _ = later.set(engine.clone());
    Ok(engine)
}

fn app(args: &Args, engine: &Engine, host: Option<AlarmHost>) -> Result<Router> {
    let api = Api::new(engine.clone()).allow_hosts(&args.allow_host);
    let api = match &args.token {
        Some(token) => api.authorize(BearerTokens::new().token(token, Permission::ALL)?),
        None => api.open_to_everyone(),
    };
    let api = if args.enable_tick { api.enable_tick() } else { api };
    let mut api = api.router();
    if let Some(host) = host {
        api = api.layer(axum::middleware::from_fn_with_state(host, arm_after));
    }
    Ok(Router::new()
        .nest("/api/workflows", api)
        .merge(piton_http::health(engine.clone()))
        .fallback(piton_http::not_found))
}

async fn serve(
    app: Router,
    engine: Engine,
    listener: TcpListener,
    mut signals: StopSignals,
) -> Result<()> {
    let runtime = engine.runtime();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let shutdown = async {
        let _ = stopped.await;
    };
    let serving =
        piton_http::serve(listener, app, ServerLimits::default(), Arc::clone(&runtime), shutdown);
    let stopping = async {
        signals.next().await?;
        tracing::info!("shutting down; press Ctrl-C again to stop at once");
        let _ = stop.send(());
        let politely = async {
            runtime.sleep(GRACE).await;
            engine.shutdown("10 seconds").await
        };
        tokio::select! {
            done = politely => Ok(done?),
            again = signals.next() => again.and_then(|()| anyhow::bail!("stopped at once; nothing that was answered is lost")),
        }
    };
    let (served, stopped) = tokio::join!(serving, stopping);
    served.context("cannot serve")?;
    stopped
}

/// Ctrl-C and SIGTERM, from the moment this is made: whoever has been answered may stop the server.
struct StopSignals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl StopSignals {
    fn listen() -> Result<Self> {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
            let interrupt = signal(SignalKind::interrupt()).context("cannot wait for Ctrl-C")?;
            Ok(Self { terminate, interrupt })
        }
        #[cfg(not(unix))]
        Ok(Self {})
    }

    /// Ends at the next one.
    async fn next(&mut self) -> Result<()> {
        #[cfg(unix)]
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        #[cfg(not(unix))]
        tokio::signal::ctrl_c().await.context("cannot wait for Ctrl-C")?;
        Ok(())
    }
}

/// Says where the server is, and what to type next.
fn greet(args: &Args, address: SocketAddr, order: &str) {
    let base = format!("http://{address}/api/workflows");
    let token = match &args.token {
        Some(_) => " -H \"Authorization: Bearer $PITON_TOKEN\"",
        None => "",
    };
    let json = "-H 'Content-Type: application/json'";
    println!("listening on http://{address}");
    println!();
    println!("Order something, approve it, and see what came of it:");
    println!();
    println!(
        "  curl{token} {json} {base}/order/instances \\\n    -d '{{\"id\":\"{order}\",\"params\":{{\"item\":\"rope\",\"cents\":4200}}}}'"
    );
    println!(
        "  curl{token} {json} {base}/order/instances/{order}/events \\\n    -d '{{\"type\":\"approved\",\"payload\":{{\"by\":\"Ada\"}}}}'"
    );
    println!("  curl{token} '{base}/order/instances/{order}/result?wait=30s'");
    println!();
    println!(
        "Or with the piton command (cargo install --path crates/piton-cli), which --help explains:"
    );
    println!();
    println!("  export PITON_BASE_URL={base}");
    if args.token.is_some() {
        println!("  export PITON_HEADERS=\"Authorization: Bearer $PITON_TOKEN\"");
    }
    println!("  piton instances list");
    println!();
    println!(
        "There are also nightly-report {{\"day\":\"2026-11-15\"}}, onboarding {{\"email\":\"ada@example.com\"}}, and playground, whose"
    );
    println!("params are a program: see docs/http.md.");
}
