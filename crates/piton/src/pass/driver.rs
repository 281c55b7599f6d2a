//! The runner's side of a pass: polls the function, commits boundaries, reveals results, grants starts.
//!
//! The loop, from the outside in:
//!
//! 1. Poll the function if it was woken. Bodies of running steps live inside it and are polled with it.
//! 2. Take note of what happened: ended bodies, timeouts.
//! 3. Reveal the oldest recorded result that is asked for, and go to 1.
//! 4. With nothing left to reveal: end the sleeps that are over, and go to 3; or commit what is new; or grant
//!    all that want to start; or, with no body running, suspend.
//!
//! **A step's body starts only when every result the code has seen is committed.** Results are revealed
//! before their commit, so the code may run ahead up to its next step, but not into it: that is how the last
//! step and the end of the run share one commit. A step with a transaction of its own is revealed only
//! after its commit, because the transaction may still fail. While a commit is under way nothing is revealed
//! or granted, but running bodies go on.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use piton_core::boundary::{After, Next};
use piton_core::planted::{Bug, planted};
use piton_core::record::{RecordedError, RunKey};
use piton_core::{Json, Span, story};

use super::ledger::{Content, RolledBack};
use super::logbook::system_line;
use super::scope::{self, Scope};
use super::{Asked, Bell, Order, Pass, PassClock};
use crate::engine::Shared;
use crate::runner::SuspectSeat;
use crate::runtime::BoxFuture;
use crate::store::{Answer, Committed, StoreError};
use crate::{Error, Result};

/// How long log lines of a body that is still running may stay uncommitted.
const LOG_FLUSH_US: u64 = 1_000_000;

/// How a pass ended.
pub(crate) enum Departure {
    /// The run is over, with this outcome.
    Ended(std::result::Result<Json, RecordedError>),
    /// The run hibernates; it may go on from here if nobody else claims it in between.
    Suspended(Option<Parkable>),
    /// The instance is paused.
    Paused,
    /// The runner was asked to let go; the lease is still held.
    Released,
    /// Someone else holds the run now, or it ended by other hands.
    Fenced,
    /// The store did not take a boundary; the lease runs out by itself.
    Lost(StoreError),
}

/// A hibernating run that can go on without replay.
pub(crate) struct Parkable {
    pub(crate) key: RunKey,
    pass: Arc<Pass>,
    bell: Arc<Bell>,
    function: BoxFuture<Result<Json>>,
}

impl Parkable {
    /// Sets the clock by the claim under which the run goes on.
    pub(crate) fn set_clock(&self, clock: PassClock) {
        self.pass.lock().clock = clock;
    }
}

/// Drives one pass.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    key: RunKey,
    pass: Arc<Pass>,
    bell: Arc<Bell>,
    function: BoxFuture<Result<Json>>,
    function_waker: Waker,
    under_way: Option<UnderWay>,
    /// The order as it was when this turn of the loop began: a later one ends the next wait.
    order: Order,
    /// A pause was asked for: start nothing new.
    draining: bool,
    /// Something happened to the instance: look at the store.
    touched: bool,
    /// Open waits were looked at under this claim: events may have come before it, or before its steps were loaded.
    looked: bool,
    logs_pending_since_us: Option<u64>,
    /// Given back with the first progress: what a suspect holds to be the only one.
    seat: Option<SuspectSeat>,
}

/// A commit that has not been answered yet.
struct UnderWay {
    answer: Answer<Committed>,
    asked: Asked,
    transaction: Option<RolledBack>,
    is_progress: bool,
    /// It lets go of the run, if it is written.
    leaves: bool,
}

/// What the driver does next.
enum Move {
    Poll,
    Commit(Next),
    Wait,
    Leave(Departure),
}

enum Happened {
    Committed(std::result::Result<Committed, StoreError>),
    Rung,
    Timer,
}

impl Driver {
    pub(crate) fn new(
        shared: Arc<Shared>,
        key: RunKey,
        pass: Arc<Pass>,
        function: BoxFuture<Result<Json>>,
    ) -> Self {
        let bell = Arc::new(Bell::default());
        bell.wake_function();
        Self::with_bell(shared, key, pass, bell, function)
    }

    /// Goes on with a run that was parked, under its new claim.
    pub(crate) fn resume(shared: Arc<Shared>, key: RunKey, parked: Parkable) -> Self {
        let Parkable { pass, bell, function, .. } = parked;
        // While it was being parked its successor may already have been claimed, which told it to leave.
        bell.forget_orders();
        Self::with_bell(shared, key, pass, bell, function)
    }

    fn with_bell(
        shared: Arc<Shared>,
        key: RunKey,
        pass: Arc<Pass>,
        bell: Arc<Bell>,
        function: BoxFuture<Result<Json>>,
    ) -> Self {
        bell.driver_is_awake();
        Self {
            shared,
            key,
            pass,
            function_waker: bell.function_waker(),
            bell,
            function,
            under_way: None,
            order: Order::Run,
            draining: false,
            touched: false,
            looked: false,
            logs_pending_since_us: None,
            seat: None,
        }
    }

    /// Keeps the seat of a suspect until it has made progress.
    pub(crate) fn take_seat(&mut self, seat: Option<SuspectSeat>) {
        self.seat = seat;
    }

    pub(crate) fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }

    pub(crate) fn pass(&self) -> Arc<Pass> {
        Arc::clone(&self.pass)
    }

    /// Advances the run as far as it goes.
    pub(crate) async fn drive(mut self) -> Departure {
        loop {
            self.order = self.bell.ordered();
            if self.order == Order::Abandon {
                let Some(answer) = self.last_answer().await else { return Departure::Fenced };
                let departure = self.committed(answer).unwrap_or(Departure::Fenced);
                return self.depart(departure);
            }
            if self.bell.take_function_woken()
                && let Poll::Ready(result) = self.poll_function()
            {
                return self.finish(result).await;
            }
            self.touched |= self.bell.take_touched();
            match self.next_move() {
                Move::Poll => {}
                Move::Commit(next) => self.commit(next),
                Move::Leave(departure) => return departure,
                Move::Wait => {
                    if let Happened::Committed(answer) = self.wait().await
                        && let Some(departure) = self.committed(answer)
                    {
                        return self.depart(departure);
                    }
                    // A store that answers at once, or code that wakes itself, must not hog the thread.
                    tokio::task::consume_budget().await;
                }
            }
        }
    }

    fn poll_function(&mut self) -> Poll<Result<Json>> {
        let _scope = scope::enter(Scope { pass: Arc::clone(&self.pass), step: None });
        let mut context = Context::from_waker(&self.function_waker);
        let function = self.function.as_mut();
        match catch_unwind(AssertUnwindSafe(|| function.poll(&mut context))) {
            Ok(poll) => poll,
            Err(payload) => Poll::Ready(Err(Error::from_panic(&*payload))),
        }
    }

    /// Decides what to do when the function has come to rest.
    fn next_move(&mut self) -> Move {
        let mut state = self.pass.lock();
        state.collect(&self.pass.limits);
        if self.under_way.is_some() {
            return Move::Wait;
        }
        // What falls due now is younger than all that is recorded: it must not be noted while the code has
        // still to pass a recorded result, which may drop the very sleep that is due.
        if state.reveal_next() || state.settle_due() && state.reveal_next() {
            return Move::Poll;
        }
        let finishing = self.order == Order::Finish;
        let uncommitted = !state.outbox.is_empty() && !planted(Bug::EarlyStart);
        if !uncommitted && !self.draining && !finishing && state.grant_all() {
            return Move::Poll;
        }
        let running = !state.running.is_empty();
        // The code goes on from a step transaction as soon as it is committed: no reason to hibernate.
        let at_rest = !running && state.wanting.is_empty() && state.transaction_seq().is_none();
        let suspension = state.suspension().filter(|_| at_rest);
        let flush = self
            .logs_pending_since_us
            .is_some_and(|since| state.clock.monotonic_us().saturating_sub(since) >= LOG_FLUSH_US);
        if let Some((run_at, kind)) = suspension {
            return Move::Commit(Next::Suspend { run_at, kind });
        }
        if state.has_news()
            || self.touched
            || (!self.looked && state.awaits_event())
            || flush
            || state.wait_is_due()
            || (self.draining && !running)
        {
            return Move::Commit(Next::Continue { bodies_running: running });
        }
        if finishing && !running {
            return Move::Leave(Departure::Released);
        }
        Move::Wait
    }

    /// Sends everything new to the store. The answer is picked up by [`Self::wait`].
    fn commit(&mut self, next: Next) {
        let content = self.pass.lock().take_content();
        let running = !self.pass.lock().running.is_empty();
        let next = if content.more { Next::Continue { bodies_running: running } } else { next };
        self.send(content, next);
    }

    fn send(&mut self, content: Content, next: Next) {
        self.touched = false;
        self.looked = true;
        self.logs_pending_since_us = None;
        let transaction = content.rolled_back();
        let is_progress = !content.steps.is_empty();
        let leaves = !matches!(next, Next::Continue { .. });
        let asked = Asked::now(&*self.shared.runtime);
        let answer = self.shared.store.commit(content.into_boundary(self.key, next));
        self.under_way = Some(UnderWay { answer, asked, transaction, is_progress, leaves });
    }

    /// Takes note of the store's answer. `Some` if the pass is over.
    fn committed(
        &mut self,
        answer: std::result::Result<Committed, StoreError>,
    ) -> Option<Departure> {
        let UnderWay { asked, transaction, is_progress, .. } =
            self.under_way.take().expect("an answer belongs to a commit");
        match answer {
            Ok(committed) => {
                if is_progress {
                    self.seat = None;
                }
                let mut state = self.pass.lock();
                state.clock.set(committed.now, asked);
                // One boundary settles one wait at most, and none beside a transaction: look again.
                let held_back = !committed.settled.is_empty() || transaction.is_some();
                state.committed(committed.settled, transaction.map(|t| t.committing));
                self.touched |= held_back && state.awaits_event();
                self.draining = committed.after == After::Drain;
                match committed.after {
                    After::Continue | After::Drain => None,
                    After::Suspended => Some(Departure::Suspended(None)),
                    After::Paused => Some(Departure::Paused),
                    // Only `finish` ends runs, and it does not come here.
                    After::Ended => Some(Departure::Fenced),
                }
            }
            Err(StoreError::Mutation(error)) if transaction.is_some() => {
                let transaction = transaction.expect("checked above");
                self.pass.lock().rolled_back(transaction, &error, &self.pass.limits);
                None
            }
            Err(StoreError::Fenced) => Some(Departure::Fenced),
            Err(error) => Some(Departure::Lost(error)),
        }
    }

    fn depart(self, departure: Departure) -> Departure {
        match departure {
            Departure::Suspended(_) => Departure::Suspended(self.park()),
            Departure::Ended(_)
            | Departure::Paused
            | Departure::Released
            | Departure::Fenced
            | Departure::Lost(_) => departure,
        }
    }

    /// The run as it can be kept in memory, unless a used-up body makes a replay necessary.
    fn park(self) -> Option<Parkable> {
        let needs_replay = {
            let state = self.pass.lock();
            state.waiting.iter().any(|id| state.slots[*id].spent)
        };
        let Driver { key, pass, bell, function, .. } = self;
        (!needs_replay).then_some(Parkable { key, pass, bell, function })
    }

    /// The function returned: commits what is left together with the end of the run.
    async fn finish(mut self, result: Result<Json>) -> Departure {
        let outcome = result.and_then(|output| {
            self.pass.limits.check_payload(|| "the workflow's output".to_owned(), &output)?;
            Ok(output)
        });
        let outcome = outcome.map_err(|error| error.to_record());
        // Nothing may be polled any more: what the function still held is gone with it.
        self.function = Box::pin(std::future::pending());
        loop {
            self.order = self.bell.ordered();
            if self.order == Order::Abandon {
                let Some(answer) = self.last_answer().await else { return Departure::Fenced };
                return match &answer {
                    Ok(committed) if committed.after == After::Ended => Departure::Ended(outcome),
                    _ => self.committed(answer).unwrap_or(Departure::Fenced),
                };
            }
            if self.under_way.is_none() {
                self.pass.lock().collect(&self.pass.limits);
                let ending = match &outcome {
                    Ok(output) => Next::Complete { output: output.clone() },
                    Err(error) => Next::Fail { error: error.clone() },
                };
                self.commit(ending);
            }
            let answer = match self.wait().await {
                Happened::Rung | Happened::Timer => {
                    // Nobody is left to be polled; flags left standing would ring for ever.
                    self.bell.take_function_woken();
                    self.bell.take_touched();
                    continue;
                }
                Happened::Committed(answer) => answer,
            };
            if matches!(&answer, Ok(committed) if committed.after == After::Ended) {
                return Departure::Ended(outcome);
            }
            if let Some(departure) = self.committed(answer) {
                return departure;
            }
        }
    }

    /// The answer to a boundary that lets go of the run. Whoever has it next may be told of it sooner, because answers can
    /// overtake each other; to be sent away is then no more than what was asked for.
    async fn last_answer(&mut self) -> Option<std::result::Result<Committed, StoreError>> {
        let under_way = self.under_way.as_mut().filter(|under_way| under_way.leaves)?;
        Some(under_way.answer.as_mut().await)
    }

    /// Waits until there is something to do: the store's answer, a wake-up, or a timer.
    async fn wait(&mut self) -> Happened {
        let known = self.order;
        let mut timer = self.timer();
        let (under_way, bell) = (&mut self.under_way, &self.bell);
        let happened = poll_fn(|context| {
            if let Some(under_way) = under_way
                && let Poll::Ready(answer) = under_way.answer.as_mut().poll(context)
            {
                return Poll::Ready(Happened::Committed(answer));
            }
            if bell.poll_rung(context.waker(), known) {
                return Poll::Ready(Happened::Rung);
            }
            match timer.as_mut().map(|timer| timer.as_mut().poll(context)) {
                Some(Poll::Ready(())) => Poll::Ready(Happened::Timer),
                Some(Poll::Pending) | None => Poll::Pending,
            }
        })
        .await;
        self.bell.driver_is_awake();
        happened
    }

    /// A timer for what falls due while a body is running. A commit is answered soon enough without one.
    fn timer(&mut self) -> Option<BoxFuture<()>> {
        if self.under_way.is_some() {
            return None;
        }
        let state = self.pass.lock();
        let now_us = state.clock.monotonic_us();
        if state.log.has_lines() {
            self.logs_pending_since_us.get_or_insert(now_us);
        }
        let flush_at_us = self.logs_pending_since_us.map(|since| since + LOG_FLUSH_US);
        let at_us = state.next_timer_us().into_iter().chain(flush_at_us).min()?;
        let ms = at_us.saturating_sub(now_us).div_ceil(1_000);
        drop(state);
        Some(self.shared.runtime.sleep(Span::from_millis(i64::try_from(ms).unwrap_or(i64::MAX))))
    }
}

/// Tells the run's log that this runner lost it.
pub(crate) fn tell_fenced(shared: &Shared, key: RunKey) -> Answer<()> {
    let line = story::fenced(&shared.runner_name, key.epoch);
    let line = system_line(&shared.ids, line, shared.runtime.now());
    shared.store.append_logs(key.instance, key.run, vec![line])
}
