//! The simulated world: one thread, one clock, one source of randomness, and a scheduler that decides by
//! the seed which ready task runs next.
//!
//! A *process* is a group of tasks that live and die together. Killing one drops its tasks wherever they
//! stand, as `kill -9` does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use piton::runtime::{BoxFuture, Runtime, TaskOwner};
use piton_core::{Span, Timestamp};

use crate::runtime::{START, SplitMix64};

/// A group of tasks that die together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ProcessId(pub(super) u32);

type TaskId = u64;

/// Everything there is.
pub(super) struct World {
    inner: Mutex<Inner>,
    itself: Weak<World>,
}

struct Inner {
    now_us: u64,
    random: SplitMix64,
    tasks: BTreeMap<TaskId, Task>,
    ready: BTreeSet<TaskId>,
    sleeps: BTreeMap<(u64, u64), Waker>,
    next_id: u64,
    polls: u64,
}

struct Task {
    process: ProcessId,
    /// Absent while it is being polled.
    future: Option<BoxFuture<()>>,
}

struct TaskWaker {
    task: TaskId,
    world: Weak<World>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(world) = self.world.upgrade() {
            world.lock().ready.insert(self.task);
        }
    }
}

impl World {
    pub(super) fn new(seed: u64, salt: u64) -> Arc<Self> {
        // What is decided before the world starts follows from the seed itself: this must be another sequence.
        let mut random = SplitMix64::new(!seed);
        let random = SplitMix64::new(random.next_u64() ^ salt);
        Arc::new_cyclic(|itself| Self {
            itself: Weak::clone(itself),
            inner: Mutex::new(Inner {
                now_us: 0,
                random,
                tasks: BTreeMap::new(),
                ready: BTreeSet::new(),
                sleeps: BTreeMap::new(),
                next_id: 1,
                polls: 0,
            }),
        })
    }

    /// The world as a process sees it, with its wall clock off by `skew`.
    pub(super) fn view(self: &Arc<Self>, process: ProcessId, skew: Span) -> Arc<View> {
        Arc::new(View { world: Arc::clone(self), process, skew })
    }

    /// The true time.
    pub(super) fn now(&self) -> Timestamp {
        START.plus(Span::from_millis((self.lock().now_us / 1_000).cast_signed()))
    }

    /// How many times a task was polled: the length of the simulation.
    pub(super) fn polls(&self) -> u64 {
        self.lock().polls
    }

    /// A number below `bound`.
    pub(super) fn below(&self, bound: u64) -> u64 {
        self.lock().random.below(bound)
    }

    /// True once in `n`, on average; never for 0.
    pub(super) fn one_in(&self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }

    /// Lets one ready task run; with none ready, moves the clock to the next sleep's end. `false` when
    /// nothing can ever happen again, or nothing before `until`.
    pub(super) fn step(&self, until: Timestamp) -> bool {
        let Some(task) = self.next_ready(until) else { return false };
        let Some(mut future) = self.take_future(task) else { return true };
        let waker = Waker::from(Arc::new(TaskWaker { task, world: Weak::clone(&self.itself) }));
        let poll = future.as_mut().poll(&mut Context::from_waker(&waker));
        let mut inner = self.lock();
        match poll {
            Poll::Ready(()) => drop(inner.tasks.remove(&task)),
            Poll::Pending => {
                // Killed while it was running: it must not come back.
                if let Some(entry) = inner.tasks.get_mut(&task) {
                    entry.future = Some(future);
                    return true;
                }
                drop(inner);
                drop(future);
            }
        }
        true
    }

    fn next_ready(&self, until: Timestamp) -> Option<TaskId> {
        let mut inner = self.lock();
        inner.polls += 1;
        if inner.ready.is_empty() {
            let (&(deadline_us, _), _) = inner.sleeps.first_key_value()?;
            let until_us = until.since(START).as_millis().max(0).unsigned_abs() * 1_000;
            if deadline_us > until_us {
                return None;
            }
            inner.now_us = inner.now_us.max(deadline_us);
            let now = (inner.now_us, u64::MAX);
            let later = inner.sleeps.split_off(&now);
            let due = std::mem::replace(&mut inner.sleeps, later);
            drop(inner);
            due.into_values().for_each(Waker::wake);
            inner = self.lock();
        }
        let ready = inner.ready.len() as u64;
        let pick = inner.random.below(ready.max(1)) as usize;
        let task = inner.ready.iter().nth(pick).copied();
        if let Some(task) = task {
            inner.ready.remove(&task);
        }
        // A sleep may have been dropped by its task: then nothing is ready, but the clock has moved.
        Some(task.unwrap_or(0))
    }

    fn take_future(&self, task: TaskId) -> Option<BoxFuture<()>> {
        self.lock().tasks.get_mut(&task)?.future.take()
    }

    pub(super) fn spawn(&self, process: ProcessId, future: BoxFuture<()>) -> TaskId {
        let mut inner = self.lock();
        let id = inner.next_id;
        inner.next_id += 1;
        inner.tasks.insert(id, Task { process, future: Some(future) });
        inner.ready.insert(id);
        id
    }

    fn abort(&self, task: TaskId) {
        let gone = {
            let mut inner = self.lock();
            inner.ready.remove(&task);
            inner.tasks.remove(&task)
        };
        drop(gone);
    }

    /// Ends a process wherever its tasks stand.
    pub(super) fn kill(&self, process: ProcessId) {
        let gone: Vec<Task> = {
            let mut inner = self.lock();
            let ids: Vec<_> = inner
                .tasks
                .iter()
                .filter(|(_, t)| t.process == process)
                .map(|(id, _)| *id)
                .collect();
            inner.ready.retain(|id| !ids.contains(id));
            ids.iter().filter_map(|id| inner.tasks.remove(id)).collect()
        };
        drop(gone);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The world as one process sees it.
pub(super) struct View {
    world: Arc<World>,
    process: ProcessId,
    skew: Span,
}

impl Runtime for View {
    fn now(&self) -> Timestamp {
        self.world.now().plus(self.skew)
    }

    fn monotonic_us(&self) -> u64 {
        self.world.lock().now_us
    }

    fn random_u64(&self) -> u64 {
        self.world.lock().random.next_u64()
    }

    fn sleep(&self, span: Span) -> BoxFuture<()> {
        let mut inner = self.world.lock();
        let deadline_us = inner.now_us + span.as_millis().max(0).unsigned_abs() * 1_000;
        inner.next_id += 1;
        let key = (deadline_us, inner.next_id);
        Box::pin(Sleep { world: Arc::clone(&self.world), key })
    }

    fn spawn(&self, task: BoxFuture<()>) -> TaskOwner {
        let id = self.world.spawn(self.process, task);
        let world = Arc::downgrade(&self.world);
        TaskOwner::new(move || {
            if let Some(world) = world.upgrade() {
                world.abort(id);
            }
        })
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({:?})", self.process)
    }
}

/// Ends at its deadline; leaves no trace when dropped.
struct Sleep {
    world: Arc<World>,
    key: (u64, u64),
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.world.lock();
        if inner.now_us >= self.key.0 {
            return Poll::Ready(());
        }
        inner.sleeps.insert(self.key, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let gone = self.world.lock().sleeps.remove(&self.key);
        drop(gone);
    }
}
