//! A search for names beneath a folder, and a page of its results.

use std::fmt::Write as _;
use std::path::Path;

use ignore::overrides::Override;
use serde_json::json;

use super::{
    FirstResults, NOTES_RESERVE, PathResult, ResultWindow, WalkEntryKind, WalkOptions, WalkStop,
    left_out_note, locate_start_folder, search_notes, walk,
};
use crate::base::tool_error::ToolError;
use crate::tools::tool::{ToolContext, ToolOutput};

/// Results per page by default.
const DEFAULT_RESULTS: u64 = 200;

/// The text of a page of names, one per line.
#[derive(Debug, Default)]
pub struct NamePage {
    pub text: String,
    pub shown: usize,
}

impl NamePage {
    /// The names of a window, in at most `room` bytes; the first is always included.
    pub fn new<T>(
        found: &[PathResult<T>],
        window: ResultWindow,
        room: usize,
        name: impl Fn(&PathResult<T>) -> String,
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
    pub stop: &'t WalkStop,
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
    pub noun: &'t str,
    /// The text if there are no results.
    pub none_text: &'t str,
    /// Whether skipped names are noted even if others were found.
    pub shows_everything: bool,
}

impl NameSearch<'_> {
    /// Runs the search; returns the page of names, with notes.
    pub fn run(
        &self,
        is_wanted: impl Fn(WalkEntryKind) -> bool + Sync,
        name: impl Fn(&PathResult<WalkEntryKind>) -> String,
    ) -> Result<ToolOutput, ToolError> {
        let Self { context, noun: what, .. } = *self;
        let place = locate_start_folder(&context.workspace, self.path)?;
        let window = ResultWindow::new(self.offset, self.limit, DEFAULT_RESULTS)?;
        let plan = WalkOptions {
            workspace: &context.workspace,
            stop: self.stop,
            start: &place.path,
            all: self.all,
            hidden: false,
            globs: self.globs,
            depth: self.depth,
            shares_files: false,
        };
        let (found, summary) = walk(
            &plan,
            || FirstResults::new(window.end()),
            |found, _, entry| {
                if is_wanted(entry.kind) {
                    found.push(entry.path, 1, entry.kind);
                }
                true
            },
        );
        let mut notes = search_notes(&summary, context)?;
        let total = found.iter().map(|found| found.total).sum();
        window.check_total(total, what)?;
        let room = context.output_limit.saturating_sub(NOTES_RESERVE);
        let NamePage { mut text, shown } =
            NamePage::new(&FirstResults::merge(found), window, room, name);
        if total == 0 {
            writeln!(text, "{}", self.none_text).ok();
        }
        if total == 0 || self.shows_everything {
            notes.extend(left_out_note(&summary));
        }
        for note in window.page_note(shown, Some(total), what).into_iter().chain(notes) {
            writeln!(text, "[{note}]").ok();
        }
        let last = window.skip + shown;
        let details = json!({
            "path": place.path.to_string_lossy(),
            "results": shown,
            "total": total,
            "next_offset": (last < total).then_some(last + 1),
            "left_out": summary.left_out,
        });
        Ok(ToolOutput::new(true, text, details))
    }
}
