//! Forgetting: what the last checkpoint stands for need not be held in memory.
//!
//! The model does not see it again, and the Log has it. The plan and the late context stay among the
//! Events, because a Turn asks for them. How the Session began, what it is about and how its Turns
//! went is kept beside.

use std::collections::BTreeSet;

use super::{History, Turns};
use crate::event::{Canonical, Seq, SharedEvent, UserMessage};

/// What a History does not hold any more.
#[derive(Debug, Clone, PartialEq)]
pub struct Forgotten {
    /// The last seq of it.
    pub to: Seq,
    /// The last seq when it was forgotten. Who takes back something of before, a compaction or what
    /// had taken back another, needs everything again.
    pub at: Seq,
    /// The Turns up to there.
    pub(super) turns: Turns,
    first: Option<SharedEvent>,
    first_words: Option<SharedEvent>,
}

impl History {
    /// What is not held, if anything is not.
    pub fn forgotten(&self) -> Option<&Forgotten> {
        self.forgotten.as_deref()
    }

    /// Whether something that is not held may count again after this fact: it takes back what decided
    /// about it, or is a compaction that hides less.
    pub fn is_too_short_for(&self, fact: &Canonical) -> bool {
        let Some(forgotten) = self.forgotten() else { return false };
        match fact {
            Canonical::HistoryRewound(rewound) => rewound.to_seq <= forgotten.at,
            Canonical::HistoryCompaction(compaction) => {
                compaction.hidden_to().is_none_or(|to| to < forgotten.to)
            }
            _ => false,
        }
    }

    /// The fact that the Log begins with.
    pub fn first(&self) -> Option<&Canonical> {
        self.first_event()?.fact()
    }

    fn first_event(&self) -> Option<&SharedEvent> {
        let known = self.forgotten().and_then(|forgotten| forgotten.first.as_ref());
        known.or_else(|| self.iter().find(|event| event.fact().is_some()))
    }

    /// What the user said first, also when it was taken back.
    pub fn first_words(&self) -> Option<&UserMessage> {
        match self.first_said()?.fact() {
            Some(Canonical::UserMessage(message)) => Some(message),
            _ => None,
        }
    }

    fn first_said(&self) -> Option<&SharedEvent> {
        let is_said =
            |event: &&SharedEvent| matches!(event.fact(), Some(Canonical::UserMessage(_)));
        let known = self.forgotten().and_then(|forgotten| forgotten.first_words.as_ref());
        known.or_else(|| self.iter().find(is_said))
    }

    /// The same without what the last checkpoint that counts hides; `None` when that is nothing new.
    pub fn without_hidden(&self) -> Option<Self> {
        let last = self.live_backwards().find_map(|(seq, fact)| match fact {
            Canonical::HistoryCompaction(compaction) => Some((seq, compaction.hidden_to())),
            _ => None,
        });
        let (by, to) = last.and_then(|(by, to)| Some((by, to?))).filter(|(by, to)| to < by)?;
        if self.forgotten().is_some_and(|known| known.to >= to) {
            return None;
        }
        let asked_for = self.asked_for(to);
        let mut shorter = Self::default();
        let mut place = 0;
        for event in self.iter() {
            place = event.seq().unwrap_or(place);
            if place > to || event.seq().is_some_and(|seq| asked_for.contains(&seq)) {
                shorter.push(event.clone());
            }
        }
        let at = self.last_seq().unwrap_or(by);
        let (first, first_words) = (self.first_event().cloned(), self.first_said().cloned());
        let turns = Turns::up_to(self, to);
        shorter.forgotten = Some(Forgotten { to, at, turns, first, first_words }.into());
        Some(shorter)
    }

    /// What a Turn asks for of everything up to a seq.
    fn asked_for(&self, to: Seq) -> BTreeSet<Seq> {
        let (mut plan, mut context) = (None, None);
        for (seq, fact) in self.live_backwards().skip_while(|(seq, _)| *seq > to) {
            match fact {
                Canonical::Plan(_) => plan = plan.or(Some(seq)),
                Canonical::UserMessage(message) if message.context.is_some() => {
                    context = context.or(Some(seq));
                }
                _ => {}
            }
            if plan.is_some() && context.is_some() {
                break;
            }
        }
        // A call without a result waits for one, wherever it stands.
        let mut open = Vec::new();
        for event in self.iter() {
            let Some(seq) = event.seq().filter(|seq| *seq <= to) else { continue };
            match event.fact() {
                Some(Canonical::ToolCall(call)) => open.push((&call.call_id, seq)),
                Some(Canonical::ToolResult(result)) => {
                    if let Some(at) = open.iter().position(|(id, _)| **id == result.call_id) {
                        open.remove(at);
                    }
                }
                _ => {}
            }
        }
        let open = open.into_iter().map(|(_, seq)| seq);
        [plan, context].into_iter().flatten().chain(open).collect()
    }
}
