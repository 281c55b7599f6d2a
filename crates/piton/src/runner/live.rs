//! The runs in flight in this process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use piton_core::record::{InstanceKey, RunKey, RunNumber};

use crate::pass::{Bell, Order, Pass};

/// Who is in flight. An instance is there at most once per epoch; a newer epoch replaces an older one,
/// which has been fenced and is on its way out.
#[derive(Default)]
pub(super) struct Live(Mutex<BTreeMap<InstanceKey, Flight>>);

struct Flight {
    key: RunKey,
    /// There once the run's steps are loaded.
    pass: Option<(Arc<Bell>, Arc<Pass>)>,
    order: Order,
}

impl Live {
    /// A run was claimed. A flight of an older claim is sent away; if a newer claim is in flight already,
    /// because answers overtook each other, this one will not be let in by [`Self::attach`].
    pub(super) fn begin(&self, key: RunKey) {
        let mut flights = self.lock();
        let newer = |flight: &Flight| (flight.key.run, flight.key.epoch) > (key.run, key.epoch);
        if flights.get(&key.instance).is_some_and(newer) {
            return;
        }
        let flight = Flight { key, pass: None, order: Order::Run };
        if let Some(older) = flights.insert(key.instance, flight) {
            older.tell(Order::Abandon);
        }
    }

    /// The pass of a run exists now. `false` if the run was abandoned meanwhile.
    pub(super) fn attach(&self, key: RunKey, bell: Arc<Bell>, pass: Arc<Pass>) -> bool {
        let mut flights = self.lock();
        match flights.get_mut(&key.instance).filter(|flight| flight.key == key) {
            Some(flight) if flight.order < Order::Abandon => {
                bell.order(flight.order);
                flight.pass = Some((bell, pass));
                true
            }
            Some(_) | None => false,
        }
    }

    pub(super) fn end(&self, key: RunKey) {
        let mut flights = self.lock();
        if flights.get(&key.instance).is_some_and(|flight| flight.key == key) {
            flights.remove(&key.instance);
        }
    }

    pub(super) fn touch(&self, instance: InstanceKey) {
        if let Some((bell, _)) = self.lock().get(&instance).and_then(|flight| flight.pass.as_ref())
        {
            bell.touch();
        }
    }

    pub(super) fn order(&self, key: RunKey, order: Order) {
        if let Some(flight) = self.lock().get_mut(&key.instance).filter(|flight| flight.key == key)
        {
            flight.order = flight.order.max(order);
            flight.tell(order);
        }
    }

    pub(super) fn order_all(&self, order: Order) {
        for flight in self.lock().values_mut() {
            flight.order = flight.order.max(order);
            flight.tell(order);
        }
    }

    pub(super) fn keys(&self) -> Vec<RunKey> {
        self.lock().values().map(|flight| flight.key).collect()
    }

    pub(super) fn run(&self, instance: InstanceKey) -> Option<RunNumber> {
        self.lock().get(&instance).map(|flight| flight.key.run)
    }

    /// Sends runs older than `run` away; they are fenced and hold nothing any more.
    pub(super) fn supersede(&self, instance: InstanceKey, run: RunNumber) {
        let mut flights = self.lock();
        if flights.get(&instance).is_some_and(|flight| flight.key.run < run)
            && let Some(older) = flights.remove(&instance)
        {
            older.tell(Order::Abandon);
        }
    }

    pub(super) fn contains(&self, instance: InstanceKey) -> bool {
        self.lock().contains_key(&instance)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub(super) fn pass(&self, instance: InstanceKey) -> Option<Arc<Pass>> {
        let flights = self.lock();
        flights.get(&instance)?.pass.as_ref().map(|(_, pass)| Arc::clone(pass))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<InstanceKey, Flight>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flight {
    fn tell(&self, order: Order) {
        if let Some((bell, _)) = &self.pass {
            bell.order(order);
        }
    }
}
