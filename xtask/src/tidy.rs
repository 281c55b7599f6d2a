//! `cargo xtask tidy`: the house rules that clippy does not know.
//!
//! The rules are pure functions from a path and a text to [`Finding`]s; only this file reads anything. What is checked
//! is what git knows or would take in: ignored files are nobody's business.

mod markdown;
mod rust;
mod source;

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo;
use crate::stages::Stages;

/// Check the house rules that clippy does not know.
///
/// Rust files: at most 800 lines; no marker of unfinished work and no ignored test. In crates/, moreover: a module doc
/// at the head of every source file; no unsafe code (rule R9); SQL in the two store modules, the audit and tests only (rule R8).
/// Markdown: every relative link leads to a file. CHANGELOG.md has an Unreleased section.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask tidy                      prints each finding as path:line: what to do")]
pub(crate) struct Args;

/// One broken rule, at one place.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    /// 1-based.
    line: usize,
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

pub(crate) fn run(stages: &mut Stages) -> Result<()> {
    stages.run("tidy", || {
        let root = cargo::workspace_root()?;
        let paths = repository_files(&root)?;
        println!("checking the house rules in {} files", paths.len());
        let findings = check_files(&root, &paths)?;
        for finding in &findings {
            println!("{finding}");
        }
        ensure!(findings.is_empty(), "{} broken house rule(s), listed above", findings.len());
        Ok(())
    })
}

fn check_files(root: &Path, paths: &[String]) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut changelog = None;
    for path in paths {
        if !path.ends_with(".rs") && !path.ends_with(".md") {
            continue;
        }
        let text =
            fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"))?;
        if path.ends_with(".rs") {
            findings.extend(rust::check(path, &text));
        } else {
            findings.extend(markdown::check_links(path, &text, |link| root.join(link).exists()));
        }
        if path == markdown::CHANGELOG {
            changelog = Some(text);
        }
    }
    findings.extend(markdown::check_changelog(changelog.as_deref()));
    Ok(findings)
}

/// Every file that is committed or would be, relative to the root with `/` between the parts.
fn repository_files(root: &Path) -> Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("cannot start git, which knows the files to check")?;
    ensure!(output.status.success(), "git: {}", String::from_utf8_lossy(&output.stderr).trim());
    let listing = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    let paths = listing.split_terminator('\0').map(str::to_owned);
    // Git still lists a file that was deleted but not yet committed.
    Ok(paths.filter(|path| root.join(path).is_file()).collect())
}
