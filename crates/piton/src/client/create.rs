//! Creating instances, one or many.

use std::collections::HashSet;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use piton_core::lifecycle::first_task;
use piton_core::{Code, InstanceId, Json, Limits, Refusal};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::{InstanceHandle, WorkflowHandle};
use crate::hooks::{Hook, prepare_all};
use crate::pass::Asked;
use crate::runtime::{BoxFuture, Runtime};
use crate::store::{ClaimedRun, CreateRequest, Created, Existing, NewInstance};
use crate::{Error, Result, codec};

const EXISTS: &str = Code::InstanceIdAlreadyExists.as_str();

/// An instance to be created by [`WorkflowHandle::create_batch`].
///
/// ```
/// # use piton::prelude::*;
/// # use piton::BatchItem;
/// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
/// # let noop = engine.workflow::<(), ()>("noop")?;
/// let batch = (1..=3).map(|day| BatchItem::new(format!("day-{day}"), ()));
/// assert_eq!(noop.create_batch(batch).await?.len(), 3);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct BatchItem<P> {
    /// Its id.
    pub id: String,
    /// Its params.
    pub params: P,
}

impl<P> BatchItem<P> {
    /// An instance with this id and these params.
    ///
    /// ```
    /// let item = piton::BatchItem::new("order-123", 125);
    /// assert_eq!((item.id.as_str(), item.params), ("order-123", 125));
    /// ```
    pub fn new(id: impl Into<String>, params: P) -> Self {
        Self { id: id.into(), params }
    }
}

/// An instance in the making; await it to create it.
///
/// ```
/// # use piton::prelude::*;
/// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
/// # let noop = engine.workflow::<(), ()>("noop")?;
/// let create = noop.create(()).id("order-123"); // nothing has happened yet
/// assert_eq!(create.await?.id(), "order-123");
/// # Ok(())
/// # }
/// ```
#[must_use = "an instance is created when this is awaited"]
pub struct Create<P, O> {
    workflow: WorkflowHandle<P, O>,
    params: P,
    id: Option<String>,
    or_get: bool,
    idempotency_key: Option<String>,
    hooks: Vec<Hook>,
}

impl<P: Serialize + Send + 'static, O: 'static> WorkflowHandle<P, O> {
    /// Creates an instance, with an id of its own unless [`Create::id`] gives one.
    ///
    /// When the handle is there the instance is durable. It starts at once if this process has a runner
    /// with room for it.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
    /// let noop = engine.workflow::<(), ()>("noop")?;
    /// let instance = noop.create(()).id("order-123").await?;
    /// assert_eq!(instance.id(), "order-123");
    /// let again = noop.create(()).id("order-123").await.unwrap_err();
    /// assert_eq!(again.code(), Some("INSTANCE_ID_ALREADY_EXISTS"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn create(&self, params: P) -> Create<P, O> {
        Create {
            workflow: self.clone(),
            params,
            id: None,
            or_get: false,
            idempotency_key: None,
            hooks: Vec::new(),
        }
    }

    /// Creates up to 100 instances in one transaction.
    ///
    /// Ids that exist are skipped and left out of the answer; so are repeats within the batch. Anything
    /// invalid refuses the whole batch.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton::BatchItem;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
    /// let noop = engine.workflow::<(), ()>("noop")?;
    /// noop.create(()).id("a").await?;
    /// let created = noop.create_batch(["a", "b", "b", "c"].map(|id| BatchItem::new(id, ()))).await?;
    /// let ids: Vec<_> = created.iter().map(|instance| instance.id()).collect();
    /// assert_eq!(ids, ["b", "c"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `INVALID_INSTANCE_ID`, `WORKFLOW_PARAMS_INVALID`, `PAYLOAD_TOO_LARGE`, `VALIDATION_ERROR` for too many. The
    /// [issues](Error::issues) say which instance it is about: `[1].params.cents`.
    pub async fn create_batch(
        &self,
        batch: impl IntoIterator<Item = BatchItem<P>>,
    ) -> Result<Vec<InstanceHandle<O>>> {
        let (mut seen, mut instances) = (HashSet::new(), Vec::new());
        let max = self.limits().batch_max;
        for (index, BatchItem { id, params }) in batch.into_iter().enumerate() {
            if index == max {
                let message =
                    format!("a batch has more than {max} instances (batch_max); split it");
                return Err(Refusal::new(Code::ValidationError, message).into());
            }
            let instance = self.new_instance(Some(&id), &params);
            let instance = instance.map_err(|error| error.in_batch(index))?;
            if seen.insert(instance.id.clone()) {
                instances.push(instance);
            }
        }
        if instances.is_empty() {
            return Ok(Vec::new());
        }
        let (workflow, existing) = (self.name.clone(), Existing::Skip);
        let request =
            CreateRequest { workflow, instances, existing, lease: None, hooks: Vec::new() };
        let created = self.shared.store.create(request).await?;
        Ok(created.into_iter().map(|c| self.handle(c.instance.id, c.instance.key)).collect())
    }

    fn new_instance(&self, id: Option<&str>, params: &P) -> Result<NewInstance> {
        let id = match id {
            Some(id) => InstanceId::parse(id, self.limits())?,
            None => InstanceId::from_stored(self.shared.ids.next("inst")),
        };
        let what = || format!("the params of instance {id:?}");
        let params = codec::encode(what, params)?;
        self.limits().check_payload(what, &params)?;
        // Typed ones too: what encodes need not decode (a NaN, a field that is skipped one way).
        self.program.check_params(&params)?;
        Ok(NewInstance { id, params })
    }

    /// The instance that exists, if it is the one that a repeat asks for.
    async fn get_repeat(&self, id: &str, params: &Json, error: Error) -> Result<InstanceHandle<O>> {
        let id = InstanceId::parse(id, self.limits())?;
        let view = self.shared.store.instance(self.name.clone(), id).await?;
        match view.map(|view| view.record) {
            Some(record) if record.params == *params => Ok(self.handle(record.id, record.key)),
            Some(_) | None => Err(error),
        }
    }

    async fn create_one(
        self,
        id: Option<String>,
        params: P,
        hooks: Vec<Hook>,
    ) -> Result<InstanceHandle<O>> {
        let hooks = prepare_all(hooks, self.limits(), &self.shared.ids)?;
        let instance = self.new_instance(id.as_deref(), &params)?;
        drop(params);
        let (slot, lease) = self.runner.try_lease().unzip();
        let request = CreateRequest {
            workflow: self.name.clone(),
            instances: vec![instance],
            existing: Existing::Refuse,
            lease: lease.clone(),
            hooks,
        };
        let asked = Asked::now(&*self.shared.runtime);
        let mut created = self.shared.store.create(request).await?;
        let Created { instance, epoch } = created.pop().expect("one was created or it was refused");
        let handle = self.handle(instance.id.clone(), instance.key);
        if let (Some(slot), Some(lease)) = (slot, lease) {
            let now = instance.created_at;
            let mut task = first_task(now, Some(now.plus(lease.span)));
            task.epoch = epoch;
            let run = ClaimedRun {
                workflow: self.name,
                id: instance.id,
                params: instance.params,
                created_at: instance.created_at,
                key: instance.key,
                task,
            };
            self.runner.start_leased(run, now, asked, slot);
        }
        Ok(handle)
    }
}

impl<P, O> Create<P, O> {
    /// Gives the instance an id, unique within the workflow: at most 100 letters, digits, `_` and `-`.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
    /// # let noop = engine.workflow::<(), ()>("noop")?;
    /// assert_eq!(noop.create(()).id("order-123").await?.id(), "order-123");
    /// let refused = noop.create(()).id("no spaces").await.unwrap_err();
    /// assert_eq!(refused.code(), Some("INVALID_INSTANCE_ID"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Triggers a hook with it: it is there exactly if the instance is created by this call.
    pub fn hook(mut self, hook: Hook) -> Self {
        self.hooks.push(hook);
        self
    }

    /// If the id exists already, returns that instance instead of refusing: for callers that may try
    /// again. Its params are not compared.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
    /// let noop = engine.workflow::<(), ()>("noop")?;
    /// let first = noop.create(()).id("order-123").or_get().await?;
    /// let again = noop.create(()).id("order-123").or_get().await?;
    /// assert_eq!(first.id(), again.id());
    /// # Ok(())
    /// # }
    /// ```
    pub fn or_get(mut self) -> Self {
        self.or_get = true;
        self
    }

    /// Makes a repeat harmless, for callers that may try again after no answer arrived: with the same key
    /// the same instance is returned. Other params under the same key or id are refused.
    ///
    /// Without an [`id`](Self::id) the instance gets one made of the key.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn noop(_: Event<u32>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("noop", noop)).start().await?;
    /// let noop = engine.workflow::<u32, ()>("noop")?;
    /// let first = noop.create(1).idempotency_key("request-1").await?;
    /// let again = noop.create(1).idempotency_key("request-1").await?;
    /// assert_eq!(first.id(), again.id());
    /// let other = noop.create(2).idempotency_key("request-1").await.unwrap_err();
    /// assert_eq!(other.code(), Some("INSTANCE_ID_ALREADY_EXISTS"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }
}

impl<P: Serialize + Send + 'static, O: 'static> IntoFuture for Create<P, O> {
    type Output = Result<InstanceHandle<O>>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { workflow, params, id, or_get, idempotency_key, hooks } = self;
        Box::pin(async move {
            let id = match (id, &idempotency_key) {
                (None, Some(key)) => Some(id_of_key(key, workflow.limits())?),
                (id, _) => id,
            };
            let repeated = idempotency_key.map(|_| encode_params(id.as_deref(), &params));
            let repeated = repeated.transpose()?;
            let runtime = Arc::clone(&workflow.shared.runtime);
            let create = Box::pin(workflow.clone().create_one(id.clone(), params, hooks));
            let created = SeenThrough { runtime, work: Some(create) }.await;
            match (created, id) {
                (Err(error), Some(id)) if error.code() == Some(EXISTS) => match repeated {
                    Some(params) => workflow.get_repeat(&id, &params, error).await,
                    None if or_get => workflow.get(&id).await,
                    None => Err(error),
                },
                (created, _) => created,
            }
        })
    }
}

/// The id of an instance that was given a key instead.
fn id_of_key(key: &str, limits: &Limits) -> Result<String> {
    limits.check_idempotency_key(key)?;
    let digest = Sha256::digest(key);
    let hex = digest.iter().take(16).map(|byte| format!("{byte:02x}"));
    Ok(std::iter::once("key_".to_owned()).chain(hex).collect())
}

fn encode_params(id: Option<&str>, params: &impl Serialize) -> Result<Json> {
    codec::encode(|| format!("the params of instance {:?}", id.unwrap_or_default()), params)
}

impl<P, O> fmt::Debug for Create<P, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Create({} {:?})", self.workflow.name, self.id)
    }
}

/// Work that is seen through even if its caller goes away in the middle: an instance that was created
/// leased must not be left to nobody.
struct SeenThrough<T: Send + 'static> {
    runtime: Arc<dyn Runtime>,
    work: Option<BoxFuture<T>>,
}

impl<T: Send + 'static> Future for SeenThrough<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // What panics here is gone with its panic, and cannot go on.
        let mut work = self.work.take().expect("polled after it was done");
        let done = work.as_mut().poll(context);
        if done.is_pending() {
            self.work = Some(work);
        }
        done
    }
}

impl<T: Send + 'static> Drop for SeenThrough<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.runtime.spawn(Box::pin(async move { drop(work.await) })).detach();
        }
    }
}
