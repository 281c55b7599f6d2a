//! What `--help` says, at every level.

use crate::support::{assert_snapshot, piton, run};

const COMMANDS: [&str; 21] = [
    "",
    "workflows",
    "workflows list",
    "instances",
    "instances list",
    "instances get",
    "instances history",
    "instances logs",
    "instances watch",
    "instances result",
    "instances create",
    "instances send-event",
    "instances pause",
    "instances resume",
    "instances restart",
    "instances terminate",
    "hooks",
    "hooks list",
    "hooks get",
    "hooks retry",
    "completions",
];

fn help(command: &str, flag: &str) -> String {
    let mut args: Vec<&str> = command.split_whitespace().collect();
    args.push(flag);
    let ran = run(piton(&args), "");
    assert_eq!((ran.exit(), ran.stderr.as_str()), (0, ""), "piton {command} {flag}");
    ran.stdout
}

#[test]
fn every_command_teaches_how_to_use_it() {
    for command in COMMANDS.iter().copied().chain(["man"]) {
        let text = help(command, "--help");
        let name = format!("help {command}").trim().replace(' ', "-");
        assert_snapshot(&name, &text);
        assert!(text.contains("xamples:") || text.contains("A first round"), "{command}");
        let longest = text.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(130), "{command}: a line of {longest:?} characters");
    }
    assert_snapshot("help-short", &help("", "-h"));
}

#[test]
fn completions_and_man_pages_know_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(piton(&["completions", shell]), "");
        assert_eq!(script.exit(), 0);
        for word in ["send-event", "base-url", "--follow".trim_start_matches('-'), "terminate"] {
            assert!(script.stdout.contains(word), "{shell}: {word}");
        }
    }
    let page = run(piton(&["man"]), "").stdout;
    assert!(
        page.contains(".TH piton 1")
            && page.contains(".nf\nThe command tree:")
            && page.contains("PITON_BASE_URL"),
        "{page}"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let ran = run(piton(&["man", &folder.path().display().to_string()]), "");
    assert_eq!(ran.exit(), 0, "{}", ran.stderr);
    for page in ["piton.1", "piton-instances.1", "piton-instances-send-event.1"] {
        assert!(folder.path().join(page).exists(), "{page}");
    }
}

#[test]
fn wrong_usage_ends_with_2_and_says_what_is_right() {
    for args in [
        vec!["instances", "get", "-w", "order"],
        vec!["instances", "list", "--status", "stuck"],
        vec!["instances", "list", "--limit", "0"],
        vec!["instances", "list", "--all", "--limit", "5"],
        vec!["instances", "logs", "-w", "w", "-i", "i", "--log-level", "loud"],
        vec!["--timeout", "10", "workflows", "list"],
        vec!["--base-url", "host/api", "workflows", "list"],
        vec!["--profile", "nowhere", "workflows", "list"],
        vec!["--config", "/no/such/file", "workflows", "list"],
        vec!["-H", "no colon", "workflows", "list"],
        vec!["instances", "create", "-w", "order", "--params", "{item: 1}"],
        vec!["instances", "get", "-w", "..", "-i", "x"],
        vec!["frobnicate"],
    ] {
        let ran = run(piton(&args), "");
        assert_eq!((ran.exit(), ran.stdout.as_str()), (2, ""), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.lines().count() >= 1, "{args:?}");
    }
}
