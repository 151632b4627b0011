//! Messages: what a line says, decided without knowing any method.
//!
//! Tolerant where a client may be sloppy without harm: blank lines are nothing, an empty id is an
//! id, unknown fields are skipped. What is no message becomes a refusal that can be answered.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::Fault;

/// What a line says.
#[derive(Debug)]
pub enum Message {
    /// Somebody waits for an answer.
    Request { id: Id, method: String, params: Result<Value, Fault> },
    /// Nobody waits.
    Notification { method: String, params: Result<Value, Fault> },
    /// An answer to a question of ours.
    Response { id: Id, outcome: Result<Value, Fault> },
    /// It is no message; this is what its sender is told.
    Refused { id: Id, fault: Fault },
}

/// The id of a request, echoed as it came: text stays text, and no digit changes.
#[derive(Debug, Clone)]
pub struct Id(Box<RawValue>);

impl Id {
    /// The id of nobody.
    pub fn null() -> Self {
        Self(RawValue::NULL.to_owned())
    }

    /// Takes the text of a JSON value; only texts, numbers and null are ids.
    fn read(raw: &RawValue) -> Option<Self> {
        let is_id = raw.get().starts_with(['"', '-']) || raw.get().starts_with(char::is_numeric);
        let is_readable = is_id && serde_json::from_str::<Value>(raw.get()).is_ok();
        (is_readable || raw.get() == "null").then(|| Self(raw.to_owned()))
    }

    /// What equal ids have in common, however they are spelled.
    pub fn key(&self) -> String {
        Self::key_of(&serde_json::from_str(self.0.get()).unwrap_or_default())
    }

    /// The key of an id that is named in parameters.
    pub fn key_of(value: &Value) -> String {
        value.to_string()
    }

    /// Whether it is a text without letters, which some clients put on notifications.
    pub fn is_blank(&self) -> bool {
        serde_json::from_str::<String>(self.0.get()).is_ok_and(|text| text.trim().is_empty())
    }

    /// The number of one of our own questions.
    pub fn number(&self) -> Option<u64> {
        let text = self.0.get();
        text.trim_matches('"').parse().ok()
    }
}

impl From<u64> for Id {
    fn from(number: u64) -> Self {
        RawValue::from_string(number.to_string()).map_or_else(|_| Self::null(), Self)
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// The outer form of every message. A field that is null differs from one that is not there.
#[derive(Deserialize)]
struct Envelope<'a> {
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

impl Message {
    /// Reads a line; `None` when there is nothing on it.
    pub fn read(line: &[u8]) -> Option<Self> {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii();
        if line.is_empty() {
            return None;
        }
        Some(Self::understand(line).unwrap_or_else(|fault| Self::refused(Id::null(), fault)))
    }

    fn refused(id: Id, fault: Fault) -> Self {
        Message::Refused { id, fault }
    }

    fn understand(line: &[u8]) -> Result<Self, Fault> {
        let text = std::str::from_utf8(line)
            .map_err(|error| Fault::parse(format!("the line is not UTF-8: {error}")))?;
        // A list would pass as the fields of an envelope in their order.
        if text.starts_with('[') {
            serde_json::from_str::<&RawValue>(text).map_err(|error| unreadable(&error))?;
            return Err(Fault::invalid_request("batches are not a part of this protocol"));
        }
        let envelope: Envelope<'_> =
            serde_json::from_str(text).map_err(|error| match error.classify() {
                serde_json::error::Category::Data => {
                    Fault::invalid_request(format!("the line is no message: {error}"))
                }
                _ => unreadable(&error),
            })?;
        let id = match envelope.id.map(Id::read) {
            Some(None) => {
                return Err(Fault::invalid_request("the id is neither a text nor a number"));
            }
            given => given.flatten(),
        };
        let whose = id.clone().unwrap_or_else(Id::null);
        if envelope.jsonrpc.is_none_or(|version| version.get() != "\"2.0\"") {
            let fault = Fault::invalid_request("the message does not say \"jsonrpc\": \"2.0\"");
            return Ok(Self::refused(whose, fault));
        }
        let Some(method) = envelope.method else {
            return Ok(envelope.response(id).unwrap_or_else(|fault| Self::refused(whose, fault)));
        };
        let Ok(method) = serde_json::from_str::<String>(method.get()) else {
            return Ok(Self::refused(whose, Fault::invalid_request("the method is no text")));
        };
        let params = parameters(envelope.params);
        Ok(match id {
            Some(id) => Message::Request { id, method, params },
            None => Message::Notification { method, params },
        })
    }
}

impl Envelope<'_> {
    fn response(&self, id: Option<Id>) -> Result<Message, Fault> {
        let nothing = || Fault::invalid_request("the message has no method and is no answer");
        let id = id.ok_or_else(nothing)?;
        let outcome = match (self.error, self.result) {
            (Some(error), _) if error.get() != "null" => Err(serde_json::from_str(error.get())
                .unwrap_or_else(|_| Fault::internal("an error that cannot be read"))),
            (_, Some(result)) => serde_json::from_str(result.get()).map_err(|error| {
                Fault::internal(format!("an answer that cannot be read: {error}"))
            }),
            _ => return Err(nothing()),
        };
        Ok(Message::Response { id, outcome })
    }
}

/// Parameters are an object, or nothing.
fn parameters(raw: Option<&RawValue>) -> Result<Value, Fault> {
    let Some(raw) = raw else { return Ok(Value::Null) };
    let read = serde_json::from_str(raw.get())
        .or_else(|error| serde_json::from_str(&paired(raw.get()).ok_or(error)?));
    match read {
        Ok(params @ (Value::Object(_) | Value::Null)) => Ok(params),
        Ok(_) => Err(Fault::invalid_params("the parameters must be an object")),
        Err(error) => Err(Fault::invalid_params(format!("the parameters: {error}"))),
    }
}

/// The same JSON where it names half of a letter: languages whose texts are UTF-16 write such halves
/// when they cut a text, and what is left of it is still worth reading. `None` when there are none.
fn paired(text: &str) -> Option<String> {
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

fn unreadable(error: &serde_json::Error) -> Fault {
    Fault::parse(format!("the line is no JSON: {error}"))
}
