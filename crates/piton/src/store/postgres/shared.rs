//! What the parts of a store share.

use std::sync::{Arc, Mutex, PoisonError};

use piton_core::Span;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};

use super::clock::Time;
use super::leases::Leases;
use super::notify::Outbox;
use super::open;
use super::statements::Statements;
use super::trouble::{Failure, Fate, Outcome, Trouble};
use crate::runtime::{Ids, Runtime};
use crate::store::{EngineHooks, Hint, Observers};

/// How long a statement may take from here, whatever the server thinks: a connection that is dead without saying so must
/// not hold up its runs for ever. Longer than any of the server's own timeouts.
const ANSWER_MAX: Span = Span::from_millis(60_000);

/// How long requests wait for a server that is away. Longer than a failover usually takes; a run that waited so long
/// has most likely lost its lease.
const PATIENCE_US: u64 = 60_000_000;

/// The first pause between two attempts; it doubles up to [`PAUSE_MAX`].
const PAUSE: Span = Span::from_millis(50);
const PAUSE_MAX: Span = Span::from_millis(2_000);

/// What the parts of a store share.
pub(super) struct Shared {
    pub(super) connect: PgConnectOptions,
    pub(super) statements: Statements,
    pub(super) time: Time,
    pub(super) ids: Ids,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) leases: Leases,
    pub(super) observers: Arc<Observers>,
    /// Hints on their way to other processes; `None` in poll-only mode.
    pub(super) outbox: Option<Outbox>,
    /// What is told by hooks; nobody asks in most processes.
    pub(super) engine_hooks: Mutex<Option<Arc<EngineHooks>>>,
}

impl Shared {
    /// What is told by hooks.
    pub(super) fn engine_hooks(&self) -> Option<Arc<EngineHooks>> {
        self.engine_hooks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells everybody, after the commit.
    pub(super) fn tell(&self, hints: Vec<Hint>) {
        if hints.is_empty() {
            return;
        }
        if let Some(outbox) = &self.outbox {
            outbox.put(&hints);
        }
        self.observers.tell(hints);
    }

    /// Opens a connection of one's own; waits for a server that is away.
    pub(super) async fn connect(&self) -> Result<PgConnection, Failure> {
        let connecting = || async {
            let mut conn =
                PgConnection::connect_with(&self.connect).await.map_err(Failure::from)?;
            open::check_writable(&mut conn).await.map_err(Failure::from)?;
            Ok(conn)
        };
        self.patiently(connecting).await.map_err(Trouble::into_failure)
    }

    /// Tries again while the server is away. For what is not lost, and not done twice, by being cut off in the middle.
    pub(super) async fn patiently<T, W>(&self, attempt: impl Fn() -> W) -> Outcome<T>
    where
        W: Future<Output = Outcome<T>>,
    {
        let (began_us, mut pause) = (self.runtime.monotonic_us(), PAUSE);
        loop {
            match self.in_time(attempt()).await {
                Err(Trouble::Database(failure)) if failure.fate == Fate::Lost => {
                    if self.runtime.monotonic_us().saturating_sub(began_us) >= PATIENCE_US {
                        return Err(failure.of_a_server_that_is_away().into());
                    }
                    tracing::warn!(
                        reason = failure.message(),
                        "the database cannot be reached; trying again"
                    );
                }
                done => return done,
            }
            self.runtime.sleep(pause).await;
            pause = Span::from_millis((pause.as_millis() * 2).min(PAUSE_MAX.as_millis()));
        }
    }

    /// Waits for the server, but not for ever.
    pub(super) async fn in_time<T, E: From<Failure>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        // A virtual clock says nothing about a real server.
        if self.time.fixed().is_some() {
            return work.await;
        }
        let too_long = self.runtime.sleep(ANSWER_MAX);
        tokio::select! {
            biased;
            done = work => done,
            () = too_long => Err(Failure::lost("the database did not answer in time").into()),
        }
    }
}
