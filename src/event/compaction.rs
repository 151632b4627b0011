//! A compaction: what of older History the model sees from then on.

#![expect(missing_docs, reason = "field names are the wire contract; docs/events.md shows them")]

use std::fmt::Write;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Extra, Seq};

/// A checkpoint that stands for older History when it is replayed. The last one that counts rules
/// alone, so each carries on what the one before it said.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct HistoryCompaction {
    #[serde(default)]
    pub from_seq: u64,
    #[serde(default)]
    pub to_seq: u64,
    /// `deterministic` or `model_assisted`.
    #[serde(default)]
    pub strategy: String,
    /// `manual`, `critical_pressure` or `overflow_recovery`.
    #[serde(default)]
    pub trigger: String,
    /// What is replayed in place of the range; null when only outputs were pruned.
    #[serde(default)]
    pub summary: Value,
    /// The late developer context that holds where the range ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// Up to here, large outputs and arguments are replayed as a marker, and reasoning is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prune_to_seq: Option<u64>,
    /// What is large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prune_over_bytes: Option<u64>,
    /// What the summary was made of, for the next compaction.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub checkpoint: Value,
    /// Turns that it tells in short, beside those that were told so before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns_compacted: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns_kept: Option<u64>,
    /// Outputs and arguments in kept Turns that a marker stands for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs_pruned: Option<u64>,
    /// What a request was before, as estimated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_before: Option<u64>,
    /// What it is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_after: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_tokens: Option<u64>,
    /// Why the model did not help, although it was asked to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback_reason: Option<String>,
    #[serde(flatten)]
    pub extra: Extra,
}

impl HistoryCompaction {
    /// The last seq that its summary stands for; nothing when it only prunes.
    pub fn hidden_to(&self) -> Option<Seq> {
        // The first Pixir kept both ends in a range of their own.
        let range = self.extra.get("range").and_then(|range| range.get("to_seq")?.as_u64());
        (!self.summary.is_null()).then(|| range.unwrap_or(self.to_seq))
    }

    /// One line for a person.
    pub fn words(&self) -> String {
        let why = match self.trigger.as_str() {
            "overflow_recovery" => "the model refused the conversation as too long",
            "critical_pressure" => "the model's window was nearly full",
            _ => "as asked",
        };
        let mut words = format!("older conversation is told in short from here on ({why})");
        if self.hidden_to().is_none() {
            words = format!("old tool outputs are left out from here on ({why})");
        }
        if let (Some(before), Some(after)) = (self.tokens_before, self.tokens_after) {
            write!(words, ": about {before} tokens became {after}").ok();
        }
        if let Some(reason) = &self.fallback_reason {
            write!(words, "; the model did not help: {reason}").ok();
        }
        words
    }

    /// How large something of this seq may be before it is replayed as a marker.
    pub fn prunes(&self, seq: Seq) -> Option<u64> {
        self.prune_over_bytes.filter(|_| self.prune_to_seq.is_some_and(|last| seq <= last))
    }
}
