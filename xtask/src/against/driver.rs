//! The program that drives an engine: built by cargo, or a script whose packages are installed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::engine::{Beside, Engine, Language};
use super::group::{Group, Interrupt};
use super::target_directory;
use crate::cargo;

/// A driver is built from nothing in minutes on two cores.
const BUILD_MAX: Duration = Duration::from_secs(30 * 60);

const INSTALL_MAX: Duration = Duration::from_secs(10 * 60);

/// A driver that can be started.
#[derive(Debug)]
pub(super) enum Driver {
    Binary(PathBuf),
    Python { python: PathBuf, script: PathBuf },
    Node { packages: PathBuf, script: PathBuf, python: Option<PathBuf> },
}

impl Driver {
    /// Builds or installs what is not there yet.
    pub(super) fn make(engine: Engine, interrupt: &Interrupt) -> Result<Driver> {
        let name = engine.driver();
        let source = cargo::workspace_root()?.join("bench/peers").join(name);
        match engine.language() {
            Language::Rust => build(name, interrupt).map(Driver::Binary),
            Language::Python { package, version } => {
                let directory = target_directory()?.join(format!("{name}-{version}"));
                let python = directory.join("bin/python");
                install_python(&directory, &format!("{package}=={version}"), interrupt)?;
                Ok(Driver::Python { python, script: source.join("driver.py") })
            }
            Language::Node { package, version, beside } => {
                let directory = target_directory()?.join(format!("{name}-{version}"));
                let package = format!("{package}@{version}");
                let (npm, python) = match beside {
                    Beside::Nothing => (vec![&*package], None),
                    Beside::Npm(other) => (vec![&*package, other], None),
                    Beside::Python(other) => (vec![&*package], Some(other)),
                };
                install_npm(&directory, &npm, interrupt)?;
                let environment = directory.join("python");
                if let Some(package) = python {
                    install_python(&environment, package, interrupt)?;
                }
                Ok(Driver::Node {
                    packages: directory.join("node_modules"),
                    script: source.join("driver.js"),
                    python: python.map(|_| environment.join("bin/python")),
                })
            }
        }
    }

    pub(super) fn command(&self) -> Command {
        match self {
            Driver::Binary(program) => Command::new(program),
            Driver::Python { python, script } => {
                let mut command = Command::new(python);
                command.arg(script);
                command
            }
            Driver::Node { packages, script, python } => {
                let mut command = Command::new("node");
                command.arg(script).env("NODE_PATH", packages);
                if let Some(python) = python {
                    command.arg("--python").arg(python);
                }
                command
            }
        }
    }

    /// The one file that it is, if it is one.
    pub(super) fn binary(&self) -> Option<&Path> {
        match self {
            Driver::Binary(program) => Some(program),
            Driver::Python { .. } | Driver::Node { .. } => None,
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

/// Installs packages of npm into a directory, once.
pub(super) fn install_npm(
    directory: &Path,
    packages: &[&str],
    interrupt: &Interrupt,
) -> Result<()> {
    once(directory, || {
        let mut command = Command::new("npm");
        // The scripts of dependencies only report the installation to somebody.
        command.args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix"]);
        let line = format!("npm install {}", packages.join(" "));
        run(command.arg(directory).args(packages), &line, interrupt)
    })
}

/// Installs a package of PyPI into an environment of its own, once.
fn install_python(directory: &Path, package: &str, interrupt: &Interrupt) -> Result<()> {
    once(directory, || {
        let mut command = Command::new("python3");
        let line = format!("python3 -m venv {}", directory.display());
        run(command.args(["-m", "venv"]).arg(directory), &line, interrupt)?;
        let mut command = Command::new(directory.join("bin/python"));
        command.args(["-m", "pip", "install", "--quiet", package]);
        run(&mut command, &format!("pip install {package}"), interrupt)
    })
}

/// Does what fills a directory, unless it was done.
fn once(directory: &Path, install: impl FnOnce() -> Result<()>) -> Result<()> {
    let done = directory.join("installed");
    if !done.is_file() {
        std::fs::create_dir_all(directory)?;
        install()?;
        std::fs::write(done, "")?;
    }
    Ok(())
}

fn run(command: &mut Command, line: &str, interrupt: &Interrupt) -> Result<()> {
    println!("$ {line}");
    let ended = Group::start(command)?.wait(INSTALL_MAX, interrupt)?;
    ensure!(ended.success(), "`{line}` ended with {ended}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn what_was_installed_is_not_installed_again() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("package");
        assert!(once(&directory, || bail!("no network")).is_err());
        once(&directory, || Ok(())).unwrap();
        once(&directory, || bail!("must not be called")).unwrap();
    }
}
