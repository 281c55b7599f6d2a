//! Reading the body of a request: bounded in size and depth, and known to be JSON before anything looks into it.

use std::fmt;

use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::http::header;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::error::ApiError;

/// What a body may have beside its payload: ids, names and punctuation.
const ENVELOPE_BYTES_MAX: usize = 64 * 1024;

/// Reads a body of at most one payload and an envelope.
pub(crate) async fn read(
    headers: &HeaderMap,
    body: Body,
    payload_bytes_max: usize,
) -> Result<Bytes, ApiError> {
    let max = payload_bytes_max.saturating_add(ENVELOPE_BYTES_MAX);
    let too_large = || {
        ApiError::too_large(format!(
            "the body has more than {max} bytes; store large data elsewhere and pass a reference"
        ))
    };
    let announced = headers.get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > max as u64) {
        return Err(too_large());
    }
    match Limited::new(body, max).collect().await {
        Ok(read) => Ok(read.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large()),
        Err(_) => Err(ApiError::invalid("", "the body ended before it was complete")),
    }
}

/// Parses a body. Fields that nobody knows are ignored.
pub(crate) fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, ApiError> {
    let not_json = |error: serde_json::Error| ApiError::invalid("", format!("not JSON: {error}"));
    serde_json::from_slice::<WellFormed>(bytes).map_err(not_json)?;
    serde_json::from_slice(bytes).or_else(|_| parse_slowly(bytes))
}

/// Parses once more and keeps track of the place, which costs an allocation for every field.
fn parse_slowly<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let path = if path == "." { String::new() } else { path };
        ApiError::invalid(path, error.into_inner().to_string())
    })
}

/// Any JSON document that can be decoded, whatever it is decoded into: strings are Unicode, numbers are in range, and
/// nothing is nested deeper than `serde_json` follows, which is 128 levels.
///
/// Parts of a body are passed on as they were written. Only looking for their end would let through what their
/// reader cannot decode.
struct WellFormed;

impl<'de> Deserialize<'de> for WellFormed {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_any(Walk)
    }
}

struct Walk;

impl<'de> Visitor<'de> for Walk {
    type Value = WellFormed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<WellFormed, E> {
        Ok(WellFormed)
    }

    fn visit_i64<E>(self, _: i64) -> Result<WellFormed, E> {
        Ok(WellFormed)
    }

    fn visit_u64<E>(self, _: u64) -> Result<WellFormed, E> {
        Ok(WellFormed)
    }

    fn visit_f64<E>(self, _: f64) -> Result<WellFormed, E> {
        Ok(WellFormed)
    }

    fn visit_str<E>(self, _: &str) -> Result<WellFormed, E> {
        Ok(WellFormed)
    }

    fn visit_unit<E>(self) -> Result<WellFormed, E> {
        Ok(WellFormed)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<WellFormed, A::Error> {
        while seq.next_element::<WellFormed>()?.is_some() {}
        Ok(WellFormed)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WellFormed, A::Error> {
        while map.next_entry::<WellFormed, WellFormed>()?.is_some() {}
        Ok(WellFormed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(text: &str) -> bool {
        serde_json::from_str::<WellFormed>(text).is_ok()
    }

    #[test]
    fn what_nobody_could_decode_is_refused() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        for text in ["null", "{\"a\":[1,-2,3.5,true,\"\\u0000 \\ud83e\\uddd7\"]}", &nested(127)] {
            assert!(accepts(text), "{text}");
        }
        for text in ["", "{", "[1,]", "\"\\ud800\"", "1e999", "nul", "1 2", "{1:2}", &nested(129)] {
            assert!(!accepts(text), "{text}");
        }
    }
}
