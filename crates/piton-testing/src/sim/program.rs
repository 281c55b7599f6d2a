//! Random programs: what the simulated workflows do. A program is the params of its instance, so that a
//! failing seed can print it.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::{BoxFuture, join_all, select_all};
use piton::StepContext;
use piton::hooks::Hook;
use piton::prelude::*;
use piton_core::Span;
use serde::{Deserialize, Serialize};

use super::plan::Plan;
use super::witness::Witness;
use crate::runtime::SplitMix64;

/// One thing a program does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Op {
    /// A step with a body.
    Do(DoOp),
    /// A sleep.
    Sleep { name: String, ms: i64 },
    /// A wait for an event.
    Wait { name: String, event: String, timeout_ms: i64 },
    /// All at the same time.
    All(Vec<Op>),
    /// The first that ends wins.
    Race(Vec<Op>),
    /// Errors are handled.
    Catch(Vec<Op>),
    /// The program fails.
    Fail,
}

/// A step with a body.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct DoOp {
    pub(super) name: String,
    /// How long the body takes.
    pub(super) ms: i64,
    /// How many attempts fail.
    pub(super) fail: u32,
    pub(super) retries: u32,
    pub(super) delay_ms: i64,
    pub(super) timeout_ms: i64,
    /// Sends an event of this type to this instance in the step's transaction.
    pub(super) send: Option<(String, String)>,
    /// Triggers a hook in the step's transaction.
    pub(super) hook: bool,
    /// Kills its process.
    pub(super) deadly: bool,
}

/// A program with what it is made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Program(pub(super) Vec<Op>);

/// The types of event there are.
pub(super) const EVENTS: [&str; 3] = ["red", "green", "blue"];

/// The result of a step that has sent an event; its payload is the step's idempotency key.
pub(super) const SENT: &str = "done and sent";

/// How the result of a step that has triggered a hook ends; the hook's payload is the step's idempotency key.
pub(super) const HOOKED: &str = ", hooked";

/// The hooks that steps trigger.
pub(super) const HOOK: &str = "witness";

/// The ids of instances that clients use.
pub(super) const INSTANCES: u64 = 5;

/// How many operations a program has at most, branches included.
const OPS_MAX: u64 = 9;

impl Program {
    pub(super) fn random(random: &mut SplitMix64, plan: &Plan) -> Self {
        let mut budget = 1 + random.below(OPS_MAX);
        let mut names = 0;
        let mut ops = Vec::new();
        while budget > 0 {
            ops.push(random_op(random, &mut budget, &mut names, 2));
        }
        ops.truncate(plan.ops_max);
        if plan.deadly {
            ops.iter_mut().for_each(|op| make_deadly(op, random));
        }
        Self(ops)
    }
}

fn random_op(random: &mut SplitMix64, budget: &mut u64, names: &mut u32, depth: u32) -> Op {
    *budget = budget.saturating_sub(1);
    *names += 1;
    let name = format!("s{names}");
    match random.below(if depth > 0 { 14 } else { 10 }) {
        0..=4 => Op::Do(random_do(random, name)),
        5 | 6 => Op::Sleep { name, ms: pick(random, &[-5, 0, 1, 500, 5_000, 60_000]) },
        7 | 8 => Op::Wait {
            name,
            event: EVENTS[random.below(EVENTS.len() as u64) as usize].to_owned(),
            timeout_ms: pick(random, &[1_000, 3_000, 30_000, 90_000]),
        },
        9 => {
            if random.below(4) == 0 {
                Op::Fail
            } else {
                Op::Do(random_do(random, name))
            }
        }
        10 | 11 => Op::All(branches(random, budget, names, depth)),
        12 => Op::Race(branches(random, budget, names, depth)),
        _ => Op::Catch(branches(random, budget, names, depth)),
    }
}

/// Makes some of the steps deadly.
fn make_deadly(op: &mut Op, random: &mut SplitMix64) {
    match op {
        Op::Do(op) => op.deadly = random.below(4) == 0,
        Op::All(ops) | Op::Race(ops) | Op::Catch(ops) => {
            ops.iter_mut().for_each(|op| make_deadly(op, random));
        }
        Op::Sleep { .. } | Op::Wait { .. } | Op::Fail => {}
    }
}

fn branches(random: &mut SplitMix64, budget: &mut u64, names: &mut u32, depth: u32) -> Vec<Op> {
    let count = 2 + random.below(2);
    (0..count).map(|_| random_op(random, budget, names, depth - 1)).collect()
}

fn random_do(random: &mut SplitMix64, name: String) -> DoOp {
    let send = (random.below(8) == 0).then(|| {
        let event = EVENTS[random.below(3) as usize].to_owned();
        (format!("i{}", random.below(INSTANCES)), event)
    });
    DoOp {
        name,
        ms: pick(random, &[0, 0, 0, 10, 700, 4_000, 40_000]),
        fail: pick(random, &[0, 0, 0, 0, 1, 2, 9]),
        retries: pick(random, &[0, 1, 2, 3]),
        delay_ms: pick(random, &[0, 100, 2_000, 20_000]),
        timeout_ms: pick(random, &[600_000, 600_000, 600_000, 2_000]),
        send,
        hook: random.below(5) == 0,
        deadly: false,
    }
}

fn pick<T: Copy>(random: &mut SplitMix64, choices: &[T]) -> T {
    choices[random.below(choices.len() as u64) as usize]
}

/// The workflow that runs programs, in one process.
pub(super) struct Interpreter {
    pub(super) witness: Arc<Witness>,
}

impl Workflow for Interpreter {
    const NAME: &'static str = "program";
    type Params = Program;
    type Output = Vec<String>;

    async fn run(&self, program: Event<Program>, step: &Step) -> Result<Vec<String>> {
        let seen = Seen::default();
        let mut results = Vec::new();
        for op in &program.0 {
            results.push(self.run_op(op, step, &seen).await?);
        }
        Ok(results)
    }
}

/// The steps whose outcome the code has seen in this pass.
#[derive(Default)]
struct Seen(Mutex<Vec<String>>);

impl Seen {
    fn note(&self, name: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(name.to_owned());
    }

    fn names(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Interpreter {
    fn run_op<'a>(
        &'a self,
        op: &'a Op,
        step: &'a Step,
        seen: &'a Seen,
    ) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            match op {
                Op::Do(op) => self.run_do(op, step, seen).await,
                Op::Sleep { name, ms } => {
                    let slept = step.sleep(name.as_str(), *ms).await;
                    seen.note(name);
                    slept?;
                    Ok(format!("{name} slept"))
                }
                Op::Wait { name, event, timeout_ms } => {
                    let wait = step.wait_for_event::<String>(name.as_str(), event.as_str());
                    let payload = wait.timeout(*timeout_ms).await;
                    seen.note(name);
                    Ok(format!("{name} got {}", payload?))
                }
                Op::All(ops) => {
                    let results = join_all(ops.iter().map(|op| self.run_op(op, step, seen))).await;
                    let results: Vec<String> = results.into_iter().collect::<Result<_>>()?;
                    Ok(results.join(","))
                }
                Op::Race(ops) => {
                    let branches = ops.iter().map(|op| self.run_op(op, step, seen));
                    let (first, _, _) = select_all(branches).await;
                    first
                }
                Op::Catch(ops) => {
                    let mut results = Vec::new();
                    for op in ops {
                        match self.run_op(op, step, seen).await {
                            Ok(result) => results.push(result),
                            Err(error) => results.push(format!("caught {}", error.name())),
                        }
                    }
                    Ok(results.join(","))
                }
                Op::Fail => Err(Error::new("the program says so").named("ProgramFailed")),
            }
        })
    }

    async fn run_do(&self, op: &DoOp, step: &Step, seen: &Seen) -> Result<String> {
        let body = |cx: StepContext| async move {
            let key = cx.idempotency_key();
            let running = self.witness.body_started(&key, cx.attempt(), &seen.names());
            if op.ms > 0 {
                self.witness.sleep(Span::from_millis(op.ms)).await;
            }
            if op.deadly {
                self.witness.die().await;
            }
            drop(running);
            if let Some((to, event)) = &op.send {
                cx.transaction().send_event(Self::NAME, to, event, &key)?;
            }
            if op.hook {
                let hook = Hook::new(HOOK, &key).retry(self.witness.hook_retries());
                cx.transaction().trigger_hook(hook.process_at(self.witness.soon(&key)))?;
            }
            if cx.attempt() <= op.fail {
                return Err(Error::new(format!("attempt {} fails", cx.attempt())).named("Planned"));
            }
            let done =
                if op.send.is_some() { SENT.to_owned() } else { format!("{} done", op.name) };
            Ok(if op.hook { done + HOOKED } else { done })
        };
        let retries = Retries::constant(op.retries, op.delay_ms);
        let run = step.run_with(op.name.as_str(), body);
        let result = run.retries(retries).timeout(op.timeout_ms).await;
        seen.note(&op.name);
        result
    }
}
