//! One Event as one NDJSON line, with a proof: a hash chained to the line before.
//!
//! A line ends in `,"h":"<16 hex>"}`. The proof is the start of the SHA-256 over the previous
//! line's proof and this line's bytes up to there, so a changed, dropped, swapped or inserted line
//! shows.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::base::id::{EventId, SessionId};
use crate::record::event::{Canonical, CanonicalParts, Event, EventFields, Extra, Seq, Timestamp};

/// The length of `,"h":"…"}` in bytes.
const PROOF_SUFFIX: usize = 24;

/// How far a seq may be ahead of its line number. A seq beyond is damage, and continuing from it could overflow.
const FURTHEST_SEQ: Seq = 1 << 32;

/// The proof of a line: 16 hex digits, or nothing before the first line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Proof(Option<[u8; 16]>);

impl Proof {
    /// The proof of a line that follows `self`; `bytes` is the line without its proof.
    fn next_proof(self, bytes: &[u8]) -> Self {
        let mut hasher = Sha256::new();
        if let Some(previous) = &self.0 {
            hasher.update(previous);
        }
        hasher.update(bytes);
        let mut hex = [0; 16];
        for (pair, byte) in hex.chunks_exact_mut(2).zip(hasher.finalize()) {
            const DIGITS: &[u8; 16] = b"0123456789abcdef";
            if let [high, low] = pair {
                *high = DIGITS[usize::from(byte >> 4)];
                *low = DIGITS[usize::from(byte & 15)];
            }
        }
        Self(Some(hex))
    }

    fn from_text(text: &str) -> Option<Self> {
        Some(Self(Some(text.as_bytes().try_into().ok()?)))
    }
}

/// Writes a line with its newline to the end of `buffer`, and returns its proof.
pub fn encode_line(
    buffer: &mut Vec<u8>,
    fields: &EventFields<'_, &RawValue>,
    previous: Proof,
) -> serde_json::Result<Proof> {
    let start = buffer.len();
    serde_json::to_writer(&mut *buffer, fields)?;
    // The proof comes before the closing brace, and does not cover it.
    buffer.pop();
    let proof = previous.next_proof(&buffer[start..]);
    buffer.extend_from_slice(br#","h":""#);
    buffer.extend_from_slice(&proof.0.unwrap_or_default());
    buffer.extend_from_slice(b"\"}\n");
    Ok(proof)
}

/// The result of checking a line's proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProofStatus {
    /// The proof follows from the line before.
    Proven(Proof),
    /// The line carries a proof that does not fit: this line or the one before it was changed.
    Broken(Proof),
    /// The line carries no proof, as in Logs of the first Pixir.
    Unproven,
}

/// A line that could be read.
pub struct DecodedLine<'a> {
    pub fields: LineFields<'a>,
    pub proof: ProofStatus,
}

/// The fields of a line.
#[derive(Deserialize)]
pub struct LineFields<'a> {
    #[serde(borrow, default)]
    id: Cow<'a, str>,
    #[serde(borrow, default)]
    session_id: Cow<'a, str>,
    #[serde(default)]
    pub seq: Option<Seq>,
    #[serde(borrow, default)]
    ts: Cow<'a, str>,
    #[serde(borrow, rename = "type")]
    type_name: Cow<'a, str>,
    #[serde(borrow, default = "null")]
    pub data: &'a RawValue,
    #[serde(borrow, default)]
    h: Option<Cow<'a, str>>,
    #[serde(flatten)]
    extra: Extra,
}

fn null() -> &'static RawValue {
    RawValue::NULL
}

/// Why a line cannot be read.
#[derive(Debug)]
pub struct UnreadableLine {
    /// The reason, in one sentence.
    pub reason: String,
    /// Whether the bytes are the beginning of a line, as left by a writer that was killed.
    pub stops_short: bool,
}

impl From<&str> for UnreadableLine {
    fn from(reason: &str) -> Self {
        Self { reason: reason.to_owned(), stops_short: false }
    }
}

/// Reads a line without its newline, the `number`-th of its Log.
pub fn decode_line(
    line: &[u8],
    number: u64,
    previous: Proof,
) -> Result<DecodedLine<'_>, UnreadableLine> {
    let fields: LineFields<'_> = serde_json::from_slice(line).map_err(|error| UnreadableLine {
        reason: format!("it is not an Event: {error}"),
        stops_short: error.is_eof(),
    })?;
    if fields.seq.is_some_and(|seq| seq > number.saturating_add(FURTHEST_SEQ)) {
        return Err("its seq is out of range".into());
    }
    let proof = match &fields.h {
        None => ProofStatus::Unproven,
        Some(text) => check_proof(line, text, previous)?,
    };
    Ok(DecodedLine { fields, proof })
}

fn check_proof(line: &[u8], text: &str, previous: Proof) -> Result<ProofStatus, UnreadableLine> {
    let claimed = Proof::from_text(text).ok_or("its proof is not 16 characters")?;
    let Some(proven) = line.len().checked_sub(PROOF_SUFFIX) else {
        return Ok(ProofStatus::Broken(claimed));
    };
    let (body, suffix) = line.split_at(proven);
    let in_place = suffix.starts_with(br#","h":""#);
    if in_place && previous.next_proof(body) == claimed {
        Ok(ProofStatus::Proven(claimed))
    } else {
        Ok(ProofStatus::Broken(claimed))
    }
}

impl LineFields<'_> {
    /// The Event of the line, with its payload, which may come from a blob.
    pub fn into_event(self, owner: &SessionId, data: &RawValue) -> Event {
        let session_id = if self.session_id == owner.as_str() {
            owner.clone()
        } else {
            SessionId::parse(&self.session_id).unwrap_or_else(|_| owner.clone())
        };
        Event::new_canonical(CanonicalParts {
            id: EventId::from_text(&self.id),
            session_id,
            seq: self.seq,
            ts: Timestamp::from_text(&self.ts),
            fact: Canonical::decode(&self.type_name, data),
            extra: self.extra,
        })
    }
}
