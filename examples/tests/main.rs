//! Runs every example as a user would, in an empty directory, and checks what it says.

mod kill_nine;
mod many_workers;
mod outbox;
mod readme;

use std::path::Path;
use std::process::{Command, Output};

/// Runs a program in a directory of its own until it ends.
fn run(program: &str, directory: &Path, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .current_dir(directory)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// What a program that must succeed prints.
#[track_caller]
fn printed(program: &str) -> String {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output = run(program, directory.path(), &[]);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {}\n{printed}{errors}", output.status);
    printed
}

#[track_caller]
fn assert_lines(printed: &str, expected: &[&str]) {
    assert_eq!(printed.lines().collect::<Vec<_>>(), expected, "{printed}");
}

#[test]
fn an_order_is_charged_approved_labelled_and_mailed_once() {
    let printed = printed(env!("CARGO_BIN_EXE_order_with_approval"));
    for line in [
        "charging 4200 cents for order-123",
        "printing the label of order-123",
        "mailing the receipt of order-123",
        r#"    approved_by: "Ada","#,
        r#"    payment: "payment-of-order-123","#,
    ] {
        assert_eq!(printed.lines().filter(|l| *l == line).count(), 1, "{line}\n{printed}");
    }
}

#[test]
fn a_flaky_step_is_retried_and_a_hopeless_one_is_cleaned_up_after() {
    let printed = printed(env!("CARGO_BIN_EXE_retry_then_give_up"));
    assert_lines(
        &printed,
        &[
            "flaky: goods reserved",
            "flaky: attempt 1",
            "flaky: attempt 2",
            "flaky: attempt 3",
            "flaky: paid at attempt 3",
            "declined: goods reserved",
            "declined: attempt 1",
            "declined: goods released",
            "declined: asked for another card",
            "dead: goods reserved",
            "dead: attempt 1",
            "dead: attempt 2",
            "dead: attempt 3",
            "dead: attempt 4",
            "dead: goods released",
            "dead: gave up: the gateway is busy",
        ],
    );
}

#[test]
fn a_hundred_steps_run_at_the_same_time() {
    let printed = printed(env!("CARGO_BIN_EXE_fan_out"));
    assert_lines(&printed, &["100 measured, 86 scaled, 86 uploaded"]);
}

#[test]
fn a_row_of_the_users_is_there_exactly_if_its_step_is() {
    let printed = printed(env!("CARGO_BIN_EXE_step_transaction"));
    assert_lines(
        &printed,
        &[
            "5000 cents: StepTransaction: CHECK constraint failed: cents >= 0",
            "10 transfers, bob has 700 cents",
        ],
    );
}

#[test]
fn a_host_with_one_alarm_processes_its_hooks_in_time() {
    let printed = printed(env!("CARGO_BIN_EXE_hooks_by_alarm"));
    assert_lines(&printed, &["reminder: drink", "reminder: stretch", "nothing left to wait for"]);
}

#[test]
fn a_process_that_crashed_goes_on_where_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_crash_and_resume");
    let files = ["work.db", "witness.txt"];
    let crash = [files[0], files[1], "--instances", "2", "--steps", "6", "--crash-after", "7"];
    let crashed = run(program, directory.path(), &crash);
    assert!(!crashed.status.success(), "it should have crashed");
    let before = std::fs::read_to_string(directory.path().join("witness.txt")).unwrap();
    assert!(before.lines().count() >= 7, "{before}");
    assert!(!before.contains("done"), "{before}");

    let resumed = run(program, directory.path(), &[files[0], files[1], "--instances", "2"]);
    let printed = String::from_utf8_lossy(&resumed.stdout);
    assert!(resumed.status.success(), "{printed}");
    assert!(printed.ends_with("all 2 instances are complete\n"), "{printed}");
    let witness = std::fs::read_to_string(directory.path().join("witness.txt")).unwrap();
    kill_nine::Witnessed::read(&witness).check_that_no_acknowledged_step_ran_again();
}
