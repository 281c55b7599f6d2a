//! The injected source of time, randomness and tasks (rule R6).
//!
//! **This is the only file that reads a clock, draws a random number or spawns a task.** Everything else
//! asks a [`Runtime`], so that tests run on a virtual clock and the simulator decides what happens next.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, Hasher};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use piton_core::{Span, Timestamp};
use ulid::Ulid;

/// A future without a name.
///
/// ```
/// use piton::runtime::BoxFuture;
/// let future: BoxFuture<u32> = Box::pin(async { 7 });
/// ```
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Time, randomness and tasks.
///
/// ```
/// # use piton::runtime::{Runtime, TokioRuntime};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// fn roll(runtime: &dyn Runtime) -> u64 {
///     runtime.random_u64() % 6 + 1
/// }
/// assert!((1..=6).contains(&roll(&*TokioRuntime::current()?)));
/// # Ok(())
/// # }
/// ```
pub trait Runtime: Send + Sync + 'static {
    /// The wall clock. It may jump in either direction.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton::runtime::{Runtime, TokioRuntime};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let runtime = TokioRuntime::current()?;
    /// let before = runtime.now();
    /// assert!(before > Timestamp::from_millis(0));
    /// # Ok(())
    /// # }
    /// ```
    fn now(&self) -> Timestamp;

    /// A clock that never goes back, in microseconds from some fixed moment.
    ///
    /// ```
    /// # use piton::runtime::{Runtime, TokioRuntime};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let runtime = TokioRuntime::current()?;
    /// let before = runtime.monotonic_us();
    /// assert!(runtime.monotonic_us() >= before);
    /// # Ok(())
    /// # }
    /// ```
    fn monotonic_us(&self) -> u64;

    /// Sixty-four random bits.
    ///
    /// ```
    /// # use piton::runtime::{Runtime, TokioRuntime};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let runtime = TokioRuntime::current()?;
    /// assert_ne!(runtime.random_u64(), runtime.random_u64());
    /// # Ok(())
    /// # }
    /// ```
    fn random_u64(&self) -> u64;

    /// Ends when the monotonic clock has advanced by `span`, never before.
    ///
    /// ```
    /// # use piton::runtime::{Runtime, TokioRuntime};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let runtime = TokioRuntime::current()?;
    /// let before = runtime.monotonic_us();
    /// runtime.sleep(piton::Span::from_millis(5)).await;
    /// assert!(runtime.monotonic_us() - before >= 5_000);
    /// # Ok(())
    /// # }
    /// ```
    fn sleep(&self, span: Span) -> BoxFuture<()>;

    /// Starts a task that runs by itself. It is aborted when the returned owner is dropped.
    ///
    /// ```
    /// # use piton::runtime::{Runtime, TokioRuntime};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let runtime = TokioRuntime::current()?;
    /// let (told, heard) = tokio::sync::oneshot::channel();
    /// let owner = runtime.spawn(Box::pin(async { drop(told.send("hello")) }));
    /// assert_eq!(heard.await, Ok("hello"));
    /// drop(owner);
    /// # Ok(())
    /// # }
    /// ```
    fn spawn(&self, task: BoxFuture<()>) -> TaskOwner;

    /// Drops something that wakes tasks when it is dropped, where that is cheap: here and now, unless the runtime
    /// knows of a better place and will get there soon. Called from threads that are none of the runtime's own.
    ///
    /// ```
    /// # use piton::runtime::{Runtime, TokioRuntime};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let runtime = TokioRuntime::current()?;
    /// let (told, heard) = tokio::sync::oneshot::channel::<()>();
    /// runtime.drop_inside(Box::new(told));
    /// assert!(heard.await.is_err(), "the sender is gone");
    /// # Ok(())
    /// # }
    /// ```
    fn drop_inside(&self, waking: Box<dyn Send>) {
        drop(waking);
    }
}

/// The owner of a spawned task: dropping it aborts the task.
///
/// ```
/// # use piton::runtime::{Runtime, TokioRuntime};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// # let runtime = TokioRuntime::current()?;
/// let owner = runtime.spawn(Box::pin(std::future::pending()));
/// drop(owner); // ends the task
/// # Ok(())
/// # }
/// ```
pub struct TaskOwner(Option<Box<dyn FnOnce() + Send + Sync>>);

impl TaskOwner {
    /// An owner that calls `abort` when it is dropped.
    ///
    /// ```
    /// use piton::runtime::TaskOwner;
    /// let (told, heard) = std::sync::mpsc::channel();
    /// drop(TaskOwner::new(move || drop(told.send("aborted"))));
    /// assert_eq!(heard.recv(), Ok("aborted"));
    /// ```
    pub fn new(abort: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(abort)))
    }

    /// Lets the task run on without an owner; for tasks that bound their own life.
    ///
    /// ```
    /// piton::runtime::TaskOwner::new(|| unreachable!("it was detached")).detach();
    /// ```
    pub fn detach(mut self) {
        self.0 = None;
    }
}

impl Drop for TaskOwner {
    fn drop(&mut self) {
        if let Some(abort) = self.0.take() {
            abort();
        }
    }
}

impl fmt::Debug for TaskOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TaskOwner")
    }
}

/// The real world: the system's clocks, the system's randomness, and the ambient tokio runtime.
///
/// ```
/// # use piton::runtime::{Runtime, TokioRuntime};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// let runtime = TokioRuntime::current()?;
/// runtime.sleep(piton::Span::from_millis(1)).await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TokioRuntime {
    handle: tokio::runtime::Handle,
    start: Instant,
    hashes: RandomState,
    draws: std::sync::atomic::AtomicU64,
}

impl TokioRuntime {
    /// A runtime on the tokio runtime this is called from.
    ///
    /// ```
    /// let error = piton::runtime::TokioRuntime::current().unwrap_err();
    /// assert!(error.message().starts_with("no tokio runtime here"));
    /// ```
    ///
    /// # Errors
    ///
    /// If there is none, or one without timers.
    pub fn current() -> crate::Result<Arc<Self>> {
        let handle = tokio::runtime::Handle::try_current().map_err(|_| {
            crate::Error::new(
                "no tokio runtime here: call this inside #[tokio::main] or Runtime::block_on",
            )
        })?;
        if !has_timers() {
            return Err(crate::Error::new(
                "this tokio runtime has no timers: build it with `enable_all()`, or `enable_time()`",
            ));
        }
        #[expect(clippy::disallowed_methods, reason = "the one file that may read the clock")]
        let start = Instant::now();
        Ok(Arc::new(Self { handle, start, hashes: RandomState::new(), draws: 0.into() }))
    }
}

/// Whether sleeping works on the tokio runtime this is called from: tokio tells by a panic.
fn has_timers() -> bool {
    #[expect(clippy::disallowed_methods, reason = "the one file that may sleep")]
    let sleep = || drop(tokio::time::sleep(Duration::ZERO));
    std::panic::catch_unwind(sleep).is_ok()
}

impl Runtime for TokioRuntime {
    fn now(&self) -> Timestamp {
        #[expect(clippy::disallowed_methods, reason = "the one file that may read the clock")]
        SystemTime::now().into()
    }

    fn monotonic_us(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn random_u64(&self) -> u64 {
        // `RandomState` is seeded by the operating system; hashing a counter with it gives a stream that
        // nobody outside can predict and costs no dependency.
        let draw = self.draws.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut hasher = self.hashes.build_hasher();
        hasher.write_u64(draw);
        hasher.finish()
    }

    fn sleep(&self, span: Span) -> BoxFuture<()> {
        let ms = u64::try_from(span.as_millis()).unwrap_or(0);
        #[expect(clippy::disallowed_methods, reason = "the one file that may sleep")]
        Box::pin(tokio::time::sleep(Duration::from_millis(ms)))
    }

    fn spawn(&self, task: BoxFuture<()>) -> TaskOwner {
        let abort = self.handle.spawn(task).abort_handle();
        TaskOwner::new(move || abort.abort())
    }

    fn drop_inside(&self, waking: Box<dyn Send>) {
        // Threads of its own, which look after it whatever the caller waits for.
        if self.handle.runtime_flavor() == tokio::runtime::RuntimeFlavor::MultiThread {
            self.handle.spawn(async move { drop(waking) });
        }
    }
}

/// Makes ids: a prefix and a monotonic ULID, so that they sort by the time they were made.
///
/// ```
/// # use piton::runtime::Ids;
/// # use piton::runtime::TokioRuntime;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// # let runtime = TokioRuntime::current()?;
/// let ids = Ids::new(runtime);
/// assert!(ids.next("inst") < ids.next("inst"));
/// # Ok(())
/// # }
/// ```
pub struct Ids {
    runtime: Arc<dyn Runtime>,
    last: Mutex<Ulid>,
}

impl Ids {
    /// A source of ids that takes time and randomness from `runtime`.
    ///
    /// ```
    /// # use piton::runtime::Ids;
    /// # use piton::runtime::TokioRuntime;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let runtime = TokioRuntime::current()?;
    /// let ids = Ids::new(runtime);
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self { runtime, last: Mutex::new(Ulid::nil()) }
    }

    /// The next id, greater than every id this source has made before.
    ///
    /// ```
    /// # use piton::runtime::Ids;
    /// # use piton::runtime::TokioRuntime;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let runtime = TokioRuntime::current()?;
    /// # let ids = Ids::new(runtime);
    /// let id = ids.next("order");
    /// assert!(id.starts_with("order_01"), "a prefix and a ULID: {id}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn next(&self, prefix: &str) -> Arc<str> {
        let now_ms = u64::try_from(self.runtime.now().as_millis()).unwrap_or(0);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = next_ulid(*last, now_ms, || self.runtime.random_u64());
        Arc::from(format!("{prefix}_{}", *last))
    }
}

/// A ULID of this moment that is greater than the last one.
fn next_ulid(last: Ulid, now_ms: u64, random: impl Fn() -> u64) -> Ulid {
    let fresh = || Ulid::from_parts(now_ms, u128::from(random()) << 64 | u128::from(random()));
    // In the same millisecond, or with a clock set back, the next id is the last one plus one.
    if last.timestamp_ms() < now_ms {
        fresh()
    } else {
        last.increment().unwrap_or_else(|_| fresh())
    }
}

/// The time and an id by the system's clock, for code that runs without an engine.
pub(crate) fn wall_clock(prefix: &str) -> (Timestamp, Arc<str>) {
    static LAST: Mutex<Ulid> = Mutex::new(Ulid::nil());
    #[expect(clippy::disallowed_methods, reason = "the one file that may read the clock")]
    let now = Timestamp::from(SystemTime::now());
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(0);
    // Each `RandomState` has keys of its own.
    let random = || RandomState::new().hash_one(now_ms);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    *last = next_ulid(*last, now_ms, random);
    (now, Arc::from(format!("{prefix}_{}", *last)))
}

impl fmt::Debug for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ids")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tokio_runtime_without_timers_is_refused_and_told_what_it_lacks() {
        let bare = tokio::runtime::Builder::new_current_thread().build().expect("it is built");
        let error = bare.block_on(async { TokioRuntime::current().expect_err("no timers") });
        assert!(error.message().contains("enable_all"), "{error}");
        let whole = tokio::runtime::Builder::new_current_thread().enable_time().build();
        whole
            .expect("it is built")
            .block_on(async { TokioRuntime::current().map(drop) })
            .expect("it has timers");
    }
}
