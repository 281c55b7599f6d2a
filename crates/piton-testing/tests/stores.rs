//! Every store runs the same suite.

use piton::store::{MemoryStore, SqliteStore};
use piton_testing::{Stage, VirtualRuntime, store_conformance};

async fn open_memory() -> Stage {
    let clock = VirtualRuntime::new(1);
    Stage::new(MemoryStore::new(clock.clone()), clock)
}

store_conformance!(memory, open_memory);

async fn open_sqlite() -> Stage {
    let directory = tempfile::tempdir().unwrap();
    let clock = VirtualRuntime::new(1);
    let store = SqliteStore::open(&directory.path().join("test.db"), clock.clone()).unwrap();
    Stage::new(store, clock).keeping(directory)
}

store_conformance!(sqlite, open_sqlite);
