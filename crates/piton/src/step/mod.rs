//! What workflow code holds: [`Step`], and the futures its methods return.

mod context;
mod log;
mod run;
mod sleep;
mod wait;

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use piton_core::{IntoSpan, Timestamp};

use crate::Result;
use crate::pass::{Pass, SleepUntil, scope};

pub use context::{StepContext, StepTransaction};
pub use log::{Log, LogBuilder};
pub use run::{Bodies, Each, Once, Run};
pub use sleep::Sleep;
pub use wait::{WaitForEvent, WaitForOutcome, WaitForReceived};

/// The handle through which a workflow does everything durable.
///
/// Each step has a **name**, its identity within the run: the same name again returns the recorded
/// result. In loops, put the index into the name. What happens outside `step.*` is not recorded and may
/// happen again on the next pass.
///
/// ```
/// use piton::prelude::*;
///
/// # async fn mail(_: &str, _: &str) -> std::io::Result<()> { Ok(()) }
/// async fn onboarding(user: Event<String>, step: &Step) -> Result<()> {
///     step.run("send welcome", async { Ok(mail(&user, "welcome").await?) }).await?;
///     step.sleep("let them settle in", "3 days").await?;
///     for day in 1..=3 {
///         step.run(format!("tip {day}"), async { Ok(mail(&user, "a tip").await?) }).await?;
///         step.sleep(format!("after tip {day}"), "1 day").await?;
///     }
///     Ok(())
/// }
/// # let _ = workflow("onboarding", onboarding);
/// ```
///
/// Steps borrow the handle, so that they cannot escape into a task of their own:
///
/// ```compile_fail
/// use piton::prelude::*;
///
/// async fn escape(_: Event<()>, step: &Step) -> Result<()> {
///     tokio::spawn(step.run("elsewhere", async { Ok(()) }));
///     Ok(())
/// }
/// ```
pub struct Step {
    pass: Arc<Pass>,
}

impl Step {
    pub(crate) fn new(pass: Arc<Pass>) -> Self {
        Self { pass }
    }

    /// Runs `body` once, durably: when it has succeeded, its result is recorded and the body never
    /// runs again in this run.
    ///
    /// The body is a future, so `?` works in it on any error, and it may borrow. It is executed **at
    /// least once**: after a crash in the middle it is executed again. On replay it is dropped unpolled.
    /// A failed attempt is retried (default: 5 times, from 10 seconds, doubling); each attempt has 10
    /// minutes. Both can be set: [`Run::retries`], [`Run::timeout`].
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn charge(_: u64) -> std::io::Result<String> { Ok("ok".into()) }
    /// async fn pay(cents: Event<u64>, step: &Step) -> Result<String> {
    ///     step.run("charge card", async { Ok(charge(*cents).await?) })
    ///         .retries(Retries::exponential(5, "10 seconds"))
    ///         .timeout("30 seconds")
    ///         .await
    /// }
    /// # let _ = workflow("pay", pay);
    /// ```
    pub fn run<T, F>(&self, name: impl Into<String>, body: F) -> Run<'_, T, Once<F>>
    where
        F: Future<Output = Result<T>>,
    {
        Run::new(self, name.into(), Once::new(body))
    }

    /// Like [`run`](Self::run), but the body is made by a closure that is told about the attempt and can
    /// write in the step's own transaction.
    ///
    /// The closure may be called again for a retry, also while other steps of the run are running. Borrow
    /// what it needs before: a closure that gives something away cannot be called twice.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn charge(_: &str, _: u32) -> std::io::Result<String> { Ok("ok".into()) }
    /// async fn pay(card: Event<String>, step: &Step) -> Result<String> {
    ///     let card = &*card;
    ///     step.run_with("charge card", |cx| async move {
    ///         println!("attempt {}", cx.attempt());
    ///         Ok(charge(card, cx.attempt()).await?)
    ///     })
    ///     .await
    /// }
    /// # let _ = workflow("pay", pay);
    /// ```
    pub fn run_with<T, F, C>(&self, name: impl Into<String>, body: C) -> Run<'_, T, Each<C>>
    where
        C: FnMut(StepContext) -> F,
        F: Future<Output = Result<T>>,
    {
        Run::new(self, name.into(), Each::new(body))
    }

    /// Sleeps durably: the run takes no memory meanwhile and goes on after crashes and deploys.
    ///
    /// The wake time is fixed when the step is first reached. Zero and negative durations complete at
    /// once; the longest sleep is 365 days.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// async fn reminder(_: Event<()>, step: &Step) -> Result<()> {
    ///     step.sleep("cooling-off period", "14 days").await?;
    ///     step.sleep("a moment", std::time::Duration::from_millis(20)).await
    /// }
    /// # let _ = workflow("reminder", reminder);
    /// ```
    pub fn sleep(&self, name: impl Into<String>, duration: impl IntoSpan) -> Sleep<'_> {
        Sleep::new(self, name.into(), duration.into_span().map(SleepUntil::After))
    }

    /// Sleeps durably until a moment; one in the past completes at once, one more than 365 days ahead is
    /// refused.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// async fn embargo(until: Event<Timestamp>, step: &Step) -> Result<()> {
    ///     step.sleep_until("embargo", *until).await
    /// }
    /// # let _ = workflow("embargo", embargo);
    /// ```
    pub fn sleep_until(&self, name: impl Into<String>, at: impl Into<Timestamp>) -> Sleep<'_> {
        Sleep::new(self, name.into(), Ok(SleepUntil::At(at.into())))
    }

    /// Waits durably for an event of the given type, up to 24 hours or the
    /// [`timeout`](WaitForEvent::timeout) given.
    ///
    /// Takes the oldest event of that type that no other wait has taken, also one that was sent before.
    /// Times out with an error named `WaitForEventTimeout`; [`outcome`](WaitForEvent::outcome) gives an
    /// `Option` instead.
    ///
    /// An event whose payload does not decode as `T` is taken all the same: the wait ends with `DECODE_FAILED`, now and on
    /// every replay, and so does the run unless the code handles it. Where senders are not to be trusted, wait for a
    /// [`serde_json::Value`], decode it yourself, and wait again under another name.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # #[derive(serde::Deserialize)]
    /// # struct Approval { by: String }
    /// async fn approve(_: Event<()>, step: &Step) -> Result<String> {
    ///     let approval: Approval =
    ///         step.wait_for_event("approval", "approved").timeout("3 days").await?;
    ///     Ok(approval.by)
    /// }
    /// # let _ = workflow("approve", approve);
    /// ```
    pub fn wait_for_event<T>(
        &self,
        name: impl Into<String>,
        event_type: impl Into<String>,
    ) -> WaitForEvent<'_, T> {
        WaitForEvent::new(self, name.into(), event_type.into())
    }

    /// Writes to the durable log of this run, which anyone can read in its history.
    ///
    /// A line carries the step and the attempt it was written in. It is committed with the next boundary.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use serde_json::json;
    /// async fn pay(cents: Event<u64>, step: &Step) -> Result<()> {
    ///     step.log().info("charging").data(json!({ "cents": *cents })).category("payments");
    ///     Ok(())
    /// }
    /// # let _ = workflow("pay", pay);
    /// ```
    pub fn log(&self) -> Log {
        let scope = scope::current().filter(|scope| Arc::ptr_eq(&scope.pass, &self.pass));
        Log::new(Arc::clone(&self.pass), scope.and_then(|scope| scope.step))
    }

    /// The id of the instance.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// async fn who(_: Event<()>, step: &Step) -> Result<String> {
    ///     Ok(format!("{} run {}", step.instance_id(), step.run_number()))
    /// }
    /// # let _ = workflow("who", who);
    /// ```
    pub fn instance_id(&self) -> &str {
        self.pass.info.id.as_str()
    }

    /// The number of this run: 0, plus one for each restart.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// async fn which(_: Event<()>, step: &Step) -> Result<bool> {
    ///     let was_restarted = step.run_number() > 0;
    ///     Ok(was_restarted)
    /// }
    /// # let _ = workflow("which", which);
    /// ```
    pub fn run_number(&self) -> u32 {
        self.pass.info.run
    }

    fn pass(&self) -> &Arc<Pass> {
        &self.pass
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = &self.pass.info;
        write!(f, "Step({}/{} run {})", info.workflow, info.id, info.run)
    }
}

/// Ties a step's future to the [`Step`] it came from and to what it returns.
type Returns<'s, T> = PhantomData<(&'s Step, fn() -> T)>;
