//! Work that goes on without its caller.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::runtime::{BoxFuture, Runtime};

/// Work that is seen through even if its caller goes away in the middle: a run that was created or woken
/// already leased must not be left to nobody.
pub(super) struct SeenThrough<T: Send + 'static> {
    runtime: Arc<dyn Runtime>,
    work: Option<BoxFuture<T>>,
}

impl<T: Send + 'static> SeenThrough<T> {
    pub(super) fn new(runtime: Arc<dyn Runtime>, work: BoxFuture<T>) -> Self {
        Self { runtime, work: Some(work) }
    }
}

impl<T: Send + 'static> Future for SeenThrough<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // What panics here is gone with its panic, and cannot go on.
        let mut work = self.work.take().expect("polled after it was done");
        let done = work.as_mut().poll(context);
        if done.is_pending() {
            self.work = Some(work);
        }
        done
    }
}

impl<T: Send + 'static> Drop for SeenThrough<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.runtime.spawn(Box::pin(async move { drop(work.await) })).detach();
        }
    }
}
