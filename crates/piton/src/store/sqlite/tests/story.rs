//! A run from its creation to its end, with what observers and readers learn on the way.

use std::sync::Arc;

use piton_core::boundary::After;
use piton_core::{InstanceStatus, TaskKind};

use super::*;
use crate::store::{Action, LogFilter, PageQuery, WaitLook};

async fn messages(store: &SqliteStore, key: RunKey) -> Vec<String> {
    let page = PageQuery {
        instance: key.instance,
        run: key.run,
        after: None,
        descending: false,
        limit: 100,
    };
    let logs = store.logs(page, LogFilter::default()).await.expect("reads");
    let seqs: Vec<u64> = logs.iter().map(|log| log.seq).collect();
    assert!(seqs.is_sorted() && seqs.first() == Some(&1));
    logs.iter().map(|log| log.line.message.to_string()).collect()
}

#[tokio::test]
async fn a_run_waits_for_an_event_and_completes() {
    let place = Place::new();
    let store = place.open();
    let ears = Ears::on(&store);
    let due = |at| Hint::Due { workflow: workflow(), at };
    store.create(creation(&["a"], false)).await.expect("created");
    assert_eq!(ears.heard(), [due(place.now())]);
    let run = claim(&store, 1).await.claimed.remove(0);
    let key = run.run_key();

    let deadline = place.now().plus(Span::from_millis(5_000));
    let look = |row| WaitLook { record: Arc::new(wait(1, "approved", deadline)), row, seq: 2 };
    let suspend = Boundary {
        waits: vec![look(RowState::New)],
        next: Next::Suspend { run_at: deadline, kind: TaskKind::Wake },
        ..boundary(key, &[0])
    };
    let committed = store.commit(suspend).await.expect("commits");
    assert_eq!(committed.after, After::Suspended);
    assert_eq!(ears.heard(), [due(deadline)]);
    let view = store.instance(workflow(), id("a")).await.expect("reads").expect("exists");
    assert_eq!(view.record.status, InstanceStatus::Waiting);
    assert_eq!(view.waiting_for.expect("waits").position, 1);

    place.pass(100);
    store.send_event(event("a", "other"), None).await.expect("sent");
    assert_eq!(ears.heard(), [], "not what it waits for");
    store.send_event(event("a", "approved"), None).await.expect("sent");
    assert_eq!(ears.heard(), [due(place.now())]);
    let run = claim(&store, 1).await.claimed.remove(0);
    let key = run.run_key();
    store.send_event(event("a", "approved"), None).await.expect("sent");
    assert_eq!(ears.heard(), [Hint::Touched(key.instance)]);

    let again = Boundary {
        waits: vec![look(RowState::Stored)],
        next: Next::Suspend { run_at: deadline, kind: TaskKind::Wake },
        ..boundary(key, &[])
    };
    let committed = store.commit(again).await.expect("commits");
    assert_eq!(committed.after, After::Continue, "it has something to go on with");
    assert_eq!(committed.settled[0].seq, 2);
    assert_eq!(place.count("SELECT count(*) FROM piton_event WHERE delivered_at IS NULL"), 2);

    let end = Boundary {
        next: Next::Complete { output: Json::from_valid_text("\"done\"") },
        ..boundary(key, &[3])
    };
    assert_eq!(store.commit(end).await.expect("commits").after, After::Ended);
    assert_eq!(ears.heard(), [Hint::Ended(key.instance)]);
    assert_eq!(place.count("SELECT count(*) FROM piton_task"), 0);
    let steps = store.load_steps(key.instance, 0).await.expect("reads");
    assert_eq!(steps.iter().map(|s| s.position).collect::<Vec<_>>(), [0, 1, 3]);
    assert_eq!(store.ended(vec![key.instance]).await.expect("reads"), [key.instance]);
    assert_eq!(
        messages(&store, key).await,
        ["claimed by runner (epoch 1)", "claimed by runner (epoch 2)"]
    );
}

#[tokio::test]
async fn steering_tells_its_story_and_its_observers() {
    let place = Place::new();
    let store = place.open();
    let ears = Ears::on(&store);
    let key = create_leased(&store, "a").await;
    let steer = |action| store.steer(workflow(), id("a"), action);
    assert!(steer(Action::Pause).await.expect("paused").pause_requested);
    steer(Action::Pause).await.expect("nothing to do");
    assert!(!steer(Action::Resume).await.expect("resumed").pause_requested);
    let touched = Hint::Touched(key.instance);
    assert_eq!(ears.heard(), [touched.clone(), touched.clone()]);
    steer(Action::Terminate).await.expect("terminated");
    assert_eq!(ears.heard(), [touched, Hint::Ended(key.instance)]);
    steer(Action::Terminate).await.expect_err("has ended");
    let record = steer(Action::Restart).await.expect("restarted");
    assert_eq!((record.run, record.status), (1, InstanceStatus::Active));
    assert_eq!((record.completed_at, record.started_at), (None, None));
    assert_eq!(ears.heard(), [Hint::Due { workflow: workflow(), at: place.now() }]);
    assert_eq!(
        messages(&store, key).await,
        [
            "claimed by runner (epoch 1)",
            "pause requested; takes effect at the next boundary",
            "resumed",
            "terminated"
        ]
    );
    let next = RunKey { run: 1, ..key };
    assert_eq!(messages(&store, next).await, ["restarted as run 1; run 0 was terminated"]);
}

#[tokio::test]
async fn a_lease_that_ran_out_is_taken_over_and_too_many_end_in_quarantine() {
    let place = Place::new();
    let store = place.open();
    let key = create_leased(&store, "a").await;
    for epoch in 2..=4 {
        place.pass(30_000);
        let run = claim(&store, 1).await.claimed.remove(0);
        assert_eq!(run.task.epoch, epoch);
    }
    place.pass(30_000);
    assert!(claim(&store, 1).await.claimed.is_empty());
    let view = store.instance(workflow(), id("a")).await.expect("reads").expect("exists");
    assert_eq!(view.record.status, InstanceStatus::Errored);
    let told = messages(&store, key).await;
    assert_eq!(told[1], "lease ran out; claimed by runner (epoch 2)");
    assert!(told[4].starts_with("quarantined: claimed 3 times"), "{told:?}");
}

#[tokio::test]
async fn creating_skips_or_refuses_what_exists() {
    let place = Place::new();
    let store = place.open();
    store.create(creation(&["b"], false)).await.expect("created");
    for ids in [&["a", "b"][..], &["c", "c"], &["b"]] {
        store.create(creation(ids, false)).await.expect_err("refused");
    }
    assert_eq!(place.count("SELECT count(*) FROM piton_instance"), 1, "all or nothing");
    let skipping =
        CreateRequest { existing: Existing::Skip, ..creation(&["c", "b", "a", "c"], false) };
    let created = store.create(skipping).await.expect("created");
    let ids: Vec<_> = created.iter().map(|c| c.instance.id.as_str()).collect();
    assert_eq!(ids, ["c", "a"]);
}

#[tokio::test]
async fn every_kind_of_step_reads_back_as_it_was_written() {
    let place = Place::new();
    let store = place.open();
    let key = create_leased(&store, "a").await;
    let error = piton_core::record::RecordedError {
        code: Some("E1".into()),
        stack: Some("caused by: \"rain\"".into()),
        ..piton_core::record::RecordedError::new("Error", "no \u{1f9d7}")
    };
    let steps = [
        step(0),
        StepRecord { attempts_max: None, result: None, ..step(1) },
        StepRecord { timeout_ms: Some(5), ..step(2) },
        StepRecord {
            status: StepStatus::Errored,
            error: Some(error.clone()),
            result: None,
            ..step(3)
        },
        StepRecord {
            status: StepStatus::Waiting,
            next_retry_at: Some(Timestamp::from_millis(-7)),
            error: Some(error),
            result: None,
            ..step(4)
        },
        wait(5, "approved", Timestamp::from_millis(i64::MAX)),
        StepRecord { step_type: StepType::Sleep, seq: 9, ..step(6) },
    ];
    for step in &steps {
        let mut boundary = boundary(key, &[0]);
        boundary.steps[0].record = Arc::new(step.clone());
        store.commit(boundary).await.expect("commits");
    }
    let read = store.load_steps(key.instance, 0).await.expect("reads");
    assert_eq!(read, steps);
}

#[tokio::test]
async fn an_event_that_came_too_late_is_left_for_the_next_wait() {
    let place = Place::new();
    let store = place.open();
    let key = create_leased(&store, "a").await;
    let deadline = place.now().plus(Span::from_millis(1_000));
    place.pass(1_001);
    store.send_event(event("a", "approved"), None).await.expect("sent");
    let look = |position, deadline| Boundary {
        waits: vec![WaitLook {
            record: Arc::new(wait(position, "approved", deadline)),
            row: RowState::New,
            seq: position,
        }],
        ..boundary(key, &[])
    };
    let late = store.commit(look(0, deadline)).await.expect("commits");
    assert_eq!(late.settled[0].status, StepStatus::Errored);
    place.pass(-500);
    store.send_event(event("a", "approved"), None).await.expect("sent");
    let seqs =
        |place: &Place| place.count("SELECT seq FROM piton_event WHERE delivered_at IS NOT NULL");
    let in_time = store.commit(look(1, deadline)).await.expect("commits");
    assert_eq!(in_time.settled[0].status, StepStatus::Completed);
    assert_eq!(seqs(&place), 1, "the clock was set back: an open wait takes the oldest event");
    let told = messages(&store, key).await;
    assert!(told[1].starts_with("timed out: no event of type `approved`"), "{told:?}");
}
