//! What Piton is tested with, for its users and for itself.
//!
//! - [`harness`]: an engine on a virtual clock, advanced by the test.
//! - [`runtime`]: a virtual clock and seeded randomness, so that fourteen days pass in a microsecond and a
//!   failing run can be run again.
//! - [`sim`]: the real engine in a simulated world of faults, every invariant checked after every step.
//! - `postgres` (with the feature of that name): a schema on a PostgreSQL server for one test.
//! - [`conformance`]: the suite every store runs, and the test that two stores answer alike.

pub mod conformance;
pub mod harness;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod runtime;
pub mod sim;

pub use conformance::Stage;
pub use harness::{Harness, StoreKind};
pub use runtime::VirtualRuntime;
