//! A runtime whose time moves only when a test says so.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use piton::runtime::{BoxFuture, Runtime, TaskOwner};
use piton_core::{Span, Timestamp};

/// When a virtual clock starts: the first of January 2026.
pub const START: Timestamp = Timestamp::from_millis(1_767_225_600_000);

/// Virtual time, seeded randomness, and tasks on the ambient tokio runtime.
///
/// The wall clock and the monotonic clock stand still until [`advance`](Self::advance) moves both, or
/// [`set_time`](Self::set_time) moves the wall clock alone. A sleep ends when the monotonic clock passes its
/// deadline; letting the woken task run is the caller's business.
///
/// # Example
///
/// ```
/// use piton::runtime::Runtime;
/// use piton_core::Span;
/// use piton_testing::VirtualRuntime;
///
/// let runtime = VirtualRuntime::new(7);
/// let before = runtime.now();
/// runtime.advance(Span::literal("14 days"));
/// assert_eq!(runtime.now().since(before), Span::literal("14 days"));
/// ```
pub struct VirtualRuntime {
    clock: Arc<Mutex<Clock>>,
}

struct Clock {
    wall: Timestamp,
    monotonic_ms: u64,
    random: SplitMix64,
    /// Wakers leave this map alive and are dropped outside the lock: dropping one may drop a task that holds
    /// other sleeps.
    sleeps: BTreeMap<SleepKey, Waker>,
    sleeps_started: u64,
}

/// By deadline, then by start: the order in which sleeps end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct SleepKey {
    deadline_ms: u64,
    number: u64,
}

impl VirtualRuntime {
    /// A runtime at [`START`] whose random numbers follow from `seed`.
    pub fn new(seed: u64) -> Arc<Self> {
        let clock = Clock {
            wall: START,
            monotonic_ms: 0,
            random: SplitMix64::new(seed),
            sleeps: BTreeMap::new(),
            sleeps_started: 0,
        };
        Arc::new(Self { clock: Arc::new(Mutex::new(clock)) })
    }

    /// Moves both clocks forward and ends the sleeps that fall due, earliest deadline first.
    ///
    /// # Panics
    ///
    /// If `span` is negative: only the wall clock can go back, by [`set_time`](Self::set_time).
    pub fn advance(&self, span: Span) {
        let ms = u64::try_from(span.as_millis()).expect("time advances forwards");
        let due = {
            let mut clock = lock(&self.clock);
            clock.wall = clock.wall.plus(span);
            clock.monotonic_ms = clock.monotonic_ms.saturating_add(ms);
            clock.take_due_sleeps()
        };
        // Outside the lock: a waker may run code that looks at the clock.
        for waker in due {
            waker.wake();
        }
    }

    /// Sets the wall clock, as an operator or a time server does. Sleeps do not notice.
    pub fn set_time(&self, time: Timestamp) {
        lock(&self.clock).wall = time;
    }

    /// When the next sleep ends, by the wall clock as it stands; `None` if nobody sleeps.
    pub fn next_sleep_at(&self) -> Option<Timestamp> {
        let clock = lock(&self.clock);
        let (first, _) = clock.sleeps.first_key_value()?;
        let left_ms = first.deadline_ms - clock.monotonic_ms;
        let left = Span::from_millis(i64::try_from(left_ms).unwrap_or(i64::MAX));
        Some(clock.wall.plus(left))
    }

    /// The same world seen by a machine whose wall clock is off by `skew`.
    pub fn offset_view(&self, skew: Span) -> Arc<dyn Runtime> {
        Arc::new(OffsetView { base: Self { clock: Arc::clone(&self.clock) }, skew })
    }
}

impl Clock {
    fn take_due_sleeps(&mut self) -> Vec<Waker> {
        let mut due = Vec::new();
        while let Some(first) = self.sleeps.first_entry() {
            if first.key().deadline_ms > self.monotonic_ms {
                break;
            }
            due.push(first.remove());
        }
        due
    }
}

fn lock(clock: &Mutex<Clock>) -> MutexGuard<'_, Clock> {
    clock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runtime for VirtualRuntime {
    fn now(&self) -> Timestamp {
        lock(&self.clock).wall
    }

    fn monotonic_us(&self) -> u64 {
        lock(&self.clock).monotonic_ms * 1_000
    }

    fn random_u64(&self) -> u64 {
        lock(&self.clock).random.next_u64()
    }

    fn sleep(&self, span: Span) -> BoxFuture<()> {
        let ms = u64::try_from(span.as_millis()).unwrap_or(0);
        let mut clock = lock(&self.clock);
        let key = SleepKey {
            deadline_ms: clock.monotonic_ms.saturating_add(ms),
            number: clock.sleeps_started,
        };
        clock.sleeps_started += 1;
        // Listed from now on, so that `next_sleep_at` knows of it before it is first polled.
        if ms > 0 {
            clock.sleeps.insert(key, Waker::noop().clone());
        }
        Box::pin(Sleep { clock: Arc::clone(&self.clock), key })
    }

    /// # Panics
    ///
    /// If it is not called from inside a tokio runtime.
    fn spawn(&self, task: BoxFuture<()>) -> TaskOwner {
        let task = tokio::runtime::Handle::current().spawn(task);
        let abort = task.abort_handle();
        TaskOwner::new(move || abort.abort())
    }
}

impl fmt::Debug for VirtualRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clock = lock(&self.clock);
        f.debug_struct("VirtualRuntime")
            .field("now", &clock.wall)
            .field("monotonic_ms", &clock.monotonic_ms)
            .field("sleeps", &clock.sleeps.len())
            .finish()
    }
}

/// A sleep that ends with the virtual clock and leaves the list when it is dropped.
struct Sleep {
    clock: Arc<Mutex<Clock>>,
    key: SleepKey,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut clock = lock(&self.clock);
        if clock.monotonic_ms >= self.key.deadline_ms {
            return Poll::Ready(());
        }
        let replaced = clock.sleeps.insert(self.key, cx.waker().clone());
        drop(clock);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let waker = lock(&self.clock).sleeps.remove(&self.key);
        drop(waker);
    }
}

/// A [`VirtualRuntime`] whose wall clock is shifted; everything else is shared.
struct OffsetView {
    base: VirtualRuntime,
    skew: Span,
}

impl Runtime for OffsetView {
    fn now(&self) -> Timestamp {
        self.base.now().plus(self.skew)
    }

    fn monotonic_us(&self) -> u64 {
        self.base.monotonic_us()
    }

    fn random_u64(&self) -> u64 {
        self.base.random_u64()
    }

    fn sleep(&self, span: Span) -> BoxFuture<()> {
        self.base.sleep(span)
    }

    fn spawn(&self, task: BoxFuture<()>) -> TaskOwner {
        self.base.spawn(task)
    }
}

/// SplitMix64: a small generator that gives the same numbers for the same seed, on every machine.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator that starts from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next sixty-four bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    ///
    /// # Panics
    ///
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The bias of the remainder is far below what a test could notice.
        self.next_u64() % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Span = Span::from_millis(1_000);

    fn seconds(n: i64) -> Span {
        Span::from_millis(n * 1_000)
    }

    /// Polls once, as an executor would.
    fn is_done(sleep: &mut BoxFuture<()>) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        sleep.as_mut().poll(&mut cx).is_ready()
    }

    #[test]
    fn time_stands_still_until_it_is_advanced() {
        let runtime = VirtualRuntime::new(0);
        assert_eq!((runtime.now(), runtime.monotonic_us()), (START, 0));
        runtime.advance(SECOND);
        assert_eq!(runtime.now(), START.plus(SECOND));
        assert_eq!(runtime.monotonic_us(), 1_000_000);
    }

    #[test]
    fn setting_the_wall_clock_leaves_the_monotonic_clock_and_sleeps_alone() {
        let runtime = VirtualRuntime::new(0);
        let mut sleep = runtime.sleep(SECOND);
        for time in [START.plus(seconds(3_600)), START.plus(seconds(-3_600))] {
            runtime.set_time(time);
            assert_eq!((runtime.now(), runtime.monotonic_us()), (time, 0));
            assert!(!is_done(&mut sleep));
            assert_eq!(runtime.next_sleep_at(), Some(time.plus(SECOND)));
        }
        runtime.advance(SECOND);
        assert!(is_done(&mut sleep));
    }

    #[test]
    fn a_sleep_ends_at_its_deadline_and_not_before() {
        let runtime = VirtualRuntime::new(0);
        let mut sleep = runtime.sleep(SECOND);
        runtime.advance(Span::from_millis(999));
        assert!(!is_done(&mut sleep));
        runtime.advance(Span::from_millis(1));
        assert!(is_done(&mut sleep));
    }

    #[test]
    fn a_sleep_counts_from_the_call_even_if_it_is_polled_late() {
        let runtime = VirtualRuntime::new(0);
        let mut sleep = runtime.sleep(SECOND);
        runtime.advance(SECOND);
        assert_eq!(runtime.next_sleep_at(), None);
        assert!(is_done(&mut sleep));
    }

    #[test]
    fn no_sleep_at_all_is_over_at_once() {
        let runtime = VirtualRuntime::new(0);
        for span in [Span::ZERO, seconds(-1)] {
            let mut sleep = runtime.sleep(span);
            assert_eq!(runtime.next_sleep_at(), None);
            assert!(is_done(&mut sleep));
        }
    }

    #[test]
    fn a_dropped_sleep_is_forgotten() {
        let runtime = VirtualRuntime::new(0);
        let mut long = runtime.sleep(seconds(9));
        let mut short = runtime.sleep(SECOND);
        assert!(!is_done(&mut long) && !is_done(&mut short));
        assert_eq!(runtime.next_sleep_at(), Some(START.plus(SECOND)));
        drop(short);
        assert_eq!(runtime.next_sleep_at(), Some(START.plus(seconds(9))));
        drop(long);
        assert_eq!(runtime.next_sleep_at(), None);
    }

    #[tokio::test]
    async fn sleeps_end_in_the_order_of_their_deadlines() {
        let runtime = VirtualRuntime::new(0);
        let woken = Arc::new(Mutex::new(Vec::new()));
        let owners: Vec<TaskOwner> = [3, 1, 2, 1]
            .into_iter()
            .map(|n| {
                let (sleep, woken) = (runtime.sleep(seconds(n)), Arc::clone(&woken));
                runtime.spawn(Box::pin(async move {
                    sleep.await;
                    woken.lock().unwrap().push(n);
                }))
            })
            .collect();
        tokio::task::yield_now().await;
        runtime.advance(seconds(3));
        while woken.lock().unwrap().len() < owners.len() {
            tokio::task::yield_now().await;
        }
        assert_eq!(*woken.lock().unwrap(), [1, 1, 2, 3]);
    }

    #[tokio::test]
    async fn a_task_is_aborted_with_its_owner() {
        let runtime = VirtualRuntime::new(0);
        let owner = runtime.spawn(runtime.sleep(SECOND));
        tokio::task::yield_now().await;
        assert!(runtime.next_sleep_at().is_some());
        drop(owner);
        while runtime.next_sleep_at().is_some() {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn a_runner_with_a_skewed_clock_lives_in_the_same_world() {
        let runtime = VirtualRuntime::new(0);
        let skewed = runtime.offset_view(seconds(-600));
        assert_eq!(skewed.now(), START.plus(seconds(-600)));
        let mut sleep = skewed.sleep(SECOND);
        assert_eq!(runtime.next_sleep_at(), Some(START.plus(SECOND)));
        runtime.advance(SECOND);
        assert!(is_done(&mut sleep));
        assert_eq!(skewed.now(), START.plus(seconds(-599)));
        assert_eq!(skewed.monotonic_us(), 1_000_000);
    }

    #[test]
    fn the_same_seed_draws_the_same_numbers() {
        let draw = |seed| {
            let runtime = VirtualRuntime::new(seed);
            [runtime.random_u64(), runtime.random_u64()]
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        // The published first number of SplitMix64 for seed 0: the stream is the same on every machine.
        assert_eq!(draw(0)[0], 0xE220_A839_7B1D_CDAF);
    }
}
