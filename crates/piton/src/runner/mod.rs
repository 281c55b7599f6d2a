//! The part of an engine that claims tasks and advances runs.
//!
//! ```text
//!   create, event ────┐  (leased with it)
//!   claim loop ───────┼──> one task per run: load -> Driver::drive -> departure (park, release, resolve waiters)
//!   tick ─────────────┘            ^
//!   hints, lease loop ── Bell ─────┘
//! ```
//!
//! **No notification is authoritative**: with every hint lost the poll interval still finds all due work.
//! **Slots bound the runs in flight**; a slot is taken before a claim is asked for and given back when the
//! run departs.

mod lease;
mod live;
mod parked;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};

use piton_core::claim::{self, ClaimRules};
use piton_core::planted::{Bug, planted};
use piton_core::record::{InstanceKey, RunKey, RunNumber};
use piton_core::{Span, Timestamp, WorkflowName};
use tokio::sync::Notify;
use tokio::sync::oneshot;

use crate::client::Outcome;
use crate::engine::Shared;
use crate::pass::{
    Asked, Departure, Driver, Order, Pass, PassClock, RunInfo, RunningStep, tell_fenced,
};
use crate::runtime::TaskOwner;
use crate::step::Step;
use crate::store::{
    Answer, ClaimAnswer, ClaimRequest, Claimant, ClaimedRun, Hint, Lease, Observer, Store,
};
use crate::workflow::Start;
use crate::{Error, Result};

use live::Live;
use parked::Parked;

/// How many runs one claim asks for at most.
const CLAIM_BATCH_MAX: usize = 256;

/// The value of `wakes_at_ms` while the claim loop is awake: every hint is later than its last look.
const AWAKE: i64 = i64::MAX;

/// How a runner behaves.
#[derive(Clone, Debug)]
pub(crate) struct RunnerConfig {
    pub(crate) run_in_background: bool,
    pub(crate) concurrency: usize,
    pub(crate) poll_interval: Span,
    pub(crate) parked_max: usize,
    pub(crate) rules: ClaimRules,
}

pub(crate) struct Runner {
    shared: Arc<Shared>,
    config: RunnerConfig,
    free: AtomicUsize,
    /// A suspect is in flight, or may be among what is being claimed.
    suspect: AtomicBool,
    backlog: Backlog,
    stopping: AtomicBool,
    /// Wakes the claim loop.
    work: Notify,
    /// When the claim loop wakes by itself, in milliseconds; what falls due later need not wake it.
    wakes_at_ms: AtomicI64,
    /// How far the store's clock is ahead of ours, in milliseconds: hints are told in its time.
    store_ahead_ms: AtomicI64,
    /// Wakes those who wait for the last run to depart.
    departed: Notify,
    live: Live,
    parked: Parked,
}

/// Whether due work finds no free slot, and since when.
///
/// A moment's shortage is no reason to send new and woken runs through the queue: that would make the shortage
/// last. Only when it has lasted do they queue up behind what is older.
#[derive(Default)]
struct Backlog {
    /// On our own clock, plus one; 0 is no backlog.
    since_us: AtomicU64,
}

/// How long a store has to take leases back when the engine stops: those that it does not take run out.
const RELEASE_MAX: Span = Span::from_millis(5_000);

/// How long a backlog lasts before new and woken runs queue up behind it.
const BACKLOG_LASTING_US: u64 = 50_000;

impl Backlog {
    fn note(&self, exists: bool, now_us: u64) {
        if exists {
            let _ =
                self.since_us.compare_exchange(0, now_us + 1, Ordering::SeqCst, Ordering::SeqCst);
        } else {
            self.since_us.store(0, Ordering::SeqCst);
        }
    }

    fn exists(&self) -> bool {
        self.since_us.load(Ordering::SeqCst) != 0
    }

    fn is_lasting(&self, now_us: u64) -> bool {
        let since_us = self.since_us.load(Ordering::SeqCst);
        since_us != 0 && now_us.saturating_sub(since_us) > BACKLOG_LASTING_US
    }
}

/// Room for one run in flight; given back when dropped.
pub(crate) struct Slot(Arc<Runner>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.free.fetch_add(1, Ordering::SeqCst);
        self.0.departed.notify_waiters();
        if self.0.backlog.exists() {
            self.0.work.notify_one();
        }
    }
}

/// Room for the one suspect that may be in flight; given back when dropped.
pub(crate) struct SuspectSeat {
    runner: Arc<Runner>,
    taken: bool,
}

impl SuspectSeat {
    /// The seat of this run, if it needs one.
    fn for_run(seat: &mut Option<Self>, run: &ClaimedRun) -> Option<Self> {
        let mut seat = seat.take_if(|_| claim::is_suspect(&run.task))?;
        seat.taken = true;
        Some(seat)
    }
}

impl Drop for SuspectSeat {
    fn drop(&mut self) {
        self.runner.suspect.store(false, Ordering::Release);
        // The next suspect need not wait for the poll.
        if self.taken {
            self.runner.work.notify_one();
        }
    }
}

/// A claim that was asked for.
struct Claiming {
    answer: Answer<ClaimAnswer>,
    asked: Asked,
    seat: Option<SuspectSeat>,
}

/// A run in flight: cleans up behind it, also when user code panics while it is dropped.
struct Flight {
    runner: Arc<Runner>,
    key: RunKey,
    _room: Room,
}

/// What a run in flight takes up, given back when it departs.
struct Room {
    /// `None` for runs of a tick, which are bounded by its caller.
    _slot: Option<Slot>,
    /// Tells a tick that the run departed, by being dropped.
    _done: Option<oneshot::Sender<()>>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.runner.live.end(self.key);
        self.runner.departed.notify_waiters();
    }
}

impl Runner {
    pub(crate) fn new(shared: Arc<Shared>, config: RunnerConfig) -> Arc<Self> {
        Arc::new(Self {
            shared,
            free: AtomicUsize::new(config.concurrency),
            suspect: AtomicBool::new(false),
            backlog: Backlog::default(),
            stopping: AtomicBool::new(false),
            work: Notify::new(),
            wakes_at_ms: AtomicI64::new(AWAKE),
            store_ahead_ms: AtomicI64::new(0),
            departed: Notify::new(),
            live: Live::default(),
            parked: Parked::new(config.parked_max),
            config,
        })
    }

    pub(crate) fn runs_in_background(&self) -> bool {
        self.config.run_in_background
    }

    /// Starts what runs in the background: claiming, renewing leases, looking after waiters.
    pub(crate) fn spawn_duties(self: &Arc<Self>) -> Vec<TaskOwner> {
        let runtime = &self.shared.runtime;
        let mut duties = vec![
            runtime.spawn(Box::pin(lease::renew_for_ever(Arc::downgrade(self)))),
            runtime.spawn(Box::pin(crate::client::watch_results(
                Arc::downgrade(&self.shared),
                self.config.poll_interval,
            ))),
        ];
        if self.config.run_in_background {
            duties.push(runtime.spawn(Box::pin(Arc::clone(self).claim_for_ever())));
        }
        duties
    }

    /// A slot and a lease for an instance that is about to be created, if it can run here at once.
    pub(crate) fn try_lease(self: &Arc<Self>) -> Option<(Slot, Lease)> {
        let slot = self.try_slot()?;
        let runner = Arc::clone(&self.shared.runner_name);
        Some((slot, Lease { runner, span: self.config.rules.lease }))
    }

    /// A slot for the run that an event is about to wake, if it can go on here at once.
    pub(crate) fn try_claim(
        self: &Arc<Self>,
        workflow: &WorkflowName,
        instance: InstanceKey,
    ) -> Option<(Slot, Claimant)> {
        // A run in flight hears of the event where it is.
        if self.live.contains(instance) || self.shared.registry.program(workflow).is_none() {
            return None;
        }
        let slot = self.try_slot()?;
        let runner = Arc::clone(&self.shared.runner_name);
        Some((slot, Claimant { runner, rules: self.config.rules }))
    }

    /// Room for a run that comes without a claim, unless others have waited for it.
    fn try_slot(self: &Arc<Self>) -> Option<Slot> {
        let now_us = self.shared.runtime.monotonic_us();
        if !self.config.run_in_background || self.backlog.is_lasting(now_us) {
            return None;
        }
        self.take_slots(1).pop()
    }

    /// None once the engine stops: whoever stops it sees that a slot is taken, or whoever takes it that it stops.
    fn take_slots(self: &Arc<Self>, wanted: usize) -> Vec<Slot> {
        let taken = self
            .free
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |free| Some(free - free.min(wanted)));
        let count = taken.unwrap_or(0).min(wanted);
        let mut slots: Vec<Slot> = (0..count).map(|_| Slot(Arc::clone(self))).collect();
        if self.stopping.load(Ordering::SeqCst) {
            slots.clear();
        }
        slots
    }

    async fn claim_for_ever(self: Arc<Self>) {
        while !self.stopping.load(Ordering::SeqCst) {
            // Half of the room stays free for runs that are created or woken meanwhile: those start without a
            // claim, which is cheaper.
            let wanted = self.free.load(Ordering::Acquire).div_ceil(2).min(CLAIM_BATCH_MAX);
            let mut slots = self.take_slots(wanted);
            if slots.is_empty() {
                self.backlog.note(true, self.shared.runtime.monotonic_us());
                // A slot given back before the flag was up has told nobody.
                if self.free.load(Ordering::SeqCst) == 0 {
                    self.wait_for_work(None).await;
                }
                continue;
            }
            self.wakes_at_ms.store(AWAKE, Ordering::Release);
            let Claiming { answer, asked, mut seat } = self.claim(slots.len());
            match answer.await {
                Ok(answer) => {
                    let ahead = answer.now.since(self.shared.runtime.now());
                    self.store_ahead_ms.store(ahead.as_millis(), Ordering::Release);
                    let more = answer.next_due_at.is_some_and(|at| at <= answer.now);
                    self.backlog.note(more, self.shared.runtime.monotonic_us());
                    let due_in = answer.next_due_at.map(|at| at.since(answer.now));
                    let claimed = answer.claimed.len();
                    for run in answer.claimed {
                        let slot = slots.pop().expect("no more is claimed than was wanted");
                        let seat = SuspectSeat::for_run(&mut seat, &run);
                        let room = Room { _slot: Some(slot), _done: None };
                        self.start(run, answer.now, asked, room, seat);
                    }
                    drop((slots, seat));
                    if claimed == 0 || !more {
                        self.wait_for_work(due_in).await;
                    }
                }
                Err(error) => {
                    drop(slots);
                    tracing::error!(%error, "claiming failed; trying again after the poll interval");
                    self.wait_for_work(None).await;
                }
            }
        }
    }

    /// Claims for the whole engine.
    fn claim(self: &Arc<Self>, wanted: usize) -> Claiming {
        let workflows = Arc::clone(&self.shared.registry.names);
        self.claim_with(workflows, wanted, |store, request| store.claim(request))
    }

    /// Asks for a claim, with a seat for a suspect if there is none in flight.
    fn claim_with(
        self: &Arc<Self>,
        workflows: Arc<[WorkflowName]>,
        wanted: usize,
        ask: impl FnOnce(&dyn Store, ClaimRequest) -> Answer<ClaimAnswer>,
    ) -> Claiming {
        let asked = Asked::now(&*self.shared.runtime);
        let seat = (!self.suspect.swap(true, Ordering::AcqRel))
            .then(|| SuspectSeat { runner: Arc::clone(self), taken: false });
        let request = ClaimRequest {
            runner: Arc::clone(&self.shared.runner_name),
            workflows,
            wanted,
            suspects: seat.is_some(),
            rules: self.config.rules,
        };
        Claiming { answer: ask(&*self.shared.store, request), asked, seat }
    }

    /// Waits for a hint, a free slot, the next due task or the poll interval, whichever comes first.
    async fn wait_for_work(&self, due_in: Option<Span>) {
        let runtime = &self.shared.runtime;
        // Jitter keeps many processes from polling in step.
        let poll_ms = self.config.poll_interval.as_millis();
        let jitter_ms = (runtime.random_u64() % 256) as i64 * poll_ms / 1_024;
        let poll = Span::from_millis(poll_ms - jitter_ms);
        let span = due_in.map_or(poll, |due| due.min(poll)).max(Span::from_millis(1));
        let ahead = Span::from_millis(self.store_ahead_ms.load(Ordering::Acquire));
        let wakes_at = runtime.now().plus(ahead).plus(span);
        self.wakes_at_ms.store(wakes_at.as_millis(), Ordering::Release);
        tokio::select! {
            biased;
            () = self.work.notified() => {}
            () = runtime.sleep(span), if !planted(Bug::HintsTrusted) => {}
        }
    }

    /// Starts a run that was created or woken already leased.
    pub(crate) fn start_leased(
        self: &Arc<Self>,
        run: ClaimedRun,
        now: Timestamp,
        asked: Asked,
        slot: Slot,
    ) {
        self.start(run, now, asked, Room { _slot: Some(slot), _done: None }, None);
    }

    fn start(
        self: &Arc<Self>,
        run: ClaimedRun,
        now: Timestamp,
        asked: Asked,
        room: Room,
        seat: Option<SuspectSeat>,
    ) {
        let key = run.run_key();
        self.live.begin(key);
        let flight = Flight { runner: Arc::clone(self), key, _room: room };
        let clock = PassClock::new(Arc::clone(&self.shared.runtime), now, asked);
        let waiters = Arc::clone(&self.shared);
        let task = async move {
            let told = flight.runner.advance(run, clock, seat).await;
            // The slot is free before anyone hears of the result: who creates the next instance in answer to
            // it finds room, and needs no claim.
            drop(flight);
            if let Some(outcome) = told {
                waiters.waiters.resolve(key.instance, outcome);
            }
        };
        // A pass bounds its own life: it leaves when its bell says so.
        self.shared.runtime.spawn(Box::pin(task)).detach();
    }

    /// Advances one run as far as it goes and deals with how it departed. `Some` if it ended: what those who
    /// wait for it are told.
    async fn advance(
        self: &Arc<Self>,
        run: ClaimedRun,
        clock: PassClock,
        seat: Option<SuspectSeat>,
    ) -> Option<Option<Outcome>> {
        let key = run.run_key();
        let mut driver = self.prepare(run, clock).await?;
        driver.take_seat(seat);
        if !self.live.attach(key, driver.bell(), driver.pass()) {
            return Some(None);
        }
        if self.stopping.load(Ordering::SeqCst) {
            driver.bell().order(Order::Finish);
        }
        match driver.drive().await {
            Departure::Ended(result) => {
                return Some(Some(Outcome { run: key.run, result }));
            }
            Departure::Suspended(Some(parkable)) => drop(self.parked.put(parkable)),
            Departure::Suspended(None) | Departure::Paused => {}
            Departure::Released => self.release(vec![key]).await,
            Departure::Fenced => {
                // One that stops let go by itself: that is told by the release, and a crash tells nothing.
                if !self.stopping.load(Ordering::SeqCst) {
                    let _ = tell_fenced(&self.shared, key).await;
                }
                return Some(None);
            }
            Departure::Lost(error) => {
                tracing::error!(%error, instance = key.instance.0, "a boundary was not committed; its run will be claimed again");
            }
        }
        None
    }

    /// The run of this instance that is in flight here: its end will be told to whoever waits.
    pub(crate) fn live_run(&self, instance: InstanceKey) -> Option<RunNumber> {
        self.live.run(instance)
    }

    /// A restart was committed: whatever is in flight here of an older run is over.
    pub(crate) fn supersede(&self, instance: InstanceKey, run: RunNumber) {
        self.live.supersede(instance, run);
    }

    /// The driver of a claimed run: a parked one if nobody else claimed the run in between, else a new one.
    async fn prepare(&self, run: ClaimedRun, clock: PassClock) -> Option<Driver> {
        let key = run.run_key();
        let shared = Arc::clone(&self.shared);
        if let Some(parked) = self.parked.take(key) {
            parked.set_clock(clock);
            return Some(Driver::resume(shared, key, parked));
        }
        let steps = if run.is_fresh() {
            Vec::new()
        } else {
            match shared.store.load_steps(run.key, key.run).await {
                Ok(mut steps) => {
                    if planted(Bug::RecordedStepForgotten) {
                        steps.pop();
                    }
                    steps
                }
                Err(error) => {
                    tracing::error!(%error, instance = %run.id, "the steps of a run cannot be loaded");
                    return None;
                }
            }
        };
        let program = shared.registry.program(&run.workflow)?;
        let info = RunInfo { workflow: run.workflow, id: run.id.clone(), run: key.run };
        let pass = Arc::new(Pass::new(info, &shared, clock, steps));
        let start = Start { params: run.params, timestamp: run.created_at, instance_id: run.id };
        let function = program.start(&start, Step::new(Arc::clone(&pass)));
        Some(Driver::new(shared, key, pass, function))
    }

    async fn release(&self, keys: Vec<RunKey>) {
        if let Err(error) = self.shared.store.release(keys).await {
            tracing::warn!(%error, "leases could not be handed back; they run out by themselves");
        }
    }

    /// See [`crate::Engine::tick`].
    pub(crate) async fn tick(self: &Arc<Self>, wanted: usize) -> Result<usize> {
        self.advance_claimed(self.claim(wanted)).await
    }

    /// See [`crate::InstanceHandle::tick`].
    pub(crate) async fn tick_instance(
        self: &Arc<Self>,
        workflow: WorkflowName,
        instance: InstanceKey,
    ) -> Result<usize> {
        let claiming = self.claim_with(Arc::from([workflow]), 1, |store, request| {
            store.claim_instance(instance, request)
        });
        self.advance_claimed(claiming).await
    }

    async fn advance_claimed(self: &Arc<Self>, claiming: Claiming) -> Result<usize> {
        // In a task of its own: a caller that goes away must not leave claimed runs to nobody.
        let (told, ticked) = oneshot::channel();
        let runner = Arc::clone(self);
        let task = async move { drop(told.send(runner.see_through(claiming).await)) };
        self.shared.runtime.spawn(Box::pin(task)).detach();
        ticked.await.map_err(|_| Error::shutting_down())?
    }

    /// Advances what the claim gets, and returns when all of it rests.
    async fn see_through(self: &Arc<Self>, claiming: Claiming) -> Result<usize> {
        let Claiming { answer, asked, mut seat } = claiming;
        let answer = answer.await?;
        let mut departures = Vec::new();
        for run in answer.claimed {
            let (done, departed) = oneshot::channel();
            let seat = SuspectSeat::for_run(&mut seat, &run);
            let room = Room { _slot: None, _done: Some(done) };
            self.start(run, answer.now, asked, room, seat);
            departures.push(departed);
        }
        drop(seat);
        let processed = departures.len();
        for departed in departures {
            let _ = departed.await;
        }
        Ok(processed)
    }

    /// What a run is doing in this process right now.
    pub(crate) fn running_step(&self, instance: InstanceKey) -> Option<RunningStep> {
        self.live.pass(instance)?.running_step()
    }

    /// Lets running steps be recorded, then hands back what is left. Claims nothing any more.
    pub(crate) async fn shutdown(self: &Arc<Self>, patience: Span) {
        self.stopping.store(true, Ordering::SeqCst);
        self.work.notify_one();
        self.live.order_all(Order::Finish);
        let deadline = self.shared.runtime.sleep(patience);
        tokio::select! {
            biased;
            () = self.all_departed() => {}
            () = deadline => {
                let left = self.live.keys();
                self.live.order_all(Order::Abandon);
                tokio::select! {
                    biased;
                    () = self.release(left) => {}
                    () = self.shared.runtime.sleep(RELEASE_MAX) => {}
                }
            }
        }
        drop(self.parked.drain());
    }

    async fn all_departed(&self) {
        loop {
            let departed = self.departed.notified();
            // Slots are taken before a claim is asked for, so that none can still arrive.
            if self.live.is_empty() && self.free.load(Ordering::SeqCst) == self.config.concurrency {
                return;
            }
            departed.await;
        }
    }

    /// Lets go of everything at once, as a crash would.
    pub(crate) fn abandon_all(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.live.order_all(Order::Abandon);
        drop(self.parked.drain());
    }
}

impl Observer for Runner {
    fn hint(&self, hint: Hint) {
        match hint {
            Hint::Due { at, .. } => {
                if at.as_millis() < self.wakes_at_ms.load(Ordering::Acquire) {
                    self.work.notify_one();
                }
            }
            Hint::Touched(instance) => self.live.touch(instance),
            Hint::Ended(instance) => {
                // A run that is live here reports its own outcome, which saves reading it back.
                if !self.live.contains(instance) {
                    self.shared.waiters.resolve(instance, None);
                }
                self.live.touch(instance);
            }
            Hint::HookDue { .. } => {}
        }
    }
}
