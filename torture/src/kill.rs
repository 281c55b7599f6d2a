//! `kill`: a loaded process is killed at random moments, and started again on what it left.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use piton_testing::runtime::SplitMix64;
use tempfile::TempDir;

use crate::ledger::Files;
use crate::verdict::{self, Counts};

/// A process lives for at most this long, in milliseconds: long enough to recover and do a few hundred steps.
const LIFE_MS_MAX: u64 = 400;

/// How many instances the last process creates before it drains everything and ends by itself.
const LAST_INSTANCES: &str = "64";

/// A process that ends by itself is given this long, in steps of [`PATIENCE_STEP`].
const PATIENCE_STEPS: u32 = 3_000;
const PATIENCE_STEP: Duration = Duration::from_millis(20);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How often to kill
    #[arg(long, default_value_t = 100)]
    kills: u32,
    /// Decides when; where each kill hits, the machine decides
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let directory = TempDir::new()?;
    let files = Files::new(directory.path());
    let mut random = SplitMix64::new(args.seed);
    for kill in 1..=args.kills {
        let life_ms = 1 + random.below(LIFE_MS_MAX);
        kill_one(directory.path(), life_ms)?;
        let counts = judge_copy(&files).with_context(|| kept(&directory, kill))?;
        if kill.is_multiple_of(20) || kill == args.kills {
            println!("{kill:>6} kills: {}", counts);
        }
    }
    finish(directory.path()).with_context(|| kept(&directory, args.kills))?;
    let counts = judge_copy(&files)?;
    ensure!(counts.live == 0, "STUCK: {} instances have not ended", counts.live);
    println!("{} kills: 0 lost, 0 doubled, 0 stuck; {}", args.kills, counts);
    Ok(())
}

/// What went wrong is worth a look: the files stay.
fn kept(directory: &TempDir, kill: u32) -> String {
    let copy = std::env::temp_dir().join(format!("piton-torture-{}", std::process::id()));
    let told = copy_files(directory.path(), &copy).map(|()| copy.display().to_string());
    format!(
        "after kill {kill}; the files are in {}",
        told.unwrap_or_else(|error| error.to_string())
    )
}

fn start(directory: &Path, options: &[&str]) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("work").arg(directory).args(options).stdout(Stdio::null());
    command.spawn().context("cannot start the worker")
}

fn kill_one(directory: &Path, life_ms: u64) -> Result<()> {
    let mut worker = start(directory, &[])?;
    pause(Duration::from_millis(life_ms));
    let early = worker.try_wait()?;
    ensure!(early.is_none(), "the worker ended by itself: {early:?}");
    worker.kill()?;
    worker.wait()?;
    Ok(())
}

/// A process that drains everything: nothing may be stuck.
fn finish(directory: &Path) -> Result<()> {
    let mut worker = start(directory, &["--instances", LAST_INSTANCES])?;
    for _ in 0..PATIENCE_STEPS {
        if let Some(status) = worker.try_wait()? {
            ensure!(status.success(), "the last worker failed: {status}");
            return Ok(());
        }
        pause(PATIENCE_STEP);
    }
    worker.kill()?;
    anyhow::bail!("STUCK: the last worker did not come to an end")
}

#[expect(clippy::disallowed_methods, reason = "kills a real process after real time")]
fn pause(span: Duration) {
    std::thread::sleep(span);
}

/// Judges a copy: opening the database itself would recover it, which is for the next worker to do.
fn judge_copy(files: &Files) -> Result<Counts> {
    let copy = TempDir::new()?;
    let database = files.database();
    let directory = database.parent().context("it is in a directory")?;
    copy_files(directory, copy.path())?;
    let text = |path| fs::read_to_string(path).unwrap_or_default();
    verdict::judge(&Files::new(copy.path()).database(), &text(files.acks()), &text(files.witness()))
}

/// All but the index of the log, which no crash leaves in a usable state.
fn copy_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let (path, name) = {
            let entry = entry?;
            (entry.path(), entry.file_name())
        };
        if !name.to_string_lossy().ends_with("-shm") {
            fs::copy(path, to.join(name))?;
        }
    }
    Ok(())
}
