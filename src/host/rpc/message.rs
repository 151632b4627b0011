//! JSON-RPC messages: parsing of a line, without knowledge of any method.
//!
//! Harmless deviations are tolerated: blank lines are skipped, an empty id is an id, unknown fields
//! are ignored. Any other deviation becomes an error that can be sent back.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::RpcError;

/// A JSON-RPC message, or the error for an invalid line.
#[derive(Debug)]
pub enum RpcMessage {
    /// A request, which needs a response.
    Request { id: RpcId, method: String, params: Result<Value, RpcError> },
    /// A notification, which gets no response.
    Notification { method: String, params: Result<Value, RpcError> },
    /// A response to a request of this side.
    Response { id: RpcId, outcome: Result<Value, RpcError> },
    /// An invalid line, and the error for its sender.
    Invalid { id: RpcId, fault: RpcError },
}

/// The id of a request, echoed byte for byte: strings stay strings, and no digit changes.
#[derive(Debug, Clone)]
pub struct RpcId(Box<RawValue>);

impl RpcId {
    /// The null id, for errors about a line without an id.
    pub fn null() -> Self {
        Self(RawValue::NULL.to_owned())
    }

    /// Parses the text of a JSON value; only strings, numbers and null are ids.
    fn parse(raw: &RawValue) -> Option<Self> {
        let is_id = raw.get().starts_with(['"', '-']) || raw.get().starts_with(char::is_numeric);
        let is_readable = is_id && serde_json::from_str::<Value>(raw.get()).is_ok();
        (is_readable || raw.get() == "null").then(|| Self(raw.to_owned()))
    }

    /// The key of the id: equal for equal ids, however they are spelled.
    pub fn key(&self) -> String {
        Self::key_for_value(&serde_json::from_str(self.0.get()).unwrap_or_default())
    }

    /// The key of an id in the parameters of another message.
    pub fn key_for_value(value: &Value) -> String {
        value.to_string()
    }

    /// Whether the id is a blank string, which some clients put on notifications.
    pub fn is_blank(&self) -> bool {
        serde_json::from_str::<String>(self.0.get()).is_ok_and(|text| text.trim().is_empty())
    }

    /// The number of a request of this side.
    pub fn number(&self) -> Option<u64> {
        let text = self.0.get();
        text.trim_matches('"').parse().ok()
    }
}

impl From<u64> for RpcId {
    fn from(number: u64) -> Self {
        RawValue::from_string(number.to_string()).map_or_else(|_| Self::null(), Self)
    }
}

impl Serialize for RpcId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// The fields of every message. A null field differs from a missing one.
#[derive(Deserialize)]
struct RpcEnvelope<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'a RawValue>,
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

impl RpcMessage {
    /// Parses a line; `None` when it is blank.
    pub fn parse_line(line: &[u8]) -> Option<Self> {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii();
        if line.is_empty() {
            return None;
        }
        Some(Self::parse(line).unwrap_or_else(|fault| Self::invalid(RpcId::null(), fault)))
    }

    fn invalid(id: RpcId, fault: RpcError) -> Self {
        RpcMessage::Invalid { id, fault }
    }

    fn parse(line: &[u8]) -> Result<Self, RpcError> {
        let text = std::str::from_utf8(line)
            .map_err(|error| RpcError::parse(format!("the line is not UTF-8: {error}")))?;
        // serde would read an array as the fields of the envelope in their order.
        if text.starts_with('[') {
            serde_json::from_str::<&RawValue>(text).map_err(|error| parse_error(&error))?;
            return Err(RpcError::invalid_request("batches are not supported"));
        }
        let envelope: RpcEnvelope<'_> =
            serde_json::from_str(text).map_err(|error| match error.classify() {
                serde_json::error::Category::Data => RpcError::invalid_request(format!(
                    "the line is not a JSON-RPC message: {error}"
                )),
                _ => parse_error(&error),
            })?;
        let id = match envelope.id.map(RpcId::parse) {
            Some(None) => {
                return Err(RpcError::invalid_request("the id is neither a string nor a number"));
            }
            given => given.flatten(),
        };
        let id_or_null = id.clone().unwrap_or_else(RpcId::null);
        if envelope.jsonrpc.is_none_or(|version| version.get() != "\"2.0\"") {
            let fault = RpcError::invalid_request("the message lacks \"jsonrpc\": \"2.0\"");
            return Ok(Self::invalid(id_or_null, fault));
        }
        let Some(method) = envelope.method else {
            return Ok(envelope
                .response(id)
                .unwrap_or_else(|fault| Self::invalid(id_or_null, fault)));
        };
        let Ok(method) = serde_json::from_str::<String>(method.get()) else {
            return Ok(Self::invalid(
                id_or_null,
                RpcError::invalid_request("the method is not a string"),
            ));
        };
        let params = parse_params(envelope.params);
        Ok(match id {
            Some(id) => RpcMessage::Request { id, method, params },
            None => RpcMessage::Notification { method, params },
        })
    }
}

impl RpcEnvelope<'_> {
    fn response(&self, id: Option<RpcId>) -> Result<RpcMessage, RpcError> {
        let nothing = || RpcError::invalid_request("the message has no method, result or error");
        let id = id.ok_or_else(nothing)?;
        let outcome = match (self.error, self.result) {
            (Some(error), _) if error.get() != "null" => Err(serde_json::from_str(error.get())
                .unwrap_or_else(|_| RpcError::internal("the error object is malformed"))),
            (_, Some(result)) => serde_json::from_str(result.get())
                .map_err(|error| RpcError::internal(format!("the result is malformed: {error}"))),
            _ => return Err(nothing()),
        };
        Ok(RpcMessage::Response { id, outcome })
    }
}

/// Parses the parameters, which are an object or missing.
fn parse_params(raw: Option<&RawValue>) -> Result<Value, RpcError> {
    let Some(raw) = raw else { return Ok(Value::Null) };
    let read = serde_json::from_str(raw.get())
        .or_else(|error| serde_json::from_str(&replace_lone_surrogates(raw.get()).ok_or(error)?));
    match read {
        Ok(params @ (Value::Object(_) | Value::Null)) => Ok(params),
        Ok(_) => Err(RpcError::invalid_params("the parameters must be an object")),
        Err(error) => Err(RpcError::invalid_params(format!("invalid parameters: {error}"))),
    }
}

/// Replaces lone surrogates (`\ud83d`) in JSON by U+FFFD: languages with UTF-16 strings write them when
/// they cut a string. `None` when there are none.
fn replace_lone_surrogates(text: &str) -> Option<String> {
    let unit = |at: usize| {
        let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    let (mut mended, mut kept, mut at) = (String::new(), 0, 0);
    while let Some(found) = memchr::memchr(b'\\', text.as_bytes().get(at..)?) {
        at += found;
        let whole = match unit(at) {
            Some(0xD800..=0xDBFF) if matches!(unit(at + 6), Some(0xDC00..=0xDFFF)) => Some(12),
            Some(0xD800..=0xDFFF) => None,
            Some(_) => Some(6),
            None => Some(2),
        };
        at += whole.unwrap_or_else(|| {
            mended.push_str(text.get(kept..at).unwrap_or_default());
            mended.push_str("\\ufffd");
            kept = at + 6;
            6
        });
    }
    if kept == 0 {
        return None;
    }
    mended.push_str(text.get(kept..)?);
    Some(mended)
}

fn parse_error(error: &serde_json::Error) -> RpcError {
    RpcError::parse(format!("the line is not JSON: {error}"))
}
