//! Today's code against yesterday's record: does a run that is under way survive the deploy?

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use piton::intercept::{AskedStep, Instead, Interceptor};
use piton::store::{
    Action, Boundary, ClaimRequest, CreateRequest, Existing, MemoryStore, NewInstance, RowState,
    StepWrite, Store,
};
use piton::{Engine, ExportedStep, Registration, Result, RunExport};
use piton_core::boundary::Next;
use piton_core::claim::ClaimRules;
use piton_core::record::{InstanceRecord, StepRecord};
use piton_core::{
    Code, InstanceId, InstanceStatus, Json, Limits, Refusal, Span, StepStatus, StepType,
    WorkflowName,
};
use serde_json::Value;
use tokio::sync::Notify;

use crate::VirtualRuntime;

/// Runs `workflow` as it is today against the record of a run, made by
/// [`InstanceHandle::export`](piton::InstanceHandle::export), and says whether it takes the same way through the
/// recorded steps. No body is executed.
///
/// A run that has ended must end again as it did. A run that has not may go on as it likes behind its last recorded
/// step. Put the records of a few typical instances beside your tests, and the compiler of your deploys is complete.
///
/// ```
/// # use piton::prelude::*;
/// # use piton::RunExport;
/// # use piton_testing::{Harness, replays_the_same};
/// async fn pay(_: Event<()>, step: &Step) -> Result<u32> {
///     step.run("charge card", async { Ok(7) }).await
/// }
/// async fn pay_renamed(_: Event<()>, step: &Step) -> Result<u32> {
///     step.run("charge", async { Ok(7) }).await
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// # let harness = Harness::memory([workflow("pay", pay)]).await?;
/// # let instance = harness.create::<_, u32>("pay", ()).await?;
/// # harness.run_to_end().await?;
/// let history: RunExport = instance.export().await?; // or read from a file, with serde_json
/// replays_the_same(workflow("pay", pay), &history).await?;
///
/// let difference = replays_the_same(workflow("pay", pay_renamed), &history).await.unwrap_err();
/// assert_eq!(difference.step(), Some("charge card"));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The first step at which the ways part.
pub async fn replays_the_same(
    workflow: impl Into<Registration>,
    history: &RunExport,
) -> Result<(), Difference> {
    let workflow = workflow.into();
    let part = |what: What| Err(Difference::new(history, what));
    if workflow.name() != history.workflow {
        return part(What::Workflow { today: workflow.name().to_owned() });
    }
    if history.format != RunExport::FORMAT {
        let (theirs, ours) = (history.format, RunExport::FORMAT);
        let error =
            format!("it has format {theirs}, and this version reads {ours}; export it again");
        return part(What::NotReplayed { error });
    }
    let replayed = replay(workflow, history).await;
    replayed.and_then(|today| today.compare(history)).or_else(part)
}

/// Where today's code and a recorded run part.
///
/// ```
/// # use piton::prelude::*;
/// # use piton_testing::replays_the_same;
/// # use piton_testing::Harness;
/// # async fn pay(_: Event<()>, step: &Step) -> Result<u32> { step.run("charge", async { Ok(7) }).await }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// # let harness = Harness::memory([workflow("pay", pay)]).await?;
/// # let instance = harness.create::<_, u32>("pay", ()).await?;
/// harness.run_to_end().await?;
/// let mut history = instance.export().await?;
/// history.workflow = "refund".to_owned();
/// let difference = replays_the_same(workflow("pay", pay), &history).await.unwrap_err();
/// println!("{difference}");
/// # Ok(())
/// # }
/// ```
pub struct Difference {
    run: String,
    what: What,
}

enum What {
    Workflow { today: String },
    NotReplayed { error: String },
    Type { step: Recorded, today: StepType },
    Instead { step: Recorded, today: (String, StepType) },
    EndsBefore { step: Recorded, ending: String },
    NotAskedFor { step: Recorded },
    GoesOn { today: (String, StepType) },
    Waits,
    Outcome { recorded: String, today: String },
}

/// A step of the record, by what tells it apart.
#[derive(Clone)]
struct Recorded {
    /// Counted from 1.
    number: usize,
    name: String,
    step_type: StepType,
}

impl Recorded {
    fn new((index, step): (usize, &ExportedStep)) -> Self {
        Self { number: index + 1, name: step.name.clone(), step_type: step.step_type }
    }
}

impl Difference {
    fn new(history: &RunExport, what: What) -> Self {
        let RunExport { workflow, instance_id, run_number, .. } = history;
        Self { run: format!("run {run_number} of {workflow}/{instance_id}"), what }
    }

    /// The first step that differs: the recorded one, or the new one if the record ends before it. `None` if the
    /// steps are the same and the outcome is not.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton_testing::replays_the_same;
    /// # use piton_testing::Harness;
    /// # async fn pay(_: Event<()>, step: &Step) -> Result<u32> { step.run("charge", async { Ok(7) }).await }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let harness = Harness::memory([workflow("pay", pay)]).await?;
    /// # let instance = harness.create::<_, u32>("pay", ()).await?;
    /// harness.run_to_end().await?;
    /// let mut history = instance.export().await?;
    /// history.steps[0].name = "charge card".to_owned();
    /// let difference = replays_the_same(workflow("pay", pay), &history).await.unwrap_err();
    /// assert_eq!(difference.step(), Some("charge card"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn step(&self) -> Option<&str> {
        match &self.what {
            What::Type { step, .. }
            | What::Instead { step, .. }
            | What::EndsBefore { step, .. }
            | What::NotAskedFor { step } => Some(&step.name),
            What::GoesOn { today } => Some(&today.0),
            What::Workflow { .. }
            | What::NotReplayed { .. }
            | What::Waits
            | What::Outcome { .. } => None,
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} does not replay the same: ", self.run)?;
        let recorded = |step: &Recorded| {
            format!("step {} of the record is {:?} ({})", step.number, step.name, step.step_type)
        };
        match &self.what {
            What::Workflow { today } => write!(f, "it was asked to run as workflow {today:?}"),
            What::NotReplayed { error } => write!(f, "the record cannot be used: {error}"),
            What::Type { step, today } => {
                write!(f, "{}, and today's code uses that name for a `{today}`", recorded(step))
            }
            What::Instead { step, today: (name, step_type) } => {
                write!(f, "{}, and today's code asks for {name:?} ({step_type})", recorded(step))
            }
            What::EndsBefore { step, ending } => {
                write!(f, "{}, and today's code ends before it: {ending}", recorded(step))
            }
            What::NotAskedFor { step } => {
                write!(f, "{}, and today's code does not ask for it", recorded(step))
            }
            What::GoesOn { today: (name, step_type) } => {
                write!(
                    f,
                    "it had ended, and today's code asks for another step, {name:?} ({step_type})"
                )
            }
            What::Waits => f.write_str("it had ended, and today's code waits for something"),
            What::Outcome { recorded, today } => {
                write!(f, "it ended as {recorded}, and today's code ends as {today}")
            }
        }
    }
}

impl fmt::Debug for Difference {
    /// What a test that returns it prints.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::error::Error for Difference {}

/// What today's code did with the recorded steps.
struct Today {
    asked: Vec<(String, StepType)>,
    /// How the instance stood when the code had come to rest.
    instance: InstanceRecord,
}

async fn replay(workflow: Registration, history: &RunExport) -> Result<Today, What> {
    let replayed = async {
        let runtime = VirtualRuntime::new(1);
        let store: Arc<dyn Store> = MemoryStore::new(Arc::clone(&runtime) as _);
        import(&*store, &runtime, history).await?;
        let recorder = Arc::new(Recorder::default());
        // What was recorded was within the limits of its own engine.
        let limits =
            Limits { steps_max: u32::MAX, payload_bytes_max: usize::MAX, ..Limits::default() };
        let engine = Engine::builder_with_store(Arc::clone(&store))
            .runtime(runtime)
            .interceptor(Arc::clone(&recorder) as _)
            .limits(limits)
            .no_runner()
            .register(workflow)
            .start()
            .await?;
        tokio::select! {
            biased;
            () = recorder.frontier.notified() => {}
            ticked = engine.tick(1) => { ticked?; }
        }
        let (name, id) = names(history);
        let view = store.instance(name, id).await?;
        let instance = view.ok_or_else(|| lost("the imported instance is gone"))?.record;
        let asked = recorder.lock().clone();
        Ok::<_, piton::Error>(Today { asked, instance })
    };
    replayed.await.map_err(|error| What::NotReplayed { error: format!("{error:?}") })
}

/// Puts the recorded run into an empty store, as it was when it was last written.
async fn import(store: &dyn Store, runtime: &VirtualRuntime, history: &RunExport) -> Result<()> {
    let (workflow, id) = names(history);
    runtime.set_time(history.created_at);
    let instance = NewInstance { id: id.clone(), params: history.params.clone() };
    let request = CreateRequest {
        workflow: workflow.clone(),
        instances: vec![instance],
        existing: Existing::Refuse,
        lease: None,
        hooks: Vec::new(),
    };
    store.create(request).await?;
    for _ in 0..history.run_number {
        store.steer(workflow.clone(), id.clone(), Action::Restart).await?;
    }
    // A timer that had not fired must not fire now.
    let last = history.steps.iter().map(|step| step.updated_at).max();
    runtime.set_time(last.unwrap_or(history.created_at).max(history.created_at));
    let request = ClaimRequest {
        runner: Arc::from("replay"),
        workflows: Arc::from([workflow]),
        wanted: 1,
        suspects: true,
        rules: ClaimRules { lease: Span::from_days(1), claims_without_progress_max: u32::MAX },
    };
    let claimed = store.claim(request).await?.claimed.pop();
    let key = claimed.ok_or_else(|| lost("the imported instance cannot be claimed"))?.run_key();
    let rows = history.steps.iter().cloned().map(StepRecord::from);
    let steps =
        rows.map(|record| StepWrite { record: Arc::new(record), row: RowState::New }).collect();
    let (mutations, waits, logs) = (Vec::new(), Vec::new(), Vec::new());
    let next = Next::Continue { bodies_running: false };
    store.commit(Boundary { key, mutations, steps, waits, logs, next }).await?;
    store.release(vec![key]).await?;
    Ok(())
}

fn names(history: &RunExport) -> (WorkflowName, InstanceId) {
    let workflow = WorkflowName::from_stored(history.workflow.as_str());
    (workflow, InstanceId::from_stored(history.instance_id.as_str()))
}

fn lost(message: &str) -> Refusal {
    Refusal::new(Code::Internal, message)
}

/// Notes what the code asks for, and stops it at the first body that would have to run.
#[derive(Default)]
struct Recorder {
    asked: Mutex<Vec<(String, StepType)>>,
    frontier: Notify,
}

impl Recorder {
    fn lock(&self) -> MutexGuard<'_, Vec<(String, StepType)>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Interceptor for Recorder {
    fn asked(&self, step: &AskedStep<'_>) {
        let step = (step.name.to_string(), step.step_type);
        let mut asked = self.lock();
        if !asked.contains(&step) {
            asked.push(step);
        }
    }

    /// A body is granted when nothing recorded is left to reveal: the code has come to the end of the record.
    fn attempt(&self, _: &AskedStep<'_>, _: u32) -> Instead {
        self.frontier.notify_one();
        Instead::Hang
    }
}

impl Today {
    fn compare(self, history: &RunExport) -> Result<(), What> {
        let steps = || history.steps.iter().enumerate();
        let recorded: BTreeMap<&str, (usize, &ExportedStep)> =
            steps().map(|(index, step)| (step.name.as_str(), (index, step))).collect();
        for (name, today) in &self.asked {
            let other_type = |(_, step): &&(usize, &ExportedStep)| step.step_type != *today;
            if let Some(step) = recorded.get(name.as_str()).filter(other_type) {
                return Err(What::Type { step: Recorded::new(*step), today: *today });
            }
        }
        let is_asked = |name: &str| self.asked.iter().any(|(asked, _)| asked == name);
        // The loser of a `select!` decided nothing.
        let counts = |step: &ExportedStep| step.status != StepStatus::Pending;
        let missing = steps().find(|(_, step)| counts(step) && !is_asked(&step.name));
        let extra = self.asked.iter().find(|(name, _)| !recorded.contains_key(name.as_str()));
        match (missing.map(Recorded::new), extra.cloned()) {
            (Some(step), Some(today)) => Err(What::Instead { step, today }),
            (Some(step), None) => Err(match self.ending() {
                Some(ending) => What::EndsBefore { step, ending },
                None => What::NotAskedFor { step },
            }),
            (None, extra) => self.compare_ends(history, extra),
        }
    }

    fn compare_ends(
        &self,
        history: &RunExport,
        extra: Option<(String, StepType)>,
    ) -> Result<(), What> {
        let ended =
            matches!(history.status, Some(InstanceStatus::Complete | InstanceStatus::Errored));
        if !ended {
            // It may go on as it likes, but not into an error that nobody has recorded.
            return match (self.instance.status, self.ending()) {
                (InstanceStatus::Errored, Some(today)) => {
                    Err(What::Outcome { recorded: "not ended".to_owned(), today })
                }
                _ => Ok(()),
            };
        }
        let Some(today) = self.ending() else {
            return Err(extra.map_or(What::Waits, |today| What::GoesOn { today }));
        };
        // A step that was asked for and is in no record lost a `select!` at once: it decided nothing.
        let recorded = ending(history.output.as_ref(), history.error.as_ref());
        if recorded == today { Ok(()) } else { Err(What::Outcome { recorded, today }) }
    }

    /// How today's code ended, if it did.
    fn ending(&self) -> Option<String> {
        let InstanceRecord { status, output, error, .. } = &self.instance;
        status.is_terminal().then(|| ending(output.as_ref(), error.as_ref()))
    }
}

fn ending(output: Option<&Json>, error: Option<&piton::RecordedError>) -> String {
    match error {
        Some(error) => format!("errored with {}: {}", error.name, error.message),
        None => {
            // Two texts of one document are the same output.
            let text = output.map_or("null", Json::as_str);
            let value = serde_json::from_str::<Value>(text).unwrap_or(Value::Null);
            format!("complete with {value}")
        }
    }
}
