//! Kills a loaded worker with SIGKILL at fifty random moments and checks that nothing acknowledged was lost or done again.
//!
//! The worker is `crash_and_resume`. Before anything else, each of its step bodies adds a line to the witness file. What
//! is acknowledged follows from rule R1: **when the body of step n + 1 starts, step n is committed; when the result of
//! an instance was reported, all of it is.** So, for each instance, the witnessed step numbers may stay (the worker died
//! in between) or grow by one, and nothing else.
//!
//! Moreover the rows that the second, fourth, … step of an instance write in their own transaction are there exactly if
//! the step is recorded, and once.
//!
//! A kill comes after a random number of lines and a random moment more. No clock is read: a slow machine takes longer
//! and sees the same. The seed fixes the plan of the kills; where each one hits, the machine decides.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use piton::InstanceStatus;
use piton::prelude::*;
use piton::rusqlite::Connection;

const KILLS: u32 = 50;

const STEPS: u32 = 10;

/// A kill comes after at most this many lines ...
const LINES_MAX: u32 = 24;

/// ... and each start has at least this many steps to do, so that it is killed before it is done.
const WORK_MIN: u32 = 3 * LINES_MAX;

/// Then it waits for up to this many turns of a loop: some milliseconds.
const TURNS_MAX: u32 = 50_000;

/// A start that ends by itself before its kill does not count; so many may be needed in all.
const STARTS_MAX: u32 = 10 * KILLS;

/// What the witness file says.
#[derive(Debug, Default)]
pub(crate) struct Witnessed {
    /// The executed bodies of each instance in their order: step number and process.
    executed: BTreeMap<String, Vec<(u32, u32)>>,
    /// The instances whose result was reported.
    done: BTreeSet<String>,
}

impl Witnessed {
    pub(crate) fn read(text: &str) -> Self {
        let mut witnessed = Self::default();
        for line in text.lines() {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["done", id] => drop(witnessed.done.insert(id.to_owned())),
                [id, "0", step, "1", process] => {
                    let step = step.strip_prefix("step-").and_then(|n| n.parse().ok());
                    let executed = (step.expect("step-N"), process.parse().expect("a process"));
                    assert!(!witnessed.done.contains(id), "{id} was done before {line:?}");
                    witnessed.executed.entry(id.to_owned()).or_default().push(executed);
                }
                _ => panic!("a line that should not be there: {line:?}"),
            }
        }
        witnessed
    }

    pub(crate) fn check_that_no_acknowledged_step_ran_again(&self) {
        for (id, executed) in &self.executed {
            let (mut step, mut process) = (0, 0);
            for &(next_step, next_process) in executed {
                let next = next_step == step + 1;
                let again_after_a_kill = next_step == step && next_process != process;
                assert!(
                    next || again_after_a_kill,
                    "{id}: step {next_step} after {step}: {executed:?}"
                );
                (step, process) = (next_step, next_process);
            }
        }
    }

    /// The process that executed a step last.
    fn executor(&self, id: &str, step: u32) -> Option<u32> {
        let last = self.executed.get(id)?.iter().rev().find(|(executed, _)| *executed == step);
        last.map(|(_, process)| *process)
    }

    /// How many steps of all instances are acknowledged.
    fn acknowledged_in_all(&self) -> u32 {
        self.executed.keys().map(|id| self.acknowledged(id)).sum()
    }

    /// How many steps of an instance are acknowledged.
    fn acknowledged(&self, id: &str) -> u32 {
        let begun = self.executed[id].last().expect("there is a line").0;
        if self.done.contains(id) { begun } else { begun - 1 }
    }
}

/// The steps that are recorded as completed: step number and result, which is the process.
async fn recorded(instance: &piton::InstanceHandle<Vec<u32>>) -> Result<BTreeMap<u32, u32>> {
    let history = instance.history().page_size(100).await?;
    assert!(!history.steps.has_next_page);
    let completed = history.steps.items.iter().filter_map(|step| {
        let number = step.name.as_str().strip_prefix("step-")?.parse().ok()?;
        let process = step.result.as_ref()?.as_str().parse().ok()?;
        Some((number, process))
    });
    Ok(completed.collect())
}

/// The steps that left a row in the worker's own table.
fn rows_of(database: &Connection, id: &str) -> Result<Vec<u32>> {
    let mut query = database.prepare("SELECT step FROM climbed WHERE step LIKE ?1 || '%'")?;
    let keys = query.query_map([format!("climb/{id}/0/step-")], |row| row.get::<_, String>(0))?;
    let mut steps = Vec::new();
    for key in keys {
        steps.push(key?.rsplit('-').next().unwrap_or_default().parse()?);
    }
    steps.sort_unstable();
    Ok(steps)
}

/// Only to have the name: the auditor runs nothing.
async fn climb(_: Event<u32>, _: &Step) -> Result<Vec<u32>> {
    Err(Error::new("the auditor runs nothing"))
}

/// Compares the database with the witness file while no worker lives. `checked` are instances that can no longer change.
async fn audit(directory: &Path, checked: &mut BTreeSet<String>) -> Result<Witnessed> {
    // Killed early enough, the worker has not even made the file.
    let witness = std::fs::read_to_string(directory.join("witness.txt")).unwrap_or_default();
    let witnessed = Witnessed::read(&witness);
    witnessed.check_that_no_acknowledged_step_ran_again();
    let builder = Engine::builder(format!("sqlite:{}", directory.join("work.db").display()));
    let database = Connection::open(directory.join("work.db"))?;
    let engine = builder.register(workflow("climb", climb)).no_runner().start().await?;
    let climbs = engine.workflow::<u32, Vec<u32>>("climb")?;
    for id in
        witnessed.executed.keys().filter(|id| !checked.contains(*id)).cloned().collect::<Vec<_>>()
    {
        let instance = climbs.get(&id).await?;
        let recorded = recorded(&instance).await?;
        for step in 1..=witnessed.acknowledged(&id) {
            assert!(recorded.contains_key(&step), "{id}: step {step} was acknowledged and is lost");
        }
        let rows: Vec<_> = recorded.keys().copied().filter(|step| step % 2 == 0).collect();
        assert_eq!(rows_of(&database, &id)?, rows, "{id}: rows of its transactions");
        for (step, process) in recorded {
            // The result is that of the last execution: no body ran once a result was recorded.
            assert_eq!(witnessed.executor(&id, step), Some(process), "{id}: result of step {step}");
        }
        if witnessed.done.contains(&id) {
            assert_eq!(instance.status().await?, InstanceStatus::Complete, "{id} was reported");
            checked.insert(id);
        }
    }
    engine.shutdown("5 seconds").await?;
    Ok(witnessed)
}

fn start(directory: &Path, instances: u32) -> Child {
    Command::new(env!("CARGO_BIN_EXE_crash_and_resume"))
        .args(["work.db", "witness.txt"])
        .args(["--steps", &STEPS.to_string(), "--instances", &instances.to_string()])
        .current_dir(directory)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the worker is built with the tests")
}

/// Lets the worker get on for a random while and kills it. `false` if it was done before.
fn kill_at_a_random_moment(mut worker: Child, random: &mut Random) -> bool {
    let lines = random.below(LINES_MAX + 1);
    let mut output = BufReader::new(worker.stdout.take().expect("piped"));
    let mut line = String::new();
    for _ in 0..lines {
        if output.read_line(&mut line).expect("readable") == 0 {
            break;
        }
    }
    for _ in 0..random.below(TURNS_MAX) {
        std::hint::spin_loop();
    }
    worker.kill().expect("it is ours");
    let status = worker.wait().expect("it is ours");
    // On Unix a killed process has no code.
    assert!(status.success() || status.code().is_none(), "{status}\n{line}");
    !status.success()
}

#[tokio::test]
async fn kill_nine_at_fifty_random_moments() -> anyhow::Result<()> {
    let seed = std::env::var("PITON_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(9);
    println!("PITON_SEED={seed}");
    let mut random = Random(seed);
    let directory = tempfile::tempdir()?;
    let directory = directory.path();
    let (mut kills, mut starts, mut instances) = (0, 0, 0);
    let (mut witnessed, mut checked) = (Witnessed::default(), BTreeSet::new());
    while kills < KILLS {
        assert!(
            starts < STARTS_MAX,
            "only {kills} of {starts} starts were killed before their end"
        );
        starts += 1;
        instances = (witnessed.acknowledged_in_all() + WORK_MIN).div_ceil(STEPS).max(instances);
        let worker = start(directory, instances);
        kills += u32::from(kill_at_a_random_moment(worker, &mut random));
        witnessed = audit(directory, &mut checked).await?;
    }

    let last = start(directory, instances).wait_with_output()?;
    assert!(last.status.success(), "{}", String::from_utf8_lossy(&last.stdout));
    let witnessed = audit(directory, &mut checked).await?;
    assert_eq!(checked.len(), instances as usize, "every instance is complete and was reported");
    let executed: usize = witnessed.executed.values().map(Vec::len).sum();
    println!(
        "{kills} kills in {starts} starts; {} steps, {executed} executions",
        instances * STEPS
    );
    Ok(())
}

/// SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let below = (mixed ^ (mixed >> 31)) % u64::from(bound);
        u32::try_from(below).expect("less than the bound")
    }
}
