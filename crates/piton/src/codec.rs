//! The one place where values become JSON text and back.

use piton_core::{Code, Json, Refusal};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Result;

/// Writes a value as JSON. `what` names it in the error.
pub(crate) fn encode<T: Serialize + ?Sized>(
    what: impl FnOnce() -> String,
    value: &T,
) -> Result<Json> {
    match serde_json::to_string(value) {
        Ok(text) => Ok(Json::from_valid_text(text)),
        Err(error) => {
            let message = format!("{} cannot be written as JSON: {error}", what());
            Err(Refusal::new(Code::EncodeFailed, message).into())
        }
    }
}

/// Reads a value from JSON. `what` names it in the error, with the type it should have been.
pub(crate) fn decode<T: DeserializeOwned>(what: impl FnOnce() -> String, json: &Json) -> Result<T> {
    serde_json::from_str(json.as_str()).map_err(|error| {
        let (what, wanted) = (what(), std::any::type_name::<T>());
        let message = format!("{what} does not decode as {wanted}: {error}");
        Refusal::new(Code::DecodeFailed, message).into()
    })
}
