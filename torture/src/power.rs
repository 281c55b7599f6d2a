//! `power`: the power is cut at random moments of a recording, and what the disk may hold then is opened.
//!
//! What was synced is there. Of what was written since, any part may be: each write whole, not at all, or some of its
//! 512-byte sectors, in any order. **A moment is bad if something that was acknowledged before it is missing after
//! SQLite has recovered the files**, or if the rows contradict each other.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use piton_testing::runtime::SplitMix64;
use rusqlite::Connection;
use tempfile::TempDir;

use crate::ledger::{Ack, Files};
use crate::recording::{self, Op};
use crate::verdict::{self, State};

/// What a disk writes as one piece.
const SECTOR_BYTES: usize = 512;

/// How many instances the recorded engine runs, and how many rows the control writes.
const INSTANCES: &str = "160";
const CONTROL_ROWS: &str = "400";

/// So many of the states are audited in full, one in n; each is checked for what was acknowledged.
const AUDIT_ONE_IN: u64 = 10;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many states to try
    #[arg(long, default_value_t = 10_000)]
    states: u64,
    /// Decides where the power is cut and what is left
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let ops = record(&["work", "--instances", INSTANCES])?;
    let acks = ops.iter().filter(|op| matches!(op, Op::Ack { .. })).count();
    let syncs = ops.iter().filter(|op| matches!(op, Op::Sync { .. })).count();
    let writes = |to: &str| {
        let is_to = |op: &&Op| matches!(op, Op::Write { file, .. } if file.ends_with(to));
        ops.iter().filter(is_to).count()
    };
    println!(
        "recorded {acks} acknowledgements, {} writes to the log, {} to the database, {syncs} syncs",
        writes("-wal"),
        writes(".db")
    );
    ensure!(writes(".db") > 0, "no checkpoint was recorded");
    let lost = cut_often(&ops, args.states, args.seed, check_engine)?;
    ensure!(
        lost.is_empty(),
        "LOST in {} of {} states; the first: {}",
        lost.len(),
        args.states,
        lost[0]
    );
    println!("{} states: 0 lost", args.states);

    let ops = record(&["control", "--rows", CONTROL_ROWS])?;
    let states = args.states.div_ceil(10);
    let lost = cut_often(&ops, states, args.seed, check_control)?;
    ensure!(!lost.is_empty(), "the control lost nothing: this test cannot see a loss");
    println!(
        "the control, which does not sync its commits: {states} states, {} of them lost acknowledged rows",
        lost.len()
    );
    Ok(())
}

/// Runs this program under `strace` and reads what it did to its files.
fn record(arguments: &[&str]) -> Result<Vec<Op>> {
    let directory = TempDir::new()?;
    let listing = TempDir::new()?;
    let listing = listing.path().join("strace");
    let (command, options) = arguments.split_first().context("a command")?;
    let status = Command::new("strace")
        .args(["-f", "-y", "-xx", "-s", "1000000", "-o"])
        .arg(&listing)
        .args(["-e", "trace=write,pwrite64,ftruncate,fsync,fdatasync,unlink", "--"])
        .arg(std::env::current_exe()?)
        .arg(command)
        .arg(directory.path())
        .args(options)
        .stdout(Stdio::null())
        .status()
        .context(
            "cannot start strace, which records the writes; on Debian: apt-get install strace",
        )?;
    ensure!(status.success(), "the recorded process failed: {status}");
    let path = fs::canonicalize(directory.path())?;
    recording::read(BufReader::new(File::open(&listing)?), &path.to_string_lossy())
}

type Check = fn(&Path, &[&str], u64) -> Result<()>;

/// Cuts the power `states` times, evenly spread over the recording. Returns what was wrong, once per state.
fn cut_often(ops: &[Op], states: u64, seed: u64, check: Check) -> Result<Vec<String>> {
    let mut random = SplitMix64::new(seed);
    let mut moments: Vec<usize> =
        (0..states).map(|_| random.below(ops.len() as u64 + 1) as usize).collect();
    moments.sort_unstable();
    let scratch = scratch_directory()?;
    let (mut disk, mut acks, mut done, mut wrong) = (Disk::default(), Vec::new(), 0, Vec::new());
    for (state, moment) in moments.into_iter().enumerate() {
        for op in &ops[done..moment] {
            if let Op::Ack { line } = op {
                acks.push(line.as_str());
            }
            disk.apply(op);
        }
        done = moment;
        disk.leave(scratch.path(), &mut random)?;
        let database = Files::new(scratch.path()).database();
        if let Err(error) = check(&database, &acks, state as u64) {
            wrong.push(format!("after {moment} operations: {error:#}"));
        }
        if (state + 1).is_multiple_of(2_000) {
            println!("{:>6} states …", state + 1);
        }
    }
    Ok(wrong)
}

/// In memory where there is such a place: thousands of small databases are written and opened.
fn scratch_directory() -> Result<TempDir> {
    let in_memory = Path::new("/dev/shm");
    Ok(if in_memory.is_dir() { TempDir::new_in(in_memory)? } else { TempDir::new()? })
}

fn check_engine(database: &Path, acks: &[&str], state: u64) -> Result<()> {
    if !database.exists() {
        ensure!(acks.is_empty(), "the file is gone");
        return Ok(());
    }
    let acks: Vec<Ack> = acks.iter().filter_map(|line| Ack::parse(line)).collect();
    let left = State::read(database)?;
    left.check_acks(&acks)?;
    left.check_rows()?;
    if state.is_multiple_of(AUDIT_ONE_IN) && !acks.is_empty() {
        verdict::check_audit(database)?;
    }
    Ok(())
}

fn check_control(database: &Path, acks: &[&str], _: u64) -> Result<()> {
    let count = || {
        Connection::open(database)?.query_row("SELECT count(*) FROM control", [], |row| row.get(0))
    };
    let rows: i64 = if acks.is_empty() { 0 } else { count()? };
    ensure!(rows >= acks.len() as i64, "{} rows were acknowledged, {rows} are there", acks.len());
    Ok(())
}

/// The files as the disk has them, and what is still on its way there.
#[derive(Default)]
struct Disk {
    files: BTreeMap<String, Synced>,
}

#[derive(Default)]
struct Synced {
    bytes: Vec<u8>,
    unsynced: Vec<Op>,
}

impl Disk {
    fn apply(&mut self, op: &Op) {
        match op {
            Op::Write { file, .. } | Op::Truncate { file, .. } => {
                self.files.entry(file.clone()).or_default().unsynced.push(op.clone());
            }
            Op::Sync { file } => {
                let synced = self.files.entry(file.clone()).or_default();
                for op in std::mem::take(&mut synced.unsynced) {
                    put(&mut synced.bytes, &op);
                }
            }
            Op::Unlink { file } => drop(self.files.remove(file)),
            Op::Ack { .. } => {}
        }
    }

    /// Writes what a power loss could leave.
    fn leave(&self, directory: &Path, random: &mut SplitMix64) -> Result<()> {
        for entry in fs::read_dir(directory)? {
            fs::remove_file(entry?.path())?;
        }
        let luck = Luck::random(random);
        for (name, Synced { bytes, unsynced }) in &self.files {
            let mut bytes = bytes.clone();
            for op in luck.survivors(unsynced, random) {
                put(&mut bytes, &op);
            }
            fs::write(directory.join(name), bytes)?;
        }
        Ok(())
    }
}

fn put(file: &mut Vec<u8>, op: &Op) {
    match op {
        Op::Write { offset, bytes, .. } => {
            let (start, end) = (*offset as usize, *offset as usize + bytes.len());
            if file.len() < end {
                file.resize(end, 0);
            }
            file[start..end].copy_from_slice(bytes);
        }
        Op::Truncate { length, .. } => file.resize(*length as usize, 0),
        Op::Unlink { .. } | Op::Sync { .. } | Op::Ack { .. } => {}
    }
}

/// What the disk did with writes that nobody synced.
#[derive(Clone, Copy)]
enum Luck {
    /// Nothing.
    None,
    /// All of them.
    All,
    /// Those up to some moment, the last one perhaps in part.
    Prefix,
    /// Some of them.
    Some,
    /// Some of their sectors.
    Torn,
}

impl Luck {
    fn random(random: &mut SplitMix64) -> Self {
        [Luck::None, Luck::All, Luck::Prefix, Luck::Some, Luck::Torn][random.below(5) as usize]
    }

    fn survivors(self, unsynced: &[Op], random: &mut SplitMix64) -> Vec<Op> {
        let written = unsynced.iter().cloned();
        match self {
            Luck::None => Vec::new(),
            Luck::All => written.collect(),
            Luck::Prefix => {
                let count = random.below(unsynced.len() as u64 + 1) as usize;
                let torn = unsynced.get(count).into_iter().flat_map(|op| sectors(op, random));
                let torn: Vec<Op> = torn.collect();
                written.take(count).chain(torn).collect()
            }
            Luck::Some => written.filter(|_| random.below(2) == 0).collect(),
            Luck::Torn => unsynced.iter().flat_map(|op| sectors(op, random)).collect(),
        }
    }
}

/// Some of the sectors of a write.
fn sectors(op: &Op, random: &mut SplitMix64) -> Vec<Op> {
    let Op::Write { file, offset, bytes } = op else {
        return if random.below(2) == 0 { vec![op.clone()] } else { Vec::new() };
    };
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        // Sectors are those of the file, wherever the write begins.
        let in_sector = (*offset as usize + at) % SECTOR_BYTES;
        let end = bytes.len().min(at + SECTOR_BYTES - in_sector);
        if random.below(2) == 0 {
            let (offset, bytes) = (*offset + at as u64, bytes[at..end].to_vec());
            kept.push(Op::Write { file: file.clone(), offset, bytes });
        }
        at = end;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(offset: u64, bytes: &[u8]) -> Op {
        Op::Write { file: "f".to_owned(), offset, bytes: bytes.to_vec() }
    }

    #[test]
    fn what_is_synced_survives_every_luck_and_what_is_not_survives_some() {
        let mut disk = Disk::default();
        disk.apply(&write(0, b"synced"));
        disk.apply(&Op::Sync { file: "f".to_owned() });
        disk.apply(&write(6, b"+"));
        let directory = TempDir::new().expect("a directory");
        let mut random = SplitMix64::new(1);
        let mut lengths = [0; 2];
        for _ in 0..100 {
            disk.leave(directory.path(), &mut random).expect("left");
            let left = fs::read(directory.path().join("f")).expect("read");
            assert!(left.starts_with(b"synced"));
            lengths[left.len() - 6] += 1;
        }
        assert!(lengths.iter().all(|count| *count > 10), "{lengths:?}");
    }

    #[test]
    fn a_torn_write_keeps_whole_sectors_of_the_file() {
        let torn = write(500, &[7; 1_100]);
        let mut random = SplitMix64::new(1);
        for _ in 0..50 {
            for op in sectors(&torn, &mut random) {
                let Op::Write { offset, bytes, .. } = op else { panic!("a write") };
                let end = offset as usize + bytes.len();
                assert!(offset == 500 || offset.is_multiple_of(512), "{offset}");
                assert!(end == 1_600 || end.is_multiple_of(512), "{end}");
            }
        }
    }
}
