//! The two files that a worker writes beside its database, and that outlive it: what it did, and what it was told.
//!
//! Each line is one `write` to a file opened for appending: whatever happens to the process, a line is there or not.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The files of one worker.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    directory: PathBuf,
}

impl Files {
    pub(crate) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.directory.join("load.db")
    }

    /// Every execution of a body: `workflow instance run step attempt process milliseconds`.
    pub(crate) fn witness(&self) -> PathBuf {
        self.directory.join("witness")
    }

    /// Every acknowledged call of a client, see [`Ack`].
    pub(crate) fn acks(&self) -> PathBuf {
        self.directory.join("acks")
    }

    /// Which process is which runner: `process runner`.
    pub(crate) fn runners(&self) -> PathBuf {
        self.directory.join("runners")
    }
}

/// A file of lines that only grows.
pub(crate) struct Lines(File);

impl Lines {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        Ok(Self(file.with_context(|| format!("cannot open {}", path.display()))?))
    }

    pub(crate) fn add(&self, line: &str) {
        let written = (&self.0).write_all(format!("{line}\n").as_bytes());
        written.expect("the disk has room for a line");
    }
}

/// What a client was told. As a line: the words of its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ack {
    Created { id: String },
    Sent { id: String, key: String },
    Restarted { id: String, run: u32 },
    Terminated { id: String, run: u32 },
    Done { id: String, run: u32 },
}

impl Ack {
    pub(crate) fn line(&self) -> String {
        match self {
            Ack::Created { id } => format!("created {id}"),
            Ack::Sent { id, key } => format!("sent {id} {key}"),
            Ack::Restarted { id, run } => format!("restarted {id} {run}"),
            Ack::Terminated { id, run } => format!("terminated {id} {run}"),
            Ack::Done { id, run } => format!("done {id} {run}"),
        }
    }

    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let (what, id) = (words.next()?, words.next()?.to_owned());
        let mut run = || words.next()?.parse().ok();
        Some(match what {
            "created" => Ack::Created { id },
            "sent" => Ack::Sent { id, key: words.next()?.to_owned() },
            "restarted" => Ack::Restarted { id, run: run()? },
            "terminated" => Ack::Terminated { id, run: run()? },
            "done" => Ack::Done { id, run: run()? },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_read_back() {
        let id = "7-1".to_owned();
        for ack in [
            Ack::Created { id: id.clone() },
            Ack::Sent { id: id.clone(), key: "k-1".to_owned() },
            Ack::Restarted { id: id.clone(), run: 1 },
            Ack::Terminated { id: id.clone(), run: 0 },
            Ack::Done { id, run: 2 },
        ] {
            assert_eq!(Ack::parse(&ack.line()), Some(ack));
        }
        assert_eq!(Ack::parse("creat"), None);
    }
}
