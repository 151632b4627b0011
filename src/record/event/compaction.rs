//! `history_compaction`: what the model sees of older History from then on.

#![expect(missing_docs, reason = "field names are the wire contract; docs/events.md shows them")]

use std::fmt::Write;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Extra, Seq};

/// A checkpoint that replaces older History when it is replayed. Only the last one that counts is used, so each
/// includes the one before it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HistoryCompaction {
    pub from_seq: u64,
    pub to_seq: u64,
    /// `deterministic` or `model_assisted`.
    pub strategy: String,
    /// `manual`, `critical_pressure` or `overflow_recovery`.
    pub trigger: String,
    /// The text that is replayed in place of the range; null when only outputs were pruned.
    pub summary: Value,
    /// The late developer context that holds where the range ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// The last seq up to which large outputs and arguments are replayed as a marker, and reasoning is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prune_to_seq: Option<u64>,
    /// The size above which an output or argument is large.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prune_over_bytes: Option<u64>,
    /// The facts behind the summary, for the next compaction.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub checkpoint: Value,
    /// How many more Turns are summarised than by the compaction before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns_compacted: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns_kept: Option<u64>,
    /// How many outputs and arguments in kept Turns are replaced by a marker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outputs_pruned: Option<u64>,
    /// The estimated tokens of a request before the compaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_before: Option<u64>,
    /// The estimated tokens of a request after the compaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_after: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_tokens: Option<u64>,
    /// Why the model did not write the summary, although it was asked to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback_reason: Option<String>,
    #[serde(flatten)]
    pub extra: Extra,
}

impl HistoryCompaction {
    /// The last seq that the summary replaces; `None` when the compaction only prunes.
    pub fn hidden_to(&self) -> Option<Seq> {
        // The first Pixir kept both ends in a separate range.
        let range = self.extra.get("range").and_then(|range| range.get("to_seq")?.as_u64());
        (!self.summary.is_null()).then(|| range.unwrap_or(self.to_seq))
    }

    /// One line for a person.
    pub fn describe(&self) -> String {
        let why = match self.trigger.as_str() {
            "overflow_recovery" => "the model refused the conversation as too long",
            "critical_pressure" => "the model's window was nearly full",
            _ => "on request",
        };
        let mut words = format!("older conversation is summarised from here on ({why})");
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

    /// The size limit of outputs and arguments at a seq: larger ones are replayed as a marker.
    pub fn prune_limit(&self, seq: Seq) -> Option<u64> {
        self.prune_over_bytes.filter(|_| self.prune_to_seq.is_some_and(|last| seq <= last))
    }
}
