//! The sources of completion: commands, prompts, Skills, files, and the arguments of commands; pure.

use super::popup::{Candidate, CompletedWord, Popup, best_matches, completed_word};
use crate::agent::conversation::SlashName;
use crate::frontends::commands::{COMMANDS, MODES};
use crate::frontends::render::{name_on_one_line, one_line};

/// How much of a description is shown, in cells.
const DETAIL_WIDTH: usize = 100;

/// What can be completed.
#[derive(Debug, Default)]
pub struct CompletionSources {
    pub slash_names: Vec<SlashName>,
    /// Paths in the Workspace; folders end with a slash. `None` until they are listed.
    pub files: Option<Vec<String>>,
    pub models: Vec<String>,
    pub efforts: Vec<String>,
}

impl CompletionSources {
    /// Whether a prompt or Skill has this name.
    pub fn has_slash_name(&self, name: &str) -> bool {
        self.slash_names.iter().any(|named| named.name == name)
    }

    /// Whether files are wanted that are not listed yet.
    pub fn wants_files(&self, before: &str) -> bool {
        self.files.is_none() && matches!(completed_word(before), Some(CompletedWord::File { .. }))
    }

    /// The popup for the text before the cursor.
    pub fn popup(&self, before: &str) -> Option<Popup> {
        let (start, candidates) = match completed_word(before)? {
            CompletedWord::Command { word } => (0, self.commands(word)),
            CompletedWord::Argument { command, word, start } => {
                (start, self.arguments(command, word))
            }
            CompletedWord::File { word, start } => (start, self.paths(word)),
            CompletedWord::Skill { word, start } => (start, self.skills(word)),
        };
        let is_typed = candidates.len() == 1 && candidates[0].insert == before[start..];
        (!candidates.is_empty() && !is_typed).then_some(Popup { candidates, selected: 0, start })
    }

    fn commands(&self, word: &str) -> Vec<Candidate> {
        let own = COMMANDS.iter().map(|command| (command.name, command.description, command.hint));
        let others = self.slash_names.iter();
        let others = others
            .filter(|named| !COMMANDS.iter().any(|command| command.name == named.name))
            .map(|named| (named.name.as_str(), named.description.as_str(), named.hint.as_str()));
        let all: Vec<(&str, &str, &str)> = own.chain(others).collect();
        let best = best_matches(word, all.iter().map(|(name, ..)| *name), false);
        let candidate = |place: usize| {
            let (name, description, hint) = all[place];
            let hint =
                if hint.is_empty() { String::new() } else { format!(" [{}]", one_line(hint, 40)) };
            let detail = format!("{}{hint}", one_line(description, DETAIL_WIDTH));
            Candidate { insert: format!("/{name}"), detail, is_open: false }
        };
        best.into_iter().map(candidate).collect()
    }

    fn arguments(&self, command: &str, word: &str) -> Vec<Candidate> {
        let choices: Vec<(String, &str)> = match command {
            "model" => self.models.iter().map(|name| (name.clone(), "")).collect(),
            "effort" => self.efforts.iter().map(|name| (name.clone(), "")).collect(),
            "mode" => {
                MODES.iter().map(|mode| (mode.id.replace('_', "-"), mode.description)).collect()
            }
            "undo" | "redo" => vec![("--force".to_owned(), "also files that were changed outside")],
            _ => Vec::new(),
        };
        let best = best_matches(word, choices.iter().map(|(name, _)| name.as_str()), false);
        let candidate = |place: usize| {
            let (name, detail) = &choices[place];
            Candidate { insert: name.clone(), detail: (*detail).to_owned(), is_open: false }
        };
        best.into_iter().map(candidate).collect()
    }

    fn paths(&self, word: &str) -> Vec<Candidate> {
        let files = self.files.as_deref().unwrap_or_default();
        let best = best_matches(word, files.iter().map(String::as_str), true);
        let candidate = |place: usize| {
            let is_open = files[place].ends_with('/');
            Candidate { insert: format!("@{}", files[place]), detail: String::new(), is_open }
        };
        best.into_iter().map(candidate).collect()
    }

    fn skills(&self, word: &str) -> Vec<Candidate> {
        let best =
            best_matches(word, self.slash_names.iter().map(|skill| skill.name.as_str()), false);
        let candidate = |place: usize| {
            let skill = &self.slash_names[place];
            let detail = name_on_one_line(&skill.description, DETAIL_WIDTH);
            Candidate { insert: format!("${}", skill.name), detail, is_open: false }
        };
        best.into_iter().map(candidate).collect()
    }
}
