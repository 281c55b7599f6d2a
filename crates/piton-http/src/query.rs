//! The query of a URL, read strictly: each name must be known, and have a value that is understood, once.
//!
//! A filter that is misspelt would otherwise answer with everything.

use std::str::FromStr;

use piton::{Cursor, IntoSpan, Limits, Span, Timestamp};

use crate::error::ApiError;

/// The pairs of a query, decoded.
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn of(query: Option<&str>) -> Self {
        let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        Self(pairs.into_owned().collect())
    }

    /// The same query, if it has no other names than these.
    pub(crate) fn only(self, known: &[&str]) -> Result<Self, ApiError> {
        let Some((stranger, _)) = self.0.iter().find(|(name, _)| !known.contains(&name.as_str()))
        else {
            return Ok(self);
        };
        let message = match known {
            [] => "not a query parameter of this route: it has none".to_owned(),
            known => {
                format!("not a query parameter of this route: it has {}", known.join(", "))
            }
        };
        Err(ApiError::invalid(stranger, message))
    }

    /// The value of a name, if it is there.
    pub(crate) fn get(&self, name: &str) -> Result<Option<&str>, ApiError> {
        let mut values = self.0.iter().filter(|(known, _)| known == name).map(|(_, value)| value);
        let first = values.next();
        if values.next().is_some() {
            return Err(ApiError::invalid(name, "given more than once"));
        }
        Ok(first.map(String::as_str))
    }

    /// The value of a name, parsed; what cannot be parsed is refused with the reason.
    pub(crate) fn parsed<T: FromStr<Err: std::fmt::Display>>(
        &self,
        name: &str,
    ) -> Result<Option<T>, ApiError> {
        let value = self.get(name)?.map(str::parse).transpose();
        value.map_err(|error: T::Err| ApiError::invalid(name, error.to_string()))
    }

    pub(crate) fn page_size(&self, limits: &Limits) -> Result<Option<u32>, ApiError> {
        let max = limits.page_size_max;
        let Some(text) = self.get("pageSize")? else {
            return Ok(None);
        };
        match text.parse() {
            Ok(size) if (1..=max).contains(&size) => Ok(Some(size)),
            Ok(_) | Err(_) => Err(ApiError::invalid(
                "pageSize",
                format!("{text:?} is not a number from 1 to {max}"),
            )),
        }
    }

    pub(crate) fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.get(name)? {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(other) => {
                Err(ApiError::invalid(name, format!("{other:?} is neither true nor false")))
            }
        }
    }

    pub(crate) fn time(&self, name: &str) -> Result<Option<Timestamp>, ApiError> {
        self.parsed(name)
    }

    /// A duration of at most `max`; nothing if it is not there.
    pub(crate) fn span(&self, name: &str, max: Span) -> Result<Span, ApiError> {
        let Some(text) = self.get(name)? else {
            return Ok(Span::ZERO);
        };
        let span = text.into_span().map_err(|error| ApiError::invalid(name, error.to_string()))?;
        if span < Span::ZERO || span > max {
            return Err(ApiError::invalid(name, format!("{text:?} is not between 0 and {max}")));
        }
        Ok(span)
    }

    pub(crate) fn cursor(&self, name: &str) -> Result<Option<Cursor>, ApiError> {
        Ok(self.get(name)?.map(str::parse).transpose()?)
    }
}
