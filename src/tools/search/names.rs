//! A search for names beneath a folder, and a page of its results.

use std::fmt::Write as _;
use std::path::Path;

use ignore::overrides::Override;
use serde_json::json;

use super::{
    First, Firsts, NOTES_ROOM, Sort, Stop, Walk, Window, left_out, notes, start_folder, walk,
};
use crate::base::tool_error::ToolError;
use crate::tools::tool::{ToolContext, ToolOutput};

/// Results per page by default.
const DEFAULT_RESULTS: u64 = 200;

/// The text of a page of names, one per line.
#[derive(Debug, Default)]
pub struct Names {
    pub text: String,
    pub shown: usize,
}

impl Names {
    /// The names of a window, in at most `room` bytes; the first is always included.
    pub fn of<T>(
        found: &[First<T>],
        window: Window,
        room: usize,
        name: impl Fn(&First<T>) -> String,
    ) -> Self {
        let mut names = Self::default();
        for first in found.iter().skip(window.skip).take(window.limit) {
            let line = name(first);
            if names.shown > 0 && names.text.len() + line.len() >= room {
                break;
            }
            names.text.push_str(&line);
            names.text.push('\n');
            names.shown += 1;
        }
        names
    }
}

/// A search for names beneath a folder.
pub struct NameSearch<'t> {
    pub context: &'t ToolContext,
    pub stop: &'t Stop,
    /// The folder to search.
    pub path: Option<&'t Path>,
    /// Whether hidden and ignored names are included.
    pub all: bool,
    pub globs: &'t Override,
    /// The maximum depth of folders.
    pub depth: usize,
    pub offset: Option<u64>,
    pub limit: Option<u64>,
    /// The plural noun for the results in notes: "files".
    pub what: &'t str,
    /// The text if there are none.
    pub none: &'t str,
    /// Whether skipped names are noted even if others were found.
    pub shows_everything: bool,
}

impl NameSearch<'_> {
    /// Runs the search; returns the page of names, with notes.
    pub fn run(
        &self,
        is_wanted: impl Fn(Sort) -> bool + Sync,
        name: impl Fn(&First<Sort>) -> String,
    ) -> Result<ToolOutput, ToolError> {
        let Self { context, what, .. } = *self;
        let place = start_folder(&context.workspace, self.path)?;
        let window = Window::new(self.offset, self.limit, DEFAULT_RESULTS)?;
        let plan = Walk {
            workspace: &context.workspace,
            stop: self.stop,
            start: &place.path,
            all: self.all,
            hidden: false,
            globs: self.globs,
            depth: self.depth,
            shares_files: false,
        };
        let (found, tally) = walk(
            &plan,
            || Firsts::new(window.end()),
            |found, _, entry| {
                if is_wanted(entry.sort) {
                    found.push(entry.path, 1, entry.sort);
                }
                true
            },
        );
        let mut notes = notes(&tally, context)?;
        let total = found.iter().map(|found| found.total).sum();
        window.check(total, what)?;
        let room = context.output_limit.saturating_sub(NOTES_ROOM);
        let Names { mut text, shown } = Names::of(&Firsts::merged(found), window, room, name);
        if total == 0 {
            writeln!(text, "{}", self.none).ok();
        }
        if total == 0 || self.shows_everything {
            notes.extend(left_out(&tally));
        }
        for note in window.note(shown, Some(total), what).into_iter().chain(notes) {
            writeln!(text, "[{note}]").ok();
        }
        let last = window.skip + shown;
        let details = json!({
            "path": place.path.to_string_lossy(),
            "results": shown,
            "total": total,
            "next_offset": (last < total).then_some(last + 1),
            "left_out": tally.left_out,
        });
        Ok(ToolOutput::new(true, text, details))
    }
}
