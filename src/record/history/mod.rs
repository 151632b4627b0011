//! History: the fold of a Log, held in memory by its Session; never a second store.
//!
//! Events sit in shared chunks behind one shared list, so that handing out a History costs at most
//! a chunk of reference counts whatever its length. Appending never copies an Event; now and then
//! it copies the list, a reference count for every chunk.

mod closing;
mod forget;
mod rewind;
#[cfg(test)]
mod tests;
mod turns;
mod visible;

use std::sync::Arc;

pub use closing::{interrupted_turn, orphan_result, partial_message};
pub use forget::ForgottenEvents;
pub use rewind::{TurnMarker, live_turns_in};
pub use turns::{OpenTurn, Turns};
pub use visible::{VisibleFacts, link_calls};

use crate::base::id::{CallId, SessionId};
use crate::record::event::{Canonical, Plan, Seq, SharedEvent, ToolCall};

/// How many Events share one chunk.
const CHUNK: usize = 256;

/// A Session's Events in order, cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct History {
    full: Arc<Vec<Arc<[SharedEvent]>>>,
    tail: Vec<SharedEvent>,
    /// The earlier Events that are not held, and are in the Log alone.
    forgotten: Option<Arc<ForgottenEvents>>,
}

impl History {
    /// Orders Events by seq, then by position; an Event without a seq stays after the one before it.
    pub fn from_events(events: Vec<SharedEvent>) -> Self {
        let mut seq = 0;
        let mut in_order = true;
        let mut placed = Vec::with_capacity(events.len());
        for event in events {
            let own = event.seq().unwrap_or(seq);
            in_order &= own >= seq;
            seq = own;
            placed.push((own, event));
        }
        if !in_order {
            placed.sort_by_key(|(seq, _)| *seq);
        }
        let mut history = Self::default();
        for (_, event) in placed {
            history.push(event);
        }
        history
    }

    /// Appends an Event that is on disk.
    pub fn push(&mut self, event: SharedEvent) {
        self.tail.push(event);
        if self.tail.len() == CHUNK {
            Arc::make_mut(&mut self.full).push(std::mem::take(&mut self.tail).into());
        }
    }

    /// How many Events are held.
    pub fn len(&self) -> usize {
        self.full.len() * CHUNK + self.tail.len()
    }

    /// Whether nothing has happened yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All Events that are held, first to last.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &SharedEvent> + Clone {
        self.full.iter().flat_map(|chunk| chunk.iter()).chain(self.tail.iter())
    }

    /// The facts of all Events, first to last.
    pub fn facts(&self) -> impl DoubleEndedIterator<Item = &Canonical> + Clone {
        self.iter().filter_map(|event| event.fact())
    }

    /// Events from a seq on.
    pub fn since(&self, seq: Seq) -> Vec<SharedEvent> {
        let mut events: Vec<SharedEvent> = self
            .iter()
            .rev()
            .take_while(|event| event.seq().is_none_or(|own| own >= seq))
            .cloned()
            .collect();
        events.reverse();
        events
    }

    /// A copy of the History that ends at a seq; empty for `None`.
    #[must_use]
    pub fn truncated_at(&self, last: Option<Seq>) -> Self {
        let is_there = |event: &&SharedEvent| {
            event.seq().is_none_or(|own| last.is_some_and(|last| own <= last))
        };
        let forgotten = self.forgotten.clone();
        Self { forgotten, ..Self::from_events(self.iter().filter(is_there).cloned().collect()) }
    }

    /// The highest seq, if any.
    pub fn last_seq(&self) -> Option<Seq> {
        self.iter().rev().find_map(|event| event.seq())
    }

    /// Calls that have no result yet, in the order they were made.
    pub fn orphan_calls(&self) -> Vec<ToolCall> {
        let mut open: Vec<&ToolCall> = Vec::new();
        for fact in self.facts() {
            match fact {
                Canonical::ToolCall(call) => open.push(call),
                Canonical::ToolResult(result) => close_call(&mut open, &result.call_id),
                _ => {}
            }
        }
        open.into_iter().cloned().collect()
    }

    /// The Turns of this History.
    pub fn turns(&self) -> Turns {
        Turns::from_history(self)
    }

    /// The number of the Turn that an Event belongs to, from 1 and counted over the whole Log, as in every list of
    /// Turns.
    pub fn turn_number(&self, seq: Seq) -> usize {
        Turns::up_to(self, seq).count
    }

    /// The model's current plan, if it made one.
    pub fn current_plan(&self) -> Option<&Plan> {
        self.live_backwards().find_map(|(_, fact)| match fact {
            Canonical::Plan(plan) => Some(plan),
            _ => None,
        })
    }

    /// The hash of an active Skill, whose text the model still sees: not undone, and not replaced by a
    /// checkpoint.
    pub fn active_skill(&self, name: &str) -> Option<&str> {
        let mut checkpoint = 0;
        for (seq, fact) in self.live_backwards() {
            match fact {
                Canonical::HistoryCompaction(compaction) if checkpoint == 0 => {
                    checkpoint = compaction.to_seq;
                }
                Canonical::SkillActivation(skill) if skill.name == name && !skill.repeated => {
                    let is_shown = checkpoint == 0 || seq > checkpoint;
                    return is_shown.then_some(skill.content_hash.as_str());
                }
                _ => {}
            }
        }
        None
    }

    /// The id of the Session at the root of the forks; `own` when this Session is no fork.
    pub fn fork_root_id(&self, own: &SessionId) -> String {
        match self.first_fact() {
            Some(Canonical::SessionFork(fork)) if !fork.fork_root_session_id.is_empty() => {
                fork.fork_root_session_id.clone()
            }
            _ => own.to_string(),
        }
    }

    /// The id of the Session that this one was forked from, or works for.
    pub fn parent_session_id(&self) -> Option<&str> {
        let parent = match self.first_fact()? {
            Canonical::SessionFork(fork) => Some(fork.parent_session_id.as_str()),
            Canonical::SessionStarted(started) => started.parent_session_id.as_deref(),
            _ => None,
        };
        parent.filter(|parent| !parent.is_empty())
    }

    /// The late developer context that the model saw last, if any.
    pub fn latest_context(&self) -> Option<&str> {
        self.live_backwards().find_map(|(_, fact)| match fact {
            Canonical::UserMessage(message) => message.context.as_deref(),
            _ => None,
        })
    }
}

/// A result closes the oldest open call with its id; ids may be used again in a later Turn.
fn close_call(open: &mut Vec<&ToolCall>, call_id: &CallId) {
    if let Some(place) = open.iter().position(|call| call.call_id == *call_id) {
        open.remove(place);
    }
}
