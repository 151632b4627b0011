//! `--events`: every Event as one line of NDJSON on stdout, and nothing else.

use super::json::escape_hidden;
use super::paper::{Gone, Paper};
use crate::record::event::{Event, EventKind};

/// Writes one Event; durable ones are also flushed at once.
pub fn write(event: &Event, paper: &mut Paper) -> Result<(), Gone> {
    let Ok(line) = serde_json::to_string(event) else { return Ok(()) };
    paper.answer(escape_hidden(&line).as_bytes())?;
    paper.answer(b"\n")?;
    match event.kind() {
        EventKind::Canonical(_) => paper.flush(),
        EventKind::Ephemeral(_) => Ok(()),
    }
}
