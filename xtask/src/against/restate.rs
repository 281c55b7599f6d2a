//! The Restate server: installed by npm, started on free ports of the loopback interface.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::driver::install_npm;
use super::group::{Group, Interrupt, now, pause};
use super::round::Surroundings;
use super::target_directory;

/// The version that is installed.
pub(super) const VERSION: &str = "1.7.12";

const START_MAX: Duration = Duration::from_secs(60);

/// How long one question about its health may take.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// A running server. It ends with this; its data is in the directory it was given.
#[derive(Debug)]
pub(super) struct Restate {
    process: Group,
    ingress: SocketAddr,
    admin: SocketAddr,
    data: PathBuf,
    /// How long it took to start.
    start: Duration,
}

impl Restate {
    /// Starts an installed server on a directory of its own.
    pub(super) fn start(directory: &Path, interrupt: &Interrupt) -> Result<Restate> {
        let [ingress, admin, node] = free_addresses()?;
        let (data, log) = (directory.join("restate"), directory.join("restate.log"));
        let out = File::create(&log).context("cannot create the server's log")?;
        let mut command = Command::new(program()?);
        command.arg("--base-dir").arg(&data);
        command.args(["--no-logo", "--listen-mode", "tcp", "--node-name", "bench"]);
        command.args(["--log-filter", "warn", "--log-disable-ansi-codes", "true"]);
        command.env("RESTATE_INGRESS__BIND_ADDRESS", ingress.to_string());
        command.env("RESTATE_ADMIN__BIND_ADDRESS", admin.to_string());
        command.env("RESTATE_BIND_ADDRESS", node.to_string());
        command.env("RESTATE_ADVERTISED_ADDRESS", format!("http://{node}/"));
        command.envs([("RESTATE_DISABLE_TELEMETRY", "true"), ("DO_NOT_TRACK", "1")]);
        let mut process = Group::start_into(&mut command, out.try_clone()?, out)?;
        let begin = now();
        while !(is_healthy(admin, "/health") && is_healthy(ingress, "/restate/health")) {
            if process.look()?.is_some() || now() > begin + START_MAX {
                let told = fs::read_to_string(&log).unwrap_or_default();
                bail!("the server did not start:\n{told}");
            }
            pause(interrupt)?;
        }
        Ok(Restate { process, ingress, admin, data, start: now() - begin })
    }

    /// What the driver is told.
    pub(super) fn arguments(&self) -> Vec<String> {
        let url = |address: SocketAddr| format!("http://{address}");
        vec!["--ingress".to_owned(), url(self.ingress), "--admin".to_owned(), url(self.admin)]
    }

    pub(super) fn surroundings(&self) -> Surroundings {
        Surroundings {
            server: Some(self.process.id()),
            data: Some(self.data.clone()),
            server_start: self.start,
        }
    }
}

/// Where npm puts it.
fn directory() -> Result<PathBuf> {
    Ok(target_directory()?.join(format!("restate-{VERSION}")))
}

/// The server's program.
pub(super) fn program() -> Result<PathBuf> {
    let package = format!("@restatedev/restate-server-{}", platform()?);
    Ok(directory()?.join("node_modules").join(package).join("bin/restate-server"))
}

/// Fetches the server by npm if it is not there.
pub(super) fn install(interrupt: &Interrupt) -> Result<()> {
    install_npm(&directory()?, &[&format!("@restatedev/restate-server@{VERSION}")], interrupt)?;
    let program = program()?;
    ensure!(program.is_file(), "npm did not bring {}", program.display());
    Ok(())
}

/// How npm calls this machine.
fn platform() -> Result<String> {
    let os = match std::env::consts::OS {
        "linux" => "linux",
        "macos" => "darwin",
        other => bail!("there is no server for {other}"),
    };
    let cpu = match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => bail!("there is no server for {other}"),
    };
    Ok(format!("{os}-{cpu}"))
}

/// Three addresses that are free now; all are held until the last is found.
fn free_addresses() -> Result<[SocketAddr; 3]> {
    let listen = || TcpListener::bind("127.0.0.1:0").context("there is no free port");
    let listeners = [listen()?, listen()?, listen()?];
    let [ingress, admin, node] = listeners.each_ref().map(TcpListener::local_addr);
    Ok([ingress?, admin?, node?])
}

fn is_healthy(address: SocketAddr, path: &str) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect_timeout(&address, ANSWER_MAX)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
        let mut status_line = [0; 12];
        stream.read_exact(&mut status_line)?;
        Ok(&status_line == b"HTTP/1.1 200")
    };
    ask().unwrap_or(false)
}
