//! What the disk, other programs and wrong SQL can do to the store.

use std::sync::Arc;

use piton_core::boundary::After;
use piton_core::{Code, TaskKind};

use super::*;
use crate::store::{Action, Claimant, StoreError, WaitLook};

fn unavailable(error: &StoreError) -> &str {
    match error {
        StoreError::Unavailable(message) => message,
        StoreError::Refused(_)
        | StoreError::Fenced
        | StoreError::Mutation(_)
        | StoreError::Closed
        | StoreError::Failed(_) => panic!("{error}"),
    }
}

/// Sets something on the writer's own connection.
async fn set(store: &SqliteStore, key: RunKey, pragma: &'static str) {
    let work = Mutation::Sqlite(Box::new(move |tx| Ok(tx.execute_batch(pragma)?)));
    store.commit(with(work, boundary(key, &[]))).await.expect("sets");
}

#[tokio::test]
async fn a_full_disk_acknowledges_nothing_and_can_be_cleared() {
    let place = Place::new();
    let store = place.open();
    let key = create_leased(&store, "a").await;
    set(&store, key, "PRAGMA max_page_count = 1").await;
    let large = || {
        let mut large = boundary(key, &[0]);
        let text = format!("\"{}\"", "x".repeat(100_000));
        Arc::make_mut(&mut large.steps[0].record).result = Some(Json::from_valid_text(text));
        large
    };
    let error = store.commit(large()).await.expect_err("full");
    assert!(unavailable(&error).contains("free some space"), "{error}");
    assert_eq!(place.count("SELECT count(*) FROM piton_step"), 0);
    set(&store, key, "PRAGMA max_page_count = 1000000").await;
    store.commit(large()).await.expect("commits");
}

#[tokio::test]
async fn another_writer_in_the_file_makes_it_unavailable_for_as_long_as_it_writes() {
    let place = Place::new();
    let store = place.open();
    let key = create_leased(&store, "a").await;
    set(&store, key, "PRAGMA busy_timeout = 1").await;
    let outside = place.outside();
    outside.execute_batch("BEGIN IMMEDIATE").expect("begins");
    let error = store.commit(boundary(key, &[0])).await.expect_err("busy");
    assert!(unavailable(&error).contains("another program"), "{error}");
    assert!(store.instance(workflow(), id("a")).await.is_ok(), "reads go on");
    outside.execute_batch("ROLLBACK").expect("ends");
    store.commit(boundary(key, &[0])).await.expect("commits");
}

#[tokio::test]
async fn user_sql_that_ends_the_transaction_stops_the_store() {
    for end in ["COMMIT", "ROLLBACK", "RELEASE piton_request", "COMMIT; BEGIN"] {
        let place = Place::new();
        let store = place.open();
        let key = create_leased(&store, "a").await;
        let work = Mutation::Sqlite(Box::new(move |tx| Ok(tx.execute_batch(end)?)));
        let error = store.commit(with(work, boundary(key, &[0]))).await.expect_err("stops");
        assert!(matches!(error, StoreError::Failed(_)), "{end}: {error}");
        let error = store.commit(boundary(key, &[0])).await.expect_err("stopped");
        assert!(matches!(error, StoreError::Failed(_)), "{end}: {error}");
        assert!(store.backlog([].into()).await.is_err(), "reads too");
        store.close().await.expect_err("says so to the last");
        drop(store);
        place.open();
    }
}

#[tokio::test]
async fn a_deferred_constraint_fails_the_batch_and_not_the_store() {
    let place = Place::new();
    let store = place.open();
    let key = create_leased(&store, "a").await;
    set(
        &store,
        key,
        "CREATE TABLE parent (id INTEGER PRIMARY KEY);
         CREATE TABLE child (id REFERENCES parent DEFERRABLE INITIALLY DEFERRED)",
    )
    .await;
    let orphan = with(sql("INSERT INTO child VALUES (1)"), boundary(key, &[0]));
    let error = store.commit(orphan).await.expect_err("orphan");
    assert!(matches!(error, StoreError::Mutation(_)), "{error}");
    assert!(error.to_string().contains("DEFERRED"), "{error}");
    store.commit(boundary(key, &[0])).await.expect("commits");
}

#[tokio::test]
async fn a_damaged_row_is_named_and_does_not_stop_the_others() {
    let place = Place::new();
    let store = place.open();
    for name in ["good", "bad", "worse"] {
        store.create(creation(&[name], false)).await.expect("created");
    }
    place
        .outside()
        .execute_batch(
            "UPDATE piton_task SET kind = 'jump' WHERE instance_key = 2;
             UPDATE piton_instance SET status = 'dreaming' WHERE key = 3",
        )
        .expect("damages");
    let error = store.steer(workflow(), id("bad"), Action::Pause).await.expect_err("damaged");
    let message = error.to_string();
    for said in ["piton_task", "instance key 2", "\"jump\"", "kind"] {
        assert!(message.contains(said), "{message}");
    }
    let StoreError::Refused(refusal) = error else { panic!("{error}") };
    assert_eq!(refusal.code, Code::DecodeFailed);
    let answer = claim(&store, 10).await;
    assert_eq!(answer.claimed.len(), 1);
    assert_eq!(answer.claimed[0].id, id("good"));
    let lease_until = place.now().plus(Span::from_millis(30_000));
    assert_eq!(answer.next_due_at, Some(lease_until), "the damaged ones are not due for ever");
    let error = store.instance(workflow(), id("worse")).await.expect_err("damaged");
    assert!(error.to_string().contains("\"dreaming\""), "{error}");
}

#[tokio::test]
async fn a_damaged_row_of_a_held_run_costs_no_other_run_its_lease() {
    let place = Place::new();
    let store = place.open();
    let keys = vec![
        create_leased(&store, "good").await,
        create_leased(&store, "bad").await,
        create_leased(&store, "better").await,
    ];
    place
        .outside()
        .execute_batch("UPDATE piton_task SET state = 'lost' WHERE instance_key = 2")
        .expect("damages");
    let renewed = store.renew(keys.clone(), Span::from_millis(1)).await.expect("renews");
    let renewed: Vec<_> = renewed.iter().map(|r| r.key).collect();
    assert_eq!(renewed, [keys[0], keys[2]]);
    store.release(keys).await.expect("releases");
    assert_eq!(place.count("SELECT count(*) FROM piton_task WHERE state = 'pending'"), 2);
}

#[tokio::test]
async fn an_event_to_a_damaged_run_is_stored_and_disturbs_nobody() {
    let place = Place::new();
    let store = place.open();
    let key = create_leased(&store, "bad").await;
    let deadline = place.now().plus(Span::from_millis(60_000));
    let wait =
        WaitLook { record: Arc::new(wait(1, "approved", deadline)), row: RowState::New, seq: 2 };
    let suspend = Boundary {
        waits: vec![wait],
        next: Next::Suspend { run_at: deadline, kind: TaskKind::Wake },
        ..boundary(key, &[0])
    };
    assert_eq!(store.commit(suspend).await.expect("commits").after, After::Suspended);
    let damage = "UPDATE piton_instance SET params = CAST(x'ff' AS TEXT)";
    place.outside().execute_batch(damage).expect("damages");
    let rules = ClaimRules { lease: Span::from_millis(30_000), claims_without_progress_max: 3 };
    let claimant = Claimant { runner: "sender".into(), rules };
    let sent = store.send_event(event("bad", "approved"), Some(claimant)).await.expect("stored");
    assert!(sent.claimed.is_none());
    assert_eq!(place.count("SELECT count(*) FROM piton_event"), 1);
    assert!(claim(&store, 10).await.claimed.is_empty(), "it is set aside");
}
