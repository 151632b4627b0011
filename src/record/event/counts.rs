//! Token counts, continuation and rate limits of a Provider call, as `provider_usage` records them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Extra, ProviderUsage};

/// Tokens as the Provider counted them; `input` includes `cached`, `output` includes `reasoning`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TokenUsage {
    /// Input tokens, cached or not.
    pub input_tokens: u64,
    /// The cached part of the input.
    pub cached_tokens: u64,
    /// Output tokens, reasoning included.
    pub output_tokens: u64,
    /// The reasoning part of the output.
    pub reasoning_tokens: u64,
    /// Input and output together.
    pub total_tokens: u64,
    /// Fields that this build does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

impl TokenUsage {
    /// Adds another count to this one; unknown fields are not summed.
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
    /// Everything the call was billed for, failed attempts included; `None` when nothing was counted.
    pub fn billed(&self) -> Option<TokenUsage> {
        let mut counted = self.usage.iter().chain(self.failed_usage.as_deref());
        let mut sum = counted.next()?.clone();
        counted.for_each(|tokens| sum.add(tokens));
        Some(sum)
    }
}

/// Whether a call continued the previous response, or why the whole conversation was sent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ContinuationUse {
    /// Whether only new items were sent.
    pub used: bool,
    /// Why the previous response was not continued; absent when there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_reason: Option<String>,
}

/// The rate limits that a server reported with its answer; names and numbers are the server's.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct RateLimits {
    /// The shorter window of a plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<UsageWindow>,
    /// The longer window of a plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secondary: Option<UsageWindow>,
    /// Requests that an API key has left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<Allowance>,
    /// Tokens that an API key has left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Allowance>,
    /// The name of the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Which kind of limit was reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<String>,
    /// The plan that the limit belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// Credits bought beyond the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credits: Option<Credits>,
    /// Fields that this build does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A time window of a plan's usage limit.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct UsageWindow {
    /// The used share of the limit, in percent.
    pub used_percent: f64,
    /// The length of the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_minutes: Option<u64>,
    /// When the window resets, in Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resets_at: Option<u64>,
}

/// The remaining requests or tokens of an API key.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Allowance {
    /// The limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// The remaining part of the limit.
    pub remaining: u64,
    /// Seconds until the limit resets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resets_in_s: Option<f64>,
}

/// Credits bought beyond a plan.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Credits {
    /// Whether there are any credits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub has_credits: Option<bool>,
    /// Whether credits are unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlimited: Option<bool>,
    /// The balance, as the server writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balance: Option<String>,
}
