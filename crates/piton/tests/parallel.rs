//! Parallel steps: BEHAVIOURS 10 to 14.

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use piton::prelude::*;
use piton::{InstanceStatus, StepContext, StepStatus, StepType};
use piton_testing::{Harness, StoreKind, on_every_store};

use crate::support::{
    Alive, Probe, find, find_step, log_lines, outline, settle, step, steps, until_step,
};

/// A target for events that a step sends in its own transaction, which every store can do.
fn mailbox() -> piton::Registration {
    workflow("mailbox", async |_: Event<()>, step: &Step| -> Result<u32> {
        step.wait_for_event("mail", "mail").timeout("365 days").await
    })
}

on_every_store!(
    three_joined_steps_run_at_the_same_time,
    each_branch_has_its_own_attempts_and_error,
    join_all_and_futures_unordered_run_steps_at_the_same_time,
    a_body_is_never_run_twice_because_its_sibling_suspended,
    what_falls_due_while_a_body_runs_is_handled_in_the_same_pass,
    a_retry_that_needs_a_new_pass_waits_for_the_running_body,
    a_step_transaction_goes_on_at_once_while_its_sibling_sleeps,
    a_failed_transaction_does_not_lose_the_waits_beside_it,
    when_a_joined_branch_fails_the_others_finish_and_are_recorded,
    a_failing_try_join_cancels_its_siblings_and_replays_the_same_way,
    a_cancelled_step_can_be_run_later,
    a_sleep_beside_a_body_is_a_timeout,
    the_loser_of_a_select_neither_leaks_nor_blocks_completion,
    a_loser_that_was_being_retried_does_not_stay_waiting,
    the_winner_of_a_select_is_the_same_on_200_replays,
    steps_finish_in_the_same_order_on_every_replay,
    branches_that_are_ready_at_the_same_moment_have_one_winner_for_ever,
    a_step_transaction_that_ties_with_a_sleep_wins_or_loses_for_ever,
    lines_written_in_parallel_steps_carry_their_step_and_attempt,
);

// 10
async fn three_joined_steps_run_at_the_same_time(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("three", async |_: Event<()>, step: &Step| -> Result<u32> {
        let body = async |n: u32| {
            probe.hold("body").await;
            Ok(n)
        };
        let (a, b, c) =
            try_join!(step.run("a", body(1)), step.run("b", body(20)), step.run("c", body(300)),)?;
        Ok(a + b + c)
    });
    let harness = Harness::on(kind, [flow]).await?;
    let instance = harness.create::<_, u32>("three", ()).await?;
    let meet = async {
        for _ in 0..3 {
            probe.held("body").await;
        }
        for _ in 0..3 {
            probe.open("body");
        }
        Ok(())
    };
    try_join!(harness.tick(), meet)?;
    assert_eq!(instance.result().await?, 321);
    let steps = steps(&instance).await?;
    let mut recorded = outline(&steps);
    recorded.sort_unstable_by_key(|(name, ..)| *name);
    assert_eq!(recorded, ["a", "b", "c"].map(|name| (name, StepType::Do, StepStatus::Completed)));
    Ok(())
}

// 10
async fn each_branch_has_its_own_attempts_and_error(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("own", async |_: Event<()>, step: &Step| -> Result<String> {
        let fails_until = async |name: &str, good: u32| match probe.hit(name) {
            attempt if attempt >= good => Ok(attempt),
            attempt => Err(Error::new(format!("{name} failed {attempt}")).named(name)),
        };
        let retries = || Retries::constant(2, "1 minute");
        let (a, b, c) = join!(
            step.run("a", fails_until("a", 1)).retries(retries()),
            step.run("b", fails_until("b", 3)).retries(retries()),
            step.run("c", fails_until("c", u32::MAX)).retries(retries()),
        );
        Ok(format!("{} {} {}", a?, b?, c.unwrap_err()))
    });
    let harness = Harness::on(kind, [flow]).await?;
    let instance = harness.create::<_, String>("own", ()).await?;
    harness.run_until_idle().await?;
    let [a, b, c] =
        [step(&instance, "a").await?, step(&instance, "b").await?, step(&instance, "c").await?];
    assert_eq!((a.status, a.attempts, a.error), (StepStatus::Completed, 1, None));
    assert_eq!(
        (b.status, b.attempts, b.error.unwrap().name.as_str()),
        (StepStatus::Waiting, 1, "b")
    );
    assert_eq!(
        (c.status, c.attempts, c.error.unwrap().name.as_str()),
        (StepStatus::Waiting, 1, "c")
    );
    harness.run_to_end().await?;
    assert_eq!(instance.result().await?, "1 3 c: c failed 3");
    assert_eq!((probe.count("a"), probe.count("b"), probe.count("c")), (1, 3, 3));
    Ok(())
}

// 10: combinators that poll only the child that was woken.
async fn join_all_and_futures_unordered_run_steps_at_the_same_time(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flows = || {
        [workflow("many", async |_: Event<()>, step: &Step| -> Result<u32> {
            let body = async |n: u32| {
                probe.hit("body");
                probe.hold("body").await;
                Ok(n)
            };
            let first = join_all((0..40).map(|n| step.run(format!("all {n}"), body(n)))).await;
            let mut sum: u32 = first.into_iter().sum::<Result<u32>>()?;
            let mut rest: FuturesUnordered<_> =
                (0..40).map(|n| step.run(format!("any {n}"), body(n))).collect();
            while let Some(n) = rest.next().await {
                sum += n?;
            }
            step.sleep("replay", "1 hour").await?;
            Ok(sum)
        })]
    };
    let harness = Harness::on(kind, flows()).await?;
    let instance = harness.create::<_, u32>("many", ()).await?;
    let meet = async {
        for _ in 0..2 {
            for _ in 0..40 {
                probe.held("body").await;
            }
            for _ in 0..40 {
                probe.open("body");
            }
        }
        Ok(())
    };
    try_join!(harness.tick(), meet)?;
    let harness = harness.crash_and_restart(flows()).await?;
    harness.run_to_end().await?;
    assert_eq!(find(&harness, &instance).await?.result().await?, 2 * 780);
    assert_eq!(probe.count("body"), 80);
    Ok(())
}

// 11
async fn a_body_is_never_run_twice_because_its_sibling_suspended(kind: StoreKind) -> Result<()> {
    for parked in [0, 100] {
        let probe = Probe::new();
        let flow = workflow("pair", async |_: Event<()>, step: &Step| -> Result<u32> {
            let ((), done, event, failing) = try_join!(
                step.sleep("sleep", "1 hour"),
                step.run("body", async { Ok(probe.hit("body")) }),
                step.wait_for_event::<u32>("event", "go"),
                step.run("failing", async {
                    if probe.hit("failing") < 3 { Err(Error::new("again")) } else { Ok(5) }
                })
                .retries(Retries::constant(5, "30 minutes")),
            )?;
            Ok(done + event + failing)
        });
        let harness = Harness::with(kind, [flow], move |engine| engine.parked_runs(parked)).await?;
        let instance = harness.create::<_, u32>("pair", ()).await?;
        harness.run_until_idle().await?;
        harness.advance("45 minutes");
        harness.run_until_idle().await?;
        instance.send_event("go", &10).await?;
        harness.run_to_end().await?;
        assert_eq!(instance.result().await?, 16);
        assert_eq!((probe.count("body"), probe.count("failing")), (1, 3));
        assert_eq!(step(&instance, "body").await?.attempts, 1);
    }
    Ok(())
}

// 11: a sleep, an event and a retry of siblings, all while one body is held open.
async fn what_falls_due_while_a_body_runs_is_handled_in_the_same_pass(
    kind: StoreKind,
) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("long", async |_: Event<()>, step: &Step| -> Result<u32> {
        probe.hit("pass");
        let long = step.run("long", async {
            probe.hold("long").await;
            Ok(probe.hit("long"))
        });
        let nap = async {
            step.sleep("nap", "1 hour").await?;
            step.run("after nap", async { Ok(probe.hit("after nap")) }).await
        };
        let mail = async {
            let n: u32 = step.wait_for_event("mail", "mail").await?;
            step.run("after mail", async { Ok(n) }).await
        };
        let retry = step
            .run_with("retry", |cx| async move {
                if cx.attempt() < 3 { Err(Error::new("not yet")) } else { Ok(cx.attempt()) }
            })
            .retries(Retries::constant(2, "1 day"));
        let (a, b, c, d) = try_join!(long.timeout("30 days"), nap, mail, retry)?;
        Ok(a + b * 10 + c * 100 + d * 1_000)
    });
    let harness = Harness::with(kind, [flow], |engine| engine.parked_runs(0)).await?;
    let instance = harness.create::<_, u32>("long", ()).await?;
    let meanwhile = async {
        probe.held("long").await;
        until_step(&instance, "nap", StepStatus::Waiting).await?;
        settle(&harness).await?;
        harness.advance(3_599_999);
        settle(&harness).await?;
        instance.send_event("unwanted", &()).await?;
        settle(&harness).await?;
        assert_eq!(probe.count("after nap"), 0);
        harness.advance(1);
        until_step(&instance, "after nap", StepStatus::Completed).await?;
        instance.send_event("mail", &5).await?;
        until_step(&instance, "after mail", StepStatus::Completed).await?;
        for _ in 0..2 {
            until_step(&instance, "retry", StepStatus::Waiting).await?;
            settle(&harness).await?;
            harness.advance("1 day");
        }
        until_step(&instance, "retry", StepStatus::Completed).await?;
        assert_eq!(find_step(&instance, "long").await?, None);
        probe.open("long");
        Ok(())
    };
    try_join!(harness.tick(), meanwhile)?;
    assert_eq!(instance.result().await?, 3_511);
    assert_eq!(probe.count("pass"), 1, "nothing of this needed another pass");
    assert_eq!((probe.count("long"), probe.count("after nap")), (1, 1));
    Ok(())
}

// 11: a `run` gives its only future away, so its retry needs a new pass; the running body is not harmed.
async fn a_retry_that_needs_a_new_pass_waits_for_the_running_body(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("spent", async |_: Event<()>, step: &Step| -> Result<u32> {
        let (long, retried) = try_join!(
            step.run("long", async {
                probe.hold("long").await;
                Ok(probe.hit("long"))
            })
            .timeout("1 day"),
            step.run("flaky", async {
                if probe.hit("flaky") == 1 { Err(Error::new("once")) } else { Ok(10) }
            }),
        )?;
        Ok(long + retried)
    });
    let harness = Harness::on(kind, [flow]).await?;
    let instance = harness.create::<_, u32>("spent", ()).await?;
    let meanwhile = async {
        probe.held("long").await;
        until_step(&instance, "flaky", StepStatus::Waiting).await?;
        settle(&harness).await?;
        harness.advance("1 hour");
        settle(&harness).await?;
        probe.open("long");
        Ok(())
    };
    try_join!(harness.tick(), meanwhile)?;
    assert_eq!((probe.count("long"), probe.count("flaky")), (1, 1));
    harness.run_until_idle().await?;
    assert_eq!(instance.result().await?, 11);
    assert_eq!((probe.count("long"), probe.count("flaky")), (1, 2));
    Ok(())
}

// 11: a step with a transaction of its own is not held up by a sibling that sleeps.
async fn a_step_transaction_goes_on_at_once_while_its_sibling_sleeps(
    kind: StoreKind,
) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("sender", async |_: Event<()>, step: &Step| -> Result<()> {
        let send = async {
            step.run_with("send", |cx| async move {
                cx.transaction().send_event("mailbox", "box", "mail", &7)
            })
            .await?;
            step.run("after", async { Ok(probe.hit("after")) }).await
        };
        try_join!(step.sleep("nap", "1 hour"), send)?;
        Ok(())
    });
    let harness = Harness::on(kind, [flow, mailbox()]).await?;
    let mailbox = harness.workflow::<(), u32>("mailbox")?.create(()).id("box").await?;
    let instance = harness.create::<_, ()>("sender", ()).await?;
    harness.run_until_idle().await?;
    assert_eq!(probe.count("after"), 1, "the sleep of an hour held it up");
    assert_eq!(mailbox.result().await?, 7);
    harness.run_to_end().await?;
    instance.result().await?;
    Ok(())
}

// 11: a wait that is registered in the same commit in which a step's transaction fails.
async fn a_failed_transaction_does_not_lose_the_waits_beside_it(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("sender", async |_: Event<()>, step: &Step| -> Result<String> {
        let probe = probe.here();
        let (sent, mail, slept) = join!(
            step.run_with("send", |cx| async move {
                probe.hit("send");
                cx.transaction().send_event("mailbox", "nobody", "mail", &7)
            }),
            step.wait_for_event::<u32>("mail", "mail"),
            step.sleep("nap", "1 hour"),
        );
        slept?;
        Ok(format!("{:?} {}", sent.unwrap_err().code(), mail?))
    });
    let harness = Harness::on(kind, [flow, mailbox()]).await?;
    let instance = harness.create::<_, String>("sender", ()).await?;
    harness.run_until_idle().await?;
    assert_eq!(
        outline(&steps(&instance).await?),
        [
            ("mail", StepType::WaitForEvent, StepStatus::Waiting),
            ("nap", StepType::Sleep, StepStatus::Waiting),
            ("send", StepType::Do, StepStatus::Errored),
        ]
    );
    instance.send_event("mail", &5).await?;
    harness.run_to_end().await?;
    assert_eq!(instance.result().await?, "Some(\"INSTANCE_NOT_FOUND\") 5");
    assert_eq!(probe.count("send"), 1);
    Ok(())
}

// 12
async fn when_a_joined_branch_fails_the_others_finish_and_are_recorded(
    kind: StoreKind,
) -> Result<()> {
    let probe = Probe::new();
    let flows = || {
        [workflow("join", async |_: Event<()>, step: &Step| -> Result<String> {
            let (bad, good) = join!(
                step.run("bad", async {
                    probe.hit("bad");
                    Err::<(), _>(Error::non_retryable("no").named("No"))
                }),
                step.run("good", async {
                    probe.hold("good").await;
                    Ok(probe.hit("good"))
                }),
            );
            step.sleep("replay", "1 hour").await?;
            Ok(format!("{} {}", bad.unwrap_err(), good?))
        })]
    };
    let harness = Harness::on(kind, flows()).await?;
    let instance = harness.create::<_, String>("join", ()).await?;
    let finish = async {
        until_step(&instance, "bad", StepStatus::Errored).await?;
        probe.open("good");
        Ok(())
    };
    try_join!(harness.tick(), finish)?;
    let harness = harness.crash_and_restart(flows()).await?;
    harness.run_to_end().await?;
    let instance = find(&harness, &instance).await?;
    assert_eq!(instance.result().await?, "No: no 1");
    assert_eq!((probe.count("bad"), probe.count("good")), (1, 1));
    Ok(())
}

// 12
async fn a_failing_try_join_cancels_its_siblings_and_replays_the_same_way(
    kind: StoreKind,
) -> Result<()> {
    let probe = Probe::new();
    let flows = || {
        [workflow("try", async |_: Event<()>, step: &Step| -> Result<String> {
            let tried = try_join!(
                step.run("slow", async {
                    let _alive = Alive::new(probe);
                    probe.hit("slow");
                    probe.hold("slow").await;
                    Ok(())
                }),
                step.run("quick", async { Ok(probe.hit("quick")) }),
                step.run("bad", async {
                    probe.hold("bad").await;
                    Err::<(), _>(Error::non_retryable("no").named("No"))
                }),
                step.sleep("long", "30 days"),
            );
            let error = tried.unwrap_err();
            probe.note(error.to_string());
            step.sleep("replay", "1 hour").await?;
            Ok(error.to_string())
        })]
    };
    let harness = Harness::on(kind, flows()).await?;
    let instance = harness.create::<_, String>("try", ()).await?;
    let fail = async {
        probe.held("slow").await;
        until_step(&instance, "quick", StepStatus::Completed).await?;
        probe.open("bad");
        Ok(())
    };
    try_join!(harness.tick(), fail)?;
    assert_eq!(probe.count("alive now"), 0, "the body of the slow step was dropped");
    let harness = harness.crash_and_restart(flows()).await?;
    harness.run_to_end().await?;
    let instance = find(&harness, &instance).await?;
    assert_eq!(instance.result().await?, "No: no");
    assert_eq!(probe.notes(), ["No: no"; 2]);
    assert_eq!((probe.count("slow"), probe.count("quick")), (1, 1));
    assert_eq!(find_step(&instance, "slow").await?, None, "as if it had never been asked for");
    assert_ne!(step(&instance, "long").await?.status, StepStatus::Waiting);
    Ok(())
}

// 12: what was cancelled may be asked for again.
async fn a_cancelled_step_can_be_run_later(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("later", async |_: Event<()>, step: &Step| -> Result<u32> {
        let cancelled = select! {
            _ = step.run("work", async { probe.hit("work"); probe.hold("never").await; Ok(0) }) => false,
            slept = step.sleep("patience", "1 minute") => slept.is_ok(),
        };
        assert!(cancelled);
        step.run("work", async { Ok(probe.hit("work")) }).await
    });
    let harness = Harness::on(kind, [flow]).await?;
    let instance = harness.create::<_, u32>("later", ()).await?;
    let wait = async {
        probe.held("never").await;
        until_step(&instance, "patience", StepStatus::Waiting).await?;
        settle(&harness).await?;
        harness.advance("1 minute");
        Ok(())
    };
    try_join!(harness.tick(), wait)?;
    assert_eq!(instance.result().await?, 2);
    assert_eq!(step(&instance, "work").await?.attempts, 1);
    Ok(())
}

// 13
async fn a_sleep_beside_a_body_is_a_timeout(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("timeout", async |_: Event<()>, step: &Step| -> Result<String> {
        let told = select! {
            _ = step.run("work", async {
                let _alive = Alive::new(probe);
                probe.hold("work").await;
                Ok(())
            }) => "worked",
            slept = step.sleep("patience", "5 minutes") => { slept?; "gave up" }
        };
        Ok(told.to_owned())
    });
    let harness = Harness::on(kind, [flow]).await?;
    let instance = harness.create::<_, String>("timeout", ()).await?;
    let wait = async {
        probe.held("work").await;
        until_step(&instance, "patience", StepStatus::Waiting).await?;
        settle(&harness).await?;
        harness.advance("5 minutes");
        Ok(())
    };
    try_join!(harness.tick(), wait)?;
    assert_eq!(instance.result().await?, "gave up");
    assert_eq!(probe.count("alive now"), 0);
    assert_eq!(find_step(&instance, "work").await?, None);
    assert_eq!(harness.engine().next_wake_at().await?, None);
    Ok(())
}

// 13
async fn the_loser_of_a_select_neither_leaks_nor_blocks_completion(kind: StoreKind) -> Result<()> {
    let flow = || {
        workflow("race", async |_: Event<()>, step: &Step| -> Result<String> {
            let first = select! {
                go = step.wait_for_event::<u32>("go", "go") => format!("go {}", go?),
                slept = step.sleep("first patience", "1 hour") => { slept?; "slept".to_owned() }
            };
            let second = select! {
                go = step.wait_for_event::<u32>("never", "never") => format!("go {}", go?),
                slept = step.sleep("second patience", "1 hour") => { slept?; "slept".to_owned() }
            };
            Ok(format!("{first}, {second}"))
        })
    };
    for parked in [0, 100] {
        let harness =
            Harness::with(kind, [flow()], move |engine| engine.parked_runs(parked)).await?;
        let instance = harness.create::<_, String>("race", ()).await?;
        harness.run_until_idle().await?;
        harness.advance("10 minutes");
        instance.send_event("go", &7).await?;
        harness.run_until_idle().await?;
        assert_ne!(step(&instance, "first patience").await?.status, StepStatus::Waiting);
        let waiting = instance.describe().await?.current_step.unwrap();
        assert_eq!(waiting.name, "second patience", "and not the loser, which would wake first");
        let began = harness.now();
        harness.run_to_end().await?;
        assert_eq!(instance.result().await?, "go 7, slept");
        assert_eq!(harness.now().since(began), piton::Span::literal("1 hour"));
        for step in steps(&instance).await? {
            assert_ne!(step.status, StepStatus::Waiting, "{} waits after the end", step.name);
        }
    }
    Ok(())
}

// 13: a loser that was between two attempts, and one that was in the middle of its second.
async fn a_loser_that_was_being_retried_does_not_stay_waiting(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("retried", async |_: Event<()>, step: &Step| -> Result<()> {
        let probe = probe.here();
        select! {
            _ = step.run_with("work", |cx| async move {
                if cx.attempt() == 1 {
                    return Err(Error::new("once more"));
                }
                probe.hold("second").await;
                Ok(())
            }).retries(Retries::constant(5, "1 minute")).timeout("1 day") => panic!("held"),
            slept = step.sleep("patience", "1 hour") => slept?,
        }
        step.sleep("linger", "1 hour").await
    });
    let harness = Harness::on(kind, [flow]).await?;
    let instance = harness.create::<_, ()>("retried", ()).await?;
    harness.run_until_idle().await?;
    harness.advance("1 minute");
    let wait = async {
        probe.held("second").await;
        settle(&harness).await?;
        harness.advance("59 minutes");
        Ok(())
    };
    try_join!(harness.tick(), wait)?;
    assert_eq!(instance.status().await?, InstanceStatus::Waiting);
    assert_eq!(instance.describe().await?.current_step.unwrap().name, "linger");
    assert_eq!(step(&instance, "work").await?.status, StepStatus::Pending);
    harness.run_to_end().await?;
    instance.result().await?;
    Ok(())
}

// 13
async fn the_winner_of_a_select_is_the_same_on_200_replays(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("race", async |_: Event<()>, step: &Step| -> Result<String> {
        let mut winners = String::new();
        for race in 0..8 {
            let body = async |what: &str| Ok(probe.hit(format!("{what} {race}")));
            // All four can be had at the same moment; polled in random order, as `select!` does.
            winners.push(select! {
                _ = step.run(format!("a {race}"), body("a")) => 'a',
                _ = step.run(format!("b {race}"), body("b")) => 'b',
                _ = step.sleep(format!("c {race}"), 0) => 'c',
                _ = step.wait_for_event::<()>(format!("d {race}"), "d") => 'd',
            });
        }
        probe.note(&winners);
        for nap in 0..200 {
            step.sleep(format!("nap {nap}"), "1 hour").await?;
        }
        Ok(winners)
    });
    let harness = Harness::with(kind, [flow], |engine| engine.parked_runs(0)).await?;
    let instance = harness.create::<_, String>("race", ()).await?;
    for _ in 0..4 {
        instance.send_event("d", &()).await?;
    }
    harness.run_until_idle().await?;
    let bodies = probe.counts();
    harness.run_to_end().await?;
    let winners = instance.result().await?;
    assert_eq!(probe.notes(), vec![winners; 201]);
    assert_eq!(probe.counts(), bodies, "no replay started a body");
    Ok(())
}

// 13: results come to the code in the order in which they were recorded.
async fn steps_finish_in_the_same_order_on_every_replay(kind: StoreKind) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("order", async |_: Event<()>, step: &Step| -> Result<String> {
        let body = async |name: &'static str| {
            probe.hold(name).await;
            Ok(name.to_owned())
        };
        let mut racing: FuturesUnordered<_> =
            ["a", "b", "c"].into_iter().map(|name| step.run(name, body(name))).collect();
        let mut order = String::new();
        while let Some(name) = racing.next().await {
            order += &name?;
        }
        let mut left = std::pin::pin!(step.sleep("left", "2 minutes"));
        let right = step.sleep("right", "1 minute");
        select! {
            slept = &mut left => slept?,
            slept = right => { slept?; order += "r" }
        }
        left.await?;
        probe.note(&order);
        step.sleep("nap", "1 hour").await?;
        step.sleep("another nap", "1 hour").await?;
        Ok(order)
    });
    let harness = Harness::with(kind, [flow], |engine| engine.parked_runs(0)).await?;
    let instance = harness.create::<_, String>("order", ()).await?;
    let choose = async {
        for name in ["c", "a", "b"] {
            probe.open(name);
            until_step(&instance, name, StepStatus::Completed).await?;
            settle(&harness).await?;
        }
        Ok(())
    };
    try_join!(harness.tick(), choose)?;
    harness.run_to_end().await?;
    assert_eq!(instance.result().await?, "cabr");
    assert_eq!(probe.notes(), ["cabr"; 3]);
    Ok(())
}

// 13: a body that ends or fails, a sleep and an event, all between two looks of the engine.
async fn branches_that_are_ready_at_the_same_moment_have_one_winner_for_ever(
    kind: StoreKind,
) -> Result<()> {
    for case in 0..8 {
        let probe = Probe::new();
        let flow = workflow("tie", async |case: Event<u32>, step: &Step| -> Result<char> {
            let winner = select! {
                _ = step.run("body", async {
                    probe.hold("body").await;
                    if *case < 4 { Ok(()) } else { Err(Error::new("no")) }
                }) => 'b',
                _ = step.sleep("sleep", "1 minute") => 's',
                _ = step.wait_for_event::<()>("event", "go") => 'e',
            };
            probe.note(winner.to_string());
            for nap in 0..5 {
                step.sleep(format!("nap {nap}"), "1 hour").await?;
            }
            Ok(winner)
        });
        let harness = Harness::with(kind, [flow], |engine| engine.parked_runs(0)).await?;
        let instance = harness.create::<u32, char>("tie", case).await?;
        let tie = async {
            probe.held("body").await;
            until_step(&instance, "sleep", StepStatus::Waiting).await?;
            settle(&harness).await?;
            if case % 2 == 0 {
                instance.send_event("go", &()).await?;
            }
            harness.advance("1 minute");
            if case % 4 < 2 {
                probe.open("body");
            }
            Ok(())
        };
        try_join!(harness.tick(), tie)?;
        harness.run_to_end().await?;
        let winner = instance.result().await?.to_string();
        assert_eq!(probe.notes(), vec![winner; 6], "case {case}");
        for step in steps(&instance).await? {
            assert_ne!(step.status, StepStatus::Waiting, "{}, case {case}", step.name);
        }
    }
    Ok(())
}

// 13: a step with a transaction of its own is told later than it is recorded; that must not change
// who wins.
async fn a_step_transaction_that_ties_with_a_sleep_wins_or_loses_for_ever(
    kind: StoreKind,
) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("tie", async |_: Event<()>, step: &Step| -> Result<String> {
        let probe = probe.here();
        let winner = select! {
            sent = step.run_with("send", |cx| async move {
                probe.hold("send").await;
                cx.transaction().send_event("mailbox", "box", "mail", &7)
            }) => { sent?; "sent" }
            slept = step.sleep("patience", "1 minute") => { slept?; "slept" }
        };
        probe.note(winner);
        step.sleep("replay", "1 hour").await?;
        Ok(winner.to_owned())
    });
    let harness = Harness::with(kind, [flow, mailbox()], |engine| engine.parked_runs(0)).await?;
    harness.workflow::<(), u32>("mailbox")?.create(()).id("box").await?;
    harness.run_until_idle().await?;
    let instance = harness.create::<_, String>("tie", ()).await?;
    let tie = async {
        probe.held("send").await;
        until_step(&instance, "patience", StepStatus::Waiting).await?;
        settle(&harness).await?;
        harness.advance("1 minute");
        probe.open("send");
        Ok(())
    };
    try_join!(harness.tick(), tie)?;
    harness.run_until_idle().await?;
    harness.advance("1 hour");
    harness.run_until_idle().await?;
    let winner = instance.result().await?;
    assert_eq!(probe.notes(), vec![winner; 2]);
    Ok(())
}

// 14
async fn lines_written_in_parallel_steps_carry_their_step_and_attempt(
    kind: StoreKind,
) -> Result<()> {
    let probe = Probe::new();
    let flow = workflow("chatty", async |_: Event<()>, step: &Step| -> Result<()> {
        step.log().info("outside");
        let chat = async |cx: StepContext, name: &str| {
            step.log().info(format!("{name} begins {}", cx.attempt()));
            if cx.attempt() == 1 {
                probe.hold("both").await;
            }
            step.log().info(format!("{name} ends {}", cx.attempt()));
            if name == "b" && cx.attempt() == 1 { Err(Error::new("again")) } else { Ok(()) }
        };
        try_join!(step.run_with("a", |cx| chat(cx, "a")), step.run_with("b", |cx| chat(cx, "b")),)?;
        step.log().info("outside again");
        Ok(())
    });
    let harness = Harness::on(kind, [flow]).await?;
    let instance = harness.create::<_, ()>("chatty", ()).await?;
    let meet = async {
        for _ in 0..2 {
            probe.held("both").await;
        }
        for _ in 0..2 {
            probe.open("both");
        }
        Ok(())
    };
    try_join!(harness.tick(), meet)?;
    harness.run_to_end().await?;
    instance.result().await?;
    let lines = log_lines(&instance, None).await?;
    let lines = lines.iter().filter(|line| &*line.category == "workflow");
    let mut told: Vec<_> = lines
        .map(|line| {
            let step = line.step.as_ref().map_or("-", |step| step.as_str());
            (step, line.attempt.unwrap_or(0), &*line.message)
        })
        .collect();
    assert_eq!((told[0], *told.last().unwrap()), (("-", 0, "outside"), ("-", 0, "outside again")));
    told.sort_unstable();
    assert_eq!(
        told,
        [
            ("-", 0, "outside"),
            ("-", 0, "outside again"),
            ("a", 1, "a begins 1"),
            ("a", 1, "a ends 1"),
            ("b", 1, "b begins 1"),
            ("b", 1, "b ends 1"),
            ("b", 2, "b begins 2"),
            ("b", 2, "b ends 2"),
        ]
    );
    Ok(())
}
