//! Every store runs the same suite.

use piton::store::MemoryStore;
use piton_testing::{Stage, VirtualRuntime, store_conformance};

async fn open_memory() -> Stage {
    let clock = VirtualRuntime::new(1);
    Stage::new(MemoryStore::new(clock.clone()), clock)
}

store_conformance!(memory, open_memory);
