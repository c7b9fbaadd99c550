//! Errors as clients see them.

use hyper::StatusCode;
use serde::Serialize;

use crate::log::error::BadValue;

/// An answer that is not what was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    pub status: StatusCode,
    pub error: String,
    /// The place in the request that is wrong.
    pub place: String,
}

impl ApiError {
    pub fn new(status: StatusCode, error: impl Into<String>, place: impl Into<String>) -> Self {
        Self { status, error: error.into(), place: place.into() }
    }

    /// A value that breaks a rule; `index` is its place in an array of requests.
    pub fn bad(value: &BadValue, index: Option<usize>) -> Self {
        let column = if value.column.is_empty() { "body" } else { value.column };
        let place = index.map_or_else(|| column.to_owned(), |i| format!("[{i}].{column}"));
        Self::new(StatusCode::BAD_REQUEST, format!("`{}`: {}", value.value, value.rule), place)
    }

    /// Text that is not the JSON that was expected.
    pub fn json(error: &serde_json::Error) -> Self {
        let place = format!("line {}, column {}", error.line(), error.column());
        Self::new(StatusCode::BAD_REQUEST, error.to_string(), place)
    }

    pub fn body(&self) -> Vec<u8> {
        #[derive(Serialize)]
        struct Body<'a> {
            error: &'a str,
            r#where: &'a str,
        }
        serde_json::to_vec(&Body { error: &self.error, r#where: &self.place }).expect("plain values serialise")
    }
}
