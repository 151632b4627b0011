//! What is to be written, before anybody writes it: strokes for stdout and stderr, in order.

/// Where a stroke goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// stdout: the answer.
    Answer,
    /// stderr: everything else.
    Activity,
}

/// An ordered list of writes; neighbours on one channel become one write.
#[derive(Debug, Default)]
pub struct Sheet {
    strokes: Vec<(Channel, String)>,
}

impl Sheet {
    /// The text that the next words for a channel are appended to.
    pub fn on(&mut self, channel: Channel) -> &mut String {
        let is_new = self.strokes.last().is_none_or(|(last, _)| *last != channel);
        if is_new {
            self.strokes.push((channel, String::new()));
        }
        // The stroke was pushed above when there was none.
        let place = self.strokes.len().saturating_sub(1);
        &mut self.strokes[place].1
    }

    /// Text for stdout.
    pub fn answer(&mut self) -> &mut String {
        self.on(Channel::Answer)
    }

    /// A whole line for stderr.
    pub fn line(&mut self, text: &str) {
        let activity = self.on(Channel::Activity);
        activity.push_str(text);
        activity.push('\n');
    }

    /// The strokes in order.
    pub fn strokes(&self) -> impl Iterator<Item = (Channel, &str)> {
        self.strokes.iter().map(|(channel, text)| (*channel, text.as_str()))
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.strokes.iter().all(|(_, text)| text.is_empty())
    }

    /// Empties the sheet for the next Event.
    pub fn clear(&mut self) {
        self.strokes.clear();
    }
}
