//! `--events`: every Event as one line of NDJSON on stdout, and nothing else.

use super::paper::{Gone, Paper};
use crate::event::{EventKind, Heard};

/// Writes one Event; durable ones are also pushed out at once.
pub fn write(heard: &Heard, paper: &mut Paper) -> Result<(), Gone> {
    let event = match heard {
        Heard::Event(event) => event,
        // The stream stays true: everything durable follows. But its reader should know.
        Heard::Missed(count) => {
            let words = format!("{count} live Events were dropped; nothing durable is missing\n");
            paper.activity(words.as_bytes());
            return Ok(());
        }
    };
    let Ok(mut line) = serde_json::to_vec(event) else { return Ok(()) };
    line.push(b'\n');
    paper.answer(&line)?;
    match event.kind() {
        EventKind::Canonical(_) => paper.flush(),
        EventKind::Ephemeral(_) => Ok(()),
    }
}
