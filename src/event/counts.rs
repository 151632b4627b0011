//! Counts and circumstances of a Provider call, as its bill has them.

use serde::{Deserialize, Serialize};

use super::Extra;

/// Tokens as the Provider counted them; `input` includes `cached`, `output` includes `reasoning`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tokens {
    #[serde(default)]
    pub input_tokens: u64,
    #[serde(default)]
    pub cached_tokens: u64,
    #[serde(default)]
    pub output_tokens: u64,
    #[serde(default)]
    pub reasoning_tokens: u64,
    #[serde(default)]
    pub total_tokens: u64,
    #[serde(flatten)]
    pub extra: Extra,
}

/// Whether a call went on from the one before it, or why it was sent whole.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Continuation {
    #[serde(default)]
    pub used: bool,
    /// Absent when there was nothing to go on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_reason: Option<String>,
}
