//! What all engines do: workflows of a number of trivial steps, a number of them outstanding at any time.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Error};
use serde::{Deserialize, Serialize};

/// One workload, written `10x64`: ten steps, 64 in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Workload {
    pub(crate) steps: u32,
    pub(crate) in_flight: u32,
}

impl Workload {
    /// Those of the published table.
    pub(super) const ALL: [Workload; 6] = [
        Workload { steps: 3, in_flight: 1 },
        Workload { steps: 3, in_flight: 64 },
        Workload { steps: 3, in_flight: 256 },
        Workload { steps: 10, in_flight: 1 },
        Workload { steps: 10, in_flight: 64 },
        Workload { steps: 10, in_flight: 256 },
    ];
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} steps, {} in flight", self.steps, self.in_flight)
    }
}

impl FromStr for Workload {
    type Err = Error;

    fn from_str(text: &str) -> Result<Workload, Error> {
        let parsed = || {
            let (steps, in_flight) = text.split_once('x')?;
            let workload =
                Workload { steps: steps.parse().ok()?, in_flight: in_flight.parse().ok()? };
            (workload.steps > 0 && workload.in_flight > 0).then_some(workload)
        };
        parsed().context("write steps and workflows in flight, both at least 1, as in 10x64")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_is_written_as_steps_by_workflows_in_flight() {
        let parsed: Workload = "10x64".parse().unwrap();
        assert_eq!(parsed, Workload { steps: 10, in_flight: 64 });
        for wrong in ["10", "x", "10x", "0x64", "10x0", "ax64"] {
            assert!(wrong.parse::<Workload>().is_err(), "{wrong}");
        }
    }
}
