//! How a workflow is written and registered: a plain async function, or a struct with dependencies.

use std::any::TypeId;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use piton_core::{Code, InstanceId, Json, Refusal, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::runtime::BoxFuture;
use crate::step::Step;
use crate::{Error, Event, Result, codec};

/// A workflow with dependencies: pools, clients, configuration.
///
/// Write `run` as an `async fn`. Plain functions need no struct: see [`workflow`].
///
/// ```
/// use piton::prelude::*;
///
/// struct Greeter { greeting: String }
///
/// impl Workflow for Greeter {
///     const NAME: &'static str = "greeter";
///     type Params = String;
///     type Output = String;
///
///     async fn run(&self, name: Event<String>, step: &Step) -> Result<String> {
///         step.run("greet", async { Ok(format!("{}, {}!", self.greeting, *name)) }).await
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// let engine = Engine::builder("memory:")
///     .register(Greeter { greeting: "Hello".into() })
///     .start()
///     .await?;
/// let instance = engine.workflow::<String, String>("greeter")?.create("Ada".into()).await?;
/// assert_eq!(instance.result().await?, "Hello, Ada!");
/// # Ok(())
/// # }
/// ```
pub trait Workflow: Send + Sync + 'static {
    /// The name instances are addressed by; it must not change while instances live.
    const NAME: &'static str;
    /// What an instance is created with.
    type Params: Serialize + DeserializeOwned + Send + 'static;
    /// What an instance returns.
    type Output: Serialize + DeserializeOwned + Send + 'static;

    /// The program. It is called from the start on every pass; recorded steps return what they
    /// returned before, so do everything that must happen once inside `step.*`.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// struct Shop { currency: &'static str }
    ///
    /// impl Workflow for Shop {
    /// #     const NAME: &'static str = "shop";
    /// #     type Params = u64;
    /// #     type Output = String;
    ///     async fn run(&self, cents: Event<u64>, step: &Step) -> Result<String> {
    ///         step.run("format", async { Ok(format!("{} {}", *cents, self.currency)) }).await
    ///     }
    /// }
    /// ```
    fn run(
        &self,
        event: Event<Self::Params>,
        step: &Step,
    ) -> impl Future<Output = Result<Self::Output>> + Send;
}

/// An `async fn(Event<P>, &Step) -> Result<T>`. Implemented for all such functions; not for you to
/// implement.
///
/// The associated future type under a `for<'a>` bound is what lets an `async fn` that borrows its
/// [`Step`] be passed without a macro or a box.
///
/// ```
/// # use piton::prelude::*;
/// use piton::{Registration, WorkflowFn};
///
/// fn versioned<F>(version: u32, function: F) -> Registration
/// where
///     F: for<'a> WorkflowFn<'a, u64, Output = u64> + 'static,
/// {
///     workflow(format!("double-v{version}"), function)
/// }
/// # async fn double(n: Event<u64>, _: &Step) -> Result<u64> { Ok(*n * 2) }
/// assert_eq!(versioned(2, double).name(), "double-v2");
/// ```
pub trait WorkflowFn<'a, P>: Send + Sync {
    /// What the function returns when all goes well.
    type Output;
    /// The function's future.
    type Future: Future<Output = Result<Self::Output>> + Send + 'a;
    /// Calls the function.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use piton::WorkflowFn;
    /// # async fn double(n: Event<u64>, _: &Step) -> Result<u64> { Ok(*n * 2) }
    /// async fn quadruple(n: Event<u64>, step: &Step) -> Result<u64> {
    ///     Ok(double.call(n, step).await? * 2)
    /// }
    /// # let _ = workflow("quadruple", quadruple);
    /// ```
    fn call(&self, event: Event<P>, step: &'a Step) -> Self::Future;
}

impl<'a, P, T, F, Fut> WorkflowFn<'a, P> for F
where
    F: Fn(Event<P>, &'a Step) -> Fut + Send + Sync,
    Fut: Future<Output = Result<T>> + Send + 'a,
{
    type Output = T;
    type Future = Fut;

    fn call(&self, event: Event<P>, step: &'a Step) -> Fut {
        self(event, step)
    }
}

/// Makes a workflow of a plain async function.
///
/// ```
/// use piton::prelude::*;
///
/// async fn double(n: Event<u64>, step: &Step) -> Result<u64> {
///     step.run("double", async { Ok(*n * 2) }).await
/// }
/// let registration = workflow("double", double);
/// # let _ = registration;
/// ```
pub fn workflow<P, T, F>(name: impl Into<String>, function: F) -> Registration
where
    P: Serialize + DeserializeOwned + Send + 'static,
    T: Serialize + DeserializeOwned + Send + 'static,
    F: for<'a> WorkflowFn<'a, P, Output = T> + 'static,
{
    let program = FunctionProgram { function: Arc::new(function), types: PhantomData };
    Registration { name: name.into(), program: Arc::new(program) }
}

/// A named workflow, ready for [`EngineBuilder::register`](crate::EngineBuilder::register). Clones are the same
/// workflow.
///
/// ```
/// # use piton::prelude::*;
/// # use piton::Registration;
/// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// fn workflows() -> Vec<Registration> {
///     vec![workflow("noop", noop), workflow("still-noop", noop)]
/// }
/// let engine = workflows().into_iter().fold(Engine::builder("memory:"), |engine, w| engine.register(w));
/// assert_eq!(engine.start().await?.workflows(), ["noop", "still-noop"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Registration {
    pub(crate) name: String,
    pub(crate) program: Arc<dyn Program>,
}

impl Registration {
    /// The name it is registered under.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # async fn noop(_: Event<()>, _: &Step) -> Result<()> { Ok(()) }
    /// assert_eq!(workflow("noop", noop).name(), "noop");
    /// ```
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration({})", self.name)
    }
}

impl<W: Workflow> From<W> for Registration {
    fn from(workflow: W) -> Self {
        let program = StructProgram(Arc::new(workflow));
        Self { name: W::NAME.to_owned(), program: Arc::new(program) }
    }
}

/// What an instance starts from, before its params are decoded.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) params: Json,
    pub(crate) timestamp: Timestamp,
    pub(crate) instance_id: InstanceId,
}

impl Start {
    fn event<P: DeserializeOwned>(&self) -> Result<Event<P>> {
        let payload = decode_params(&self.params)?;
        Ok(Event::new(payload, self.timestamp, self.instance_id.clone()))
    }
}

fn decode_params<P: DeserializeOwned>(params: &Json) -> Result<P> {
    serde_json::from_str(params.as_str()).map_err(|_| params_invalid::<P>(params))
}

/// Decodes again, slowly, to say where the params are wrong.
fn params_invalid<P: DeserializeOwned>(params: &Json) -> Error {
    let wanted = std::any::type_name::<P>();
    let mut json = serde_json::Deserializer::from_str(params.as_str());
    let decoded = serde_path_to_error::deserialize::<_, P>(&mut json);
    let (path, cause) = match decoded {
        Err(error) => (error.path().to_string(), error.into_inner().to_string()),
        Ok(_) => (String::new(), "there is something behind the document".to_owned()),
    };
    // The path of the document itself is written as a dot.
    let path = if path == "." { String::new() } else { path };
    let place = if path.is_empty() { String::new() } else { format!(" at {path}") };
    let message = format!("the params do not decode as {wanted}{place}: {cause}");
    Refusal::new(Code::WorkflowParamsInvalid, message).at(path, cause).into()
}

/// A workflow with its types erased: what the engine runs.
pub(crate) trait Program: Send + Sync {
    /// Refuses params that do not decode.
    fn check_params(&self, params: &Json) -> Result<()>;
    /// The types of params and output, with their names for errors.
    fn types(&self) -> ProgramTypes;
    /// The whole program as one future that owns everything it needs.
    fn start(&self, start: &Start, step: Step) -> BoxFuture<Result<Json>>;
}

/// The types a workflow was registered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProgramTypes {
    pub(crate) params: (TypeId, &'static str),
    pub(crate) output: (TypeId, &'static str),
}

impl ProgramTypes {
    fn of<P: 'static, T: 'static>() -> Self {
        let named = |id, name| (id, name);
        Self {
            params: named(TypeId::of::<P>(), std::any::type_name::<P>()),
            output: named(TypeId::of::<T>(), std::any::type_name::<T>()),
        }
    }
}

fn encode_output<T: Serialize>(output: &T) -> Result<Json> {
    codec::encode(|| "the workflow's output".to_owned(), output)
}

struct StructProgram<W>(Arc<W>);

impl<W: Workflow> Program for StructProgram<W> {
    fn check_params(&self, params: &Json) -> Result<()> {
        decode_params::<W::Params>(params).map(drop)
    }

    fn types(&self) -> ProgramTypes {
        ProgramTypes::of::<W::Params, W::Output>()
    }

    fn start(&self, start: &Start, step: Step) -> BoxFuture<Result<Json>> {
        let (workflow, event) = (Arc::clone(&self.0), start.event());
        Box::pin(async move { encode_output(&workflow.run(event?, &step).await?) })
    }
}

struct FunctionProgram<F, P, T> {
    function: Arc<F>,
    types: PhantomData<fn(P) -> T>,
}

impl<F, P, T> Program for FunctionProgram<F, P, T>
where
    P: Serialize + DeserializeOwned + Send + 'static,
    T: Serialize + DeserializeOwned + Send + 'static,
    F: for<'a> WorkflowFn<'a, P, Output = T> + 'static,
{
    fn check_params(&self, params: &Json) -> Result<()> {
        decode_params::<P>(params).map(drop)
    }

    fn types(&self) -> ProgramTypes {
        ProgramTypes::of::<P, T>()
    }

    fn start(&self, start: &Start, step: Step) -> BoxFuture<Result<Json>> {
        let (function, event) = (Arc::clone(&self.function), start.event());
        Box::pin(async move {
            let output = function.call(event?, &step).await?;
            encode_output(&output)
        })
    }
}
