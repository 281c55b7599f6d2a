//! `step.wait_for_event`, in three forms: the payload or an error, `Option` on timeout, the whole event.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use piton_core::boundary::WAIT_TIMEOUT;
use piton_core::{DurationError, EventType, IntoSpan, Span};
use serde::de::DeserializeOwned;

use super::run::Asking;
use super::{Returns, Step};
use crate::event::Received;
use crate::pass::{Ask, StepPoll};
use crate::{Error, Result};

/// A durable wait for an event; await it for the payload.
///
/// ```
/// # use piton::prelude::*;
/// async fn pay(_: Event<()>, step: &Step) -> Result<u64> {
///     let cents: u64 = step.wait_for_event("payment", "paid").timeout("2 weeks").await?;
///     Ok(cents)
/// }
/// # let _ = workflow("pay", pay);
/// ```
#[must_use = "a wait does nothing unless it is awaited"]
pub struct WaitForEvent<'s, T> {
    step: Asking,
    event_type: String,
    timeout: Option<std::result::Result<Span, DurationError>>,
    returns: Returns<'s, T>,
}

impl<'s, T> WaitForEvent<'s, T> {
    pub(super) fn new(step: &'s Step, name: String, event_type: String) -> Self {
        Self { step: Asking::new(step, name), event_type, timeout: None, returns: PhantomData }
    }

    /// Sets how long to wait: 1 second to 365 days.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// async fn pay(_: Event<()>, step: &Step) -> Result<u64> {
    ///     step.wait_for_event("payment", "paid").timeout("2 weeks").await
    /// }
    /// # let _ = workflow("pay", pay);
    /// ```
    pub fn timeout(mut self, timeout: impl IntoSpan) -> Self {
        self.timeout = Some(timeout.into_span());
        self
    }

    /// Makes the timeout an ordinary outcome: `None`.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// async fn pay(_: Event<()>, step: &Step) -> Result<String> {
    ///     let payment = step.wait_for_event::<u64>("payment", "paid").timeout("2 weeks").outcome();
    ///     Ok(match payment.await? {
    ///         Some(cents) => format!("paid {cents}"),
    ///         None => "sent a reminder".to_owned(),
    ///     })
    /// }
    /// # let _ = workflow("pay", pay);
    /// ```
    pub fn outcome(self) -> WaitForOutcome<'s, T> {
        WaitForOutcome(self)
    }

    /// Returns the whole event: type, payload and when it arrived.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// async fn pay(_: Event<()>, step: &Step) -> Result<String> {
    ///     let event = step.wait_for_event::<u64>("payment", "paid").received().await?;
    ///     Ok(format!("{} cents at {}", event.payload, event.timestamp))
    /// }
    /// # let _ = workflow("pay", pay);
    /// ```
    pub fn received(self) -> WaitForReceived<'s, T> {
        WaitForReceived(self)
    }

    fn ask(&self) -> Result<Ask> {
        let pass = self.step.pass();
        let event_type = EventType::parse(&self.event_type, &pass.limits)?;
        let timeout = match &self.timeout {
            Some(timeout) => pass.limits.check_wait_timeout(timeout.clone()?)?,
            None => pass.step_defaults.wait_timeout,
        };
        Ok(Ask::Wait { event_type, timeout })
    }
}

impl<T: DeserializeOwned> WaitForEvent<'_, T> {
    fn poll_received(&mut self, context: &mut Context<'_>) -> Poll<Result<Received<T>>> {
        if !self.step.is_asked() {
            let ask = self.ask()?;
            self.step.ask(ask, context)?;
        }
        match self.step.poll(context) {
            StepPoll::Done(outcome) => Poll::Ready(self.step.decode_event(outcome)),
            StepPoll::Pending | StepPoll::Start { .. } | StepPoll::Run { .. } => Poll::Pending,
        }
    }
}

impl<T: DeserializeOwned> Future for WaitForEvent<'_, T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        self.poll_received(context).map_ok(|received| received.payload)
    }
}

/// A wait whose timeout is `None`; see [`WaitForEvent::outcome`].
///
/// ```
/// # use piton::prelude::*;
/// async fn is_paid(_: Event<()>, step: &Step) -> Result<bool> {
///     let payment = step.wait_for_event::<u64>("payment", "paid").timeout("2 weeks").outcome();
///     Ok(payment.await?.is_some())
/// }
/// # let _ = workflow("is-paid", is_paid);
/// ```
#[must_use = "a wait does nothing unless it is awaited"]
pub struct WaitForOutcome<'s, T>(WaitForEvent<'s, T>);

impl<T: DeserializeOwned> Future for WaitForOutcome<'_, T> {
    type Output = Result<Option<T>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Option<T>>> {
        match ready!(self.0.poll_received(context)) {
            Ok(received) => Poll::Ready(Ok(Some(received.payload))),
            Err(error) if is_wait_timeout(&error) => Poll::Ready(Ok(None)),
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

fn is_wait_timeout(error: &Error) -> bool {
    error.name() == WAIT_TIMEOUT
}

/// A wait that returns the whole event; see [`WaitForEvent::received`].
///
/// ```
/// # use piton::prelude::*;
/// async fn paid_at(_: Event<()>, step: &Step) -> Result<Timestamp> {
///     Ok(step.wait_for_event::<u64>("payment", "paid").received().await?.timestamp)
/// }
/// # let _ = workflow("paid-at", paid_at);
/// ```
#[must_use = "a wait does nothing unless it is awaited"]
pub struct WaitForReceived<'s, T>(WaitForEvent<'s, T>);

impl<T: DeserializeOwned> Future for WaitForReceived<'_, T> {
    type Output = Result<Received<T>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Received<T>>> {
        self.0.poll_received(context)
    }
}

macro_rules! debug {
    ($($type:ident => |$this:ident| $wait:expr),*) => {$(
        impl<T> fmt::Debug for $type<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let $this = self;
                write!(f, concat!(stringify!($type), "({:?})"), $wait.step.raw_name())
            }
        }
    )*};
}
debug!(WaitForEvent => |this| this, WaitForOutcome => |this| this.0, WaitForReceived => |this| this.0);
