//! Creating instances: one id is one instance, and a request is all or nothing.

use std::sync::Arc;

use piton::store::{CreateRequest, Existing, NewInstance};
use piton_core::record::{InstanceRecord, RunKey};
use piton_core::{Code, InstanceStatus};

use super::rows::*;
use super::stage::*;

pub async fn a_new_instance_reads_back_as_it_was_created(stage: Stage) {
    let created = stage.create("a").await;
    let expected = InstanceRecord {
        key: created.key,
        workflow: checkout(),
        id: id("a"),
        status: InstanceStatus::Active,
        run: 0,
        params: json("{\"cents\":100}"),
        output: None,
        error: None,
        created_at: stage.now(),
        updated_at: stage.now(),
        started_at: None,
        completed_at: None,
        pause_requested: false,
    };
    assert_eq!(created, expected);
    let view = stage.view("a").await;
    assert_eq!(view.record, expected);
    assert_eq!(view.waiting_for, None);
}

pub async fn a_new_instance_is_due_at_once(stage: Stage) {
    stage.create("a").await;
    assert_eq!(stage.next_due_at().await, Some(stage.now()));
    assert_eq!(stage.claim_ids(ALL).await, ["a"]);
}

pub async fn params_keep_every_byte(stage: Stage) {
    let mebibyte = format!("\"{}\"", "x".repeat(1024 * 1024 - 2));
    let documents = [
        "null",
        "[]",
        "18446744073709551615",
        "\"\\u0000 nul, \\\"quote\\\", ü, 🧗\"",
        "{\"a\": 1,\n \"a\": 1.0e2}",
        &mebibyte,
    ];
    for (n, document) in documents.iter().enumerate() {
        let name = format!("a{n}");
        let request = CreateRequest {
            instances: vec![NewInstance { id: id(&name), params: json(document) }],
            ..create_request(&[], Existing::Refuse)
        };
        stage.store.create(request).await.expect("created");
        assert_eq!(stage.view(&name).await.record.params, json(document));
    }
    let claimed = stage.claim(ALL).await;
    let params: Vec<&str> = claimed.iter().map(|run| run.params.as_str()).collect();
    assert_eq!(params, documents);
}

pub async fn an_id_that_exists_is_refused(stage: Stage) {
    for (name, status) in [
        ("a", InstanceStatus::Active),
        ("w", InstanceStatus::Waiting),
        ("c", InstanceStatus::Complete),
    ] {
        stage.with_status(name, status).await;
        let before = stage.sight(name).await;
        let again = stage.store.create(create_request(&[name], Existing::Refuse));
        assert_eq!(refusal(again.await), Code::InstanceIdAlreadyExists);
        assert_eq!(stage.sight(name).await, before);
    }
}

pub async fn the_same_id_under_two_workflows_is_two_instances(stage: Stage) {
    stage.create("a").await;
    stage.create_in("refund", &["a"]).await;
    let other = stage.store.instance(workflow("refund"), id("a"));
    let other = other.await.expect("read").expect("exists").record;
    assert_ne!(other.key, stage.view("a").await.record.key);
    assert_eq!(stage.claim_ids(ALL).await, ["a"]);
}

pub async fn a_refused_request_creates_none_of_its_instances(stage: Stage) {
    stage.create("b").await;
    let request = create_request(&["a", "b", "c"], Existing::Refuse);
    let answer = stage.store.create(request).await;
    assert_eq!(refusal(answer), Code::InstanceIdAlreadyExists);
    assert!(!stage.exists("a").await && !stage.exists("c").await);
    assert_eq!(stage.live_tasks().await, 1);
}

pub async fn an_id_twice_in_a_refusing_request_is_refused(stage: Stage) {
    let request = create_request(&["a", "a"], Existing::Refuse);
    let answer = stage.store.create(request).await;
    assert_eq!(refusal(answer), Code::InstanceIdAlreadyExists);
    assert!(!stage.exists("a").await);
}

pub async fn a_batch_keeps_its_order_and_leaves_out_what_exists(stage: Stage) {
    stage.create("b").await;
    let request = create_request(&["d", "b", "a", "c"], Existing::Skip);
    let created = stage.store.create(request).await.expect("created");
    let ids: Vec<&str> = created.iter().map(|c| c.instance.id.as_str()).collect();
    assert_eq!(ids, ["d", "a", "c"]);
    assert_eq!(stage.live_tasks().await, 4);
}

pub async fn duplicates_inside_a_batch_collapse_to_the_first(stage: Stage) {
    let instances = ["1", "2", "3"].map(|params| NewInstance { id: id("a"), params: json(params) });
    let request =
        CreateRequest { instances: instances.to_vec(), ..create_request(&[], Existing::Skip) };
    let created = stage.store.create(request).await.expect("created");
    assert_eq!(created.len(), 1);
    assert_eq!(stage.view("a").await.record.params, json("1"));
    assert_eq!(stage.live_tasks().await, 1);
}

pub async fn an_empty_batch_creates_nothing(stage: Stage) {
    let created = stage.store.create(create_request(&[], Existing::Skip));
    assert!(created.await.expect("answered").is_empty());
    assert_eq!(stage.live_tasks().await, 0);
}

pub async fn eight_simultaneous_creates_of_one_id_make_one_instance(stage: Stage) {
    let answers = at_once((0..8).map(|_| {
        let store = Arc::clone(&stage.store);
        async move { store.create(create_request(&["a"], Existing::Refuse)).await }
    }))
    .await;
    let (created, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!((created.len(), refused.len()), (1, 7));
    for answer in refused {
        assert_eq!(refusal(answer), Code::InstanceIdAlreadyExists);
    }
    assert_eq!(stage.claim_ids(ALL).await, ["a"]);
}

pub async fn simultaneous_batches_create_each_id_once(stage: Stage) {
    let answers = at_once((0..8).map(|_| {
        let store = Arc::clone(&stage.store);
        async move {
            let request = create_request(&["a", "b", "c"], Existing::Skip);
            store.create(request).await.expect("created").len()
        }
    }))
    .await;
    assert_eq!(answers.iter().sum::<usize>(), 3);
    assert_eq!(stage.live_tasks().await, 3);
}

pub async fn a_leased_create_belongs_to_its_creator_at_once(stage: Stage) {
    let key = stage.create_leased("a").await;
    assert_eq!((key.run, key.epoch), (0, 1));
    assert!(stage.claim(ALL).await.is_empty(), "nobody else gets it");
    let record = stage.view("a").await.record;
    assert_eq!(record.started_at, Some(stage.now()));
    assert_eq!(stage.story("a").await, ["claimed by creator (epoch 1)"]);
    stage.commit(complete(key)).await;
    assert_eq!(stage.status("a").await, InstanceStatus::Complete);
}

pub async fn a_leased_create_whose_creator_died_is_taken_over(stage: Stage) {
    let creator = stage.create_leased("a").await;
    stage.advance_ms(LEASE.as_millis());
    let heir = stage.claim_only("a").await;
    assert_eq!(heir, RunKey { epoch: 2, ..creator });
    assert_fenced(stage.store.commit(complete(creator)).await, "taken over");
    stage.commit(complete(heir)).await;
}
