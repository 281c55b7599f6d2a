//! A request as its handler sees it: past the guard, with its body still unread.

use axum::body::Body;
use axum::extract::{OriginalUri, RawPathParams};
use axum::http::HeaderMap;
use axum::http::request::Parts;

use crate::error::ApiError;
use crate::query::Query;

/// What the path names. A part that the route does not have is empty.
#[derive(Debug, Default)]
pub(crate) struct Target {
    pub(crate) workflow: String,
    pub(crate) instance: String,
    pub(crate) hook: String,
}

impl From<&RawPathParams> for Target {
    fn from(params: &RawPathParams) -> Self {
        let mut target = Self::default();
        for (name, value) in params {
            match name {
                "workflow" => value.clone_into(&mut target.workflow),
                "instance" => value.clone_into(&mut target.instance),
                "hook" => value.clone_into(&mut target.hook),
                _ => {}
            }
        }
        target
    }
}

/// A request that the guard let through.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) target: Target,
    pub(crate) body: Body,
    parts: Parts,
}

impl Call {
    pub(crate) fn new(target: Target, parts: Parts, body: Body) -> Self {
        Self { target, body, parts }
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.parts.headers
    }

    /// The query, which may have these names.
    pub(crate) fn query(&self, known: &[&str]) -> Result<Query, ApiError> {
        Query::of(self.parts.uri.query()).only(known)
    }

    /// The whole path, with that of the mount point.
    pub(crate) fn path(&self) -> &str {
        let original = self.parts.extensions.get::<OriginalUri>();
        original.map_or(self.parts.uri.path(), |OriginalUri(uri)| uri.path())
    }
}
