//! A store as a process on a bad day sees it: calls fail before or after they were applied, or take longer
//! than a lease; hints are lost, doubled and late.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use piton::runtime::Runtime;
use piton::store::{
    Action, Answer, Boundary, ClaimAnswer, ClaimRequest, Claimant, Committed, CreateRequest,
    Created, EngineHooks, Hint, HookQuery, HookStore, HookWork, HooksWorked, InstanceQuery,
    InstanceView, LogFilter, MemoryStore, NewEvent, Observer, PageQuery, Renewed, Secret, Sent,
    Store, StoreError,
};
use piton_core::boundary::After;
use piton_core::hook::{HookKey, HookRecord, NewHook};
use piton_core::record::{
    EventRecord, InstanceKey, InstanceRecord, LogLine, LogRecord, RunKey, RunNumber, StepRecord,
};
use piton_core::{HookNamespace, InstanceId, Span, Timestamp, WorkflowName};

use super::check::{Call, Checker};
use super::plan::Part;
use super::world::{ProcessId, View, World};
use crate::runtime::SplitMix64;

/// How bad the day is. Each is "one in n"; 0 is never.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weather {
    pub(super) fail_before: u64,
    pub(super) fail_after: u64,
    pub(super) delay: u64,
    pub(super) delay_ms_max: u64,
    pub(super) hint_lost: u64,
    pub(super) hint_doubled: u64,
    pub(super) crash: u64,
}

impl Weather {
    /// Every seed has a weather of its own: some faults often, others never.
    pub(super) fn random(random: &mut SplitMix64, has: impl Fn(Part) -> bool) -> Self {
        let mut often = |part, choices: [u64; 4]| {
            let chosen = choices[random.below(4) as usize];
            if has(part) { chosen } else { 0 }
        };
        Self {
            fail_before: often(Part::FailuresBefore, [0, 0, 60, 12]),
            fail_after: often(Part::FailuresAfter, [0, 0, 60, 12]),
            delay: often(Part::Delays, [0, 20, 8, 3]),
            delay_ms_max: often(Part::Delays, [3, 300, 20_000, 90_000]),
            hint_lost: often(Part::LostHints, [0, 0, 4, 1]),
            hint_doubled: often(Part::DoubledHints, [0, 0, 10, 2]),
            crash: often(Part::Crashes, [0, 1, 1, 1]),
        }
    }
}

/// Whether a call can have changed a row.
#[derive(PartialEq, Eq)]
enum Changed {
    Maybe,
    No,
}

/// The shared store, seen by one process.
pub(super) struct FaultyStore {
    pub(super) world: Arc<World>,
    pub(super) process: ProcessId,
    pub(super) runtime: Arc<View>,
    pub(super) inner: Arc<MemoryStore>,
    pub(super) checker: Arc<Checker>,
    pub(super) weather: Arc<Mutex<Weather>>,
    /// Keeps the observers between the store and the engine alive.
    pub(super) relays: Mutex<Vec<Arc<Relay>>>,
}

impl FaultyStore {
    fn weather(&self) -> Weather {
        *self.weather.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies `call` some time between now and the answer, or never.
    fn write<T: Send + 'static>(
        &self,
        call: Call,
        apply: impl FnOnce(&MemoryStore) -> Answer<T> + Send + 'static,
        told: impl FnOnce(&Checker, &Result<T, StoreError>) -> Changed + Send + 'static,
    ) -> Answer<T> {
        let weather = self.weather();
        let delays = [self.delay(&weather), self.delay(&weather)];
        let before = self.world.one_in(weather.fail_before);
        let after = self.world.one_in(weather.fail_after);
        let (inner, runtime) = (Arc::clone(&self.inner), Arc::clone(&self.runtime));
        let (checker, process) = (Arc::clone(&self.checker), self.process);
        let [delay_before, delay_after] = delays;
        let on_its_way = Checker::sent(&checker, &call);
        Box::pin(async move {
            if let Some(span) = delay_before {
                runtime.sleep(span).await;
            }
            if before {
                checker.note(process, &call, "fails before it is applied");
                return Err(StoreError::Unavailable("simulated, not applied".to_owned()));
            }
            drop(on_its_way);
            checker.before(process, &call);
            let answer = apply(&inner).await;
            if told(&checker, &answer) == Changed::Maybe {
                checker.after(process, &call, &answer);
            }
            if let Some(span) = delay_after {
                runtime.sleep(span).await;
            }
            if after {
                checker.lost_answer(process, &call);
                return Err(StoreError::Unavailable("simulated, applied".to_owned()));
            }
            answer
        })
    }

    fn read<T: Send + 'static>(
        &self,
        apply: impl FnOnce(&MemoryStore) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let weather = self.weather();
        let delay = self.delay(&weather);
        let fails = self.world.one_in(weather.fail_before);
        let (inner, runtime) = (Arc::clone(&self.inner), Arc::clone(&self.runtime));
        Box::pin(async move {
            if let Some(span) = delay {
                runtime.sleep(span).await;
            }
            if fails {
                return Err(StoreError::Unavailable("simulated".to_owned()));
            }
            apply(&inner).await
        })
    }

    fn delay(&self, weather: &Weather) -> Option<Span> {
        let delayed = self.world.one_in(weather.delay);
        let ms = delayed.then(|| self.world.below(weather.delay_ms_max + 1))?;
        Some(Span::from_millis(ms.cast_signed()))
    }
}

impl Store for FaultyStore {
    fn kind(&self) -> &'static str {
        "simulated"
    }

    fn secret(&self) -> Secret {
        self.inner.secret()
    }

    fn observe(&self, observer: Weak<dyn Observer>) {
        let relay = Arc::new(Relay {
            world: Arc::clone(&self.world),
            process: self.process,
            runtime: Arc::clone(&self.runtime),
            weather: Arc::clone(&self.weather),
            observer,
        });
        self.inner.observe(Arc::downgrade(&relay) as Weak<dyn Observer>);
        self.relays.lock().unwrap_or_else(PoisonError::into_inner).push(relay);
    }

    fn create(&self, request: CreateRequest) -> Answer<Vec<Created>> {
        let ids = request.instances.iter().map(|new| new.id.to_string()).collect();
        let leased = request.lease.is_some();
        let process = self.process;
        self.write(
            Call::Create { ids, leased },
            move |store| store.create(request),
            move |checker, answer| {
                if let (true, Ok(created)) = (leased, answer) {
                    for created in created {
                        checker.claimed(process, created.instance.key, created.epoch);
                    }
                }
                Changed::Maybe
            },
        )
    }

    fn send_event(&self, event: NewEvent, claimant: Option<Claimant>) -> Answer<Sent> {
        let call = Call::Event { id: event.id.to_string(), event: event.event_type.to_string() };
        let process = self.process;
        self.write(
            call,
            move |store| store.send_event(event, claimant),
            move |checker, answer| {
                if let Ok(Sent { claimed: Some(run), .. }) = answer {
                    checker.claimed(process, run.key, run.task.epoch);
                }
                Changed::Maybe
            },
        )
    }

    fn steer(
        &self,
        workflow: WorkflowName,
        id: InstanceId,
        action: Action,
    ) -> Answer<InstanceRecord> {
        let call = Call::Steer { id: id.to_string(), action };
        self.write(call, move |store| store.steer(workflow, id, action), |_, _| Changed::Maybe)
    }

    fn claim(&self, request: ClaimRequest) -> Answer<ClaimAnswer> {
        let (process, wanted) = (self.process, request.wanted);
        self.write(
            Call::Claim { wanted },
            move |store| store.claim(request),
            move |checker, answer| {
                let Ok(answer) = answer else { return Changed::Maybe };
                for run in &answer.claimed {
                    checker.claimed(process, run.key, run.task.epoch);
                }
                // Most claims find nothing; checking every row after each of them would be most of the work.
                let nothing = answer.claimed.is_empty() && !checker.tasks_changed();
                if nothing {
                    checker.claimed_nothing(wanted);
                    return Changed::No;
                }
                Changed::Maybe
            },
        )
    }

    fn claim_instance(&self, _: InstanceKey, _: ClaimRequest) -> Answer<ClaimAnswer> {
        unreachable!("no simulated process ticks a single instance")
    }

    fn load_steps(&self, instance: InstanceKey, run: RunNumber) -> Answer<Vec<StepRecord>> {
        self.read(move |store| store.load_steps(instance, run))
    }

    fn commit(&self, boundary: Boundary) -> Answer<Committed> {
        let call = Call::Commit {
            key: boundary.key,
            steps: boundary.steps.iter().map(|write| (*write.record).clone()).collect(),
            waits: boundary.waits.iter().map(|wait| (*wait.record).clone()).collect(),
            next: boundary.next.clone(),
        };
        let (process, key) = (self.process, boundary.key);
        self.write(
            call,
            move |store| store.commit(boundary),
            move |checker, answer| {
                let goes_on = match answer {
                    Ok(committed) => matches!(committed.after, After::Continue | After::Drain),
                    Err(error) => matches!(error, StoreError::Mutation(_)),
                };
                if !goes_on {
                    checker.pass_over(process, key);
                }
                Changed::Maybe
            },
        )
    }

    fn renew(&self, keys: Vec<RunKey>, lease: Span) -> Answer<Vec<Renewed>> {
        self.write(Call::Renew, move |store| store.renew(keys, lease), |_, _| Changed::Maybe)
    }

    fn release(&self, keys: Vec<RunKey>) -> Answer<()> {
        self.write(Call::Release, move |store| store.release(keys), |_, _| Changed::Maybe)
    }

    fn next_due_at(&self, workflows: Arc<[WorkflowName]>) -> Answer<Option<Timestamp>> {
        self.read(move |store| store.next_due_at(workflows))
    }

    fn next_claimable_at(&self, workflows: Arc<[WorkflowName]>) -> Answer<Option<Timestamp>> {
        self.read(move |store| store.next_claimable_at(workflows))
    }

    fn append_logs(
        &self,
        instance: InstanceKey,
        run: RunNumber,
        lines: Vec<LogLine>,
    ) -> Answer<()> {
        self.write(
            Call::AppendLogs,
            move |store| store.append_logs(instance, run, lines),
            |_, _| Changed::Maybe,
        )
    }

    fn instance(&self, workflow: WorkflowName, id: InstanceId) -> Answer<Option<InstanceView>> {
        self.read(move |store| store.instance(workflow, id))
    }

    fn instances(&self, query: InstanceQuery) -> Answer<Vec<InstanceRecord>> {
        self.read(move |store| store.instances(query))
    }

    fn steps(&self, page: PageQuery) -> Answer<Vec<StepRecord>> {
        self.read(move |store| store.steps(page))
    }

    fn events(&self, page: PageQuery) -> Answer<Vec<EventRecord>> {
        self.read(move |store| store.events(page))
    }

    fn logs(&self, page: PageQuery, filter: LogFilter) -> Answer<Vec<LogRecord>> {
        self.read(move |store| store.logs(page, filter))
    }

    fn ended(&self, instances: Vec<InstanceKey>) -> Answer<Vec<InstanceKey>> {
        self.read(move |store| store.ended(instances))
    }

    fn backlog(&self, known: Arc<[WorkflowName]>) -> Answer<Vec<(WorkflowName, u64)>> {
        self.read(move |store| store.backlog(known))
    }

    fn hooks(&self) -> Option<&dyn HookStore> {
        Some(self)
    }

    fn close(&self) -> Answer<()> {
        Box::pin(std::future::ready(Ok(())))
    }
}

impl HookStore for FaultyStore {
    fn trigger_hooks(&self, hooks: Vec<NewHook>) -> Answer<()> {
        let ids = hooks.iter().map(|hook| hook.id.to_string()).collect();
        let call = Call::TriggerHooks { ids };
        self.write(call, move |store| store.trigger_hooks(hooks), |_, _| Changed::Maybe)
    }

    fn work_hooks(&self, work: HookWork) -> Answer<HooksWorked> {
        let settled: Vec<HookKey> = work.settled.iter().map(|(hook, _)| hook.key()).collect();
        let (renewed, wanted) = (work.renewed.clone(), work.wanted);
        let only_looks = settled.is_empty() && renewed.is_empty();
        self.write(
            Call::WorkHooks { settled, renewed, wanted },
            move |store| store.work_hooks(work),
            move |checker, answer| {
                // One that is given up is taken by nobody.
                let nothing = answer.as_ref().is_ok_and(|worked| worked.taken.is_empty());
                if only_looks && nothing && !checker.hooks_changed() {
                    Changed::No
                } else {
                    Changed::Maybe
                }
            },
        )
    }

    fn next_hook_at(
        &self,
        namespaces: Arc<[HookNamespace]>,
    ) -> Answer<(Timestamp, Option<Timestamp>)> {
        self.read(move |store| store.next_hook_at(namespaces))
    }

    fn hook(&self, id: Arc<str>) -> Answer<Option<HookRecord>> {
        self.read(move |store| store.hook(id))
    }

    fn hooks(&self, query: HookQuery) -> Answer<Vec<HookRecord>> {
        self.read(move |store| HookStore::hooks(store, query))
    }

    fn retry_hook(&self, id: Arc<str>) -> Answer<HookRecord> {
        let call = Call::RetryHook { id: id.to_string() };
        self.write(call, move |store| store.retry_hook(id), |_, _| Changed::Maybe)
    }

    fn tell_by_hooks(&self, wanted: EngineHooks) {
        self.inner.tell_by_hooks(wanted);
    }
}

/// Passes hints on: some never, some twice, some late.
pub(super) struct Relay {
    world: Arc<World>,
    process: ProcessId,
    runtime: Arc<View>,
    weather: Arc<Mutex<Weather>>,
    observer: Weak<dyn Observer>,
}

impl Observer for Relay {
    fn hint(&self, hint: Hint) {
        let weather = *self.weather.lock().unwrap_or_else(PoisonError::into_inner);
        if self.world.one_in(weather.hint_lost) {
            return;
        }
        let times = if self.world.one_in(weather.hint_doubled) { 2 } else { 1 };
        for _ in 0..times {
            let late = self.world.one_in(weather.delay).then(|| self.world.below(3_000));
            self.pass_on(hint.clone(), late);
        }
    }
}

impl Relay {
    /// Always in a task of its own: a hint never runs inside the transaction it tells of.
    fn pass_on(&self, hint: Hint, late_ms: Option<u64>) {
        let (observer, runtime) = (Weak::clone(&self.observer), Arc::clone(&self.runtime));
        let task = async move {
            if let Some(ms) = late_ms {
                runtime.sleep(Span::from_millis(ms.cast_signed())).await;
            }
            if let Some(observer) = observer.upgrade() {
                observer.hint(hint);
            }
        };
        self.world.spawn(self.process, Box::pin(task));
    }
}
