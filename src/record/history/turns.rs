//! Turns in a History: where they begin, how they ended, and the one that is still open.

use super::History;
use crate::record::event::{Canonical, Event, Seq, TerminalStatus};

/// A Turn that began and has no terminal event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenTurn {
    /// The number of the Turn, from 1.
    pub number: usize,
    /// The seq of its `user_message`.
    pub seq: Option<Seq>,
}

/// A summary of the Turns of a History.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Turns {
    /// The number of Turns that began.
    pub count: usize,
    /// The last Turn, if it has not ended.
    pub open: Option<OpenTurn>,
    /// How the last ended Turn failed; `None` when it was answered.
    pub last_failure: Option<TerminalStatus>,
}

impl Turns {
    pub(super) fn from_history(history: &History) -> Self {
        Self::up_to(history, Seq::MAX)
    }

    /// The Turns up to a seq. Forgotten Events count by the sum that was kept; those of them that are still held are
    /// skipped.
    pub(super) fn up_to(history: &History, last: Seq) -> Self {
        let forgotten = history.forgotten();
        let mut turns = forgotten.map(|forgotten| forgotten.turns.clone()).unwrap_or_default();
        let mut place = 0;
        for event in history.iter() {
            place = event.seq().unwrap_or(place);
            if place <= last && forgotten.is_none_or(|forgotten| place > forgotten.to) {
                turns.apply_event(event);
            }
        }
        turns
    }

    fn apply_event(&mut self, event: &Event) {
        match event.fact() {
            Some(Canonical::UserMessage(_)) => {
                self.count += 1;
                self.open = Some(OpenTurn { number: self.count, seq: event.seq() });
            }
            Some(Canonical::AssistantMessage(message)) if message.is_final() => {
                self.open = None;
                self.last_failure = None;
            }
            Some(Canonical::TurnFailed(failed)) => {
                self.open = None;
                self.last_failure = Some(failed.terminal_status.clone());
            }
            _ => {}
        }
    }
}
