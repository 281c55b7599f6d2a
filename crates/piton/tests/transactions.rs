//! Step-scoped transactions: what a step writes is there exactly if the step completed, and exactly once.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use piton::prelude::*;
use piton::rusqlite::Connection;
use piton::store::SqliteStore;
use piton::{EngineBuilder, InstanceStatus, Registration, StepRecord, StepStatus};
use piton_testing::{Access, Harness, StoreKind, VirtualRuntime, on_every_store};

use crate::support::{Gate, Trail, buffered, ended, engine_on, flow, steps_of, tick_until_arrived};

on_every_store!(
    an_instance_created_by_a_step_exists_once_its_step_is_recorded,
    an_event_sent_by_a_step_arrives_once_and_wakes_its_receiver,
    a_step_can_create_an_instance_and_send_it_an_event,
    a_step_can_send_an_event_to_its_own_instance,
    what_a_failed_attempt_asked_for_is_discarded,
    what_a_timed_out_attempt_asked_for_is_discarded,
    what_a_step_asks_for_is_all_done_or_nothing,
    a_refused_create_or_event_fails_the_step_for_good,
    invalid_wishes_are_errors_inside_the_body,
    nothing_is_written_for_a_run_that_was_terminated,
    the_step_behind_a_transaction_starts_at_once_beside_a_sleeping_sibling,
    a_wait_registered_with_a_transaction_that_fails_still_gets_its_event,
    a_sibling_is_recorded_once_although_a_transaction_beside_it_fails,
    parallel_steps_have_a_transaction_each,
    the_winner_of_a_select_with_a_transaction_wins_on_replay_too,
    a_transaction_that_loses_a_select_is_recorded_or_never_happened,
);

/// Counts its own runs.
fn child(trail: &Trail) -> Registration {
    flow("child", trail, |trail, event: Event<u32>, step| {
        Box::pin(async move {
            let mark = || trail.note(event.instance_id.as_str());
            step.run("mark", async { mark() }).await?;
            Ok(*event)
        })
    })
}

/// Waits for a `go`.
fn waiter() -> Registration {
    flow("waiter", &(), |(), _: Event<()>, step| {
        Box::pin(async move { step.wait_for_event::<u32>("go", "go").await })
    })
}

async fn is_there(harness: &Harness, id: &str) -> Result<bool> {
    match harness.workflow::<u32, u32>("child")?.get(id).await {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Some("INSTANCE_NOT_FOUND") => Ok(false),
        Err(error) => Err(error),
    }
}

// ---- both stores: create and send_event ----

async fn an_instance_created_by_a_step_exists_once_its_step_is_recorded(
    kind: StoreKind,
) -> Result<()> {
    let (trail, gate) = (Trail::default(), Gate::new());
    let parent = flow("parent", &gate, |gate, _: Event<()>, step| {
        Box::pin(async move {
            let gate = &gate;
            step.run_with("spawn", |cx| async move {
                cx.transaction().create("child", "kid", &7)?;
                gate.pass().await
            })
            .await?;
            step.sleep("look again", "1 hour").await
        })
    });
    let configure = |builder: EngineBuilder| builder.parked_runs(0);
    let harness = Harness::with(kind, [parent, child(&trail)], configure).await?;
    let instance = harness.create::<_, ()>("parent", ()).await?;
    let tick = tick_until_arrived(harness.engine(), &gate).await?;
    assert!(!is_there(&harness, "kid").await?, "not before the boundary");
    gate.open();
    tick.await?;
    assert!(is_there(&harness, "kid").await?);
    harness.run_to_end().await?;
    ended(&instance).await?;
    let kid = harness.workflow::<u32, u32>("child")?.get("kid").await?;
    assert_eq!(ended(&kid).await?, 7);
    assert_eq!(trail.seen(), ["kid"], "once, although the parent was replayed");
    Ok(())
}

async fn an_event_sent_by_a_step_arrives_once_and_wakes_its_receiver(
    kind: StoreKind,
) -> Result<()> {
    let sender = flow("sender", &(), |(), to: Event<String>, step| {
        Box::pin(async move {
            let to = to.as_str();
            step.run_with("send", |cx| async move {
                cx.transaction().send_event("waiter", to, "go", &7)
            })
            .await?;
            step.sleep("look again", "1 hour").await
        })
    });
    let configure = |builder: EngineBuilder| builder.parked_runs(0);
    let harness = Harness::with(kind, [sender, waiter()], configure).await?;
    let receiver = harness.create::<_, u32>("waiter", ()).await?;
    harness.run_until_idle().await?;
    harness.create::<_, ()>("sender", receiver.id().to_owned()).await?;
    harness.run_until_idle().await?;
    assert_eq!(ended(&receiver).await?, 7);
    harness.run_to_end().await?;
    assert_eq!(receiver.history().await?.events.items.len(), 1);
    Ok(())
}

async fn a_step_can_create_an_instance_and_send_it_an_event(kind: StoreKind) -> Result<()> {
    let parent = flow("parent", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            step.run_with("both", |cx| async move {
                cx.transaction().create("waiter", "kid", &())?;
                cx.transaction().send_event("waiter", "kid", "go", &7)
            })
            .await
        })
    });
    let harness = Harness::on(kind, [parent, waiter()]).await?;
    let instance = harness.create::<_, ()>("parent", ()).await?;
    harness.run_until_idle().await?;
    ended(&instance).await?;
    assert_eq!(ended(&harness.workflow::<(), u32>("waiter")?.get("kid").await?).await?, 7);
    Ok(())
}

async fn a_step_can_send_an_event_to_its_own_instance(kind: StoreKind) -> Result<()> {
    let own = flow("own", &(), |(), event: Event<()>, step| {
        Box::pin(async move {
            let id = event.instance_id.as_str();
            step.run_with(
                "send",
                |cx| async move { cx.transaction().send_event("own", id, "go", &7) },
            )
            .await?;
            step.wait_for_event::<u32>("go", "go").await
        })
    });
    let harness = Harness::on(kind, [own]).await?;
    let instance = harness.create::<_, u32>("own", ()).await?;
    harness.run_until_idle().await?;
    assert_eq!(ended(&instance).await?, 7);
    Ok(())
}

async fn what_a_failed_attempt_asked_for_is_discarded(kind: StoreKind) -> Result<()> {
    let trail = Trail::default();
    let parent = flow("parent", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            step.run_with("flaky", |cx| async move {
                let id = format!("kid-{}", cx.attempt());
                cx.transaction().create("child", &id, &7)?;
                match cx.attempt() {
                    1 => Err(Error::new("not yet")),
                    2 => panic!("still not"),
                    _ => Ok(()),
                }
            })
            .retries(Retries::constant(2, "1 minute"))
            .await
        })
    });
    let harness = Harness::on(kind, [parent, child(&trail)]).await?;
    let instance = harness.create::<_, ()>("parent", ()).await?;
    harness.run_to_end().await?;
    ended(&instance).await?;
    assert_eq!(trail.seen(), ["kid-3"]);
    assert!(!is_there(&harness, "kid-1").await? && !is_there(&harness, "kid-2").await?);
    Ok(())
}

async fn what_a_timed_out_attempt_asked_for_is_discarded(kind: StoreKind) -> Result<()> {
    let (trail, gate) = (Trail::default(), Gate::new());
    let parent = flow("parent", &gate, |gate, _: Event<()>, step| {
        Box::pin(async move {
            let gate = &gate;
            step.run_with("slow", |cx| async move {
                let id = format!("kid-{}", cx.attempt());
                cx.transaction().create("child", &id, &7)?;
                if cx.attempt() == 1 { gate.pass().await } else { Ok(()) }
            })
            .retries(Retries::constant(1, "1 minute"))
            .timeout("1 minute")
            .await
        })
    });
    let harness = Harness::on(kind, [parent, child(&trail)]).await?;
    let instance = harness.create::<_, ()>("parent", ()).await?;
    let tick = tick_until_arrived(harness.engine(), &gate).await?;
    harness.advance(60_001);
    gate.open();
    tick.await?;
    harness.run_to_end().await?;
    ended(&instance).await?;
    assert_eq!(trail.seen(), ["kid-2"]);
    Ok(())
}

async fn what_a_step_asks_for_is_all_done_or_nothing(kind: StoreKind) -> Result<()> {
    let trail = Trail::default();
    let parent = flow("parent", &(), |(), to: Event<String>, step| {
        Box::pin(async move {
            let to = to.as_str();
            step.run_with("all", |cx| async move {
                let tx = cx.transaction();
                tx.create("child", "kid", &7)?;
                tx.send_event("waiter", to, "go", &7)?;
                tx.create("child", "taken", &7)
            })
            .await
        })
    });
    let harness = Harness::on(kind, [parent, waiter(), child(&trail)]).await?;
    harness.workflow::<u32, u32>("child")?.create(0).id("taken").await?;
    let receiver = harness.create::<_, u32>("waiter", ()).await?;
    let instance = harness.create::<_, ()>("parent", receiver.id().to_owned()).await?;
    harness.run_until_idle().await?;
    assert_eq!(ended(&instance).await.unwrap_err().code(), Some("INSTANCE_ID_ALREADY_EXISTS"));
    assert!(!is_there(&harness, "kid").await?);
    assert_eq!(buffered(&receiver).await?, [""; 0]);
    assert_eq!(receiver.status().await?, InstanceStatus::Waiting);
    assert_eq!(trail.seen(), ["taken"]);
    Ok(())
}

async fn a_refused_create_or_event_fails_the_step_for_good(kind: StoreKind) -> Result<()> {
    let trail = Trail::default();
    let parent = flow("parent", &trail, |trail, wish: Event<u32>, step| {
        Box::pin(async move {
            let (trail, wish) = (&trail, *wish);
            step.run_with("wish", |cx| async move {
                trail.mark("body");
                let tx = cx.transaction();
                match wish {
                    0 => tx.create("child", "taken", &7),
                    1 => tx.create("child", "twice", &7).and(tx.create("child", "twice", &8)),
                    2 => tx.send_event("child", "nobody", "go", &7),
                    _ => tx.send_event("child", "taken", "go", &7),
                }
            })
            .await
        })
    });
    let harness = Harness::on(kind, [parent, child(&Trail::default())]).await?;
    harness.workflow::<u32, u32>("child")?.create(0).id("taken").await?;
    harness.run_until_idle().await?;
    for (wish, name, code) in [
        (0_u32, "InstanceIdAlreadyExists", "INSTANCE_ID_ALREADY_EXISTS"),
        (1, "InstanceIdAlreadyExists", "INSTANCE_ID_ALREADY_EXISTS"),
        (2, "InstanceNotFound", "INSTANCE_NOT_FOUND"),
        (3, "InstanceTerminal", "INSTANCE_TERMINAL"),
    ] {
        let instance = harness.create::<_, ()>("parent", wish).await?;
        harness.run_until_idle().await?;
        let error = ended(&instance).await.unwrap_err();
        assert_eq!((error.name(), error.code()), (name, Some(code)));
        let step = &instance.history().await?.steps.items[0];
        assert_eq!((step.status, step.attempts), (StepStatus::Errored, 1), "no retry can help");
        assert_eq!(step.result, None);
    }
    assert_eq!(trail.seen().len(), 4);
    assert!(!is_there(&harness, "twice").await?);
    Ok(())
}

async fn invalid_wishes_are_errors_inside_the_body(kind: StoreKind) -> Result<()> {
    let parent = flow("parent", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            step.run_with("wishes", |cx| async move {
                let tx = cx.transaction();
                let refused = [
                    tx.create("nothing", "kid", &7),
                    tx.create("child", "not good", &7),
                    tx.create("child", "kid", "seven"),
                    tx.send_event("child", "kid", "not good", &7),
                    tx.send_event("child", "", "go", &7),
                ];
                let codes = refused.map(|refused| refused.unwrap_err().code().map(str::to_owned));
                Ok(codes.to_vec())
            })
            .await
        })
    });
    let harness = Harness::on(kind, [parent, child(&Trail::default())]).await?;
    let instance = harness.create::<_, Vec<Option<String>>>("parent", ()).await?;
    harness.run_until_idle().await?;
    let codes: Vec<_> = ended(&instance).await?.into_iter().flatten().collect();
    let expected = [
        "WORKFLOW_NOT_FOUND",
        "INVALID_INSTANCE_ID",
        "WORKFLOW_PARAMS_INVALID",
        "INVALID_EVENT_TYPE",
        "INVALID_INSTANCE_ID",
    ];
    assert_eq!(codes, expected);
    assert!(!is_there(&harness, "kid").await?, "a refused wish is not a wish");
    Ok(())
}

async fn nothing_is_written_for_a_run_that_was_terminated(kind: StoreKind) -> Result<()> {
    let (gate, trail) = (Gate::new(), Trail::default());
    let parent = || {
        flow("parent", &gate, |gate, _: Event<()>, step| {
            Box::pin(async move {
                let gate = &gate;
                step.run_with("spawn", |cx| async move {
                    cx.transaction().create("child", "kid", &7)?;
                    gate.pass().await
                })
                .await
            })
        })
    };
    let harness = Harness::on(kind, [parent(), child(&trail)]).await?;
    let deaf = Access::deaf(harness.store());
    let workflows = [parent(), child(&trail)];
    let deaf = engine_on(deaf, &harness, workflows, EngineBuilder::no_runner).await?;
    let instance = harness.create::<_, ()>("parent", ()).await?;
    let tick = tick_until_arrived(&deaf, &gate).await?;
    instance.terminate().await?;
    gate.open();
    tick.await?;
    assert!(!is_there(&harness, "kid").await?);
    assert_eq!(steps_of(&instance, None).await?, [""; 0]);
    Ok(())
}

// ---- both stores: beside siblings ----

async fn the_step_behind_a_transaction_starts_at_once_beside_a_sleeping_sibling(
    kind: StoreKind,
) -> Result<()> {
    let trail = Trail::default();
    let parent = flow("parent", &trail, |trail, _: Event<()>, step| {
        Box::pin(async move {
            let branch = async {
                step.run_with(
                    "spawn",
                    |cx| async move { cx.transaction().create("child", "kid", &7) },
                )
                .await?;
                step.run("behind", async { trail.note("behind") }).await
            };
            try_join!(branch, step.sleep("long", "1 day"))?;
            Ok(())
        })
    });
    let harness = Harness::on(kind, [parent, child(&Trail::default())]).await?;
    let instance = harness.create::<_, ()>("parent", ()).await?;
    harness.run_until_idle().await?;
    assert_eq!(trail.seen(), ["behind"], "it does not wait for the sibling to wake");
    harness.run_to_end().await?;
    ended(&instance).await
}

async fn a_wait_registered_with_a_transaction_that_fails_still_gets_its_event(
    kind: StoreKind,
) -> Result<()> {
    let parent = flow("parent", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            let (failed, told) = join!(
                step.run_with("taken", |cx| async move {
                    cx.transaction().create("child", "taken", &7)
                }),
                step.wait_for_event::<u32>("told", "told"),
            );
            Ok((failed.unwrap_err().name().to_owned(), told?))
        })
    });
    let harness = Harness::on(kind, [parent, child(&Trail::default())]).await?;
    harness.workflow::<u32, u32>("child")?.create(0).id("taken").await?;
    let instance = harness.create::<_, (String, u32)>("parent", ()).await?;
    harness.run_until_idle().await?;
    let mut steps = steps_of(&instance, None).await?;
    steps.sort_unstable();
    assert_eq!(steps, ["taken errored", "told waiting"]);
    instance.send_event("told", &7).await?;
    harness.run_until_idle().await?;
    assert_eq!(ended(&instance).await?, ("InstanceIdAlreadyExists".to_owned(), 7));
    Ok(())
}

async fn a_sibling_is_recorded_once_although_a_transaction_beside_it_fails(
    kind: StoreKind,
) -> Result<()> {
    let trail = Trail::default();
    let parent = flow("parent", &trail, |trail, _: Event<()>, step| {
        Box::pin(async move {
            let (plain, nap, failed) = join!(
                step.run("plain", async { trail.note("plain") }),
                step.sleep("nap", "1 hour"),
                step.run_with("taken", |cx| async move {
                    cx.transaction().create("child", "taken", &7)
                }),
            );
            plain.and(nap)?;
            assert_eq!(failed.unwrap_err().code(), Some("INSTANCE_ID_ALREADY_EXISTS"));
            Ok(())
        })
    });
    let configure = |builder: EngineBuilder| builder.parked_runs(0);
    let harness = Harness::with(kind, [parent, child(&Trail::default())], configure).await?;
    harness.workflow::<u32, u32>("child")?.create(0).id("taken").await?;
    let instance = harness.create::<_, ()>("parent", ()).await?;
    harness.run_to_end().await?;
    ended(&instance).await?;
    assert_eq!(trail.seen(), ["plain"]);
    Ok(())
}

async fn parallel_steps_have_a_transaction_each(kind: StoreKind) -> Result<()> {
    let parent = flow("parent", &(), |(), _: Event<()>, step| {
        Box::pin(async move {
            let spawn = |id: &'static str| {
                step.run_with(id, move |cx| async move { cx.transaction().create("child", id, &7) })
            };
            let (a, taken, b) = join!(spawn("a"), spawn("taken"), spawn("b"));
            Ok([a.is_ok(), taken.is_ok(), b.is_ok()])
        })
    });
    let harness = Harness::on(kind, [parent, child(&Trail::default())]).await?;
    harness.workflow::<u32, u32>("child")?.create(0).id("taken").await?;
    let instance = harness.create::<_, [bool; 3]>("parent", ()).await?;
    harness.run_until_idle().await?;
    assert_eq!(ended(&instance).await?, [true, false, true]);
    assert!(is_there(&harness, "a").await? && is_there(&harness, "b").await?);
    let mut steps = steps_of(&instance, None).await?;
    steps.sort_unstable();
    assert_eq!(steps, ["a completed", "b completed", "taken errored"]);
    Ok(())
}

/// The transaction or the plain step, whichever comes first; then another pass that has to agree.
fn selecting(trail: &Trail) -> Registration {
    flow("parent", trail, |trail, _: Event<()>, step| {
        Box::pin(async move {
            let winner = select! {
                biased;
                tx = step.run_with("tx", |cx| async move { cx.transaction().create("child", "kid", &7) }) => {
                    tx.map(|()| "tx".to_owned())?
                }
                plain = step.run("plain", async { Ok(()) }) => plain.map(|()| "plain".to_owned())?,
            };
            trail.mark(&winner);
            step.sleep("look again", "1 hour").await?;
            Ok(winner)
        })
    })
}

async fn the_winner_of_a_select_with_a_transaction_wins_on_replay_too(
    kind: StoreKind,
) -> Result<()> {
    let trail = Trail::default();
    let configure = |builder: EngineBuilder| builder.parked_runs(0);
    let workflows = [selecting(&trail), child(&Trail::default())];
    let harness = Harness::with(kind, workflows, configure).await?;
    let instance = harness.create::<_, String>("parent", ()).await?;
    harness.run_to_end().await?;
    let winner = ended(&instance).await?;
    assert_eq!(trail.seen(), [winner.clone(), winner]);
    Ok(())
}

async fn a_transaction_that_loses_a_select_is_recorded_or_never_happened(
    kind: StoreKind,
) -> Result<()> {
    let harness =
        Harness::on(kind, [selecting(&Trail::default()), child(&Trail::default())]).await?;
    let instance = harness.create::<_, String>("parent", ()).await?;
    harness.run_to_end().await?;
    let recorded = steps_of(&instance, None).await?.contains(&"tx completed".to_owned());
    assert_eq!(is_there(&harness, "kid").await?, recorded);
    Ok(())
}

// ---- memory: no SQL ----

#[tokio::test]
async fn sql_on_the_memory_store_fails_and_says_what_to_do() -> Result<()> {
    let sql = flow("sql", &(), |(), portable: Event<bool>, step| {
        Box::pin(async move {
            let portable = *portable;
            step.run_with("sql", |cx| async move {
                let tx = cx.transaction();
                if portable {
                    tx.execute("INSERT INTO t VALUES (?1)", [1]);
                } else {
                    tx.sqlite(|_| Ok(()));
                }
                Ok(())
            })
            .retries(Retries::none())
            .await
        })
    });
    let harness = Harness::memory([sql]).await?;
    for portable in [true, false] {
        let instance = harness.create::<_, ()>("sql", portable).await?;
        harness.run_until_idle().await?;
        let error = ended(&instance).await.unwrap_err();
        assert_eq!((error.name(), error.code()), ("StepTransaction", Some("STEP_TRANSACTION")));
        assert!(error.message().contains("memory store has no SQL"), "{error}");
        assert!(error.message().contains("sqlite:"), "{error}");
    }
    Ok(())
}

// ---- SQLite: the user's own tables ----

/// An engine on a SQLite file, and the user's own connection to that file.
struct OwnTables {
    harness: Engine,
    runtime: Arc<VirtualRuntime>,
    user: Connection,
    path: std::path::PathBuf,
    _directory: tempfile::TempDir,
}

impl OwnTables {
    /// A table `visits` with a unique `name`, and an engine with this workflow.
    async fn new(workflow: Registration) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("app.db");
        let runtime = VirtualRuntime::new(1);
        let store = SqliteStore::open(&path, Arc::clone(&runtime) as _)?;
        let user = Connection::open(&path)?;
        user.execute_batch("CREATE TABLE visits (name TEXT UNIQUE, n INTEGER)")?;
        let builder = Engine::builder_with_store(store).runtime(Arc::clone(&runtime) as _);
        let harness = builder.parked_runs(0).no_runner().register(workflow).start().await?;
        Ok(Self { harness, runtime, user, path, _directory: directory })
    }

    fn names(&self) -> Vec<String> {
        let mut statement = self.user.prepare("SELECT name FROM visits ORDER BY rowid").unwrap();
        let names = statement.query_map([], |row| row.get(0)).unwrap();
        names.map(|name| name.unwrap()).collect()
    }

    async fn create(&self, id: &str) -> Result<piton::InstanceHandle<()>> {
        self.harness.workflow::<(), ()>("own")?.create(()).id(id).await
    }

    /// Jumps over all waits until nothing is left to do.
    async fn run_to_end(&self) -> Result<()> {
        while let Some(next) = self.harness.next_wake_at().await? {
            use piton::runtime::Runtime;
            self.runtime.advance(next.since(self.runtime.now()).max(piton::Span::ZERO));
            self.harness.tick(100).await?;
        }
        Ok(())
    }

    async fn step(&self, id: &str, n: usize) -> Result<StepRecord> {
        let instance = self.harness.workflow::<(), ()>("own")?.get(id).await?;
        Ok(instance.history().await?.steps.items[n].clone())
    }
}

/// A step per visit; each attempt that fails asked for its row too.
fn visits(trail: &Trail) -> Registration {
    flow("own", trail, |trail, event: Event<()>, step| {
        Box::pin(async move {
            let (trail, id) = (&trail, event.instance_id.as_str());
            for n in 0..8_u32 {
                step.run_with(format!("visit {n}"), |cx| async move {
                    let tx = cx.transaction();
                    tx.execute("INSERT INTO visits (name) VALUES (?1)", [format!("{id} {n}")]);
                    tx.sqlite(move |tx| {
                        tx.execute("UPDATE visits SET n = n + 1 WHERE n IS NOT NULL", [])?;
                        Ok(())
                    });
                    trail.mark(format!("{id} {n}"));
                    if cx.attempt() == 1 && n % 3 == 0 {
                        return Err(Error::new("flaky"));
                    }
                    Ok(())
                })
                .await?;
                step.sleep(format!("nap {n}"), "1 hour").await?;
            }
            Ok(())
        })
    })
}

#[tokio::test]
async fn the_users_rows_equal_the_completed_steps_over_retries_and_replays() -> Result<()> {
    let trail = Trail::default();
    let own = OwnTables::new(visits(&trail)).await?;
    let instances = [own.create("a").await?, own.create("b").await?];
    own.run_to_end().await?;
    for instance in &instances {
        ended(instance).await?;
        let steps = steps_of(instance, None).await?;
        assert_eq!(steps.iter().filter(|step| step.starts_with("visit")).count(), 8);
    }
    assert_eq!(own.names().len(), 16, "one row per completed step");
    assert_eq!(trail.seen().len(), 22, "although six attempts failed");
    Ok(())
}

#[tokio::test]
async fn the_users_rows_equal_the_completed_steps_after_a_crash() -> Result<()> {
    let trail = Trail::default();
    let own = OwnTables::new(visits(&trail)).await?;
    own.create("a").await?;
    own.harness.tick(1).await?;
    own.runtime.advance(piton::Span::literal("10 seconds"));
    own.harness.tick(1).await?;
    assert_eq!(own.names(), ["a 0"]);
    let OwnTables { harness, runtime, user, path, _directory } = own;
    drop(harness);
    // The store is closed when the last pass has let go of it.
    let store = crate::support::eventually("the file is free", || async {
        tokio::task::yield_now().await;
        Ok(SqliteStore::open(&path, Arc::clone(&runtime) as _).ok())
    })
    .await?;
    let builder = Engine::builder_with_store(store).runtime(Arc::clone(&runtime) as _);
    let harness = builder.no_runner().register(visits(&trail)).start().await?;
    let own = OwnTables { harness, runtime, user, path, _directory };
    own.run_to_end().await?;
    assert_eq!(own.names(), (0..8).map(|n| format!("a {n}")).collect::<Vec<_>>());
    Ok(())
}

#[tokio::test]
async fn the_users_rows_are_not_there_before_the_boundary() -> Result<()> {
    let gate = Gate::new();
    let own = flow("own", &gate, |gate, _: Event<()>, step| {
        Box::pin(async move {
            let gate = &gate;
            step.run_with("visit", |cx| async move {
                cx.transaction().execute("INSERT INTO visits (name) VALUES (?1)", ["a"]);
                gate.pass().await
            })
            .await
        })
    });
    let own = OwnTables::new(own).await?;
    own.create("one").await?;
    let tick = tick_until_arrived(&own.harness, &gate).await?;
    assert_eq!(own.names(), [""; 0]);
    gate.open();
    tick.await?;
    assert_eq!(own.names(), ["a"]);
    Ok(())
}

/// What a step asks of its transaction, attempt by attempt.
fn asking(ask: fn(piton::StepTransaction<'_>, u32)) -> Registration {
    flow("own", &ask, |ask, _: Event<()>, step| {
        Box::pin(async move {
            step.run_with("visit", |cx| async move {
                ask(cx.transaction(), cx.attempt());
                Ok(())
            })
            .retries(Retries::constant(3, "1 minute"))
            .await
        })
    })
}

#[tokio::test]
async fn a_unique_violation_fails_the_step_for_good_and_takes_everything_back() -> Result<()> {
    let portable = asking(|tx, _| {
        tx.execute("INSERT INTO visits (name) VALUES (?1)", ["new"]);
        tx.execute("INSERT INTO visits (name) VALUES (?1)", ["there"]);
    });
    let closure = asking(|tx, _| {
        tx.sqlite(|tx| {
            tx.execute("INSERT INTO visits (name) VALUES ('new')", [])?;
            tx.execute("INSERT INTO visits (name) VALUES ('there')", [])?;
            Ok(())
        });
    });
    for workflow in [portable, closure] {
        let own = OwnTables::new(workflow).await?;
        own.user.execute("INSERT INTO visits (name) VALUES ('there')", [])?;
        let instance = own.create("one").await?;
        own.run_to_end().await?;
        let error = ended(&instance).await.unwrap_err();
        assert_eq!((error.name(), error.code()), ("UniqueConstraint", Some("UNIQUE_CONSTRAINT")));
        assert!(error.message().contains("visits.name"), "{error}");
        let step = own.step("one", 0).await?;
        assert_eq!((step.status, step.attempts), (StepStatus::Errored, 1));
        assert_eq!(own.names(), ["there"]);
    }
    Ok(())
}

#[tokio::test]
async fn other_sql_errors_are_failures_of_the_attempt_and_are_retried() -> Result<()> {
    let own = OwnTables::new(asking(|tx, _| {
        tx.execute("INSERT INTO later (name) VALUES (?1)", ["a"]);
    }))
    .await?;
    let instance = own.create("one").await?;
    own.harness.tick(1).await?;
    let step = own.step("one", 0).await?;
    assert_eq!((step.status, step.attempts), (StepStatus::Waiting, 1));
    let error = step.error.unwrap();
    assert_eq!(error.name, "StepTransaction");
    assert!(error.message.contains("no such table: later"), "{}", error.message);
    own.user.execute_batch("CREATE TABLE later (name TEXT)")?;
    own.run_to_end().await?;
    ended(&instance).await?;
    assert_eq!(own.step("one", 0).await?.attempts, 2);
    let rows: u32 = own.user.query_row("SELECT count(*) FROM later", [], |row| row.get(0))?;
    assert_eq!(rows, 1);
    Ok(())
}

#[tokio::test]
async fn sql_that_never_works_uses_up_the_attempts() -> Result<()> {
    let own = OwnTables::new(asking(|tx, _| tx.execute("NOT SQL", [0; 0]))).await?;
    let instance = own.create("one").await?;
    own.run_to_end().await?;
    assert_eq!(ended(&instance).await.unwrap_err().name(), "StepTransaction");
    assert_eq!(own.step("one", 0).await?.attempts, 4);
    Ok(())
}

#[tokio::test]
async fn a_closure_that_panics_or_fails_is_a_failed_attempt_and_hurts_nobody() -> Result<()> {
    let own = OwnTables::new(asking(|tx, attempt| {
        tx.sqlite(move |tx| {
            tx.execute("INSERT INTO visits (n) VALUES (?1)", [attempt])?;
            match attempt {
                1 => panic!("slipped"),
                2 => Err(Error::new("stumbled")),
                _ => Ok(()),
            }
        });
    }))
    .await?;
    let instance = own.create("one").await?;
    own.harness.tick(1).await?;
    let error = own.step("one", 0).await?.error.unwrap();
    assert!(error.message.contains("slipped"), "{}", error.message);
    own.runtime.advance(piton::Span::literal("1 minute"));
    own.harness.tick(1).await?;
    let error = own.step("one", 0).await?.error.unwrap();
    assert!(error.message.contains("stumbled"), "{}", error.message);
    own.run_to_end().await?;
    ended(&instance).await?;
    let rows: (u32, u32) =
        own.user.query_row("SELECT count(*), max(n) FROM visits", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
    assert_eq!(rows, (1, 3));
    Ok(())
}

#[tokio::test]
async fn writes_happen_in_the_order_they_were_asked_for_and_together_with_creates() -> Result<()> {
    let own = OwnTables::new(asking(|tx, attempt| {
        tx.execute("INSERT INTO visits (name, n) VALUES (?1, 1)", ["a"]);
        tx.sqlite(|tx| {
            tx.execute("UPDATE visits SET n = n * 10", [])?;
            Ok(())
        });
        tx.execute("UPDATE visits SET n = n + ?1", [2]);
        tx.create("own", &format!("kid-{attempt}"), &()).unwrap();
        if attempt == 1 {
            tx.execute("INSERT INTO missing VALUES (?1)", [1]);
        } else {
            // The kid has a unique name of its own to write.
            tx.execute("UPDATE visits SET name = ?1", ["done"]);
        }
    }))
    .await?;
    own.create("one").await?;
    own.harness.tick(1).await?;
    let missing = own.harness.workflow::<(), ()>("own")?.get("kid-1").await.unwrap_err();
    assert_eq!(missing.code(), Some("INSTANCE_NOT_FOUND"), "rolled back with the rest");
    assert_eq!(own.names(), [""; 0]);
    own.runtime.advance(piton::Span::literal("1 minute"));
    own.harness.tick(1).await?;
    own.harness.workflow::<(), ()>("own")?.get("kid-2").await?;
    let n: i64 =
        own.user.query_row("SELECT n FROM visits WHERE name = 'done'", [], |row| row.get(0))?;
    assert_eq!(n, 12);
    Ok(())
}
