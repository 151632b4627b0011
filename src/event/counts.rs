//! Counts and circumstances of a Provider call, as its bill has them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Extra, ProviderUsage};

/// Tokens as the Provider counted them; `input` includes `cached`, `output` includes `reasoning`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
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

impl Tokens {
    /// Adds another count to this one; fields of the future are not summed.
    pub fn add(&mut self, other: &Self) {
        let pairs = [
            (&mut self.input_tokens, other.input_tokens),
            (&mut self.cached_tokens, other.cached_tokens),
            (&mut self.output_tokens, other.output_tokens),
            (&mut self.reasoning_tokens, other.reasoning_tokens),
            (&mut self.total_tokens, other.total_tokens),
        ];
        for (sum, more) in pairs {
            *sum = sum.saturating_add(more);
        }
    }
}

impl ProviderUsage {
    /// Everything the call was billed for, failed attempts included; `None` when nobody counted.
    pub fn billed(&self) -> Option<Tokens> {
        let mut counted = self.usage.iter().chain(self.failed_usage.as_deref());
        let mut sum = counted.next()?.clone();
        counted.for_each(|tokens| sum.add(tokens));
        Some(sum)
    }
}

/// Whether a call went on from the one before it, or why it was sent whole.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Continuation {
    /// Only what was new was sent.
    #[serde(default)]
    pub used: bool,
    /// Absent when there was nothing to go on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_reason: Option<String>,
}

/// What a server said about its limits while it answered; words and numbers are its own.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct RateLimits {
    /// The shorter window of a plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<UsageWindow>,
    /// The longer one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secondary: Option<UsageWindow>,
    /// Requests that an API key has left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<Allowance>,
    /// Tokens that it has left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Allowance>,
    /// Which limit it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Which kind of limit was reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<String>,
    /// Whose limit it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// What was bought on top.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credits: Option<Credits>,
    /// Fields of the future.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A window of time in which a plan may be used so much.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct UsageWindow {
    /// How much of it is used.
    #[serde(default)]
    pub used_percent: f64,
    /// How long it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_minutes: Option<u64>,
    /// When it begins anew, in Unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resets_at: Option<u64>,
}

/// How much of something is left.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Allowance {
    /// How much there was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// How much is left.
    #[serde(default)]
    pub remaining: u64,
    /// When there is more, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resets_in_s: Option<f64>,
}

/// What was bought on top of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Credits {
    /// Whether there is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub has_credits: Option<bool>,
    /// Whether there is no end to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlimited: Option<bool>,
    /// How much there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balance: Option<String>,
}
