//! The one thread that writes, and group commit.
//!
//! It blocks for the first request, takes everything that is queued behind it, runs all of it in one transaction,
//! commits once, and only then tells the observers and answers each request (rule R1). Nothing waits on purpose:
//! under load the queue fills while the disk syncs, and one sync pays for all of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::mpsc;

use super::answers;
use super::batch::Batch;
use super::checkpoint::Checkpoints;
use super::hook;
use super::leases::Leases;
use super::lock::LockFile;
use super::reader::Readers;
use super::request::Request;
use super::statements::Statements;
use super::traffic::{self, Traffic};
use super::trouble::Failure;
use crate::runtime::{Ids, Runtime};
use crate::store::{EngineHooks, Hint, Observers};

/// Requests that may wait for the writer; whoever comes next waits to get in.
pub(super) const QUEUE_MAX: usize = 4096;

/// Requests of one transaction.
const BATCH_MAX: usize = 1024;

/// Payload of one transaction: past it, what is queued waits for the next.
const BATCH_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Changes when another connection has committed something, and only then.
pub(super) const DATA_VERSION: &str = "PRAGMA data_version";

/// Why the store has failed for good; empty while it works.
pub(super) type Failed = Arc<OnceLock<Failure>>;

/// What the writer thread owns.
pub(super) struct Writer {
    pub(super) conn: Connection,
    pub(super) requests: mpsc::Receiver<Request>,
    pub(super) traffic: Arc<Traffic>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) ids: Ids,
    pub(super) observers: Arc<Observers>,
    pub(super) engine_hooks: Arc<Mutex<Option<Arc<EngineHooks>>>>,
    pub(super) failed: Failed,
    pub(super) readers: Readers,
    /// Let go last: another process may come in from then on.
    pub(super) lock: LockFile,
}

impl Writer {
    /// Serves requests until the store is closed or dropped.
    pub(super) fn run(mut self) {
        let failed = self.failed.clone();
        let alarm = Alarm(self.failed.clone());
        let conn = self.conn;
        let runtime = self.runtime.clone();
        let mut work = Work {
            db: Statements::of(&conn),
            leases: Leases::default(),
            traffic: self.traffic,
            runtime: self.runtime,
            ids: self.ids,
            observers: self.observers,
            engine_hooks: self.engine_hooks,
            failed: self.failed,
            checkpoints: Checkpoints::new(),
            hints: Vec::new(),
        };
        let mut closing = Vec::new();
        let mut requests = Vec::with_capacity(BATCH_MAX);
        let mut held = None;
        while gather(&*runtime, &mut self.requests, &mut requests, &mut held, &mut closing) {
            work.serve(&mut requests);
        }
        drop(work);
        self.readers.stop();
        let closed = conn.close();
        drop(self.lock);
        drop(alarm);
        let failure = failed.get().cloned().or_else(|| {
            let (_, error) = closed.err()?;
            let message = format!("closing the database failed: {error}");
            Some(Failure::passing(message))
        });
        for close in closing {
            close.answer(failure.as_ref());
        }
    }
}

/// Collects the next batch; `false` once the queue is closed and empty.
fn gather(
    runtime: &dyn Runtime,
    queue: &mut mpsc::Receiver<Request>,
    requests: &mut Vec<Request>,
    held: &mut Option<Request>,
    closing: &mut Vec<Request>,
) -> bool {
    let mut bytes = 0;
    let mut next = held
        .take()
        .or_else(|| traffic::linger(runtime, || queue.try_recv().ok()))
        .or_else(|| queue.blocking_recv());
    while let Some(mut request) = next {
        if let Request::Close(job) = &mut request {
            job.accept();
            // Whoever got in is served; nobody else gets in.
            queue.close();
            closing.push(request);
        } else if held.is_none() && has_its_turn(requests, &request) {
            *held = Some(request);
        } else {
            bytes += request.payload_bytes();
            requests.push(request);
        }
        if requests.len() >= BATCH_MAX || bytes >= BATCH_BYTES_MAX {
            return true;
        }
        next = queue.try_recv().ok();
    }
    !requests.is_empty() || !queue.is_closed() || !queue.is_empty()
}

/// Whether this is the second work of a processor that has its turn already: in the next transaction it finds what will
/// be triggered meanwhile.
fn has_its_turn(requests: &[Request], request: &Request) -> bool {
    request.takes_hooks() && requests.iter().any(|other| other.is_of_the_same_processor(request))
}

/// The part of the writer that borrows the connection.
struct Work<'c> {
    db: Statements<'c>,
    leases: Leases,
    traffic: Arc<Traffic>,
    runtime: Arc<dyn Runtime>,
    ids: Ids,
    observers: Arc<Observers>,
    engine_hooks: Arc<Mutex<Option<Arc<EngineHooks>>>>,
    failed: Failed,
    checkpoints: Checkpoints,
    hints: Vec<Hint>,
}

impl Work<'_> {
    /// Runs, commits, tells, answers.
    fn serve(&mut self, requests: &mut Vec<Request>) {
        self.hints.clear();
        let failure = match self.failed.get() {
            Some(failure) => Some(failure.clone()),
            None => self.transact(requests).err(),
        };
        match &failure {
            None => self.tell(),
            Some(failure) => self.note(failure),
        }
        let served = requests.len();
        answers::hand_out(&*self.runtime, requests, failure.as_ref());
        if self.failed.get().is_none()
            && let Err(failure) = self.checkpoints.after(served, &mut self.db)
        {
            self.note(&failure);
        }
    }

    /// Tells the observers, before the answers: who has one can rely on it.
    fn tell(&mut self) {
        if self.hints.is_empty() {
            return;
        }
        // A hint may be lost; the writer may not.
        let (observers, hints) = (&self.observers, self.hints.drain(..));
        if catch_unwind(AssertUnwindSafe(|| observers.tell(hints))).is_err() {
            tracing::error!("an observer of the store panicked");
        }
    }

    /// Remembers a failure that nothing can follow.
    fn note(&self, failure: &Failure) {
        if failure.fatal && self.failed.set(failure.clone()).is_ok() {
            tracing::error!(reason = %failure.message, "the store has failed and acknowledges nothing any more");
        }
    }

    fn transact(&mut self, requests: &mut [Request]) -> Result<(), Failure> {
        let conn = self.db.conn();
        let result = self.run_and_commit(requests);
        if result.is_err() {
            self.leases.forget_all();
        }
        if result.is_err() && !conn.is_autocommit() {
            return Err(Failure::fatal(
                "a transaction could not be rolled back; restart the process: what was acknowledged is safe",
            ));
        }
        result
    }

    fn run_and_commit(&mut self, requests: &mut [Request]) -> Result<(), Failure> {
        let conn = self.db.conn();
        let tx = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)
            .map_err(|error| Failure::from(&error))?;
        let data_version = self.db.row(DATA_VERSION, |row| row.get(0));
        self.leases.begin(data_version.map_err(|error| Failure::from(&error))?);
        let engine_hooks = self.engine_hooks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut batch = Batch {
            db: &mut self.db,
            leases: &mut self.leases,
            tx: &tx,
            now: self.runtime.now(),
            ids: &self.ids,
            engine_hooks: engine_hooks.as_deref(),
            hints: &mut self.hints,
            hooks: Vec::new(),
            rows_undone: 0,
        };
        // All of them are under way at the same time, so that any order will do; this one lets processors take what was
        // triggered a moment ago.
        for takes_hooks in [false, true] {
            let now = requests.iter_mut().filter(|request| request.takes_hooks() == takes_hooks);
            for request in now {
                run_one(&mut batch, request)?;
            }
        }
        hook::write_new(&mut batch).map_err(|error| Failure::from(&error))?;
        let began_us = self.runtime.monotonic_us();
        tx.commit().map_err(|error| Failure::of_commit(&error))?;
        self.traffic.note_commit(self.runtime.monotonic_us() - began_us);
        Ok(())
    }
}

/// Runs one request, and holds it to its word that a refusal writes nothing.
fn run_one(batch: &mut Batch<'_, '_>, request: &mut Request) -> Result<(), Failure> {
    let written =
        |batch: &Batch<'_, '_>| (batch.tx.total_changes() - batch.rows_undone, batch.hooks.len());
    let before = written(batch);
    request.run(batch)?;
    if request.is_refused() && written(batch) != before {
        return Err(Failure::passing("internal: a refused request wrote something"));
    }
    Ok(())
}

/// Marks the store as failed if the thread panics, so that callers learn why nobody answers.
struct Alarm(Failed);

impl Drop for Alarm {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = self.0.set(Failure::fatal(
                "the writer thread panicked; restart the process: what was acknowledged is safe",
            ));
        }
    }
}
