//! What must never happen: a secret on the wrong wire or the screen, a call repeated that must not be.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};

use crate::support::{Database, Server, piton, run};

/// A server that gives prepared answers, one connection each, and tells what it was asked.
struct Mock {
    address: String,
    asked: Receiver<String>,
}

impl Mock {
    fn answering(answers: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let (tell, asked) = channel();
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().expect("a caller");
                // The test may have seen enough.
                let _ = tell.send(request(&mut stream));
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        Self { address, asked }
    }

    fn piton(&self, args: &[&str]) -> Command {
        let mut command = piton(args);
        command.env("PITON_BASE_URL", format!("http://{}/api/workflows", self.address));
        command
    }
}

fn request(stream: &mut TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).expect("a request") > 0, "the caller went away");
    }
    let length = head.to_ascii_lowercase();
    let length =
        length.split("content-length: ").nth(1).and_then(|l| l.lines().next()?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).expect("a body");
    head + &String::from_utf8(body).expect("UTF-8")
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    )
}

const NONE: &str = r#"{"workflows": []}"#;

#[test]
fn headers_do_not_follow_a_redirect_to_another_host() {
    let other = Mock::answering(vec![answer("200 OK", "", NONE)]);
    let location = format!("Location: http://{}/api/workflows\r\n", other.address);
    let first = Mock::answering(vec![answer("307 Temporary Redirect", &location, "")]);
    let mut command = first.piton(&["workflows", "list", "-H", "Authorization: Bearer s3cret"]);
    command.env("PITON_HEADERS", "X-Also: s3cret");
    assert_eq!(run(command, "").exit(), 0);
    let asked = first.asked.recv().expect("it was asked");
    assert_eq!(asked.matches("s3cret").count(), 2, "{asked}");
    let asked = other.asked.recv().expect("it was asked");
    assert!(!asked.contains("s3cret"), "{asked}");
}

#[test]
fn headers_stay_on_a_redirect_within_the_host_but_nothing_is_posted_anew() {
    let moved = answer("308 Permanent Redirect", "Location: /new/workflows\r\n", "");
    let server = Mock::answering(vec![moved.clone(), answer("200 OK", "", NONE), moved]);
    let list = server.piton(&["workflows", "list", "-H", "Authorization: Bearer s3cret"]);
    assert_eq!(run(list, "").exit(), 0);
    server.asked.recv().expect("it was asked");
    let asked = server.asked.recv().expect("it was asked again");
    assert!(asked.starts_with("GET /new/workflows ") && asked.contains("s3cret"), "{asked}");
    let pause = run(server.piton(&["instances", "pause", "-w", "w", "-i", "i"]), "");
    assert_eq!(pause.exit(), 3);
    assert!(pause.stderr.contains("has moved"), "{}", pause.stderr);
}

#[test]
fn only_what_is_safe_is_repeated() {
    let busy = answer(
        "503 Service Unavailable",
        "Retry-After: 0\r\n",
        r#"{"message": "busy", "code": "OVERLOADED"}"#,
    );
    let created = answer("200 OK", "", r#"{"id": "made-up", "details": {"status": "active"}}"#);
    let server = Mock::answering(vec![busy.clone(), busy.clone(), created, busy.clone(), busy]);
    // The server makes up the id, the command a key: it can be repeated.
    let create = run(server.piton(&["instances", "create", "-w", "w", "--params", "[1.10]"]), "");
    assert_eq!((create.exit(), create.stdout.as_str()), (0, "made-up\n"), "{}", create.stderr);
    let asked: Vec<String> = server.asked.iter().take(3).collect();
    let key = |asked: &String| {
        asked
            .to_ascii_lowercase()
            .split("idempotency-key: ")
            .nth(1)?
            .lines()
            .next()
            .map(str::to_owned)
    };
    let keys: Vec<Option<String>> = asked.iter().map(key).collect();
    assert!(keys[0].is_some() && keys[0] == keys[1] && keys[1] == keys[2], "{keys:?}");
    assert!(asked[0].ends_with(r#"{"params":[1.10]}"#), "{}", asked[0]);
    // A restart may not.
    let restart = run(server.piton(&["instances", "restart", "-w", "w", "-i", "i"]), "");
    assert_eq!(restart.exit(), 1);
    assert!(restart.stderr.contains("try again"), "{}", restart.stderr);
    // Nor may anything with --retries 0.
    let list = run(server.piton(&["--retries", "0", "workflows", "list"]), "");
    assert_eq!(list.exit(), 1);
}

#[test]
fn what_the_server_says_cannot_steer_the_terminal() {
    let evil = r#"{"workflows": [{"name": "\u001b]0;owned\u0007\u009b2J\u202e"}]}"#;
    let refused = r#"{"message": "no\u001b[2J", "code": "X\u0007"}"#;
    let server =
        Mock::answering(vec![answer("200 OK", "", evil), answer("400 Bad Request", "", refused)]);
    for _ in 0..2 {
        let ran = run(server.piton(&["workflows", "list"]), "");
        let acts = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!ran.stdout.contains(acts) && !ran.stderr.contains(acts), "{:?}", ran.stdout);
    }
}

#[test]
fn a_server_that_is_not_there_or_not_piton_ends_with_3() {
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("one");
    let url = format!("http://{nobody}/api/workflows");
    let list = ["--retries", "1", "--base-url", &url, "workflows", "list"];
    let ran = run(piton(&list), "");
    assert_eq!(ran.exit(), 3);
    assert!(
        ran.stderr.contains("cannot reach") && ran.stderr.contains("base URL"),
        "{}",
        ran.stderr
    );

    let page = Mock::answering(vec![answer("200 OK", "", "<html>Welcome</html>")]);
    let ran = run(page.piton(&["workflows", "list"]), "");
    assert_eq!(ran.exit(), 3);
    assert!(ran.stderr.contains("not Piton's"), "{}", ran.stderr);

    // Accepts, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}/api", silent.local_addr().expect("one"));
    let slow = ["--timeout", "50ms", "--retries", "0", "--base-url", &url, "workflows", "list"];
    let ran = run(piton(&slow), "");
    assert_eq!(ran.exit(), 3);
    assert!(ran.stderr.contains("within 50 ms"), "{}", ran.stderr);
}

#[test]
fn tokens_come_from_flags_the_environment_and_profiles_and_are_never_printed() {
    let server = Server::start_with(Database::sqlite(), &["--token", "s3cret-token"]);
    let refused = server.run(&["workflows", "list"]);
    assert_eq!(refused.exit(), 1);
    assert!(
        refused.stderr.contains("UNAUTHORIZED") && refused.stderr.contains("-H"),
        "{}",
        refused.stderr
    );
    let header = "Authorization: Bearer s3cret-token";
    let by_flag = server.run(&["workflows", "list", "-H", header]);
    let mut command = server.piton(&["workflows", "list"]);
    command.env("PITON_HEADERS", format!("X-Team: a\n{header}\n"));
    let by_env = run(command, "");
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("piton")).expect("a folder in it");
    let config = format!(
        "profile = 'demo'\n[profiles.demo]\nbase-url = '{}'\nheaders = ['{header}']\n",
        server.base_url()
    );
    std::fs::write(folder.path().join("piton/config.toml"), config).expect("written");
    let mut command = piton(&["workflows", "list"]);
    command.env("XDG_CONFIG_HOME", folder.path());
    let by_profile = if cfg!(target_os = "linux") {
        run(command, "")
    } else {
        server.run(&["workflows", "list", "-H", header])
    };
    for ran in [&by_flag, &by_env, &by_profile] {
        assert_eq!(ran.exit(), 0, "{}", ran.stderr);
        assert!(ran.stdout.contains("order\n"), "{}", ran.stdout);
    }
    for ran in [refused, by_flag, by_env, by_profile] {
        assert!(!ran.stdout.contains("s3cret") && !ran.stderr.contains("s3cret"));
    }
}

#[test]
fn it_brings_no_database_and_no_engine_with_it() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let tree = ["tree", "--offline", "-p", "piton-cli", "-e", "normal", "--prefix", "none"];
    let folder = env!("CARGO_MANIFEST_DIR");
    let output = Command::new(cargo).args(tree).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).unwrap();
    let crates: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(crates.contains(&"piton-cli") && crates.contains(&"ureq"), "{tree}");
    for heavy in ["piton", "piton-core", "piton-http", "rusqlite", "sqlx", "tokio", "axum"] {
        assert!(!crates.contains(&heavy), "{heavy} is among its dependencies:\n{tree}");
    }
}
