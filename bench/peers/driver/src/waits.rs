//! Workflows that wait: for an event, or for a moment.

#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark measures real time and has no engine's clock"
)]

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{sleep as pause, timeout, timeout_at};

use crate::load::first_calls;
use crate::{Engine, Measured, Options, Phase};

/// How long workflows may take to get to their wait, or from there to their last step.
const PATIENCE: Duration = Duration::from_secs(20);

/// Between the first step of the last workflow and the first event: all of them wait then.
const SETTLE: Duration = Duration::from_millis(500);

/// How many workflows are being started at any time.
const STARTING: usize = 64;

/// No workflow is started so shortly before the moment.
const LAST_START: Duration = Duration::from_secs(1);

/// Where a workflow is, told by its steps.
#[derive(Clone, Copy, Debug)]
enum Mark {
    Waiting,
    Resumed { number: u64, at: Instant },
}

struct Marks {
    told: UnboundedSender<Mark>,
    heard: Mutex<UnboundedReceiver<Mark>>,
}

/// Steps have nothing but their input in some engines, so what they tell goes through here.
static MARKS: LazyLock<Marks> = LazyLock::new(|| {
    let (told, heard) = unbounded_channel();
    Marks { told, heard: Mutex::new(heard) }
});

/// Called by the step before the wait.
pub fn waiting() {
    let _ = MARKS.told.send(Mark::Waiting);
}

/// Called by the step behind the wait, first of all.
pub fn resumed(number: u64) {
    let _ = MARKS.told.send(Mark::Resumed { number, at: Instant::now() });
}

/// How long it is until a moment.
pub fn until(moment: SystemTime) -> Duration {
    moment.duration_since(SystemTime::now()).unwrap_or_default()
}

/// From the moment before an event is sent until the step behind the wait has started, one workflow after the other.
pub(crate) async fn event<E: Engine>(engine: &E, options: &Options) -> Result<Measured> {
    first_calls(engine, options).await?;
    let listeners = 0..options.count as u64;
    for number in listeners.clone() {
        engine.start_listener(number).await.context("cannot start a workflow")?;
    }
    let mut marks = MARKS.heard.lock().await;
    for _ in listeners.clone() {
        let waiting = timeout(PATIENCE, marks.recv());
        waiting.await.context("not all workflows got to their wait")?;
    }
    pause(SETTLE).await;
    Phase::Start.tell();
    let start = Instant::now();
    let mut latencies = Vec::new();
    for sent_to in listeners {
        let sent = Instant::now();
        engine.send_event(sent_to).await.context("cannot send an event")?;
        let resumed = timeout(PATIENCE, async {
            while let Some(mark) = marks.recv().await {
                match mark {
                    Mark::Resumed { number, at } if number == sent_to => return Some(at - sent),
                    Mark::Resumed { .. } | Mark::Waiting => {}
                }
            }
            None
        });
        latencies.extend(resumed.await.context("an event resumed nothing")?);
        if start.elapsed() > options.span {
            break;
        }
    }
    let elapsed = start.elapsed();
    Phase::Stop.tell();
    Ok(Measured::new(1, elapsed, latencies))
}

/// As many workflows as can be put to sleep within the span, but not more than the count; then how late each one resumes, and
/// when the last one does.
pub(crate) async fn sleep<E: Engine>(engine: &E, options: &Options) -> Result<Measured> {
    first_calls(engine, options).await?;
    let (moment, moment_tokio) = (SystemTime::now() + options.span, Instant::now() + options.span);
    let next = Arc::new(AtomicUsize::new(0));
    let mut starting = JoinSet::new();
    for _ in 0..STARTING {
        let (engine, next, count) = (engine.clone(), Arc::clone(&next), options.count);
        starting.spawn(async move {
            let mut started = Vec::new();
            while until(moment) > LAST_START {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    break;
                }
                engine.start_sleeper(number as u64, moment).await?;
                started.push(number as u64);
            }
            Result::<_>::Ok(started)
        });
    }
    let mut sleepers = HashSet::new();
    while let Some(started) = starting.join_next().await {
        sleepers.extend(started?.context("cannot start a workflow")?);
    }
    tokio::time::sleep_until(moment_tokio.into()).await;
    Phase::Start.tell();
    let mut marks = MARKS.heard.lock().await;
    let (mut late, mut last) = (Vec::new(), moment_tokio);
    let deadline = moment_tokio + PATIENCE;
    while !sleepers.is_empty() {
        let Ok(mark) = timeout_at(deadline.into(), marks.recv()).await else {
            bail!(
                "{} of {} did not wake in {PATIENCE:?}",
                sleepers.len(),
                late.len() + sleepers.len()
            );
        };
        if let Some(Mark::Resumed { number, at }) = mark
            && sleepers.remove(&number)
        {
            late.push(at.saturating_duration_since(moment_tokio));
            last = last.max(at);
        }
    }
    Phase::Stop.tell();
    Ok(Measured::new(1, last - moment_tokio, late))
}
