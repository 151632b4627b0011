//! A queue of writes to stdout and stderr, in order.

/// The stream of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// stdout: the answer.
    Answer,
    /// stderr: everything else.
    Activity,
}

/// An ordered queue of writes; neighbours on one channel are joined.
#[derive(Debug, Default)]
pub struct WriteQueue {
    writes: Vec<(Channel, String)>,
}

impl WriteQueue {
    /// The text to which the next output for a channel is appended.
    pub fn text_for(&mut self, channel: Channel) -> &mut String {
        let is_new = self.writes.last().is_none_or(|(last, _)| *last != channel);
        if is_new {
            self.writes.push((channel, String::new()));
        }
        // There is always one: it was pushed above when it was missing.
        let place = self.writes.len().saturating_sub(1);
        &mut self.writes[place].1
    }

    /// The text for stdout.
    pub fn answer_text(&mut self) -> &mut String {
        self.text_for(Channel::Answer)
    }

    /// Adds a whole line for stderr.
    pub fn push_line(&mut self, text: &str) {
        let activity = self.text_for(Channel::Activity);
        activity.push_str(text);
        activity.push('\n');
    }

    /// The writes in order.
    pub fn writes(&self) -> impl Iterator<Item = (Channel, &str)> {
        self.writes.iter().map(|(channel, text)| (*channel, text.as_str()))
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.writes.iter().all(|(_, text)| text.is_empty())
    }

    /// Empties the queue for the next Event.
    pub fn clear(&mut self) {
        self.writes.clear();
    }
}
