//! Commands that go on until the instance ends, also when the server does not.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use crate::support::{Database, Server};

const LOGS: [&str; 6] = ["instances", "logs", "-w", "order", "-i", "order-1"];
const PARAMS: &str = r#"{"item": "rope", "cents": 4200}"#;
const APPROVE: [&str; 10] = [
    "instances",
    "send-event",
    "-w",
    "order",
    "-i",
    "order-1",
    "-t",
    "approved",
    "--payload",
    r#"{"by": "Ada"}"#,
];

fn order(server: &Server) {
    let create = ["instances", "create", "-w", "order", "-i", "order-1", "--params", PARAMS];
    assert_eq!(server.run(&create).exit(), 0);
    server.until(&["instances", "get", "-w", "order", "-i", "order-1"], "waiting for event");
}

#[test]
fn a_followed_log_has_each_line_once_across_a_restart_of_the_server_and_ends_with_the_instance() {
    let mut server = Server::start(Database::sqlite());
    order(&server);
    let mut command = server.piton(&LOGS);
    command.args(["--follow", "--retries", "0"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("piton starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut seen = vec![lines.next().expect("a first line").expect("UTF-8")];
    server.kill_and_start();
    assert_eq!(server.run(&APPROVE).exit(), 0);
    seen.extend(lines.map(|line| line.expect("UTF-8")));
    let ended = child.wait().expect("it ends");
    let mut notes = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut notes).expect("UTF-8");
    assert!(ended.success(), "{notes}");
    assert!(notes.contains("the instance is complete"), "{notes}");
    let whole: Vec<String> = server.run(&LOGS).stdout.lines().map(str::to_owned).collect();
    assert_eq!(seen, whole);
    assert!(seen.iter().any(|line| line.contains("approved by Ada")), "{seen:#?}");
}

#[test]
fn a_wait_for_a_result_outlives_the_server() {
    let mut server = Server::start(Database::sqlite());
    order(&server);
    let mut command =
        server.piton(&["instances", "result", "-w", "order", "-i", "order-1", "--wait", "10m"]);
    command.args(["--retries", "0"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("piton starts");
    let mut notes = BufReader::new(child.stderr.take().expect("piped"));
    let mut first = String::new();
    notes.read_line(&mut first).expect("UTF-8");
    assert!(first.contains("waiting for its end"), "{first}");
    server.kill_and_start();
    assert_eq!(server.run(&APPROVE).exit(), 0);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"shipped\""));
}

#[test]
fn watching_tells_each_change_and_ends_with_the_instance() {
    let server = Server::start(Database::sqlite());
    order(&server);
    let mut command = server.piton(&["instances", "watch", "-w", "order", "-i", "order-1"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("piton starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let waiting = |line: &String| line.contains("waiting for event `approved` in `approval`");
    assert!(lines.by_ref().map(|line| line.expect("UTF-8")).any(|line| waiting(&line)));
    server.run(&APPROVE);
    let rest: Vec<String> = lines.map(|line| line.expect("UTF-8")).collect();
    assert!(child.wait().expect("it ends").success());
    assert!(rest.last().is_some_and(|line| line.contains("complete")), "{rest:#?}");
    assert!(rest.iter().any(|line| line.contains("approved by Ada")), "{rest:#?}");
}

#[test]
fn whoever_reads_only_the_beginning_is_no_error() {
    let server = Server::start(Database::sqlite());
    order(&server);
    let mut command = server.piton(&LOGS);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
