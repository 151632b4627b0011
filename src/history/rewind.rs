//! Going back: which facts still count, and what can be taken back or brought back.
//!
//! A Log only grows. A `history_rewound` says that everything from a seq on no longer counts; a
//! later one that names the first brings it back, because then the first no longer counts.

use super::History;
use crate::event::{Canonical, Seq};

/// Turns that were taken back and can be brought back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undone {
    /// The seq of the `history_rewound` that took them back.
    pub marker: Seq,
    /// The seqs of their `user_message`s, the oldest first.
    pub turns: Vec<Seq>,
}

impl History {
    /// The facts that count, last to first. A rewind that counts is among them.
    pub fn live_backwards(&self) -> impl Iterator<Item = (Seq, &Canonical)> {
        self::live(self.iter().rev().map(|event| (event.seq(), event.fact())))
    }

    /// The Turns that count, by the seqs of their `user_message`s, the oldest first.
    pub fn live_turns(&self) -> Vec<Seq> {
        turns(self.live_backwards())
    }

    /// Where the Turn of a `user_message` begins: at the Skills that it made active, if there are
    /// any.
    pub fn beginning_of(&self, turn: Seq) -> Seq {
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

    /// What the last undo took back, as long as nothing was said since.
    pub fn undone(&self) -> Option<Undone> {
        let kept = self.live_turns();
        for (marker, fact) in self.live_backwards() {
            match fact {
                Canonical::UserMessage(_) => return None,
                Canonical::HistoryRewound(_) => {
                    let before = self.iter().rev().map(|event| (event.seq(), event.fact()));
                    let before = before.skip_while(|(seq, _)| seq.is_none_or(|seq| seq >= marker));
                    let mut turns = turns(self::live(before));
                    turns.retain(|turn| !kept.contains(turn));
                    // One that brought something back took nothing.
                    if !turns.is_empty() {
                        return Some(Undone { marker, turns });
                    }
                }
                _ => {}
            }
        }
        None
    }
}

type Fact<'a> = (Option<Seq>, Option<&'a Canonical>);

fn live<'a>(
    backwards: impl Iterator<Item = Fact<'a>>,
) -> impl Iterator<Item = (Seq, &'a Canonical)> {
    let (mut rewound_to, mut seq) = (Seq::MAX, Seq::MAX);
    backwards.filter_map(move |(own, fact)| {
        // An Event without a seq shares the fate of its later neighbour.
        seq = own.unwrap_or(seq);
        let fact = fact.filter(|_| seq < rewound_to || rewound_to == Seq::MAX)?;
        if let Canonical::HistoryRewound(rewound) = fact {
            rewound_to = rewound.to_seq;
        }
        Some((seq, fact))
    })
}

fn turns<'a>(backwards: impl Iterator<Item = (Seq, &'a Canonical)>) -> Vec<Seq> {
    let said = backwards.filter(|(_, fact)| matches!(fact, Canonical::UserMessage(_)));
    let mut turns: Vec<Seq> = said.map(|(seq, _)| seq).collect();
    turns.reverse();
    turns
}
