//! One round of a processor: takes what is due, lets the handlers run side by side, and records what became of them.
//!
//! What is done and what is taken next share a transaction, so that a round under load costs one commit per batch; and
//! while one is being committed the next waits for its turn already, so that hooks are taken as fast as they come. A
//! handler that takes its time holds up nobody: the round goes on taking hooks as long as there is room, and renews the
//! leases of what is still running.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use piton_core::hook::{HookKey, HookOutcome, HookRecord, is_suspect};
use piton_core::{Span, Timestamp};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::HookContext;
use super::client::hook_store;
use super::processor::Inner;
use super::suspects::Asking;
use crate::runtime::TaskOwner;
use crate::store::{Answer, HooksWorked, StoreError, TAKEN_MAX};
use crate::{Error, Result};

/// How often a round looks for hooks that fell due while its handlers are running.
const LOOK_INTERVAL: Span = Span::from_millis(1_000);

/// How long handlers run before the store is asked when the next look is to be: most are done by then.
const READ_AFTER: Span = Span::from_millis(10);

/// How many transactions are under way at most.
const ASKED_MAX: usize = 2;

/// How often the handlers are let run before their outcomes are recorded, as long as that brings more of them: one
/// commit pays for all.
const LETS_MAX: usize = 16;

/// How long a round waits after a store failed; twice as long after each failure that follows.
const FAILURE_PAUSE_MS: i64 = 100;

/// How often that is doubled at most.
const DOUBLINGS_MAX: u32 = 5;

/// A hook in hand.
struct Flight {
    hook: HookRecord,
    /// No other suspect is taken as long as this one is in hand.
    _suspect: Option<OwnedSemaphorePermit>,
    /// Aborts the handler when it is dropped.
    _task: TaskOwner,
}

/// What the store was asked to do in one transaction.
struct Asked {
    answer: Answer<HooksWorked>,
    /// Not forgotten before the store has recorded it.
    settled: Arc<[(HookRecord, HookOutcome)]>,
    wanted: usize,
    /// The permission to take a suspect.
    suspect: Option<Asking>,
    /// The leases of all that was in hand are extended.
    renews: bool,
    /// When it was asked.
    at_us: u64,
}

/// A round under way.
pub(super) struct Round {
    inner: Arc<Inner>,
    asked: Vec<Asked>,
    flights: BTreeMap<Arc<str>, Flight>,
    /// No more than the hooks in hand, and those that were lost meanwhile.
    ended: mpsc::UnboundedReceiver<(HookRecord, HookOutcome)>,
    report: mpsc::UnboundedSender<(HookRecord, HookOutcome)>,
    settled: Vec<(HookRecord, HookOutcome)>,
    processed: usize,
    /// How many more it takes, if there is a limit.
    left: Option<usize>,
    /// There may be more that is due.
    more: bool,
    /// The last look found something.
    found: bool,
    /// The last look was for none but those above suspicion, because another processor had a suspect or was asking for one.
    passed_over: bool,
    /// When the store last looked, by its own clock.
    looked_at: Timestamp,
    /// The store was not asked yet when something falls due after that look.
    unread: bool,
    /// That question, and its answer.
    reading: Option<Answer<(Timestamp, Option<Timestamp>)>>,
    due_us: Option<u64>,
    /// When this round last looked for a suspect.
    suspect_us: u64,
    /// For the next look.
    asking: Option<Asking>,
    renewed_us: u64,
    /// When the store last did what it was asked: no lease in hand lasts longer than from then.
    answered_us: u64,
    /// How often in a row the store failed.
    failures: u32,
    /// It has just failed: nothing is asked for before this moment.
    paused_until_us: Option<u64>,
    /// Nothing more is started, what comes is handed back.
    abandoned: bool,
}

impl Round {
    /// One that takes this many hooks at most, if there is a limit.
    pub(super) fn new(inner: Arc<Inner>, hooks_max: Option<usize>) -> Self {
        let (report, ended) = mpsc::unbounded_channel();
        let now_us = inner.shared.runtime.monotonic_us();
        Self {
            inner,
            asked: Vec::new(),
            flights: BTreeMap::new(),
            ended,
            report,
            settled: Vec::new(),
            processed: 0,
            left: hooks_max,
            more: true,
            found: false,
            passed_over: false,
            looked_at: Timestamp::from_millis(0),
            unread: false,
            reading: None,
            due_us: None,
            suspect_us: now_us,
            asking: None,
            renewed_us: now_us,
            answered_us: now_us,
            failures: 0,
            paused_until_us: None,
            abandoned: false,
        }
    }

    /// Goes on until nothing is due, or nothing more is to be taken, and nothing is running.
    pub(super) async fn run(mut self) -> Result<usize> {
        loop {
            self.more &= self.takes_more();
            self.ask()?;
            let idle = self.asked.is_empty() && self.flights.is_empty();
            if !idle || self.paused_until_us.is_some() {
                self.wait().await?;
            } else if !self.asks_again().await {
                break;
            }
        }
        Ok(self.processed)
    }

    fn takes_more(&self) -> bool {
        self.left != Some(0) && !self.abandoned && !self.inner.stopping.load(Ordering::SeqCst)
    }

    /// Whether to look once more, for a suspect: another processor was asking at the last look, perhaps for nothing.
    async fn asks_again(&mut self) -> bool {
        if std::mem::take(&mut self.passed_over) && self.takes_more() {
            self.asking = tokio::select! {
                biased;
                asking = self.inner.suspects.ask() => asking,
                () = self.inner.shared.runtime.sleep(LOOK_INTERVAL) => None,
            };
            self.more = self.asking.is_some();
        }
        self.more
    }

    /// Asks for one more transaction, if there is reason to: what ended is recorded, what runs on is renewed, and more
    /// is taken.
    fn ask(&mut self) -> Result<()> {
        let now_us = self.inner.shared.runtime.monotonic_us();
        let renewed = self.renewals(now_us);
        let wanted = if self.more { self.room() } else { 0 };
        let nothing = wanted == 0 && self.settled.is_empty() && renewed.is_empty();
        // What is being renewed must not be settled by a transaction that may come first.
        let busy = self.asked.len() >= ASKED_MAX || self.asked.iter().any(|asked| asked.renews);
        if nothing || busy || self.paused_until_us.is_some() {
            return Ok(());
        }
        let suspect = if wanted > 0 { self.ask_for_suspect(now_us) } else { None };
        let store = hook_store(&self.inner.shared)?;
        let settled: Arc<[_]> = std::mem::take(&mut self.settled).into();
        let mut work = self.inner.work();
        work.settled = Arc::clone(&settled);
        let renews = !renewed.is_empty();
        work.renewed = renewed;
        work.wanted = wanted;
        work.suspect = suspect.is_some();
        let answer = store.work_hooks(work);
        self.more &= wanted == 0;
        self.left = self.left.map(|left| left.saturating_sub(wanted));
        self.asked.push(Asked { answer, settled, wanted, suspect, renews, at_us: now_us });
        Ok(())
    }

    /// The permission to take a suspect, if nobody else has it. Under load a round leaves it to others most of the time.
    fn ask_for_suspect(&mut self, now_us: u64) -> Option<Asking> {
        let recently = now_us.saturating_sub(self.suspect_us) < micros(LOOK_INTERVAL);
        if !self.asked.is_empty() && recently {
            return None;
        }
        let suspect = self.asking.take().or_else(|| self.inner.suspects.try_ask());
        self.passed_over = suspect.is_none();
        if suspect.is_some() {
            self.suspect_us = now_us;
        }
        suspect
    }

    /// How many more to ask for. Never more than a third of what may run: under load one third is running while another
    /// is being taken and a transaction for the last one waits for its turn.
    fn room(&self) -> usize {
        let concurrency = self.inner.config.concurrency;
        let asked: usize = self.asked.iter().map(|asked| asked.wanted).sum();
        let room = concurrency.saturating_sub(self.flights.len() + asked);
        room.min(concurrency.div_ceil(3)).min(TAKEN_MAX).min(self.left.unwrap_or(usize::MAX))
    }

    /// Takes in what the store answered. If it failed nothing is forgotten.
    fn take_in(&mut self, asked: Asked, worked: Answered) -> Result<()> {
        let Asked { settled, wanted, mut suspect, renews, at_us, .. } = asked;
        let worked = match worked {
            Ok(worked) => worked,
            Err(error) => {
                self.settled.extend_from_slice(&settled);
                self.left = self.left.map(|left| left + wanted);
                self.more |= wanted > 0;
                return self.pause_after(error.into());
            }
        };
        self.failures = 0;
        self.answered_us = self.inner.shared.runtime.monotonic_us();
        let all = renews || self.flights.is_empty();
        self.renewed_us = if all { at_us } else { self.renewed_us.min(at_us) };
        self.processed += settled.len();
        for key in worked.lost {
            tracing::warn!(hook = %key.id, "a hook was taken over by somebody else");
            self.remove(&key);
        }
        if wanted > 0 {
            self.looked_at = worked.now;
            (self.unread, self.reading, self.due_us) = (true, None, None);
            self.found = !worked.taken.is_empty();
            self.more |= worked.taken.len() == wanted;
        }
        self.left = self.left.map(|left| left + wanted.saturating_sub(worked.taken.len()));
        for hook in worked.taken {
            let suspect = is_suspect(&hook).then(|| suspect.take()).flatten().map(Asking::taken);
            self.start(hook, suspect);
        }
        Ok(())
    }

    /// After a failure of the store: a pause, as long as there is something in hand that may still be recorded.
    fn pause_after(&mut self, error: Error) -> Result<()> {
        let now_us = self.inner.shared.runtime.monotonic_us();
        let silent_us = now_us.saturating_sub(self.answered_us);
        let idle = self.flights.is_empty() && self.settled.is_empty() && self.asked.is_empty();
        if idle || silent_us > micros(self.inner.config.lease) {
            return Err(error);
        }
        tracing::error!(%error, "hooks could not be recorded or taken; trying again soon");
        let pause = Span::from_millis(FAILURE_PAUSE_MS << self.failures.min(DOUBLINGS_MAX));
        self.failures += 1;
        self.paused_until_us = Some(now_us + micros(pause.min(self.third_of_lease())));
        Ok(())
    }

    /// The hooks in hand, once a third of their lease has passed.
    fn renewals(&self, now_us: u64) -> Vec<HookKey> {
        if now_us.saturating_sub(self.renewed_us) < micros(self.third_of_lease()) {
            return Vec::new();
        }
        self.flights.values().map(|flight| flight.hook.key()).collect()
    }

    fn third_of_lease(&self) -> Span {
        Span::from_millis(self.inner.config.lease.as_millis() / 3)
    }

    fn start(&mut self, hook: HookRecord, suspect: Option<OwnedSemaphorePermit>) {
        if self.abandoned {
            self.settled.push((hook, HookOutcome::Released));
            return;
        }
        let inner = Arc::clone(&self.inner);
        let taken = hook.clone();
        let reporter = Reporter::new(hook.clone(), self.report.clone());
        let task = async move { reporter.ended(attempt(&inner, &taken).await) };
        let id = Arc::clone(&hook.id);
        let task = self.inner.shared.runtime.spawn(Box::pin(task));
        self.flights.insert(id, Flight { hook, _suspect: suspect, _task: task });
    }

    /// Lets go of this hook, if it is in hand as this epoch.
    fn remove(&mut self, key: &HookKey) -> Option<Flight> {
        let held = self.flights.get(&key.id).is_some_and(|flight| flight.hook.epoch == key.epoch);
        held.then(|| self.flights.remove(&key.id))?
    }

    /// Drops the handlers that are running, and hands their hooks back. What has ended is recorded as it ended.
    fn hand_back(&mut self) {
        self.abandoned = true;
        self.end_all();
        let flights = std::mem::take(&mut self.flights).into_values();
        self.settled.extend(flights.map(|flight| (flight.hook, HookOutcome::Released)));
    }

    /// Waits until the store has answered, a handler has ended, or it is time to look again.
    async fn wait(&mut self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let mut abandoned = inner.abandoned.subscribe();
        let look_interval = self.look_interval();
        // News that come while nothing is found are for the next round: this one must come to an end.
        let hears = self.found || !self.flights.is_empty();
        let looks = self.asked.is_empty() || self.paused_until_us.is_some();
        let ended = tokio::select! {
            biased;
            (asked, worked) = answered(&mut self.asked), if !self.asked.is_empty() => {
                return self.take_in(asked, worked);
            }
            _ = abandoned.wait_for(|abandoned| *abandoned), if !self.abandoned => {
                self.hand_back();
                return Ok(());
            }
            read = next(&mut self.reading), if self.reading.is_some() => {
                self.due_us = self.moment(read);
                return Ok(());
            }
            () = inner.news.notified(), if hears => false,
            Some(ended) = self.ended.recv(), if !self.flights.is_empty() => {
                self.end(ended);
                true
            }
            () = inner.shared.runtime.sleep(look_interval), if looks => {
                if self.paused_until_us.take().is_none() && std::mem::take(&mut self.unread) {
                    return self.read_next();
                }
                self.due_us = None;
                false
            }
        };
        if ended {
            self.let_end().await;
        }
        // What ended makes room, and whoever filled it may have left more behind.
        self.more = true;
        Ok(())
    }

    /// How long to wait before the next look, the question when that is to be, or the end of a pause.
    fn look_interval(&self) -> Span {
        let now_us = self.inner.shared.runtime.monotonic_us();
        let left = |until_us: u64| {
            let ms = until_us.saturating_sub(now_us).div_ceil(1_000);
            Span::from_millis(i64::try_from(ms).unwrap_or(i64::MAX))
        };
        let longest = LOOK_INTERVAL.min(self.third_of_lease());
        match (self.paused_until_us, self.due_us) {
            (Some(until_us), _) => left(until_us),
            (None, Some(due_us)) => left(due_us).min(longest),
            (None, None) if self.unread => READ_AFTER.min(longest),
            (None, None) => longest,
        }
    }

    /// Asks when something falls due, if there is nothing to do before but to wait for handlers.
    fn read_next(&mut self) -> Result<()> {
        if self.asked.is_empty() && self.room() > 0 && self.takes_more() {
            let namespaces = [self.inner.namespace.clone()].into();
            self.reading = Some(hook_store(&self.inner.shared)?.next_hook_at(namespaces));
        }
        Ok(())
    }

    /// When to look because of what the store says is due next. What was due at the last look already is not ours.
    fn moment(&self, read: Result<(Timestamp, Option<Timestamp>), StoreError>) -> Option<u64> {
        let (now, next) = read.ok()?;
        let due = next.filter(|at| *at > self.looked_at)?;
        Some(self.inner.shared.runtime.monotonic_us() + micros(due.since(now).max(Span::ZERO)))
    }

    /// Lets the handlers run as long as more of them end, or until there is more to take.
    async fn let_end(&mut self) {
        for _ in 0..LETS_MAX {
            let before = self.settled.len();
            self.end_all();
            if self.settled.len() == before && before > 1 || self.flights.is_empty() {
                return;
            }
            tokio::select! {
                biased;
                () = self.inner.news.notified() => return,
                () = tokio::task::yield_now() => {}
            }
        }
    }

    /// Takes in all that has ended so far.
    fn end_all(&mut self) {
        while let Ok(ended) = self.ended.try_recv() {
            self.end(ended);
        }
    }

    fn end(&mut self, ended: (HookRecord, HookOutcome)) {
        // One that was lost meanwhile is somebody else's.
        if self.remove(&ended.0.key()).is_some() {
            self.settled.push(ended);
        }
    }
}

/// The answer to a question, which is then forgotten.
async fn next<T>(reading: &mut Option<Answer<T>>) -> Result<T, StoreError> {
    let answer = match reading {
        Some(asked) => asked.await,
        None => std::future::pending().await,
    };
    *reading = None;
    answer
}

/// What the store says.
type Answered = Result<HooksWorked, StoreError>;

/// The first answer that comes, with what was asked.
async fn answered(asked: &mut Vec<Asked>) -> (Asked, Answered) {
    poll_fn(|context| {
        let mut all = asked.iter_mut().enumerate();
        let first = all.find_map(|(at, one)| match one.answer.as_mut().poll(context) {
            Poll::Ready(worked) => Some((at, worked)),
            Poll::Pending => None,
        });
        match first {
            Some((at, worked)) => Poll::Ready((asked.remove(at), worked)),
            None => Poll::Pending,
        }
    })
    .await
}

/// Reports a hook when it is dropped, so that no task ends without a word, however it ends.
struct Reporter {
    hook: Option<HookRecord>,
    /// `None` as long as the handler has not ended.
    outcome: Option<HookOutcome>,
    report: mpsc::UnboundedSender<(HookRecord, HookOutcome)>,
}

impl Reporter {
    fn new(hook: HookRecord, report: mpsc::UnboundedSender<(HookRecord, HookOutcome)>) -> Self {
        Self { hook: Some(hook), outcome: None, report }
    }

    fn ended(mut self, outcome: HookOutcome) {
        self.outcome = Some(outcome);
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        let Some(hook) = self.hook.take() else { return };
        let outcome = self.outcome.take().unwrap_or_else(|| {
            let error = Error::new("its task ended before its handler had").named("HookBrokeOff");
            HookOutcome::Failed { error: error.to_record(), retryable: true }
        });
        // Nobody listens when the round is over.
        let _ = self.report.send((hook, outcome));
    }
}

fn micros(span: Span) -> u64 {
    span.as_millis().unsigned_abs() * 1_000
}

/// Runs the handler of one hook.
async fn attempt(inner: &Inner, hook: &HookRecord) -> HookOutcome {
    let handled = async {
        let handler = inner.handler(hook)?;
        let context = HookContext::new(hook.clone());
        let begun =
            catch_unwind(AssertUnwindSafe(|| handler.handle(hook.payload.clone(), context)));
        unpanicked(begun.map_err(|panic| Error::from_panic(&*panic))?).await
    };
    let timeout = inner.config.timeout;
    let ended = tokio::select! {
        biased;
        ended = handled => ended,
        () = inner.shared.runtime.sleep(timeout) => {
            Err(Error::new(format!("took longer than {timeout}")).named("HookTimeout"))
        }
    };
    match ended {
        Ok(()) => HookOutcome::Done,
        Err(error) => {
            let (id, name, attempt) = (&hook.id, &hook.name, hook.attempts);
            tracing::warn!(%error, hook = %id, name = %name, attempt, "a hook failed");
            let retryable = error.is_retryable();
            HookOutcome::Failed { error: error.to_record(), retryable }
        }
    }
}

/// A panic is an error like any other.
pub(super) async fn unpanicked(running: impl Future<Output = Result<()>>) -> Result<()> {
    let mut running = pin!(running);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(context))) {
        Ok(poll) => poll,
        Err(panic) => Poll::Ready(Err(Error::from_panic(&*panic))),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Engine;
    use crate::hooks::{HookStatus, Hooks};

    #[tokio::test]
    async fn what_has_ended_is_recorded_and_the_rest_is_handed_back() -> Result<()> {
        let hooks = Hooks::new().on("wait", |wait: bool, _| async move {
            if wait {
                std::future::pending::<()>().await;
            }
            Ok(())
        });
        let engine = Engine::builder("memory:").no_runner().hooks(hooks).start().await?;
        let client = engine.hooks();
        let quick = client.send("wait", &false).await?;
        let slow = client.send("wait", &true).await?;
        let processor = client.processor().expect("there are handlers");
        let mut round = Round::new(Arc::clone(&processor.inner), None);
        round.ask()?;
        round.wait().await?;
        while round.ended.is_empty() {
            tokio::task::yield_now().await;
        }
        round.hand_back();
        round.more = false;
        round.ask()?;
        round.wait().await?;
        let done = client.get(&quick).await?;
        assert_eq!((done.status, done.attempts), (HookStatus::Completed, 1));
        let left = client.get(&slow).await?;
        assert_eq!((left.status, left.claims), (HookStatus::Pending, 0));
        Ok(())
    }

    #[tokio::test]
    async fn what_is_asked_for_and_what_is_in_hand_share_the_room() -> Result<()> {
        let hooks = Hooks::new()
            .concurrency(4)
            .on("wait", |(): (), _| async { std::future::pending::<Result<()>>().await });
        let engine = Engine::builder("memory:").no_runner().hooks(hooks).start().await?;
        for _ in 0..10 {
            engine.hooks().send("wait", &()).await?;
        }
        let processor = engine.hooks().processor().expect("there are handlers");
        let mut round = Round::new(Arc::clone(&processor.inner), None);
        for (asked, in_hand) in [(0, 0), (1, 0), (2, 0), (1, 2), (0, 4)] {
            assert_eq!((round.asked.len(), round.flights.len()), (asked, in_hand));
            let taken: usize = round.asked.iter().map(|asked| asked.wanted).sum();
            assert_eq!(round.room(), (4 - taken - in_hand).min(2));
            round.more = true;
            if round.room() > 0 {
                round.ask()?
            } else if asked > 0 {
                round.wait().await?
            }
        }
        Ok(())
    }

    /// However fast hooks are triggered elsewhere, a look that finds none is the last one: a tick comes to an end.
    #[tokio::test]
    async fn news_that_comes_while_nothing_is_found_is_for_the_next_round() -> Result<()> {
        let hooks = Hooks::new().on("none", |(): (), _| async { Ok(()) });
        let engine = Engine::builder("memory:").no_runner().hooks(hooks).start().await?;
        let processor = engine.hooks().processor().expect("there are handlers");
        let mut round = Round::new(Arc::clone(&processor.inner), None);
        round.ask()?;
        // The store takes its time, and is asked for more meanwhile.
        let asked = &mut round.asked[0].answer;
        let answer = std::mem::replace(asked, Box::pin(std::future::pending()));
        let news = Arc::clone(&processor.inner);
        *asked = Box::pin(async move {
            news.news.notify_one();
            tokio::task::yield_now().await;
            answer.await
        });
        round.wait().await?;
        assert!(round.asked.is_empty(), "it waited for the answer");
        assert!(!round.asks_again().await, "and looks no more");
        Ok(())
    }
}
