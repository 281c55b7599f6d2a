//! Clients: they create, send events, pause, resume, restart and terminate, at random and at bad moments.

use std::sync::Arc;

use piton::runtime::Runtime;
use piton::{BatchItem, InstanceHandle, WorkflowHandle};
use piton_core::{InstanceStatus, Span};

use super::program::{EVENTS, INSTANCES, Program};
use super::sometimes::Rare;
use super::{CLIENTS, Simulation};
use crate::runtime::SplitMix64;

type Programs = WorkflowHandle<Program, Vec<String>>;

/// Plays the clients' part, then waits until everything has ended.
pub(super) async fn play(sim: Arc<Simulation>) {
    let engine = match sim.engine(CLIENTS, Span::ZERO).no_runner().start().await {
        Ok(engine) => engine,
        Err(error) => return sim.checker.violate("liveness", error.to_string()),
    };
    let programs: Programs = engine.workflow("program").expect("it is registered");
    let actions = 4 + sim.world.below(20);
    let mut random = SplitMix64::new(sim.world.below(u64::MAX));
    for _ in 0..actions {
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
    let action = random.below(12);
    if action < 5 {
        return create(sim, programs, random, &id).await;
    }
    let Ok(instance) = programs.get(&id).await else { return };
    // Refusals and lost answers are part of the game: what counts is in the rows.
    match action {
        5..=7 => send(sim, &instance, random).await,
        8 => drop(instance.pause().await),
        9 => drop(instance.resume().await),
        10 => drop(instance.restart().await),
        _ => drop(instance.terminate().await),
    }
}

async fn create(sim: &Arc<Simulation>, programs: &Programs, random: &mut SplitMix64, id: &str) {
    let program = Program::random(random);
    sim.checker.tell(|| format!("{id} would run {program:?}"));
    if random.below(6) == 0 {
        let other = format!("i{}", random.below(INSTANCES));
        let second = Program::random(random);
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

async fn send(
    sim: &Arc<Simulation>,
    instance: &InstanceHandle<Vec<String>>,
    random: &mut SplitMix64,
) {
    let event = EVENTS[random.below(3) as usize];
    let payload = random.below(1_000_000_000);
    if instance.send_event(event, &payload).await.is_ok() {
        let text = payload.to_string();
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
        if live.is_empty() {
            for instance in &rows {
                let error = instance.record.error.as_ref().map(|error| error.name.as_str());
                if error == Some("Quarantined") {
                    sim.checker.sometimes(Rare::Quarantined);
                }
            }
            return sim.finish();
        }
        if sim.world.now() > deadline {
            let ids: Vec<_> =
                live.iter().map(|i| format!("{} {}", i.record.id, i.record.status)).collect();
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
