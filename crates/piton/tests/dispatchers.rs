//! Dispatchers, on processors that only count: when they look, when they work, and how calls coalesce.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use piton::hooks::{Alarm, AlarmDispatcher, PollingDispatcher, Processor, ProcessorGroup};
use piton::prelude::*;
use piton::runtime::{BoxFuture, Runtime};
use piton::{Span, Timestamp};
use piton_testing::VirtualRuntime;

use crate::support::{Gate, until};

/// A processor whose work is at a gate.
#[derive(Clone)]
struct Counting {
    clock: Arc<VirtualRuntime>,
    next: Arc<Mutex<Option<Timestamp>>>,
    looks: Arc<AtomicU32>,
    rounds: Arc<AtomicU32>,
    fails: Arc<AtomicBool>,
    panics: Arc<AtomicBool>,
    blind: Arc<AtomicBool>,
    /// What is due cannot be taken.
    barred: Arc<AtomicBool>,
    gate: Option<Gate>,
    look_gate: Option<Gate>,
}

impl Counting {
    fn new() -> Self {
        Self {
            clock: VirtualRuntime::new(1),
            next: Arc::default(),
            looks: Arc::default(),
            rounds: Arc::default(),
            fails: Arc::default(),
            panics: Arc::default(),
            blind: Arc::default(),
            barred: Arc::default(),
            gate: None,
            look_gate: None,
        }
    }

    fn due_in(&self, ms: i64) -> &Self {
        *self.next.lock().unwrap() = Some(self.in_ms(ms));
        self
    }

    fn in_ms(&self, ms: i64) -> Timestamp {
        self.clock.now().plus(Span::from_millis(ms))
    }

    fn rounds(&self) -> u32 {
        self.rounds.load(Ordering::SeqCst)
    }

    async fn looked(&self, times: u32) -> Result<()> {
        until("it looked", async || Ok(self.looks.load(Ordering::SeqCst) >= times)).await
    }

    fn polling(&self) -> PollingDispatcher {
        PollingDispatcher::new(Arc::clone(&self.clock) as _, Arc::new(self.clone()))
    }
}

impl Processor for Counting {
    fn namespace(&self) -> &str {
        "counting"
    }

    fn process(&self) -> BoxFuture<Result<usize>> {
        let this = self.clone();
        Box::pin(async move {
            this.rounds.fetch_add(1, Ordering::SeqCst);
            if let Some(gate) = &this.gate {
                gate.pass().await?;
            }
            assert!(!this.panics.load(Ordering::SeqCst), "a processor that panics");
            if this.fails.load(Ordering::SeqCst) {
                return Err(Error::new("no luck"));
            }
            if this.barred.load(Ordering::SeqCst) {
                return Ok(0);
            }
            *this.next.lock().unwrap() = None;
            Ok(1)
        })
    }

    fn next_wake_at(&self) -> BoxFuture<Result<Option<Timestamp>>> {
        self.looks.fetch_add(1, Ordering::SeqCst);
        let this = self.clone();
        Box::pin(async move {
            let next = *this.next.lock().unwrap();
            if let Some(gate) = &this.look_gate {
                gate.pass().await?;
            }
            if this.blind.load(Ordering::SeqCst) {
                return Err(Error::new("cannot look"));
            }
            Ok(next)
        })
    }
}

// ---- polling ----

#[tokio::test]
async fn a_poll_looks_every_five_seconds_and_works_only_when_something_is_due() -> Result<()> {
    let counting = Counting::new();
    let dispatcher = counting.polling();
    dispatcher.start();
    dispatcher.start();
    counting.looked(1).await?;
    counting.clock.advance(Span::from_millis(4_999));
    counting.due_in(60_000);
    counting.clock.advance(Span::from_millis(1));
    counting.looked(2).await?;
    assert_eq!(counting.rounds(), 0, "nothing is due");
    counting.due_in(1_000);
    counting.clock.advance(Span::from_millis(5_000));
    until("it worked", async || Ok(counting.rounds() == 1)).await?;
    dispatcher.stop();
    counting.due_in(0);
    counting.clock.advance(Span::from_millis(60_000));
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(counting.rounds(), 1, "stopped");
    Ok(())
}

#[tokio::test]
async fn wakes_that_overlap_share_exactly_one_more_round() -> Result<()> {
    let gate = Gate::new();
    let counting = Counting { gate: Some(gate.clone()), ..Counting::new() };
    let dispatcher = counting.polling();
    let rest = async {
        gate.arrived().await;
        let overlapping = async { tokio::join!(dispatcher.wake(), dispatcher.wake()) };
        let opening = async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert_eq!(counting.rounds(), 1, "one at a time");
            gate.open();
            gate.arrived().await;
            gate.open();
        };
        tokio::join!(overlapping, opening);
    };
    tokio::join!(dispatcher.wake(), rest);
    assert_eq!(counting.rounds(), 2);
    gate.open();
    dispatcher.wake().await;
    assert_eq!(counting.rounds(), 3, "the next one is a round of its own");
    Ok(())
}

#[tokio::test]
async fn an_error_is_told_and_stops_nothing() -> Result<()> {
    let counting = Counting::new();
    counting.fails.store(true, Ordering::SeqCst);
    let told = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&told);
    let dispatcher = counting.polling().poll_interval("1 s")?.on_error(move |error| {
        assert_eq!(error.message(), "no luck");
        if count.fetch_add(1, Ordering::SeqCst) == 0 {
            panic!("a callback that panics");
        }
    });
    counting.due_in(0);
    dispatcher.start();
    until("it was told", async || Ok(told.load(Ordering::SeqCst) == 1)).await?;
    counting.clock.advance(Span::from_millis(1_000));
    until("it was told again", async || Ok(told.load(Ordering::SeqCst) == 2)).await?;
    counting.fails.store(false, Ordering::SeqCst);
    counting.clock.advance(Span::from_millis(1_000));
    until("it worked", async || Ok(counting.next.lock().unwrap().is_none())).await?;
    assert!(counting.polling().poll_interval("0 s").is_err());
    Ok(())
}

#[tokio::test]
async fn one_processor_that_fails_does_not_keep_the_others_of_its_group_from_working() -> Result<()>
{
    let (bad, good) = (Counting::new(), Counting::new());
    bad.fails.store(true, Ordering::SeqCst);
    bad.due_in(9_000);
    good.due_in(4_000);
    let all: [Arc<dyn Processor>; 2] = [Arc::new(bad.clone()), Arc::new(good.clone())];
    let group = ProcessorGroup::new(all);
    assert_eq!(group.next_wake_at().await?, Some(good.in_ms(4_000)));
    assert_eq!(group.process().await.unwrap_err().message(), "no luck");
    assert_eq!((bad.rounds(), good.rounds()), (1, 1));
    bad.blind.store(true, Ordering::SeqCst);
    assert_eq!(group.next_wake_at().await.unwrap_err().message(), "cannot look");
    Ok(())
}

#[tokio::test]
async fn the_processors_of_a_group_work_side_by_side() -> Result<()> {
    let gates = [Gate::new(), Gate::new()];
    let gated = |gate: &Gate| Counting { gate: Some(gate.clone()), ..Counting::new() };
    let all = gates.iter().map(|gate| Arc::new(gated(gate)) as Arc<dyn Processor>);
    let group = ProcessorGroup::new(all);
    let opening = async {
        for gate in &gates {
            gate.arrived().await;
        }
        gates.iter().for_each(Gate::open);
    };
    let (processed, ()) = tokio::join!(group.process(), opening);
    assert_eq!(processed?, 2);
    Ok(())
}

#[tokio::test]
async fn a_round_that_panics_is_over() {
    let counting = Counting::new();
    counting.panics.store(true, Ordering::SeqCst);
    let dispatcher = counting.polling();
    dispatcher.wake().await;
    counting.panics.store(false, Ordering::SeqCst);
    dispatcher.wake().await;
    assert_eq!(counting.rounds(), 2);
}

// ---- alarms ----

/// The one alarm of a host.
#[derive(Clone, Default)]
struct Clock {
    set: Arc<Mutex<Option<Timestamp>>>,
    changes: Arc<AtomicU32>,
    broken: Arc<AtomicBool>,
}

impl Clock {
    fn at(&self) -> Option<Timestamp> {
        *self.set.lock().unwrap()
    }

    fn put(&self, at: Option<Timestamp>) -> Result<()> {
        if self.broken.load(Ordering::SeqCst) {
            return Err(Error::new("the host is busy"));
        }
        self.changes.fetch_add(1, Ordering::SeqCst);
        *self.set.lock().unwrap() = at;
        Ok(())
    }

    /// The host lets it go off.
    async fn go_off(&self, dispatcher: &AlarmDispatcher<Clock>) -> Result<()> {
        *self.set.lock().unwrap() = None;
        dispatcher.alarm().await
    }
}

impl Alarm for Clock {
    async fn get_alarm(&self) -> Result<Option<Timestamp>> {
        Ok(self.at())
    }

    async fn set_alarm(&self, at: Timestamp) -> Result<()> {
        self.put(Some(at))
    }

    async fn delete_alarm(&self) -> Result<()> {
        self.put(None)
    }
}

fn alarm_of(counting: &Counting, clock: &Clock) -> AlarmDispatcher<Clock> {
    let runtime = Arc::clone(&counting.clock) as _;
    AlarmDispatcher::new(runtime, Arc::new(counting.clone()), clock.clone())
}

#[tokio::test]
async fn an_alarm_is_set_for_the_next_hook_but_never_in_the_past() {
    let (counting, clock) = (Counting::new(), Clock::default());
    let dispatcher = alarm_of(&counting, &clock);
    counting.due_in(60_000);
    dispatcher.arm().await.unwrap();
    assert_eq!(clock.at(), Some(counting.in_ms(60_000)));
    assert_eq!(counting.rounds(), 0, "arming works on nothing");
    counting.due_in(-60_000);
    dispatcher.arm().await.unwrap();
    assert_eq!(clock.at(), Some(counting.clock.now()));
    clock.go_off(&dispatcher).await.unwrap();
    assert_eq!(counting.rounds(), 1);
    assert_eq!(clock.at(), None, "nothing is left");
}

#[tokio::test]
async fn an_earlier_alarm_is_never_postponed() {
    let (counting, clock) = (Counting::new(), Clock::default());
    let dispatcher = alarm_of(&counting, &clock);
    clock.put(Some(counting.in_ms(5_000))).unwrap();
    counting.due_in(60_000);
    dispatcher.arm().await.unwrap();
    assert_eq!(clock.at(), Some(counting.in_ms(5_000)), "somebody else's");
    counting.due_in(1_000);
    dispatcher.arm().await.unwrap();
    assert_eq!(clock.at(), Some(counting.in_ms(1_000)));
}

#[tokio::test]
async fn only_its_own_alarm_is_cleared_when_there_is_nothing_to_do() {
    let (counting, clock) = (Counting::new(), Clock::default());
    let dispatcher = alarm_of(&counting, &clock);
    let theirs = counting.in_ms(5_000);
    clock.put(Some(theirs)).unwrap();
    dispatcher.arm().await.unwrap();
    assert_eq!(clock.at(), Some(theirs));
    counting.due_in(1_000);
    dispatcher.arm().await.unwrap();
    *counting.next.lock().unwrap() = None;
    dispatcher.arm().await.unwrap();
    assert_eq!(clock.at(), None, "its own");
}

#[tokio::test]
async fn alarms_that_go_off_together_share_one_more_round() {
    let gate = Gate::new();
    let counting = Counting { gate: Some(gate.clone()), ..Counting::new() };
    let dispatcher = alarm_of(&counting, &Clock::default());
    let overlapping = async {
        gate.arrived().await;
        let opening = async {
            gate.open();
            gate.arrived().await;
            gate.open();
        };
        let (one, two, ()) = tokio::join!(dispatcher.alarm(), dispatcher.alarm(), opening);
        one.and(two)
    };
    let (first, rest) = tokio::join!(dispatcher.alarm(), overlapping);
    first.and(rest).unwrap();
    assert_eq!(counting.rounds(), 2);
}

#[tokio::test]
async fn what_fails_is_told_and_tried_again_later() {
    let (counting, clock) = (Counting::new(), Clock::default());
    let told = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&told);
    let dispatcher = AlarmDispatcher::with_on_error(
        Arc::clone(&counting.clock) as _,
        Arc::new(counting.clone()),
        clock.clone(),
        move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            panic!("a callback that panics");
        },
    );
    counting.due_in(0);
    counting.fails.store(true, Ordering::SeqCst);
    clock.go_off(&dispatcher).await.unwrap();
    assert_eq!(told.load(Ordering::SeqCst), 1);
    assert_eq!(clock.at(), Some(counting.in_ms(5_000)), "not at once: that would spin");
    clock.broken.store(true, Ordering::SeqCst);
    let unarmed = clock.go_off(&dispatcher).await.unwrap_err();
    assert_eq!(unarmed.message(), "the host is busy", "nothing will go off by itself");
    assert_eq!(told.load(Ordering::SeqCst), 3, "the round and the host");
    assert!(dispatcher.arm().await.is_err());
    clock.broken.store(false, Ordering::SeqCst);
    counting.fails.store(false, Ordering::SeqCst);
    clock.go_off(&dispatcher).await.unwrap();
    assert_eq!(*counting.next.lock().unwrap(), None, "it worked");
}

#[tokio::test]
async fn a_round_that_does_nothing_does_not_set_the_alarm_for_now() {
    let (counting, clock) = (Counting::new(), Clock::default());
    let dispatcher = alarm_of(&counting, &clock);
    counting.barred.store(true, Ordering::SeqCst);
    counting.due_in(0);
    clock.go_off(&dispatcher).await.unwrap();
    assert_eq!(clock.at(), Some(counting.in_ms(5_000)), "it was due, and nobody took it");
    counting.due_in(1_000);
    clock.go_off(&dispatcher).await.unwrap();
    assert_eq!(clock.at(), Some(counting.in_ms(1_000)), "it is not due yet");
    counting.due_in(0);
    dispatcher.arm().await.unwrap();
    assert_eq!(clock.at(), Some(counting.in_ms(0)), "somebody has news");
}

#[tokio::test]
async fn of_two_that_arm_at_once_the_second_sees_what_the_first_did() {
    let gate = Gate::new();
    let counting = Counting { look_gate: Some(gate.clone()), ..Counting::new() };
    let clock = Clock::default();
    let dispatcher = alarm_of(&counting, &clock);
    let triggered = async {
        gate.arrived().await;
        counting.due_in(1_000);
        let opening = async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert_eq!(gate.arrivals(), 1, "the second looks when the first is done");
            gate.open();
            gate.arrived().await;
            gate.open();
        };
        tokio::join!(dispatcher.arm(), opening).0
    };
    let (first, second) = tokio::join!(dispatcher.arm(), triggered);
    first.and(second).unwrap();
    assert_eq!(clock.at(), Some(counting.in_ms(1_000)));
}

#[tokio::test]
async fn an_alarm_whose_moment_has_passed_counts_for_nothing() {
    let (counting, clock) = (Counting::new(), Clock::default());
    let dispatcher = alarm_of(&counting, &clock);
    clock.put(Some(counting.in_ms(0))).unwrap();
    counting.due_in(60_000);
    dispatcher.arm().await.unwrap();
    assert_eq!(clock.at(), Some(counting.in_ms(60_000)));
}
