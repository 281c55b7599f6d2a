//! What the inputs of steps are made of: values, variables, and closures over the context.

use std::fmt;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use piton::{Error, Result};
use piton_core::{IntoSpan, Span, Timestamp};
use serde::Serialize;
use serde_json::Value;

use super::{Context, TickPayload, Var};

type Make<T> = Box<dyn for<'a> FnOnce(&'a Context) -> LocalBoxFuture<'a, Result<T>>>;

/// An input of a step, looked at when its step is reached.
///
/// ```
/// use piton_testing::scenario::{Input, given};
/// let tomorrow: Input<piton::Timestamp> = given(|cx| cx.now().plus(piton::Span::literal("1 day")));
/// ```
pub struct Input<T>(Make<T>);

impl<T: 'static> Input<T> {
    pub(super) fn value(value: Result<T>) -> Self {
        Self(Box::new(move |_| std::future::ready(value).boxed_local()))
    }

    pub(super) async fn resolve(self, context: &Context) -> Result<T> {
        (self.0)(context).await
    }
}

impl<T> fmt::Debug for Input<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Input")
    }
}

/// An input that is computed from the context when its step is reached: `given(|cx| cx.var(ID).clone())`.
///
/// ```
/// # use piton_testing::scenario::{given, steps::*};
/// let step = set_time(given(|cx| cx.now().plus(piton::Span::literal("1 day"))));
/// ```
pub fn given<T: 'static>(compute: impl FnOnce(&Context) -> T + 'static) -> Input<T> {
    Input(Box::new(move |context| std::future::ready(Ok(compute(context))).boxed_local()))
}

/// Like [`given`], for what has to be looked up: `later(async |cx| cx.utils().build_payload(..).await)`.
///
/// ```
/// # use piton_testing::scenario::{Reason, later, steps::*};
/// let step = tick_payload(later(async |cx| cx.utils().build_payload("nap", "n-1", Reason::Wake).await));
/// ```
pub fn later<T: 'static>(compute: impl AsyncFnOnce(&Context) -> Result<T> + 'static) -> Input<T> {
    Input(Box::new(move |context| async move { compute(context).await }.boxed_local()))
}

/// What can be an input of type `T`: a value, a [`Var`], [`given`] or [`later`].
///
/// ```
/// use piton_testing::scenario::{IntoInput, Scenario, steps::*};
///
/// fn with_instance(scenario: Scenario, id: impl IntoInput<String>) -> Scenario {
///     scenario.step(create("nap").id(id))
/// }
/// let scenario = with_instance(Scenario::new("a nap"), "n-1");
/// ```
pub trait IntoInput<T> {
    /// Makes it one.
    ///
    /// ```
    /// use piton_testing::scenario::{Input, IntoInput};
    /// let id: Input<String> = "n-1".into_input();
    /// ```
    fn into_input(self) -> Input<T>;
}

impl<T> IntoInput<T> for Input<T> {
    fn into_input(self) -> Input<T> {
        self
    }
}

impl<T: Clone + 'static> IntoInput<T> for Var<T> {
    fn into_input(self) -> Input<T> {
        given(move |context| context.var(self).clone())
    }
}

impl IntoInput<String> for &str {
    fn into_input(self) -> Input<String> {
        Input::value(Ok(self.to_owned()))
    }
}

impl IntoInput<String> for String {
    fn into_input(self) -> Input<String> {
        Input::value(Ok(self))
    }
}

impl IntoInput<Timestamp> for Timestamp {
    fn into_input(self) -> Input<Timestamp> {
        Input::value(Ok(self))
    }
}

/// Milliseconds since the Unix epoch.
impl IntoInput<Timestamp> for i64 {
    fn into_input(self) -> Input<Timestamp> {
        Input::value(Ok(Timestamp::from_millis(self)))
    }
}

impl IntoInput<usize> for usize {
    fn into_input(self) -> Input<usize> {
        Input::value(Ok(self))
    }
}

impl IntoInput<TickPayload> for TickPayload {
    fn into_input(self) -> Input<TickPayload> {
        Input::value(Ok(self))
    }
}

impl<S: IntoSpan> IntoInput<Span> for S {
    fn into_input(self) -> Input<Span> {
        Input::value(self.into_span().map_err(Error::from))
    }
}

/// Anything that can be written as JSON is a payload or params.
impl<S: Serialize> IntoInput<Value> for S {
    fn into_input(self) -> Input<Value> {
        Input::value(serde_json::to_value(self).map_err(Error::from))
    }
}

/// Instances of a batch: an id and params each.
impl<I: Into<String>, P: Serialize, const N: usize> IntoInput<Vec<(String, Value)>>
    for [(I, P); N]
{
    fn into_input(self) -> Input<Vec<(String, Value)>> {
        let each =
            self.into_iter().map(|(id, params)| Ok((id.into(), serde_json::to_value(params)?)));
        Input::value(each.collect())
    }
}
