//! The simulator: the real engine in a world where everything that can go wrong does, and where the same
//! seed gives the same history.
//!
//! One thread runs two to four processes, clients and a chaos monkey on one virtual clock; a seeded
//! scheduler decides which task goes next. The processes share a [`MemoryStore`], each through a view that
//! fails, delays and forgets. After every transaction all rows are checked against the invariants; when the
//! faults stop, everything that can finish must.

mod check;
mod client;
mod faults;
mod parked;
mod plan;
mod program;
mod reader;
mod shrink;
mod sometimes;
mod witness;
mod world;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use piton::runtime::Runtime;
use piton::store::{MemoryStore, Store};
use piton::{Engine, EngineBuilder};
use piton_core::{Span, Timestamp};
use tokio::sync::Notify;

use self::check::Checker;
use self::faults::{FaultyStore, Weather};
use self::plan::Plan;
use self::program::Interpreter;
use self::witness::Witness;
use self::world::{ProcessId, World};
use crate::runtime::START;

pub use self::check::Violation;
pub use self::plan::{Cuts, Part};
pub use self::shrink::shrink;
pub use self::sometimes::{Rare, Sometimes};

/// The process whose clients create, steer and send events.
const CLIENTS: ProcessId = ProcessId(0);

/// The process that kills and starts the others; it never dies.
const CHAOS: ProcessId = ProcessId(99);

/// Claims without progress after which an instance is quarantined: some as one above suspicion, some as a suspect.
const QUARANTINE_AFTER: u32 = 8;

/// How much virtual time everything has to end in once the faults have stopped.
const LIVENESS: Span = Span::from_days(2);

/// How long a process that is asked to stop waits for its bodies.
const PATIENCE: Span = Span::from_millis(5_000);

/// How many times tasks may be polled before a simulation counts as endless.
const POLLS_MAX: u64 = 200_000;

/// What one simulation showed.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed: the same one gives the same report.
    pub seed: u64,
    /// What was left out of it.
    pub cuts: Cuts,
    /// How many actions the clients had in mind.
    pub actions: u64,
    /// The first broken invariant, if there is one.
    pub violation: Option<Violation>,
    /// The rare states that were reached.
    pub sometimes: Sometimes,
    /// How many transactions ran.
    pub transactions: u64,
    /// How many times a task was polled.
    pub polls: u64,
    /// One line per action, if the story was asked for.
    pub story: Vec<String>,
}

/// Simulates one seed. With `tell`, the report has the story.
pub fn simulate(seed: u64, tell: bool) -> Report {
    simulate_with(seed, &Cuts::default(), tell)
}

/// Simulates one seed with something left out.
pub fn simulate_with(seed: u64, cuts: &Cuts, tell: bool) -> Report {
    let (parked, _counting) = parked::count();
    let sim = Simulation::new(seed, cuts, tell);
    sim.run();
    let (mut sometimes, transactions, story) = sim.checker.harvest();
    parked.harvest(&mut sometimes);
    Report {
        seed,
        cuts: cuts.clone(),
        actions: sim.plan.actions,
        violation: sim.checker.violation(),
        sometimes,
        transactions,
        polls: sim.world.polls(),
        story,
    }
}

/// Everything the actors of one simulation share.
struct Simulation {
    world: Arc<World>,
    plan: Plan,
    store: Arc<MemoryStore>,
    checker: Arc<Checker>,
    weather: Arc<Mutex<Weather>>,
    /// Asks a process to stop politely.
    stops: Mutex<BTreeMap<ProcessId, Arc<Notify>>>,
    done: Mutex<bool>,
}

impl Simulation {
    fn new(seed: u64, cuts: &Cuts, tell: bool) -> Arc<Self> {
        let plan = Plan::new(seed, cuts);
        let world = World::new(seed, cuts.salt);
        let store = MemoryStore::new(world.view(CHAOS, Span::ZERO));
        let checker = Checker::new(Arc::clone(&world), Arc::clone(&store), tell);
        let weather = Arc::new(Mutex::new(plan.weather));
        let (stops, done) = (Mutex::default(), Mutex::new(false));
        Arc::new(Self { world, plan, store, checker, weather, stops, done })
    }

    fn run(self: &Arc<Self>) {
        self.world.spawn(CHAOS, Box::pin(chaos(Arc::clone(self))));
        self.world.spawn(CLIENTS, Box::pin(client::play(Arc::clone(self))));
        let end = START.plus(Span::from_days(30));
        while !self.is_done() && self.checker.violation().is_none() {
            if !self.world.step(end) {
                self.checker.violate("liveness", "nothing can happen any more".to_owned());
            }
            if self.world.polls() > POLLS_MAX {
                self.checker.violate("liveness", format!("no end after {POLLS_MAX} polls"));
            }
        }
        // The world outlives its tasks only through cycles: cut them.
        for process in (0..=self.plan.runners).map(ProcessId).chain([CHAOS]) {
            self.world.kill(process);
        }
    }

    /// Starts a process with a runner of its own, in the place of what is left of the last one.
    fn start_runner(self: &Arc<Self>, process: ProcessId) {
        self.end(process);
        let skew = [0, -600_000, 600_000, 1_500][self.world.below(4) as usize];
        let skew = if self.plan.skewed { skew } else { 0 };
        let engine = self.engine(process, Span::from_millis(skew));
        self.checker.tell(|| format!("p{} starts, its clock off by {skew} ms", process.0));
        let stop = Arc::new(Notify::new());
        self.stops().insert(process, Arc::clone(&stop));
        let checker = Arc::clone(&self.checker);
        let task = async move {
            // A store that fails at the start only delays the report of unregistered workflows.
            let engine = engine.start().await;
            stop.notified().await;
            if let Ok(engine) = &engine
                && engine.shutdown(PATIENCE).await.is_ok()
            {
                checker.tell(|| format!("p{} has stopped", process.0));
                checker.sometimes(Rare::StoppedPolitely);
            }
            std::future::pending::<()>().await;
        };
        self.world.spawn(process, Box::pin(task));
    }

    fn end(&self, process: ProcessId) {
        self.world.kill(process);
        self.checker.process_over(process);
    }

    /// What a process executes kills it. It is started again after a while, as by a supervisor.
    fn die(self: &Arc<Self>, process: ProcessId) {
        let sim = Arc::clone(self);
        let task = async move {
            sim.checker.tell(|| format!("p{} is killed by what it executes", process.0));
            sim.checker.sometimes(Rare::KilledFromWithin);
            sim.end(process);
            let pause = sim.world.below(15_000).cast_signed();
            sim.world.view(CHAOS, Span::ZERO).sleep(Span::from_millis(pause)).await;
            sim.start_runner(process);
        };
        self.world.spawn(CHAOS, Box::pin(task));
    }

    fn stops(&self) -> std::sync::MutexGuard<'_, BTreeMap<ProcessId, Arc<Notify>>> {
        self.stops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn engine(self: &Arc<Self>, process: ProcessId, skew: Span) -> EngineBuilder {
        let runtime = self.world.view(process, skew);
        let store: Arc<dyn Store> = Arc::new(FaultyStore {
            world: Arc::clone(&self.world),
            process,
            runtime: Arc::clone(&runtime),
            inner: Arc::clone(&self.store),
            checker: Arc::clone(&self.checker),
            weather: Arc::clone(&self.weather),
            relays: Mutex::default(),
        });
        let checker = Arc::clone(&self.checker);
        let (sim, runtime_of_bodies) = (Arc::downgrade(self), Arc::clone(&runtime));
        let witness = Arc::new(Witness { process, runtime: runtime_of_bodies, checker, sim });
        Engine::builder_with_store(store)
            .runtime(runtime)
            .hooks(witness.hooks())
            .register(Interpreter { witness })
            .lease("10 seconds")
            .poll_interval("4 seconds")
            .quarantine_after(QUARANTINE_AFTER)
            .concurrency(self.plan.concurrency)
            .parked_runs(self.plan.parked_runs)
    }

    /// Stops all faults.
    fn calm(&self) {
        *self.weather.lock().unwrap_or_else(PoisonError::into_inner) = Weather::default();
        self.checker.tell(|| "the faults stop".to_owned());
    }

    fn weather(&self) -> Weather {
        *self.weather.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self) {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    fn is_done(&self) -> bool {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deadline(&self) -> Timestamp {
        self.world.now().plus(LIVENESS)
    }
}

/// Starts the runners, and stops and kills and restarts them while the weather lasts.
async fn chaos(sim: Arc<Simulation>) {
    let runtime = sim.world.view(CHAOS, Span::ZERO);
    let pause = async |ms_max: u64| {
        let ms = sim.world.below(ms_max).cast_signed();
        runtime.sleep(Span::from_millis(ms)).await;
    };
    for number in 1..=sim.plan.runners {
        sim.start_runner(ProcessId(number));
    }
    loop {
        pause(30_000).await;
        if sim.weather().crash == 0 {
            runtime.sleep(Span::from_millis(30_000)).await;
            continue;
        }
        let process = ProcessId(1 + sim.world.below(sim.plan.runners.into()) as u32);
        if sim.world.one_in(4) {
            sim.checker.tell(|| format!("p{} is asked to stop", process.0));
            sim.stops()[&process].notify_one();
            pause(10_000).await;
        }
        sim.checker.tell(|| format!("p{} is killed", process.0));
        sim.checker.sometimes(Rare::ProcessKilled);
        sim.end(process);
        pause(15_000).await;
        sim.start_runner(process);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.story {
            writeln!(f, "{line}")?;
        }
        match &self.violation {
            Some(violation) => {
                writeln!(
                    f,
                    "seed {}: {} is broken: {}",
                    self.seed, violation.invariant, violation.what
                )
            }
            None => {
                writeln!(f, "seed {}: {} transactions, no violation", self.seed, self.transactions)
            }
        }
    }
}
