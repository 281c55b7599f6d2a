//! Runs the simulator: many seeds, one with its story, or all planted bugs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use clap::Parser;
use piton_testing::sim::{Cuts, Rare, Report, Sometimes, shrink, simulate, simulate_with};

/// Runs the real engine in a simulated world of faults and checks every invariant.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  cargo xtask sim --seeds 20000          twenty thousand seeds, stops at the first violation
  cargo xtask sim --seeds 1000 --from 7  a thousand, from seed 7
  cargo xtask sim --seed 42 --trace      one seed, with one line per action
  cargo xtask sim --planted              finds every planted bug, and prints after how many seeds")]
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
    /// Leave something out of that seed, as a shortened story says it.
    #[arg(long, requires = "seed", default_value = "")]
    cuts: Cuts,
    /// Tell the story of that seed.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Fail if one of the rare states was never reached: for twenty thousand seeds and more.
    #[arg(long)]
    every_rare_state: bool,
    /// Put the table of this run into a document, between the marks that name it.
    #[arg(long, value_name = "DOCUMENT")]
    write: Option<PathBuf>,
    /// Plant this bug first, or with no name each of them in turn.
    #[cfg(feature = "planted")]
    #[arg(long, num_args = 0..=1)]
    planted: Option<Option<piton_core::planted::Bug>>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    #[cfg(feature = "planted")]
    match arguments.planted {
        Some(None) => return planted::find_all(arguments.write.as_deref()),
        Some(Some(bug)) => planted::plant_everywhere(bug),
        None => {}
    }
    if let Some(seed) = arguments.seed {
        start_thread();
        let report = simulate_with(seed, &arguments.cuts, arguments.trace);
        print!("{report}");
        return if report.violation.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let (failed, sometimes, transactions) = run_all(arguments.from, arguments.seeds);
    println!("{} seeds, {transactions} transactions", arguments.seeds);
    for rare in Rare::ALL {
        println!("  {:>9}  {rare}", sometimes.count(*rare));
    }
    if let Some(report) = failed {
        tell_shortest(&report);
        return ExitCode::FAILURE;
    }
    println!("no violation");
    if let Some(document) = &arguments.write {
        write_table(document, "rare states", &table_of_rare_states(&sometimes));
    }
    let never = sometimes.never();
    if arguments.every_rare_state && !never.is_empty() {
        for rare in never {
            println!("never reached: {rare}");
        }
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn table_of_rare_states(sometimes: &Sometimes) -> String {
    let rows = Rare::ALL.iter().map(|rare| format!("| {rare} | {} |\n", sometimes.count(*rare)));
    format!("| state | reached |\n|---|---|\n{}", rows.collect::<String>())
}

/// Replaces what is between `<!-- name -->` and `<!-- /name -->`.
fn write_table(document: &Path, name: &str, table: &str) {
    let text = fs::read_to_string(document).expect("the document can be read");
    let (start, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let (head, rest) = text.split_once(&start).expect("the document has the first mark");
    let (_, tail) = rest.split_once(&end).expect("the document has the second mark");
    let text = format!("{head}{start}{table}{end}{tail}");
    fs::write(document, text).expect("the document can be written");
}

fn tell_shortest(report: &Report) {
    start_thread();
    let shortest = shrink(report);
    print!("{shortest}");
    let (seed, cuts) = (shortest.seed, &shortest.cuts);
    println!("in full: cargo xtask sim --seed {seed} --trace");
    println!("this:    cargo xtask sim --seed {seed} --trace --cuts {cuts}");
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
                start_thread();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let lost = failed.lock().is_ok_and(|failed| failed.is_some());
                    if seed >= from + seeds || lost {
                        return;
                    }
                    if (seed - from).is_multiple_of(10_000) && seed > from {
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

/// Bugs are planted per thread: each thread that simulates says so first.
fn start_thread() {
    #[cfg(feature = "planted")]
    planted::start_thread();
}

/// The bugs that prove the simulator.
#[cfg(feature = "planted")]
mod planted {
    use std::path::Path;
    use std::process::ExitCode;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Mutex, PoisonError};
    use std::thread;

    use piton_core::planted::{Bug, plant};
    use piton_testing::sim::{Violation, simulate};

    /// Within how many seeds each bug has to be found.
    const SEEDS_MAX: u64 = 1_000;

    static PLANTED: OnceLock<Bug> = OnceLock::new();

    pub(super) fn plant_everywhere(bug: Bug) {
        PLANTED.get_or_init(|| bug);
    }

    pub(super) fn start_thread() {
        plant(PLANTED.get().copied());
    }

    type Found = Option<(u64, Violation)>;

    /// Looks for every bug, prints a table, and fails if one is not found.
    pub(super) fn find_all(document: Option<&Path>) -> ExitCode {
        let next = AtomicUsize::new(0);
        let found: Mutex<Vec<(Bug, Found)>> = Mutex::default();
        let threads = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some(bug) = Bug::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let row = (*bug, find(*bug));
                        found.lock().unwrap_or_else(PoisonError::into_inner).push(row);
                    }
                });
            }
        });
        let mut found = found.into_inner().unwrap_or_default();
        found.sort_by_key(|(bug, _)| *bug);
        let table = table(&found);
        print!("{table}");
        if let Some(document) = document {
            super::write_table(document, "planted bugs", &table);
        }
        let missed = found.iter().any(|(_, found)| found.is_none());
        if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }

    fn find(bug: Bug) -> Found {
        plant(Some(bug));
        (0..SEEDS_MAX).find_map(|seed| Some((seed, simulate(seed, false).violation?)))
    }

    /// As it is in docs/reliability.md.
    fn table(found: &[(Bug, Found)]) -> String {
        let row = |(bug, found): &(Bug, Found)| match found {
            Some((seed, violation)) => {
                format!("| {bug} | {} | {} |\n", violation.invariant, seed + 1)
            }
            None => format!("| {bug} | NOT FOUND | {SEEDS_MAX} |\n"),
        };
        let rows: String = found.iter().map(row).collect();
        format!("| bug | found by | after seeds |\n|---|---|---|\n{rows}")
    }
}
