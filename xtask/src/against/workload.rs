//! What all engines do.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Error};
use serde::{Deserialize, Serialize};

/// One workload; the order is that of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Workload {
    /// Workflows of trivial steps, a number of them outstanding at any time. Written `10x64`: ten steps, 64 in flight.
    Chain { steps: u32, in_flight: u32 },
    /// A thousand workflows of three steps at once, the first that a new process gets.
    Burst,
    /// The same behind forty workflows, one after the other.
    WarmBurst,
    /// Events to waiting workflows, one after the other.
    Event,
    /// Workflows that sleep to the same moment.
    Sleep,
    /// Nothing.
    Idle,
}

/// How often and how long each engine is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) rounds: usize,
    /// How many workflows.
    count: u32,
    /// What the driver is told: the window; for sleepers how long they have to fall asleep.
    pub(super) seconds: f64,
}

/// What a round takes at most beside its span: start, first calls, warm-up, and the patience of the driver.
const ROUND_MAX: Duration = Duration::from_secs(60);

impl Workload {
    /// Those of the published tables, in the order in which they are measured.
    pub(super) const ALL: [Workload; 13] = [
        Workload::Idle,
        Workload::Chain { steps: 3, in_flight: 1 },
        Workload::Chain { steps: 3, in_flight: 64 },
        Workload::Chain { steps: 3, in_flight: 256 },
        Workload::Chain { steps: 3, in_flight: 1000 },
        Workload::Chain { steps: 10, in_flight: 1 },
        Workload::Chain { steps: 10, in_flight: 64 },
        Workload::Chain { steps: 10, in_flight: 256 },
        Workload::Chain { steps: 10, in_flight: 1000 },
        Workload::Burst,
        Workload::WarmBurst,
        Workload::Event,
        Workload::Sleep,
    ];

    pub(super) fn plan(self, quick: bool) -> Plan {
        let (rounds, count, seconds) = match self {
            Workload::Chain { in_flight, .. } => (3, in_flight, 2.0),
            Workload::Burst | Workload::WarmBurst => (3, 1_000, 1.0),
            Workload::Event => (3, 200, 2.0),
            Workload::Sleep => (1, 10_000, 6.0),
            Workload::Idle => (3, 1, 1.0),
        };
        if !quick {
            return Plan { rounds, count, seconds };
        }
        let seconds = if self == Workload::Sleep { 3.0 } else { 1.0 };
        Plan { rounds: 1, count, seconds }
    }

    /// What a driver is told.
    pub(super) fn arguments(self, plan: Plan) -> Vec<String> {
        let (kind, steps) = match self {
            Workload::Chain { steps, .. } => ("chain", steps),
            Workload::Burst => ("burst", 3),
            Workload::WarmBurst => ("warm-burst", 3),
            Workload::Event => ("event", 3),
            Workload::Sleep => ("sleep", 3),
            Workload::Idle => ("idle", 3),
        };
        let Plan { count, seconds, .. } = plan;
        let line = format!("--workload {kind} --steps {steps} --count {count} --seconds {seconds}");
        line.split(' ').map(str::to_owned).collect()
    }

    /// What it is called on the command line, beside chains.
    fn named(name: &str) -> Option<Workload> {
        match name {
            "burst" => Some(Workload::Burst),
            "warm-burst" => Some(Workload::WarmBurst),
            "event" => Some(Workload::Event),
            "sleep" => Some(Workload::Sleep),
            "idle" => Some(Workload::Idle),
            _ => None,
        }
    }
}

impl Plan {
    /// The longest a round may take.
    pub(super) fn patience(self) -> Duration {
        Duration::from_secs_f64(self.seconds) + ROUND_MAX
    }

    /// What all rounds of one engine take, about: most of it is known, the rest was seen.
    pub(super) fn expected(self) -> Duration {
        Duration::from_secs_f64(self.seconds + 3.0) * self.rounds as u32
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Workload::Chain { steps, in_flight } => {
                write!(f, "{steps} steps, {in_flight} in flight")
            }
            Workload::Burst => write!(f, "1,000 starts on a cold process"),
            Workload::WarmBurst => write!(f, "1,000 starts on a warm process"),
            Workload::Event => write!(f, "Event to resumed step"),
            Workload::Sleep => write!(f, "Asleep to one moment"),
            Workload::Idle => write!(f, "At rest"),
        }
    }
}

impl FromStr for Workload {
    type Err = Error;

    fn from_str(text: &str) -> Result<Workload, Error> {
        let chain = || {
            let (steps, in_flight) = text.split_once('x')?;
            let (steps, in_flight) = (steps.parse().ok()?, in_flight.parse().ok()?);
            (steps > 0 && in_flight > 0).then_some(Workload::Chain { steps, in_flight })
        };
        Workload::named(text).or_else(chain).context(
            "write steps and workflows in flight, both at least 1, as in 10x64; \
             or burst, warm-burst, event, sleep or idle",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_is_written_as_steps_by_workflows_in_flight_or_by_its_name() {
        let parsed: Workload = "10x64".parse().unwrap();
        assert_eq!(parsed, Workload::Chain { steps: 10, in_flight: 64 });
        assert_eq!("warm-burst".parse::<Workload>().unwrap(), Workload::WarmBurst);
        for wrong in ["10", "x", "10x", "0x64", "10x0", "ax64", "bursts"] {
            assert!(wrong.parse::<Workload>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_driver_is_told_everything() {
        let workload = Workload::Chain { steps: 10, in_flight: 64 };
        let told = workload.arguments(workload.plan(false)).join(" ");
        assert_eq!(told, "--workload chain --steps 10 --count 64 --seconds 2");
    }

    #[test]
    fn all_workloads_are_read_back_from_json() {
        let json = serde_json::to_string(&Workload::ALL).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Workload>>(&json).unwrap(), Workload::ALL);
    }
}
