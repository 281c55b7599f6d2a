//! Who may do what: hooks that the host provides, and a ready-made one for bearer tokens.
//!
//! **Deny by default.** A request goes through if the policy for every request, where there is one, and the policy for
//! its permission, where there is one, both allow it, and at least one of them exists. A policy that fails, panics or
//! takes longer than the request may denies. Policies are asked before a byte of the body is read.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use axum::http::{HeaderMap, Method, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::error::ApiError;

/// What a request asks for, in the five classes that policies tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Permission {
    /// Create instances.
    Create,
    /// Look at workflows, instances, results, histories and logs.
    Read,
    /// Pause, resume, terminate and restart.
    Manage,
    /// Send events.
    Events,
    /// Advance due work.
    Tick,
}

impl Permission {
    /// All five.
    pub const ALL: [Permission; 5] = [
        Permission::Create,
        Permission::Read,
        Permission::Manage,
        Permission::Events,
        Permission::Tick,
    ];
}

/// What a policy is told about a request. The body is not part of it: it has not been read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AuthRequest {
    /// The method.
    pub method: Method,
    /// The route below the mount point, such as `/{workflow}/instances`; empty if there is no such route.
    pub route: &'static str,
    /// What it asks for; `None` if there is no such route or method.
    pub permission: Option<Permission>,
    /// The workflow in the path, as the caller wrote it.
    pub workflow: Option<String>,
    /// The instance in the path, as the caller wrote it.
    pub instance: Option<String>,
    /// The hook in the path, as the caller wrote it.
    pub hook: Option<String>,
    /// The namespace of hooks that the caller asks for, `?namespace=`. Nothing of another one is shown or changed; `None`
    /// is all of them.
    pub hook_namespace: Option<String>,
    /// The headers.
    pub headers: HeaderMap,
}

/// What a policy says.
#[derive(Debug)]
pub enum Decision {
    /// Go on.
    Allow,
    /// 403, with this message.
    Deny(String),
    /// 401, with this message: the caller has not said who they are, or not truthfully.
    Unauthorized(String),
    /// The policy answers itself: a redirect, a page of its own.
    Answer(Box<Response>),
}

/// The answer of a [`Policy`].
pub type Verdict = Pin<Box<dyn Future<Output = piton::Result<Decision>> + Send>>;

/// Decides about requests. Implement it, or make one of a closure with [`policy`].
pub trait Policy: Send + Sync + 'static {
    /// Decides about one request. An error denies, and its message goes to the log only.
    fn decide(&self, request: Arc<AuthRequest>) -> Verdict;
}

/// Makes a policy of an async closure.
///
/// ```
/// use piton_http::{Decision, policy};
///
/// let office_hours_only = policy(|request| async move {
///     Ok(match request.headers.get("x-office") {
///         Some(_) => Decision::Allow,
///         None => Decision::Deny("come to the office".to_owned()),
///     })
/// });
/// # let _ = office_hours_only;
/// ```
pub fn policy<F, Fut>(decide: F) -> impl Policy
where
    F: Fn(Arc<AuthRequest>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = piton::Result<Decision>> + Send + 'static,
{
    struct Closure<F>(F);
    impl<F, Fut> Policy for Closure<F>
    where
        F: Fn(Arc<AuthRequest>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = piton::Result<Decision>> + Send + 'static,
    {
        fn decide(&self, request: Arc<AuthRequest>) -> Verdict {
            Box::pin((self.0)(request))
        }
    }
    Closure(decide)
}

/// The policies of a router.
#[derive(Clone, Default)]
pub(crate) struct Policies {
    /// Set by a host that wants no policy at all.
    open: bool,
    every: Option<Arc<dyn Policy>>,
    by_permission: [Option<Arc<dyn Policy>>; Permission::ALL.len()],
}

impl Policies {
    pub(crate) fn open() -> Self {
        Self { open: true, ..Self::default() }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    pub(crate) fn set_every(&mut self, policy: Arc<dyn Policy>) {
        self.open = false;
        self.every = Some(policy);
    }

    pub(crate) fn set(&mut self, permission: Permission, policy: Arc<dyn Policy>) {
        self.open = false;
        self.by_permission[permission as usize] = Some(policy);
    }

    /// Lets the request through or answers it.
    pub(crate) async fn check(&self, request: AuthRequest) -> Result<(), Response> {
        let of_its_own = request.permission.and_then(|p| self.by_permission[p as usize].as_ref());
        let request = Arc::new(request);
        let mut asked = false;
        for policy in self.every.iter().chain(of_its_own) {
            asked = true;
            ask(&**policy, Arc::clone(&request)).await?;
        }
        if asked {
            return Ok(());
        }
        Err(ApiError::forbidden("no policy allows this request").into_response())
    }

    /// The answer to a request whose policies did not decide in time.
    pub(crate) fn out_of_time() -> Response {
        tracing::error!("a policy took too long, which denies the request");
        denied()
    }
}

/// All that is said when a policy could not decide.
fn denied() -> Response {
    ApiError::forbidden("the request was denied").into_response()
}

async fn ask(policy: &dyn Policy, request: Arc<AuthRequest>) -> Result<(), Response> {
    // The call itself may panic as well as the future it returns.
    let decision = AssertUnwindSafe(async { policy.decide(request).await }).catch_unwind().await;
    Err(match decision {
        Ok(Ok(Decision::Allow)) => return Ok(()),
        Ok(Ok(Decision::Deny(message))) => ApiError::forbidden(message).into_response(),
        Ok(Ok(Decision::Unauthorized(message))) => ApiError::unauthorized(message).into_response(),
        Ok(Ok(Decision::Answer(response))) => *response,
        Ok(Err(error)) => {
            tracing::error!(?error, "a policy failed, which denies the request");
            denied()
        }
        Err(_) => {
            tracing::error!("a policy panicked, which denies the request");
            denied()
        }
    })
}

/// Lets callers in who send `Authorization: Bearer <token>`, each token with its own permissions.
///
/// Tokens are kept and compared as digests, in a time that does not depend on how much of one was guessed.
///
/// ```
/// use piton_http::{BearerTokens, Permission};
///
/// # fn main() -> piton::Result<()> {
/// let tokens = BearerTokens::new()
///     .token("the operators' secret", Permission::ALL)?
///     .token("the dashboard's secret", [Permission::Read])?;
/// # let _ = tokens;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct BearerTokens {
    tokens: Vec<Token>,
}

#[derive(Clone)]
struct Token {
    digest: [u8; 32],
    permissions: Vec<Permission>,
}

impl BearerTokens {
    /// Nobody is let in yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets whoever has this token do what `permissions` say. White space around it does not count, and a token that is
    /// given again gets these permissions as well.
    ///
    /// # Errors
    ///
    /// If the token is empty: a secret that was never set would let everybody in.
    pub fn token(
        mut self,
        token: impl AsRef<str>,
        permissions: impl IntoIterator<Item = Permission>,
    ) -> piton::Result<Self> {
        let token = token.as_ref().trim();
        if token.is_empty() {
            return Err(piton::Error::new("a bearer token is empty"));
        }
        let digest: [u8; 32] = Sha256::digest(token).into();
        match self.tokens.iter_mut().find(|known| known.digest == digest) {
            Some(known) => known.permissions.extend(permissions),
            None => {
                let permissions = permissions.into_iter().collect();
                self.tokens.push(Token { digest, permissions });
            }
        }
        Ok(self)
    }

    fn find(&self, token: &str) -> Option<&Token> {
        let digest = Sha256::digest(token);
        let mut found = None;
        // All of them are looked at, so that the time does not tell which one it was.
        for known in &self.tokens {
            let same: Choice = known.digest.as_slice().ct_eq(digest.as_slice());
            if bool::from(same) {
                found = Some(known);
            }
        }
        found
    }

    fn judge(&self, request: &AuthRequest) -> Decision {
        let Some(token) = bearer(&request.headers) else {
            return Decision::Unauthorized("send `Authorization: Bearer <token>`".to_owned());
        };
        let Some(known) = self.find(token) else {
            return Decision::Unauthorized("the token is not known here".to_owned());
        };
        match request.permission {
            Some(wanted) if !known.permissions.contains(&wanted) => {
                let wanted = format!("{wanted:?}").to_lowercase();
                Decision::Deny(format!("the token does not have the permission `{wanted}`"))
            }
            Some(_) | None => Decision::Allow,
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

impl Policy for BearerTokens {
    fn decide(&self, request: Arc<AuthRequest>) -> Verdict {
        let decision = self.judge(&request);
        Box::pin(std::future::ready(Ok(decision)))
    }
}

impl fmt::Debug for BearerTokens {
    /// How many there are, and nothing about them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BearerTokens({})", self.tokens.len())
    }
}
