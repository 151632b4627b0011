//! Pressure: how full the model's window is, and what to do about it.

#![expect(missing_docs, reason = "field names are the wire contract; docs/events.md shows them")]

use crate::base::names::names;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The tier of a Session's pressure.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum PressureTier {
    /// At least 70 % of the window is used.
    Advisory,
    /// At least 80 % of the window is used.
    Warning,
    /// At least 90 % is used: the conversation is compacted before the request is sent.
    Critical,
}

names!(PressureTier { Advisory = "advisory", Warning = "warning", Critical = "critical" });

impl PressureTier {
    /// The tier for a number of tokens in a window; `None` below the first tier.
    pub fn from_tokens(tokens: u64, window: u64) -> Option<Self> {
        let reaches = |percent: u64| tokens.saturating_mul(100) >= window.saturating_mul(percent);
        match () {
            () if window == 0 => None,
            () if reaches(90) => Some(Self::Critical),
            () if reaches(80) => Some(Self::Warning),
            () if reaches(70) => Some(Self::Advisory),
            () => None,
        }
    }
}

/// How full the model's window is before a request is sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ContextPressure {
    pub tier: PressureTier,
    pub model: String,
    pub input_tokens: u64,
    pub window_tokens: u64,
    /// Whether the size of the window is assumed, because no setting, server or table states it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub window_is_assumed: bool,
    /// The estimated part of the tokens; the rest was counted by the Provider.
    pub estimated_tokens: u64,
    pub next_actions: Vec<String>,
}

impl ContextPressure {
    /// How full the window is, in percent.
    pub fn percent(&self) -> u64 {
        self.input_tokens.saturating_mul(100) / self.window_tokens.max(1)
    }

    /// The pressure in one line, for display.
    pub fn summary(&self) -> String {
        let assumed = if self.window_is_assumed {
            format!(", assumed to have {} tokens,", self.window_tokens)
        } else {
            String::new()
        };
        let (percent, tier) = (self.percent(), self.tier.name());
        let mut words = format!("the model's window{assumed} is {percent} % full ({tier})");
        if let Some(action) = self.next_actions.first() {
            words.push_str(": ");
            words.push_str(action);
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assumed_window_is_reported_as_assumed() {
        let mut pressure = ContextPressure {
            tier: PressureTier::Critical,
            model: "m".into(),
            input_tokens: 8_070,
            window_tokens: 1_000,
            window_is_assumed: false,
            estimated_tokens: 70,
            next_actions: vec!["do it".into()],
        };
        assert_eq!(pressure.summary(), "the model's window is 807 % full (critical): do it");
        assert!(serde_json::to_value(&pressure).unwrap().get("window_is_assumed").is_none());
        pressure.window_is_assumed = true;
        assert_eq!(
            pressure.summary(),
            "the model's window, assumed to have 1000 tokens, is 807 % full (critical): do it"
        );
    }

    #[test]
    fn tiers_begin_at_their_percent() {
        for (tokens, expected) in [
            (0, None),
            (699, None),
            (700, Some(PressureTier::Advisory)),
            (800, Some(PressureTier::Warning)),
            (899, Some(PressureTier::Warning)),
            (900, Some(PressureTier::Critical)),
            (u64::MAX, Some(PressureTier::Critical)),
        ] {
            assert_eq!(PressureTier::from_tokens(tokens, 1000), expected, "{tokens}");
        }
        assert_eq!(PressureTier::from_tokens(5, 0), None);
    }
}
