//! What Piton is tested with, for its users and for itself.
//!
//! - [`runtime`]: a virtual clock and seeded randomness, so that fourteen days pass in a microsecond and a
//!   failing run can be run again.

pub mod harness;
pub mod runtime;

pub use harness::{Harness, StoreKind};
pub use runtime::VirtualRuntime;
