//! The completion popup: a list of candidates for the word at the cursor, matched fuzzily; pure.

use nucleo_matcher::pattern::{AtomKind, CaseMatching, Normalization, Pattern};
use nucleo_matcher::{Config, Matcher, Utf32Str};

/// How many candidates are kept.
const MOST_CANDIDATES: usize = 50;

/// Something that can be inserted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// What is inserted in place of the word, without the blank behind it.
    pub insert: String,
    /// What it does, for a person.
    pub detail: String,
    /// Whether completion goes on behind it, as inside a folder.
    pub is_open: bool,
}

/// The shown list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Popup {
    pub candidates: Vec<Candidate>,
    pub selected: usize,
    /// Where the word begins in the editor's text.
    pub start: usize,
}

impl Popup {
    pub fn move_selection(&mut self, is_up: bool) {
        let count = self.candidates.len().max(1);
        self.selected =
            if is_up { (self.selected + count - 1) % count } else { (self.selected + 1) % count };
    }

    pub fn chosen(&self) -> Option<&Candidate> {
        self.candidates.get(self.selected)
    }
}

/// The kind of word at the cursor that can be completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletedWord<'t> {
    /// `/name` at the start of the text.
    Command { word: &'t str },
    /// What follows a command, in one word.
    Argument { command: &'t str, word: &'t str, start: usize },
    /// `@path`.
    File { word: &'t str, start: usize },
    /// `$skill`.
    Skill { word: &'t str, start: usize },
}

/// The word before the cursor, if it can be completed.
pub fn completed_word(before: &str) -> Option<CompletedWord<'_>> {
    let start = before
        .rfind(char::is_whitespace)
        .map_or(0, |place| place + before[place..].chars().next().map_or(1, char::len_utf8));
    let word = &before[start..];
    if let Some(path) = word.strip_prefix('@') {
        return Some(CompletedWord::File { word: path, start });
    }
    if let Some(name) = word.strip_prefix('$') {
        return Some(CompletedWord::Skill { word: name, start });
    }
    let rest = before.strip_prefix('/')?;
    match rest.split_once(char::is_whitespace) {
        None => Some(CompletedWord::Command { word: rest }),
        Some((command, _)) if !before.contains('\n') => {
            Some(CompletedWord::Argument { command, word, start })
        }
        Some(_) => None,
    }
}

/// The best candidates for a word; all of them, in their order, for an empty one.
pub fn best_matches<'n>(
    word: &str,
    names: impl Iterator<Item = &'n str>,
    matches_paths: bool,
) -> Vec<usize> {
    if word.is_empty() {
        return (0..names.take(MOST_CANDIDATES).count()).collect();
    }
    let config = if matches_paths { Config::DEFAULT.match_paths() } else { Config::DEFAULT };
    let mut matcher = Matcher::new(config);
    let pattern = Pattern::new(word, CaseMatching::Smart, Normalization::Smart, AtomKind::Fuzzy);
    let mut buffer = Vec::new();
    let mut scored: Vec<(u32, usize, usize)> = names
        .enumerate()
        .filter_map(|(place, name)| {
            let score = pattern.score(Utf32Str::new(name, &mut buffer), &mut matcher)?;
            Some((score, name.len(), place))
        })
        .collect();
    // The best score first, then the shortest name, then the first.
    scored.sort_by_key(|(score, length, place)| (std::cmp::Reverse(*score), *length, *place));
    scored.into_iter().take(MOST_CANDIDATES).map(|(_, _, place)| place).collect()
}
