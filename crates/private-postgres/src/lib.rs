//! A private PostgreSQL server for the length of a test run or a benchmark.
//!
//! Nothing has to be set up by hand: the server's programs are found where distributions put them (or Debian's package is
//! installed), a cluster is made in a temporary directory, and both are gone when the [`Server`] is dropped. The server
//! listens on a Unix socket inside that directory and on a free port of the loopback interface, and keeps `fsync` on.
//!
//! PostgreSQL refuses to run as root: then the server runs as `postgres` or `nobody`.

mod account;
mod programs;
mod server;

pub use programs::Programs;
pub use server::{Place, Server, Stop};
