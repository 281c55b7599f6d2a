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
    /// A lease that had run out was extended, because nobody had taken it.
    ExpiredLeaseRenewed = "expired lease renewed by its holder",
    /// A lease was handed back.
    LeaseReleased = "lease handed back",
    /// A body was executed again for the same attempt.
    BodyRepeated = "body executed again for the same attempt",
    /// A restart while a body was running.
    RestartDuringBody = "restart during a body",
    /// A terminate while a body was running.
    TerminateDuringBody = "terminate during a body",
    /// A pause while a body was running.
    PauseDuringBody = "pause during a body",
    /// A pause came while a result was on its way to the store.
    PauseBeforeCommit = "pause between body and commit",
    /// A restart came while a result was on its way to the store.
    RestartBeforeCommit = "restart between body and commit",
    /// A terminate came while a result was on its way to the store.
    TerminateBeforeCommit = "terminate between body and commit",
    /// An event came while the registration of its wait was on its way to the store.
    EventBeforeRegistration = "event while its wait is being registered",
    /// An event arrived in the very millisecond of a wait's deadline.
    EventAtTheDeadline = "event in the millisecond of the deadline",
    /// A wait took an event after its deadline, because the event had come before.
    EventTakenAfterTheDeadline = "event in time, taken after the deadline",
    /// A wait timed out although an event of its type was there: it came too late.
    EventTooLate = "event too late, left for the next wait",
    /// The loser of a race was given up by the code.
    LoserGivenUp = "loser of a race given up",
    /// A step's transaction was refused.
    TransactionRefused = "step transaction refused",
    /// A pause took the lease of a runner that had let it run out.
    PausedByExpiry = "pause of a run whose lease had run out",
    /// A pause was taken back before it took effect.
    PauseTakenBack = "pause taken back before it took effect",
    /// An instance was created leased to the runner of its process.
    CreatedLeased = "instance created with a lease",
    /// A run that an event woke was leased to the runner of the process that sent it.
    WokenLeased = "run leased with its event",
    /// New work was claimed before work that resumes, because it had waited too long.
    NewWorkFirst = "new work that waited long claimed before resuming work",
    /// A process was killed while it held runs.
    ProcessKilled = "process killed",
    /// A process executed a step, or the handler of a hook, that killed it.
    KilledFromWithin = "process killed by what it executes",
    /// A process was asked to stop, and did.
    StoppedPolitely = "process stopped politely",
    /// A run that may have killed its runners was claimed, the only one of its kind.
    SuspectClaimed = "suspect claimed alone",
    /// An instance ended in quarantine.
    Quarantined = "instance quarantined",
    /// A parked run could not be used, because someone else had claimed the run in between.
    ParkedRunRefused = "parked run refused by its epoch",
    /// A parked run went on without replay.
    ParkedRunUsed = "parked run used",
    /// A hook was taken from a process that had let its lease run out.
    HookTakenOver = "hook taken over",
    /// A hook failed and was put back for later.
    HookRetried = "hook put back for a retry",
    /// A hook that may have killed its processes was taken, the only one of its kind.
    HookSuspectTaken = "suspect hook taken alone",
    /// A hook whose processes died again and again was given up.
    HookGivenUp = "hook given up",
    /// Hooks were taken or settled, but their process never heard of it.
    HookWorkWithoutAnswer = "hooks worked on, answer lost",
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
