//! `many`: three workers and one API process on a PostgreSQL server, and everything goes wrong all the time.
//!
//! Workers are killed with SIGKILL, or stopped until others have taken over what they hold; the server is restarted, half
//! of the time as if it had crashed; and a proxy between them throws answers of the server away and cuts their
//! connections, also the answer to a COMMIT. The API process is left alone: it keeps the books.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use piton::sqlx::{Connection, Executor, PgConnection};
use piton_testing::proxy::Proxy;
use piton_testing::runtime::SplitMix64;
use private_postgres::{Place, Server, Stop};
use tempfile::TempDir;

use crate::climb::TABLE;
use crate::ledger::Files;
use crate::processes::LEASE_MS;
use crate::verdict::{Claims, Counts, State, judge_state};

/// Workers at a time.
const WORKERS: usize = 3;

/// How often the books are looked at, and something may be done.
const LOOK_EVERY: Duration = Duration::from_millis(40);

/// The server is restarted after so many milliseconds, and up to as many more.
const RESTART_MS: u64 = 2_500;

/// How many looks may see nothing end before that is called stuck: a minute, many times a lease and a restart.
const PATIENCE_LOOKS: u32 = 1_500;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How often to kill a worker
    #[arg(long, default_value_t = 100)]
    kills: u32,
    /// How many instances to bring to their end meanwhile
    #[arg(long, default_value_t = 5_000)]
    instances: u32,
    /// Decides what is done and when; where it hits, the machine decides
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let server = Server::start(Place::Memory)?;
    runtime.block_on(make_table(&server.url()))?;
    let proxy = runtime.block_on(Proxy::before(&server.url()))?;
    let directory = TempDir::new()?;
    let started = now();
    let mut scene = Scene::open(args, server, proxy, &directory)?;
    let played = scene.play();
    let harm = scene.harm();
    // Whatever happened: nobody may write any more when the books are compared.
    let Scene { server, .. } = scene.close();
    played.with_context(|| kept(&directory))?;
    let counts = runtime.block_on(judge(&server.url(), &Files::new(directory.path())));
    let counts = counts.with_context(|| kept(&directory))?;
    ensure!(counts.live == 0, "STUCK: {} instances have not ended", counts.live);
    let seconds = started.elapsed().as_secs();
    println!(
        "{seconds} s, {harm}: 0 lost, 0 doubled, 0 stuck; {counts}; {} bodies by runners that had lost their run",
        counts.stale
    );
    Ok(())
}

async fn make_table(url: &str) -> Result<()> {
    Ok(PgConnection::connect(url).await?.execute(TABLE).await.map(drop)?)
}

/// What was told, what was done and what is stored, compared; and the audit.
async fn judge(url: &str, files: &Files) -> Result<Counts> {
    let mut db = PgConnection::connect(url).await?;
    let text = |path| fs::read_to_string(path).unwrap_or_default();
    let state = State::read_postgres(&mut db).await?;
    let claims = Claims::read_postgres(&mut db, &text(files.runners())).await?;
    let counts = judge_state(&state, &claims, &text(files.acks()), &text(files.witness()))?;
    let report = piton_audit::audit(url).context("the audit failed")?;
    ensure!(report.is_clean(), "the audit found something:\n{report}");
    Ok(counts)
}

/// What went wrong is worth a look: the books stay. The server's log is printed.
fn kept(directory: &TempDir) -> String {
    let copy = std::env::temp_dir().join(format!("piton-torture-{}", std::process::id()));
    let copied = fs::create_dir_all(&copy).and_then(|()| {
        fs::read_dir(directory.path())?.try_for_each(|entry| {
            let entry = entry?;
            fs::copy(entry.path(), copy.join(entry.file_name())).map(drop)
        })
    });
    match copied {
        Ok(()) => format!("the books are in {}", copy.display()),
        Err(error) => format!("the books could not be kept: {error}"),
    }
}

/// How much harm was done.
#[derive(Clone, Copy, Default)]
struct Harm {
    kills: u32,
    stops: u32,
    restarts: u32,
    /// Answers of the server that nobody got.
    cuts: u32,
}

impl fmt::Display for Harm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Harm { kills, stops, restarts, cuts } = self;
        write!(
            f,
            "{kills} kills, {stops} stops beyond the lease, {restarts} restarts of the server, {cuts} answers cut off"
        )
    }
}

/// Everything that takes part.
struct Scene<'a> {
    args: &'a Args,
    files: Files,
    directory: &'a Path,
    server: Server,
    proxy: Proxy,
    random: SplitMix64,
    api: Child,
    workers: Vec<Worker>,
    harm: Harm,
    restart_at: Instant,
}

struct Worker {
    process: Child,
    /// It is stopped until then.
    stopped_until: Option<Instant>,
}

impl<'a> Scene<'a> {
    fn open(args: &'a Args, server: Server, proxy: Proxy, directory: &'a TempDir) -> Result<Self> {
        let directory = directory.path();
        let instances = args.instances.to_string();
        let api = start(directory, &["api", proxy.url(), "--instances", &instances])?;
        let mut scene = Self {
            args,
            files: Files::new(directory),
            directory,
            server,
            proxy,
            random: SplitMix64::new(args.seed),
            api,
            workers: Vec::new(),
            harm: Harm::default(),
            restart_at: now() + Duration::from_millis(RESTART_MS),
        };
        for _ in 0..WORKERS {
            let worker = scene.start_worker()?;
            scene.workers.push(worker);
        }
        Ok(scene)
    }

    fn start_worker(&self) -> Result<Worker> {
        let process = start(self.directory, &["worker", self.proxy.url()])?;
        Ok(Worker { process, stopped_until: None })
    }

    /// Does harm until the API process has seen everything end.
    fn play(&mut self) -> Result<()> {
        let (mut ended, mut idle_looks, mut told) = (0, 0, 0);
        loop {
            if let Some(status) = self.api.try_wait()? {
                ensure!(status.success(), "the API process failed: {status}");
                return Ok(());
            }
            let seen = self.ended();
            idle_looks = if seen > ended { 0 } else { idle_looks + 1 };
            ended = seen;
            if ended / 1_000 > told {
                told = ended / 1_000;
                println!("{ended} ended: {}", self.harm());
            }
            if idle_looks > PATIENCE_LOOKS {
                bail!("STUCK: nothing has ended for a minute, {ended} had before");
            }
            self.do_harm(ended)?;
            pause(LOOK_EVERY);
        }
    }

    fn harm(&self) -> Harm {
        Harm { cuts: self.proxy.swallowed(), ..self.harm }
    }

    /// How many instances were seen to end.
    fn ended(&self) -> u32 {
        let acks = fs::read_to_string(self.files.acks()).unwrap_or_default();
        let ended = |line: &&str| line.starts_with("done ") || line.starts_with("terminated ");
        u32::try_from(acks.lines().filter(ended).count()).unwrap_or(u32::MAX)
    }

    fn do_harm(&mut self, ended: u32) -> Result<()> {
        for worker in &mut self.workers {
            if worker.stopped_until.is_some_and(|until| until <= now()) {
                signal(&worker.process, "-CONT")?;
                worker.stopped_until = None;
            }
        }
        if now() > self.restart_at {
            return self.restart_server();
        }
        match self.random.below(12) {
            0..=3 => {
                let answers = 1 + self.random.below(4);
                self.proxy.swallow_answers(u32::try_from(answers)?);
            }
            4 => self.stop_one()?,
            // As many as were asked for, spread over the whole run.
            _ if self.harm.kills * self.args.instances < ended * self.args.kills => {
                self.kill_one()?
            }
            _ => {}
        }
        Ok(())
    }

    fn pick_worker(&mut self) -> Result<usize> {
        Ok(usize::try_from(self.random.below(WORKERS as u64))?)
    }

    fn kill_one(&mut self) -> Result<()> {
        let victim = self.pick_worker()?;
        let fresh = self.start_worker()?;
        let mut killed = std::mem::replace(&mut self.workers[victim], fresh);
        killed.process.kill()?;
        killed.process.wait()?;
        self.harm.kills += 1;
        Ok(())
    }

    /// Stops a worker until others must have taken over what it holds. One at a time: somebody has to do that.
    fn stop_one(&mut self) -> Result<()> {
        let victim = self.pick_worker()?;
        let span = LEASE_MS + 200 + self.random.below(1_500);
        if self.workers.iter().all(|worker| worker.stopped_until.is_none()) {
            let worker = &mut self.workers[victim];
            signal(&worker.process, "-STOP")?;
            worker.stopped_until = Some(now() + Duration::from_millis(span));
            self.harm.stops += 1;
        }
        Ok(())
    }

    fn restart_server(&mut self) -> Result<()> {
        let crash = self.random.below(2) == 0;
        self.server.stop(if crash { Stop::Immediate } else { Stop::Fast })?;
        self.server.launch()?;
        self.harm.restarts += 1;
        let span = RESTART_MS + self.random.below(RESTART_MS);
        self.restart_at = now() + Duration::from_millis(span);
        Ok(())
    }

    /// Ends all processes.
    fn close(mut self) -> Self {
        let workers = self.workers.iter_mut().map(|worker| &mut worker.process);
        for process in workers.chain([&mut self.api]) {
            // It may have ended by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
        self
    }
}

fn start(directory: &Path, arguments: &[&str]) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    let (what, rest) = arguments.split_first().context("it says what")?;
    // They end with their standard input, and so with us.
    command.arg(what).arg(directory).args(rest).stdin(Stdio::piped()).stdout(Stdio::null());
    command.spawn().with_context(|| format!("cannot start the {what}"))
}

fn signal(process: &Child, signal: &str) -> Result<()> {
    let told = Command::new("kill").args([signal, &process.id().to_string()]).status();
    ensure!(told.context("cannot run `kill`")?.success(), "a worker ended by itself");
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "harms real processes in real time")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "harms real processes in real time")]
fn pause(span: Duration) {
    std::thread::sleep(span);
}
