//! JSON-RPC error object: code, message and data.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::base::text::truncate_chars;

/// The line is not JSON.
const PARSE_ERROR: i64 = -32_700;
/// The message is not a request, or not one that is allowed now.
const INVALID_REQUEST: i64 = -32_600;
/// The method is unknown.
const METHOD_NOT_FOUND: i64 = -32_601;
/// The parameters are not valid for the method.
const INVALID_PARAMS: i64 = -32_602;
/// An internal error on this side.
const INTERNAL_ERROR: i64 = -32_603;
/// The request was cancelled by its sender.
const REQUEST_CANCELLED: i64 = -32_800;

/// The longest message in characters, so that a long invalid request is not repeated as a whole.
const LONGEST_MESSAGE: usize = 2000;

/// A JSON-RPC error object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RpcError {
    pub code: i64,
    #[serde(default)]
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl RpcError {
    /// An error with a code of the protocol that uses this module.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        let message: String = message.into();
        let message = truncate_chars(&message, LONGEST_MESSAGE);
        Self { code, message, data: None }
    }

    /// Sets the data of the error.
    #[must_use]
    pub fn with_data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }

    /// The error for a line that could not be parsed.
    pub fn parse(message: impl Into<String>) -> Self {
        Self::new(PARSE_ERROR, message)
    }

    /// The error for a line that is JSON but not a message, or for a message that is not allowed now.
    pub fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(INVALID_REQUEST, message)
    }

    /// The method is unknown.
    pub fn method_not_found(method: &str) -> Self {
        let shown: String = method.chars().filter(|c| !c.is_control()).take(100).collect();
        Self::new(METHOD_NOT_FOUND, format!("unknown method {shown}"))
    }

    /// The error for invalid parameters.
    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(INVALID_PARAMS, message)
    }

    /// An error that the parameters did not cause.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(INTERNAL_ERROR, message)
    }

    /// The error for a request that was cancelled.
    pub fn cancelled() -> Self {
        Self::new(REQUEST_CANCELLED, "the request was cancelled")
    }
}
