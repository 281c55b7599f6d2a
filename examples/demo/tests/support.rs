//! Real servers of the demo, and how tests talk to them.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

/// The demo, not started yet.
pub(crate) fn demo(directory: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_piton-demo"));
    command.args(args).current_dir(directory).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A running server, ended with the test.
pub(crate) struct Demo {
    process: Child,
    address: String,
    /// What it prints after its address. Kept open: it may go on printing.
    pub(crate) printed: Lines<BufReader<ChildStdout>>,
}

impl Demo {
    /// Starts a server on a free port; it may still be starting when this returns.
    pub(crate) fn launch(directory: &Path, args: &[&str]) -> Launched {
        let mut command = demo(directory, &["--listen", "127.0.0.1:0", "--log", "error"]);
        // Nobody reads it while the test runs: a pipe would fill up.
        command.args(args).stderr(Stdio::inherit());
        Launched(Some(command.spawn().unwrap()))
    }

    /// Starts a server and waits until it listens.
    pub(crate) fn start(directory: &Path, args: &[&str]) -> Self {
        Self::launch(directory, args).listening()
    }

    pub(crate) fn signal(&self, signal: &str) {
        signal_to(&self.process, signal);
    }

    /// Waits until it has ended by itself, as it should.
    pub(crate) fn wait(mut self) {
        assert!(self.process.wait().unwrap().success(), "it ended as it should");
    }

    /// Asks for `path`, with a body if there is one; the status and the answer.
    pub(crate) fn ask(&self, path: &str, body: Option<&Value>) -> (u16, Value) {
        self.try_ask(path, body).unwrap()
    }

    /// The same, on a bad day.
    pub(crate) fn try_ask(
        &self,
        path: &str,
        body: Option<&Value>,
    ) -> std::io::Result<(u16, Value)> {
        let mut stream = TcpStream::connect(&self.address)?;
        let address = &self.address;
        let asked = match body {
            None => format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"),
            Some(body) => {
                let body = body.to_string();
                format!(
                    "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
                     content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                )
            }
        };
        stream.write_all(asked.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) =
            answer.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap();
        Ok((status, serde_json::from_str(body).unwrap_or_default()))
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A server that may still be starting.
pub(crate) struct Launched(Option<Child>);

impl Launched {
    pub(crate) fn signal(&self, signal: &str) {
        signal_to(self.0.as_ref().unwrap(), signal);
    }

    /// Waits until it listens.
    pub(crate) fn listening(mut self) -> Demo {
        let stdout = self.0.as_mut().unwrap().stdout.take().unwrap();
        let mut printed = BufReader::new(stdout).lines();
        let first = printed.next().expect("it starts").unwrap();
        let address = first.strip_prefix("listening on http://").unwrap().to_owned();
        Demo { process: self.0.take().unwrap(), address, printed }
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        if let Some(process) = &mut self.0 {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn signal_to(process: &Child, signal: &str) {
    let told = Command::new("kill").args([signal, &process.id().to_string()]).status();
    assert!(told.unwrap().success());
}

/// Between two looks at something that other processes do.
pub(crate) fn pause() {
    sleep(Duration::from_millis(20));
}

#[expect(clippy::disallowed_methods, reason = "real processes work in real time")]
pub(crate) fn sleep(span: Duration) {
    std::thread::sleep(span);
}
