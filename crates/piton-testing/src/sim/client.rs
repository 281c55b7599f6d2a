//! Clients: they create, send events, read, pause, resume, restart and terminate, at random and at bad moments.

use std::sync::Arc;

use piton::runtime::Runtime;
use piton::{BatchItem, InstanceHandle, WorkflowHandle};
use piton_core::{InstanceStatus, Span, StepStatus, StepType, TaskState, Timestamp};

use super::program::{EVENTS, INSTANCES, Program};
use super::sometimes::Rare;
use super::{CLIENTS, Simulation, reader};
use crate::runtime::SplitMix64;

pub(super) type Programs = WorkflowHandle<Program, Vec<String>>;

/// Plays the clients' part, then waits until everything has ended.
pub(super) async fn play(sim: Arc<Simulation>) {
    let engine = sim.engine(CLIENTS, Span::ZERO);
    let engine = if sim.plan.client_runner { engine } else { engine.no_runner() };
    let engine = match engine.start().await {
        Ok(engine) => engine,
        Err(error) => return sim.checker.violate("liveness", error.to_string()),
    };
    let programs: Programs = engine.workflow("program").expect("it is registered");
    for mut random in (0..sim.plan.actions).filter_map(|number| sim.plan.action(number)) {
        let pause = [0, 1, 50, 2_000, 12_000][random.below(5) as usize];
        pause_ms(&sim, pause).await;
        act(&sim, &programs, &mut random).await;
    }
    sim.calm();
    wait_for_the_end(&sim, &programs).await;
    drop(engine);
}

async fn pause_ms(sim: &Arc<Simulation>, ms: i64) {
    sim.world.view(CLIENTS, Span::ZERO).sleep(Span::from_millis(ms)).await;
}

async fn act(sim: &Arc<Simulation>, programs: &Programs, random: &mut SplitMix64) {
    let id = format!("i{}", random.below(INSTANCES));
    let action = random.below(15);
    if action < 5 {
        return create(sim, programs, random, &id).await;
    }
    if action == 5 {
        return reader::list(sim, programs, random).await;
    }
    let id = if action == 14 { held(sim, random).unwrap_or(id) } else { id };
    let Ok(instance) = programs.get(&id).await else { return };
    // Refusals and lost answers are part of the game: what counts is in the rows.
    match action {
        6 | 7 => send_any(sim, &instance, random).await,
        8 => send_at_the_deadline(sim, &instance, random).await,
        9 => reader::history(sim, &instance, random).await,
        10 => drop(instance.pause().await),
        11 => drop(instance.resume().await),
        12 => drop(instance.restart().await),
        13 => drop(instance.terminate().await),
        // A run that ended leaves no task behind, and the next one gets a new one: who still works on the old
        // run must not take it for his own.
        _ => {
            drop(instance.terminate().await);
            drop(instance.restart().await);
        }
    }
}

/// An instance that some runner holds, perhaps not for the first time.
fn held(sim: &Simulation, random: &mut SplitMix64) -> Option<String> {
    let epoch_min = 1 + random.below(2);
    let held = sim.store.dump().into_iter().find(|instance| {
        instance.task.is_some_and(|task| task.state == TaskState::Leased && task.epoch >= epoch_min)
    });
    held.map(|instance| instance.record.id.to_string())
}

async fn create(sim: &Arc<Simulation>, programs: &Programs, random: &mut SplitMix64, id: &str) {
    let program = Program::random(random, &sim.plan);
    sim.checker.tell(|| format!("{id} would run {program:?}"));
    if random.below(6) == 0 {
        let other = format!("i{}", random.below(INSTANCES));
        let second = Program::random(random, &sim.plan);
        let batch = [BatchItem::new(id, program), BatchItem::new(other, second)];
        drop(programs.create_batch(batch).await);
    } else if programs.create(program).id(id).await.is_ok() {
        let exists = sim.store.dump().iter().any(|i| i.record.id.as_str() == id);
        if !exists {
            sim.checker
                .violate("I8", format!("the create of {id} was acknowledged and is not there"));
        }
    }
}

type Instance = InstanceHandle<Vec<String>>;

async fn send_any(sim: &Arc<Simulation>, instance: &Instance, random: &mut SplitMix64) {
    let event = EVENTS[random.below(EVENTS.len() as u64) as usize];
    for _ in 0..[1, 1, 2, 3][random.below(4) as usize] {
        send(sim, instance, event, random).await;
    }
}

/// Sends what the instance waits for, in the millisecond in which the wait times out, or in one beside it.
async fn send_at_the_deadline(sim: &Arc<Simulation>, instance: &Instance, random: &mut SplitMix64) {
    let beside = [0, 0, 0, -1, 1][random.below(5) as usize];
    let Some((deadline, event)) = open_wait(sim, instance.id()) else { return };
    pause_ms(sim, deadline.since(sim.world.now()).as_millis() + beside).await;
    send(sim, instance, &event, random).await;
}

fn open_wait(sim: &Simulation, id: &str) -> Option<(Timestamp, String)> {
    let rows = sim.store.dump();
    let instance = rows.iter().find(|dumped| dumped.record.id.as_str() == id)?;
    let open = instance.runs.last()?.steps.iter().find(|step| {
        step.step_type == StepType::WaitForEvent && step.status == StepStatus::Waiting
    })?;
    Some((open.wake_at?, open.event_type.as_ref()?.to_string()))
}

async fn send(sim: &Arc<Simulation>, instance: &Instance, event: &str, random: &mut SplitMix64) {
    let payload = format!("client-{}", random.next_u64());
    if instance.send_event(event, &payload).await.is_ok() {
        let text = format!("{payload:?}");
        let stored = sim.store.dump().iter().any(|dumped| {
            let events = dumped.runs.iter().flat_map(|run| &run.events);
            events.into_iter().any(|event| event.payload.as_str() == text)
        });
        if !stored {
            sim.checker.violate("I8", format!("event {event} was acknowledged and is not there"));
        }
    }
}

/// Everything ends once the faults have stopped; paused instances need someone to resume them.
async fn wait_for_the_end(sim: &Arc<Simulation>, programs: &Programs) {
    let deadline = sim.deadline();
    loop {
        let rows = sim.store.dump();
        let live: Vec<_> = rows.iter().filter(|i| !i.record.status.is_terminal()).collect();
        let hooks = sim.checker.open_hooks();
        if live.is_empty() && hooks.is_empty() {
            for instance in &rows {
                let error = instance.record.error.as_ref().map(|error| error.name.as_str());
                if error == Some("Quarantined") {
                    sim.checker.sometimes(Rare::Quarantined);
                }
            }
            return sim.finish();
        }
        if sim.world.now() > deadline {
            let mut ids: Vec<_> =
                live.iter().map(|i| format!("{} {}", i.record.id, i.record.status)).collect();
            ids.extend(hooks);
            return sim.checker.violate("liveness", format!("still not ended: {}", ids.join(", ")));
        }
        for instance in live {
            if instance.record.status == InstanceStatus::Paused
                && let Ok(handle) = programs.get(instance.record.id.as_str()).await
            {
                drop(handle.resume().await);
            }
        }
        pause_ms(sim, 5_000).await;
    }
}
