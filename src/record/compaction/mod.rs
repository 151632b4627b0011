//! Compaction: plans how a long History is shortened for the model, without asking a model.
//!
//! A pure function from a History to the one `history_compaction` that makes its replay smaller, or the
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

pub use checkpoint::{Checkpoint, ModelNotes};
pub use transcript::{NOTES_INSTRUCTIONS, notes_schema, transcript_for_model};
pub use weigh::{
    MAX_SUBAGENT_END_BYTES, SubagentEndWeight, checkpoint as weigh_checkpoint, weigh_fact,
};

use crate::record::event::{Canonical, Extra, HistoryCompaction, Seq};
use crate::record::history::{History, VisibleFacts, link_calls};

/// Outputs and arguments that are larger than this are pruned.
const PRUNE_OVER_BYTES: u64 = 400;
/// The target size of the conversation afterwards, in percent of the window without the prompt.
const GOAL_PERCENT: u64 = 50;
/// The largest checkpoint, in percent of the window without the prompt.
const CHECKPOINT_PERCENT: u64 = 15;
/// The largest checkpoint in tokens.
const MAX_CHECKPOINT_TOKENS: u64 = 8_000;
/// The least that an automatic compaction must save, in percent of the tokens before.
const MIN_SAVED_PERCENT: u64 = 5;
/// How many Turns a manual compaction keeps when no number is given.
pub const KEPT_TURNS: usize = 2;

/// The token limits of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowBudget {
    /// The model's window, in tokens.
    pub window: u64,
    /// The tokens of instructions, tools and project context, which are not part of the conversation.
    pub fixed: u64,
}

impl WindowBudget {
    /// The tokens that are left for the conversation.
    fn conversation_tokens(self) -> u64 {
        self.window.saturating_sub(self.fixed).max(self.window / 10)
    }

    fn goal_tokens(self) -> u64 {
        self.conversation_tokens() * GOAL_PERCENT / 100
    }

    fn checkpoint_tokens(self) -> u64 {
        (self.conversation_tokens() * CHECKPOINT_PERCENT / 100).min(MAX_CHECKPOINT_TOKENS)
    }
}

/// The reason for a compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompactionTrigger {
    /// A command of the user; `keep` Turns stay.
    Manual { keep: usize },
    /// The next request would nearly fill the window.
    CriticalPressure,
    /// The Provider refused the last request as too long.
    OverflowRecovery,
}

impl CompactionTrigger {
    fn name(self) -> &'static str {
        match self {
            CompactionTrigger::Manual { .. } => "manual",
            CompactionTrigger::CriticalPressure => "critical_pressure",
            CompactionTrigger::OverflowRecovery => "overflow_recovery",
        }
    }
}

/// A compaction that has not been recorded yet.
#[derive(Debug, Clone, PartialEq)]
pub struct CompactionPlan {
    /// The fact to record.
    pub fact: HistoryCompaction,
    /// The facts from which the summary is written.
    pub checkpoint: Option<Checkpoint>,
    /// The estimated tokens of a request before and after.
    pub before: u64,
    pub after: u64,
    /// The most tokens that the checkpoint may have.
    budget: u64,
}

impl CompactionPlan {
    /// The plan with the notes that the Session's model wrote, if they fit; else the plan as it was and the reason.
    pub fn with_notes(mut self, notes: ModelNotes) -> Result<Self, Box<(Self, &'static str)>> {
        let Some(mut checkpoint) = self.checkpoint.clone() else {
            return Err(Box::new((self, "there is nothing to summarise")));
        };
        checkpoint.notes = Some(notes);
        let Some((fitted, words)) = fit::fit_checkpoint(&checkpoint, self.budget) else {
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
pub enum CompactionSkipped {
    #[error("there is no conversation yet")]
    Empty,
    #[error("it would not become smaller")]
    Small,
}

/// A fact that is replayed, with its weight in full and when pruned.
struct WeighedFact {
    seq: Seq,
    full: u64,
    pruned: u64,
    /// The weight that is certain: zero for reasoning, which is not replayed to every model.
    sure: u64,
}

/// The indexes up to which facts are replaced or pruned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CompactionCut {
    /// Facts before this index are replaced by the checkpoint; none at 0.
    checkpoint: usize,
    /// Large outputs and arguments before this index are pruned.
    prune: usize,
}

/// Plans the compaction of a History.
pub fn plan_compaction(
    history: &History,
    window_budget: WindowBudget,
    trigger: CompactionTrigger,
) -> Result<CompactionPlan, CompactionSkipped> {
    CompactionPlanner::new(history, window_budget).ok_or(CompactionSkipped::Empty)?.plan(trigger)
}

struct CompactionPlanner<'a> {
    visible: VisibleFacts<'a>,
    window_budget: WindowBudget,
    pieces: Vec<WeighedFact>,
    /// The indexes at which Turns begin.
    starts: Vec<usize>,
    /// The index of the first fact that the model has not seen yet.
    unseen: usize,
}

impl<'a> CompactionPlanner<'a> {
    fn new(history: &'a History, window_budget: WindowBudget) -> Option<Self> {
        let visible = history.visible();
        let starts = turn_starts(&visible);
        let last = *starts.last()?;
        let known = |seq: Seq| visible.checkpoint.and_then(|own| own.prune_limit(seq));
        let facts: Vec<&Canonical> = visible.facts.iter().map(|(_, fact)| *fact).collect();
        let links = link_calls(&facts);
        let mut ends = SubagentEndWeight::default();
        let piece = |(place, (seq, fact)): (usize, &(Seq, &Canonical))| {
            let is_current = place >= last;
            // A result that answers nothing is not replayed.
            if matches!(fact, Canonical::ToolResult(_)) && links[place].is_none() {
                return WeighedFact { seq: *seq, full: 0, pruned: 0, sure: 0 };
            }
            let full = ends.bounded(fact, weigh_fact(fact, known(*seq), is_current));
            let pruned = weigh_fact(fact, Some(PRUNE_OVER_BYTES), is_current).min(full);
            let sure = if matches!(fact, Canonical::Reasoning(_)) { 0 } else { full };
            WeighedFact { seq: *seq, full, pruned, sure }
        };
        let pieces = visible.facts.iter().enumerate().map(piece).collect();
        let is_answer = |(_, fact): &(Seq, &Canonical)| matches!(fact, Canonical::ProviderUsage(_));
        let unseen = visible.facts.iter().rposition(is_answer).map_or(0, |place| place + 1);
        Some(Self { visible, window_budget, pieces, starts, unseen: unseen.max(last) })
    }

    fn checkpoint_weight(&self) -> u64 {
        self.visible.checkpoint.map_or(0, weigh_checkpoint)
    }

    fn tokens_before(&self) -> u64 {
        self.checkpoint_weight() + self.pieces.iter().map(|piece| piece.full).sum::<u64>()
    }

    /// The tokens of the conversation after a cut, with a checkpoint of the largest size.
    fn tokens_after(&self, cut: CompactionCut) -> u64 {
        let checkpoint =
            if cut.checkpoint > 0 { self.checkpoint_budget(cut) } else { self.checkpoint_weight() };
        let pieces = self.pieces.iter().enumerate().skip(cut.checkpoint);
        let weight = |(place, piece): (usize, &WeighedFact)| {
            if place < cut.prune { piece.pruned } else { piece.full }
        };
        checkpoint + pieces.map(weight).sum::<u64>()
    }

    /// The most tokens of a checkpoint: those of the last one and half of those of the facts that it replaces. So a
    /// checkpoint always saves tokens, and earlier content is not dropped for a short Turn.
    fn checkpoint_budget(&self, cut: CompactionCut) -> u64 {
        let replaced: u64 = self.pieces[..cut.checkpoint].iter().map(|piece| piece.sure).sum();
        self.window_budget.checkpoint_tokens().min(self.checkpoint_weight() + replaced / 2)
    }

    fn plan(self, trigger: CompactionTrigger) -> Result<CompactionPlan, CompactionSkipped> {
        let before = self.tokens_before();
        let goal = match trigger {
            // The request was too long, whatever the window is configured to be.
            CompactionTrigger::OverflowRecovery => self.window_budget.goal_tokens().min(before / 2),
            CompactionTrigger::Manual { .. } | CompactionTrigger::CriticalPressure => {
                self.window_budget.goal_tokens()
            }
        };
        let cut = match trigger {
            CompactionTrigger::Manual { keep } => self.cut_keeping_turns(keep, goal),
            CompactionTrigger::CriticalPressure | CompactionTrigger::OverflowRecovery => {
                self.cut_reaching_goal(goal)
            }
        };
        let plan = self.apply_cut(cut, trigger).or_else(|| {
            // Where a checkpoint saves nothing, pruning alone may.
            self.apply_cut(CompactionCut { checkpoint: 0, ..cut }, trigger)
        });
        let plan = plan.ok_or(CompactionSkipped::Small)?;
        let saved = plan.before - plan.after;
        let is_worthwhile = match trigger {
            CompactionTrigger::Manual { .. } => saved > 0,
            _ => saved * 100 >= before * MIN_SAVED_PERCENT,
        };
        if is_worthwhile { Ok(plan) } else { Err(CompactionSkipped::Small) }
    }

    fn last_turn(&self) -> usize {
        self.starts.last().copied().unwrap_or_default()
    }

    /// The cut that keeps `keep` Turns; in the last one, outputs are pruned where it is too large.
    fn cut_keeping_turns(&self, keep: usize, goal: u64) -> CompactionCut {
        let checkpoint = self.starts.len().checked_sub(keep.max(1)).map_or(0, |at| self.starts[at]);
        self.prune_last_turn(CompactionCut { checkpoint, prune: self.last_turn() }, goal)
    }

    /// The smallest cut that reaches the goal: outputs first, then Turns, then outputs of the last Turn.
    fn cut_reaching_goal(&self, goal: u64) -> CompactionCut {
        let protected = self.starts.len().checked_sub(2).map_or(0, |at| self.starts[at]);
        let only_prune = CompactionCut { checkpoint: 0, prune: protected };
        if self.tokens_after(only_prune) <= goal {
            return only_prune;
        }
        let prune = self.last_turn();
        let cuts =
            self.starts.iter().skip(1).map(|start| CompactionCut { checkpoint: *start, prune });
        let cuts: Vec<CompactionCut> = cuts.collect();
        // The rest only shrinks from cut to cut, so a binary search finds the first one that is enough.
        let first = cuts.partition_point(|cut| self.tokens_after(*cut) > goal);
        match cuts.get(first) {
            Some(cut) => *cut,
            None => self.prune_last_turn(CompactionCut { checkpoint: prune, prune }, goal),
        }
    }

    /// Prunes in the last Turn as far as needed. Facts that the model has not seen yet are pruned only when the
    /// request would not fit otherwise.
    fn prune_last_turn(&self, cut: CompactionCut, goal: u64) -> CompactionCut {
        let mut weight = self.tokens_after(cut);
        let mut prune = cut.prune;
        for (place, piece) in self.pieces.iter().enumerate().skip(cut.prune) {
            let is_unseen = place >= self.unseen;
            if weight
                <= if is_unseen {
                    self.window_budget.conversation_tokens() * 85 / 100
                } else {
                    goal
                }
            {
                break;
            }
            weight -= piece.full - piece.pruned;
            prune = place + 1;
        }
        CompactionCut { prune, ..cut }
    }

    fn apply_cut(&self, cut: CompactionCut, trigger: CompactionTrigger) -> Option<CompactionPlan> {
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
        let budget = self.checkpoint_budget(cut);
        if cut.checkpoint > 0 {
            let gone = &self.visible.facts[..cut.checkpoint];
            let mut checkpoint = known.map_or_else(Checkpoint::default, |known| {
                Checkpoint::from_earlier(&known.checkpoint, &known.summary)
            });
            checkpoint.add_facts(gone.iter().map(|(_, fact)| *fact));
            let context = gone.iter().rev().find_map(|(_, fact)| match fact {
                Canonical::UserMessage(message) => message.context.clone(),
                _ => None,
            });
            fact.context = context.or(fact.context);
            let spare = fact.context.as_deref().map_or(0, crate::base::tokens::estimate_tokens);
            let (fitted, words) = fit::fit_checkpoint(&checkpoint, budget.saturating_sub(spare))?;
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
        fact.prune_over_bytes = fact.prune_to_seq.map(|_| PRUNE_OVER_BYTES);
        let stays = self.pieces.iter().skip(cut.checkpoint);
        let is_pruned = |piece: &&WeighedFact| Some(piece.seq) <= fact.prune_to_seq;
        let weight =
            |piece: &WeighedFact| if is_pruned(&piece) { piece.pruned } else { piece.full };
        let checkpoint = weigh_checkpoint(&fact);
        let tokens = checkpoint + stays.clone().map(weight).sum::<u64>();
        let sure = |piece: &WeighedFact| weight(piece).min(piece.sure);
        let surely_before =
            self.checkpoint_weight() + self.pieces.iter().map(|piece| piece.sure).sum::<u64>();
        let surely_after = checkpoint + stays.clone().map(sure).sum::<u64>();
        let pruned = stays.filter(is_pruned).filter(|piece| piece.pruned < piece.full).count();
        let before = self.window_budget.fixed + self.tokens_before();
        let after = self.window_budget.fixed + tokens;
        fact.tokens_before = Some(before);
        fact.tokens_after = Some(after);
        fact.window_tokens = Some(self.window_budget.window).filter(|window| *window > 0);
        let turns = self.starts.iter().filter(|start| **start < cut.checkpoint).count();
        fact.turns_compacted = Some(turns as u64);
        fact.turns_kept = Some((self.starts.len() - turns) as u64);
        fact.outputs_pruned = Some(pruned as u64);
        let is_less = after < before && surely_after < surely_before;
        is_less.then_some(CompactionPlan { checkpoint: summed_up, before, after, budget, fact })
    }
}

/// The indexes at which Turns begin: at the user message, or at the Skills that it activated.
fn turn_starts(visible: &VisibleFacts<'_>) -> Vec<usize> {
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
