//! What follows from a die: events, instances, and boundaries such as an engine could commit.

use std::sync::Arc;

use piton::store::{Boundary, Mutation, NewEvent, NewInstance, RowState, StepWrite, WaitLook};
use piton_core::boundary::Next;
use piton_core::record::{RecordedError, RunKey, StepRecord};
use piton_core::{EventType, LogLevel, Span, StepStatus, StepType, TaskKind};

use super::Stage;
use crate::conformance::rows::{self, id, json, workflow};
use crate::runtime::SplitMix64;

pub(super) const WORKFLOWS: [&str; 2] = ["checkout", "refund"];
pub(super) const IDS: [&str; 3] = ["a", "b", "c"];
const TYPES: [&str; 2] = ["approved", "rejected"];

/// Everything about one call.
pub(super) struct Die(SplitMix64);

impl Die {
    pub(super) fn new(die: u64) -> Self {
        Self(SplitMix64::new(die))
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(super) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        let choice = self.below(choices.len() as u64);
        choices[usize::try_from(choice).expect("an index")]
    }

    pub(super) fn ms(&mut self, below: u64) -> Span {
        Span::from_millis(i64::try_from(self.below(below)).expect("a short time"))
    }

    pub(super) fn event(&mut self) -> NewEvent {
        NewEvent {
            workflow: workflow(self.pick(&WORKFLOWS)),
            id: id(self.pick(&IDS)),
            event_type: EventType::from_stored(self.pick(&TYPES)),
            payload: json(&self.below(1_000).to_string()),
            idempotency_key: self.chance(30).then(|| self.pick(&["k1", "k2"]).into()),
            hooks: Vec::new(),
        }
    }

    fn mutation(&mut self) -> Mutation {
        if self.chance(50) {
            return Mutation::SendEvent(self.event());
        }
        Mutation::Create { workflow: workflow(self.pick(&WORKFLOWS)), instance: self.instance() }
    }

    pub(super) fn instance(&mut self) -> NewInstance {
        NewInstance { id: id(self.pick(&IDS)), params: json(&self.below(1_000).to_string()) }
    }
}

/// A boundary such as an engine could commit, given the steps of the run. Outcomes are numbered from `seq`.
pub(super) fn boundary(
    stage: &Stage,
    key: RunKey,
    steps: &[StepRecord],
    seq: u32,
    mut die: Die,
) -> Boundary {
    let mut boundary = rows::boundary(key);
    let waiting = steps.iter().filter(|s| s.status == StepStatus::Waiting);
    for (step, seq) in waiting.zip(seq..) {
        if die.chance(50) {
            go_on_with(&mut boundary, stage, step, seq, &mut die);
        }
    }
    let position = steps.iter().map(|step| step.position + 1).max();
    let position = position.unwrap_or(0);
    for (position, _) in (position..).zip(0..die.below(3)) {
        begin_step(&mut boundary, stage, position, &mut die);
    }
    if die.chance(30) {
        let level = die.pick(LogLevel::ALL);
        boundary.logs.push(stage.log_line(level, "user", "hello"));
    }
    for _ in 0..die.below(6).saturating_sub(3) {
        boundary.mutations.push(die.mutation());
    }
    boundary.next = next(stage, &mut die);
    boundary
}

/// Looks at a wait again, or gives a sleep or a failed attempt its outcome.
fn go_on_with(boundary: &mut Boundary, stage: &Stage, step: &StepRecord, seq: u32, die: &mut Die) {
    match step.step_type {
        StepType::WaitForEvent => boundary.waits.push(WaitLook {
            record: Arc::new(step.clone()),
            row: RowState::Stored,
            seq,
        }),
        StepType::Do | StepType::Sleep => boundary.steps.push(StepWrite {
            record: Arc::new(StepRecord {
                seq,
                status: die.pick(&[StepStatus::Completed, StepStatus::Errored]),
                updated_at: stage.now(),
                ..step.clone()
            }),
            row: RowState::Changed,
        }),
    }
}

fn begin_step(boundary: &mut Boundary, stage: &Stage, position: u32, die: &mut Die) {
    let name = format!("s{position}");
    let span = die.ms(5_000);
    let at = stage.now().plus(span);
    match die.below(4) {
        0 => boundary.steps.push(stage.completed_step(&name, position)),
        1 => boundary.steps.push(stage.failed_attempt(&name, position, at)),
        2 => boundary.steps.push(stage.sleep(&name, position, at)),
        _ => {
            let event_type = die.pick(&TYPES);
            let wait = stage.wait(&name, position, event_type, span.as_millis());
            boundary.waits.push(wait);
        }
    }
}

fn next(stage: &Stage, die: &mut Die) -> Next {
    match die.below(20) {
        0..9 => Next::Continue { bodies_running: die.chance(50) },
        9..18 => Next::Suspend {
            run_at: stage.now().plus(die.ms(5_000)),
            kind: die.pick(&[TaskKind::Wake, TaskKind::Retry]),
        },
        18 => Next::Complete { output: json("\"done\"") },
        _ => Next::Fail { error: RecordedError::new("CardDeclined", "no money") },
    }
}
