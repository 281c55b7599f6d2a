//! The threads that read, each with its own `query_only` connection.
//!
//! A read runs in one read transaction, begun after it was asked for: it sees everything that was committed before
//! the call, and one state of the database however many queries it makes. It never waits for the writer.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::open;
use super::statements::Statements;
use super::trouble::{Failure, Outcome, Trouble};
use crate::Error;
use crate::store::StoreError;

/// Reads that run at the same time.
const READERS: usize = 2;

/// Reads that may wait for a reader.
const READS_MAX: usize = 1024;

const BEGIN: &str = "BEGIN";
const END: &str = "COMMIT";

type Work = Box<dyn FnOnce(&mut Statements<'_>) + Send>;

enum Read {
    Run(Work),
    /// Serve what is queued, then end.
    Stop,
}

/// Where reads are sent.
#[derive(Clone)]
pub(super) struct ReadQueue(mpsc::Sender<Read>);

/// The reading threads.
pub(super) struct Readers {
    queue: ReadQueue,
    threads: Vec<thread::JoinHandle<()>>,
}

/// Starts the reading threads on a database that the writer has set up.
pub(super) fn start(path: &Path) -> crate::Result<Readers> {
    let (queue, reads) = mpsc::channel(READS_MAX);
    let reads = Arc::new(Mutex::new(reads));
    let mut readers = Readers { queue: ReadQueue(queue), threads: Vec::new() };
    for index in 0..READERS {
        let conn = open::connect(path)?;
        open::configure_reader(&conn, path)?;
        let reads = reads.clone();
        let thread = thread::Builder::new()
            .name(format!("piton-reader-{index}"))
            .spawn(move || serve(&conn, &reads))
            .map_err(|error| Error::store_unusable(format!("cannot start a thread: {error}")))?;
        readers.threads.push(thread);
    }
    Ok(readers)
}

impl Readers {
    pub(super) fn queue(&self) -> ReadQueue {
        self.queue.clone()
    }

    /// Lets the threads finish what is queued and waits for them. Not to be called in async code.
    pub(super) fn stop(self) {
        // They may be gone already, after a panic.
        let _ = self.queue.0.blocking_send(Read::Stop);
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

impl ReadQueue {
    /// Runs `work` in a read transaction; `None` if the readers are gone.
    pub(super) async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce(&mut Statements<'_>) -> Outcome<T> + Send + 'static,
    ) -> Option<Result<T, StoreError>> {
        let (answer, answered) = oneshot::channel();
        let work: Work = Box::new(move |db| {
            let _ = answer.send(in_transaction(db, work).map_err(StoreError::from));
        });
        self.0.send(Read::Run(work)).await.ok()?;
        answered.await.ok()
    }
}

fn serve(conn: &Connection, reads: &Mutex<mpsc::Receiver<Read>>) {
    let mut db = Statements::of(conn);
    loop {
        // One reader waits in the queue, the others wait for the lock: the same thing.
        let mut queue = reads.lock().unwrap_or_else(PoisonError::into_inner);
        let read = queue.blocking_recv();
        if let Some(Read::Stop) = &read {
            queue.close();
        }
        drop(queue);
        match read {
            Some(Read::Run(work)) => work(&mut db),
            Some(Read::Stop) => {}
            None => return,
        }
    }
}

fn in_transaction<T>(
    db: &mut Statements<'_>,
    work: impl FnOnce(&mut Statements<'_>) -> Outcome<T>,
) -> Outcome<T> {
    db.execute(BEGIN, [])?;
    let outcome = work(db);
    // A failed query may have ended the transaction by itself.
    if !db.conn().is_autocommit()
        && let Err(error) = db.execute(END, [])
    {
        return Err(Trouble::Batch(Failure::from(&error)));
    }
    outcome
}
