//! Weights: how many tokens a fact is when it is replayed. It follows the rules of replay loosely:
//! what is never replayed weighs nothing, and an opaque item weighs what its size suggests.

use serde_json::Value;

use super::prune;
use crate::event::{Canonical, Descriptor, HistoryCompaction, ToolResult, UserMessage};
use crate::tokens::{self, PER_ITEM, estimate};

/// What the line that names an attachment costs.
const NAME: u64 = 40;
/// Sealed reasoning is about so many bytes for each token in it.
const SEALED: u64 = 5;
/// Text of which only the size is known is at most one token for so many bytes.
const UNSEEN: u64 = 3;
/// How many bytes of ends of Subagents are told between two user messages; behind them it is only said
/// that there are more.
pub const ENDS_TOLD: usize = 40 * 1024;
/// What those weigh at most.
const ENDS: u64 = ENDS_TOLD as u64 / UNSEEN;
/// The longest output or argument that is estimated whole; beyond it a sample tells.
const SAMPLED: usize = 64 * 1024;

/// What a fact weighs: `limit` is how large a thing may be before a marker stands for it, and
/// `is_current` says that its Turn still shows what is attached to it.
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

/// What ends of Subagents weigh in one stretch between two user messages: however many there are, no
/// more is told of them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ends(u64);

impl Ends {
    /// Adds what one weighs, and says what of it counts.
    pub fn add(&mut self, weight: u64) -> u64 {
        let counted = weight.min(ENDS - self.0);
        self.0 += counted;
        counted
    }

    /// Whether whatever comes counts for nothing.
    pub fn is_full(self) -> bool {
        self.0 == ENDS
    }

    /// What of the weight of a fact counts, for whoever goes through facts in their order.
    pub fn bounded(&mut self, fact: &Canonical, weight: u64) -> u64 {
        match fact {
            Canonical::UserMessage(_) => *self = Self::default(),
            Canonical::SubagentEvent(_) => return self.add(weight),
            _ => {}
        }
        weight
    }
}

/// What a checkpoint weighs.
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

/// A very long text is judged by its beginning and its end.
fn text(words: &str) -> u64 {
    if words.len() <= SAMPLED {
        return estimate(words);
    }
    let head = &words[..words.floor_char_boundary(SAMPLED / 2)];
    let tail = &words[words.ceil_char_boundary(words.len() - SAMPLED / 2)..];
    let sample = (head.len() + tail.len()) as u64;
    (estimate(head) + estimate(tail)) * words.len() as u64 / sample.max(1)
}
