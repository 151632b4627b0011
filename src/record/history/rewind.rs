//! Rewinds: which facts still count, and which Turns can be undone or redone.
//!
//! A Log only grows. A `history_rewound` states that everything from a seq on no longer counts; a
//! later one that goes back to before it undoes it, because then the earlier one no longer counts.

use super::History;
use crate::record::event::{Canonical, Seq};

/// Turns that were undone and can be redone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UndoneTurns {
    /// The seq of the `history_rewound` that undid the Turns.
    pub marker: Seq,
    /// The seqs of their `user_message`s, the oldest first.
    pub turns: Vec<Seq>,
}

impl History {
    /// The facts that count, last to first. A rewind that counts is among them.
    pub fn live_backwards(&self) -> impl Iterator<Item = (Seq, &Canonical)> {
        filter_live(self.iter().rev().map(|event| (event.seq(), event.fact())), |fact| {
            rewound_to(fact)
        })
    }

    /// The Turns that count, by the seqs of their `user_message`s, the oldest first.
    pub fn live_turns(&self) -> Vec<Seq> {
        user_message_seqs(self.live_backwards())
    }

    /// The first seq of the Turn of a `user_message`: that of the Skills that the message activated, if there are
    /// any.
    pub fn turn_start(&self, turn: Seq) -> Seq {
        let mut beginning = turn;
        for (seq, fact) in self.live_backwards().skip_while(|(seq, _)| *seq >= turn) {
            match fact {
                Canonical::SkillActivation(skill) if skill.activated_by != "model" => {
                    beginning = seq;
                }
                _ => break,
            }
        }
        beginning
    }

    /// The Turns of the last undo, unless the user has sent a message since.
    pub fn last_undone(&self) -> Option<UndoneTurns> {
        let kept = self.live_turns();
        for (marker, fact) in self.live_backwards() {
            match fact {
                Canonical::UserMessage(_) => return None,
                Canonical::HistoryRewound(_) => {
                    let before = self.iter().rev().map(|event| (event.seq(), event.fact()));
                    let before = before.skip_while(|(seq, _)| seq.is_none_or(|seq| seq >= marker));
                    let mut turns = user_message_seqs(filter_live(before, |fact| rewound_to(fact)));
                    turns.retain(|turn| !kept.contains(turn));
                    // A redo undid nothing.
                    if !turns.is_empty() {
                        return Some(UndoneTurns { marker, turns });
                    }
                }
                _ => {}
            }
        }
        None
    }
}

/// The effect of an Event on which Turns count, for callers that do not hold the Events themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnMarker {
    UserMessage,
    /// Earlier Events from this seq on no longer count.
    Rewound(Seq),
    Other,
}

impl TurnMarker {
    pub fn from_fact(fact: &Canonical) -> Self {
        match fact {
            Canonical::UserMessage(_) => Self::UserMessage,
            fact => rewound_to(fact).map_or(Self::Other, Self::Rewound),
        }
    }
}

/// The Turns that count among Events in order, by the seqs of their `user_message`s.
pub fn live_turns_in(events: &[(Option<Seq>, TurnMarker)]) -> Vec<Seq> {
    let backwards = events.iter().rev().map(|(seq, mark)| (*seq, Some(*mark)));
    let counting = filter_live(backwards, |mark| match mark {
        TurnMarker::Rewound(seq) => Some(*seq),
        TurnMarker::UserMessage | TurnMarker::Other => None,
    });
    let user_messages = counting.filter(|(_, mark)| *mark == TurnMarker::UserMessage);
    let mut turns: Vec<Seq> = user_messages.map(|(seq, _)| seq).collect();
    turns.reverse();
    turns
}

fn rewound_to(fact: &Canonical) -> Option<Seq> {
    match fact {
        Canonical::HistoryRewound(rewound) => Some(rewound.to_seq),
        _ => None,
    }
}

/// The items that count, last to first; `rewinds_to` gives the seq from which on older items no longer count.
fn filter_live<T>(
    backwards: impl Iterator<Item = (Option<Seq>, Option<T>)>,
    rewinds_to: impl Fn(&T) -> Option<Seq>,
) -> impl Iterator<Item = (Seq, T)> {
    let mut limit = Seq::MAX;
    let mut seq = Seq::MAX;
    backwards.filter_map(move |(own, fact)| {
        // An Event without a seq counts when the one after it does.
        seq = own.unwrap_or(seq);
        let fact = fact.filter(|_| seq < limit || limit == Seq::MAX)?;
        if let Some(to) = rewinds_to(&fact) {
            limit = to;
        }
        Some((seq, fact))
    })
}

fn user_message_seqs<'a>(backwards: impl Iterator<Item = (Seq, &'a Canonical)>) -> Vec<Seq> {
    let user_messages = backwards.filter(|(_, fact)| matches!(fact, Canonical::UserMessage(_)));
    let mut turns: Vec<Seq> = user_messages.map(|(seq, _)| seq).collect();
    turns.reverse();
    turns
}
