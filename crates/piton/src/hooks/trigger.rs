//! Hooks on their way into a transaction.

use std::fmt;
use std::sync::Arc;

use piton_core::hook::{self, NewHook};
use piton_core::{Code, HookName, HookNamespace, Json, Limits, Refusal, Retries, Timestamp};
use serde::Serialize;

use super::HookClient;
use crate::runtime::{BoxFuture, Ids, wall_clock};
use crate::step::StepTransaction;
use crate::store::default_namespace;
use crate::{Result, codec};

/// A hook to be triggered: its name, its payload, and when and how often.
///
/// ```
/// use piton::hooks::Hook;
/// use piton::{Retries, Timestamp};
///
/// let reminder = Hook::new("cart.abandoned", &"cart-7")
///     .process_at(Timestamp::from_millis(1_900_000_000_000))
///     .retry(Retries::exponential(3, "1 minute").cap("1 hour"));
/// # let _ = reminder;
/// ```
#[derive(Debug)]
#[must_use = "a hook is triggered by a transaction that is given it"]
pub struct Hook {
    namespace: Option<Result<HookNamespace>>,
    name: String,
    payload: Result<Json>,
    process_at: Option<Timestamp>,
    retries: Retries,
}

impl Hook {
    /// A hook of this name in the namespace `app`, to be processed at once, with 5 retries.
    pub fn new(name: impl Into<String>, payload: &(impl Serialize + ?Sized)) -> Self {
        let name = name.into();
        let payload = codec::encode(|| what(&name), payload);
        Self { namespace: None, name, payload, process_at: None, retries: Retries::default() }
    }

    /// The namespace whose handlers it is for.
    pub fn namespace(mut self, namespace: &str) -> Self {
        let parsed = HookNamespace::parse(namespace, &Limits::default());
        self.namespace = Some(parsed.map_err(Into::into));
        self
    }

    /// Not before this moment; one that has passed is now, and none is after the year 9999. Retries follow their own
    /// delays.
    pub fn process_at(mut self, moment: impl Into<Timestamp>) -> Self {
        self.process_at = Some(moment.into());
        self
    }

    /// What happens after a failure. Default: 5 retries, 10 seconds, exponential.
    pub fn retry(mut self, retries: Retries) -> Self {
        self.retries = retries;
        self
    }

    /// Checks it and gives it an id.
    pub(crate) fn prepare(self, limits: &Limits, id: Arc<str>) -> Result<NewHook> {
        let payload = self.payload?;
        limits.check_payload(|| what(&self.name), &payload)?;
        self.retries.check()?;
        let namespace = self.namespace.transpose()?.unwrap_or_else(default_namespace);
        let name = HookName::parse(&self.name, limits)?;
        if self.process_at.is_some_and(|at| at > hook::PROCESS_AT_MAX) {
            let message = format!("{} cannot wait until after the year 9999", what(&self.name));
            return Err(Refusal::new(Code::ValidationError, message).into());
        }
        let (process_at, retries) = (self.process_at, self.retries);
        Ok(NewHook { id, namespace, name, payload, process_at, retries })
    }

    fn default_to(mut self, namespace: &HookNamespace) -> Self {
        self.namespace.get_or_insert_with(|| Ok(namespace.clone()));
        self
    }
}

fn what(name: &str) -> String {
    format!("the payload of hook {name:?}")
}

/// Triggers a hook in a transaction of your own, without an engine: the hook is there exactly if that commits.
///
/// `transaction` is a `&rusqlite::Transaction` (or `&rusqlite::Connection`), a `&mut sqlx::PgConnection`, or the
/// transaction of a step. Piton's tables must exist in the database: an engine makes them when it starts. Without them it
/// is `STORE_UNUSABLE`, and says so.
///
/// ```
/// # fn main() -> anyhow::Result<()> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("app.db");
/// # let url = format!("sqlite:{}", path.display());
/// # let tokio = tokio::runtime::Runtime::new()?;
/// # tokio.block_on(async { piton::Engine::builder(url).start().await?.shutdown("1 s").await })?;
/// let mut database = piton::rusqlite::Connection::open(path)?;
/// let tx = database.transaction()?;
/// tx.execute("CREATE TABLE users (email TEXT)", [])?;
/// tx.execute("INSERT INTO users (email) VALUES ('ada@example.org')", [])?;
/// piton::hooks::trigger(&tx, "user.created", &"ada@example.org").store()?;
/// tx.commit()?;
/// # Ok(())
/// # }
/// ```
pub fn trigger<T: HookTransaction>(
    transaction: T,
    name: impl Into<String>,
    payload: &(impl Serialize + ?Sized),
) -> Trigger<T> {
    Trigger { transaction, hook: Hook::new(name, payload), client: None, schema: None }
}

/// A hook and the transaction it goes into; [`store`](Self::store) puts it there.
#[must_use = "the hook is stored by `store`, or by `.await` if it gets a transaction of its own"]
pub struct Trigger<T> {
    transaction: T,
    hook: Hook,
    client: Option<HookClient>,
    schema: Option<String>,
}

impl<T: HookTransaction> Trigger<T> {
    pub(super) fn new(transaction: T, hook: Hook, client: HookClient) -> Self {
        Self { transaction, hook, client: Some(client), schema: None }
    }

    /// The namespace whose handlers it is for. Default: that of the client, or `app`.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.hook = self.hook.namespace(namespace);
        self
    }

    /// Not before this moment; one that has passed is now, and none is after the year 9999. Retries follow their own
    /// delays.
    pub fn process_at(mut self, moment: impl Into<Timestamp>) -> Self {
        self.hook = self.hook.process_at(moment);
        self
    }

    /// What happens after a failure. Default: 5 retries, 10 seconds, exponential.
    pub fn retry(mut self, retries: Retries) -> Self {
        self.hook = self.hook.retry(retries);
        self
    }

    /// Stores the hook in the transaction and returns its id; on PostgreSQL, await it.
    pub fn store(self) -> T::Stored {
        let Self { transaction, hook, client, schema } = self;
        let prepared = match &client {
            Some(client) => client.prepare(hook).map(|new| PreparedHook {
                new,
                now: client.now(),
                schema: schema.or_else(|| client.schema()),
            }),
            None => {
                let (now, id) = wall_clock("hook");
                let prepared = hook.prepare(&Limits::default(), id);
                prepared.map(|new| PreparedHook { new, now, schema })
            }
        };
        transaction.store(prepared)
    }
}

#[cfg(feature = "postgres")]
impl Trigger<&mut sqlx::PgConnection> {
    /// The schema with Piton's tables, where it is not `public`.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }
}

impl<T> fmt::Debug for Trigger<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trigger({:?})", self.hook.name)
    }
}

/// A hook that is ready to be stored.
#[derive(Debug)]
pub struct PreparedHook {
    pub(crate) new: NewHook,
    #[cfg_attr(not(feature = "sqlite"), expect(dead_code, reason = "PostgreSQL has a clock"))]
    pub(crate) now: Timestamp,
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "SQLite has no schemas"))]
    pub(crate) schema: Option<String>,
}

/// A transaction that a hook can be stored in.
pub trait HookTransaction {
    /// The id of the stored hook, or a future of it.
    type Stored;

    /// Stores a hook, or says why it cannot be.
    fn store(self, hook: Result<PreparedHook>) -> Self::Stored;
}

#[cfg(feature = "sqlite")]
impl HookTransaction for &rusqlite::Connection {
    type Stored = Result<String>;

    fn store(self, hook: Result<PreparedHook>) -> Result<String> {
        let hook = hook?;
        let stored = crate::store::insert_hook_sqlite(self, &hook.new, hook.now);
        stored.map_err(|error| match error.to_string().contains("no such table") {
            true => no_hooks_here(&error, "start an engine on it once"),
            false => error.into(),
        })?;
        Ok(hook.new.id.to_string())
    }
}

#[cfg(feature = "sqlite")]
impl HookTransaction for &rusqlite::Transaction<'_> {
    type Stored = Result<String>;

    fn store(self, hook: Result<PreparedHook>) -> Result<String> {
        let conn: &rusqlite::Connection = self;
        conn.store(hook)
    }
}

#[cfg(feature = "postgres")]
impl<'c> HookTransaction for &'c mut sqlx::PgConnection {
    type Stored = std::pin::Pin<Box<dyn Future<Output = Result<String>> + Send + 'c>>;

    fn store(self, hook: Result<PreparedHook>) -> Self::Stored {
        Box::pin(async move {
            let hook = hook?;
            let schema = hook.schema.as_deref().unwrap_or("public");
            let stored = crate::store::insert_hook_postgres(self, &hook.new, schema).await;
            stored.map_err(|error| match lacks_a_table(&error) {
                true => no_hooks_here(
                    &error,
                    "start an engine on it once, or name the schema of Piton's tables with `.schema(..)`",
                ),
                false => error,
            })?;
            Ok(hook.new.id.to_string())
        })
    }
}

#[cfg(feature = "postgres")]
fn lacks_a_table(error: &crate::Error) -> bool {
    let told = error.source().and_then(|source| source.downcast_ref::<sqlx::Error>());
    let code = told.and_then(sqlx::Error::as_database_error).and_then(|told| told.code());
    code.is_some_and(|code| code == "42P01")
}

/// The database of a transaction has no table for hooks.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn no_hooks_here(error: &dyn fmt::Display, advice: &str) -> crate::Error {
    crate::Error::store_unusable(format!(
        "this transaction is not of the database that an engine keeps its hooks in ({error}): {advice}; in a step, \
         `cx.transaction().trigger_hook(..)` always finds the right one"
    ))
}

impl HookTransaction for &StepTransaction<'_> {
    type Stored = Result<String>;

    fn store(self, hook: Result<PreparedHook>) -> Result<String> {
        let new = hook?.new;
        let id = new.id.to_string();
        self.push_hook(new);
        Ok(id)
    }
}

/// A transaction for one hook and nothing else.
#[derive(Debug)]
pub struct OwnTransaction(HookClient);

impl HookTransaction for OwnTransaction {
    type Stored = BoxFuture<Result<String>>;

    fn store(self, hook: Result<PreparedHook>) -> Self::Stored {
        Box::pin(async move {
            let new = hook?.new;
            let id = new.id.to_string();
            self.0.store()?.trigger_hooks(vec![new]).await?;
            Ok(id)
        })
    }
}

/// A hook that gets a transaction of its own; await it to store it, for its id.
pub type SendHook = Trigger<OwnTransaction>;

impl SendHook {
    pub(super) fn alone(client: HookClient, hook: Hook) -> Self {
        Self::new(OwnTransaction(client.clone()), hook, client)
    }
}

impl IntoFuture for SendHook {
    type Output = Result<String>;
    type IntoFuture = BoxFuture<Result<String>>;

    fn into_future(self) -> Self::IntoFuture {
        self.store()
    }
}

/// Hooks that go with something else, with ids.
pub(crate) fn prepare_all(hooks: Vec<Hook>, limits: &Limits, ids: &Ids) -> Result<Vec<NewHook>> {
    hooks.into_iter().map(|hook| hook.prepare(limits, ids.next("hook"))).collect()
}

impl HookClient {
    /// Checks a hook, with this client's namespace unless it names one.
    pub(super) fn prepare(&self, hook: Hook) -> Result<NewHook> {
        let shared = self.shared();
        hook.default_to(self.namespace_name()).prepare(&shared.limits, shared.ids.next("hook"))
    }
}
