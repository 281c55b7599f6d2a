//! Commits of many runs at once on PostgreSQL, which go over two connections.

use std::sync::Arc;

use futures_util::future::join_all;
use piton::Span;
use piton::prelude::*;
use piton::sqlx::{self, AssertSqlSafe};
use piton::store::{
    Boundary, Clock, CreateRequest, Existing, Lease, NewInstance, PostgresStore, RowState,
    StepWrite, Store, StoreError,
};
use piton_core::boundary::{After, Next};
use piton_core::record::{RunKey, StepRecord};
use piton_core::{InstanceId, Json, StepName, StepStatus, StepType, Timestamp, WorkflowName};
use piton_testing::VirtualRuntime;
use piton_testing::postgres::Scratch;

use crate::postgres::cuttable;

/// A step that a run completed.
fn completed(position: u32, at: Timestamp) -> StepWrite {
    let name = StepName::from_stored(format!("step {position}"));
    let record = StepRecord {
        status: StepStatus::Completed,
        attempts: 1,
        attempts_max: Some(6),
        result: Some(Json::null()),
        ..StepRecord::new(name, StepType::Do, position, at)
    };
    StepWrite { record: Arc::new(record), row: RowState::New }
}

/// On a virtual clock a batch takes no time, so that a second connection pays from the first batch of some size on.
#[tokio::test]
async fn a_close_under_load_waits_for_what_both_connections_commit() -> Result<()> {
    const RUNS: i64 = 100;
    let Some(scratch) = Scratch::new() else { return Ok(()) };
    let (options, _) = cuttable(&scratch);
    let options = options.notify(false).clock(Clock::Runtime);
    let store: Arc<dyn Store> = PostgresStore::open(options, VirtualRuntime::new(1)).await?;
    let create = |n: i64| CreateRequest {
        workflow: WorkflowName::from_stored("many"),
        instances: vec![NewInstance {
            id: InstanceId::from_stored(format!("i-{n}")),
            params: Json::null(),
        }],
        existing: Existing::Refuse,
        lease: Some(Lease { runner: "runner".into(), span: Span::literal("1 hour") }),
        hooks: Vec::new(),
    };
    let created = join_all((0..RUNS).map(|n| store.create(create(n)))).await;
    let keys = created.into_iter().map(|created| {
        let created = created.expect("created").remove(0);
        (RunKey { instance: created.instance.key, run: 0, epoch: created.epoch }, created.instance)
    });
    let keys: Vec<_> = keys.collect();
    // Each run goes on until the store is closed.
    let runs = join_all(keys.iter().map(async |(key, instance)| {
        for position in 0.. {
            let boundary = Boundary {
                key: *key,
                mutations: Vec::new(),
                steps: vec![completed(position, instance.created_at)],
                waits: Vec::new(),
                logs: Vec::new(),
                next: Next::Continue { bodies_running: false },
            };
            match store.commit(boundary).await {
                Ok(committed) => assert_eq!(committed.after, After::Continue),
                Err(StoreError::Closed) => return i64::from(position),
                Err(error) => panic!("{error}"),
            }
        }
        unreachable!("the store is closed")
    }));
    let mut conn = scratch.connect().await?;
    let close = async {
        let count = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'piton-{}' AND query LIKE 'WITH clock%'",
            scratch.schema()
        );
        while sqlx::query_scalar::<_, i64>(AssertSqlSafe(&*count)).fetch_one(&mut conn).await? < 2 {
            tokio::task::yield_now().await;
        }
        Result::<()>::Ok(store.close().await?)
    };
    let (answered, closed) = tokio::join!(runs, close);
    closed?;
    let stored: i64 =
        sqlx::query_scalar("SELECT count(*) FROM piton_step").fetch_one(&mut conn).await?;
    assert_eq!(answered.iter().sum::<i64>(), stored, "what got in is committed and answered");
    Ok(())
}
