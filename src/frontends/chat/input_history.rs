//! The history of prompts: going back and forth through them, and searching them.

/// Prompts of this project, the oldest first.
#[derive(Debug, Clone, Default)]
pub struct InputHistory {
    entries: Vec<String>,
    /// The shown entry, and the draft that it replaced.
    shown: Option<(usize, String)>,
}

impl InputHistory {
    /// Adds entries that are older than all others.
    pub fn prepend(&mut self, older: Vec<String>) {
        let added = older.len();
        let newer = std::mem::replace(&mut self.entries, older);
        self.entries.extend(newer);
        if let Some((place, _)) = &mut self.shown {
            *place += added;
        }
    }

    /// Adds a prompt that was sent.
    pub fn push(&mut self, text: &str) {
        self.shown = None;
        if !text.trim().is_empty() && self.entries.last().is_none_or(|last| last != text) {
            self.entries.push(text.to_owned());
        }
    }

    /// The entry before the shown one; `draft` comes back behind the last one.
    pub fn earlier(&mut self, draft: &str) -> Option<&str> {
        let place = match &self.shown {
            Some((place, _)) => place.checked_sub(1)?,
            None => self.entries.len().checked_sub(1)?,
        };
        let draft = self.shown.take().map_or_else(|| draft.to_owned(), |(_, draft)| draft);
        self.shown = Some((place, draft));
        self.entries.get(place).map(String::as_str)
    }

    /// The entry after the shown one, or the draft behind the last one.
    pub fn later(&mut self) -> Option<String> {
        let (place, draft) = self.shown.take()?;
        match self.entries.get(place + 1) {
            Some(entry) => {
                self.shown = Some((place + 1, draft));
                Some(entry.clone())
            }
            None => Some(draft),
        }
    }

    /// Forgets which entry is shown, because the text was changed.
    pub fn stop_browsing(&mut self) {
        self.shown = None;
    }

    /// The newest entry before `end` that contains the words, and its place.
    fn find(&self, words: &str, end: usize) -> Option<usize> {
        let words = words.to_lowercase();
        let end = end.min(self.entries.len());
        self.entries[..end].iter().rposition(|entry| entry.to_lowercase().contains(&words))
    }
}

/// A search in the history, as Ctrl+R begins it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistorySearch {
    words: String,
    found: Option<usize>,
}

impl HistorySearch {
    pub fn words(&self) -> &str {
        &self.words
    }

    /// The entry that was found.
    pub fn found<'h>(&self, history: &'h InputHistory) -> Option<&'h str> {
        history.entries.get(self.found?).map(String::as_str)
    }

    pub fn push(&mut self, letter: char, history: &InputHistory) {
        self.words.push(letter);
        let end = self.found.map_or(usize::MAX, |found| found + 1);
        self.found = history.find(&self.words, end);
    }

    pub fn pop(&mut self, history: &InputHistory) {
        self.words.pop();
        self.found =
            if self.words.is_empty() { None } else { history.find(&self.words, usize::MAX) };
    }

    /// Goes on to an older entry, if there is one.
    pub fn find_older(&mut self, history: &InputHistory) {
        let end = self.found.unwrap_or(usize::MAX);
        if let Some(older) = history.find(&self.words, end) {
            self.found = Some(older);
        }
    }
}
