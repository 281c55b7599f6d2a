//! Random calls on a pair of stores.
//!
//! The calls are those that engine and clients could make: rows of a boundary fit what is stored, but keys
//! may be stale, ids taken, receivers missing or ended. Leases are long, so that mostly [`Pair::take_over`]
//! lets them run out.

use piton::runtime::Runtime;
use piton::store::{
    Action, ClaimAnswer, ClaimRequest, Claimant, ClaimedRun, Committed, CreateRequest, Existing,
    Lease, Sent, StoreError,
};
use piton_core::boundary::After;
use piton_core::claim::ClaimRules;
use piton_core::hook::HookRecord;
use piton_core::record::{RunKey, RunNumber};
use piton_core::{InstanceId, Span, WorkflowName};

use super::dice::{Die, IDS, WORKFLOWS, boundary};
use super::normal::Normal;
use super::{Difference, Stage};
use crate::conformance::rows::{id, workflow};

const LEASE: Span = Span::from_millis(3_600_000);

/// A run that was claimed once; by now it may be lost.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KnownRun {
    pub(super) workflow: WorkflowName,
    pub(super) id: InstanceId,
    pub(super) run: RunNumber,
    pub(super) epoch: u64,
}

impl KnownRun {
    /// The key of the run in this store.
    pub(super) async fn key(&self, stage: &Stage) -> RunKey {
        let instance = stage.store.instance(self.workflow.clone(), self.id.clone());
        let view = instance.await.expect("read").expect("it was claimed");
        RunKey { instance: view.record.key, run: self.run, epoch: self.epoch }
    }
}

/// Two stores that are asked the same.
pub(super) struct Pair {
    pub(super) left: Stage,
    right: Stage,
    /// Newest last; old ones are forgotten so that most of them are still held.
    runs: Vec<KnownRun>,
    /// Numbers outcomes over all runs.
    seq: u32,
    pub(super) hooks_triggered: u64,
    /// Hooks that were taken; by now they may be lost.
    pub(super) hooks_in_hand: Vec<HookRecord>,
    trace: Vec<String>,
}

impl Pair {
    pub(super) fn new(left: Stage, right: Stage) -> Self {
        Self {
            left,
            right,
            runs: Vec::new(),
            seq: 1_000,
            hooks_triggered: 0,
            hooks_in_hand: Vec::new(),
            trace: Vec::new(),
        }
    }

    /// Asks both; returns the left answer if the right one is the same.
    pub(super) async fn both<T: Normal>(
        &mut self,
        what: String,
        ask: impl AsyncFn(&Stage) -> T,
    ) -> Result<T, Difference> {
        let (left, right) = (ask(&self.left).await, ask(&self.right).await);
        let (one, other) = (left.normal(), right.normal());
        if one == other {
            self.trace.push(format!("{what}\n  = {one}"));
            return Ok(left);
        }
        let mut trace = std::mem::take(&mut self.trace);
        trace.push(format!("{what}\n  left  = {one}\n  right = {other}"));
        Err(Difference { trace })
    }

    /// Asks both and needs no answer.
    pub(super) async fn same<T: Normal>(
        &mut self,
        what: String,
        ask: impl AsyncFn(&Stage) -> T,
    ) -> Result<(), Difference> {
        self.both(what, ask).await.map(|_| ())
    }

    pub(super) fn advance(&self, span: Span) {
        self.left.clock.advance(span);
        self.right.clock.advance(span);
    }

    fn remember(&mut self, run: KnownRun) {
        self.runs.push(run);
        if self.runs.len() > 8 {
            self.runs.remove(0);
        }
    }

    pub(super) async fn call(&mut self, die: u64) -> Result<(), Difference> {
        let mut die = Die::new(die);
        self.advance(die.ms(400));
        self.advance(Span::from_millis(1));
        match die.below(125) {
            0..15 => self.create(die).await,
            15..30 => self.send_event(die).await,
            30..42 => self.steer(die).await,
            42..54 => self.claim(die).await,
            54..57 => self.claim_instance(die).await,
            57..61 => self.take_over().await,
            61..93 => self.commit(die).await,
            93..95 => self.renew().await,
            95..98 => self.release(die).await,
            98..100 => {
                self.set_back(die);
                Ok(())
            }
            _ => self.call_hooks(die).await,
        }
    }

    async fn create(&mut self, mut die: Die) -> Result<(), Difference> {
        let lease = Lease { runner: "creator".into(), span: LEASE };
        let request = CreateRequest {
            workflow: workflow(die.pick(&WORKFLOWS)),
            instances: (0..=die.below(3)).map(|_| die.instance()).collect(),
            existing: die.pick(&[Existing::Refuse, Existing::Skip, Existing::Skip]),
            lease: die.chance(40).then_some(lease),
            hooks: Vec::new(),
        };
        let ask = async |stage: &Stage| stage.store.create(request.clone()).await;
        let answer = self.both(format!("{request:?}"), ask).await?;
        if request.lease.is_some() {
            for created in answer.unwrap_or_default() {
                self.remember(KnownRun {
                    workflow: created.instance.workflow,
                    id: created.instance.id,
                    run: 0,
                    epoch: created.epoch,
                });
            }
        }
        Ok(())
    }

    async fn send_event(&mut self, mut die: Die) -> Result<(), Difference> {
        let mut event = die.event();
        (event.workflow, event.id) = self.pick_instance(&mut die);
        let claimant = Claimant { runner: "sender".into(), rules: rules(u32::MAX) };
        let claimant = die.pick(&[None, Some(())]).map(|()| claimant);
        let ask =
            async |stage: &Stage| stage.store.send_event(event.clone(), claimant.clone()).await;
        let sent = self.both(format!("{event:?} {claimant:?}"), ask).await?;
        if let Ok(Sent { claimed: Some(run), .. }) = sent {
            self.remember_run(run);
        }
        Ok(())
    }

    async fn steer(&mut self, mut die: Die) -> Result<(), Difference> {
        let (workflow, id) = self.pick_instance(&mut die);
        let action = die.pick(&[
            Action::Pause,
            Action::Pause,
            Action::Resume,
            Action::Resume,
            Action::Terminate,
            Action::Restart,
        ]);
        let ask = async |stage: &Stage| {
            let (workflow, id) = (workflow.clone(), id.clone());
            stage.store.steer(workflow, id, action).await
        };
        let what = format!("{action:?} {workflow}/{id}");
        self.same(what, ask).await
    }

    async fn claim(&mut self, mut die: Die) -> Result<(), Difference> {
        let workflows = WORKFLOWS.map(workflow);
        let known = die.pick(&[1, 2, 2]);
        let request = ClaimRequest {
            runner: "runner".into(),
            workflows: workflows[..known].into(),
            wanted: die.pick(&[1, 2, 3, 100]),
            suspects: die.pick(&[false, true]),
            // How many a claim quarantines on its way to what it wants is a store's own affair.
            rules: rules(u32::MAX),
        };
        let ask = async |stage: &Stage| stage.store.claim(request.clone()).await;
        let answer = self.both(format!("{request:?}"), ask).await?;
        self.remember_claimed(answer);
        Ok(())
    }

    /// Claims one of the runs that are known, which may be held, at rest or over.
    async fn claim_instance(&mut self, mut die: Die) -> Result<(), Difference> {
        let Some(run) = self.pick_run(&mut die) else {
            return Ok(());
        };
        let request = ClaimRequest {
            runner: "runner".into(),
            workflows: [run.workflow.clone()].into(),
            wanted: 1,
            suspects: die.pick(&[false, true]),
            rules: rules(u32::MAX),
        };
        let ask = async |stage: &Stage| {
            let key = run.key(stage).await;
            stage.store.claim_instance(key.instance, request.clone()).await
        };
        let answer = self.both(format!("{request:?} of {run:?}"), ask).await?;
        self.remember_claimed(answer);
        Ok(())
    }

    /// Lets every lease run out, and claims all that is due.
    async fn take_over(&mut self) -> Result<(), Difference> {
        self.advance(LEASE);
        let request = ClaimRequest {
            runner: "heir".into(),
            workflows: WORKFLOWS.map(workflow).into(),
            wanted: 100,
            suspects: true,
            rules: rules(3),
        };
        let ask = async |stage: &Stage| stage.store.claim(request.clone()).await;
        let answer = self.both("take over".to_owned(), ask).await?;
        self.remember_claimed(answer);
        Ok(())
    }

    fn remember_claimed(&mut self, answer: Result<ClaimAnswer, StoreError>) {
        for claimed in answer.expect("a claim is never refused").claimed {
            self.remember_run(claimed);
        }
    }

    fn remember_run(&mut self, ClaimedRun { task, workflow, id, .. }: ClaimedRun) {
        self.remember(KnownRun { run: task.run, epoch: task.epoch, workflow, id });
    }

    /// Mostly one that someone advances.
    fn pick_instance(&self, die: &mut Die) -> (WorkflowName, InstanceId) {
        match self.pick_run(die) {
            Some(run) if die.chance(75) => (run.workflow, run.id),
            Some(_) | None => (workflow(die.pick(&WORKFLOWS)), id(die.pick(&IDS))),
        }
    }

    fn pick_run(&self, die: &mut Die) -> Option<KnownRun> {
        let index: Vec<usize> = (0..self.runs.len()).collect();
        let newer = |die: &mut Die| die.pick(&index).max(die.pick(&index));
        (!index.is_empty()).then(|| self.runs[newer(die)].clone())
    }

    async fn commit(&mut self, mut die: Die) -> Result<(), Difference> {
        let Some(run) = self.pick_run(&mut die) else {
            return Ok(());
        };
        let ask = async |stage: &Stage| {
            let key = run.key(stage).await;
            stage.store.load_steps(key.instance, key.run).await
        };
        let steps = self.both(format!("load {run:?}"), ask).await?;
        let steps = steps.expect("a read is never refused");
        let plan_seed = die.below(u64::MAX);
        let seq = self.seq;
        self.seq += 100;
        let plan = |stage: &Stage, key| {
            let die = Die::new(plan_seed);
            boundary(stage, key, &steps, seq, die)
        };
        let left_key = run.key(&self.left).await;
        let what = format!("{:?}", plan(&self.left, left_key));
        let ask = async |stage: &Stage| {
            let key = run.key(stage).await;
            stage.store.commit(plan(stage, key)).await
        };
        let answer = self.both(what, ask).await?;
        let still_held = matches!(
            answer,
            Ok(Committed { after: After::Continue | After::Drain, .. })
                | Err(StoreError::Mutation(_))
        );
        // Some stay, so that stale keys are used too.
        if !still_held && die.chance(70) {
            self.runs.retain(|known| *known != run);
        }
        Ok(())
    }

    async fn renew(&mut self) -> Result<(), Difference> {
        let runs = self.runs.clone();
        let ask = async |stage: &Stage| {
            let mut keys = Vec::new();
            for run in &runs {
                keys.push(run.key(stage).await);
            }
            stage.store.renew(keys, LEASE).await
        };
        self.same(format!("renew {runs:?}"), ask).await
    }

    async fn release(&mut self, mut die: Die) -> Result<(), Difference> {
        let Some(run) = self.pick_run(&mut die) else {
            return Ok(());
        };
        let ask = async |stage: &Stage| {
            let key = run.key(stage).await;
            stage.store.release(vec![key]).await
        };
        self.same(format!("release {run:?}"), ask).await
    }

    fn set_back(&mut self, mut die: Die) {
        let back = Span::from_millis(-die.ms(5_000).as_millis());
        for stage in [&self.left, &self.right] {
            stage.clock.set_time(stage.clock.now().plus(back));
        }
        self.trace.push(format!("the clock is moved by {back}"));
    }
}

fn rules(claims_without_progress_max: u32) -> ClaimRules {
    ClaimRules { lease: LEASE, claims_without_progress_max }
}
