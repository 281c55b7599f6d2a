//! Hints to and from other processes, by `NOTIFY` and `LISTEN`.
//!
//! A hint is sent after its commit, never inside it: a `NOTIFY` in a transaction makes all commits of the database wait
//! for each other. The sender coalesces: while one message is under way the next one fills. **A hint may be lost** (the
//! connection breaks, a pooler swallows it); the poll finds everything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use piton_core::record::InstanceKey;
use piton_core::{HookNamespace, Span, Timestamp, WorkflowName};
use sqlx::PgPool;
use sqlx::postgres::PgListener;
use tokio::sync::Notify;

use super::shared::Shared;
use crate::store::{Hint, Observers};

/// The least time between two messages: what bounds the load of thousands of ended runs per second.
const WINDOW: Span = Span::from_millis(5);

/// Bytes of one message; the server takes less than 8000.
const MESSAGE_BYTES_MAX: usize = 7_500;

/// Hints that may wait; past it the oldest news is as good as lost, and the poll finds it.
const HINTS_MAX: usize = 10_000;

/// How long to wait before a broken connection is tried again.
const PAUSE: Span = Span::from_millis(1_000);

/// Hints on their way to other processes.
pub(super) struct Outbox {
    /// The name of this process, in front of its messages: it has told itself already.
    me: String,
    channel: String,
    waiting: Mutex<Waiting>,
    news: Notify,
}

#[derive(Default)]
struct Waiting {
    due: BTreeMap<WorkflowName, Timestamp>,
    touched: BTreeSet<InstanceKey>,
    ended: BTreeSet<InstanceKey>,
    hooks: BTreeMap<HookNamespace, Timestamp>,
}

impl Outbox {
    pub(super) fn new(schema: &str, me: u64) -> Self {
        Self {
            me: format!("{me:016x}"),
            channel: format!("piton_{schema}"),
            waiting: Mutex::default(),
            news: Notify::new(),
        }
    }

    /// Puts hints into the next message.
    pub(super) fn put(&self, hints: &[Hint]) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        for hint in hints {
            match hint {
                Hint::Due { workflow, at } => {
                    let known = waiting.due.entry(workflow.clone()).or_insert(*at);
                    *known = (*known).min(*at);
                }
                Hint::Touched(key) if waiting.touched.len() < HINTS_MAX => {
                    waiting.touched.insert(*key);
                }
                Hint::Ended(key) if waiting.ended.len() < HINTS_MAX => {
                    waiting.ended.insert(*key);
                }
                Hint::Touched(_) | Hint::Ended(_) => {}
                Hint::HookDue { namespace, at } => {
                    let known = waiting.hooks.entry(namespace.clone()).or_insert(*at);
                    *known = (*known).min(*at);
                }
            }
        }
        drop(waiting);
        self.news.notify_one();
    }

    fn take(&self) -> Vec<String> {
        let waiting =
            std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        let due =
            waiting.due.iter().map(|(workflow, at)| format!("d{} {workflow}", at.as_millis()));
        let touched = waiting.touched.iter().map(|key| format!("t{}", key.0));
        let ended = waiting.ended.iter().map(|key| format!("e{}", key.0));
        let hooks =
            waiting.hooks.iter().map(|(namespace, at)| format!("h{} {namespace}", at.as_millis()));
        let mut messages: Vec<String> = Vec::new();
        for line in due.chain(touched).chain(ended).chain(hooks) {
            match messages.last_mut() {
                Some(message) if message.len() + line.len() < MESSAGE_BYTES_MAX => {
                    message.push('\n');
                    message.push_str(&line);
                }
                Some(_) | None => messages.push(format!("{}\n{line}", self.me)),
            }
        }
        messages
    }
}

/// Sends what is put into the outbox, for as long as the store lives.
pub(super) async fn send_for_ever(shared: Arc<Shared>, pool: PgPool) {
    let Some(outbox) = &shared.outbox else { return };
    loop {
        outbox.news.notified().await;
        for message in outbox.take() {
            let send = sqlx::query("SELECT pg_notify($1, $2)").bind(&outbox.channel).bind(message);
            if let Err(error) = send.execute(&pool).await {
                tracing::debug!(%error, "hints for other processes are lost; their poll finds the work");
            }
        }
        shared.runtime.sleep(WINDOW).await;
    }
}

/// Tells observers what other processes send, over a connection of its own that is made again when it breaks.
pub(super) async fn listen_for_ever(shared: Arc<Shared>, pool: PgPool) {
    let Some(outbox) = &shared.outbox else { return };
    loop {
        if let Err(error) = listen(&shared.observers, outbox, &pool).await {
            if pool.is_closed() {
                return;
            }
            tracing::debug!(%error, "listening was interrupted; until it is back the poll finds all work");
        }
        shared.runtime.sleep(PAUSE).await;
    }
}

async fn listen(observers: &Observers, outbox: &Outbox, pool: &PgPool) -> Result<(), sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(&outbox.channel).await?;
    loop {
        let Some(message) = listener.try_recv().await? else {
            return Ok(());
        };
        observers.tell(read(message.payload(), &outbox.me));
    }
}

/// The hints of a message; none if it is our own, and nothing that cannot be understood.
fn read(message: &str, me: &str) -> Vec<Hint> {
    let mut lines = message.lines();
    if lines.next() == Some(me) {
        return Vec::new();
    }
    lines.filter_map(read_line).collect()
}

fn read_line(line: &str) -> Option<Hint> {
    let key = |text: &str| text.parse().ok().map(InstanceKey);
    match line.split_at_checked(1)? {
        ("d", rest) => {
            let (at, workflow) = rest.split_once(' ')?;
            let at = Timestamp::from_millis(at.parse().ok()?);
            Some(Hint::Due { workflow: WorkflowName::from_stored(workflow), at })
        }
        ("h", rest) => {
            let (at, namespace) = rest.split_once(' ')?;
            let at = Timestamp::from_millis(at.parse().ok()?);
            Some(Hint::HookDue { namespace: HookNamespace::from_stored(namespace), at })
        }
        ("t", rest) => key(rest).map(Hint::Touched),
        ("e", rest) => key(rest).map(Hint::Ended),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(workflow: &str, at: i64) -> Hint {
        Hint::Due { workflow: WorkflowName::from_stored(workflow), at: Timestamp::from_millis(at) }
    }

    fn hook(namespace: &str, at: i64) -> Hint {
        let namespace = HookNamespace::from_stored(namespace);
        Hint::HookDue { namespace, at: Timestamp::from_millis(at) }
    }

    #[test]
    fn hints_come_out_as_they_went_in_and_coalesce() {
        let outbox = Outbox::new("public", 7);
        let key = InstanceKey(12);
        outbox.put(&[
            due("a", 9),
            due("b", 5),
            due("a", 4),
            Hint::Ended(key),
            Hint::Touched(key),
            Hint::Ended(key),
            hook("app", 7),
            hook("app", 3),
        ]);
        let messages = outbox.take();
        assert_eq!(messages.len(), 1);
        let told = [due("a", 4), due("b", 5), Hint::Touched(key), Hint::Ended(key)];
        let expected: Vec<Hint> = told.into_iter().chain([hook("app", 3)]).collect();
        assert_eq!(read(&messages[0], "somebody else"), expected);
        assert_eq!(read(&messages[0], &outbox.me), [], "our own are told already");
        assert!(outbox.take().is_empty());
    }

    #[test]
    fn messages_are_short_enough_and_what_is_not_understood_is_passed_over() {
        let outbox = Outbox::new("public", 7);
        let all: Vec<Hint> = (0..5_000).map(|n| Hint::Ended(InstanceKey(i64::MAX - n))).collect();
        outbox.put(&all);
        let messages = outbox.take();
        assert!(messages.iter().all(|message| message.len() < 8_000));
        let read_back: usize = messages.iter().map(|message| read(message, "x").len()).sum();
        assert_eq!(read_back, 5_000);
        assert_eq!(read("x\nd\nq9\n\ndsoon a\ne1", "y"), [Hint::Ended(InstanceKey(1))]);
    }
}
