//! What a body made by `step.run_with` is told, and the transaction it may write in.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use piton_core::hook::NewHook;
use piton_core::{EventType, InstanceId, StepName, WorkflowName};
use serde::Serialize;

use crate::hooks::Hook;
use crate::pass::Pass;
use crate::store::{Mutation, NewEvent, NewInstance, SqlParams};
use crate::{Result, codec};

/// One attempt of a step, as its body sees it.
///
/// ```
/// # use piton::prelude::*;
/// # use piton::StepContext;
/// # async fn charge(_: &str) -> std::io::Result<u64> { Ok(125) }
/// async fn attempt(cx: StepContext) -> Result<u64> {
///     println!("attempt {}", cx.attempt());
///     Ok(charge(&cx.idempotency_key()).await?)
/// }
/// async fn pay(_: Event<()>, step: &Step) -> Result<u64> {
///     step.run_with("charge", attempt).await
/// }
/// # let _ = workflow("pay", pay);
/// ```
#[derive(Clone)]
pub struct StepContext {
    pass: Arc<Pass>,
    name: StepName,
    attempt: u32,
    mutations: Arc<Mutex<Vec<Mutation>>>,
}

impl StepContext {
    pub(crate) fn new(pass: Arc<Pass>, name: &StepName, attempt: u32) -> Self {
        Self { pass, name: name.clone(), attempt, mutations: Arc::default() }
    }

    /// The number of this attempt, from 1.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn f(_: Event<()>, step: &Step) -> Result<u32> {
    /// step.run_with("count", |cx| async move { Ok(cx.attempt()) }).await
    /// # }
    /// # let _ = workflow("f", f);
    /// ```
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// A key that is the same on every attempt of this step and on no other step, run or instance: give
    /// it to services that recognise repeats.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn f(_: Event<()>, step: &Step) -> Result<String> {
    /// step.run_with("charge", |cx| async move { Ok(cx.idempotency_key()) }).await
    /// # }
    /// # let _ = workflow("f", f);
    /// ```
    pub fn idempotency_key(&self) -> String {
        let info = &self.pass.info;
        format!("{}/{}/{}/{}", info.workflow, info.id, info.run, self.name)
    }

    /// The transaction in which this step's result will be recorded.
    ///
    /// What is asked of it is done inside that transaction, exactly once, if this attempt succeeds; a
    /// failed attempt leaves nothing behind, and a replay repeats nothing.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// async fn register(email: Event<String>, step: &Step) -> Result<()> {
    ///     let email = &*email;
    ///     step.run_with("store user", |cx| async move {
    ///         let tx = cx.transaction();
    ///         tx.execute("INSERT INTO users (email) VALUES (?1)", [email.as_str()]);
    ///         tx.send_event("signups", "today", "signup", email)?;
    ///         Ok(())
    ///     })
    ///     .await
    /// }
    /// # let _ = workflow("register", register);
    /// ```
    pub fn transaction(&self) -> StepTransaction<'_> {
        StepTransaction { context: self }
    }

    pub(crate) fn take_mutations(&self) -> Vec<Mutation> {
        std::mem::take(&mut *self.mutations.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn push(&self, mutation: Mutation) {
        self.mutations.lock().unwrap_or_else(PoisonError::into_inner).push(mutation);
    }
}

impl fmt::Debug for StepContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StepContext({:?} attempt {})", self.name, self.attempt)
    }
}

/// Writes that are committed together with the step, in the order in which they are asked for.
///
/// They cannot influence the step's result: they run after the body has returned. A violated unique
/// constraint fails the step for good with an error named `UniqueConstraint`; other failures of SQL are
/// failures of the attempt and are retried.
///
/// ```
/// # use piton::prelude::*;
/// # async fn f(_: Event<()>, step: &Step) -> Result<()> {
/// # step.run_with("sell", |cx| async move {
/// let tx = cx.transaction();
/// tx.execute("UPDATE stock SET left = left - 1 WHERE item = ?1", ["rope"]);
/// tx.send_event("warehouse", "main", "sold", "rope")?;
/// # Ok(()) }).await?;
/// # Ok(()) }
/// # let _ = workflow("f", f);
/// ```
#[derive(Debug)]
pub struct StepTransaction<'c> {
    context: &'c StepContext,
}

impl StepTransaction<'_> {
    /// A statement on the engine's own database, with `?1`, `?2`, … for the parameters (`$1`, `$2`, … on PostgreSQL): a
    /// tuple, an array, a `Vec`, or `()` for none.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn f(_: Event<()>, step: &Step) -> Result<()> {
    /// # step.run_with("s", |cx| async move {
    /// cx.transaction().execute("UPDATE stock SET left = left - ?1 WHERE item = ?2", (3, "rope"));
    /// # Ok(()) }).await }
    /// # let _ = workflow("f", f);
    /// ```
    pub fn execute(&self, sql: impl Into<String>, params: impl SqlParams) {
        let params = params.into_values();
        self.context.push(Mutation::Execute { sql: sql.into(), params });
    }

    /// Anything that can be done with a `rusqlite` transaction, on the embedded store.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn f(_: Event<()>, step: &Step) -> Result<()> {
    /// # step.run_with("s", |cx| async move {
    /// cx.transaction().sqlite(|tx| {
    ///     tx.execute("INSERT INTO visits (at) VALUES (unixepoch())", [])?;
    ///     Ok(())
    /// });
    /// # Ok(()) }).await }
    /// # let _ = workflow("f", f);
    /// ```
    #[cfg(feature = "sqlite")]
    pub fn sqlite(
        &self,
        work: impl FnOnce(&rusqlite::Transaction<'_>) -> Result<()> + Send + 'static,
    ) {
        self.context.push(Mutation::Sqlite(Box::new(work)));
    }

    /// Anything that can be done with a `sqlx` connection, on the PostgreSQL store.
    ///
    /// The work runs on the connection of the step's transaction, before the step is recorded: it must not end the
    /// transaction.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn f(_: Event<()>, step: &Step) -> Result<()> {
    /// # step.run_with("s", |cx| async move {
    /// cx.transaction().postgres(|conn| {
    ///     Box::pin(async move {
    ///         piton::sqlx::query("INSERT INTO visits (at) VALUES (now())").execute(conn).await?;
    ///         Ok(())
    ///     })
    /// });
    /// # Ok(()) }).await }
    /// # let _ = workflow("f", f);
    /// ```
    #[cfg(feature = "postgres")]
    pub fn postgres<W>(&self, work: W)
    where
        W: for<'c> FnOnce(
                &'c mut sqlx::PgConnection,
            )
                -> std::pin::Pin<Box<dyn Future<Output = Result<()>> + Send + 'c>>
            + Send
            + 'static,
    {
        self.context.push(Mutation::Postgres(Box::new(work)));
    }

    /// Creates an instance of a workflow registered with this engine.
    ///
    /// If the id exists by then, the step fails for good with `INSTANCE_ID_ALREADY_EXISTS`.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn f(_: Event<()>, step: &Step) -> Result<()> {
    /// # step.run_with("s", |cx| async move {
    /// cx.transaction().create("shipment", "order-123", &"express")?;
    /// # Ok(()) }).await }
    /// # let _ = workflow("f", f);
    /// ```
    ///
    /// # Errors
    ///
    /// If the workflow is not registered, the id is not valid or the params do not decode.
    pub fn create(
        &self,
        workflow: &str,
        id: &str,
        params: &(impl Serialize + ?Sized),
    ) -> Result<()> {
        let pass = &self.context.pass;
        let params = codec::encode(|| format!("the params of {workflow}/{id}"), params)?;
        pass.limits.check_payload(|| format!("the params of {workflow}/{id}"), &params)?;
        let workflow = pass.check_created.check_created(workflow, &params)?;
        let id = InstanceId::parse(id, &pass.limits)?;
        self.context.push(Mutation::Create { workflow, instance: NewInstance { id, params } });
        Ok(())
    }

    /// Triggers a hook, and returns its id: it is there exactly if the step completes.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton::hooks::Hook;
    /// # async fn f(_: Event<()>, step: &Step) -> Result<()> {
    /// # step.run_with("s", |cx| async move {
    /// cx.transaction().trigger_hook(Hook::new("order.paid", &"order-123"))?;
    /// # Ok(()) }).await }
    /// # let _ = workflow("f", f);
    /// ```
    ///
    /// # Errors
    ///
    /// If a name is not valid or the payload is too large.
    pub fn trigger_hook(&self, hook: Hook) -> Result<String> {
        let pass = &self.context.pass;
        let new = hook.prepare(&pass.limits, pass.new_id("hook"))?;
        let id = new.id.to_string();
        self.push_hook(new);
        Ok(id)
    }

    pub(crate) fn push_hook(&self, new: NewHook) {
        self.context.push(Mutation::TriggerHook(new));
    }

    /// Sends an event to an instance, also of a workflow this engine does not know.
    ///
    /// If the instance does not exist or has ended by then, the step fails for good.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn f(_: Event<()>, step: &Step) -> Result<()> {
    /// # step.run_with("s", |cx| async move {
    /// cx.transaction().send_event("order", "order-123", "shipped", &42)?;
    /// # Ok(()) }).await }
    /// # let _ = workflow("f", f);
    /// ```
    ///
    /// # Errors
    ///
    /// If a name is not valid or the payload is too large.
    pub fn send_event(
        &self,
        workflow: &str,
        id: &str,
        event_type: &str,
        payload: &(impl Serialize + ?Sized),
    ) -> Result<()> {
        let limits = &self.context.pass.limits;
        let what = || format!("the payload of event {event_type:?}");
        let payload = codec::encode(what, payload)?;
        limits.check_payload(what, &payload)?;
        self.context.push(Mutation::SendEvent(NewEvent {
            workflow: WorkflowName::parse(workflow, limits)?,
            id: InstanceId::parse(id, limits)?,
            event_type: EventType::parse(event_type, limits)?,
            payload,
            idempotency_key: None,
            hooks: Vec::new(),
        }));
        Ok(())
    }
}
