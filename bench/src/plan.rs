//! How much is measured: everything that differs between a full, a quick and a tiny run.

use std::time::Duration;

/// The counts and spans of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Rounds of a throughput workload; each measures the ceiling and the engine.
    pub(crate) throughput_rounds: usize,
    /// How long one round creates workflows.
    pub(crate) throughput_round: Duration,
    /// How long each ceiling of a round is measured.
    pub(crate) ceiling_round: Duration,
    /// Pairs that are not counted: the write-ahead log grows to its working size of some 4,000 pages, and a commit into
    /// a growing file takes longer.
    pub(crate) latency_warm_up: usize,
    /// Pairs of one workflow and its four bare commits, at most.
    pub(crate) latency_samples: usize,
    /// Events sent one at a time, at most.
    pub(crate) event_samples: usize,
    /// No sample is begun after this long: on a slow disk there are fewer, and the run still ends.
    pub(crate) samples_for: Duration,
    /// Instances that wake in the same millisecond.
    pub(crate) sleepers: usize,
    /// Sleeping instances in the database of `at_rest_1m`.
    pub(crate) at_rest: usize,
    /// How long the idle engine is watched.
    pub(crate) idle: Duration,
    /// Rounds of `workers_1_to_4`; each starts one, two and four workers.
    pub(crate) workers_rounds: usize,
    /// Instances that they share.
    pub(crate) workers_instances: u64,
}

/// What the musts and aims of `sleepers_100k` are stated for.
pub(crate) const SLEEPERS_FULL: usize = 100_000;

impl Plan {
    /// What the published numbers come from; under three minutes.
    pub(crate) const FULL: Plan = Plan {
        throughput_rounds: 7,
        throughput_round: Duration::from_millis(1_500),
        ceiling_round: Duration::from_millis(400),
        latency_warm_up: 400,
        latency_samples: 2_000,
        event_samples: 2_000,
        samples_for: Duration::from_secs(15),
        sleepers: SLEEPERS_FULL,
        at_rest: 1_000_000,
        idle: Duration::from_secs(10),
        workers_rounds: 3,
        workers_instances: 6_000,
    };

    /// Good for a comparison while working; under one minute.
    pub(crate) const QUICK: Plan = Plan {
        throughput_rounds: 3,
        throughput_round: Duration::from_millis(1_000),
        ceiling_round: Duration::from_millis(200),
        latency_warm_up: 400,
        latency_samples: 500,
        event_samples: 500,
        samples_for: Duration::from_secs(5),
        sleepers: 20_000,
        at_rest: 100_000,
        idle: Duration::from_secs(5),
        workers_rounds: 2,
        workers_instances: 2_000,
    };

    /// Shows that every workload works; its numbers mean nothing.
    pub(crate) const TINY: Plan = Plan {
        throughput_rounds: 1,
        throughput_round: Duration::from_millis(200),
        ceiling_round: Duration::from_millis(50),
        latency_warm_up: 2,
        latency_samples: 20,
        event_samples: 20,
        samples_for: Duration::from_secs(1),
        sleepers: 500,
        at_rest: 2_000,
        idle: Duration::from_secs(1),
        workers_rounds: 1,
        workers_instances: 50,
    };
}
