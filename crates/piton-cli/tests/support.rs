//! A server to talk to, a way to run the command, and snapshots in which times and addresses do not matter.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use piton_testing::postgres::ScratchDatabase;
use tempfile::TempDir;

/// How often `until` looks before it gives up. Each look is a process of its own, so this is minutes.
const LOOKS_MAX: usize = 5_000;

/// Where a server keeps everything.
pub(crate) enum Database {
    Sqlite(TempDir),
    Postgres(Box<ScratchDatabase>),
}

impl Database {
    pub(crate) fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().expect("a folder"))
    }

    fn url(&self) -> String {
        match self {
            Self::Sqlite(folder) => format!("sqlite:{}", folder.path().join("demo.db").display()),
            Self::Postgres(database) => database.url(),
        }
    }
}

/// Makes a test of each function on a SQLite file, and on PostgreSQL where there is a server to test on.
macro_rules! on_both_stores {
    ($($test:ident),* $(,)?) => {
        mod sqlite {
            $(#[test] fn $test() {
                super::$test($crate::support::Database::sqlite());
            })*
        }
        mod postgres {
            $(#[test] fn $test() {
                if let Some(database) = piton_testing::postgres::ScratchDatabase::new() {
                    super::$test($crate::support::Database::Postgres(Box::new(database)));
                }
            })*
        }
    };
}
pub(crate) use on_both_stores;

/// A `piton-demo` of its own for each test.
pub(crate) struct Server {
    process: Child,
    address: String,
    database: Database,
    flags: Vec<String>,
}

impl Server {
    pub(crate) fn start(database: Database) -> Self {
        Self::start_with(database, &[])
    }

    pub(crate) fn start_with(database: Database, flags: &[&str]) -> Self {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let (process, address) = spawn(&database, "127.0.0.1:0", &flags);
        Self { process, address, database, flags }
    }

    /// Ends it without warning, and starts it again at the same address with the same database.
    pub(crate) fn kill_and_start(&mut self) {
        self.kill();
        let (process, _) = spawn(&self.database, &self.address, &self.flags);
        self.process = process;
    }

    fn kill(&mut self) {
        // It may have ended by itself, which the test notices elsewhere.
        let _ = self.process.kill();
        self.process.wait().expect("a child can be waited for");
    }

    pub(crate) fn base_url(&self) -> String {
        format!("http://{}/api/workflows", self.address)
    }

    /// The command, with this server as its own and nothing of the environment.
    pub(crate) fn piton(&self, args: &[&str]) -> Command {
        let mut command = piton(args);
        command.env("PITON_BASE_URL", self.base_url());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        run(self.piton(args), "")
    }

    /// Runs it again and again until its stdout has the text.
    pub(crate) fn until(&self, args: &[&str], text: &str) -> Ran {
        for _ in 0..LOOKS_MAX {
            let ran = self.run(args);
            if ran.stdout.contains(text) {
                return ran;
            }
        }
        panic!("never {text:?} in {:?}", self.run(args).stdout);
    }

    /// Runs each line as a user would type it; a transcript of what was typed and seen.
    pub(crate) fn transcript(&self, lines: &[&str]) -> String {
        let mut transcript = String::new();
        for line in lines {
            let words = words(line);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            transcript.push_str(&format!("$ piton {line}\n{}\n", self.run(&words).shown()));
        }
        transcript.replace(&self.address, "SERVER")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(database: &Database, listen: &str, flags: &[String]) -> (Child, String) {
    let mut command = Command::new(demo());
    command.args(["--listen", listen, "--database", &database.url(), "--log", "error"]);
    command.args(flags).stdout(Stdio::piped()).stdin(Stdio::null());
    let mut process = command.spawn().expect("piton-demo starts");
    let stdout = process.stdout.take().expect("its stdout is ours");
    let mut lines = BufReader::new(stdout).lines();
    let greeting = lines.next().expect("it says where it listens").expect("in UTF-8");
    let address = greeting.rsplit("http://").next().expect("an address").to_owned();
    // The rest must be read, or it could block on a full pipe.
    std::thread::spawn(move || lines.for_each(drop));
    (process, address)
}

/// The binary beside ours; built first if a test of this package alone has not done so.
fn demo() -> PathBuf {
    let name = format!("piton-demo{}", std::env::consts::EXE_SUFFIX);
    let path = Path::new(env!("CARGO_BIN_EXE_piton")).with_file_name(name);
    if !path.exists() {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let built = Command::new(cargo).args(["build", "--package", "piton-demo"]).status();
        assert!(built.expect("cargo starts").success(), "piton-demo does not build");
    }
    path
}

/// The command, with nothing of the environment.
pub(crate) fn piton(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_piton"));
    command.args(args).env_clear().stdin(Stdio::null());
    command
}

/// What came of a command.
pub(crate) struct Ran {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    status: ExitStatus,
}

impl Ran {
    pub(crate) fn exit(&self) -> i32 {
        self.status.code().expect("it ends by itself")
    }

    fn shown(&self) -> String {
        let noted: String = self.stderr.lines().map(|line| format!("! {line}\n")).collect();
        let exit = match self.exit() {
            0 => String::new(),
            code => format!("(exit {code})\n"),
        };
        format!("{}{noted}{exit}", self.stdout)
    }
}

/// Runs it with this on stdin.
pub(crate) fn run(mut command: Command, stdin: &str) -> Ran {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("piton starts");
    let mut pipe = child.stdin.take().expect("its stdin is ours");
    // It may not want any.
    let _ = pipe.write_all(stdin.as_bytes());
    drop(pipe);
    let output = child.wait_with_output().expect("piton ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    Ran { stdout: text(output.stdout), stderr: text(output.stderr), status: output.status }
}

/// A line in words; between single quotes, blanks are part of one.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (at, part) in line.split('\'').enumerate() {
        match at % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

/// Compares with `tests/snapshots/{name}.txt`, or writes it with `UPDATE=1`.
pub(crate) fn assert_snapshot(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/snapshots/{name}.txt"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, text).expect("the snapshot can be written");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    if text == expected {
        return;
    }
    let differs = text.lines().zip(expected.lines()).find(|(new, old)| new != old);
    panic!(
        "{name} is not as in {}; first difference (new, old): {differs:#?}\n\
         if it should be so: UPDATE=1 cargo nextest run -p piton-cli\n\n{text}",
        path.display()
    );
}

/// The text without what differs from run to run: times, durations, the width of columns,
/// and the gaps of a timeline, which a slow machine has more of.
pub(crate) fn normal(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.contains('┆'));
    lines.map(|line| normal_line(line) + "\n").collect()
}

fn normal_line(line: &str) -> String {
    let indent = &line[..line.len() - line.trim_start().len()];
    let mut words: Vec<String> = Vec::new();
    for part in line.trim().split("  ").filter(|part| !part.is_empty()) {
        words.push(normal_part(part.trim()));
    }
    format!("{indent}{}", words.join("  "))
}

fn normal_part(part: &str) -> String {
    const UNITS: [&str; 6] = ["ms", "s", "min", "h", "day", "days"];
    let bare = |word: &str| word.trim_matches(|c: char| !c.is_alphanumeric()).to_owned();
    let mut said: Vec<String> = Vec::new();
    let mut words = part.split(' ').peekable();
    while let Some(word) = words.next() {
        let core = bare(word);
        let unit =
            words.peek().map(|next| bare(next)).filter(|unit| UNITS.contains(&unit.as_str()));
        if let Some(unit) = unit.filter(|_| is_number(&core)) {
            let span = word.replace(&core, "<span>")
                + &words.next().unwrap_or_default().replace(&unit, "");
            // `1 min 5 s` is one span.
            if said.last().is_some_and(|last| last.ends_with("<span>"))
                && span.starts_with("<span>")
            {
                let last = said.pop().unwrap_or_default();
                said.push(last.replace("<span>", &span));
            } else {
                said.push(span);
            }
        } else if is_date(&core) {
            said.push(word.replace(&core, "<date>"));
        } else if is_time(&core) {
            said.push(word.replace(&core, "<time>"));
        } else {
            said.push(word.to_owned());
        }
    }
    let said = said.join(" ").replace("<date> <time>", "<time>");
    // What happened in this very millisecond.
    said.replace("now (<time>", "<span> ago (<time>")
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit() || b == b'.')
}

fn is_date(word: &str) -> bool {
    word.len() == 10
        && word
            .bytes()
            .enumerate()
            .all(|(at, b)| if at == 4 || at == 7 { b == b'-' } else { b.is_ascii_digit() })
}

fn is_time(word: &str) -> bool {
    word.len() >= 8
        && word.bytes().all(|b| b.is_ascii_digit() || b == b':' || b == b'.')
        && word.contains(':')
}

#[test]
fn what_differs_from_run_to_run_is_taken_out() {
    for (text, expected) in [
        (
            "  created    5 min 3 s ago (2026-11-15 12:00:00 UTC)",
            "  created  <span> ago (<time> UTC)",
        ),
        ("  created    now (2026-11-15 12:00:00 UTC)", "  created  <span> ago (<time> UTC)"),
        ("a     12 ms  x", "a  <span>  x"),
        ("times out in 23 h 59 min", "times out in <span>"),
        ("ended, after 1.2 s", "ended, after <span>"),
        ("attempt 2/6", "attempt 2/6"),
        ("payment of 4200 cents", "payment of 4200 cents"),
        ("(exit 1)", "(exit 1)"),
    ] {
        assert_eq!(normal_line(text), expected);
    }
}
