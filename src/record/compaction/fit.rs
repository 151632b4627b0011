//! Fitting: a checkpoint shortened to a number of tokens, and its text for the model.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::checkpoint::{Checkpoint, shorten_text};
use crate::base::tokens::estimate_tokens;

/// The limits to try, from generous to strict.
const LIMITS: &[CheckpointLimits] = &[
    CheckpointLimits { letters: 2_000, instructions: 60, others: 40, paths: 200, notes: 8_000 },
    CheckpointLimits { letters: 1_000, instructions: 60, others: 25, paths: 120, notes: 6_000 },
    CheckpointLimits { letters: 500, instructions: 50, others: 15, paths: 80, notes: 4_000 },
    CheckpointLimits { letters: 300, instructions: 40, others: 10, paths: 50, notes: 2_000 },
    CheckpointLimits { letters: 200, instructions: 24, others: 6, paths: 30, notes: 1_000 },
    CheckpointLimits { letters: 120, instructions: 12, others: 3, paths: 12, notes: 400 },
    CheckpointLimits { letters: 80, instructions: 6, others: 1, paths: 6, notes: 200 },
    CheckpointLimits { letters: 60, instructions: 2, others: 0, paths: 2, notes: 100 },
];

/// The limits of a checkpoint: characters per text, and entries per list.
struct CheckpointLimits {
    letters: usize,
    instructions: usize,
    others: usize,
    paths: usize,
    notes: usize,
}

/// The checkpoint under the most generous limits that fit the budget, and its text; `None` when none fit.
pub fn fit_checkpoint(checkpoint: &Checkpoint, budget: u64) -> Option<(Checkpoint, String)> {
    LIMITS.iter().find_map(|measure| {
        let smaller = measure.shorten(checkpoint);
        let words = checkpoint_text(&smaller);
        (estimate_tokens(&words) <= budget).then_some((smaller, words))
    })
}

impl CheckpointLimits {
    fn shorten(&self, whole: &Checkpoint) -> Checkpoint {
        let mut left_out = whole.left_out.clone();
        let mut latest = |name: &str, list: &[String], count: usize| {
            let skipped = list.len().saturating_sub(count);
            count_left_out(&mut left_out, name, skipped);
            list[skipped..].iter().map(|text| shorten_text(text, self.letters)).collect::<Vec<_>>()
        };
        let decisions = latest("decisions", &whole.decisions, self.others);
        let commands = latest("commands", &whole.commands, self.others);
        let files_changed = latest("files_changed", &whole.files_changed, self.paths);
        let files_read = latest("files_read", &whole.files_read, self.paths / 2);
        let open_tasks = latest("open_tasks", &whole.open_tasks, self.others.max(2));
        let plan = latest("plan", &whole.plan, self.paths);
        // The first request of the user is what the Session is about.
        let skipped = whole.user_instructions.len().saturating_sub(self.instructions);
        count_left_out(&mut left_out, "user_instructions", skipped);
        let kept = whole.user_instructions.iter().enumerate();
        let kept = kept.filter(|(place, _)| *place == 0 || *place > skipped);
        let user_instructions = kept.map(|(_, text)| shorten_text(text, self.letters)).collect();
        let notes = whole.notes.clone().map(|mut notes| {
            notes.summary = shorten_text(&notes.summary, self.notes);
            for list in [&mut notes.decisions, &mut notes.open_tasks, &mut notes.open_questions] {
                list.truncate(self.others.max(2));
                for text in list {
                    *text = shorten_text(text, self.letters);
                }
            }
            notes
        });
        Checkpoint {
            user_instructions,
            decisions,
            commands,
            files_changed,
            files_read,
            open_tasks,
            plan,
            notes,
            skills: whole.skills.iter().rev().take(self.paths).rev().cloned().collect(),
            earlier: whole.earlier.as_deref().map(|text| shorten_text(text, self.notes)),
            left_out,
            ..*whole
        }
    }
}

fn count_left_out(left_out: &mut BTreeMap<String, u64>, name: &str, count: usize) {
    if count > 0 {
        *left_out.entry(name.to_owned()).or_default() += count as u64;
    }
}

/// The text of a checkpoint, as the model reads it.
pub fn checkpoint_text(checkpoint: &Checkpoint) -> String {
    let Checkpoint { turns, tool_calls, failed_calls, .. } = checkpoint;
    let mut text = format!(
        "{turns} earlier Turns ({tool_calls} tool calls, {failed_calls} of them failed) are summarised here. \
         Files are as they are on disk now: read them again rather than rely on this."
    );
    let mut list = |title: &str, items: &mut dyn Iterator<Item = String>| {
        let items: Vec<String> = items.collect();
        if !items.is_empty() {
            write!(text, "\n\n{title}:\n- {}", items.join("\n- ")).ok();
        }
    };
    if let Some(notes) = &checkpoint.notes {
        list("Summary by the model that did the work", &mut std::iter::once(notes.summary.clone()));
        list("Decisions", &mut notes.decisions.iter().cloned());
        list("Tasks that it left open", &mut notes.open_tasks.iter().cloned());
        list("Open questions", &mut notes.open_questions.iter().cloned());
    }
    list("What the user said", &mut checkpoint.user_instructions.iter().cloned());
    list("Outcomes", &mut checkpoint.decisions.iter().cloned());
    list("Files changed", &mut checkpoint.files_changed.iter().cloned());
    list("Files read", &mut checkpoint.files_read.iter().cloned());
    list("Commands run", &mut checkpoint.commands.iter().cloned());
    list("Plan", &mut checkpoint.plan.iter().cloned());
    list("Open", &mut checkpoint.open_tasks.iter().cloned());
    let skill =
        |skill: &super::checkpoint::CheckpointSkill| format!("{} ({})", skill.name, skill.path);
    list(
        "Active Skills (view one again before you follow it)",
        &mut checkpoint.skills.iter().map(skill),
    );
    list("From an earlier summary", &mut checkpoint.earlier.iter().cloned());
    let counted = |(name, count): (&String, &u64)| format!("{count} of {}", name.replace('_', " "));
    list("Left out to save space", &mut checkpoint.left_out.iter().map(counted));
    text
}
