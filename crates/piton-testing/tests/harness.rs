//! The harness keeps its own promises: time stands still, the same seed gives the same world, nothing leaks.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use piton::prelude::*;
use piton::{BatchItem, InstanceStatus, StepStatus};
use piton_testing::runtime::START;
use piton_testing::{Harness, Progress, StoreKind, on_every_store};

on_every_store!(
    time_never_moves_by_itself,
    a_year_of_sleeps_passes_at_once,
    the_same_seed_makes_the_same_world,
    the_clock_starts_and_goes_where_it_is_told,
    the_clock_goes_from_wake_to_wake,
    a_run_until_idle_counts_what_it_did,
    a_bounded_run_stops_at_its_bound,
    an_instance_is_steered_by_name,
    a_result_that_is_not_there_says_why,
    rows_are_all_there,
    a_crash_keeps_the_settings,
    a_crash_keeps_the_rows_and_the_clock,
    nothing_runs_after_the_harness_is_gone,
    two_harnesses_know_nothing_of_each_other,
);

async fn two_naps(_: Event<()>, step: &Step) -> Result<String> {
    step.sleep("first", "1 hour").await?;
    step.sleep("second", "2 hours").await?;
    Ok("rested".to_owned())
}

async fn time_never_moves_by_itself(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [workflow("nap", two_naps)]).await?;
    let instance = harness.create::<_, String>("nap", ()).await?;
    for _ in 0..20 {
        harness.tick().await?;
        harness.run_until_idle().await?;
    }
    assert_eq!(harness.now(), START);
    let state = instance.describe().await?;
    assert_eq!((state.created_at, state.started_at), (START, Some(START)));
    let sleep = &harness.rows(&instance).await?.steps[0];
    assert_eq!((sleep.status, sleep.created_at), (StepStatus::Waiting, START));
    Ok(())
}

async fn a_year_of_sleeps_passes_at_once(kind: StoreKind) -> Result<()> {
    async fn year(_: Event<()>, step: &Step) -> Result<u32> {
        for day in 0..365 {
            step.sleep(format!("day {day}"), "1 day").await?;
        }
        Ok(365)
    }
    let harness = Harness::on(kind, [workflow("year", year)]).await?;
    let instance = harness.create::<_, u32>("year", ()).await?;
    harness.run_to_end().await?;
    assert_eq!(instance.result().await?, 365);
    assert_eq!(harness.now().since(START), piton::Span::literal("365 days"));
    Ok(())
}

async fn the_same_seed_makes_the_same_world(kind: StoreKind) -> Result<()> {
    async fn approve(_: Event<()>, step: &Step) -> Result<()> {
        step.log().info("asked");
        step.wait_for_event("approval", "approved").await
    }
    /// Every id there is: of the instances, their events and their log lines.
    async fn ids(kind: StoreKind, seed: u64) -> Result<Vec<String>> {
        let harness = Harness::builder().register(workflow("approve", approve)).store(kind);
        let harness = harness.seed(seed).start().await?;
        let mut ids = Vec::new();
        for _ in 0..3 {
            let instance = harness.create::<_, ()>("approve", ()).await?;
            harness.run_until_idle().await?;
            instance.send_event("approved", &()).await?;
            harness.run_until_idle().await?;
            let rows = harness.rows(&instance).await?;
            ids.push(instance.id().to_owned());
            ids.extend(rows.events.iter().map(|event| event.id.to_string()));
            ids.extend(rows.logs.iter().map(|log| log.line.id.to_string()));
        }
        Ok(ids)
    }
    let first = ids(kind, 7).await?;
    assert!(first.len() > 9, "{first:?}");
    assert_eq!(first, ids(kind, 7).await?);
    assert_ne!(first, ids(kind, 8).await?);
    Ok(())
}

async fn the_clock_starts_and_goes_where_it_is_told(kind: StoreKind) -> Result<()> {
    let epoch = Timestamp::from_millis(0);
    let harness = Harness::builder().register(workflow("nap", two_naps)).store(kind);
    let harness = harness.start_at(epoch).start().await?;
    assert_eq!(harness.now(), epoch);
    let instance = harness.create::<_, String>("nap", ()).await?;
    harness.run_until_idle().await?;
    harness.set_time(Timestamp::from_millis(3_600_000 - 1));
    assert_eq!(harness.run_until_idle().await?.processed, 0, "a millisecond early");
    harness.set_time(Timestamp::from_millis(3_600_000));
    assert_eq!(harness.run_until_idle().await?.processed, 1);
    let first = harness.rows(&instance).await?.step("first").cloned();
    assert_eq!(first.map(|step| step.status), Some(StepStatus::Completed));
    Ok(())
}

async fn the_clock_goes_from_wake_to_wake(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [workflow("nap", two_naps)]).await?;
    assert_eq!(harness.advance_to_next_wake().await?, None, "there is nothing");
    harness.create::<_, String>("nap", ()).await?;
    assert_eq!(harness.advance_to_next_wake().await?, Some(START), "it is due now");
    harness.run_until_idle().await?;
    let hour = piton::Span::literal("1 hour");
    assert_eq!(harness.advance_to_next_wake().await?, Some(START.plus(hour)));
    assert_eq!(harness.now(), START.plus(hour));
    harness.run_until_idle().await?;
    assert_eq!(harness.advance_to_next_wake().await?, Some(START.plus(hour).plus(hour).plus(hour)));
    harness.run_until_idle().await?;
    assert_eq!(harness.advance_to_next_wake().await?, None);
    Ok(())
}

async fn a_run_until_idle_counts_what_it_did(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [workflow("nap", two_naps)]).await?;
    assert_eq!(harness.run_until_idle().await?, Progress { processed: 0, ticks: 1 });
    let batch = ["a", "b", "c"].map(|id| BatchItem::new(id, ()));
    harness.workflow::<(), String>("nap")?.create_batch(batch).await?;
    assert_eq!(harness.run_until_idle().await?, Progress { processed: 3, ticks: 2 });
    Ok(())
}

async fn a_bounded_run_stops_at_its_bound(kind: StoreKind) -> Result<()> {
    /// Each instance creates the next, so that something is always due.
    async fn chain(link: Event<u64>, step: &Step) -> Result<()> {
        let next = *link + 1;
        let create = step.run_with("next", |cx| async move {
            cx.transaction().create("chain", &format!("link-{next}"), &next)
        });
        create.await
    }
    let harness = Harness::on(kind, [workflow("chain", chain)]).await?;
    harness.create::<_, ()>("chain", 0_u64).await?;
    assert_eq!(harness.run_ticks(5).await?, Progress { processed: 5, ticks: 5 });
    harness.instance("chain", "link-5").await?;
    Ok(())
}

async fn an_instance_is_steered_by_name(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [workflow("nap", two_naps)]).await?;
    harness.workflow::<(), String>("nap")?.create(()).id("one").await?;
    harness.run_until_idle().await?;
    let instance = harness.instance("nap", "one").await?;
    assert_eq!(instance.pause().await?.status, InstanceStatus::Paused);
    assert_ne!(instance.resume().await?.status, InstanceStatus::Paused);
    assert_eq!(instance.terminate().await?.status, InstanceStatus::Terminated);
    assert_eq!(instance.restart().await?.run_number, 1);
    harness.run_to_end().await?;
    assert_eq!(instance.result().await?, "rested");
    let missing = harness.instance("nap", "two").await.unwrap_err();
    assert_eq!(missing.code(), Some("INSTANCE_NOT_FOUND"));
    let missing = harness.instance("doze", "one").await.unwrap_err();
    assert_eq!(missing.code(), Some("WORKFLOW_NOT_FOUND"));
    Ok(())
}

async fn a_result_that_is_not_there_says_why(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [workflow("nap", two_naps)]).await?;
    let instance = harness.workflow::<(), String>("nap")?.create(()).id("n").await?;
    let error = harness.result(&instance).await.unwrap_err();
    let told = "nap/n has not ended: it is active; it is 2026-01-01T00:00:00.000Z now";
    assert_eq!((error.name(), error.message()), ("NotEnded", told));
    harness.run_until_idle().await?;
    let error = harness.result(&instance).await.unwrap_err();
    let told = "it is waiting in step \"first\" (sleep) until 2026-01-01T01:00:00.000Z";
    assert!(error.message().contains(told), "{error}");
    harness.run_to_end().await?;
    assert_eq!(harness.result(&instance).await?, "rested");
    Ok(())
}

async fn rows_are_all_there(kind: StoreKind) -> Result<()> {
    async fn count(n: Event<u32>, step: &Step) -> Result<()> {
        for i in 0..*n {
            step.run(format!("step {i}"), async { Ok(i) }).await?;
        }
        Ok(())
    }
    let harness = Harness::on(kind, [workflow("count", count)]).await?;
    let instance = harness.workflow::<u32, ()>("count")?.create(250).id("big").await?;
    instance.send_event("ignored", &1).await?;
    harness.run_until_idle().await?;
    let rows = harness.rows(&instance).await?;
    assert_eq!((rows.steps.len(), rows.events.len()), (250, 1));
    assert_eq!(rows.instance.status, InstanceStatus::Complete);
    assert_eq!(rows.step("step 249").unwrap().result.as_ref().unwrap().as_str(), "249");
    instance.restart().await?;
    assert_eq!(harness.rows(&instance).await?.steps.len(), 0);
    let old = harness.rows_of("count", "big", Some(0)).await?.unwrap();
    assert_eq!(old.steps.len(), 250);
    assert_eq!(harness.rows_of("count", "small", None).await?, None);
    Ok(())
}

async fn a_crash_keeps_the_rows_and_the_clock(kind: StoreKind) -> Result<()> {
    let harness = Harness::on(kind, [workflow("nap", two_naps)]).await?;
    let instance = harness.create::<_, String>("nap", ()).await?;
    harness.run_until_idle().await?;
    harness.advance("30 minutes");
    let (now, rows) = (harness.now(), harness.rows(&instance).await?);
    let harness = harness.crash_and_restart([workflow("nap", two_naps)]).await?;
    assert_eq!(harness.now(), now);
    assert_eq!(harness.rows(&instance).await?, rows);
    harness.run_to_end().await?;
    let instance = harness.instance("nap", instance.id()).await?;
    assert_eq!(instance.result().await?, "rested");
    Ok(())
}

async fn a_crash_keeps_the_settings(kind: StoreKind) -> Result<()> {
    let nap = || [workflow("nap", two_naps)];
    let few = Limits { batch_max: 1, ..Limits::default() };
    let harness = Harness::with(kind, nap(), move |engine| engine.limits(few.clone())).await?;
    let harness = harness.crash_and_restart(nap()).await?;
    assert_eq!(harness.engine().limits().batch_max, 1);
    Ok(())
}

/// Counts itself down when it is dropped.
struct Alive(Arc<AtomicU32>);

impl Alive {
    fn new(count: &Arc<AtomicU32>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn nothing_runs_after_the_harness_is_gone(kind: StoreKind) -> Result<()> {
    struct Hold(Arc<AtomicU32>);
    impl Workflow for Hold {
        const NAME: &'static str = "hold";
        type Params = ();
        type Output = ();
        async fn run(&self, _: Event<()>, step: &Step) -> Result<()> {
            let _alive = Alive::new(&self.0);
            step.run("for ever", std::future::pending()).await
        }
    }
    let alive = Arc::new(AtomicU32::new(0));
    let harness = Harness::on(kind, [Hold(Arc::clone(&alive)).into()]).await?;
    let runtime = Arc::clone(harness.runtime());
    harness.create::<_, ()>("hold", ()).await?;
    let tick = async { harness.tick().await };
    tokio::select! {
        rested = tick => panic!("the body never ends: {rested:?}"),
        () = until(|| alive.load(Ordering::SeqCst) == 1) => {}
    }
    drop(harness);
    until(|| alive.load(Ordering::SeqCst) == 0).await;
    until(|| runtime.next_sleep_at().is_none()).await;
    Ok(())
}

/// Lets everything else run until the condition holds.
async fn until(holds: impl Fn() -> bool) {
    for _ in 0..1_000_000 {
        if holds() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("it never came to pass");
}

async fn two_harnesses_know_nothing_of_each_other(kind: StoreKind) -> Result<()> {
    let one = Harness::on(kind, [workflow("nap", two_naps)]).await?;
    let other = Harness::on(kind, [workflow("nap", two_naps)]).await?;
    one.workflow::<(), String>("nap")?.create(()).id("same").await?;
    assert_eq!(other.tick().await?, 0);
    other.workflow::<(), String>("nap")?.create(()).id("same").await?;
    one.advance("1 day");
    assert_eq!(other.now(), START);
    one.run_to_end().await?;
    assert_eq!(other.instance("nap", "same").await?.status().await?, InstanceStatus::Active);
    Ok(())
}

#[tokio::test]
async fn a_sqlite_file_goes_with_its_harness() -> Result<()> {
    /// The database files that are open in temporary directories of this process.
    fn open_files() -> Vec<PathBuf> {
        let Ok(files) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
        let files = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
        files.filter(|path| path.ends_with("test.db")).collect()
    }
    let harness = Harness::on(StoreKind::Sqlite, [workflow("nap", two_naps)]).await?;
    let files = open_files();
    harness.create::<_, String>("nap", ()).await?;
    harness.run_to_end().await?;
    drop(harness);
    for file in files {
        // Other tests of this process have files of their own: only one whose harness is gone is looked at.
        until(|| !file.exists()).await;
    }
    Ok(())
}

#[test]
fn hundreds_of_tests_at_once_do_not_disturb_each_other() {
    const TESTS: u32 = 400;
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(4).build();
    let threads = threads.expect("threads can be started");
    let ended = threads.block_on(async {
        let tests = (0..TESTS).map(|test| {
            let kind = if test % 8 == 0 { StoreKind::Sqlite } else { StoreKind::Memory };
            #[expect(clippy::disallowed_methods, reason = "the tests of a test binary")]
            tokio::spawn(async move {
                let harness = Harness::on(kind, [workflow("nap", two_naps)]).await?;
                let nap = harness.workflow::<(), String>("nap")?;
                let instance = nap.create(()).id("same-in-all").await?;
                harness.run_to_end().await?;
                let rows = harness.rows(&instance).await?;
                let slept = harness.now().since(START) == piton::Span::literal("3 hours");
                assert!(slept && rows.steps.len() == 2, "{rows:?}");
                instance.result().await
            })
        });
        let mut ended = 0;
        for test in tests.collect::<Vec<_>>() {
            assert_eq!(test.await.expect("no test panics").expect("no test fails"), "rested");
            ended += 1;
        }
        ended
    });
    assert_eq!(ended, TESTS);
}
