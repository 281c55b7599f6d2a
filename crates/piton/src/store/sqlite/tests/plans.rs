//! No query of the writer's may cost more with the size of the database.

use rusqlite::Connection;

use crate::store::sqlite::{event, hook, instance, log, migrate, step, task};

fn plan(conn: &Connection, sql: &str) -> String {
    let mut statement = conn
        .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
    let unbound = vec![rusqlite::types::Null; statement.parameter_count()];
    let rows = statement
        .query_map(rusqlite::params_from_iter(unbound), |row| row.get::<_, String>(3))
        .expect("explains");
    rows.collect::<Result<Vec<_>, _>>().expect("reads").join("; ")
}

#[test]
fn every_query_finds_its_rows_by_an_index_in_the_order_it_needs() {
    let conn = Connection::open_in_memory().expect("opens");
    conn.execute_batch(migrate::SCHEMA).expect("creates");
    let queries = [
        task::TASK_GET,
        task::TASK_WORKFLOW,
        task::TASK_PUT,
        task::TASK_NOTE,
        task::TASK_CLAIM,
        task::TASK_RENEW,
        task::TASK_DELETE,
        task::TASK_SET_ASIDE,
        task::TASK_DUE,
        task::TASK_EXPIRED,
        task::TASK_NEXT_PENDING,
        task::TASK_NEXT_EXPIRY,
        step::STEP_UPDATE,
        step::STEP_OF_RUN,
        step::STEP_PAGE,
        step::STEP_PAGE_DESCENDING,
        step::STEP_WAITS_FOR,
        step::STEP_NEWEST,
        event::EVENT_BY_IDEMPOTENCY_KEY,
        event::EVENT_BUFFER,
        event::EVENT_PAGE,
        event::EVENT_PAGE_DESCENDING,
        event::EVENT_LAST_SEQ,
        event::EVENT_DELIVER,
        hook::HOOK_GET,
        hook::HOOK_DUE,
        hook::HOOK_DUE_IN_HAND,
        hook::HOOK_DUE_SUSPECT,
        hook::HOOK_NEXT_DUE,
        hook::HOOK_TAKE,
        hook::HOOK_SETTLE,
        hook::HOOK_FORGET,
        hook::HOOK_RENEW,
        hook::HOOK_PUT,
        hook::HOOK_SET_ASIDE,
        hook::HOOK_PRUNE,
        log::LOG_INSERT,
        log::LOG_PAGE,
        log::LOG_PAGE_DESCENDING,
        instance::INSTANCE_BY_ID,
        instance::INSTANCE_BY_KEY,
        instance::INSTANCE_PLACES,
        instance::INSTANCE_NEXT_WORKFLOW,
        instance::INSTANCE_STANDING,
        instance::INSTANCE_STATUS,
        instance::INSTANCE_TO_RUN,
        instance::INSTANCE_START,
        instance::INSTANCE_WAKE,
        instance::INSTANCE_CHANGE,
        instance::INSTANCE_END,
        instance::INSTANCE_RESTART,
    ];
    for sql in queries {
        let plan = plan(&conn, sql);
        assert!(plan.contains("SEARCH"), "{sql}: {plan}");
        assert!(!plan.contains("SCAN piton"), "{sql}: {plan}");
        assert!(!plan.contains("TEMP B-TREE"), "{sql}: {plan}");
    }
    for (sql, index) in [
        (task::TASK_DUE, "INDEX piton_task_due"),
        (task::TASK_NEXT_PENDING, "INDEX piton_task_due"),
        (task::TASK_EXPIRED, "INDEX piton_task_leased"),
        (task::TASK_SUSPECT, "INDEX piton_task_suspect"),
        (task::TASK_NEXT_EXPIRY, "COVERING INDEX piton_task_leased"),
        (task::TASK_LEASED, "INDEX piton_task_leased"),
        (step::STEP_WAITS_FOR, "INDEX piton_step_waiting"),
        (step::STEP_WAKING_FIRST, "INDEX piton_step_waiting"),
        (hook::HOOK_DUE, "INDEX piton_hook_due"),
        (hook::HOOK_DUE_IN_HAND, "INDEX piton_hook_in_hand"),
        (hook::HOOK_DUE_SUSPECT, "INDEX piton_hook_suspect"),
        (hook::HOOK_NEXT_DUE, "INDEX piton_hook_due"),
        (hook::HOOK_NEXT_DUE, "INDEX piton_hook_in_hand"),
        (hook::HOOK_NEXT_DUE, "INDEX piton_hook_suspect"),
        (hook::HOOK_RELEASE, "INDEX piton_hook_in_hand"),
        (hook::HOOK_RELEASE_SUSPECT, "INDEX piton_hook_suspect"),
        (hook::HOOK_PRUNE, "INDEX piton_hook_completed"),
        (hook::HOOK_PAGE_FAILED, "INDEX piton_hook_failed"),
        (hook::HOOK_PAGE_PENDING, "INDEX piton_hook_due"),
        (hook::HOOK_PAGE_PROCESSING, "INDEX piton_hook_in_hand"),
        (hook::HOOK_PAGE_PROCESSING, "INDEX piton_hook_suspect"),
        (event::EVENT_BUFFER, "INDEX piton_event_buffer"),
        (event::EVENT_BY_IDEMPOTENCY_KEY, "INDEX piton_event_by_idempotency_key"),
        (instance::INSTANCE_PLACES, "COVERING INDEX piton_instance_by_status"),
    ] {
        let plan = plan(&conn, sql);
        assert!(plan.contains(index), "{sql}: {plan}");
    }
}
