//! The steps of a pass: found by name when the code asks for one, by number ever after.

use std::ops::{Index, IndexMut};

use piton_core::StepName;
use rustc_hash::FxHashMap;

use super::Slot;

/// The number of a slot; it never changes, because slots are never removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotId(usize);

/// All slots of a pass.
#[derive(Default)]
pub(super) struct Slots {
    all: Vec<Slot>,
    /// Hashed fast: the names are the user's own code.
    by_name: FxHashMap<StepName, SlotId>,
}

impl Slots {
    /// The slot of this name.
    pub(super) fn id(&self, name: &StepName) -> Option<SlotId> {
        self.by_name.get(name).copied()
    }

    /// The slot of this name, made if there is none.
    pub(super) fn id_or_insert(&mut self, name: &StepName, make: impl FnOnce() -> Slot) -> SlotId {
        if let Some(id) = self.id(name) {
            return id;
        }
        self.insert(make())
    }

    fn insert(&mut self, slot: Slot) -> SlotId {
        let id = SlotId(self.all.len());
        self.by_name.insert(slot.name.clone(), id);
        self.all.push(slot);
        id
    }
}

impl FromIterator<Slot> for Slots {
    fn from_iter<I: IntoIterator<Item = Slot>>(slots: I) -> Self {
        let mut all = Slots::default();
        for slot in slots {
            all.insert(slot);
        }
        all
    }
}

impl Index<SlotId> for Slots {
    type Output = Slot;

    fn index(&self, id: SlotId) -> &Slot {
        &self.all[id.0]
    }
}

impl IndexMut<SlotId> for Slots {
    fn index_mut(&mut self, id: SlotId) -> &mut Slot {
        &mut self.all[id.0]
    }
}
