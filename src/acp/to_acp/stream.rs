//! Streams of text: which message a piece belongs to, and what of a message was not told yet.

use crate::id::EventId;

/// A message that is being told in pieces.
#[derive(Debug, Default)]
pub struct Stream {
    /// The message that the pieces belong to; made up, because its Event does not exist yet.
    id: Option<String>,
    told: String,
}

impl Stream {
    /// Takes a piece and says which message it belongs to.
    pub fn piece(&mut self, text: &str) -> String {
        self.told.push_str(text);
        self.id.get_or_insert_with(|| EventId::mint().to_string()).clone()
    }

    /// Takes the whole message, and gives what of it has not been told, with its id.
    pub fn whole(&mut self, text: &str, event: &EventId) -> Option<(String, String)> {
        let told = std::mem::take(&mut self.told);
        let Some(id) = self.id.take() else { return Some((event.to_string(), text.to_owned())) };
        if let Some(rest) = text.strip_prefix(told.as_str()) {
            return (!rest.is_empty()).then(|| (id, rest.to_owned()));
        }
        if let Some(rest) = told.strip_prefix(text) {
            // The beginning of the next message was told already.
            rest.clone_into(&mut self.told);
            self.id = Some(id);
            return None;
        }
        // Pieces were lost. The whole message says everything again, as one of its own.
        Some((event.to_string(), text.to_owned()))
    }

    /// Ends it, and says whether anything had been told.
    pub fn close(&mut self) -> bool {
        self.told.clear();
        self.id.take().is_some()
    }
}
