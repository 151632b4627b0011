//! `--events`: every Event as one line of NDJSON on stdout, and nothing else.

use super::paper::{Gone, Paper};
use crate::event::{Event, EventKind};

/// Writes one Event; durable ones are also pushed out at once.
pub fn write(event: &Event, paper: &mut Paper) -> Result<(), Gone> {
    let Ok(mut line) = serde_json::to_vec(event) else { return Ok(()) };
    line.push(b'\n');
    paper.answer(&line)?;
    match event.kind() {
        EventKind::Canonical(_) => paper.flush(),
        EventKind::Ephemeral(_) => Ok(()),
    }
}
