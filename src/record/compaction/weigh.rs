//! Weights: the estimated tokens of a fact when it is replayed. Weights follow the rules of replay loosely:
//! a fact that is never replayed weighs nothing, and an opaque item is estimated by its size.

use serde_json::Value;

use super::prune;
use crate::base::tokens;
use crate::base::tokens::{TOKENS_PER_ITEM, estimate_tokens};
use crate::record::event::{
    Canonical, HistoryCompaction, ResourceDescriptor, ToolResult, UserMessage,
};

/// The tokens of the line that names an attachment.
const NAME_TOKENS: u64 = 40;
/// Bytes of encrypted reasoning for one token.
const SEALED_BYTES_PER_TOKEN: u64 = 5;
/// Bytes for one token, at least, of a text of which only the size is known.
const BYTES_PER_TOKEN: u64 = 3;
/// How many bytes of reports of ended Subagents are replayed between two user messages; for the rest, only a note
/// that there are more.
pub const MAX_SUBAGENT_END_BYTES: usize = 40 * 1024;
/// The most tokens of those reports.
const MAX_SUBAGENT_END_TOKENS: u64 = MAX_SUBAGENT_END_BYTES as u64 / BYTES_PER_TOKEN;
/// The longest output or argument that is estimated whole; a longer one is estimated by a sample.
const MAX_ESTIMATED_BYTES: usize = 64 * 1024;

/// The weight of a fact in tokens. Outputs and arguments above `limit` bytes are replaced by a marker;
/// `is_current` means that its Turn still shows attachments and images.
pub fn weigh_fact(fact: &Canonical, limit: Option<u64>, is_current: bool) -> u64 {
    match fact {
        Canonical::UserMessage(message) => weigh_user_message(message, is_current),
        Canonical::AssistantMessage(message) if !message.is_partial() => weigh_item(&message.text),
        Canonical::Reasoning(reasoning) if limit.is_none() => {
            let sealed = reasoning.item.get("encrypted_content").and_then(Value::as_str);
            TOKENS_PER_ITEM
                + sealed.map_or(0, |sealed| sealed.len() as u64 / SEALED_BYTES_PER_TOKEN)
        }
        Canonical::ToolCall(call) => {
            let pruned = limit.and_then(|limit| prune::prune_arguments(call, limit));
            let args = match (&pruned, &call.raw_args) {
                (Some(pruned), _) => pruned.to_string(),
                (None, Some(raw)) => raw.clone(),
                (None, None) => call.args.to_string(),
            };
            TOKENS_PER_ITEM + estimate_tokens(&call.name) + weigh_text(&args)
        }
        Canonical::ToolResult(result) => weigh_result(result, limit, is_current),
        Canonical::SkillActivation(skill) => weigh_item(&skill.content) + NAME_TOKENS,
        Canonical::SubagentEvent(child) if child.ends_run() => {
            child.summary.as_deref().map_or(0, weigh_item) + NAME_TOKENS
        }
        Canonical::BranchSummary(branch) => weigh_item(&branch.summary) + NAME_TOKENS,
        _ => 0,
    }
}

/// The weight of the reports of ended Subagents between two user messages, which has a limit.
#[derive(Debug, Clone, Copy, Default)]
pub struct SubagentEndWeight(u64);

impl SubagentEndWeight {
    /// Adds the weight of one report, and returns the part within the limit.
    pub fn add(&mut self, weight: u64) -> u64 {
        let counted = weight.min(MAX_SUBAGENT_END_TOKENS - self.0);
        self.0 += counted;
        counted
    }

    /// Whether the limit is reached.
    pub fn is_full(self) -> bool {
        self.0 == MAX_SUBAGENT_END_TOKENS
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
        Value::String(summary) => weigh_item(summary),
        other => weigh_item(&other.to_string()),
    };
    summary + NAME_TOKENS + compaction.context.as_deref().map_or(0, weigh_item)
}

fn weigh_user_message(message: &UserMessage, is_current: bool) -> u64 {
    let mut sum = weigh_item(&message.text) + message.context.as_deref().map_or(0, weigh_item);
    for own in message.descriptors() {
        sum += NAME_TOKENS;
        if is_current {
            sum += if own.is_image() {
                weigh_image(&own)
            } else {
                own.inlined.unwrap_or(0) / BYTES_PER_TOKEN
            };
        }
    }
    sum
}

fn weigh_result(result: &ToolResult, limit: Option<u64>, is_current: bool) -> u64 {
    if let Some(marker) = limit.and_then(|limit| prune::prune_output(result, limit)) {
        return weigh_item(&marker);
    }
    let shown = result.descriptor().filter(|own| is_current && own.is_image());
    let words = match (&result.output, &result.error) {
        (Some(output), _) => weigh_text(output),
        (None, Some(error)) => estimate_tokens(&error.message) + NAME_TOKENS,
        (None, None) => weigh_text(&result.details.to_string()),
    };
    TOKENS_PER_ITEM + words + shown.map_or(0, |own| weigh_image(&own))
}

fn weigh_image(own: &ResourceDescriptor) -> u64 {
    tokens::estimate_image_tokens(own.width.zip(own.height))
}

fn weigh_item(words: &str) -> u64 {
    TOKENS_PER_ITEM + weigh_text(words)
}

/// The tokens of a text; a very long one is estimated by its beginning and its end.
fn weigh_text(words: &str) -> u64 {
    if words.len() <= MAX_ESTIMATED_BYTES {
        return estimate_tokens(words);
    }
    let head = &words[..words.floor_char_boundary(MAX_ESTIMATED_BYTES / 2)];
    let tail = &words[words.ceil_char_boundary(words.len() - MAX_ESTIMATED_BYTES / 2)..];
    let sample = (head.len() + tail.len()) as u64;
    (estimate_tokens(head) + estimate_tokens(tail)) * words.len() as u64 / sample.max(1)
}
