//! Runs the simulator: many seeds, or one with its story.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use clap::Parser;
use piton_testing::sim::{Rare, Report, Sometimes, simulate};

/// Runs the real engine in a simulated world of faults and checks every invariant.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  cargo xtask sim --seeds 20000          twenty thousand seeds, stops at the first violation
  cargo xtask sim --seeds 1000 --from 7  a thousand, from seed 7
  cargo xtask sim --seed 42 --trace      one seed, with one line per action")]
struct Arguments {
    /// How many seeds to run.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Run this seed only.
    #[arg(long)]
    seed: Option<u64>,
    /// Tell the story of that seed.
    #[arg(long, requires = "seed")]
    trace: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(seed) = arguments.seed {
        let report = simulate(seed, arguments.trace);
        print!("{report}");
        return if report.violation.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let (failed, sometimes, transactions) = run_all(arguments.from, arguments.seeds);
    println!("{} seeds, {transactions} transactions", arguments.seeds);
    for rare in Rare::ALL {
        println!("  {:>9}  {rare}", sometimes.count(*rare));
    }
    match failed {
        Some(report) => {
            print!("{}", simulate(report.seed, true));
            println!("again: cargo xtask sim --seed {} --trace", report.seed);
            ExitCode::FAILURE
        }
        None => {
            println!("no violation");
            ExitCode::SUCCESS
        }
    }
}

/// Runs seeds on all cores; the lowest failing one is returned.
fn run_all(from: u64, seeds: u64) -> (Option<Report>, Sometimes, u64) {
    let next = AtomicU64::new(from);
    let failed: Mutex<Option<Report>> = Mutex::new(None);
    let total = Mutex::new((Sometimes::default(), 0));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let lost = failed.lock().is_ok_and(|failed| failed.is_some());
                    if seed >= from + seeds || lost {
                        return;
                    }
                    if (seed - from).is_multiple_of(1_000) && seed > from {
                        eprintln!("{} seeds …", seed - from);
                    }
                    let report = simulate(seed, false);
                    if let Ok(mut total) = total.lock() {
                        total.0.add(&report.sometimes);
                        total.1 += report.transactions;
                    }
                    if report.violation.is_some()
                        && let Ok(mut failed) = failed.lock()
                        && failed.as_ref().is_none_or(|other| other.seed > report.seed)
                    {
                        *failed = Some(report);
                    }
                }
            });
        }
    });
    let (sometimes, transactions) = total.into_inner().unwrap_or_default();
    (failed.into_inner().unwrap_or_default(), sometimes, transactions)
}
