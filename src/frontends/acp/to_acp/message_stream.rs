//! Streamed messages: which message a delta belongs to, and which text of a message was not sent yet.

use std::collections::VecDeque;

use crate::base::id::EventId;

/// Messages that are sent as deltas before their Events exist.
#[derive(Debug, Default)]
pub struct MessageStream {
    /// In the order in which they began; the last one may continue.
    open: VecDeque<OpenMessage>,
    /// Whether the next delta begins another message.
    is_parted: bool,
}

#[derive(Debug)]
struct OpenMessage {
    /// A new id, because the Event of the message does not exist yet.
    id: String,
    sent_text: String,
}

impl MessageStream {
    /// Adds a delta and returns the id of its message. An empty delta separates two messages.
    pub fn push_piece(&mut self, text: &str) -> Option<String> {
        if text.is_empty() {
            self.is_parted = true;
            return None;
        }
        if std::mem::take(&mut self.is_parted) || self.open.is_empty() {
            self.open.push_back(OpenMessage {
                id: EventId::mint().to_string(),
                sent_text: String::new(),
            });
        }
        let open = self.open.back_mut()?;
        open.sent_text.push_str(text);
        Some(open.id.clone())
    }

    /// Takes the whole message, and returns the text that was not sent, with the message's id.
    pub fn finish_message(&mut self, text: &str, event: &EventId) -> Option<(String, String)> {
        let Some(OpenMessage { id, sent_text }) = self.open.pop_front() else {
            return Some((event.to_string(), text.to_owned()));
        };
        if let Some(rest) = text.strip_prefix(sent_text.as_str()) {
            return (!rest.is_empty()).then(|| (id, rest.to_owned()));
        }
        if let Some(rest) = sent_text.strip_prefix(text) {
            // The start of the next message was already sent.
            self.open.push_front(OpenMessage { id, sent_text: rest.to_owned() });
            return None;
        }
        // Deltas were lost, so the whole text is sent as a new message.
        Some((event.to_string(), text.to_owned()))
    }

    /// The sent text of messages whose Events do not exist yet, each with its id.
    pub fn open_messages(&self) -> impl Iterator<Item = (&str, &str)> {
        self.open.iter().map(|open| (open.id.as_str(), open.sent_text.as_str()))
    }

    /// Drops the open messages; true when there were any.
    pub fn close(&mut self) -> bool {
        let was_open = !self.open.is_empty();
        *self = Self::default();
        was_open
    }
}
