//! What a user types and sees, from the first order to the last error.

use crate::support::{Database, Server, assert_snapshot, normal, on_both_stores, run};

on_both_stores!(
    an_order_from_creation_to_history,
    steering_an_instance,
    a_failure_and_why,
    a_hook_and_what_became_of_it,
    refusals_say_what_to_do_next,
    all_pages_are_listed,
    params_come_from_files_and_long_histories_are_whole_with_all,
);

const CREATE: [&str; 8] = [
    "instances",
    "create",
    "-w",
    "order",
    "-i",
    "order-1",
    "--params",
    r#"{"item": "rope", "cents": 4200}"#,
];
const GET: [&str; 6] = ["instances", "get", "-w", "order", "-i", "order-1"];

fn check(name: &str, text: &str) {
    assert_snapshot(name, &normal(text));
}

fn an_order_from_creation_to_history(database: Database) {
    let server = Server::start(database);
    let mut story = server.transcript(&[
        "workflows list",
        "instances list",
        r#"instances create -w order -i order-1 --params '{"item": "rope", "cents": 4200}'"#,
    ]);
    server.until(&GET, "waiting for event");
    story += &server.transcript(&[
        "instances get -w order -i order-1",
        "instances get -w order -i order-1 --full",
        "instances list -w order",
        "instances list --status waiting",
        "instances list --brief",
        "instances result -w order -i order-1",
        "instances history -w order -i order-1",
        "instances send-event -w order -i order-1 -t aproved",
        r#"-q instances send-event -w order -i order-1 -t approved --payload '{"by": "Ada"}'"#,
        "-q instances result -w order -i order-1 --wait",
        "instances get -w order -i order-1",
        "instances get -w order -i order-1 --full",
        "instances list -w order",
        "instances logs -w order -i order-1 --log-category orders",
    ]);
    check("order", &story);
    // Two steps run side by side, and either may start first.
    let history = server.run(&["instances", "history", "-w", "order", "-i", "order-1"]).stdout;
    let mut lines: Vec<String> = normal(&history).lines().map(str::to_owned).collect();
    lines.sort();
    assert_snapshot("order-history-sorted", &(lines.join("\n") + "\n"));
}

fn steering_an_instance(database: Database) {
    let server = Server::start(database);
    server.run(&CREATE);
    server.until(&GET, "waiting for event");
    let steered = server.transcript(&[
        "instances pause -w order -i order-1",
        "instances get -w order -i order-1",
        "instances list -w order --status paused",
        "instances send-event -w order -i order-1 -t other",
    ]);
    // Whether it is active or waits again depends on how fast the runner is.
    let resumed = server.run(&["instances", "resume", "-w", "order", "-i", "order-1"]);
    assert!(resumed.stdout.starts_with("order-1 is "), "{}", resumed.stdout);
    let steered = steered
        + &server.transcript(&[
            "instances terminate -w order -i order-1",
            "instances get -w order -i order-1",
            "instances pause -w order -i order-1",
            "instances resume -w order -i order-1",
            "instances result -w order -i order-1",
            r#"instances send-event -w order -i order-1 -t approved --payload '{"by": "Ada"}'"#,
        ]);
    let restarted = server.run(&["instances", "restart", "-w", "order", "-i", "order-1"]);
    assert!(restarted.stdout.ends_with(", run 1\n"), "{}", restarted.stdout);
    server.until(&GET, "waiting for event");
    let after = server.transcript(&[
        "instances get -w order -i order-1",
        "instances history -w order -i order-1 --run 0",
        "instances history -w order -i order-1 --run 7",
    ]);
    check("steer", &(steered + &after));
}

fn a_failure_and_why(database: Database) {
    let server = Server::start(database);
    let ops = r#"{"ops": [
        {"op": "do", "name": "call", "fail": 1, "message": "busy", "value": {"n": 1},
         "config": {"retries": {"limit": 3, "delay": "10 ms", "backoff": "constant"}}},
        {"op": "log", "level": "warn", "message": "about to fail\u001b[2J", "data": {"n": 1}, "category": "try"},
        {"op": "throw", "message": "no \u001b[31mway\nout", "name": "MyError"}]}"#;
    let create = ["instances", "create", "-w", "playground", "-i", "try-1", "--params", "-"];
    let created = run(server.piton(&create), ops);
    assert_eq!(created.stdout, "try-1\n", "{}", created.stderr);
    let waited = server.run(&["instances", "result", "-w", "playground", "-i", "try-1", "--wait"]);
    assert_eq!(waited.exit(), 1);
    check(
        "failure",
        &server.transcript(&[
            "instances result -w playground -i try-1",
            "instances get -w playground -i try-1",
            "instances list --status errored",
            "instances history -w playground -i try-1 --include-logs --log-category try",
            "instances logs -w playground -i try-1 --log-level warn --log-category try",
            "instances logs -w playground -i try-1 --log-category nobody",
        ]),
    );
}

fn a_hook_and_what_became_of_it(database: Database) {
    let server = Server::start(database);
    let empty = server.transcript(&[
        "hooks list",
        "hooks list --status failed",
        "hooks list --namespace nope --name order.paid",
    ]);
    let ops = r#"{"ops": [{"op": "throw", "message": "no way"}]}"#;
    server.run(&["-q", "i", "create", "-w", "playground", "-i", "try-1", "-p", ops]);
    let told = server.until(&["hooks", "list", "--status", "completed"], "on_instance_errored");
    let id = told.stdout.lines().nth(1).and_then(|line| line.split_whitespace().next());
    let id = id.expect("an id").to_owned();
    let seen = server.transcript(&[
        "hooks list",
        &format!("hooks get -i {id}"),
        &format!("hooks get -i {id} --full"),
        &format!("hooks retry -i {id}"),
        "hooks get -i hook_none",
    ]);
    check("hooks", &(empty + &seen).replace(&id, "HOOK"));
}

fn refusals_say_what_to_do_next(database: Database) {
    let server = Server::start(database);
    server.run(&CREATE);
    check(
        "refusals",
        &server.transcript(&[
            "instances list -w ordre",
            "instances get -w order -i order-9",
            r#"instances create -w order -i order-1 --params '{"item": "rope", "cents": 4200}'"#,
            r#"instances create -w order --params '{"item": 7}'"#,
            "instances create -w order",
            "instances create -w order -i 'not an id'",
            "instances send-event -w order -i order-1 -t 'no type'",
            r#"instances send-event -w order -i order-1 -t approved --payload '{by: Ada}'"#,
            "instances logs -w order -i order-9 --follow",
            "instances watch -w order -i order-9",
            "instances result -w order -i order-9 --wait 1s",
        ]),
    );
}

fn all_pages_are_listed(database: Database) {
    let server = Server::start(database);
    for n in 0..3 {
        server.run(&["instances", "create", "-w", "order", "-i", &format!("o-{n}"), "-p", "null"]);
    }
    let made = server.run(&["instances", "list", "-w", "order", "--brief"]);
    assert!(made.stdout.is_empty(), "null is no order: {}", made.stdout);
    for n in 0..3 {
        let params = format!(r#"{{"item": "rope {n}", "cents": {n}}}"#);
        let id = format!("o-{n}");
        assert_eq!(server.run(&["i", "create", "-w", "order", "-i", &id, "-p", &params]).exit(), 0);
    }
    let page = server.run(&["i", "ls", "-w", "order", "-b", "-n", "2"]);
    assert_eq!(page.stdout.lines().count(), 3, "{}", page.stdout);
    assert!(page.stderr.contains("--all"), "{}", page.stderr);
    let all = server.run(&["i", "ls", "-w", "order", "-b", "-a"]);
    let ids: Vec<&str> =
        all.stdout.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(ids, ["o-2", "o-1", "o-0"]);
    assert_eq!(all.stderr, "");
    let none = server.run(&["i", "ls", "-w", "order", "--since", "0s"]);
    assert_eq!((none.exit(), none.stdout.as_str()), (0, ""));
    assert!(none.stderr.contains("no instances of `order` in that time"), "{}", none.stderr);
}

fn params_come_from_files_and_long_histories_are_whole_with_all(database: Database) {
    let server = Server::start(database);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("params.json");
    let ops: Vec<String> =
        (0..130).map(|n| format!(r#"{{"op": "do", "name": "step {n}"}}"#)).collect();
    std::fs::write(&path, format!(r#"{{"ops": [{}]}}"#, ops.join(","))).expect("written");
    let params = format!("@{}", path.display());
    let created = server.run(&["i", "create", "-w", "playground", "-i", "many", "-p", &params]);
    assert_eq!(created.exit(), 0, "{}", created.stderr);
    server.run(&["-q", "i", "result", "-w", "playground", "-i", "many", "--wait"]);
    let history = |flags: &[&str]| {
        let mut args = vec!["i", "history", "-w", "playground", "-i", "many"];
        args.extend(flags);
        let ran = server.run(&args);
        let steps = ran.stdout.lines().filter(|line| line.contains("  do  ")).count();
        (steps, ran.stderr.contains("--all"))
    };
    assert_eq!(history(&[]), (100, true));
    assert_eq!(history(&["--all"]), (130, false));
    assert_eq!(history(&["--all", "--include-logs"]), (130, false));
}
