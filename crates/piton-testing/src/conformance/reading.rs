//! Reading: what views show, and that pages lose and repeat nothing.

use piton::store::{Action, Boundary, InstanceQuery, ListPlace, LogFilter, PageQuery};
use piton_core::boundary::Next;
use piton_core::record::{InstanceKey, LogLine, SYSTEM_CATEGORY};
use piton_core::{InstanceStatus, LogLevel, Span, StepName, TaskKind};

use super::rows::*;
use super::stage::*;

pub async fn an_instance_that_is_not_there_is_none(stage: Stage) {
    stage.create_in("refund", &["a"]).await;
    let view = stage.store.instance(checkout(), id("a")).await;
    assert_eq!(view.expect("read"), None);
}

pub async fn a_run_that_is_not_there_has_no_rows(stage: Stage) {
    let key = stage.leased("a").await;
    for page in [
        PageQuery { run: 1, ..whole(key) },
        PageQuery { instance: InstanceKey(4_711), ..whole(key) },
    ] {
        assert!(stage.store.steps(page).await.expect("read").is_empty());
        assert!(stage.store.events(page).await.expect("read").is_empty());
        let logs = stage.store.logs(page, LogFilter::default()).await;
        assert!(logs.expect("read").is_empty());
        let loaded = stage.store.load_steps(page.instance, page.run).await;
        assert!(loaded.expect("read").is_empty());
    }
}

pub async fn updated_at_is_the_newest_of_the_instance_and_its_steps(stage: Stage) {
    let key = stage.leased("a").await;
    let claimed_at = stage.now();
    assert_eq!(stage.view("a").await.record.updated_at, claimed_at);
    stage.advance_ms(10);
    let boundary = Boundary { steps: vec![stage.completed_step("charge", 0)], ..boundary(key) };
    stage.commit(boundary).await;
    assert_eq!(stage.view("a").await.record.updated_at, stage.now());
    stage.advance_ms(10);
    stage.commit(complete(key)).await;
    assert_eq!(stage.view("a").await.record.updated_at, stage.now());
    stage.advance_ms(10);
    stage.steer("a", Action::Restart).await;
    assert_eq!(stage.view("a").await.record.updated_at, stage.now());
}

pub async fn an_instance_shows_the_step_that_will_wake_first(stage: Stage) {
    let key = stage.leased("a").await;
    let boundary = Boundary {
        steps: vec![
            stage.completed_step("done", 0),
            stage.sleep("nap", 1, stage.in_ms(3_000)),
            stage.failed_attempt("charge", 2, stage.in_ms(1_000)),
        ],
        waits: vec![stage.wait("approval", 3, "approved", 2_000)],
        next: Next::Suspend { run_at: stage.in_ms(1_000), kind: TaskKind::Retry },
        ..boundary(key)
    };
    stage.commit(boundary).await;
    let waiting_for = stage.view("a").await.waiting_for.expect("waits");
    assert_eq!(waiting_for.name.as_str(), "charge");
    stage.steer("a", Action::Pause).await;
    let waiting_for = stage.view("a").await.waiting_for.expect("still");
    assert_eq!(waiting_for.name.as_str(), "charge");
    stage.steer("a", Action::Terminate).await;
    assert_eq!(stage.view("a").await.waiting_for, None);
    stage.steer("a", Action::Restart).await;
    assert_eq!(stage.view("a").await.waiting_for, None, "a clean run");
}

/// More pages than any walk has: one that repeats rows fails instead of going on for ever.
const PAGES_MAX: usize = 50;

fn query(limit: u32) -> InstanceQuery {
    InstanceQuery::new(checkout(), limit)
}

impl Stage {
    async fn list(&self, query: InstanceQuery) -> (Vec<String>, Option<ListPlace>) {
        let page = self.store.instances(query).await.expect("read");
        let last = page.last().map(ListPlace::from);
        (page.iter().map(|record| record.id.to_string()).collect(), last)
    }
}

pub async fn instances_are_listed_newest_first(stage: Stage) {
    stage.create_in("checkout", &["b", "a"]).await;
    stage.create_in("refund", &["x"]).await;
    stage.create("c").await;
    assert_eq!(stage.list(query(10)).await.0, ["c", "a", "b"]);
    let nobody = InstanceQuery { workflow: workflow("unknown"), ..query(10) };
    assert_eq!(stage.list(nobody).await, (vec![], None));
}

pub async fn a_listed_instance_is_the_instance(stage: Stage) {
    for status in InstanceStatus::ALL {
        stage.with_status(status.as_str(), *status).await;
    }
    for record in stage.store.instances(query(10)).await.expect("read") {
        assert_eq!(record, stage.view(record.id.as_str()).await.record);
    }
}

pub async fn instances_can_be_listed_by_status(stage: Stage) {
    for status in InstanceStatus::ALL {
        stage.with_status(status.as_str(), *status).await;
    }
    for status in InstanceStatus::ALL {
        let only = InstanceQuery { status: Some(*status), ..query(10) };
        assert_eq!(stage.list(only).await.0, [status.as_str()]);
    }
}

pub async fn instances_can_be_listed_by_the_time_they_were_created(stage: Stage) {
    let start = stage.now();
    for name in ["a", "b", "c", "d"] {
        stage.create(name).await;
        stage.advance_ms(10);
    }
    stage.create("e").await;
    stage.steer("e", Action::Terminate).await;
    let at = |ms| Some(start.plus(Span::from_millis(ms)));
    for (created_after, created_before, expected) in [
        (None, None, &["e", "d", "c", "b", "a"][..]),
        (at(10), None, &["e", "d", "c", "b"]),
        (None, at(10), &["a"]),
        (at(10), at(30), &["c", "b"]),
        (at(11), at(20), &[]),
        (at(30), at(10), &[]),
    ] {
        let window = InstanceQuery { created_after, created_before, ..query(10) };
        assert_eq!(stage.list(window.clone()).await.0, expected);
        let active = InstanceQuery { status: Some(InstanceStatus::Active), ..window };
        let expected: Vec<_> = expected.iter().filter(|name| **name != "e").collect();
        assert_eq!(stage.list(active).await.0.iter().collect::<Vec<_>>(), expected);
    }
    let first = InstanceQuery { created_before: at(30), limit: 2, ..query(2) };
    let (ids, behind) = stage.list(first.clone()).await;
    assert_eq!(ids, ["c", "b"]);
    assert_eq!(stage.list(InstanceQuery { behind, ..first }).await.0, ["a"]);
}

pub async fn an_instance_created_after_the_clock_was_set_back_is_listed_where_its_time_is(
    stage: Stage,
) {
    stage.create("a").await;
    stage.advance_ms(10);
    stage.create("b").await;
    stage.set_back_ms(5);
    stage.create("c").await;
    let (first, behind) = stage.list(query(2)).await;
    assert_eq!(first, ["b", "c"]);
    assert_eq!(stage.list(InstanceQuery { behind, ..query(2) }).await.0, ["a"]);
}

pub async fn pages_of_instances_lose_and_repeat_nothing_while_others_are_created(stage: Stage) {
    let ids: Vec<String> = (0..10).map(|n| format!("i-{n}")).collect();
    let names: Vec<&str> = ids.iter().map(String::as_str).collect();
    stage.create_in("checkout", &names).await;
    let mut seen = Vec::new();
    let mut behind = None;
    for page in 0..PAGES_MAX {
        let query = InstanceQuery { behind, ..query(3) };
        let (ids, last) = stage.list(query).await;
        assert!(ids.len() <= 3);
        seen.extend(ids);
        if last.is_none() {
            break;
        }
        behind = last;
        stage.create(&format!("late-{page}")).await;
    }
    let expected: Vec<String> = ids.into_iter().rev().collect();
    assert_eq!(seen, expected);
}

/// Which of a run's tables a page is of.
#[derive(Clone, Copy)]
enum Table {
    Steps,
    Events,
    Logs,
}

const TABLES: [Table; 3] = [Table::Steps, Table::Events, Table::Logs];

impl Stage {
    /// Adds a row to each table of a run.
    async fn add_row(&self, key: piton_core::record::RunKey, n: u32) {
        let message = format!("m{n}");
        let boundary = Boundary {
            steps: vec![self.completed_step(&format!("s{n}"), n)],
            logs: vec![self.log_line(LogLevel::Info, "user", &message)],
            ..boundary(key)
        };
        self.commit(boundary).await;
        self.send_payload("a", "approved", &n.to_string()).await;
    }

    /// A page as the numbers its rows were added with, and the number to go on from.
    async fn page(&self, table: Table, page: PageQuery) -> (Vec<String>, Option<u64>) {
        let rows: Vec<(String, u64)> = match table {
            Table::Steps => {
                let steps = self.store.steps(page).await.expect("read").into_iter();
                steps
                    .map(|step| (step.name.as_str()[1..].to_owned(), step.position.into()))
                    .collect()
            }
            Table::Events => {
                let events = self.store.events(page).await.expect("read").into_iter();
                events.map(|event| (event.payload.as_str().to_owned(), event.seq)).collect()
            }
            Table::Logs => {
                let user = LogFilter { category: Some("user".into()), ..LogFilter::default() };
                let logs = self.store.logs(page, user).await.expect("read");
                logs.into_iter().map(|log| (log.line.message[1..].to_owned(), log.seq)).collect()
            }
        };
        let last = rows.last().map(|(_, number)| *number);
        (rows.into_iter().map(|(row, _)| row).collect(), last)
    }
}

pub async fn pages_forwards_lose_and_repeat_nothing_while_rows_are_added(stage: Stage) {
    let key = stage.leased("a").await;
    for n in 0..5 {
        stage.add_row(key, n).await;
    }
    let mut next_row = 5;
    for table in TABLES {
        let mut seen = Vec::new();
        let mut after = None;
        // Rows are added while the reader is on its way, and it sees them too.
        for page in 0..PAGES_MAX {
            let query = PageQuery { after, limit: 2, ..whole(key) };
            let (rows, last) = stage.page(table, query).await;
            seen.extend(rows);
            let Some(last) = last else { break };
            after = Some(last);
            if page < 3 {
                stage.add_row(key, next_row).await;
                next_row += 1;
            }
        }
        let expected: Vec<String> = (0..next_row).map(|n| n.to_string()).collect();
        assert_eq!(seen, expected);
    }
}

pub async fn pages_backwards_lose_and_repeat_nothing_while_rows_are_added(stage: Stage) {
    let key = stage.leased("a").await;
    for n in 0..5 {
        stage.add_row(key, n).await;
    }
    let mut next_row = 5;
    for table in TABLES {
        let expected: Vec<String> = (0..next_row).rev().map(|n| n.to_string()).collect();
        let mut seen = Vec::new();
        let mut after = None;
        for _ in 0..PAGES_MAX {
            let query = PageQuery { after, limit: 2, descending: true, ..whole(key) };
            let (rows, last) = stage.page(table, query).await;
            seen.extend(rows);
            let Some(last) = last else { break };
            after = Some(last);
            stage.add_row(key, next_row).await;
            next_row += 1;
        }
        assert_eq!(seen, expected);
    }
}

pub async fn pages_show_one_run_of_one_instance(stage: Stage) {
    let key = stage.leased("a").await;
    stage.add_row(key, 0).await;
    let other = stage.leased("b").await;
    stage.steer("a", Action::Restart).await;
    let next = stage.claim_only("a").await;
    stage.add_row(next, 1).await;
    for table in TABLES {
        assert_eq!(stage.page(table, whole(key)).await.0, ["0"]);
        assert_eq!(stage.page(table, whole(next)).await.0, ["1"]);
        assert!(stage.page(table, whole(other)).await.0.is_empty());
    }
}

pub async fn log_lines_keep_every_field(stage: Stage) {
    let key = stage.leased("a").await;
    let full = LogLine {
        id: "log_x".into(),
        step: Some(StepName::from_stored("charge")),
        attempt: Some(2),
        level: LogLevel::Warn,
        category: "billing".into(),
        message: "hm \"quoted\" 🧗".into(),
        data: Some(json("{\"a\":[1]}")),
        is_replay: true,
        created_at: stage.in_ms(-5),
    };
    let bare = stage.log_line(LogLevel::Debug, "user", "bare");
    let boundary = Boundary { logs: vec![full.clone(), bare.clone()], ..boundary(key) };
    stage.commit(boundary).await;
    let logs = stage.logs("a").await;
    assert!(logs.iter().all(|log| log.run == 0));
    let lines: Vec<LogLine> = logs.into_iter().skip(1).map(|log| log.line).collect();
    assert_eq!(lines, [full, bare]);
}

pub async fn log_lines_are_in_order_of_insertion_whatever_their_time(stage: Stage) {
    let key = stage.leased("a").await;
    let line = |message: &str, ms| LogLine {
        created_at: stage.in_ms(ms),
        ..stage.log_line(LogLevel::Info, "user", message)
    };
    for logs in [vec![line("1", 0), line("2", -500)], vec![line("3", -900)]] {
        let boundary = Boundary { logs, ..boundary(key) };
        stage.commit(boundary).await;
    }
    let logs = stage.logs("a").await;
    assert!(logs.is_sorted_by(|one, next| one.seq < next.seq));
    let messages: Vec<&str> = logs.iter().map(|log| &*log.line.message).collect();
    assert_eq!(messages[1..], ["1", "2", "3"]);
}

pub async fn a_boundary_tells_the_runners_lines_before_its_own(stage: Stage) {
    let key = stage.leased("a").await;
    stage.steer("a", Action::Pause).await;
    let wait = stage.wait("approval", 0, "approved", 0);
    let boundary = Boundary {
        logs: vec![stage.log_line(LogLevel::Info, "user", "mine")],
        waits: vec![wait],
        ..boundary(key)
    };
    stage.commit(boundary).await;
    let logs = stage.logs("a").await;
    let messages: Vec<&str> = logs[2..].iter().map(|log| &*log.line.message).collect();
    assert_eq!(messages[0], "mine");
    assert!(messages[1].starts_with("timed out"), "{messages:?}");
    assert_eq!(messages[2..], ["paused"]);
    assert_eq!(logs[3].line.step, Some(StepName::from_stored("approval")));
}

pub async fn logs_can_be_filtered_by_level_and_category(stage: Stage) {
    let key = stage.leased("a").await;
    let logs = [
        (LogLevel::Info, "billing", "1"),
        (LogLevel::Warn, "billing", "2"),
        (LogLevel::Info, "mail", "3"),
        (LogLevel::Warn, "mail", "4"),
    ]
    .map(|(level, category, message)| stage.log_line(level, category, message));
    let boundary = Boundary { logs: logs.to_vec(), ..boundary(key) };
    stage.commit(boundary).await;
    let messages = async |level: Option<LogLevel>, category: Option<&str>, limit| {
        let filter = LogFilter { level, category: category.map(Into::into) };
        let page = PageQuery { limit, ..whole(key) };
        let logs = stage.store.logs(page, filter).await.expect("read");
        let messages = logs.iter().map(|log| log.line.message.to_string());
        messages.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(messages(Some(LogLevel::Warn), None, 9).await, "2 4");
    assert_eq!(messages(None, Some("billing"), 9).await, "1 2");
    assert_eq!(messages(Some(LogLevel::Info), Some("mail"), 9).await, "3");
    assert_eq!(messages(Some(LogLevel::Error), None, 9).await, "");
    let claimed = "claimed by runner (epoch 1)";
    assert_eq!(messages(None, Some(SYSTEM_CATEGORY), 9).await, claimed);
    let first = messages(Some(LogLevel::Warn), None, 1).await;
    assert_eq!(first, "2", "the limit counts what passes the filter");
}

pub async fn lines_can_be_added_to_a_live_run_that_is_not_held(stage: Stage) {
    let key = stage.leased("a").await;
    let append = |message| {
        let line = stage.log_line(LogLevel::Warn, SYSTEM_CATEGORY, message);
        stage.store.append_logs(key.instance, key.run, vec![line])
    };
    append("fenced").await.expect("appended");
    let last = async || {
        let logs = stage.store.logs(whole(key), LogFilter::default()).await.expect("read");
        logs.last().expect("there is one").line.message.to_string()
    };
    assert_eq!(last().await, "fenced");
    stage.steer("a", Action::Restart).await;
    append("too late").await.expect("ignored");
    assert_eq!(last().await, "fenced", "a superseded run never changes");
    assert_eq!(stage.story("a").await.len(), 1, "the new run has its own");
}

pub async fn system_lines_have_ids_and_moments(stage: Stage) {
    stage.create("a").await;
    stage.advance_ms(5);
    stage.claim_only("a").await;
    let line = stage.logs("a").await.remove(0).line;
    assert!(line.id.starts_with("log_"), "{}", line.id);
    assert_eq!(line.created_at, stage.now());
    assert_eq!((line.level, line.step), (LogLevel::Debug, None));
    assert!(!line.is_replay);
}

pub async fn ended_names_those_that_have_ended(stage: Stage) {
    let mut all = Vec::new();
    for status in InstanceStatus::ALL {
        let key = stage.with_status(status.as_str(), *status).await;
        all.push(key.instance);
    }
    let ended = stage.store.ended(all.clone()).await.expect("read");
    assert_eq!(ended, all[3..], "complete, errored and terminated");
    stage.steer("complete", Action::Restart).await;
    let ended = stage.store.ended(all.clone()).await.expect("read");
    assert_eq!(ended, all[4..], "a restarted one lives");
    let nobody = stage.store.ended(vec![InstanceKey(4_711)]).await;
    assert!(nobody.expect("read").is_empty());
    assert!(stage.store.ended(vec![]).await.expect("read").is_empty());
}

pub async fn the_backlog_counts_the_live_tasks_of_every_unknown_workflow(stage: Stage) {
    assert!(stage.backlog(&[]).await.is_empty());
    for status in InstanceStatus::ALL {
        stage.with_status(status.as_str(), *status).await;
    }
    stage.create_in("refund", &["a", "b"]).await;
    assert_eq!(stage.backlog(&[]).await, [(checkout(), 3), (workflow("refund"), 2)]);
    assert_eq!(stage.backlog(&[checkout()]).await, [(workflow("refund"), 2)]);
    assert!(stage.backlog(&[workflow("refund"), checkout()]).await.is_empty());
}
