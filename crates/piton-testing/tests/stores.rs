//! Every store runs the same suite, and answers like the memory store.

use std::ops::Range;
use std::path::Path;

use piton::store::{MemoryStore, SqliteStore};
use piton_core::Span;
use piton_testing::conformance::differential;
use piton_testing::{Stage, VirtualRuntime, store_conformance};
use tempfile::TempDir;

async fn open_memory() -> Stage {
    let clock = VirtualRuntime::new(1);
    Stage::new(MemoryStore::new(clock.clone()), clock)
}

store_conformance!(memory, open_memory);

async fn open_sqlite() -> Stage {
    let directory = scratch_directory();
    let clock = VirtualRuntime::new(1);
    let store = SqliteStore::open(&directory.path().join("test.db"), clock.clone());
    Stage::new(store.expect("opened"), clock).keeping(directory)
}

/// In memory where there is such a place: these tests are about answers, and wait for thousands of fsyncs otherwise.
fn scratch_directory() -> TempDir {
    let in_memory = Path::new("/dev/shm");
    let directory = if in_memory.is_dir() { TempDir::new_in(in_memory) } else { TempDir::new() };
    directory.expect("a directory can be made")
}

store_conformance!(sqlite, open_sqlite);

/// Seeds of the differential test: sequences enough for every pair of calls to meet many times.
const SEEDS: Range<u64> = 0..300;

#[test]
fn sqlite_answers_like_memory() {
    differential::assert_alike(SEEDS, open_memory, open_sqlite);
}

#[test]
fn what_stores_must_agree_on_does_not_depend_on_random_numbers() {
    let with_other_ids = async || {
        let clock = VirtualRuntime::new(2);
        Stage::new(MemoryStore::new(clock.clone()), clock)
    };
    differential::assert_alike(0..20, open_memory, with_other_ids);
}

#[tokio::test]
async fn the_differential_test_tells_stores_apart() {
    let open_late = async || {
        let clock = VirtualRuntime::new(1);
        let late = clock.offset_view(Span::from_millis(1));
        Stage::new(MemoryStore::new(late), clock)
    };
    let difference = differential::compare(0, &open_memory, &open_late).await;
    difference.expect_err("a clock that is off by a millisecond shows");
}
