//! How far a driver is, told to whoever looks at the process from outside.

use std::io::{Read, Write};

/// A line on standard output.
#[derive(Clone, Copy, Debug)]
pub enum Phase {
    /// Something begins that is not the engine's: making its database. Does not count as its start.
    Aside,
    /// That is done.
    Back,
    /// The engine has started.
    Ready,
    /// What counts begins.
    Start,
    /// What counts is over.
    Stop,
}

impl Phase {
    pub fn tell(self) {
        let word = match self {
            Phase::Aside => "aside",
            Phase::Back => "back",
            Phase::Ready => "ready",
            Phase::Start => "start",
            Phase::Stop => "stop",
        };
        let mut out = std::io::stdout().lock();
        // Nobody who listens, nobody to tell.
        let _ = writeln!(out, "{word}").and_then(|()| out.flush());
    }
}

/// Until standard input ends: files and databases may still be looked at.
pub(crate) fn until_let_go() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}
