//! Turns in a History: where they begin, how they ended, and the one that is still open.

use super::History;
use crate::event::{Canonical, Seq, TerminalStatus};

/// A Turn that began and has no terminal event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenTurn {
    /// Which Turn it is, from 1.
    pub number: usize,
    /// The seq of its `user_message`.
    pub seq: Option<Seq>,
}

/// What a History says about its Turns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Turns {
    /// How many began.
    pub count: usize,
    /// The last one, if it has not ended.
    pub open: Option<OpenTurn>,
    /// How the last ended Turn failed; `None` when it was answered.
    pub last_failure: Option<TerminalStatus>,
}

impl Turns {
    pub(super) fn of(history: &History) -> Self {
        let mut turns = Self::default();
        for event in history.iter() {
            let Some(fact) = event.fact() else { continue };
            match fact {
                Canonical::UserMessage(_) => {
                    turns.count += 1;
                    turns.open = Some(OpenTurn { number: turns.count, seq: event.seq() });
                }
                Canonical::AssistantMessage(message) if message.is_final() => {
                    turns.open = None;
                    turns.last_failure = None;
                }
                Canonical::TurnFailed(failed) => {
                    turns.open = None;
                    turns.last_failure = Some(failed.terminal_status.clone());
                }
                _ => {}
            }
        }
        turns
    }
}
