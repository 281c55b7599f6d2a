//! Closing: what was accepted is finished, and nothing is accepted any more.

use std::fmt::Debug;
use std::sync::Arc;

use piton::store::{
    Action, Boundary, Existing, HookQuery, HookWork, InstanceQuery, LogFilter, Mutation, StoreError,
};

use super::hooks::hook;
use super::rows::*;
use super::stage::*;

fn assert_closed<T: Debug>(answer: Result<T, StoreError>) {
    match answer {
        Err(StoreError::Closed) => {}
        other => panic!("expected a closed store, got {other:?}"),
    }
}

pub async fn a_closed_store_answers_nothing(stage: Stage) {
    let key = stage.leased("a").await;
    let (store, page) = (Arc::clone(&stage.store), whole(key));
    store.close().await.expect("closed");
    assert_closed(store.create(create_request(&["b"], Existing::Skip)).await);
    assert_closed(store.send_event(event("a", "approved"), None).await);
    assert_closed(store.steer(checkout(), id("a"), Action::Pause).await);
    assert_closed(store.claim(claim_request("runner", 1)).await);
    assert_closed(store.claim_instance(key.instance, claim_request("runner", 1)).await);
    assert_closed(store.load_steps(key.instance, key.run).await);
    assert_closed(store.commit(boundary(key)).await);
    let in_transaction = vec![Mutation::SendEvent(event("a", "approved"))];
    assert_closed(store.commit(Boundary { mutations: in_transaction, ..boundary(key) }).await);
    assert_closed(store.renew(vec![key], LEASE).await);
    assert_closed(store.release(vec![key]).await);
    assert_closed(store.next_due_at([checkout()].into()).await);
    assert_closed(store.next_claimable_at([checkout()].into()).await);
    let line = stage.log_line(piton_core::LogLevel::Info, "user", "late");
    assert_closed(store.append_logs(key.instance, key.run, vec![line]).await);
    assert_closed(store.instance(checkout(), id("a")).await);
    let query = InstanceQuery::new(checkout(), 1);
    assert_closed(store.instances(query).await);
    assert_closed(store.steps(page).await);
    assert_closed(store.events(page).await);
    assert_closed(store.logs(page, LogFilter::default()).await);
    assert_closed(store.ended(vec![key.instance]).await);
    assert_closed(store.backlog([].into()).await);
}

pub async fn a_closed_store_answers_nothing_about_hooks(stage: Stage) {
    let hooks = stage.store.hooks().expect("it keeps hooks");
    stage.store.close().await.expect("closed");
    assert_closed(hooks.trigger_hooks(vec![hook(1)]).await);
    let work =
        HookWork { wanted: 1, ..HookWork::new("processor".into(), hook(1).namespace, LEASE) };
    assert_closed(hooks.work_hooks(work).await);
    assert_closed(hooks.next_hook_at([hook(1).namespace].into()).await);
    assert_closed(hooks.hook(hook(1).id).await);
    assert_closed(hooks.hooks(HookQuery { limit: 1, ..HookQuery::default() }).await);
    assert_closed(hooks.retry_hook(hook(1).id).await);
}

pub async fn what_was_asked_before_the_close_is_answered(stage: Stage) {
    let asked: Vec<_> = (0..20)
        .map(|n| {
            let request = create_request(&[&format!("i-{n}")], Existing::Refuse);
            stage.store.create(request)
        })
        .collect();
    let closing = stage.store.close();
    for answer in asked {
        // A store may take a request when it is first polled; then it was not accepted in time.
        match answer.await {
            Ok(created) => assert_eq!(created.len(), 1),
            Err(error) => assert_closed::<()>(Err(error)),
        }
    }
    closing.await.expect("closed");
}
