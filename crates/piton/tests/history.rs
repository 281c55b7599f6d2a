//! History and lists: paging loses and repeats nothing, any run can be read, and a wrong cursor is refused.

#![allow(clippy::unwrap_used, reason = "tests")]

use piton::prelude::*;
use piton::{Cursor, HistoryQuery, InstanceHandle, InstanceStatus, LogLevel, Page, Registration};
use piton_testing::{Harness, StoreKind, on_every_store};

use crate::support::flow;

on_every_store!(
    history_forwards_loses_and_repeats_nothing_while_rows_are_added,
    history_backwards_loses_and_repeats_nothing_while_rows_are_added,
    a_follower_goes_on_from_the_last_page_of_logs,
    log_lines_are_filtered_by_level_and_category,
    history_shows_any_run_and_refuses_one_that_never_was,
    lists_of_instances_lose_and_repeat_nothing_while_some_are_created,
    damaged_and_foreign_cursors_are_refused,
    page_sizes_have_bounds,
);

// ---- 52: paging ----

/// One step and one log line for every event it gets.
fn busy() -> Registration {
    flow("busy", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            for n in 0.. {
                let told = step.wait_for_event::<u32>(format!("{n}"), "more").await?;
                step.log().info(format!("{told}")).category("count");
            }
            Ok(())
        })
    })
}

async fn feed(
    harness: &Harness,
    instance: &InstanceHandle<()>,
    numbers: std::ops::Range<u32>,
) -> Result<()> {
    for n in numbers {
        instance.send_event("more", &n).await?;
    }
    harness.run_until_idle().await?;
    Ok(())
}

/// Reads page after page of steps, events and log lines, and lets `between` add rows after each.
async fn scan<F: Future<Output = Result<()>>>(
    query: impl Fn() -> HistoryQuery,
    mut between: impl FnMut() -> F,
) -> Result<[Vec<String>; 3]> {
    fn take<T>(
        page: Page<T>,
        name: impl Fn(T) -> String,
        into: &mut Vec<String>,
    ) -> (Option<Cursor>, bool) {
        into.extend(page.items.into_iter().map(name));
        (page.cursor, page.has_next_page)
    }
    let mut read = [Vec::new(), Vec::new(), Vec::new()];
    let (mut steps, mut events, mut logs) = (None, None, None);
    loop {
        let mut query = query().page_size(3).log_category("count");
        if let Some(cursor) = steps.clone() {
            query = query.steps_after(cursor);
        }
        if let Some(cursor) = events.clone() {
            query = query.events_after(cursor);
        }
        if let Some(cursor) = logs.clone() {
            query = query.logs_after(cursor);
        }
        let page = query.await?;
        let (cursor, more_steps) = take(page.steps, |step| step.name.to_string(), &mut read[0]);
        steps = cursor.or(steps);
        let payload = |event: piton::EventRecord| event.payload.as_str().to_owned();
        let (cursor, more_events) = take(page.events, payload, &mut read[1]);
        events = cursor.or(events);
        let message = |log: piton::LogRecord| log.line.message.to_string();
        let (cursor, more_logs) = take(page.logs.unwrap(), message, &mut read[2]);
        logs = cursor.or(logs);
        if !(more_steps || more_events || more_logs) {
            return Ok(read);
        }
        between().await?;
    }
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

async fn history_forwards_loses_and_repeats_nothing_while_rows_are_added(
    kind: StoreKind,
) -> Result<()> {
    let harness = Harness::on(kind, [busy()]).await?;
    let instance = harness.create::<_, ()>("busy", ()).await?;
    feed(&harness, &instance, 0..10).await?;
    let next = std::cell::Cell::new(10);
    let [steps, events, logs] = scan(
        || instance.history(),
        || {
            let n = next.get();
            // At first more than a page holds, then nothing, so that the scan can catch up.
            let more = if n < 22 { 4 } else { 0 };
            next.set(n + more);
            feed(&harness, &instance, n..n + more)
        },
    )
    .await?;
    let total = next.get();
    assert_eq!(total, 22);
    assert_eq!(steps, numbers(0..total + 1), "the open wait is a step too");
    assert_eq!(events, numbers(0..total));
    assert_eq!(logs, numbers(0..total));
    Ok(())
}

async fn history_backwards_loses_and_repeats_nothing_while_rows_are_added(
    kind: StoreKind,
) -> Result<()> {
    let harness = Harness::on(kind, [busy()]).await?;
    let instance = harness.create::<_, ()>("busy", ()).await?;
    feed(&harness, &instance, 0..10).await?;
    let next = std::cell::Cell::new(10);
    let [steps, events, logs] = scan(
        || instance.history().newest_first(),
        || {
            let n = next.replace(next.get() + 2);
            feed(&harness, &instance, n..n + 2)
        },
    )
    .await?;
    let backwards = |range| numbers(range).into_iter().rev().collect::<Vec<_>>();
    assert_eq!(steps, backwards(0..11), "what was there when the scan began, once each");
    assert_eq!(events, backwards(0..10));
    assert_eq!(logs, backwards(0..10));
    Ok(())
}

async fn a_follower_goes_on_from_the_last_page_of_logs(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [busy()]).await?;
    let instance = harness.create::<_, ()>("busy", ()).await?;
    feed(&harness, &instance, 0..2).await?;
    let read = |cursor: Option<Cursor>| {
        let mut query = instance.history().log_category("count");
        if let Some(cursor) = cursor {
            query = query.logs_after(cursor);
        }
        async move {
            let page = query.await?.logs.unwrap();
            assert!(!page.has_next_page);
            let lines: Vec<_> =
                page.items.iter().map(|record| record.line.message.to_string()).collect();
            Ok::<_, Error>((lines, page.cursor))
        }
    };
    let (lines, cursor) = read(None).await?;
    assert_eq!(lines, ["0", "1"]);
    let (lines, cursor) = read(cursor).await?;
    assert_eq!(lines, [""; 0], "nothing new");
    feed(&harness, &instance, 2..4).await?;
    // The cursor survives as text, as it does over HTTP.
    let cursor = cursor.unwrap().to_string().parse().unwrap();
    let (lines, _) = read(Some(cursor)).await?;
    assert_eq!(lines, ["2", "3"]);
    Ok(())
}

async fn log_lines_are_filtered_by_level_and_category(kind: StoreKind) -> Result<()> {
    let levels = flow("levels", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            step.log().info("i");
            step.log().warn("w").category("payments");
            step.log().info("ip").category("payments");
            Ok(())
        })
    });
    let harness = Harness::on(kind, [levels]).await?;
    let instance = harness.create::<_, ()>("levels", ()).await?;
    harness.run_until_idle().await?;
    let lines = async |query: HistoryQuery| {
        let items = query.await?.logs.unwrap().items;
        Ok::<_, Error>(items.iter().map(|log| log.line.message.to_string()).collect::<Vec<_>>())
    };
    assert_eq!(lines(instance.history().log_level(LogLevel::Warn)).await?, ["w"]);
    assert_eq!(lines(instance.history().log_category("payments")).await?, ["w", "ip"]);
    let both = instance.history().log_category("payments").log_level(LogLevel::Info);
    assert_eq!(lines(both).await?, ["ip"]);
    assert_eq!(lines(instance.history().log_category("none")).await?, [""; 0]);
    assert!(instance.history().await?.logs.is_none(), "only when asked for");
    Ok(())
}

async fn history_shows_any_run_and_refuses_one_that_never_was(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [busy()]).await?;
    let instance = harness.create::<_, ()>("busy", ()).await?;
    feed(&harness, &instance, 0..3).await?;
    instance.restart().await?;
    feed(&harness, &instance, 10..12).await?;
    for (run, expected) in [(0, numbers(0..3)), (1, numbers(10..12))] {
        let history = instance.history().run_number(run).log_category("count").await?;
        assert_eq!(history.run_number, run);
        let logs = history.logs.unwrap().items;
        assert!(logs.iter().all(|log| log.run == run));
        let logs: Vec<_> = logs.iter().map(|log| log.line.message.to_string()).collect();
        assert_eq!(logs, expected);
        assert_eq!(history.steps.items.len(), expected.len() + 1);
        assert_eq!(history.events.items.len(), expected.len());
    }
    assert_eq!(instance.history().await?.run_number, 1, "the current one if nothing is said");
    let refused = instance.history().run_number(2).await.unwrap_err();
    assert_eq!(refused.code(), Some("INVALID_RUN_NUMBER"));
    assert!(refused.message().contains('2') && refused.message().contains('1'), "{refused}");
    Ok(())
}

async fn lists_of_instances_lose_and_repeat_nothing_while_some_are_created(
    kind: StoreKind,
) -> Result<()> {
    let harness = Harness::on(kind, [busy()]).await?;
    let workflow = harness.workflow::<(), ()>("busy")?;
    // All in one millisecond: no list may depend on times that differ.
    for n in 0..10 {
        let instance = workflow.create(()).id(format!("{n}")).await?;
        if n % 2 == 0 {
            instance.pause().await?;
        }
    }
    for (status, expected) in [
        (None, vec!["9", "8", "7", "6", "5", "4", "3", "2", "1", "0"]),
        (Some(InstanceStatus::Paused), vec!["8", "6", "4", "2", "0"]),
    ] {
        let (mut seen, mut cursor) = (Vec::new(), None);
        for round in 0.. {
            let mut list = workflow.list().page_size(3);
            if let Some(status) = status {
                list = list.status(status);
            }
            if let Some(cursor) = cursor.take() {
                list = list.after(cursor);
            }
            let page = list.await?;
            seen.extend(page.items.iter().map(|instance| instance.id.to_string()));
            let new = format!("new-{}-{round}", status.is_some());
            workflow.create(()).id(new).await?.pause().await?;
            if !page.has_next_page {
                assert!(page.cursor.is_none());
                break;
            }
            cursor = page.cursor;
        }
        seen.retain(|id| !id.starts_with("new-false"));
        assert_eq!(seen, expected);
    }
    Ok(())
}

async fn damaged_and_foreign_cursors_are_refused(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [busy()]).await?;
    let workflow = harness.workflow::<(), ()>("busy")?;
    let one = workflow.create(()).id("one").await?;
    let two = workflow.create(()).id("two").await?;
    feed(&harness, &one, 0..3).await?;
    feed(&harness, &two, 0..3).await?;
    let page = one.history().page_size(1).log_category("count").await?;
    let (steps, events) = (page.steps.cursor.unwrap(), page.events.cursor.unwrap());
    let logs = page.logs.unwrap().cursor.unwrap();
    let list = workflow.list().page_size(1).await?.cursor.unwrap();

    one.history().steps_after(steps.clone()).events_after(events.clone()).await?;
    one.restart().await?;
    let foreign = [
        ("another list", one.history().run_number(0).steps_after(events.clone())),
        ("another list", one.history().run_number(0).events_after(steps.clone())),
        ("another list", one.history().run_number(0).steps_after(list.clone())),
        ("another instance", two.history().steps_after(steps.clone())),
        ("another run", one.history().steps_after(steps.clone())),
        ("another order", one.history().run_number(0).newest_first().steps_after(steps.clone())),
        ("another filter", one.history().run_number(0).with_logs().logs_after(logs)),
    ];
    for (what, query) in foreign {
        assert_eq!(query.await.unwrap_err().code(), Some("INVALID_CURSOR"), "{what}");
    }
    let filtered = workflow.list().status(InstanceStatus::Paused).after(list.clone()).await;
    assert_eq!(filtered.unwrap_err().code(), Some("INVALID_CURSOR"), "another status");
    let foreign = workflow.list().after(events).await;
    assert_eq!(foreign.unwrap_err().code(), Some("INVALID_CURSOR"), "another list");

    let text = steps.to_string();
    let mut damaged = vec![String::new(), "x".into(), text[1..].into(), format!("{text}0")];
    damaged.extend((0..text.len()).map(|at| {
        let other = if &text[at..=at] == "0" { "1" } else { "0" };
        format!("{}{other}{}", &text[..at], &text[at + 1..])
    }));
    for damaged in damaged {
        // What has the form of a cursor is found out when it is used.
        let refused: Error = match damaged.parse::<Cursor>() {
            Ok(cursor) => one.history().run_number(0).steps_after(cursor).await.unwrap_err(),
            Err(refusal) => refusal.into(),
        };
        assert_eq!(refused.code(), Some("INVALID_CURSOR"), "{damaged}");
    }
    Ok(())
}

async fn page_sizes_have_bounds(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [busy()]).await?;
    let workflow = harness.workflow::<(), ()>("busy")?;
    let instance = workflow.create(()).await?;
    for size in [0, 101, u32::MAX] {
        let history = instance.history().page_size(size).await.unwrap_err();
        let list = workflow.list().page_size(size).await.unwrap_err();
        for refused in [history, list] {
            assert_eq!(refused.code(), Some("VALIDATION_ERROR"));
            assert!(refused.message().contains("1..=100"), "{refused}");
            assert!(refused.message().contains(&size.to_string()), "{refused}");
        }
    }
    feed(&harness, &instance, 0..101).await?;
    for (size, expected) in [(1, 1), (100, 100)] {
        let page = instance.history().page_size(size).with_logs().await?;
        assert_eq!(page.events.items.len(), expected);
        assert!(page.events.has_next_page && page.steps.has_next_page);
    }
    assert_eq!(instance.history().await?.events.items.len(), 25, "the default");
    Ok(())
}
