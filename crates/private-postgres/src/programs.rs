//! Where the server's programs are.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// Where Debian and its descendants put them, one directory per version.
const DEBIAN: &str = "/usr/lib/postgresql";

/// The directory with `initdb` and `postgres`.
#[derive(Clone, Debug)]
pub struct Programs {
    directory: PathBuf,
}

impl Programs {
    /// Finds them: the newest of Debian's, or the first on the `PATH`.
    pub fn find() -> Option<Programs> {
        let on_path = std::env::var_os("PATH").unwrap_or_default();
        let on_path: Vec<PathBuf> = std::env::split_paths(&on_path).collect();
        let directory =
            newest_of_debian().into_iter().chain(on_path).find(|dir| is_complete(dir))?;
        Some(Programs { directory })
    }

    /// Finds them, or installs Debian's package, which takes an administrator.
    ///
    /// # Errors
    ///
    /// If they are not there and cannot be installed, saying what to do.
    pub fn find_or_install() -> Result<Programs> {
        if let Some(found) = Self::find() {
            return Ok(found);
        }
        println!("PostgreSQL is not installed: trying `apt-get install postgresql`");
        install().context("install PostgreSQL 13 or newer, or set PITON_TEST_POSTGRES_URL")?;
        Self::find()
            .context("`apt-get install postgresql` brought no server; set PITON_TEST_POSTGRES_URL")
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        Command::new(self.directory.join(program))
    }

    /// Where they are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

fn is_complete(directory: &Path) -> bool {
    ["initdb", "postgres"].iter().all(|program| directory.join(program).is_file())
}

fn newest_of_debian() -> Vec<PathBuf> {
    let versions = std::fs::read_dir(DEBIAN).into_iter().flatten().flatten();
    let number = |name: &str| name.parse::<u32>().ok();
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| Some((number(entry.file_name().to_str()?)?, entry.path().join("bin"))))
        .collect();
    found.sort_unstable_by(|one, other| other.cmp(one));
    found.into_iter().map(|(_, directory)| directory).collect()
}

fn install() -> Result<()> {
    for arguments in [
        ["update", "-q"].as_slice(),
        ["install", "-qy", "--no-install-recommends", "postgresql"].as_slice(),
    ] {
        let mut command = Command::new("apt-get");
        command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        match command.status() {
            Ok(status) => {
                ensure!(status.success(), "`apt-get {}` ended with {status}", arguments.join(" "))
            }
            Err(error) => bail!("there is no `apt-get` here ({error})"),
        }
    }
    Ok(())
}
