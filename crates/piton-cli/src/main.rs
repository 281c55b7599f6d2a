//! `piton`: see and steer workflows from a terminal, over HTTP. It knows no engine and no database.
//!
//! ```text
//! args (+ help) ──> commands ──> api ──> http ──> the server
//!                      │
//!                      └── sentences, timeline, paint, text, time ──> stdout; notes and errors ──> stderr
//! ```

mod api;
mod args;
mod clock;
mod commands;
mod config;
mod failure;
mod help;
mod http;
mod paint;
mod sentences;
mod session;
mod text;
mod time;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Cli;

fn main() -> ExitCode {
    match commands::run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read it has seen enough.
        Err(failure) if failure.reader_gone => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::from(failure.exit as u8)
        }
    }
}
