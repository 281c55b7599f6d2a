//! What wakes a pass: its own function, a commit, or something that happened to its instance.
//!
//! The workflow's function is polled with a waker of its own, so that the driver knows whether the
//! function wants to be polled or only the driver has news. While the driver is at work anyway, ringing
//! sets a flag and wakes nobody: that saves a trip through the scheduler for every step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Wake, Waker};

use atomic_waker::AtomicWaker;

/// Flags that anyone may raise and the driver takes down.
#[derive(Default)]
pub(crate) struct Bell {
    function_woken: AtomicBool,
    driver_awake: AtomicBool,
    touched: AtomicBool,
    order: AtomicU8,
    driver: AtomicWaker,
}

/// What the runner wants of a pass; a later one is never weaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Order {
    /// Go on.
    Run = 0,
    /// Start no new step; leave when the running ones are recorded.
    Finish = 1,
    /// The run is no longer ours: leave at once.
    Abandon = 2,
}

impl Bell {
    /// The waker to poll the function with.
    pub(crate) fn function_waker(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::clone(self))
    }

    /// Something happened to the instance: an event, a pause, a terminate.
    pub(crate) fn touch(&self) {
        self.touched.store(true, Ordering::Release);
        self.driver.wake();
    }

    pub(crate) fn order(&self, order: Order) {
        self.order.fetch_max(order as u8, Ordering::AcqRel);
        self.driver.wake();
    }

    /// A parked run goes on under a new claim: orders given under the old one are void.
    pub(crate) fn forget_orders(&self) {
        self.order.store(Order::Run as u8, Ordering::Release);
    }

    pub(crate) fn ordered(&self) -> Order {
        match self.order.load(Ordering::Acquire) {
            0 => Order::Run,
            1 => Order::Finish,
            _ => Order::Abandon,
        }
    }

    pub(crate) fn wake_function(&self) {
        self.function_woken.store(true, Ordering::Release);
    }

    pub(crate) fn take_function_woken(&self) -> bool {
        self.function_woken.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn take_touched(&self) -> bool {
        self.touched.swap(false, Ordering::AcqRel)
    }

    /// Whether there is anything for the driver to do; if not, `waker` is woken when there is.
    pub(crate) fn poll_rung(&self, waker: &Waker, known: Order) -> bool {
        self.driver.register(waker);
        self.driver_awake.store(false, Ordering::SeqCst);
        let rung = self.function_woken.load(Ordering::SeqCst)
            || self.touched.load(Ordering::Acquire)
            || self.ordered() > known;
        if rung {
            self.driver_awake.store(true, Ordering::SeqCst);
        }
        rung
    }

    pub(crate) fn driver_is_awake(&self) {
        self.driver_awake.store(true, Ordering::SeqCst);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.function_woken.store(true, Ordering::SeqCst);
        if !self.driver_awake.load(Ordering::SeqCst) {
            self.driver.wake();
        }
    }
}
