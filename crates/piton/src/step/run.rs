//! `step.run` and `step.run_with`: a builder that is itself the future.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use piton_core::{Code, IntoSpan, Json, Refusal, Retries, Span, StepName, StepType};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Returns, Step, StepContext};
use crate::event::Received;
use crate::intercept::{AskedStep, Instead};
use crate::pass::{Ask, Pass, RunInfo, SlotId, StepPoll, scope};
use crate::store::Mutation;
use crate::{Error, Result, codec};

/// Where the bodies of a step's attempts come from. Sealed: see [`Step::run`] and [`Step::run_with`].
///
/// ```
/// # use piton::prelude::*;
/// use piton::{Bodies, Run};
///
/// fn patient<T, B: Bodies>(step: Run<'_, T, B>) -> Run<'_, T, B> {
///     step.retries(Retries::exponential(20, "1 minute")).timeout("1 hour")
/// }
/// async fn pay(_: Event<()>, step: &Step) -> Result<u64> {
///     patient(step.run("charge", async { Ok(125) })).await
/// }
/// # let _ = workflow("pay", pay);
/// ```
pub trait Bodies: sealed::Sealed {
    /// The future of one attempt.
    type Body: Future;
    #[doc(hidden)]
    const REPEATABLE: bool;
    #[doc(hidden)]
    fn next(&mut self, context: Option<StepContext>) -> Option<Self::Body>;
}

mod sealed {
    pub trait Sealed {}
    impl<F> Sealed for super::Once<F> {}
    impl<C> Sealed for super::Each<C> {}
}

/// One future, good for one attempt; a retry gets its body from the next pass.
///
/// ```
/// # use piton::prelude::*;
/// use piton::{Once, Run};
///
/// fn charge<F: Future<Output = Result<u64>>>(step: &Step, body: F) -> Run<'_, u64, Once<F>> {
///     step.run("charge", body).timeout("30 seconds")
/// }
/// ```
pub struct Once<F>(Option<F>);

impl<F> Once<F> {
    pub(super) fn new(body: F) -> Self {
        Self(Some(body))
    }
}

impl<F: Future> Bodies for Once<F> {
    type Body = F;
    const REPEATABLE: bool = false;

    fn next(&mut self, _: Option<StepContext>) -> Option<F> {
        self.0.take()
    }
}

/// A closure that makes a body for each attempt.
///
/// ```
/// # use piton::prelude::*;
/// use piton::{Each, Run, StepContext};
///
/// fn charge<C, F>(step: &Step, body: C) -> Run<'_, u64, Each<C>>
/// where
///     C: FnMut(StepContext) -> F,
///     F: Future<Output = Result<u64>>,
/// {
///     step.run_with("charge", body).timeout("30 seconds")
/// }
/// ```
pub struct Each<C>(C);

impl<C> Each<C> {
    pub(super) fn new(make: C) -> Self {
        Self(make)
    }
}

impl<C: FnMut(StepContext) -> F, F: Future> Bodies for Each<C> {
    type Body = F;
    const REPEATABLE: bool = true;

    fn next(&mut self, context: Option<StepContext>) -> Option<F> {
        Some((self.0)(context?))
    }
}

pin_project! {
    /// A `do` step: set [`retries`](Run::retries) and [`timeout`](Run::timeout), then await it, alone or
    /// in `join!`, `try_join!` and `select!`.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// async fn book(_: Event<()>, step: &Step) -> Result<u64> {
    ///     let flight = step.run("flight", async { Ok(300) });
    ///     let hotel = step.run("hotel", async { Ok(120) }).timeout("1 minute");
    ///     let (flight, hotel) = try_join!(flight, hotel)?;
    ///     Ok(flight + hotel)
    /// }
    /// # let _ = workflow("book", book);
    /// ```
    #[must_use = "a step does nothing unless it is awaited"]
    pub struct Run<'s, T, B: Bodies> {
        bodies: B,
        #[pin]
        body: Option<B::Body>,
        step: Asking,
        retries: Option<Retries>,
        timeout: Option<std::result::Result<Span, piton_core::DurationError>>,
        context: Option<StepContext>,
        returns: Returns<'s, T>,
    }
}

impl<'s, T, B: Bodies> Run<'s, T, B> {
    pub(super) fn new(step: &'s Step, name: String, bodies: B) -> Self {
        Self {
            bodies,
            body: None,
            step: Asking::new(step, name),
            retries: None,
            timeout: None,
            context: None,
            returns: PhantomData,
        }
    }

    /// Sets the retry policy.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// async fn pay(_: Event<()>, step: &Step) -> Result<()> {
    ///     step.run("charge", async { Ok(()) }).retries(Retries::linear(3, "2 seconds")).await
    /// }
    /// # let _ = workflow("pay", pay);
    /// ```
    pub fn retries(mut self, retries: Retries) -> Self {
        self.retries = Some(retries);
        self
    }

    /// Sets how long one attempt may take. A body that takes longer is dropped; the attempt has failed
    /// with an error named `StepTimeout`, and is retried like any other.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// async fn pay(_: Event<()>, step: &Step) -> Result<()> {
    ///     step.run("charge", async { Ok(()) }).timeout("30 seconds").await
    /// }
    /// # let _ = workflow("pay", pay);
    /// ```
    pub fn timeout(mut self, timeout: impl IntoSpan) -> Self {
        self.timeout = Some(timeout.into_span());
        self
    }
}

impl<T, F, B> Future for Run<'_, T, B>
where
    T: Serialize + DeserializeOwned,
    F: Future<Output = Result<T>>,
    B: Bodies<Body = F>,
{
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let mut this = self.project();
        if !this.step.is_asked() {
            let ask = do_ask::<B>(this.step.pass(), this.retries.take(), this.timeout.take())?;
            this.step.ask(ask, context)?;
        }
        let attempt = match this.step.poll(context) {
            StepPoll::Pending => {
                this.body.set(None);
                return Poll::Pending;
            }
            StepPoll::Done(outcome) => return Poll::Ready(this.step.decode(outcome)),
            StepPoll::Run { attempt } => attempt,
            StepPoll::Start { attempt } => {
                if this.step.is_replaced(attempt) {
                    return Poll::Pending;
                }
                // A body that is a future already has no way to ask for it.
                *this.context = B::REPEATABLE.then(|| {
                    StepContext::new(Arc::clone(this.step.pass()), this.step.name(), attempt)
                });
                match make_body(this.bodies, this.context.clone(), this.step, attempt) {
                    Ok(body) => this.body.set(Some(body)),
                    Err(error) => {
                        this.step.body_ended(Err(error), Vec::new());
                        return Poll::Pending;
                    }
                }
                attempt
            }
        };
        // Without a body the attempt hangs until its timeout: a test wants it so.
        let Some(body) = this.body.as_mut().as_pin_mut() else { return Poll::Pending };
        let outcome = ready!(poll_body(body, this.step, attempt, context));
        this.body.set(None);
        let mutations = this.context.take().map(|cx| cx.take_mutations()).unwrap_or_default();
        this.step.body_ended(outcome, mutations);
        // The driver takes note as soon as the function rests; its reveal will wake us.
        Poll::Pending
    }
}

fn do_ask<B: Bodies>(
    pass: &Pass,
    retries: Option<Retries>,
    timeout: Option<std::result::Result<Span, piton_core::DurationError>>,
) -> Result<Ask> {
    let defaults = &pass.step_defaults;
    let retries = match retries {
        Some(retries) => {
            retries.check()?;
            Arc::new(retries)
        }
        None => Arc::clone(&defaults.retries),
    };
    let timeout = timeout.transpose()?.unwrap_or(defaults.timeout);
    if timeout <= Span::ZERO {
        let message = format!("a step's timeout of {timeout} must be longer than nothing");
        return Err(Refusal::new(Code::InvalidDuration, message).into());
    }
    Ok(Ask::Do { retries, timeout, repeatable: B::REPEATABLE })
}

/// Makes the body of an attempt: for `run_with`, that is user code.
fn make_body<B: Bodies>(
    bodies: &mut B,
    context: Option<StepContext>,
    step: &Asking,
    attempt: u32,
) -> Result<B::Body> {
    let make = || bodies.next(context).expect("a body is granted once per future");
    if B::REPEATABLE { in_attempt(step, attempt, make) } else { Ok(make()) }
}

/// Polls a body and writes its result as JSON.
fn poll_body<T: Serialize, F: Future<Output = Result<T>>>(
    body: Pin<&mut F>,
    step: &Asking,
    attempt: u32,
    context: &mut Context<'_>,
) -> Poll<Result<Json>> {
    let encode = |value| codec::encode(|| format!("the result of step {:?}", step.name()), &value);
    in_attempt(step, attempt, || body.poll(context).map(|outcome| outcome.and_then(encode)))
        .unwrap_or_else(|panic| Poll::Ready(Err(panic)))
}

/// Calls user code that belongs to an attempt; a panic is an error of that attempt.
fn in_attempt<T>(step: &Asking, attempt: u32, code: impl FnOnce() -> T) -> Result<T> {
    let (pass, step) = (Arc::clone(step.pass()), Some((step.name().clone(), attempt)));
    let _scope = scope::enter(scope::Scope { pass, step });
    catch_unwind(AssertUnwindSafe(code)).map_err(|payload| Error::from_panic(&*payload))
}

impl<T, B: Bodies> fmt::Debug for Run<'_, T, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Run({:?})", self.step.raw_name)
    }
}

/// A step's future towards the pass: asks once, polls, and lets go when dropped.
pub(super) struct Asking {
    pass: Arc<Pass>,
    raw_name: String,
    /// Parsed when the step is asked for, and its place in the pass.
    asked: Option<(StepName, SlotId)>,
    state: AskState,
}

#[derive(PartialEq, Eq)]
enum AskState {
    NotYet,
    Asked,
    Done,
}

impl Asking {
    pub(super) fn new(step: &Step, raw_name: String) -> Self {
        Self { pass: Arc::clone(step.pass()), raw_name, asked: None, state: AskState::NotYet }
    }

    pub(super) fn is_asked(&self) -> bool {
        self.state != AskState::NotYet
    }

    pub(super) fn pass(&self) -> &Arc<Pass> {
        &self.pass
    }

    pub(super) fn raw_name(&self) -> &str {
        &self.raw_name
    }

    /// The name, once asked.
    pub(super) fn name(&self) -> &StepName {
        &self.asked().0
    }

    fn asked(&self) -> &(StepName, SlotId) {
        self.asked.as_ref().expect("the step was asked for")
    }

    fn slot(&self) -> SlotId {
        self.asked().1
    }

    fn body_ended(&self, outcome: Result<Json>, mutations: Vec<Mutation>) {
        self.pass.body_ended(self.slot(), outcome, mutations);
    }

    pub(super) fn ask(&mut self, mut ask: Ask, context: &mut Context<'_>) -> Result<()> {
        let name = StepName::parse(&self.raw_name, &self.pass.limits)?;
        if let Some(interceptor) = &self.pass.interceptor {
            let step = asked_step(&self.pass, &name, ask.step_type());
            interceptor.asked(&step);
            if let Ask::Wait { event_type, timeout } = &mut ask {
                *timeout = interceptor.wait(&step, event_type, *timeout);
            }
        }
        let slot = self.pass.ask(&name, ask, context.waker())?;
        self.asked = Some((name, slot));
        self.state = AskState::Asked;
        Ok(())
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> StepPoll {
        assert!(self.state == AskState::Asked, "a step was polled after it had returned");
        let poll = self.pass.poll(self.slot(), context.waker());
        if matches!(poll, StepPoll::Done(_)) {
            self.pass.drop_ask(self.slot());
            self.state = AskState::Done;
        }
        poll
    }

    /// Whether something else happens in this attempt than its body.
    fn is_replaced(&self, attempt: u32) -> bool {
        let Some(interceptor) = &self.pass.interceptor else { return false };
        let (pass, name) = (&self.pass, self.name());
        match interceptor.attempt(&asked_step(pass, name, StepType::Do), attempt) {
            Instead::Body => return false,
            Instead::Return(result) => self.body_ended(Ok(result), Vec::new()),
            Instead::Fail(error) => self.body_ended(Err(error), Vec::new()),
            Instead::TimeOut => pass.time_out(self.slot()),
            Instead::Hang => {}
        }
        true
    }

    /// What the step returns: the value as it comes out of storage, on the first pass too.
    pub(super) fn decode<T: DeserializeOwned>(
        &self,
        outcome: std::result::Result<Json, piton_core::record::RecordedError>,
    ) -> Result<T> {
        let json = outcome.map_err(|error| Error::from_record(&error))?;
        codec::decode(|| format!("the recorded result of step {:?}", self.raw_name), &json)
    }

    /// What a wait returns. The event is taken whatever it carries, so the error tells whoever sends it what is wrong.
    pub(super) fn decode_event<T: DeserializeOwned>(
        &self,
        outcome: std::result::Result<Json, piton_core::record::RecordedError>,
    ) -> Result<Received<T>> {
        let json = outcome.map_err(|error| Error::from_record(&error))?;
        let name = &self.raw_name;
        let event: Received<Json> =
            codec::decode(|| format!("the recorded result of step {name:?}"), &json)?;
        let event_type = &event.event_type;
        let what = || format!("the payload of event {event_type:?}, which step {name:?} took,");
        let payload = codec::decode(what, &event.payload)?;
        Ok(Received { event_type: event.event_type, payload, timestamp: event.timestamp })
    }
}

fn asked_step<'a>(pass: &'a Pass, name: &'a StepName, step_type: StepType) -> AskedStep<'a> {
    let RunInfo { workflow, id, run } = &pass.info;
    AskedStep { workflow, instance_id: id, run_number: *run, name, step_type }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if self.state == AskState::Asked {
            self.pass.drop_ask(self.slot());
        }
    }
}
