//! What went wrong, what to do next, and the exit code that says which of the two sides it was.

use std::fmt;
use std::io;

use crate::text::safe;

/// The exit codes, apart from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The server answered, and refused.
    Refused = 1,
    /// The command line or the configuration is wrong. The same code as of `clap`.
    Usage = 2,
    /// No answer of a Piton server.
    Unreachable = 3,
}

/// Why a command did not do what it should.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
    /// Further lines: the places in the input that are wrong.
    pub(crate) details: Vec<String>,
    /// What to do next.
    pub(crate) next: Option<String>,
    /// The code of a refusal.
    pub(crate) code: Option<String>,
    /// Whether the same call may succeed in a moment.
    pub(crate) passing: bool,
    /// Set if nobody reads what is written: a reason to stop, not to complain.
    pub(crate) reader_gone: bool,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            details: Vec::new(),
            next: None,
            code: None,
            passing: false,
            reader_gone: false,
        }
    }

    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self::new(Exit::Refused, message)
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    pub(crate) fn unreachable(message: impl Into<String>) -> Self {
        Self { passing: true, ..Self::new(Exit::Unreachable, message) }
    }

    pub(crate) fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    pub(crate) fn has_code(&self, code: &str) -> bool {
        self.code.as_deref() == Some(code)
    }
}

impl From<io::Error> for Failure {
    /// Of writing to stdout.
    fn from(error: io::Error) -> Self {
        let reader_gone = error.kind() == io::ErrorKind::BrokenPipe;
        Self { reader_gone, ..Self::new(Exit::Usage, format!("cannot write the output: {error}")) }
    }
}

impl fmt::Display for Failure {
    /// Whatever the server said goes through [`safe`] here.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", safe(&self.message))?;
        if let Some(code) = &self.code {
            write!(f, " ({})", safe(code))?;
        }
        for detail in &self.details {
            write!(f, "\n  {}", safe(detail))?;
        }
        if let Some(next) = &self.next {
            for line in next.lines() {
                write!(f, "\n  {}", safe(line))?;
            }
        }
        Ok(())
    }
}
