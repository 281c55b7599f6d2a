//! What the parts of a store share.

use std::sync::{Arc, Mutex, PoisonError};

use piton_core::Span;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};

use super::clock::Time;
use super::leases::Leases;
use super::notify::Outbox;
use super::statements::Statements;
use super::trouble::Failure;
use crate::runtime::{Ids, Runtime};
use crate::store::{EngineHooks, Hint, Observers};

/// How long a statement may take from here, whatever the server thinks: a connection that is dead without saying so must
/// not hold up its runs for ever. Longer than any of the server's own timeouts.
const ANSWER_MAX: Span = Span::from_millis(60_000);

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

    /// Opens a connection of one's own.
    pub(super) async fn connect(&self) -> Result<PgConnection, Failure> {
        let connecting =
            async { PgConnection::connect_with(&self.connect).await.map_err(Failure::from) };
        self.in_time(connecting).await
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
