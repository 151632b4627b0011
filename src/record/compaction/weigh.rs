//! Weights: the estimated tokens of a fact when it is replayed. They follow the rules of replay loosely:
//! a fact that is never replayed weighs nothing, and an opaque item is estimated by its size.

use serde_json::Value;

use super::prune;
use crate::base::tokens;
use crate::base::tokens::{PER_ITEM, estimate};
use crate::record::event::{Canonical, Descriptor, HistoryCompaction, ToolResult, UserMessage};

/// The tokens of the line that names an attachment.
const NAME: u64 = 40;
/// Bytes of encrypted reasoning for one token.
const SEALED: u64 = 5;
/// Bytes for one token, at least, of a text of which only the size is known.
const UNSEEN: u64 = 3;
/// How many bytes of reports of ended Subagents are replayed between two user messages; for the rest, only a note
/// that there are more.
pub const ENDS_TOLD: usize = 40 * 1024;
/// The most tokens of those reports.
const ENDS: u64 = ENDS_TOLD as u64 / UNSEEN;
/// The longest output or argument that is estimated whole; a longer one is estimated by a sample.
const SAMPLED: usize = 64 * 1024;

/// The weight of a fact in tokens. Outputs and arguments above `limit` bytes are replaced by a marker;
/// `is_current` means that its Turn still shows attachments and images.
pub fn weigh(fact: &Canonical, limit: Option<u64>, is_current: bool) -> u64 {
    match fact {
        Canonical::UserMessage(message) => said(message, is_current),
        Canonical::AssistantMessage(message) if !message.is_partial() => item(&message.text),
        Canonical::Reasoning(reasoning) if limit.is_none() => {
            let sealed = reasoning.item.get("encrypted_content").and_then(Value::as_str);
            PER_ITEM + sealed.map_or(0, |sealed| sealed.len() as u64 / SEALED)
        }
        Canonical::ToolCall(call) => {
            let pruned = limit.and_then(|limit| prune::arguments(call, limit));
            let args = match (&pruned, &call.raw_args) {
                (Some(pruned), _) => pruned.to_string(),
                (None, Some(raw)) => raw.clone(),
                (None, None) => call.args.to_string(),
            };
            PER_ITEM + estimate(&call.name) + text(&args)
        }
        Canonical::ToolResult(result) => answered(result, limit, is_current),
        Canonical::SkillActivation(skill) => item(&skill.content) + NAME,
        Canonical::SubagentEvent(child) if child.ends_run() => {
            child.summary.as_deref().map_or(0, item) + NAME
        }
        Canonical::BranchSummary(branch) => item(&branch.summary) + NAME,
        _ => 0,
    }
}

/// The weight of the reports of ended Subagents between two user messages, which has a limit.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ends(u64);

impl Ends {
    /// Adds the weight of one report, and returns the part within the limit.
    pub fn add(&mut self, weight: u64) -> u64 {
        let counted = weight.min(ENDS - self.0);
        self.0 += counted;
        counted
    }

    /// Whether the limit is reached.
    pub fn is_full(self) -> bool {
        self.0 == ENDS
    }

    /// The part of a fact's weight that counts; called for every fact, in order.
    pub fn bounded(&mut self, fact: &Canonical, weight: u64) -> u64 {
        match fact {
            Canonical::UserMessage(_) => *self = Self::default(),
            Canonical::SubagentEvent(_) => return self.add(weight),
            _ => {}
        }
        weight
    }
}

/// The weight of a checkpoint.
pub fn checkpoint(compaction: &HistoryCompaction) -> u64 {
    let summary = match &compaction.summary {
        Value::Null => return 0,
        Value::String(summary) => item(summary),
        other => item(&other.to_string()),
    };
    summary + NAME + compaction.context.as_deref().map_or(0, item)
}

fn said(message: &UserMessage, is_current: bool) -> u64 {
    let mut sum = item(&message.text) + message.context.as_deref().map_or(0, item);
    for own in message.descriptors() {
        sum += NAME;
        if is_current {
            sum += if own.is_image() { picture(&own) } else { own.inlined.unwrap_or(0) / UNSEEN };
        }
    }
    sum
}

fn answered(result: &ToolResult, limit: Option<u64>, is_current: bool) -> u64 {
    if let Some(marker) = limit.and_then(|limit| prune::output(result, limit)) {
        return item(&marker);
    }
    let shown = result.descriptor().filter(|own| is_current && own.is_image());
    let words = match (&result.output, &result.error) {
        (Some(output), _) => text(output),
        (None, Some(error)) => estimate(&error.message) + NAME,
        (None, None) => text(&result.details.to_string()),
    };
    PER_ITEM + words + shown.map_or(0, |own| picture(&own))
}

fn picture(own: &Descriptor) -> u64 {
    tokens::image(own.width.zip(own.height))
}

fn item(words: &str) -> u64 {
    PER_ITEM + text(words)
}

/// The tokens of a text; a very long one is estimated by its beginning and its end.
fn text(words: &str) -> u64 {
    if words.len() <= SAMPLED {
        return estimate(words);
    }
    let head = &words[..words.floor_char_boundary(SAMPLED / 2)];
    let tail = &words[words.ceil_char_boundary(words.len() - SAMPLED / 2)..];
    let sample = (head.len() + tail.len()) as u64;
    (estimate(head) + estimate(tail)) * words.len() as u64 / sample.max(1)
}
