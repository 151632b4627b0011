//! Children as their Logs tell of them, for whoever is in another process, or later.

use std::path::Path;
use std::time::Duration;

use super::progress::Progress;
use super::record::{Record, View};
use crate::event::{Canonical, EventKind, ToolCall};
use crate::history::History;
use crate::id::SessionId;
use crate::log::{Log, LogError};
use crate::tool::first_chars;

/// The children of a Session. One whose run has no end works if `is_open`, and is detached
/// otherwise: the next resume of its parent records that.
pub fn children(
    workspace: &Path,
    parent: &SessionId,
    is_open: bool,
) -> Result<Vec<View>, LogError> {
    let history = History::from_events(Log::read(workspace, parent)?.events);
    let views = Record::all(&history).into_iter().map(|mut record| {
        let mut doing = String::new();
        if !record.status.is_over() && !is_open {
            record.detach(workspace);
        }
        if let Some(child) = record.child.as_ref().filter(|_| record.usage.calls == 0)
            && let Ok(reading) = Log::read(workspace, child)
        {
            let progress = Progress::default();
            for event in &reading.events {
                progress.hear(event);
                if let EventKind::Canonical(Canonical::ToolCall(call)) = event.kind() {
                    doing = about(call);
                }
            }
            record.usage = progress.usage();
            record.elapsed = record.elapsed.max(Duration::ZERO);
        }
        View { record, doing, place: 0 }
    });
    Ok(views.collect())
}

fn about(call: &ToolCall) -> String {
    first_chars(&format!("{} {}", call.name, call.args), 100)
}
