//! The host that owns one alarm, on a virtual clock: what stalls it, and what it misses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::routing::post;
use piton::hooks::Hooks;
use piton::prelude::*;
use piton::{EngineBuilder, Span};
use piton_demo::{AlarmHost, arm_after};
use piton_testing::VirtualRuntime;
use tokio::sync::Semaphore;
use tower::ServiceExt;

const POLL_INTERVAL: Span = Span::literal("5 seconds");

/// A host whose hooks only count.
struct Hosted {
    clock: Arc<VirtualRuntime>,
    engine: Engine,
    host: AlarmHost,
    handled: Arc<AtomicU32>,
}

impl Hosted {
    async fn start(configure: impl FnOnce(EngineBuilder) -> EngineBuilder) -> Result<Self> {
        let (clock, handled) = (VirtualRuntime::new(1), Arc::new(AtomicU32::new(0)));
        let count = Arc::clone(&handled);
        let hooks = Hooks::new().on("count", move |(): (), _| {
            count.fetch_add(1, Ordering::SeqCst);
            async { Ok(()) }
        });
        let builder = Engine::builder("memory:").runtime(Arc::clone(&clock) as _).no_runner();
        let engine = configure(builder.hooks(hooks)).start().await?;
        let host = AlarmHost::new(&engine, POLL_INTERVAL).expect("it has hooks");
        Ok(Self { clock, engine, host, handled })
    }

    /// Lets the host run beside the test.
    async fn beside(&self, test: impl Future<Output = Result<()>>) -> Result<()> {
        tokio::select! {
            () = self.host.run() => panic!("it waits for ever"),
            tested = test => tested,
        }
    }

    /// Waits until so many hooks were handled. The clock stands still.
    async fn handled(&self, hooks: u32) {
        while self.handled.load(Ordering::SeqCst) < hooks {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_run_that_takes_its_time_holds_up_no_hook() -> Result<()> {
    let begun = Arc::new(Semaphore::new(0));
    let tell = Arc::clone(&begun);
    // No hook tells of it, as of one whose process died.
    let long = workflow("long", move |_: Event<()>, _: &Step| {
        tell.add_permits(1);
        std::future::pending::<Result<()>>()
    });
    let hosted = Hosted::start(|builder| builder.register(long)).await?;
    hosted.engine.workflow::<(), ()>("long")?.create(()).await?;
    let test = async {
        begun.acquire().await?.forget();
        hosted.engine.hooks().send("count", &()).await?;
        hosted.host.arm().await;
        hosted.handled(1).await;
        Ok(())
    };
    hosted.beside(test).await
}

#[tokio::test]
async fn a_client_that_hangs_up_leaves_no_hook_behind() -> Result<()> {
    let hosted = Hosted::start(|builder| builder).await?;
    let (begun, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (engine, tell, wait) = (hosted.engine.clone(), Arc::clone(&begun), Arc::clone(&go_on));
    let trigger = post(move || async move {
        tell.add_permits(1);
        wait.acquire().await.unwrap().forget();
        engine.hooks().send("count", &()).await.unwrap();
    });
    let arm = axum::middleware::from_fn_with_state(hosted.host.clone(), arm_after);
    let app = Router::new().route("/", trigger).layer(arm);
    let test = async {
        let request = Request::post("/").body(Body::empty()).unwrap();
        tokio::select! {
            _ = app.oneshot(request) => panic!("it waits"),
            arrived = begun.acquire() => arrived?.forget(),
        }
        go_on.add_permits(1);
        hosted.handled(1).await;
        Ok(())
    };
    hosted.beside(test).await
}

#[tokio::test]
async fn what_another_host_left_behind_is_found_within_the_poll_interval() -> Result<()> {
    let hosted = Hosted::start(|builder| builder).await?;
    let test = async {
        hosted.engine.hooks().send("count", &()).await?;
        hosted.host.arm().await;
        hosted.handled(1).await;
        // Nobody sets the alarm for this one.
        hosted.engine.hooks().send("count", &()).await?;
        while hosted.handled.load(Ordering::SeqCst) < 2 {
            hosted.clock.advance(POLL_INTERVAL);
            tokio::task::yield_now().await;
        }
        Ok(())
    };
    hosted.beside(test).await
}
