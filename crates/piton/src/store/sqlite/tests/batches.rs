//! Several requests in one transaction, and user code among them.

use std::sync::Arc;

use std::sync::mpsc;

use piton_core::hook::NewHook;
use piton_core::{Code, HookName, HookNamespace, Json, Retries, Span};
use tokio::join;

use super::*;
use crate::store::{HookStore, HookWork, HooksWorked, StoreError};

/// Keeps the writer busy inside a transaction until the sender is used or dropped, so that what is asked
/// meanwhile makes up the next batch.
fn plug(key: RunKey) -> (Boundary, mpsc::Sender<()>) {
    let (unplug, plugged) = mpsc::channel::<()>();
    let work = Mutation::Sqlite(Box::new(move |_| {
        let _ = plugged.recv();
        Ok(())
    }));
    (with(work, boundary(key, &[])), unplug)
}

fn code(error: &StoreError) -> Code {
    match error {
        StoreError::Mutation(error) => error.code,
        StoreError::Refused(_)
        | StoreError::Fenced
        | StoreError::Unavailable(_)
        | StoreError::Closed
        | StoreError::Failed(_) => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_failed_mutation_takes_back_its_own_rows_and_no_others() {
    let place = Place::new();
    let store = place.open();
    let keys = [
        create_leased(&store, "a").await,
        create_leased(&store, "b").await,
        create_leased(&store, "c").await,
    ];
    let table = sql("CREATE TABLE receipt (id INTEGER PRIMARY KEY, body TEXT UNIQUE)");
    store.commit(with(table, boundary(keys[0], &[0]))).await.expect("commits");
    let ears = Ears::on(&store);

    let (plug, unplug) = plug(keys[0]);
    let good = |key, n| {
        with(sql(&format!("INSERT INTO receipt VALUES ({n}, '{n}')")), boundary(key, &[1]))
    };
    let bad = Boundary {
        mutations: vec![
            sql("INSERT INTO receipt VALUES (7, 'seven')"),
            Mutation::Create { workflow: workflow(), instance: new("child") },
            sql("INSERT INTO receipt VALUES (7, 'again')"),
        ],
        ..boundary(keys[1], &[1])
    };
    let release = async { drop(unplug) };
    let (_, first, second, third, ()) = join!(
        store.commit(plug),
        store.commit(good(keys[0], 1)),
        store.commit(bad),
        store.commit(good(keys[2], 3)),
        release,
    );
    first.expect("commits");
    third.expect("commits");
    assert_eq!(code(&second.expect_err("fails")), Code::UniqueConstraint);
    assert_eq!(place.count("SELECT group_concat(id) = '1,3' FROM receipt"), 1);
    assert_eq!(place.count("SELECT count(*) FROM piton_instance"), 3, "no child");
    assert_eq!(place.count("SELECT count(*) FROM piton_step WHERE position = 1"), 2);
    assert_eq!(ears.heard(), [], "nobody hears of what was rolled back");
    store.commit(boundary(keys[1], &[1])).await.expect("goes on");
}

#[tokio::test]
async fn every_way_a_mutation_fails_has_its_code() {
    let place = Place::new();
    let store = place.open();
    let key = create_leased(&store, "a").await;
    store
        .commit(with(sql("CREATE TABLE t (x UNIQUE, y NOT NULL)"), boundary(key, &[])))
        .await
        .expect("commits");
    let closure = |work: fn(&rusqlite::Transaction<'_>) -> crate::Result<()>| {
        Mutation::Sqlite(Box::new(work))
    };
    let cases = [
        (sql("INSERT INTO nowhere VALUES (1)"), Code::StepTransaction, "no such table"),
        (sql("INSERT INTO t VALUES (1, NULL)"), Code::StepTransaction, "NOT NULL"),
        (sql("INSERT INTO t VALUES (1, 1), (1, 1)"), Code::UniqueConstraint, "UNIQUE"),
        (
            closure(|tx| {
                tx.execute("INSERT INTO t VALUES (1, 1), (1, 1)", [])?;
                Ok(())
            }),
            Code::UniqueConstraint,
            "UNIQUE",
        ),
        (closure(|_| Err(crate::Error::new("no stock"))), Code::StepTransaction, "no stock"),
        (closure(|_| panic!("lost my head")), Code::StepTransaction, "lost my head"),
        (
            Mutation::Create { workflow: workflow(), instance: new("a") },
            Code::InstanceIdAlreadyExists,
            "`a`",
        ),
        (Mutation::SendEvent(event("nobody", "x")), Code::InstanceNotFound, "nobody"),
    ];
    for (mutation, expected, said) in cases {
        let error = store.commit(with(mutation, boundary(key, &[0]))).await.expect_err(said);
        assert_eq!(code(&error), expected, "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
    assert_eq!(place.count("SELECT count(*) FROM piton_step"), 0);
    store.commit(boundary(key, &[0])).await.expect("the step can still complete");
}

#[tokio::test]
async fn a_step_can_create_and_send_exactly_when_it_completes() {
    let place = Place::new();
    let store = place.open();
    let key = create_leased(&store, "a").await;
    let both = Boundary {
        mutations: vec![
            Mutation::Create { workflow: workflow(), instance: new("child") },
            Mutation::SendEvent(event("child", "hello")),
        ],
        ..boundary(key, &[0])
    };
    store.commit(both).await.expect("commits");
    assert_eq!(place.count("SELECT count(*) FROM piton_event WHERE type = 'hello'"), 1);
    assert_eq!(claim(&store, 5).await.claimed[0].id, id("child"));
}

#[tokio::test]
async fn a_position_that_is_taken_fences_the_writer_whatever_its_epoch_says() {
    let place = Place::new();
    let store = place.open();
    let key = create_leased(&store, "a").await;
    store.commit(boundary(key, &[0])).await.expect("commits");
    for positions in [&[0][..], &[1, 0], &[2, 2]] {
        let answer = store.commit(boundary(key, positions)).await;
        assert!(matches!(answer, Err(StoreError::Fenced)), "{positions:?}");
    }
    let mut change = boundary(key, &[0]);
    change.steps[0].row = RowState::Changed;
    let answer = store.commit(change).await;
    assert!(matches!(answer, Err(StoreError::Fenced)), "a settled step never changes");
    assert_eq!(place.count("SELECT count(*) FROM piton_step"), 1);
    store.commit(boundary(key, &[1, 2])).await.expect("commits");
}

#[tokio::test]
async fn thousands_of_requests_at_once_are_all_answered() {
    let place = Place::new();
    let store = place.open();
    let create = |n: usize| {
        let id = format!("i{n}");
        let creating = store.create(creation(&[&id], true));
        let store = store.clone();
        async move {
            let key = run_key(&creating.await.expect("created")[0]);
            store.commit(boundary(key, &[0, 1, 2])).await.expect("commits");
        }
    };
    futures_util::future::join_all((0..3000).map(create)).await;
    assert_eq!(place.count("SELECT count(*) FROM piton_step"), 9000);
}

#[tokio::test]
async fn the_write_ahead_log_is_emptied_as_it_grows_and_when_a_long_read_ends() {
    let place = Place::new();
    let store = place.open();
    let key = create_leased(&store, "a").await;
    let size = |name: &str| {
        let path = place.directory.path().join(name);
        std::fs::metadata(path).expect("exists").len() >> 20
    };
    let write = async |from: u32| {
        let large = |position| {
            let mut large = boundary(key, &[position]);
            let text = format!("\"{}\"", "x".repeat(64 * 1024));
            Arc::make_mut(&mut large.steps[0].record).result = Some(Json::from_valid_text(text));
            store.commit(large)
        };
        for start in (from..from + 768).step_by(64) {
            let all = futures_util::future::join_all((start..start + 64).map(large)).await;
            assert!(all.iter().all(Result::is_ok));
        }
    };
    write(0).await;
    assert!(size("piton.db") >= 16, "some of the 48 MiB are in the file");
    assert!(size("piton.db-wal") < 48, "the log was used again");

    let outside = place.outside();
    outside.execute_batch("BEGIN; SELECT count(*) FROM piton_step").expect("reads");
    write(1000).await;
    let kept = size("piton.db-wal");
    assert!(kept >= 48, "the reader still needs it: {kept} MiB");
    outside.execute_batch("COMMIT").expect("ends");
    write(2000).await;
    write(3000).await;
    assert!(size("piton.db") > 128, "the file has caught up");
}

#[tokio::test]
async fn what_others_do_to_a_task_is_seen_by_the_very_next_boundary() {
    let place = Place::new();
    let store = place.open();
    let key = create_leased(&store, "a").await;
    let other = create_leased(&store, "b").await;
    store.commit(boundary(key, &[0])).await.expect("commits");
    place
        .outside()
        .execute_batch("UPDATE piton_task SET epoch = 7 WHERE instance_key = 1")
        .expect("takes it away");
    let answer = store.commit(boundary(key, &[1])).await;
    assert!(matches!(answer, Err(StoreError::Fenced)), "another program");

    let key = RunKey { epoch: 7, ..key };
    store.commit(boundary(key, &[1])).await.expect("commits");
    let taken = sql("UPDATE piton_task SET epoch = 8 WHERE instance_key = 1");
    store.commit(with(taken, boundary(other, &[0]))).await.expect("commits");
    let answer = store.commit(boundary(key, &[2])).await;
    assert!(matches!(answer, Err(StoreError::Fenced)), "user SQL of another step");

    let key = RunKey { epoch: 8, ..key };
    let fails = Boundary {
        mutations: vec![
            sql("UPDATE piton_task SET epoch = 9 WHERE instance_key = 1"),
            sql("INSERT INTO nowhere VALUES (1)"),
        ],
        ..boundary(other, &[1])
    };
    store.commit(fails).await.expect_err("rolled back");
    store.commit(boundary(key, &[2])).await.expect("commits");
}

fn hook(name: &str) -> NewHook {
    NewHook {
        id: name.into(),
        namespace: HookNamespace::from_stored("app"),
        name: HookName::from_stored("greet"),
        payload: Json::null(),
        process_at: None,
        retries: Retries::none(),
    }
}

fn work(wanted: usize) -> HookWork {
    let namespace = HookNamespace::from_stored("app");
    HookWork { wanted, ..HookWork::new("me".into(), namespace, Span::from_millis(30_000)) }
}

fn ids(worked: Result<HooksWorked, StoreError>) -> Vec<Arc<str>> {
    worked.expect("works").taken.into_iter().map(|hook| hook.id).collect()
}

#[tokio::test]
async fn hooks_are_taken_by_the_batch_that_triggers_them_and_refused_ones_are_not_there() {
    let place = Place::new();
    let store = place.open();
    let keys = [create_leased(&store, "a").await, create_leased(&store, "b").await];
    let (plug, unplug) = plug(keys[0]);
    let bad = Boundary {
        mutations: vec![Mutation::TriggerHook(hook("refused")), sql("nonsense")],
        ..boundary(keys[1], &[0])
    };
    let good = with(Mutation::TriggerHook(hook("second")), boundary(keys[0], &[0]));
    let release = async { drop(unplug) };
    let (_, taken, first, refused, committed, third, ()) = join!(
        store.commit(plug),
        store.work_hooks(work(2)),
        store.trigger_hooks(vec![hook("first")]),
        store.commit(bad),
        store.commit(good),
        store.trigger_hooks(vec![hook("third")]),
        release,
    );
    first.and(third).expect("triggers");
    committed.expect("commits");
    assert_eq!(code(&refused.expect_err("fails")), Code::StepTransaction);
    assert_eq!(ids(taken), ["first".into(), "second".into()]);
    assert_eq!(place.count("SELECT count(*) FROM piton_hook WHERE status = 'processing'"), 2);
    assert_eq!(place.count("SELECT count(*) FROM piton_hook"), 3, "and one that waits");
    assert_eq!(ids(store.work_hooks(work(9)).await), ["third".into()]);
}

#[tokio::test]
async fn a_processors_second_work_waits_for_the_next_batch_also_when_the_store_closes() {
    let place = Place::new();
    let store = place.open();
    let (plug, unplug) = plug(create_leased(&store, "a").await);
    let release = async { drop(unplug) };
    let (_, first, triggered, second, third, closed, ()) = join!(
        store.commit(plug),
        store.work_hooks(work(1)),
        store.trigger_hooks(vec![hook("a"), hook("b"), hook("c")]),
        store.work_hooks(work(1)),
        store.work_hooks(work(9)),
        store.close(),
        release,
    );
    triggered.expect("triggers");
    closed.expect("closes");
    let mut taken: Vec<_> = [first, second, third].into_iter().flat_map(ids).collect();
    taken.sort();
    assert_eq!(taken, ["a".into(), "b".into(), "c".into()]);
}
