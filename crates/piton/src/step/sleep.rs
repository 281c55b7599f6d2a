//! `step.sleep` and `step.sleep_until`.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use piton_core::DurationError;

use super::Step;
use super::run::Asking;
use crate::pass::{Ask, SleepUntil, StepPoll};
use crate::{Error, Result};

/// A durable sleep; await it.
///
/// ```
/// # use piton::prelude::*;
/// async fn book(_: Event<()>, step: &Step) -> Result<()> {
///     let deadline = step.sleep("deadline", "3 days");
///     select! {
///         confirmed = step.wait_for_event::<()>("confirmation", "confirmed") => confirmed,
///         slept = deadline => slept.and(Err(Error::new("nobody confirmed"))),
///     }
/// }
/// # let _ = workflow("book", book);
/// ```
#[must_use = "a sleep does nothing unless it is awaited"]
pub struct Sleep<'s> {
    step: Asking,
    until: std::result::Result<SleepUntil, DurationError>,
    returns: super::Returns<'s, ()>,
}

impl<'s> Sleep<'s> {
    pub(super) fn new(
        step: &'s Step,
        name: String,
        until: std::result::Result<SleepUntil, DurationError>,
    ) -> Self {
        Self { step: Asking::new(step, name), until, returns: std::marker::PhantomData }
    }

    fn ask(&self) -> Result<Ask> {
        Ok(Ask::Sleep { wake: self.until.clone()? })
    }
}

impl Future for Sleep<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        if !this.step.is_asked() {
            let ask = this.ask()?;
            this.step.ask(ask, context)?;
        }
        match this.step.poll(context) {
            StepPoll::Done(outcome) => {
                Poll::Ready(outcome.map(drop).map_err(|error| Error::from_record(&error)))
            }
            StepPoll::Pending | StepPoll::Start { .. } | StepPoll::Run { .. } => Poll::Pending,
        }
    }
}

impl std::fmt::Debug for Sleep<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sleep({:?})", self.step.raw_name())
    }
}
