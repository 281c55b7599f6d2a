//! What Piton is tested with, for its users and for itself.
//!
//! - [`Harness`]: an engine on a virtual clock, advanced by the test, with mocks for its steps and the outside world.
//! - [`scenario`]: tests as a list of steps.
//! - [`runtime`]: a virtual clock and seeded randomness, so that fourteen days pass in a microsecond and a
//!   failing run can be run again.
//! - [`sim`]: the real engine in a simulated world of faults, every invariant checked after every step.
//! - `postgres` (with the feature of that name): a schema on a PostgreSQL server for one test.
//! - [`conformance`]: the suite every store runs, and the test that two stores answer alike.

pub mod access;
pub mod conformance;
mod crash;
pub mod harness;
mod harness_builder;
mod mocks;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "postgres")]
#[doc(hidden)]
pub mod proxy;
mod replay;
pub mod runtime;
pub mod scenario;
pub mod sim;
mod stores;

pub use access::{Access, NextCommit};
pub use conformance::Stage;
pub use crash::{CrashStory, CrashTest, Survived, survives_crash_at_every_boundary};
pub use harness::{Harness, Progress, Rows};
pub use harness_builder::HarnessBuilder;
pub use mocks::{MockStep, MockWait};
pub use replay::{Difference, replays_the_same};
pub use runtime::VirtualRuntime;
pub use stores::StoreKind;
