//! An engine that is ready to be measured, or the reason why not.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use private_postgres::Place;
use tempfile::TempDir;

use super::engine::{Engine, Needs};
use super::group::{Group, Interrupt};
use super::report::Sample;
use super::restate::Restate;
use super::target_directory;
use super::workload::Workload;
use crate::cargo;
use crate::postgres::Database;

/// A driver is built from nothing in minutes on two cores.
const BUILD_MAX: Duration = Duration::from_secs(30 * 60);

/// What a round takes beside its window: start, first calls, warm-up, and the end of what is outstanding.
const ROUND_MAX: Duration = Duration::from_secs(60);

/// Everybody who takes part, and the servers they need. The servers end with it.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) contestants: Vec<Contestant>,
    _servers: Servers,
}

impl Field {
    /// Builds, installs and starts what is needed. What cannot be had is left out, with the reason.
    pub(super) fn prepare(engines: Vec<Engine>, interrupt: &Interrupt) -> Result<Field> {
        let mut servers = Servers { scratch: scratch()?, postgres: None, restate: None };
        let mut contestants = Vec::new();
        for engine in engines {
            let ready = servers.make_ready(engine, interrupt);
            interrupt.check()?;
            let ready = ready.map_err(|error| format!("{error:#}"));
            if let Err(reason) = &ready {
                println!("{} is left out: {reason}", engine.name());
            }
            contestants.push(Contestant { engine, version: engine.version()?, ready });
        }
        Ok(Field { contestants, _servers: servers })
    }
}

#[derive(Debug)]
pub(super) struct Contestant {
    pub(super) engine: Engine,
    pub(super) version: String,
    ready: Result<Ready, String>,
}

#[derive(Debug)]
struct Ready {
    program: PathBuf,
    /// Where its server is.
    arguments: Vec<OsString>,
}

impl Contestant {
    /// Why it does not take part.
    pub(super) fn skipped(&self) -> Option<&str> {
        self.ready.as_ref().err().map(String::as_str)
    }

    /// Runs the driver once.
    pub(super) fn measure(
        &self,
        workload: Workload,
        window: Duration,
        interrupt: &Interrupt,
    ) -> Result<Sample> {
        let ready = match &self.ready {
            Ok(ready) => ready,
            Err(reason) => bail!("{reason}"),
        };
        let directory = scratch()?;
        let (out, err) = (directory.path().join("out"), directory.path().join("err"));
        let mut command = Command::new(&ready.program);
        command.args(["--steps", &workload.steps.to_string()]);
        command.args(["--in-flight", &workload.in_flight.to_string()]);
        command.args(["--seconds", &window.as_secs_f64().to_string()]);
        command.args(&ready.arguments);
        if self.engine.needs() == Needs::Directory {
            command.arg("--dir").arg(directory.path());
        }
        if self.engine == Engine::PitonHttp {
            command.args(["--through", "http"]);
        }
        let mut driver = Group::start_into(&mut command, File::create(&out)?, File::create(&err)?)?;
        let status = driver.wait(window + ROUND_MAX, interrupt)?;
        let told = fs::read_to_string(&err).unwrap_or_default();
        ensure!(status.success(), "{}", last_line(&told).unwrap_or("the driver failed"));
        let line = fs::read_to_string(&out)?;
        serde_json::from_str(&line).with_context(|| format!("not a result: {line}"))
    }
}

fn last_line(text: &str) -> Option<&str> {
    text.lines().rev().map(str::trim).find(|line| !line.is_empty())
}

/// The servers that drivers talk to, each started when the first one needs it.
#[derive(Debug)]
struct Servers {
    postgres: Option<Database>,
    restate: Option<Restate>,
    /// Last, so that it is removed when nobody uses it any more.
    scratch: TempDir,
}

impl Servers {
    fn make_ready(&mut self, engine: Engine, interrupt: &Interrupt) -> Result<Ready> {
        let program = build(engine.driver(), interrupt)?;
        let arguments = match engine.needs() {
            Needs::Directory => Vec::new(),
            Needs::Postgres => vec!["--database".into(), self.postgres()?.url()?.into()],
            Needs::Restate => {
                self.restate(interrupt)?.arguments().into_iter().map(OsString::from).collect()
            }
        };
        Ok(Ready { program, arguments })
    }

    fn postgres(&mut self) -> Result<&Database> {
        if self.postgres.is_none() {
            // On disk: what is measured includes its syncs.
            self.postgres = Some(Database::open(Place::Disk)?);
        }
        self.postgres.as_ref().context("just opened")
    }

    fn restate(&mut self, interrupt: &Interrupt) -> Result<&Restate> {
        if self.restate.is_none() {
            self.restate = Some(Restate::start(self.scratch.path(), interrupt)?);
        }
        self.restate.as_ref().context("just started")
    }
}

/// Builds a driver; cargo does nothing if it is there already.
fn build(driver: &str, interrupt: &Interrupt) -> Result<PathBuf> {
    let target = target_directory()?;
    let manifest = format!("bench/peers/{driver}/Cargo.toml");
    let mut command = cargo::command(["build", "--release", "--locked"]);
    command.args(["--manifest-path", &manifest]).arg("--target-dir").arg(&target);
    command.current_dir(cargo::workspace_root()?);
    // Some build scripts run again when these change: a build by hand and one from here are to share their work.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&*name);
        }
    }
    println!("$ cargo build --release --locked --manifest-path {manifest}");
    let built = Group::start(&mut command)?.wait(BUILD_MAX, interrupt)?;
    ensure!(built.success(), "its driver cannot be built, see above");
    Ok(target.join("release").join(format!("peer-{driver}")))
}

/// On the disk to be measured: the directory for temporary files.
fn scratch() -> Result<TempDir> {
    tempfile::Builder::new().prefix("piton-peers-").tempdir().context("cannot make a directory")
}
