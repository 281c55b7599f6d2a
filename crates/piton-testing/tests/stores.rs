//! Every store runs the same suite, and answers like the memory store.

use piton::store::MemoryStore;
use piton_core::Span;
use piton_testing::conformance::differential;
use piton_testing::{Stage, VirtualRuntime, store_conformance};

/// Sequences of the differential test: enough for every pair of calls to meet many times.
const SEEDS: std::ops::Range<u64> = 0..300;

async fn open_memory() -> Stage {
    let clock = VirtualRuntime::new(1);
    Stage::new(MemoryStore::new(clock.clone()), clock)
}

store_conformance!(memory, open_memory);

/// The same store with other random numbers: nothing that is compared may depend on them.
async fn open_memory_with_other_ids() -> Stage {
    let clock = VirtualRuntime::new(2);
    Stage::new(MemoryStore::new(clock.clone()), clock)
}

#[test]
fn memory_answers_like_itself() {
    differential::assert_alike(SEEDS, open_memory, open_memory_with_other_ids);
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
