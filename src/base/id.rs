//! Ids of Sessions, Events and calls: minting new ones and checking those from outside. Also SHA-256 in hex.

use std::fmt::{self, Write};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::base::error::{Explain, Explanation, Kind};

/// Bytes as lowercase hex digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a String cannot fail.
        write!(text, "{byte:02x}").ok();
        text
    })
}

/// The SHA-256 of some bytes, as lowercase hex digits.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Whether a text is so many hex digits.
pub fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The longest Session id that still leaves room for suffixes in a 255-byte file name.
const LONGEST_SESSION_ID: usize = 200;

/// The id of a Session: also the stem of its Log's file name, so it is checked before any use.
/// Every Event carries one, so a copy shares the text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, JsonSchema)]
pub struct SessionId(Arc<str>);

impl SessionId {
    /// Mints `YYYYMMDDTHHMMSS-` and six hex digits, in UTC.
    pub fn mint() -> Self {
        let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%S").to_string();
        Self(format!("{now}-{:06x}", fastrand::u32(..) & 0x00ff_ffff).into())
    }

    /// Checks an id from outside; the error states the reason without repeating the id.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let refuse = |reason| Err(IdError { reason });
        if text.is_empty() {
            return refuse("it is empty");
        }
        if text.len() > LONGEST_SESSION_ID {
            return refuse("it is longer than 200 bytes");
        }
        if !text.starts_with(|first: char| first.is_alphanumeric() || first == '_') {
            return refuse("it must start with a letter, a digit or `_`");
        }
        if !text.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '-')) {
            return refuse("only letters, digits, `_`, `.` and `-` are allowed");
        }
        Ok(Self(text.into()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for SessionId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// The id of an Event: 16 hex digits when minted here, any text when read from a Log.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EventId(EventIdRepr);

/// A number, or the text of a Log. Most Events are deltas whose id is never shown, so the number is formatted late.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum EventIdRepr {
    Minted(u64),
    Text(Box<str>),
}

impl EventId {
    /// Mints 16 hex digits.
    pub fn mint() -> Self {
        Self(EventIdRepr::Minted(fastrand::u64(..)))
    }

    /// Keeps the text of a Log line as it is.
    pub fn from_text(text: &str) -> Self {
        let is_ours =
            text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        match u64::from_str_radix(text, 16) {
            Ok(number) if is_ours => Self(EventIdRepr::Minted(number)),
            _ => Self(EventIdRepr::Text(text.into())),
        }
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            EventIdRepr::Minted(number) => write!(f, "{number:016x}"),
            EventIdRepr::Text(text) => f.write_str(text),
        }
    }
}

impl Serialize for EventId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            EventIdRepr::Minted(_) => serializer.collect_str(self),
            EventIdRepr::Text(text) => serializer.serialize_str(text),
        }
    }
}

/// The id that a tool call shares with its result; the Provider chooses it.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct CallId(String);

impl CallId {
    /// Takes the Provider's id as it is.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that is no valid Session id, and so must not be used in a path.
#[derive(Debug, thiserror::Error)]
#[error("this is not a Session id: {reason}")]
pub struct IdError {
    reason: &'static str,
}

impl Explain for IdError {
    fn explain(&self) -> Explanation {
        Kind::InvalidArgs
            .with_next_action("list the Sessions of this Workspace with `pixir sessions`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minted_session_id_is_accepted_and_sorts_by_time() {
        let id = SessionId::mint();
        assert_eq!(SessionId::parse(id.as_str()).unwrap(), id);
        assert_eq!(id.as_str().len(), 15 + 1 + 6);
    }

    #[test]
    fn ids_that_could_leave_the_folder_are_refused() {
        for bad in ["", "../x", "a/b", ".hidden", "a\0b", "-flag", "a b", &"x".repeat(201)] {
            assert!(SessionId::parse(bad).is_err(), "{bad:?}");
        }
        for good in ["20260721T101112-abcdef", "_x", "a..b", "ä1"] {
            assert!(SessionId::parse(good).is_ok(), "{good:?}");
        }
    }
}
