//! Streams of text: which message a piece belongs to, and what of a message was not told yet.

use std::collections::VecDeque;

use crate::id::EventId;

/// Messages that are being told in pieces, before their Events exist.
#[derive(Debug, Default)]
pub struct Stream {
    /// In the order in which they were begun; the last one may go on.
    open: VecDeque<Open>,
    /// The next piece begins another message.
    is_parted: bool,
}

#[derive(Debug)]
struct Open {
    /// Made up, because its Event does not exist yet.
    id: String,
    told: String,
}

impl Stream {
    /// Takes a piece and says which message it belongs to. An empty one parts two messages.
    pub fn piece(&mut self, text: &str) -> Option<String> {
        if text.is_empty() {
            self.is_parted = true;
            return None;
        }
        if std::mem::take(&mut self.is_parted) || self.open.is_empty() {
            self.open.push_back(Open { id: EventId::mint().to_string(), told: String::new() });
        }
        let open = self.open.back_mut()?;
        open.told.push_str(text);
        Some(open.id.clone())
    }

    /// Takes the whole message, and gives what of it has not been told, with its id.
    pub fn whole(&mut self, text: &str, event: &EventId) -> Option<(String, String)> {
        let Some(Open { id, told }) = self.open.pop_front() else {
            return Some((event.to_string(), text.to_owned()));
        };
        if let Some(rest) = text.strip_prefix(told.as_str()) {
            return (!rest.is_empty()).then(|| (id, rest.to_owned()));
        }
        if let Some(rest) = told.strip_prefix(text) {
            // The beginning of the next message was told already.
            self.open.push_front(Open { id, told: rest.to_owned() });
            return None;
        }
        // Pieces were lost. The whole message says everything again, as one of its own.
        Some((event.to_string(), text.to_owned()))
    }

    /// What was told of messages whose Events do not exist yet, each with its id.
    pub fn told(&self) -> impl Iterator<Item = (&str, &str)> {
        self.open.iter().map(|open| (open.id.as_str(), open.told.as_str()))
    }

    /// Ends it, and says whether anything had been told.
    pub fn close(&mut self) -> bool {
        let was_open = !self.open.is_empty();
        *self = Self::default();
        was_open
    }
}
