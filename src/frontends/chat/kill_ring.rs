//! The kill ring: what was cut from the editor, to be put back.

/// How many cuts are kept.
const MOST: usize = 32;

/// Texts that were cut, the newest last.
#[derive(Debug, Clone, Default)]
pub struct KillRing {
    texts: Vec<String>,
}

impl KillRing {
    /// Adds a cut of its own.
    pub fn push(&mut self, text: String) {
        if text.is_empty() {
            return;
        }
        if self.texts.len() == MOST {
            self.texts.remove(0);
        }
        self.texts.push(text);
    }

    /// Joins a cut to the one before it, behind or in front.
    pub fn extend(&mut self, text: &str, is_before: bool) {
        match self.texts.last_mut() {
            Some(last) if is_before => last.insert_str(0, text),
            Some(last) => last.push_str(text),
            None => self.push(text.to_owned()),
        }
    }

    /// The cut that is `back` places before the newest; the ring turns.
    pub fn nth_newest(&self, back: usize) -> Option<&str> {
        let count = self.texts.len();
        if count == 0 {
            return None;
        }
        self.texts.get(count - 1 - back % count).map(String::as_str)
    }
}
