//! Compaction: plans how a long History is shortened for the model, without asking a model.
//!
//! Pure: from a History to the one `history_compaction` that makes its replay smaller, or the
//! reason why there is none. Old outputs are pruned first; then whole Turns are replaced by
//! a checkpoint, the oldest first; and only when a single Turn is too large, its own older outputs
//! are pruned as well. The last user message always stays.

mod checkpoint;
mod fit;
pub mod prune;
#[cfg(test)]
mod tests;
mod transcript;
mod weigh;

use serde_json::{Value, json};

pub use checkpoint::{Checkpoint, Notes};
pub use transcript::{INSTRUCTIONS, schema, transcript};
pub use weigh::{ENDS_TOLD, Ends, checkpoint as weigh_checkpoint, weigh};

use crate::record::event::{Canonical, Extra, HistoryCompaction, Seq};
use crate::record::history::{History, Visible, link};

/// Outputs and arguments that are larger than this are pruned.
const PRUNE_OVER: u64 = 400;
/// The target size of the conversation afterwards, in percent of the window beside the prompt.
const GOAL: u64 = 50;
/// The largest checkpoint, in percent of the window beside the prompt.
const CHECKPOINT_SHARE: u64 = 15;
/// The largest checkpoint in tokens.
const CHECKPOINT_MOST: u64 = 8_000;
/// The least that an automatic compaction must save, in percent of the tokens before.
const WORTHWHILE: u64 = 5;
/// How many Turns a manual compaction keeps when no number is given.
pub const KEPT_TURNS: usize = 2;

/// The token limits of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// The model's window, in tokens.
    pub window: u64,
    /// The tokens of instructions, tools and project context, beside the conversation.
    pub fixed: u64,
}

impl Room {
    /// The tokens that are left for the conversation.
    fn free(self) -> u64 {
        self.window.saturating_sub(self.fixed).max(self.window / 10)
    }

    fn goal(self) -> u64 {
        self.free() * GOAL / 100
    }

    fn checkpoint(self) -> u64 {
        (self.free() * CHECKPOINT_SHARE / 100).min(CHECKPOINT_MOST)
    }
}

/// The reason for a compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// A command of the user; `keep` Turns stay.
    Manual { keep: usize },
    /// The next request would nearly fill the window.
    CriticalPressure,
    /// The Provider refused the last one as too long.
    OverflowRecovery,
}

impl Trigger {
    fn name(self) -> &'static str {
        match self {
            Trigger::Manual { .. } => "manual",
            Trigger::CriticalPressure => "critical_pressure",
            Trigger::OverflowRecovery => "overflow_recovery",
        }
    }
}

/// A compaction that has not been recorded yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The fact to record.
    pub fact: HistoryCompaction,
    /// The facts behind its summary.
    pub checkpoint: Option<Checkpoint>,
    /// The estimated tokens of a request before and after.
    pub before: u64,
    pub after: u64,
    /// The most tokens that the checkpoint may have.
    budget: u64,
}

impl Plan {
    /// The plan with the notes that the Session's model wrote, if they fit; else the plan as it was and the reason.
    pub fn with_notes(mut self, notes: Notes) -> Result<Self, Box<(Self, &'static str)>> {
        let Some(mut checkpoint) = self.checkpoint.clone() else {
            return Err(Box::new((self, "there is nothing to summarise")));
        };
        checkpoint.notes = Some(notes);
        let Some((fitted, words)) = fit::fit(&checkpoint, self.budget) else {
            return Err(Box::new((self, "its summary does not fit")));
        };
        let old = weigh_checkpoint(&self.fact);
        self.fact.summary = words.into();
        self.fact.checkpoint = json!(fitted);
        self.after = self.after - old + weigh_checkpoint(&self.fact);
        self.fact.tokens_after = Some(self.after);
        "model_assisted".clone_into(&mut self.fact.strategy);
        self.checkpoint = Some(fitted);
        Ok(self)
    }

    /// The plan with the reason why the model did not write notes.
    #[must_use]
    pub fn without_model(mut self, reason: &str) -> Self {
        self.fact.fallback_reason = Some(reason.to_owned());
        self
    }
}

/// Why a History is not compacted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Nothing {
    #[error("there is no conversation yet")]
    Empty,
    #[error("it would not become smaller")]
    Small,
}

/// A fact that is replayed, with its weight in full and when pruned.
struct Piece {
    seq: Seq,
    full: u64,
    pruned: u64,
    /// Its certain weight: zero for reasoning, which not every model gets replayed.
    sure: u64,
}

/// The indexes up to which facts are replaced or pruned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    /// Facts before this index are replaced by the checkpoint; none at 0.
    checkpoint: usize,
    /// Large outputs and arguments before this index are pruned.
    prune: usize,
}

/// Plans the compaction of a History.
pub fn plan(history: &History, room: Room, trigger: Trigger) -> Result<Plan, Nothing> {
    Draft::of(history, room).ok_or(Nothing::Empty)?.plan(trigger)
}

struct Draft<'a> {
    visible: Visible<'a>,
    room: Room,
    pieces: Vec<Piece>,
    /// The indexes at which Turns begin.
    starts: Vec<usize>,
    /// The index of the first fact that the model has not seen yet.
    unseen: usize,
}

impl<'a> Draft<'a> {
    fn of(history: &'a History, room: Room) -> Option<Self> {
        let visible = history.visible();
        let starts = starts(&visible);
        let last = *starts.last()?;
        let known = |seq: Seq| visible.checkpoint.and_then(|own| own.prunes(seq));
        let facts: Vec<&Canonical> = visible.facts.iter().map(|(_, fact)| *fact).collect();
        let links = link(&facts);
        let mut ends = Ends::default();
        let piece = |(place, (seq, fact)): (usize, &(Seq, &Canonical))| {
            let is_current = place >= last;
            // A result that answers nothing is not replayed.
            if matches!(fact, Canonical::ToolResult(_)) && links[place].is_none() {
                return Piece { seq: *seq, full: 0, pruned: 0, sure: 0 };
            }
            let full = ends.bounded(fact, weigh(fact, known(*seq), is_current));
            let pruned = weigh(fact, Some(PRUNE_OVER), is_current).min(full);
            let sure = if matches!(fact, Canonical::Reasoning(_)) { 0 } else { full };
            Piece { seq: *seq, full, pruned, sure }
        };
        let pieces = visible.facts.iter().enumerate().map(piece).collect();
        let is_answer = |(_, fact): &(Seq, &Canonical)| matches!(fact, Canonical::ProviderUsage(_));
        let unseen = visible.facts.iter().rposition(is_answer).map_or(0, |place| place + 1);
        Some(Self { visible, room, pieces, starts, unseen: unseen.max(last) })
    }

    fn known(&self) -> u64 {
        self.visible.checkpoint.map_or(0, weigh_checkpoint)
    }

    fn before(&self) -> u64 {
        self.known() + self.pieces.iter().map(|piece| piece.full).sum::<u64>()
    }

    /// The tokens of the conversation after a cut, with a checkpoint of the largest size.
    fn after(&self, cut: Cut) -> u64 {
        let checkpoint = if cut.checkpoint > 0 { self.budget(cut) } else { self.known() };
        let pieces = self.pieces.iter().enumerate().skip(cut.checkpoint);
        let weight = |(place, piece): (usize, &Piece)| {
            if place < cut.prune { piece.pruned } else { piece.full }
        };
        checkpoint + pieces.map(weight).sum::<u64>()
    }

    /// The most tokens of a checkpoint: those of the last one and half of the facts that it replaces. So it always
    /// saves tokens, and earlier content is not dropped for a short Turn.
    fn budget(&self, cut: Cut) -> u64 {
        let replaced: u64 = self.pieces[..cut.checkpoint].iter().map(|piece| piece.sure).sum();
        self.room.checkpoint().min(self.known() + replaced / 2)
    }

    fn plan(self, trigger: Trigger) -> Result<Plan, Nothing> {
        let before = self.before();
        let goal = match trigger {
            // The request was too long, whatever the window is configured to be.
            Trigger::OverflowRecovery => self.room.goal().min(before / 2),
            Trigger::Manual { .. } | Trigger::CriticalPressure => self.room.goal(),
        };
        let cut = match trigger {
            Trigger::Manual { keep } => self.keeping(keep, goal),
            Trigger::CriticalPressure | Trigger::OverflowRecovery => self.reaching(goal),
        };
        let plan = self.carried_out(cut, trigger).or_else(|| {
            // Where a checkpoint saves nothing, pruning alone may.
            self.carried_out(Cut { checkpoint: 0, ..cut }, trigger)
        });
        let plan = plan.ok_or(Nothing::Small)?;
        let saved = plan.before - plan.after;
        let is_worthwhile = match trigger {
            Trigger::Manual { .. } => saved > 0,
            _ => saved * 100 >= before * WORTHWHILE,
        };
        if is_worthwhile { Ok(plan) } else { Err(Nothing::Small) }
    }

    fn last_turn(&self) -> usize {
        self.starts.last().copied().unwrap_or_default()
    }

    /// The cut that keeps `keep` Turns; in the last one, outputs are pruned where it is too large.
    fn keeping(&self, keep: usize, goal: u64) -> Cut {
        let checkpoint = self.starts.len().checked_sub(keep.max(1)).map_or(0, |at| self.starts[at]);
        self.within_last(Cut { checkpoint, prune: self.last_turn() }, goal)
    }

    /// The smallest cut that reaches the goal: outputs first, then Turns, then outputs of the last Turn.
    fn reaching(&self, goal: u64) -> Cut {
        let protected = self.starts.len().checked_sub(2).map_or(0, |at| self.starts[at]);
        let only_prune = Cut { checkpoint: 0, prune: protected };
        if self.after(only_prune) <= goal {
            return only_prune;
        }
        let prune = self.last_turn();
        let cuts = self.starts.iter().skip(1).map(|start| Cut { checkpoint: *start, prune });
        let cuts: Vec<Cut> = cuts.collect();
        // The rest only shrinks from cut to cut, so a binary search finds the first one that is enough.
        let first = cuts.partition_point(|cut| self.after(*cut) > goal);
        match cuts.get(first) {
            Some(cut) => *cut,
            None => self.within_last(Cut { checkpoint: prune, prune }, goal),
        }
    }

    /// Prunes in the last Turn as far as needed. Facts that the model has not seen yet are pruned only when the
    /// request would not fit otherwise.
    fn within_last(&self, cut: Cut, goal: u64) -> Cut {
        let mut weight = self.after(cut);
        let mut prune = cut.prune;
        for (place, piece) in self.pieces.iter().enumerate().skip(cut.prune) {
            let is_unseen = place >= self.unseen;
            if weight <= if is_unseen { self.room.free() * 85 / 100 } else { goal } {
                break;
            }
            weight -= piece.full - piece.pruned;
            prune = place + 1;
        }
        Cut { prune, ..cut }
    }

    fn carried_out(&self, cut: Cut, trigger: Trigger) -> Option<Plan> {
        let known = self.visible.checkpoint;
        let mut fact = match known {
            Some(known) => HistoryCompaction { extra: Extra::new(), ..known.clone() },
            None => HistoryCompaction::default(),
        };
        "deterministic".clone_into(&mut fact.strategy);
        trigger.name().clone_into(&mut fact.trigger);
        fact.fallback_reason = None;
        fact.to_seq = known.and_then(HistoryCompaction::hidden_to).unwrap_or_default();
        let mut summed_up = None;
        let budget = self.budget(cut);
        if cut.checkpoint > 0 {
            let gone = &self.visible.facts[..cut.checkpoint];
            let mut checkpoint = known.map_or_else(Checkpoint::default, |known| {
                Checkpoint::carried(&known.checkpoint, &known.summary)
            });
            checkpoint.gather(gone.iter().map(|(_, fact)| *fact));
            let context = gone.iter().rev().find_map(|(_, fact)| match fact {
                Canonical::UserMessage(message) => message.context.clone(),
                _ => None,
            });
            fact.context = context.or(fact.context);
            let spare = fact.context.as_deref().map_or(0, crate::base::tokens::estimate);
            let (fitted, words) = fit::fit(&checkpoint, budget.saturating_sub(spare))?;
            let has_range = known.is_some_and(|known| known.hidden_to().is_some());
            if !has_range {
                fact.from_seq = self.starts.first().map_or(0, |first| self.pieces[*first].seq);
            }
            fact.to_seq = self.pieces[cut.checkpoint].seq.saturating_sub(1);
            fact.summary = Value::String(words);
            fact.checkpoint = json!(fitted);
            summed_up = Some(fitted);
        }
        let last_pruned = cut.prune.checked_sub(1).map(|place| self.pieces[place].seq);
        fact.prune_to_seq = fact.prune_to_seq.max(last_pruned);
        fact.prune_over_bytes = fact.prune_to_seq.map(|_| PRUNE_OVER);
        let stays = self.pieces.iter().skip(cut.checkpoint);
        let is_pruned = |piece: &&Piece| Some(piece.seq) <= fact.prune_to_seq;
        let weight = |piece: &Piece| if is_pruned(&piece) { piece.pruned } else { piece.full };
        let checkpoint = weigh_checkpoint(&fact);
        let tokens = checkpoint + stays.clone().map(weight).sum::<u64>();
        let sure = |piece: &Piece| weight(piece).min(piece.sure);
        let surely_before = self.known() + self.pieces.iter().map(|piece| piece.sure).sum::<u64>();
        let surely_after = checkpoint + stays.clone().map(sure).sum::<u64>();
        let pruned = stays.filter(is_pruned).filter(|piece| piece.pruned < piece.full).count();
        let before = self.room.fixed + self.before();
        let after = self.room.fixed + tokens;
        fact.tokens_before = Some(before);
        fact.tokens_after = Some(after);
        fact.window_tokens = Some(self.room.window).filter(|window| *window > 0);
        let turns = self.starts.iter().filter(|start| **start < cut.checkpoint).count();
        fact.turns_compacted = Some(turns as u64);
        fact.turns_kept = Some((self.starts.len() - turns) as u64);
        fact.outputs_pruned = Some(pruned as u64);
        let is_less = after < before && surely_after < surely_before;
        is_less.then_some(Plan { checkpoint: summed_up, before, after, budget, fact })
    }
}

/// The indexes at which Turns begin: at the user message, or at the Skills that it activated.
fn starts(visible: &Visible<'_>) -> Vec<usize> {
    let facts = &visible.facts;
    let mut starts = Vec::new();
    let mut activated = None;
    for (place, (_, fact)) in facts.iter().enumerate() {
        match fact {
            Canonical::SkillActivation(_) => activated = activated.or(Some(place)),
            Canonical::UserMessage(_) => starts.push(activated.take().unwrap_or(place)),
            _ => activated = None,
        }
    }
    starts
}
