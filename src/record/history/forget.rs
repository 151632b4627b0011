//! Forgetting: Events that the last checkpoint replaces are dropped from memory.
//!
//! The model does not see them again, and the Log has them. The plan and the late context stay among the
//! Events, because a Turn needs them. The first fact, the first user message and the sum of the Turns are
//! kept separately.

use std::collections::BTreeSet;

use super::{History, Turns};
use crate::record::event::{Canonical, Seq, SharedEvent, UserMessage};

/// The Events that a History does not hold any more, and the facts that are kept of them.
#[derive(Debug, Clone, PartialEq)]
pub struct ForgottenEvents {
    /// The last seq that was dropped.
    pub to: Seq,
    /// The last seq when Events were dropped. A rewind to it or before may undo the compaction, or another rewind,
    /// and then needs all Events.
    pub at: Seq,
    /// The Turns up to `to`.
    pub(super) turns: Turns,
    first: Option<SharedEvent>,
    first_user_event: Option<SharedEvent>,
}

impl History {
    /// The Events that are not held, if there are any.
    pub fn forgotten(&self) -> Option<&ForgottenEvents> {
        self.forgotten.as_deref()
    }

    /// Whether Events that are not held may count again after this fact: it undoes the compaction that hid them, or
    /// is a compaction that hides less.
    pub fn needs_forgotten(&self, fact: &Canonical) -> bool {
        let Some(forgotten) = self.forgotten() else { return false };
        match fact {
            Canonical::HistoryRewound(rewound) => rewound.to_seq <= forgotten.at,
            Canonical::HistoryCompaction(compaction) => {
                compaction.hidden_to().is_none_or(|to| to < forgotten.to)
            }
            _ => false,
        }
    }

    /// The first fact of the Log.
    pub fn first_fact(&self) -> Option<&Canonical> {
        self.first_event()?.fact()
    }

    fn first_event(&self) -> Option<&SharedEvent> {
        let known = self.forgotten().and_then(|forgotten| forgotten.first.as_ref());
        known.or_else(|| self.iter().find(|event| event.fact().is_some()))
    }

    /// The first message of the user, even if it was undone.
    pub fn first_user_message(&self) -> Option<&UserMessage> {
        match self.first_user_event()?.fact() {
            Some(Canonical::UserMessage(message)) => Some(message),
            _ => None,
        }
    }

    fn first_user_event(&self) -> Option<&SharedEvent> {
        let is_user_message =
            |event: &&SharedEvent| matches!(event.fact(), Some(Canonical::UserMessage(_)));
        let known = self.forgotten().and_then(|forgotten| forgotten.first_user_event.as_ref());
        known.or_else(|| self.iter().find(is_user_message))
    }

    /// A copy without the Events that the last counting checkpoint hides; `None` when nothing more is hidden.
    pub fn without_hidden(&self) -> Option<Self> {
        let last = self.live_backwards().find_map(|(seq, fact)| match fact {
            Canonical::HistoryCompaction(compaction) => Some((seq, compaction.hidden_to())),
            _ => None,
        });
        let (by, to) = last.and_then(|(by, to)| Some((by, to?))).filter(|(by, to)| to < by)?;
        if self.forgotten().is_some_and(|known| known.to >= to) {
            return None;
        }
        let asked_for = self.seqs_to_keep(to);
        let mut shorter = Self::default();
        let mut place = 0;
        for event in self.iter() {
            place = event.seq().unwrap_or(place);
            if place > to || event.seq().is_some_and(|seq| asked_for.contains(&seq)) {
                shorter.push(event.clone());
            }
        }
        let at = self.last_seq().unwrap_or(by);
        let (first, first_words) = (self.first_event().cloned(), self.first_user_event().cloned());
        let turns = Turns::up_to(self, to);
        shorter.forgotten =
            Some(ForgottenEvents { to, at, turns, first, first_user_event: first_words }.into());
        Some(shorter)
    }

    /// The seqs up to `to` that a Turn still needs: plan, late context, and calls without a result.
    fn seqs_to_keep(&self, to: Seq) -> BTreeSet<Seq> {
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
        // A call without a result waits for one, however old it is.
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
