//! The server itself.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::Programs;
use crate::account::Account;

/// How long a server may take to start: crash recovery included, on a busy machine.
const START_MAX: Duration = Duration::from_secs(60);

/// How often a starting server is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Settings beside the defaults. Connections are cheap: tests that run at the same time need a dozen each. The rest keeps
/// a server that lives for minutes from doing the work of one that lives for years.
const SETTINGS: [(&str, &str); 6] = [
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("max_connections", "300"),
    ("shared_buffers", "256MB"),
    ("max_wal_size", "4GB"),
    ("logging_collector", "off"),
];

/// Where the cluster lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On disk, in the directory for temporary files: what a benchmark measures.
    Disk,
    /// In memory where there is such a place: for tests, which are about answers and wait for thousands of syncs otherwise.
    Memory,
}

/// A running server. It is stopped, and its directory removed, when this is dropped.
#[derive(Debug)]
pub struct Server {
    programs: Programs,
    account: Account,
    directory: TempDir,
    port: u16,
    running: Option<Child>,
}

impl Server {
    /// Makes a cluster and starts a server on it, and says so.
    ///
    /// # Errors
    ///
    /// If there are no server programs or one of them fails.
    pub fn start(place: Place) -> Result<Server> {
        let programs = Programs::find_or_install()?;
        let account = Account::choose()?;
        let directory = scratch_directory(place)?;
        account.own(directory.path())?;
        let mut server = Server { programs, account, directory, port: free_port()?, running: None };
        server.make_cluster()?;
        server.launch()?;
        println!(
            "started a private PostgreSQL ({}) in {}, port {}; it is stopped and removed afterwards",
            server.programs.directory().display(),
            server.directory.path().display(),
            server.port
        );
        Ok(server)
    }

    /// Its URL, over the Unix socket.
    pub fn url(&self) -> String {
        let socket = self.directory.path().display();
        format!("postgres://piton@localhost:{}/postgres?host={socket}&sslmode=disable", self.port)
    }

    /// The port on the loopback interface, for those who stand in between.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its process while it runs, for those who look at it from outside.
    pub fn pid(&self) -> Option<u32> {
        Some(self.running.as_ref()?.id())
    }

    /// The directory of the cluster.
    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Stops the server: `Fast` breaks connections and rolls back, `Immediate` is a crash.
    ///
    /// # Errors
    ///
    /// If it cannot be told to stop.
    pub fn stop(&mut self, how: Stop) -> Result<()> {
        let Some(mut running) = self.running.take() else {
            return Ok(());
        };
        let signal = match how {
            Stop::Fast => "-INT",
            Stop::Immediate => "-QUIT",
        };
        let pid = running.id().to_string();
        let told =
            Command::new("kill").args([signal, &pid]).status().context("cannot run `kill`")?;
        ensure!(told.success(), "`kill {signal} {pid}` ended with {told}");
        running.wait().context("cannot wait for the server")?;
        Ok(())
    }

    /// Starts a server that was stopped, on the same data and port.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn launch(&mut self) -> Result<()> {
        if self.running.is_some() {
            return Ok(());
        }
        let log = fs::File::create(self.log_file()).context("cannot create the server's log")?;
        let mut command = self.programs.command("postgres");
        command.arg("-D").arg(self.data()).arg("-k").arg(self.directory.path());
        command.args(["-p", &self.port.to_string()]).args(["-c", "listen_addresses=127.0.0.1"]);
        for (name, value) in SETTINGS {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command.current_dir("/");
        self.account.adopt(&mut command);
        let started = command.spawn().context("cannot start `postgres`")?;
        let running = self.running.insert(started);
        let deadline = now() + START_MAX;
        while !is_ready(&self.directory.path().join("data/postmaster.pid")) {
            let ended = running.try_wait().context("cannot look at the server")?;
            if ended.is_some() || now() > deadline {
                bail!("the server did not start:\n{}", self.log());
            }
            wait(LOOK_EVERY);
        }
        Ok(())
    }

    /// What the server has told since it was started last.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    fn log_file(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    fn make_cluster(&self) -> Result<()> {
        let mut command = self.programs.command("initdb");
        command.arg("-D").arg(self.data());
        // Only this machine can reach it; whoever can log in here may use it.
        command.args([
            "--username=piton",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        ]);
        command.current_dir("/");
        self.account.adopt(&mut command);
        let made = command.output().context("cannot start `initdb`")?;
        ensure!(
            made.status.success(),
            "`initdb` failed:\n{}",
            String::from_utf8_lossy(&made.stderr)
        );
        Ok(())
    }
}

/// How a server is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Connections are cut, what is not committed is rolled back.
    Fast,
    /// As a crash: the next start recovers from the log.
    Immediate,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nobody needs the data any more: no reason to write it out.
        let _ = self.stop(Stop::Immediate);
    }
}

/// The last line of the file says so once connections are accepted.
fn is_ready(pid_file: &Path) -> bool {
    let told = fs::read_to_string(pid_file).unwrap_or_default();
    told.lines().nth(7).is_some_and(|state| state.trim() == "ready")
}

fn scratch_directory(place: Place) -> Result<TempDir> {
    let in_memory = Path::new("/dev/shm");
    let directory = match place {
        Place::Memory if in_memory.is_dir() => {
            tempfile::Builder::new().prefix("piton-pg-").tempdir_in(in_memory)
        }
        Place::Memory | Place::Disk => tempfile::Builder::new().prefix("piton-pg-").tempdir(),
    };
    directory.context("cannot make a directory for the server")
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("there is no free port")?;
    Ok(listener.local_addr()?.port())
}

#[expect(clippy::disallowed_methods, reason = "waits for another program, in the real world")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "waits for another program, in the real world")]
fn wait(span: Duration) {
    std::thread::sleep(span);
}
