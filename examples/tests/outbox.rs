//! A process that is killed between the commit and the hook, or in the hook, and started again.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const OUTBOX: &str = env!("CARGO_BIN_EXE_outbox");

fn start(directory: &Path, args: &[&str]) -> Child {
    let mut command = Command::new(OUTBOX);
    command.args(args).current_dir(directory).stdout(Stdio::piped());
    command.spawn().expect("the example is built with the tests")
}

/// Lets it get as far as this line, and kills it.
fn kill_at(directory: &Path, args: &[&str], line: &str) {
    let mut child = start(directory, args);
    let stdout = child.stdout.take().expect("piped");
    let found = BufReader::new(stdout).lines().any(|said| said.expect("text") == line);
    assert!(found, "it ended without saying {line:?}");
    child.kill().expect("it is ours");
    child.wait().expect("it is ours");
}

fn finish(directory: &Path, args: &[&str]) -> Vec<String> {
    let output = start(directory, args).wait_with_output().expect("it is ours");
    assert!(output.status.success());
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn a_hook_survives_kill_nine_between_its_commit_and_its_execution() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    kill_at(directory, &["--hang", "commit", "ada"], "committed");
    kill_at(directory, &["--hang", "commit", "bob"], "committed");
    let said = finish(directory, &["cy"]);
    let mut welcomed: Vec<&String> = said.iter().filter(|line| line.contains("welcome,")).collect();
    welcomed.sort();
    assert_eq!(
        welcomed,
        ["welcome, ada (attempt 1)", "welcome, bob (attempt 1)", "welcome, cy (attempt 1)"]
    );
    assert_eq!(said.last().expect("it says something"), "3 users, all welcomed");
    assert_eq!(finish(directory, &[]), ["3 users, all welcomed"], "nothing is left");
}

#[test]
fn a_hook_whose_process_is_killed_in_its_handler_runs_again_and_counts() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    kill_at(directory, &["--hang", "handler", "ada"], "about to welcome ada");
    kill_at(directory, &["--hang", "handler"], "about to welcome ada");
    assert_eq!(finish(directory, &[]), ["welcome, ada (attempt 3)", "1 users, all welcomed"]);
}

#[test]
fn a_hook_that_kills_its_process_is_given_up_and_takes_nobody_with_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let mut users: Vec<String> = (0..40).map(|number| format!("user{number}")).collect();
    users.insert(10, "killer".to_owned());
    let mut crashes = 0;
    let last = loop {
        let mut args = vec!["--abort", "killer"];
        // They sign up once; what is left then is found by every start.
        args.extend(users.iter().map(String::as_str).filter(|_| crashes == 0));
        let output = start(directory, &args).wait_with_output().expect("it is ours");
        if output.status.success() {
            break String::from_utf8_lossy(&output.stdout).into_owned();
        }
        crashes += 1;
        assert!(crashes <= 6, "it is never given up");
    };
    assert_eq!(crashes, 6, "three times beside others, three times as a suspect");
    let given_up: Vec<&str> = last.lines().filter(|line| line.starts_with("given up")).collect();
    assert_eq!(given_up.len(), 1, "{last}");
    assert!(given_up[0].contains("killer") && given_up[0].contains("taken 6 times in a row"));
    assert_eq!(
        finish(directory, &[]),
        [given_up[0]],
        "everybody else is welcomed, and nothing is left"
    );
}
