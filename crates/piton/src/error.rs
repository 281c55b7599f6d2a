//! The one public error, and how it travels: out of user code with `?`, into the database as
//! `{name, message, code?, stack?}`, and back out of it on replay.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;

use piton_core::record::RecordedError;
use piton_core::{Code, DurationError, Issue, Refusal};

use crate::store::StoreError;

/// What a Piton function returns.
///
/// ```
/// fn cents(text: &str) -> piton::Result<u64> {
///     Ok(text.parse()?)
/// }
/// assert_eq!(cents("125")?, 125);
/// # Ok::<(), piton::Error>(())
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What an error is about.
///
/// ```
/// # use piton::prelude::*;
/// # use piton::ErrorKind;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> piton::Result<()> {
/// let error = Engine::builder("nowhere").start().await.unwrap_err();
/// match error.kind() {
///     ErrorKind::Store if error.is_retryable() => println!("try again later"),
///     kind => println!("{kind:?}: {error}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// User code failed: a step body, a workflow, or an error recorded by one.
    User,
    /// The input was refused; [`Error::code`] says why. Trying again cannot help.
    Refused,
    /// The store could not be used; nothing was acknowledged. Trying again later may help.
    Store,
    /// The engine has been shut down. Ask one that runs, or start another.
    ShuttingDown,
}

/// Why something failed: of user code as well as of the engine.
///
/// Any [`std::error::Error`] becomes one with `?`. For that to be possible this type does not implement
/// `std::error::Error` itself; it converts into `anyhow::Error` and `Box<dyn std::error::Error>` with `?`.
///
/// An error that a step ends with is recorded by name and message and returned again on every replay.
///
/// ```
/// use piton::Error;
///
/// fn parse(text: &str) -> piton::Result<u32> {
///     Ok(text.parse::<u32>()?)
/// }
/// let error = parse("many").unwrap_err();
/// assert_eq!(error.message(), "invalid digit found in string");
/// assert!(error.is_retryable());
///
/// let declined = Error::non_retryable("card declined").named("CardDeclined");
/// assert!(!declined.is_retryable());
/// assert_eq!(declined.to_string(), "CardDeclined: card declined");
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    name: String,
    message: String,
    code: Option<String>,
    stack: Option<String>,
    issues: Vec<Issue>,
    retryable: bool,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The name of an error that nobody named.
const DEFAULT_NAME: &str = "Error";

impl Error {
    fn build(kind: ErrorKind, message: String, retryable: bool) -> Self {
        Self(Box::new(Inner {
            kind,
            name: DEFAULT_NAME.to_owned(),
            message,
            code: None,
            stack: None,
            issues: Vec::new(),
            retryable,
            source: None,
        }))
    }

    /// An error with a message; a step that fails with it is retried.
    ///
    /// ```
    /// assert!(piton::Error::new("the gateway is busy").is_retryable());
    /// ```
    pub fn new(message: impl Into<String>) -> Self {
        Self::build(ErrorKind::User, message.into(), true)
    }

    /// An error that ends its step at once, whatever the retry policy.
    ///
    /// ```
    /// assert!(!piton::Error::non_retryable("card declined").is_retryable());
    /// ```
    pub fn non_retryable(message: impl Into<String>) -> Self {
        Self::build(ErrorKind::User, message.into(), false)
    }

    /// Wraps anything that can become a boxed error: `anyhow::Error`, `Box<dyn Error>`, a string.
    ///
    /// ```
    /// let result: Result<(), anyhow::Error> = Err(anyhow::anyhow!("no luck"));
    /// let error = result.map_err(piton::Error::wrap).unwrap_err();
    /// assert_eq!(error.message(), "no luck");
    /// ```
    pub fn wrap(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        let source = error.into();
        let mut wrapped = Self::new(source.to_string());
        wrapped.0.stack = causes(&*source);
        wrapped.0.source = Some(source);
        wrapped
    }

    /// A panic as an error named `Panic`, with its message.
    ///
    /// ```
    /// let caught = std::panic::catch_unwind(|| panic!("no luck")).unwrap_err();
    /// assert_eq!(piton::Error::from_panic(&*caught).to_string(), "Panic: no luck");
    /// ```
    pub fn from_panic(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        Self::new(text.unwrap_or("panicked with something that is not text")).named("Panic")
    }

    /// Gives the error a name: recorded, shown, and the same on replay.
    ///
    /// ```
    /// let error = piton::Error::new("nobody home").named("NobodyHome");
    /// assert_eq!(error.name(), "NobodyHome");
    /// ```
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.0.name = name.into();
        self
    }

    /// Marks the error as one that no retry can help.
    ///
    /// ```
    /// let error = piton::Error::new("gone for good").into_non_retryable();
    /// assert!(!error.is_retryable());
    /// ```
    #[must_use]
    pub fn into_non_retryable(mut self) -> Self {
        self.0.retryable = false;
        self
    }

    /// What the error is about.
    ///
    /// ```
    /// assert_eq!(piton::Error::new("no luck").kind(), piton::ErrorKind::User);
    /// ```
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Its name; `"Error"` when nobody gave it one.
    ///
    /// ```
    /// use piton::Error;
    /// assert_eq!(Error::new("no luck").name(), "Error");
    /// assert_eq!(Error::new("no luck").named("NoLuck").name(), "NoLuck");
    /// ```
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What happened, without the name.
    ///
    /// ```
    /// let error = piton::Error::new("no luck").named("NoLuck");
    /// assert_eq!((error.message(), error.to_string().as_str()), ("no luck", "NoLuck: no luck"));
    /// ```
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The stable code, such as `"INSTANCE_NOT_FOUND"`; refusals of the engine always have one.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").start().await?;
    /// let error = engine.workflow::<(), ()>("nobody").unwrap_err();
    /// assert_eq!(error.code(), Some("WORKFLOW_NOT_FOUND"));
    /// assert_eq!(Error::new("no luck").code(), None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn code(&self) -> Option<&str> {
        self.0.code.as_deref()
    }

    /// Where in the input it is wrong, if that is known: params that do not decode name the field.
    ///
    /// ```
    /// # use piton::prelude::*;
    /// # use serde_json::{Value, json};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Order { cents: u64 }
    /// # async fn pay(_: Event<Order>, _: &Step) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> piton::Result<()> {
    /// # let engine = Engine::builder("memory:").register(workflow("pay", pay)).start().await?;
    /// let pay = engine.workflow::<Value, Value>("pay")?;
    /// let error = pay.create(json!({ "cents": "many" })).await.unwrap_err();
    /// assert_eq!(error.issues()[0].path, "cents");
    /// # Ok(())
    /// # }
    /// ```
    pub fn issues(&self) -> &[Issue] {
        &self.0.issues
    }

    /// Whether a step that fails with it may be retried.
    ///
    /// ```
    /// use piton::Error;
    /// assert!(Error::new("the gateway is busy").is_retryable());
    /// assert!(!Error::non_retryable("card declined").is_retryable());
    /// ```
    pub fn is_retryable(&self) -> bool {
        self.0.retryable
    }

    /// The error behind it, if it wraps one and has not been through the database.
    ///
    /// ```
    /// let error = piton::Error::from("x".parse::<u32>().unwrap_err());
    /// let source = error.source().expect("it wraps one");
    /// assert!(source.is::<std::num::ParseIntError>());
    /// ```
    pub fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }

    /// The same error, about one instance of a batch, counted from 0: `cents` becomes `[1].params.cents`.
    pub(crate) fn in_batch(mut self, index: usize) -> Self {
        let inner = &mut *self.0;
        let id = inner.code.as_deref() == Some(Code::InvalidInstanceId.as_str());
        let part = if id { "id" } else { "params" };
        if inner.issues.is_empty() {
            let message = inner.message.clone();
            inner.issues.push(Issue { path: String::new(), message });
        }
        let place = format!("[{index}].{part}");
        let issues = std::mem::take(&mut inner.issues).into_iter();
        inner.issues = issues.map(|issue| issue.inside(&place)).collect();
        inner.message = format!("instance {index} of the batch: {}", inner.message);
        self
    }

    pub(crate) fn store(message: impl Into<String>) -> Self {
        Self::build(ErrorKind::Store, message.into(), true).coded(Code::StoreUnavailable)
    }

    pub(crate) fn store_unusable(message: impl Into<String>) -> Self {
        Self::build(ErrorKind::Store, message.into(), false).coded(Code::StoreUnusable)
    }

    fn from_store(error: StoreError) -> Self {
        match error {
            StoreError::Refused(refusal) => refusal.into(),
            StoreError::Unavailable(_) | StoreError::Fenced | StoreError::Mutation(_) => {
                Self::store(error.to_string())
            }
            StoreError::Closed => Self::shutting_down(),
            StoreError::Failed(_) => Self::store_unusable(error.to_string()),
        }
    }

    pub(crate) fn shutting_down() -> Self {
        let message = "this engine has been shut down; ask one that runs, or start another";
        Self::build(ErrorKind::ShuttingDown, message.to_owned(), true).coded(Code::ShuttingDown)
    }

    pub(crate) fn coded(mut self, code: Code) -> Self {
        self.0.code = Some(code.as_str().to_owned());
        self
    }

    /// As it is recorded on a step or an instance.
    pub(crate) fn to_record(&self) -> RecordedError {
        RecordedError {
            name: self.0.name.clone(),
            message: self.0.message.clone(),
            code: self.0.code.clone(),
            stack: self.0.stack.clone(),
        }
    }

    /// As it comes back from the database. It is final: its step has used its retries.
    pub(crate) fn from_record(record: &RecordedError) -> Self {
        let mut error = Self::build(ErrorKind::User, record.message.clone(), false);
        error.0.name.clone_from(&record.name);
        error.0.code.clone_from(&record.code);
        error.0.stack.clone_from(&record.stack);
        error
    }
}

/// Marks any error as non-retryable: `charge().await.map_err(non_retryable)?`.
///
/// ```
/// use piton::non_retryable;
/// let error = "x".parse::<u32>().map_err(non_retryable).unwrap_err();
/// assert!(!error.is_retryable());
/// ```
pub fn non_retryable(error: impl Into<Error>) -> Error {
    error.into().into_non_retryable()
}

/// The chain of causes below an error, one per line.
fn causes(error: &dyn StdError) -> Option<String> {
    let mut lines = Vec::new();
    let mut next = error.source();
    while let Some(cause) = next {
        lines.push(format!("caused by: {cause}"));
        next = cause.source();
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}

impl<E: StdError + Send + Sync + 'static> From<E> for Error {
    fn from(error: E) -> Self {
        let boxed: Box<dyn StdError + Send + Sync> = Box::new(error);
        // Our own pure errors carry a code; everything else is the user's.
        if let Some(refusal) = boxed.downcast_ref::<Refusal>() {
            let mut error = Self::build(ErrorKind::Refused, refusal.message.clone(), false)
                .named(refusal_name(refusal.code))
                .coded(refusal.code);
            error.0.issues.clone_from(&refusal.issues);
            return error;
        }
        if let Some(error) = boxed.downcast_ref::<DurationError>() {
            return Refusal::from(error.clone()).into();
        }
        match boxed.downcast::<AsStd>() {
            Ok(own) => own.0,
            Err(boxed) => match boxed.downcast::<StoreError>() {
                Ok(error) => Self::from_store(*error),
                Err(boxed) => Self::wrap(boxed),
            },
        }
    }
}

/// `INVALID_STEP_NAME` is recorded under the name `InvalidStepName`.
pub(crate) fn refusal_name(code: Code) -> String {
    let words = code.as_str().split('_');
    let capital = |word: &str| word[..1].to_owned() + &word[1..].to_ascii_lowercase();
    words.map(capital).collect()
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.name == DEFAULT_NAME || self.0.kind != ErrorKind::User {
            return f.write_str(&self.0.message);
        }
        write!(f, "{}: {}", self.0.name, self.0.message)
    }
}

impl fmt::Debug for Error {
    /// What `fn main() -> Result<()>` prints: the message, the code and the causes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        if let Some(code) = &self.0.code {
            write!(f, " [{code}]")?;
        }
        match &self.0.stack {
            Some(stack) => write!(f, "\n{stack}"),
            None => Ok(()),
        }
    }
}

/// An [`Error`] dressed as a `std::error::Error`, for `anyhow` and `Box<dyn Error>`.
#[derive(Debug)]
struct AsStd(Error);

impl fmt::Display for AsStd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl StdError for AsStd {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}

impl From<Error> for Box<dyn StdError + Send + Sync> {
    fn from(error: Error) -> Self {
        Box::new(AsStd(error))
    }
}

impl From<Error> for Box<dyn StdError> {
    fn from(error: Error) -> Self {
        Box::new(AsStd(error))
    }
}

impl From<Error> for anyhow::Error {
    fn from(error: Error) -> Self {
        anyhow::Error::new(AsStd(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_through_anyhow_and_back_without_losing_anything() {
        fn outer() -> anyhow::Result<()> {
            Err(Error::non_retryable("card declined").named("CardDeclined"))?
        }
        let error = outer().unwrap_err();
        assert_eq!(error.to_string(), "CardDeclined: card declined");
        let back = Error::from(error.downcast::<AsStd>().unwrap());
        assert_eq!((back.name(), back.is_retryable()), ("CardDeclined", false));
    }

    #[test]
    fn refusals_keep_their_code() {
        let error = Error::from(Refusal::new(Code::InvalidStepName, "empty"));
        assert_eq!(error.code(), Some("INVALID_STEP_NAME"));
        assert_eq!(error.name(), "InvalidStepName");
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Refused, false));
    }

    #[test]
    fn causes_are_recorded_as_the_stack() {
        let cause = std::io::Error::other("disk on fire");
        let error = Error::wrap(anyhow::Error::new(cause).context("cannot write"));
        assert_eq!(error.message(), "cannot write");
        assert_eq!(error.to_record().stack.as_deref(), Some("caused by: disk on fire"));
    }
}
