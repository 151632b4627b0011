//! `--events`: every Event as one line of NDJSON on stdout, and nothing else.

use super::json::escape_hidden;
use super::output::{StdioOutput, StdoutClosed};
use crate::record::event::{Event, EventKind};

/// Writes one Event; durable ones are also flushed at once.
pub fn write_event(event: &Event, output: &mut StdioOutput) -> Result<(), StdoutClosed> {
    let Ok(line) = serde_json::to_string(event) else { return Ok(()) };
    output.write_answer(escape_hidden(&line).as_bytes())?;
    output.write_answer(b"\n")?;
    match event.kind() {
        EventKind::Canonical(_) => output.flush(),
        EventKind::Ephemeral(_) => Ok(()),
    }
}
