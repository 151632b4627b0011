//! Counts and circumstances of a Provider call, as its bill has them.

use serde::{Deserialize, Serialize};

use super::Extra;

/// Tokens as the Provider counted them; `input` includes `cached`, `output` includes `reasoning`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tokens {
    /// What the model read, cached or not.
    #[serde(default)]
    pub input_tokens: u64,
    /// What of it was cached.
    #[serde(default)]
    pub cached_tokens: u64,
    /// What the model wrote, thoughts included.
    #[serde(default)]
    pub output_tokens: u64,
    /// What of it were thoughts.
    #[serde(default)]
    pub reasoning_tokens: u64,
    /// All together.
    #[serde(default)]
    pub total_tokens: u64,
    /// Fields of the future.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Whether a call went on from the one before it, or why it was sent whole.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Continuation {
    /// Only what was new was sent.
    #[serde(default)]
    pub used: bool,
    /// Absent when there was nothing to go on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_reason: Option<String>,
}
