//! Opening a database, or refusing to.

use std::fs;

use piton_core::hook::{HOOK_DAMAGED, NewHook};
use piton_core::{HookName, HookStatus, InstanceStatus, LogLevel, Retries, TaskState};
use rusqlite::Connection;

use super::*;
use crate::store::sqlite::{migrate, open};
use crate::store::{
    Action, HookQuery, HookStore, HookWork, LogFilter, PageQuery, default_namespace,
};

fn refused(place: &Place) -> String {
    let error = place.try_open().expect_err("refused");
    assert_eq!(error.code(), Some("STORE_UNUSABLE"));
    error.message().to_owned()
}

#[tokio::test]
async fn a_second_open_is_refused_and_told_who_holds_it() {
    let place = Place::new();
    let store = place.open();
    let message = refused(&place);
    let pid = std::process::id().to_string();
    assert!(message.contains("piton.db.lock"), "{message}");
    assert!(message.contains(&pid), "{message}");
    store.close().await.expect("closes");
    let again = place.open();
    drop(again);
    place.open();
}

#[cfg(unix)]
#[test]
fn a_link_to_the_database_is_the_same_database() {
    let place = Place::new();
    let _store = place.open();
    let link = place.directory.path().join("link.db");
    std::os::unix::fs::symlink(place.path(), &link).expect("links");
    let error = SqliteStore::open(&link, place.clock.clone()).expect_err("refused");
    assert!(error.message().contains("in use"), "{}", error.message());
}

#[cfg(unix)]
#[tokio::test]
async fn only_the_owner_can_read_the_files() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let store = place.open();
    create_leased(&store, "a").await;
    let mut seen = 0;
    for entry in fs::read_dir(place.directory.path()).expect("lists") {
        let entry = entry.expect("lists");
        let mode = entry.metadata().expect("exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{:?}", entry.path());
        seen += 1;
    }
    assert_eq!(seen, 4, "database, wal, shm and lock");
}

#[test]
fn the_settings_that_durability_rests_on_are_in_force() {
    let place = Place::new();
    open::create_file(&place.path()).expect("creates");
    let conn = open::connect(&place.path()).expect("opens");
    open::configure_writer(&conn, &place.path()).expect("configures");
    let pragma = |name: &str| -> String {
        conn.pragma_query_value(None, name, |row| row.get::<_, rusqlite::types::Value>(0))
            .map(|value| format!("{value:?}"))
            .expect("reads")
    };
    assert_eq!(pragma("journal_mode"), "Text(\"wal\")");
    assert_eq!(pragma("synchronous"), "Integer(2)");
    assert_eq!(pragma("mmap_size"), "Integer(0)");
    // A database that cannot be in WAL mode is noticed.
    let memory = Connection::open_in_memory().expect("opens");
    let error = open::configure_writer(&memory, &place.path()).expect_err("refused");
    assert!(error.message().contains("journal_mode"), "{}", error.message());
}

#[test]
fn a_database_of_a_newer_version_is_refused_and_left_alone() {
    let place = Place::new();
    drop(place.open());
    place.outside().execute("INSERT INTO piton_schema VALUES (99)", []).expect("inserts");
    let before = fs::read(place.path()).expect("reads");
    let message = refused(&place);
    assert!(message.contains("99") && message.contains("upgrade"), "{message}");
    assert_eq!(fs::read(place.path()).expect("reads"), before);
}

#[test]
fn tables_of_the_users_may_live_in_the_same_file() {
    let place = Place::new();
    let theirs = "CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1);
        PRAGMA application_id = 7; PRAGMA user_version = 9";
    place.outside().execute_batch(theirs).expect("creates");
    drop(place.open());
    drop(place.open());
    assert_eq!(place.count("SELECT count(*) FROM theirs"), 1);
    assert_eq!(place.count("PRAGMA application_id"), 7, "the header is theirs");
    assert_eq!(place.count("PRAGMA user_version"), 9);
}

#[test]
fn what_cannot_be_a_database_is_refused_with_advice() {
    let place = Place::new();
    let open = |path: &str| {
        let path = place.directory.path().join(path);
        let error = SqliteStore::open(&path, place.clock.clone()).expect_err("refused");
        error.message().to_owned()
    };
    fs::write(place.directory.path().join("garbage.db"), "x".repeat(5000)).expect("writes");
    for (path, said) in [
        ("", "is a directory"),
        ("missing/piton.db", "create it first"),
        ("garbage.db", "not a SQLite database"),
        ("garbage.db/piton.db", "check the path"),
    ] {
        let message = open(path);
        assert!(message.contains(said), "{path}: {message}");
    }
    let error = SqliteStore::open(std::path::Path::new(""), place.clock.clone());
    let message = error.expect_err("refused").message().to_owned();
    assert!(message.contains("empty"), "{message}");
}

#[cfg(unix)]
#[test]
fn a_file_that_cannot_be_written_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    drop(place.open());
    let read_only = fs::Permissions::from_mode(0o400);
    fs::set_permissions(place.path(), read_only).expect("sets");
    // The superuser may write whatever the mode says: then there is nothing to refuse.
    if fs::OpenOptions::new().write(true).open(place.path()).is_err() {
        assert!(refused(&place).contains("read-only"));
    }
    let dangling = place.directory.path().join("dangling.db");
    std::os::unix::fs::symlink("nowhere.db", &dangling).expect("links");
    let error = SqliteStore::open(&dangling, place.clock.clone()).expect_err("refused");
    assert!(error.message().contains("link"), "{}", error.message());
}

/// Everything that makes two databases the same, whatever order and words their SQL was written in.
fn shape(conn: &Connection) -> Vec<String> {
    let mut statement = conn
        .prepare(
            "SELECT t.name || '.' || c.cid || ' ' || c.name || ' ' || c.type || ' ' || c.\"notnull\" || ' ' || c.pk
                || ' ' || c.hidden || ' ' || t.wr || ' ' || t.strict
             FROM pragma_table_list AS t JOIN pragma_table_xinfo(t.name) AS c WHERE t.schema = 'main'
             UNION ALL
             SELECT tbl_name || ' ' || sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL
             ORDER BY 1",
        )
        .expect("prepares");
    let rows = statement.query_map([], |row| row.get(0)).expect("queries");
    rows.collect::<Result<_, _>>().expect("reads")
}

#[test]
fn the_migrations_lead_to_the_schema() {
    let mut migrated = Connection::open_in_memory().expect("opens");
    let tx = migrated.transaction().expect("begins");
    migrate::migrate(&tx, 0).expect("migrates");
    tx.commit().expect("commits");
    let written = Connection::open_in_memory().expect("opens");
    written.execute_batch(migrate::SCHEMA).expect("creates");
    let shape_of_schema = shape(&written);
    assert!(shape_of_schema.len() > 50, "the shape says something");
    assert_eq!(shape(&migrated), shape_of_schema);
}

#[tokio::test]
async fn leases_of_a_process_that_is_gone_are_released_at_open() {
    let place = Place::new();
    let store = place.open();
    let held = create_leased(&store, "running").await;
    create_leased(&store, "pausing").await;
    let asked = store.steer(workflow(), id("pausing"), Action::Pause).await;
    assert!(asked.expect("paused").pause_requested);
    store.create(creation(&["waiting"], false)).await.expect("created");
    let first = claim(&store, 1).await.claimed.remove(0);
    assert_eq!(first.task.claims_without_progress, 1);
    drop(store);

    let store = place.open();
    let answer = claim(&store, 10).await;
    let claimed: Vec<_> = answer
        .claimed
        .iter()
        .map(|run| (run.id.as_str(), run.task.epoch, run.task.claims_without_progress))
        .collect();
    assert_eq!(
        claimed,
        [("running", 2, 1), ("waiting", 2, 2)],
        "at once, and the crash counts against the run"
    );
    let fenced = store.commit(boundary(held, &[0])).await;
    assert!(fenced.is_err(), "the old epoch is over");
    let view = store.instance(workflow(), id("pausing")).await.expect("reads");
    let record = view.expect("exists").record;
    assert_eq!(record.status, InstanceStatus::Paused);
    assert!(!record.pause_requested);
    let logs = store
        .logs(
            PageQuery { instance: record.key, run: 0, after: None, descending: true, limit: 1 },
            LogFilter::default(),
        )
        .await
        .expect("reads");
    assert_eq!((&*logs[0].line.message, logs[0].line.level), ("paused", LogLevel::Info));
    let state = TaskState::Held.as_str();
    let sql = format!("SELECT count(*) FROM piton_task WHERE state = '{state}'");
    assert_eq!(place.count(&sql), 1);
}

#[tokio::test]
async fn after_close_every_call_fails_and_close_succeeds_again() {
    let place = Place::new();
    let store = place.open();
    store.close().await.expect("closes");
    store.close().await.expect("closes again");
    assert!(store.create(creation(&["a"], false)).await.is_err());
    assert!(store.backlog([].into()).await.is_err());
    assert!(!place.directory.path().join("piton.db-wal").exists(), "everything is in the file");
}

#[tokio::test]
async fn hooks_of_a_process_that_is_gone_are_released_at_open_however_far_ahead_they_are() {
    let place = Place::new();
    let store = place.open();
    let hook = NewHook {
        id: "hook_1".into(),
        namespace: default_namespace(),
        name: HookName::from_stored("greet"),
        payload: Json::from_valid_text("1".to_owned()),
        process_at: None,
        retries: Retries::default(),
    };
    store.trigger_hooks(vec![hook]).await.expect("stored");
    // A clock that was set back by a day leaves a lease that ends in a day.
    let mut work = HookWork::new("gone".into(), default_namespace(), Span::from_days(1));
    work.wanted = 1;
    assert_eq!(store.work_hooks(work).await.expect("works").taken.len(), 1);
    drop(store);

    let store = place.open();
    let mut work = HookWork::new("next".into(), default_namespace(), Span::from_millis(1_000));
    work.wanted = 1;
    let taken = store.work_hooks(work).await.expect("works").taken;
    assert_eq!(taken.iter().map(|hook| hook.attempts).collect::<Vec<_>>(), [2], "at once");
}

#[tokio::test]
async fn a_hook_that_cannot_be_read_is_listed_as_damaged_beside_the_others() {
    let place = Place::new();
    let store = place.open();
    let hook = |number: u32| NewHook {
        id: format!("hook_{number}").into(),
        namespace: default_namespace(),
        name: HookName::from_stored("greet"),
        payload: Json::from_valid_text("1".to_owned()),
        process_at: None,
        retries: Retries::default(),
    };
    store.trigger_hooks(vec![hook(1), hook(2)]).await.expect("stored");
    let conn = Connection::open(place.directory.path().join("piton.db")).expect("opens");
    conn.execute("UPDATE piton_hook SET retry_backoff = 'sideways' WHERE id = 'hook_1'", [])
        .expect("damages");
    for status in [None, Some(HookStatus::Pending)] {
        let query = HookQuery { limit: 10, status, ..HookQuery::default() };
        let listed = HookStore::hooks(&*store, query).await.expect("readable");
        let errors = listed.iter().map(|hook| hook.error.as_ref().map(|error| &*error.name));
        assert_eq!(errors.collect::<Vec<_>>(), [None, Some(HOOK_DAMAGED)]);
        assert_eq!((listed[1].name.as_str(), listed[1].status), ("greet", HookStatus::Failed));
    }
    assert!(
        store.hook("hook_1".into()).await.is_err(),
        "asked for by itself it says what is wrong"
    );
}
