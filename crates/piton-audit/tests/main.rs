//! The audit sees each kind of damage, and none where there is none.
//!
//! The schema is the store's own; the rows are written by hand, and then damaged one statement at a time.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::path::PathBuf;

use piton_audit::Report;
use rusqlite::Connection;
use sqlx::{AssertSqlSafe, Connection as _, Executor, PgConnection};
use tempfile::TempDir;

const SCHEMA: &str = include_str!("../../piton/src/store/sqlite/schema.sql");
const POSTGRES_SCHEMA: &str = include_str!("../../piton/src/store/postgres/schema.sql");

/// The server to test on; without it, only SQLite is tested.
const URL: &str = "PITON_TEST_POSTGRES_URL";

/// Four instances with something of everything: complete, waiting for an event, sleeping, and paused.
const HEALTHY: &str = "
    INSERT INTO piton_instance
        (key, workflow_name, instance_id, status, run_number, created_at, updated_at, started_at, completed_at, params, output)
    VALUES
        (1, 'shop', 'complete', 'complete', 1, 10, 90, 11, 90, '1', '2'),
        (2, 'shop', 'waits', 'waiting', 0, 10, 20, 11, NULL, '1', NULL),
        (3, 'shop', 'sleeps', 'waiting', 0, 10, 20, 11, NULL, '1', NULL),
        (4, 'shop', 'paused', 'paused', 0, 10, 20, 11, NULL, '1', NULL);
    INSERT INTO piton_task
        (instance_key, workflow_name, run_number, kind, state, run_at, lease_until, epoch, claims_without_progress, pause_requested)
    VALUES
        (2, 'shop', 0, 'wake', 'pending', 5000, NULL, 1, 0, false),
        (3, 'shop', 0, 'wake', 'pending', 6000, NULL, 1, 0, false),
        (4, 'shop', 0, 'wake', 'held', 6000, NULL, 1, 0, false);
    INSERT INTO piton_step
        (instance_key, run_number, position, seq, name, type, status, attempts, attempts_max, next_retry_at, wake_at, event_type,
         created_at, started_at, updated_at, result, error)
    VALUES
        (1, 0, 1, 1, 'old', 'do', 'errored', 2, 2, NULL, NULL, NULL, 12, 12, 12, NULL, '{}'),
        (1, 1, 1, 1, 'charge', 'do', 'completed', 1, 6, NULL, NULL, NULL, 12, 12, 13, '1', NULL),
        (1, 1, 2, 5, 'approval', 'waitForEvent', 'completed', 0, NULL, NULL, 80, 'approved', 14, 14, 30, '{}', NULL),
        (1, 1, 3, 6, 'nap', 'sleep', 'completed', 0, NULL, NULL, 40, NULL, 31, 31, 41, NULL, NULL),
        (2, 0, 1, 1, 'approval', 'waitForEvent', 'waiting', 0, NULL, NULL, 5000, 'approved', 12, 12, 12, NULL, NULL),
        (3, 0, 1, 1, 'nap', 'sleep', 'waiting', 0, NULL, NULL, 6000, NULL, 12, 12, 12, NULL, NULL);
    INSERT INTO piton_event (instance_key, run_number, seq, id, type, created_at, delivered_at, consumed_by, payload) VALUES
        (1, 1, 1, 'evt_1', 'approved', 20, 30, 'approval', '1'),
        (1, 1, 2, 'evt_2', 'approved', 21, NULL, NULL, '1'),
        (2, 0, 1, 'evt_3', 'declined', 22, NULL, NULL, '1');
    INSERT INTO piton_log (instance_key, run_number, seq, id, level, category, is_replay, created_at, message) VALUES
        (1, 1, 1, 'log_1', 'info', 'system', false, 11, 'claimed'),
        (1, 1, 2, 'log_2', 'info', 'user', false, 12, 'charged');
    INSERT INTO piton_hook
        (id, namespace, name, status, attempts, attempts_max, retry_delay_ms, retry_backoff, due_at, epoch, lease_owner,
         created_at, updated_at, payload, error, failures, claims)
    VALUES
        ('hook_1', 'app', 'paid', 'pending', 1, 2, 10, 'constant', 90, 1, NULL, 10, 20, '1', '{}', 1, 0),
        ('hook_2', 'app', 'paid', 'processing', 2, 1, 10, 'constant', 90, 2, 'me', 10, 20, '1', NULL, 1, 1),
        ('hook_3', 'app', 'paid', 'completed', 1, 1, 10, 'constant', NULL, 1, NULL, 10, 20, '1', NULL, 0, 0),
        ('hook_4', 'app', 'paid', 'failed', 1, 1, 10, 'constant', NULL, 1, NULL, 10, 20, '1', '{}', 1, 0);";

fn database(damage: &str) -> (TempDir, PathBuf) {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("test.db");
    let connection = Connection::open(&path).expect("opened");
    connection.execute_batch(SCHEMA).expect("the schema");
    connection.execute_batch(HEALTHY).expect("the rows");
    connection.execute_batch(damage).expect("the damage");
    (directory, path)
}

/// Does some damage, and expects the audit to find exactly these invariants broken, on either kind of database.
#[track_caller]
fn check(damage: &str, broken: &[&str]) {
    check_sqlite(damage, broken);
    check_postgres(damage, broken);
}

#[track_caller]
fn check_sqlite(damage: &str, broken: &[&str]) {
    let (_directory, path) = database(damage);
    check_report(&piton_audit::audit_file(&path).expect("audited"), damage, broken);
}

#[track_caller]
fn check_postgres(damage: &str, broken: &[&str]) {
    let Ok(url) = std::env::var(URL) else { return };
    let unique = RandomState::new().build_hasher().finish();
    let schema = format!("piton_audit_{}_{unique:x}", std::process::id());
    // As if the rows had got their numbers from the sequences.
    let numbers = "SELECT setval('piton_event_seq_seq', 2), setval('piton_log_seq_seq', 2)";
    execute(
        &url,
        format!(
            "CREATE SCHEMA {schema}; SET search_path TO {schema}; {POSTGRES_SCHEMA}; {HEALTHY}; {numbers}; {damage}"
        ),
    );
    let join = if url.contains('?') { '&' } else { '?' };
    let report = piton_audit::audit(&format!("{url}{join}schema={schema}"));
    execute(&url, format!("DROP SCHEMA {schema} CASCADE"));
    check_report(&report.expect("audited"), damage, broken);
}

#[track_caller]
fn check_report(report: &Report, damage: &str, broken: &[&str]) {
    let found: Vec<&str> = report.findings.iter().map(|finding| finding.invariant).collect();
    assert_eq!(found, broken, "{damage}\n{report}");
    assert_eq!(report.questions, 29);
}

fn execute(url: &str, sql: String) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let mut connection = PgConnection::connect(url).await.expect("connected");
        connection.execute(AssertSqlSafe(sql)).await.expect("executed");
    });
}

#[test]
fn a_healthy_database_is_clean() {
    check("", &[]);
}

#[test]
fn each_damage_is_found_as_what_it_is() {
    check("UPDATE piton_step SET name = 'charge' WHERE name = 'nap' AND instance_key = 1", &["I1"]);
    check("UPDATE piton_step SET result = NULL WHERE name = 'charge'", &["I1"]);
    check("UPDATE piton_task SET state = 'leased' WHERE instance_key = 2", &["I2"]);
    check("UPDATE piton_event SET delivered_at = 9 WHERE id = 'evt_3'", &["I3"]);
    check("UPDATE piton_event SET consumed_by = 'charge' WHERE id = 'evt_1'", &["I3", "I3"]);
    check("DELETE FROM piton_task WHERE instance_key = 2", &["I4"]);
    check("UPDATE piton_task SET run_number = 1 WHERE instance_key = 2", &["I4"]);
    check("UPDATE piton_task SET run_at = 5001 WHERE instance_key = 2", &["I4"]);
    check("UPDATE piton_event SET type = 'approved' WHERE id = 'evt_3'", &["I4"]);
    check("UPDATE piton_instance SET completed_at = NULL WHERE key = 1", &["I6"]);
    check("UPDATE piton_instance SET output = NULL WHERE key = 1", &["I6"]);
    check("UPDATE piton_task SET state = 'pending' WHERE instance_key = 4", &["I7"]);
    check(
        "UPDATE piton_step SET updated_at = 39 WHERE name = 'nap' AND instance_key = 1",
        &["I10"],
    );
    check(
        "UPDATE piton_step SET wake_at = NULL WHERE name = 'approval' AND instance_key = 1",
        &["I10"],
    );
    check("UPDATE piton_step SET attempts = 7 WHERE name = 'charge'", &["I11"]);
    check("UPDATE piton_step SET next_retry_at = 7 WHERE name = 'charge'", &["I11"]);
    check("UPDATE piton_log SET run_number = 2", &["I12"]);
    check("UPDATE piton_step SET seq = 1 WHERE name = 'nap' AND instance_key = 1", &["I15"]);
    check("UPDATE piton_hook SET due_at = NULL WHERE id = 'hook_1'", &["I16"]);
    check("UPDATE piton_hook SET due_at = 90 WHERE id = 'hook_4'", &["I16"]);
    check("UPDATE piton_hook SET lease_owner = NULL WHERE id = 'hook_2'", &["I16"]);
    check("UPDATE piton_hook SET lease_owner = 'me' WHERE id = 'hook_3'", &["I16"]);
    check("UPDATE piton_hook SET attempts = 0 WHERE id = 'hook_3'", &["I16"]);
    check("UPDATE piton_hook SET error = NULL WHERE id = 'hook_4'", &["I16"]);
    check("UPDATE piton_hook SET attempts = 2, failures = 2 WHERE id = 'hook_1'", &["I16"]);
    check("UPDATE piton_hook SET claims = 1 WHERE id = 'hook_1'", &["I16"]);
    check("UPDATE piton_hook SET claims = 0 WHERE id = 'hook_2'", &["I16"]);
    check("UPDATE piton_hook SET failures = 2 WHERE id = 'hook_4'", &["I16"]);
    check("UPDATE piton_step SET status = 'lost' WHERE name = 'old'", &["I18"]);
}

#[test]
fn numbers_that_only_the_one_writer_of_a_file_gives_are_checked_there() {
    check_sqlite("DELETE FROM piton_event WHERE id = 'evt_1'", &["I3", "I3"]);
    check_sqlite("UPDATE piton_event SET seq = 3 WHERE id = 'evt_1'", &["I3", "I3"]);
    check_sqlite("DELETE FROM piton_log WHERE seq = 1", &["I18"]);
    check_postgres("DELETE FROM piton_event WHERE id = 'evt_1'", &["I3"]);
    check_postgres("SELECT setval('piton_event_seq_seq', 1)", &["I3"]);
    check_postgres("SELECT setval('piton_log_seq_seq', 1)", &["I18"]);
}

#[test]
fn an_index_that_is_not_whole_is_found() {
    check_postgres(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'piton_task_new'::regclass",
        &["file"],
    );
}

#[test]
fn an_audit_leaves_what_a_crash_left() {
    let (directory, path) = database("");
    // As a process leaves it that is killed: everything is still in the log.
    let connection = Connection::open(&path).expect("opened");
    connection.pragma_update(None, "journal_mode", "wal").expect("a log");
    connection
        .execute_batch("UPDATE piton_instance SET updated_at = 91 WHERE key = 1")
        .expect("written");
    let crashed = directory.path().join("crashed.db");
    let (log, crashed_log) =
        (directory.path().join("test.db-wal"), directory.path().join("crashed.db-wal"));
    fs::copy(&path, &crashed).expect("copied");
    fs::copy(log, &crashed_log).expect("copied");
    let before = (fs::read(&crashed).expect("read"), fs::read(&crashed_log).expect("read"));
    assert!(piton_audit::audit_file(&crashed).expect("audited").is_clean());
    assert!((fs::read(&crashed).expect("read"), fs::read(&crashed_log).expect("read")) == before);
}

#[test]
fn the_same_id_twice_is_found_where_no_index_prevents_it() {
    check(
        "DROP INDEX piton_instance_by_id; UPDATE piton_instance SET instance_id = 'waits' WHERE key = 3",
        &["I13"],
    );
}

#[test]
fn the_report_says_what_is_broken_and_where() {
    let (_directory, path) = database("DELETE FROM piton_task WHERE instance_key = 2");
    let report = piton_audit::audit_file(&path).expect("audited").to_string();
    assert!(report.contains("I4 is broken 1 times: a live run has a task"), "{report}");
    assert!(report.contains("    shop/waits is waiting\n"), "{report}");
    assert!(report.contains("           4 instances\n"), "{report}");
}

#[test]
fn a_file_that_is_no_database_of_ours_is_an_error_that_names_it() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("other.db");
    let error = piton_audit::audit_file(&path).expect_err("there is no such file").to_string();
    assert!(error.contains("other.db"), "{error}");
    drop(Connection::open(&path).expect("made"));
    let error = piton_audit::audit_file(&path).expect_err("no tables").to_string();
    assert!(error.contains("piton_instance") || error.contains("piton_step"), "{error}");
    let url = "postgres://ada:secret@127.0.0.1:1/nowhere";
    let error = piton_audit::audit(url).expect_err("there is no such server").to_string();
    assert!(error.contains("127.0.0.1:1") && !error.contains("secret"), "{error}");
}
