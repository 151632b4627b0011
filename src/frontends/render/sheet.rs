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
pub struct Sheet {
    strokes: Vec<(Channel, String)>,
}

impl Sheet {
    /// The text to which the next output for a channel is appended.
    pub fn on(&mut self, channel: Channel) -> &mut String {
        let is_new = self.strokes.last().is_none_or(|(last, _)| *last != channel);
        if is_new {
            self.strokes.push((channel, String::new()));
        }
        // There is always one: it was pushed above when it was missing.
        let place = self.strokes.len().saturating_sub(1);
        &mut self.strokes[place].1
    }

    /// The text for stdout.
    pub fn answer(&mut self) -> &mut String {
        self.on(Channel::Answer)
    }

    /// Adds a whole line for stderr.
    pub fn line(&mut self, text: &str) {
        let activity = self.on(Channel::Activity);
        activity.push_str(text);
        activity.push('\n');
    }

    /// The writes in order.
    pub fn strokes(&self) -> impl Iterator<Item = (Channel, &str)> {
        self.strokes.iter().map(|(channel, text)| (*channel, text.as_str()))
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.strokes.iter().all(|(_, text)| text.is_empty())
    }

    /// Empties the queue for the next Event.
    pub fn clear(&mut self) {
        self.strokes.clear();
    }
}
