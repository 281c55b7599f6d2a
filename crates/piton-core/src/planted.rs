//! Known bugs that a test build can switch on, to prove that the simulator finds them.
//!
//! A suite that cannot see a planted bug proves nothing. Each [`Bug`] is one line of code that is wrong, at the
//! place where the mistake would really be made. Without the feature `planted`, which no release has,
//! [`planted`] is the constant `false` and the compiler removes every one of them.

use std::fmt;
use std::str::FromStr;

macro_rules! bugs {
    ($($(#[$doc:meta])* $bug:ident = $name:literal),* $(,)?) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Bug {
            $($(#[$doc])* $bug),*
        }

        impl Bug {
            /// All of them.
            pub const ALL: &'static [Bug] = &[$(Bug::$bug),*];
        }

        impl fmt::Display for Bug {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Bug::$bug => $name),*
                })
            }
        }

        impl FromStr for Bug {
            type Err = String;

            fn from_str(name: &str) -> Result<Self, String> {
                match name {
                    $($name => Ok(Bug::$bug),)*
                    _ => Err(format!("there is no bug named {name:?}")),
                }
            }
        }
    };
}

bugs! {
    /// The guard lets writes of any epoch pass.
    NoEpochCheck = "no epoch check",
    /// The guard lets writes for any run pass.
    NoRunCheck = "no run check",
    /// A claim does not raise the epoch.
    ClaimKeepsEpoch = "claim without a new epoch",
    /// A restart does not raise the epoch, and runs are not compared either.
    RestartKeepsEpoch = "restart without a new epoch",
    /// A terminate leaves the task, and with it the epoch, as they are.
    TerminateKeepsTask = "terminate leaves the task",
    /// A claim removes the task, as a queue that forgets what it hands out would.
    TaskDeletedOnClaim = "task deleted on claim",
    /// A lease that ran out is never taken over.
    LeaseNeverExpires = "lease never expires",
    /// The task of a paused instance can still be claimed.
    PausedRunClaimed = "paused run claimed",
    /// A run that hibernates forgets that a pause was asked for.
    PauseForgotten = "pause forgotten by a suspension",
    /// A wait is registered in one transaction and looks for its event in the next.
    WaitSplit = "wait registration and event look split",
    /// An event does not make its waiter due.
    WakeUpLost = "wake-up lost",
    /// A wait takes the newest event.
    EventNotFifo = "event not FIFO",
    /// A consumed event can be consumed again.
    EventTakenTwice = "consumed event consumed twice",
    /// An event that came in time loses against the timeout, if it is looked at late.
    TimeoutBeatsEvent = "timeout beats an event that came in time",
    /// An event that came after the deadline counts.
    DeadlineIgnored = "event after the deadline counts",
    /// Sleeps are compared with the later bound of the store's clock.
    TimerEarly = "timer early",
    /// A retry does not wait for its delay.
    RetryGapIgnored = "retry gap ignored",
    /// A step gets one attempt too many.
    RetryLimitOffByOne = "retry limit off by one",
    /// Log lines are added to a run that has ended.
    EndedRunChanged = "ended run changed",
    /// A boundary writes the row of an earlier step once more.
    StepOverwritten = "step result overwritten",
    /// A replay does not see the newest recorded step.
    RecordedStepForgotten = "recorded step forgotten by replay",
    /// A parked run goes on, whoever has claimed the run in between.
    StaleParkedRun = "stale parked run used",
    /// A body starts before the results it builds on are committed.
    EarlyStart = "body starts before its commit",
    /// An event is acknowledged although the store did not take it.
    EarlyAck = "early acknowledgement",
    /// What a step's transaction sends is sent twice.
    MutationTwice = "mutation applied twice",
    /// What a failed attempt wanted to send is sent.
    FailedAttemptMutates = "failed attempt mutates",
    /// Claims take the youngest due task first.
    ClaimYoungestFirst = "claim takes the youngest first",
    /// New runs wait for as long as there is anything to resume.
    NewWorkStarves = "new work starves",
    /// A run that may be what kills its runners is claimed like any other.
    SuspectsNotSetAside = "suspects not set aside",
    /// Several runs that may be what kills their runners are given to one of them.
    SuspectsTogether = "suspects claimed together",
    /// A run that kills its runners goes on doing so.
    NoQuarantine = "no quarantine",
    /// Work is looked for when a hint comes, and at no other time.
    HintsTrusted = "hints trusted",
    /// A hook runs before its time.
    HookEarly = "hook before its time",
    /// What a process that lost a hook says of it is believed.
    HookEpochIgnored = "hook epoch ignored",
    /// A hook that failed is not tried again.
    HookFailureForgotten = "hook failure forgotten",
    /// A hook is forgotten as soon as it is taken.
    HookDeletedOnClaim = "hook deleted on claim",
    /// Several hooks that may be what kills their processes are given to one of them.
    HookSuspectsTogether = "suspect hooks taken together",
    /// A hook that kills its processes goes on doing so.
    HookNeverGivenUp = "hook never given up",
    /// A page begins one row too late.
    PageSkipsRow = "page skips a row",
}

/// Whether this bug is switched on, on this thread.
#[cfg(feature = "planted")]
pub fn planted(bug: Bug) -> bool {
    switch::PLANTED.get() == Some(bug)
}

/// Whether this bug is switched on: never, in this build.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn planted(_: Bug) -> bool {
    false
}

#[cfg(feature = "planted")]
pub use switch::plant;

#[cfg(feature = "planted")]
mod switch {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        pub(super) static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Switches one bug on, or all off, for what runs on this thread from now on.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }
}
