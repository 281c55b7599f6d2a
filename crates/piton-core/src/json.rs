//! A JSON document as text: what payloads are made of inside the engine.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};
use serde_json::value::RawValue;

/// A JSON document, kept as the text it is stored as and shared cheaply.
///
/// The engine never looks into it. Whoever makes one vouches that the text is valid JSON.
///
/// ```
/// use piton_core::Json;
/// let json: Json = serde_json::from_str("{\"cents\": 125}")?;
/// assert_eq!(json.as_str(), "{\"cents\": 125}", "as it was written");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Json(Arc<str>);

impl Json {
    /// Wraps text that is known to be valid JSON.
    ///
    /// ```
    /// assert_eq!(piton_core::Json::from_valid_text("[1]").as_str(), "[1]");
    /// ```
    pub fn from_valid_text(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The document `null`.
    ///
    /// ```
    /// assert_eq!(piton_core::Json::null().as_str(), "null");
    /// ```
    pub fn null() -> Self {
        Self(Arc::from("null"))
    }

    /// The text of the document.
    ///
    /// ```
    /// let json = piton_core::Json::from_valid_text("7");
    /// assert_eq!(json.as_str().parse(), Ok(7));
    /// ```
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// How many bytes the text has: what payload limits count.
    ///
    /// ```
    /// assert_eq!(piton_core::Json::null().len_bytes(), 4);
    /// ```
    pub fn len_bytes(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// As part of a larger document, to the last digit as it was written: not as text in a string.
impl Serialize for Json {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(self.as_str()).map_err(ser::Error::custom)?;
        raw.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(from)?;
        Ok(Self::from_valid_text(raw.get()))
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

    #[test]
    fn inside_of_a_larger_document_it_keeps_every_digit() {
        let text = r#"[{"b":1.10,"a":12345678901234567890},null]"#;
        let documents: Vec<Json> = serde_json::from_str(text).expect("JSON");
        assert_eq!(documents[0].as_str(), r#"{"b":1.10,"a":12345678901234567890}"#);
        assert_eq!(serde_json::to_string(&documents).expect("JSON"), text);
    }
}
