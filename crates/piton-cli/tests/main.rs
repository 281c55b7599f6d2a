//! The `piton` command, run as a user runs it: a real process against a real `piton-demo` on a real socket.
//!
//! What it prints is compared with files in `tests/snapshots`; `UPDATE=1 cargo nextest run -p piton-cli` writes them anew.

mod follow;
mod help;
mod safety;
mod stories;
mod support;
