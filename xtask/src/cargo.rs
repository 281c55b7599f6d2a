//! Running cargo: always from the workspace root, always saying what is run.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// The workspace root: the parent of the directory that cargo tells the crate it runs.
///
/// Read when running, not when compiling, so that checkouts which share a target directory never work on each other.
pub(crate) fn workspace_root() -> Result<PathBuf> {
    let crate_dir = std::env::var_os("CARGO_MANIFEST_DIR")
        .context("not started by cargo: use `cargo xtask`")?;
    let mut root = PathBuf::from(crate_dir);
    ensure!(root.pop(), "{} has no parent directory", root.display());
    Ok(root)
}

/// The cargo that started us, so that a `+toolchain` choice reaches every stage.
pub(crate) fn command<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(args);
    command
}

/// Prints and runs a [`command`]; anything but success is an error.
pub(crate) fn run(mut command: Command) -> Result<()> {
    let line = command_line(&command);
    println!("$ {line}");
    let status = command
        .current_dir(workspace_root()?)
        .status()
        .with_context(|| format!("cannot start `{line}`"))?;
    ensure!(status.success(), "`{line}` ended with {status}");
    Ok(())
}

/// Whether `cargo <subcommand>` is there to be called.
pub(crate) fn is_installed(subcommand: &str) -> bool {
    command([subcommand, "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The command as one would type it, variables first.
fn command_line(command: &Command) -> String {
    let variables = command.get_envs().filter_map(|(name, value)| {
        Some(format!("{}={}", name.to_string_lossy(), shell_quoted(value?)))
    });
    let args = command.get_args().map(shell_quoted);
    let words: Vec<String> = variables.chain(["cargo".to_owned()]).chain(args).collect();
    words.join(" ")
}

fn shell_quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let is_plain = |c: char| c.is_alphanumeric() || "-_=+./,:@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_printed_as_it_would_be_typed() {
        let mut command = command(["nextest", "run", "-E", "test(it's due)", ""]);
        command.env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(
            command_line(&command),
            r"RUSTDOCFLAGS='-D warnings' cargo nextest run -E 'test(it'\''s due)' ''"
        );
    }
}
