//! One round: a driver runs once, and is looked at from outside meanwhile.
//!
//! ```text
//!   driver:  ready ──── start ─────────────── stop ── result ── end of its input ── gone
//!   we:      start-up   what was spent so far  again  the numbers
//!            └───────── memory, now and then ───────┘
//! ```

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::group::{Group, Interrupt, LOOK_EVERY, now};
use super::report::{Measured, Sample};
use super::usage::{Spent, family, files_bytes, memory_bytes};

/// How often memory is looked at: often enough for its peak, seldom enough to cost nothing.
const MEMORY_EVERY: Duration = Duration::from_millis(200);

/// How long a driver may take to go when it has told its result.
const GO_MAX: Duration = Duration::from_secs(10);

/// Where a driver keeps its state: what is looked at beside its own process.
#[derive(Debug, Default)]
pub(super) struct Surroundings {
    /// The process of the server it uses.
    pub(super) server: Option<u32>,
    /// Where the data is.
    pub(super) data: Option<PathBuf>,
    /// What the server took to start, if it was started for this round.
    pub(super) server_start: Duration,
}

/// What a round has cost, in the driver's process and in its server.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Cost {
    /// From the start of the process until the engine has started.
    pub(super) start_ms: f64,
    pub(super) driver: Part,
    pub(super) server: Option<Part>,
    /// By how much the data on disk grew.
    pub(super) disk_bytes: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Part {
    /// From start to stop.
    pub(super) spent: Spent,
    /// At the stop.
    pub(super) memory_bytes: u64,
    pub(super) memory_peak_bytes: u64,
}

/// Runs a driver.
pub(super) fn run(
    command: &mut Command,
    surroundings: &Surroundings,
    patience: Duration,
    interrupt: &Interrupt,
) -> Result<Sample> {
    let scratch = super::scratch()?;
    let told = scratch.path().join("err");
    command.stdout(Stdio::piped()).stderr(File::create(&told)?);
    let begin = now();
    let mut driver = Group::start_with_input(command)?;
    let lines = lines(driver.output().context("its output is not ours")?);
    let mut watch = Watch::new(&driver, surroundings, begin);
    match watch.until_result(&lines, begin + patience, interrupt)? {
        Some(measured) => {
            let cost = watch.cost().context("the driver told a result, but not all phases")?;
            driver.end_input();
            // One that does not go by itself is made to.
            let _ = driver.wait(GO_MAX, interrupt);
            interrupt.check()?;
            Ok(Sample { measured, cost })
        }
        None => {
            let told = fs::read_to_string(&told).unwrap_or_default();
            bail!("{}", last_line(&told).unwrap_or("the driver failed"));
        }
    }
}

fn last_line(text: &str) -> Option<&str> {
    text.lines().rev().map(str::trim).find(|line| !line.is_empty())
}

/// A thread that reads, so that nobody waits for a line without looking at the clock.
fn lines(output: impl Read + Send + 'static) -> Receiver<String> {
    let (told, heard) = channel();
    // It ends with the output.
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if told.send(line).is_err() {
                break;
            }
        }
    });
    heard
}

struct Watch<'a> {
    driver: u32,
    surroundings: &'a Surroundings,
    begin: Instant,
    aside: Option<Instant>,
    /// What does not count as the engine's start.
    aside_span: Duration,
    start_ms: Option<f64>,
    at_start: Option<Snapshot>,
    at_stop: Option<Snapshot>,
    peak: [u64; 2],
}

/// The driver, and its server.
#[derive(Clone, Copy)]
struct Snapshot {
    spent: [Spent; 2],
    memory: [u64; 2],
    disk_bytes: u64,
}

impl<'a> Watch<'a> {
    fn new(driver: &Group, surroundings: &'a Surroundings, begin: Instant) -> Watch<'a> {
        Watch {
            driver: driver.id(),
            surroundings,
            begin,
            aside: None,
            aside_span: Duration::ZERO,
            start_ms: None,
            at_start: None,
            at_stop: None,
            peak: [0; 2],
        }
    }

    fn until_result(
        &mut self,
        lines: &Receiver<String>,
        deadline: Instant,
        interrupt: &Interrupt,
    ) -> Result<Option<Measured>> {
        let mut memory_at = now();
        loop {
            interrupt.check()?;
            match lines.recv_timeout(LOOK_EVERY) {
                Ok(line) => {
                    if let Some(measured) = self.hear(&line)? {
                        return Ok(Some(measured));
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) if now() > deadline => bail!("took too long"),
                Err(RecvTimeoutError::Timeout) if now() > memory_at => {
                    self.look_at_memory();
                    memory_at = now() + MEMORY_EVERY;
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn hear(&mut self, line: &str) -> Result<Option<Measured>> {
        match line {
            "aside" => self.aside = Some(now()),
            "back" => self.aside_span += self.aside.take().map_or(Duration::ZERO, |at| now() - at),
            "ready" => {
                let took = now() - self.begin - self.aside_span + self.surroundings.server_start;
                self.start_ms = Some(took.as_secs_f64() * 1e3);
            }
            "start" => self.at_start = Some(self.look()),
            "stop" => self.at_stop = Some(self.look()),
            result if result.starts_with('{') => {
                let what = || format!("not a result: {result}");
                return serde_json::from_str(result).map(Some).with_context(what);
            }
            // Some engines log to standard output.
            _ => {}
        }
        Ok(None)
    }

    fn families(&self) -> [Vec<u32>; 2] {
        [family(self.driver), self.surroundings.server.map_or_else(Vec::new, family)]
    }

    fn look(&mut self) -> Snapshot {
        let families = self.families();
        let spent = families.each_ref().map(|family| Spent::of(family));
        let disk_bytes = self.surroundings.data.as_deref().map_or(0, files_bytes);
        Snapshot { spent, memory: self.look_at_memory(), disk_bytes }
    }

    fn look_at_memory(&mut self) -> [u64; 2] {
        let memory = self.families().each_ref().map(|family| memory_bytes(family));
        for (peak, memory) in self.peak.iter_mut().zip(memory) {
            *peak = memory.max(*peak);
        }
        memory
    }

    fn cost(&self) -> Option<Cost> {
        let (start, stop) = (self.at_start?, self.at_stop?);
        let part = |index: usize| Part {
            spent: stop.spent[index] - start.spent[index],
            memory_bytes: stop.memory[index],
            memory_peak_bytes: self.peak[index],
        };
        Some(Cost {
            start_ms: self.start_ms?,
            driver: part(0),
            server: self.surroundings.server.map(|_| part(1)),
            disk_bytes: stop.disk_bytes.saturating_sub(start.disk_bytes),
        })
    }
}
