//! Every store runs the same suite, and answers like the memory store.

use std::ops::Range;
use std::path::Path;

use piton::store::{
    Boundary, CreateRequest, Existing, Lease, MemoryStore, Mutation, NewInstance, SqliteStore,
    Store, StoreError,
};
use piton_core::boundary::Next;
use piton_core::record::RunKey;
use piton_core::{Code, InstanceId, Json, Span, WorkflowName};
use piton_testing::conformance::differential;
use piton_testing::postgres::Scratch;
use piton_testing::{Stage, VirtualRuntime, store_conformance};
use tempfile::TempDir;

async fn open_memory() -> Stage {
    let clock = VirtualRuntime::new(1);
    Stage::new(MemoryStore::new(clock.clone()), clock)
}

store_conformance!(memory, open_memory);

async fn open_sqlite() -> Stage {
    let (stage, directory) = new_sqlite();
    stage.keeping(Audited(directory))
}

/// For the differential test, which writes rows that no run would.
async fn open_sqlite_unaudited() -> Stage {
    let (stage, directory) = new_sqlite();
    stage.keeping(directory)
}

fn new_sqlite() -> (Stage, TempDir) {
    let directory = scratch_directory();
    let clock = VirtualRuntime::new(1);
    let store = SqliteStore::open(&directory.path().join("test.db"), clock.clone());
    (Stage::new(store.expect("opened"), clock), directory)
}

/// A directory whose database is audited when the case is over and its store is closed.
struct Audited(TempDir);

impl Drop for Audited {
    fn drop(&mut self) {
        let report = piton_audit::audit_file(&self.0.path().join("test.db")).expect("audited");
        assert!(report.is_clean() || std::thread::panicking(), "{report}");
    }
}

/// In memory where there is such a place: these tests are about answers, and wait for thousands of fsyncs otherwise.
fn scratch_directory() -> TempDir {
    let in_memory = Path::new("/dev/shm");
    let directory = if in_memory.is_dir() { TempDir::new_in(in_memory) } else { TempDir::new() };
    directory.expect("a directory can be made")
}

store_conformance!(sqlite, open_sqlite);

/// `None`, and a message, if there is no server to test on.
async fn open_postgres() -> Option<Stage> {
    let (stage, scratch) = new_postgres().await?;
    Some(stage.keeping(AuditedSchema(scratch)))
}

async fn new_postgres() -> Option<(Stage, Scratch)> {
    let scratch = Scratch::new()?;
    let clock = VirtualRuntime::new(1);
    let store = scratch.open(clock.clone()).await.expect("opened");
    Some((Stage::new(store, clock), scratch))
}

/// A schema that is audited when the case is over.
struct AuditedSchema(Scratch);

impl Drop for AuditedSchema {
    fn drop(&mut self) {
        let report = piton_audit::audit_postgres(self.0.url(), self.0.schema()).expect("audited");
        assert!(report.is_clean() || std::thread::panicking(), "{report}");
    }
}

store_conformance!(postgres, open_postgres);

/// Seeds of the differential test: sequences enough for every pair of calls to meet many times.
const SEEDS: Range<u64> = 0..300;

#[test]
fn sqlite_answers_like_memory() {
    differential::assert_alike(SEEDS, open_memory, open_sqlite_unaudited);
}

/// Each seed has a schema of its own, which takes most of the time.
const POSTGRES_SEEDS: Range<u64> = 0..60;

#[test]
fn postgres_answers_like_memory() {
    if piton_testing::postgres::is_available() {
        // Unaudited: it writes rows that no run would.
        let open = async || {
            let (stage, scratch) = new_postgres().await.expect("there is a server");
            stage.keeping(scratch)
        };
        differential::assert_alike(POSTGRES_SEEDS, open_memory, open);
    }
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

#[tokio::test]
async fn the_memory_store_has_no_sql_and_says_what_to_use_instead() {
    let store = MemoryStore::new(VirtualRuntime::new(1));
    let request = CreateRequest {
        workflow: WorkflowName::from_stored("checkout"),
        instances: vec![NewInstance { id: InstanceId::from_stored("a"), params: Json::null() }],
        existing: Existing::Refuse,
        lease: Some(Lease { runner: "runner".into(), span: Span::from_millis(30_000) }),
        hooks: Vec::new(),
    };
    let created = store.create(request).await.expect("created").remove(0);
    let key = RunKey { instance: created.instance.key, run: 0, epoch: created.epoch };
    let boundary = |mutations| Boundary {
        key,
        mutations,
        steps: Vec::new(),
        waits: Vec::new(),
        logs: Vec::new(),
        next: Next::Complete { output: Json::null() },
    };
    let statement = Mutation::Execute { sql: "DELETE FROM orders".to_owned(), params: Vec::new() };
    let work = Mutation::Sqlite(Box::new(|_| panic!("never runs")));
    let other = Mutation::Postgres(Box::new(|_| panic!("never runs")));
    for mutation in [statement, work, other] {
        let answer = store.commit(boundary(vec![mutation])).await;
        let Err(StoreError::Mutation(error)) = answer else { panic!("{answer:?}") };
        assert_eq!(error.code, Code::StepTransaction);
        assert!(error.message.contains("`sqlite:`") && error.message.contains("`send_event`"));
    }
    store.commit(boundary(Vec::new())).await.expect("nothing was written, the run is still held");
}
