//! The facts that the model sees: after rewinds, and without those that the last checkpoint replaces.

use std::collections::{HashMap, VecDeque};

use super::History;
use crate::record::event::{Canonical, HistoryCompaction, Seq};

/// The facts that the model may see again, in order, and the checkpoint before them.
#[derive(Debug, Clone)]
pub struct VisibleFacts<'a> {
    pub facts: Vec<(Seq, &'a Canonical)>,
    /// The last compaction that counts; earlier ones have no effect.
    pub checkpoint: Option<&'a HistoryCompaction>,
}

impl History {
    /// The visible facts. Walks backwards, because the last rewind and the last checkpoint decide about the
    /// rest; facts that the checkpoint replaces are not even read.
    pub fn visible(&self) -> VisibleFacts<'_> {
        let mut facts = Vec::new();
        let mut checkpoint: Option<&HistoryCompaction> = None;
        for (seq, fact) in self.live_backwards() {
            let hidden_to = checkpoint.and_then(HistoryCompaction::hidden_to);
            if hidden_to.is_some_and(|last| seq <= last) {
                break;
            }
            match fact {
                Canonical::HistoryRewound(_) => {}
                Canonical::HistoryCompaction(compaction) => {
                    checkpoint = checkpoint.or(Some(compaction));
                }
                _ => facts.push((seq, fact)),
            }
        }
        facts.reverse();
        VisibleFacts { facts, checkpoint }
    }
}

/// Pairs calls and results by index: a result answers the oldest open call with its id, within its Turn. A result
/// after the next user message is too late, because the model was sent another one.
pub fn link_calls(facts: &[&Canonical]) -> Vec<Option<usize>> {
    let mut links = vec![None; facts.len()];
    let mut open: HashMap<&str, VecDeque<usize>> = HashMap::new();
    for (place, fact) in facts.iter().enumerate() {
        match fact {
            Canonical::UserMessage(_) => open.clear(),
            Canonical::ToolCall(call) => {
                open.entry(call.call_id.as_str()).or_default().push_back(place);
            }
            Canonical::ToolResult(result) => {
                let call = open.get_mut(result.call_id.as_str()).and_then(VecDeque::pop_front);
                if let Some(call) = call {
                    links[call] = Some(place);
                    links[place] = Some(call);
                }
            }
            _ => {}
        }
    }
    links
}
