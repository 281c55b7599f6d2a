//! An engine that is ready to be measured, or the reason why not.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use private_postgres::Place;

use super::engine::{Engine, Needs};
use super::group::{Group, Interrupt};
use super::report::Sample;
use super::restate::{self, Restate};
use super::round::{self, Surroundings};
use super::workload::{Plan, Workload};
use super::{scratch, target_directory};
use crate::cargo;
use crate::postgres::Database;

/// A driver is built from nothing in minutes on two cores.
const BUILD_MAX: Duration = Duration::from_secs(30 * 60);

/// Everybody who takes part, and the server that some of them share. It ends with this.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) contestants: Vec<Contestant>,
    postgres: Option<Database>,
}

impl Field {
    /// Builds, installs and starts what is needed. What cannot be had is left out, with the reason.
    pub(super) fn prepare(engines: Vec<Engine>, interrupt: &Interrupt) -> Result<Field> {
        let mut field = Field { contestants: Vec::new(), postgres: None };
        for engine in engines {
            let program = field.make_ready(engine, interrupt);
            interrupt.check()?;
            let program = program.map_err(|error| format!("{error:#}"));
            if let Err(reason) = &program {
                println!("{} is left out: {reason}", engine.name());
            }
            field.contestants.push(Contestant { engine, version: engine.version()?, program });
        }
        Ok(field)
    }

    fn make_ready(&mut self, engine: Engine, interrupt: &Interrupt) -> Result<PathBuf> {
        match engine.needs() {
            Needs::Directory => {}
            Needs::Postgres => {
                if self.postgres.is_none() {
                    // On disk: what is measured includes its syncs.
                    self.postgres = Some(Database::open(Place::Disk)?);
                }
            }
            Needs::Restate => restate::install(interrupt)?,
        }
        build(engine.driver(), interrupt)
    }

    /// Runs the driver once, on an empty database.
    pub(super) fn measure(
        &self,
        contestant: &Contestant,
        workload: Workload,
        plan: Plan,
        interrupt: &Interrupt,
    ) -> Result<Sample> {
        let program = match &contestant.program {
            Ok(program) => program,
            Err(reason) => bail!("{reason}"),
        };
        let directory = scratch()?;
        let mut command = Command::new(program);
        command.args(workload.arguments(plan));
        if contestant.engine == Engine::PitonHttp {
            command.args(["--through", "http"]);
        }
        // Lives for the round.
        let mut server = None;
        let surroundings = match contestant.engine.needs() {
            Needs::Directory => {
                command.arg("--dir").arg(directory.path());
                let data = Some(directory.path().to_owned());
                Surroundings { data, ..Surroundings::default() }
            }
            Needs::Postgres => {
                let postgres = self.postgres.as_ref().context("it was started")?;
                command.args(["--database", &postgres.url()?]);
                let (server, data) = (postgres.pid(), postgres.tables());
                Surroundings { server, data, ..Surroundings::default() }
            }
            Needs::Restate => {
                let restate = server.insert(Restate::start(directory.path(), interrupt)?);
                command.args(restate.arguments());
                restate.surroundings()
            }
        };
        round::run(&mut command, &surroundings, plan.patience(), interrupt)
    }
}

#[derive(Debug)]
pub(super) struct Contestant {
    pub(super) engine: Engine,
    pub(super) version: String,
    program: Result<PathBuf, String>,
}

impl Contestant {
    /// Why it does not take part.
    pub(super) fn skipped(&self) -> Option<&str> {
        self.program.as_ref().err().map(String::as_str)
    }

    /// What has to be on a machine to run it: the driver, with the engine in it, and the server beside PostgreSQL.
    pub(super) fn program_bytes(&self) -> Option<u64> {
        let length = |file: PathBuf| Some(fs::metadata(file).ok()?.len());
        let driver = length(self.program.as_ref().ok()?.clone())?;
        match self.engine.needs() {
            Needs::Directory | Needs::Postgres => Some(driver),
            Needs::Restate => Some(driver + length(restate::program().ok()?)?),
        }
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
