//! What a request is answered with when it cannot be answered: a code, one sentence, facts.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The line is no JSON.
const PARSE: i64 = -32_700;
/// It is no request, or not one that may come now.
const INVALID_REQUEST: i64 = -32_600;
/// Nobody knows the method.
const METHOD_NOT_FOUND: i64 = -32_601;
/// The method cannot use these parameters.
const INVALID_PARAMS: i64 = -32_602;
/// Something went wrong here.
const INTERNAL: i64 = -32_603;
/// Whoever asked does not want to know any more.
const CANCELLED: i64 = -32_800;

/// The longest sentence, in characters: whoever sends something odd need not get all of it back.
const LONGEST: usize = 2000;

/// An error as the wire has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    pub code: i64,
    #[serde(default)]
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl Fault {
    /// A fault with a code of the protocol above.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        let mut message: String = message.into();
        if let Some((end, _)) = message.char_indices().nth(LONGEST) {
            message.truncate(end);
            message.push('\u{2026}');
        }
        Self { code, message, data: None }
    }

    /// The same, with facts.
    #[must_use]
    pub fn with(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }

    /// The line could not be read.
    pub fn parse(message: impl Into<String>) -> Self {
        Self::new(PARSE, message)
    }

    /// The line is JSON and no message, or one that comes at the wrong time.
    pub fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(INVALID_REQUEST, message)
    }

    /// There is no such method.
    pub fn method_not_found(method: &str) -> Self {
        let shown: String = method.chars().filter(|c| !c.is_control()).take(100).collect();
        Self::new(METHOD_NOT_FOUND, format!("there is no method {shown}"))
    }

    /// The parameters do not fit.
    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(INVALID_PARAMS, message)
    }

    /// Something went wrong that is nobody's parameters.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(INTERNAL, message)
    }

    /// The request was taken back.
    pub fn cancelled() -> Self {
        Self::new(CANCELLED, "the request was cancelled")
    }
}
