//! Rare states that a good simulation reaches: named, counted, and required.

use std::collections::BTreeMap;
use std::fmt;

macro_rules! rare {
    ($($(#[$doc:meta])* $variant:ident = $words:literal),* $(,)?) => {
        /// A state that only an unlucky order of events leads to.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Rare {
            $($(#[$doc])* $variant),*
        }

        impl Rare {
            /// All of them.
            pub const ALL: &'static [Rare] = &[$(Rare::$variant),*];
        }

        impl fmt::Display for Rare {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Rare::$variant => $words),*
                })
            }
        }
    };
}

rare! {
    /// A runner that lost its run tried to write.
    StaleCommitFenced = "stale commit fenced",
    /// A commit was applied, but its runner never heard of it.
    AmbiguousCommit = "commit applied, answer lost",
    /// A claim was applied, but its runner never heard of it.
    ClaimWithoutAnswer = "claim applied, answer lost",
    /// A client's call was applied, but the client never heard of it.
    ClientCallWithoutAnswer = "client call applied, answer lost",
    /// A run was taken from a runner whose lease had run out.
    ExpiredLeaseTakenOver = "expired lease taken over",
    /// A restart while a body was running.
    RestartDuringBody = "restart during a body",
    /// A terminate while a body was running.
    TerminateDuringBody = "terminate during a body",
    /// A pause while a body was running.
    PauseDuringBody = "pause during a body",
    /// An event arrived in the very millisecond of a wait's deadline.
    EventAtTheDeadline = "event in the millisecond of the deadline",
    /// A process was killed while it held runs.
    ProcessKilled = "process killed",
    /// An instance ended in quarantine.
    Quarantined = "instance quarantined",
    /// A parked run could not be used, because someone else had claimed the run in between.
    ParkedRunRefused = "parked run refused by its epoch",
    /// A parked run went on without replay.
    ParkedRunUsed = "parked run used",
}

/// How often each was seen.
#[derive(Clone, Debug, Default)]
pub struct Sometimes(BTreeMap<Rare, u64>);

impl Sometimes {
    pub(super) fn saw(&mut self, rare: Rare) {
        *self.0.entry(rare).or_default() += 1;
    }

    /// Adds what another simulation saw.
    pub fn add(&mut self, other: &Sometimes) {
        for (rare, count) in &other.0 {
            *self.0.entry(*rare).or_default() += count;
        }
    }

    /// How often it was seen.
    pub fn count(&self, rare: Rare) -> u64 {
        self.0.get(&rare).copied().unwrap_or(0)
    }

    /// Those that were never seen.
    pub fn never(&self) -> Vec<Rare> {
        Rare::ALL.iter().copied().filter(|rare| self.count(*rare) == 0).collect()
    }
}
