//! Processes that end with their owner.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How often a process is looked at.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Whether somebody wants us to stop: ctrl-c, or a signal to terminate.
#[derive(Clone, Debug)]
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on such signals end nothing by themselves; whoever waits for something asks [`check`](Self::check).
    pub(super) fn listen() -> Result<Interrupt> {
        let interrupt = Interrupt(Arc::default());
        let told = interrupt.clone();
        ctrlc::set_handler(move || told.0.store(true, Ordering::Relaxed))
            .context("cannot listen for ctrl-c")?;
        Ok(interrupt)
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    }
}

/// A process and all that it starts. It is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Group {
    child: Child,
    is_over: bool,
}

impl Group {
    /// Starts a command in a process group of its own.
    pub(super) fn start(command: &mut Command) -> Result<Group> {
        Group::start_as_it_is(command.stdin(Stdio::null()))
    }

    /// Starts a command that is told when to end.
    pub(super) fn start_with_input(command: &mut Command) -> Result<Group> {
        Group::start_as_it_is(command.stdin(Stdio::piped()))
    }

    fn start_as_it_is(command: &mut Command) -> Result<Group> {
        let program = command.get_program().to_owned();
        let child = command.process_group(0).spawn();
        let child = child.with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Group { child, is_over: false })
    }

    /// Starts a command that writes to files.
    pub(super) fn start_into(command: &mut Command, out: File, err: File) -> Result<Group> {
        Group::start(command.stdout(out).stderr(err))
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it writes, if that was asked for; once.
    pub(super) fn output(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    pub(super) fn end_input(&mut self) {
        drop(self.child.stdin.take());
    }

    /// How it ended, if it has.
    pub(super) fn look(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.child.try_wait().context("cannot look at a process")?;
        self.is_over |= status.is_some();
        Ok(status)
    }

    /// Waits for its end.
    pub(super) fn wait(&mut self, patience: Duration, interrupt: &Interrupt) -> Result<ExitStatus> {
        let deadline = now() + patience;
        loop {
            if let Some(status) = self.look()? {
                return Ok(status);
            }
            pause(interrupt)?;
            if now() > deadline {
                bail!("did not end within {patience:?}");
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let group = format!("-{}", self.child.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.child.wait();
    }
}

/// Waits for a moment; an interrupt is an error.
#[expect(clippy::disallowed_methods, reason = "waits for another program, in the real world")]
pub(super) fn pause(interrupt: &Interrupt) -> Result<()> {
    std::thread::sleep(LOOK_EVERY);
    interrupt.check()
}

#[expect(clippy::disallowed_methods, reason = "waits for another program, in the real world")]
pub(super) fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_alive(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    }

    #[test]
    fn what_a_process_has_started_ends_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let (out, err) = (dir.path().join("out"), dir.path().join("err"));
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!; wait"]);
        let never = Interrupt(Arc::default());
        let group = Group::start_into(
            &mut command,
            File::create(&out).unwrap(),
            File::create(&err).unwrap(),
        );
        let group = group.unwrap();
        let grandchild = loop {
            let told = std::fs::read_to_string(&out).unwrap();
            if let Some(pid) = told.strip_suffix('\n') {
                break pid.to_owned();
            }
            pause(&never).unwrap();
        };
        assert!(is_alive(&grandchild));
        drop(group);
        while is_alive(&grandchild) {
            pause(&never).unwrap();
        }
    }

    #[test]
    fn an_interrupt_ends_every_wait() {
        let mut group = Group::start(Command::new("sleep").arg("600")).unwrap();
        let interrupt = Interrupt(Arc::new(AtomicBool::new(true)));
        let error = group.wait(Duration::from_secs(600), &interrupt).unwrap_err();
        assert_eq!(error.to_string(), "interrupted");
    }
}
