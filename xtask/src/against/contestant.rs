//! An engine that is ready to be measured, or the reason why not.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use private_postgres::Place;

use super::driver::Driver;
use super::engine::{Engine, Needs};
use super::group::Interrupt;
use super::report::Sample;
use super::restate::{self, Restate};
use super::round::{self, Surroundings};
use super::scratch;
use super::workload::{Plan, Workload};
use crate::postgres::Database;

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
            let driver = field.make_ready(engine, interrupt);
            interrupt.check()?;
            let driver = driver.map_err(|error| format!("{error:#}"));
            if let Err(reason) = &driver {
                println!("{} is left out: {reason}", engine.name());
            }
            field.contestants.push(Contestant { engine, version: engine.version()?, driver });
        }
        Ok(field)
    }

    fn make_ready(&mut self, engine: Engine, interrupt: &Interrupt) -> Result<Driver> {
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
        Driver::make(engine, interrupt)
    }

    /// Runs the driver once, on an empty database.
    pub(super) fn measure(
        &self,
        contestant: &Contestant,
        workload: Workload,
        plan: Plan,
        interrupt: &Interrupt,
    ) -> Result<Sample> {
        let driver = match &contestant.driver {
            Ok(driver) => driver,
            Err(reason) => bail!("{reason}"),
        };
        let directory = scratch()?;
        let mut command = driver.command();
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
    driver: Result<Driver, String>,
}

impl Contestant {
    /// Why it does not take part.
    pub(super) fn skipped(&self) -> Option<&str> {
        self.driver.as_ref().err().map(String::as_str)
    }

    /// What has to be on a machine to run it: the driver, with the engine in it, and the server beside PostgreSQL. Unknown
    /// where that is a directory full of scripts.
    pub(super) fn program_bytes(&self) -> Option<u64> {
        let length = |file: PathBuf| Some(fs::metadata(file).ok()?.len());
        let driver = length(self.driver.as_ref().ok()?.binary()?.to_owned())?;
        match self.engine.needs() {
            Needs::Directory | Needs::Postgres => Some(driver),
            Needs::Restate => Some(driver + length(restate::program().ok()?)?),
        }
    }
}
