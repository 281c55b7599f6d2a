//! The small closed sets: statuses, types and levels, with the words they are stored and shown as.

use std::fmt;
use std::str::FromStr;

/// A stored word that is not one of ours: the database was written by something else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word:?} is not a known {what}; there are {}", .known.join(", "))]
pub struct UnknownWord {
    /// What the word should have been.
    pub what: &'static str,
    /// The word that was found.
    pub word: String,
    /// The words there are.
    pub known: &'static [&'static str],
}

macro_rules! words {
    (
        $(#[$doc:meta])* $type:ident, $what:literal,
        { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),* $(,)? }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $type {
            $($(#[$variant_doc])* $variant),*
        }

        impl $type {
            /// All of them, in order.
            pub const ALL: &'static [$type] = &[$($type::$variant),*];

            /// The word for it, the same in Rust, SQL, HTTP and the CLI.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($type::$variant => $word),*
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $type {
            type Err = UnknownWord;

            fn from_str(word: &str) -> Result<Self, UnknownWord> {
                match word {
                    $($word => Ok($type::$variant),)*
                    _ => Err(UnknownWord { what: $what, word: word.to_owned(), known: &[$($word),*] }),
                }
            }
        }
    };
}

words!(
    /// The six statuses of an instance.
    InstanceStatus, "instance status",
    {
        /// Eligible to run, or running.
        Active = "active",
        /// Hibernating: a sleep, a retry delay or a wait for an event.
        Waiting = "waiting",
        /// Paused by someone; nothing runs until it is resumed.
        Paused = "paused",
        /// Ended with an output.
        Complete = "complete",
        /// Ended with an error.
        Errored = "errored",
        /// Ended by someone.
        Terminated = "terminated",
    }
);

impl InstanceStatus {
    /// Whether the run has ended.
    ///
    /// ```
    /// use piton_core::InstanceStatus;
    /// assert!(InstanceStatus::Errored.is_terminal() && !InstanceStatus::Paused.is_terminal());
    /// ```
    pub const fn is_terminal(self) -> bool {
        match self {
            InstanceStatus::Complete | InstanceStatus::Errored | InstanceStatus::Terminated => true,
            InstanceStatus::Active | InstanceStatus::Waiting | InstanceStatus::Paused => false,
        }
    }
}

words!(
    /// The status of a hook.
    HookStatus, "hook status",
    {
        /// Waits for its time, or for its retry.
        Pending = "pending",
        /// Somebody has it in hand, until the lease runs out; or had it, and whoever is next is careful with it.
        Processing = "processing",
        /// Its handler has returned.
        Completed = "completed",
        /// Its attempts are used up; it is kept with the last error.
        Failed = "failed",
    }
);

words!(
    /// The three types of step.
    StepType, "step type",
    {
        /// `step.run` and `step.run_with`: a body that is executed.
        Do = "do",
        /// `step.sleep` and `step.sleep_until`.
        Sleep = "sleep",
        /// `step.wait_for_event`.
        WaitForEvent = "waitForEvent",
    }
);

words!(
    /// The status of a recorded step.
    StepStatus, "step status",
    {
        /// Reached, but the code no longer waits for it: the loser of a `select!`.
        Pending = "pending",
        /// A sleep, a wait for an event, or a failed attempt that will be retried.
        Waiting = "waiting",
        /// Done; the result never changes.
        Completed = "completed",
        /// Failed for good; the error never changes.
        Errored = "errored",
    }
);

impl StepStatus {
    /// Whether the step has its final outcome.
    ///
    /// ```
    /// use piton_core::StepStatus;
    /// assert!(StepStatus::Errored.is_settled() && !StepStatus::Waiting.is_settled());
    /// ```
    pub const fn is_settled(self) -> bool {
        match self {
            StepStatus::Completed | StepStatus::Errored => true,
            StepStatus::Pending | StepStatus::Waiting => false,
        }
    }
}

words!(
    /// Why a task is due.
    TaskKind, "task kind",
    {
        /// A new run that has never been suspended.
        Run = "run",
        /// Resumed after a pause.
        Resume = "resume",
        /// A failed step is to be tried again.
        Retry = "retry",
        /// A sleep ended, an event arrived, or a wait timed out.
        Wake = "wake",
    }
);

impl TaskKind {
    /// Whether it continues something that waited: such work goes before new runs.
    pub const fn is_resuming(self) -> bool {
        match self {
            TaskKind::Resume | TaskKind::Retry | TaskKind::Wake => true,
            TaskKind::Run => false,
        }
    }
}

words!(
    /// Who may touch a task.
    TaskState, "task state",
    {
        /// Waits for `run_at`; anyone may claim it then.
        Pending = "pending",
        /// A runner advances the run until `lease_until`.
        Leased = "leased",
        /// The instance is paused: outside every index that claims look at.
        Held = "held",
        /// Due, and claimed often without progress: a runner takes one such task at a time.
        Suspect = "suspect",
    }
);

words!(
    /// The level of a log line.
    LogLevel, "log level",
    {
        /// For developers.
        Debug = "debug",
        /// For operators.
        Info = "info",
        /// Something to look at.
        Warn = "warn",
        /// Something went wrong.
        Error = "error",
    }
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_back() {
        for status in InstanceStatus::ALL {
            assert_eq!(status.as_str().parse(), Ok(*status));
        }
        assert_eq!("Active".parse::<InstanceStatus>().map_err(|e| e.what), Err("instance status"));
        assert_eq!("waitForEvent".parse(), Ok(StepType::WaitForEvent));
        let unknown = "stuck".parse::<HookStatus>().expect_err("there is none");
        assert_eq!(
            unknown.to_string(),
            "\"stuck\" is not a known hook status; there are pending, processing, completed, failed"
        );
    }

    #[test]
    fn three_statuses_are_terminal() {
        let terminal: Vec<_> = InstanceStatus::ALL.iter().filter(|s| s.is_terminal()).collect();
        assert_eq!(
            terminal,
            [&InstanceStatus::Complete, &InstanceStatus::Errored, &InstanceStatus::Terminated]
        );
    }

    #[test]
    fn two_step_statuses_are_final_and_three_kinds_of_task_resume() {
        let settled: Vec<_> = StepStatus::ALL.iter().filter(|s| s.is_settled()).collect();
        assert_eq!(settled, [&StepStatus::Completed, &StepStatus::Errored]);
        let resuming: Vec<_> = TaskKind::ALL.iter().filter(|kind| kind.is_resuming()).collect();
        assert_eq!(resuming, [&TaskKind::Resume, &TaskKind::Retry, &TaskKind::Wake]);
    }
}
