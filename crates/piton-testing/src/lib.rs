//! What Piton is tested with, for its users and for itself.
//!
//! - [`harness`]: an engine on a virtual clock, advanced by the test.
//! - [`runtime`]: a virtual clock and seeded randomness, so that fourteen days pass in a microsecond and a
//!   failing run can be run again.
//! - [`conformance`]: the suite every store runs, and the test that two stores answer alike.

pub mod conformance;
pub mod harness;
pub mod runtime;

pub use conformance::Stage;
pub use harness::{Harness, StoreKind};
pub use runtime::VirtualRuntime;
