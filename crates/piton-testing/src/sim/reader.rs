//! Readers: they page through lists that change meanwhile (I17).

use std::collections::BTreeSet;
use std::fmt::Debug;

use piton::{History, HistoryQuery, InstanceHandle};

use super::Simulation;
use super::client::Programs;
use super::program::INSTANCES;
use crate::runtime::SplitMix64;

/// Lists all instances, a few at a time.
pub(super) async fn list(sim: &Simulation, programs: &Programs, random: &mut SplitMix64) {
    let before = sim.store.dump().into_iter().map(|i| i.record.id.to_string()).collect();
    let size = 1 + random.below(3) as u32;
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let page = programs.list().page_size(size);
        let page = match cursor.take() {
            Some(cursor) => page.after(cursor),
            None => page,
        };
        let Ok(page) = page.await else { return };
        seen.extend(page.items.iter().map(|instance| instance.id.to_string()));
        cursor = page.cursor.filter(|_| page.has_next_page);
        if cursor.is_none() || seen.len() > INSTANCES as usize {
            return complete(sim, "instances", &before, &seen);
        }
    }
}

/// Reads the history of the newest run, a few rows at a time.
pub(super) async fn history(
    sim: &Simulation,
    instance: &InstanceHandle<Vec<String>>,
    random: &mut SplitMix64,
) {
    let Some((run, rows)) = Rows::of(sim, instance.id()) else { return };
    let size = 1 + random.below(3) as u32;
    let newest_first = random.below(2) == 0;
    let mut seen = Rows::default();
    let (mut steps, mut events, mut logs) = (None, None, None);
    loop {
        let mut query = instance.history().run_number(run).page_size(size).with_logs();
        if newest_first {
            query = query.newest_first();
        }
        query = steps.iter().cloned().fold(query, HistoryQuery::steps_after);
        query = events.iter().cloned().fold(query, HistoryQuery::events_after);
        query = logs.iter().cloned().fold(query, HistoryQuery::logs_after);
        let Ok(page) = query.await else { return };
        if !seen.take(&page) {
            break;
        }
        steps = page.steps.cursor.or(steps);
        events = page.events.cursor.or(events);
        logs = page.logs.and_then(|page| page.cursor).or(logs);
    }
    complete(sim, "steps", &rows.steps.iter().copied().collect(), &seen.steps);
    complete(sim, "events", &rows.events.iter().copied().collect(), &seen.events);
    complete(sim, "log lines", &rows.logs.iter().copied().collect(), &seen.logs);
}

/// The numbers of a run's rows.
#[derive(Default)]
struct Rows {
    steps: Vec<u64>,
    events: Vec<u64>,
    logs: Vec<u64>,
}

impl Rows {
    fn of(sim: &Simulation, id: &str) -> Option<(u32, Self)> {
        let instance = sim.store.dump().into_iter().find(|i| i.record.id.as_str() == id)?;
        let run = instance.runs.last()?;
        let rows = Self {
            steps: run.steps.iter().map(|step| step.position.into()).collect(),
            events: run.events.iter().map(|event| event.seq).collect(),
            logs: run.logs.iter().map(|line| line.seq).collect(),
        };
        Some((instance.record.run, rows))
    }

    /// Adds a page. `false` if there was nothing new in it.
    fn take(&mut self, page: &History) -> bool {
        let logs = page.logs.iter().flat_map(|page| &page.items).map(|line| line.seq);
        let steps = page.steps.items.iter().map(|step| u64::from(step.position));
        let events = page.events.items.iter().map(|event| event.seq);
        let lists = [&mut self.steps, &mut self.events, &mut self.logs];
        let pages: [Vec<u64>; 3] = [steps.collect(), events.collect(), logs.collect()];
        let mut new = false;
        for (list, page) in lists.into_iter().zip(pages) {
            new |= page.iter().any(|row| !list.contains(row));
            list.extend(page);
        }
        new
    }
}

/// Every row that was there from the beginning was returned once, and none twice.
fn complete<T: Ord + Debug>(sim: &Simulation, what: &str, before: &BTreeSet<T>, seen: &[T]) {
    let once: BTreeSet<_> = seen.iter().collect();
    if once.len() != seen.len() {
        sim.checker.violate("I17", format!("paging through the {what} repeated a row: {seen:?}"));
    }
    if let Some(missed) = before.iter().find(|row| !once.contains(row)) {
        sim.checker.violate("I17", format!("paging through the {what} missed {missed:?}"));
    }
}
