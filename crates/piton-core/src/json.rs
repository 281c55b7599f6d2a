//! A JSON document as text: what payloads are made of inside the engine.

use std::fmt;
use std::sync::Arc;

/// A JSON document, kept as the text it is stored as and shared cheaply.
///
/// The engine never looks into it. Whoever makes one vouches that the text is valid JSON.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Json(Arc<str>);

impl Json {
    /// Wraps text that is known to be valid JSON.
    pub fn from_valid_text(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The document `null`.
    pub fn null() -> Self {
        Self(Arc::from("null"))
    }

    /// The text of the document.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// How many bytes the text has: what payload limits count.
    pub fn len_bytes(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_its_text() {
        let json = Json::from_valid_text(r#"{"a":"ü"}"#);
        assert_eq!(json.len_bytes(), 10);
        assert_eq!(format!("{json:?}"), json.as_str());
    }
}
