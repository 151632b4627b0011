//! Search in the file tree: shared by the tools `grep`, `glob` and `list`.
//!
//! One parallel walk over the tree, off the async threads. It opens files only through the Workspace
//! and can be stopped at any time; its results are sorted by path.

mod first_results;
mod glob;
mod grep;
mod list;
mod matches;
mod name_search;
mod run_search;

use std::path::{Path, PathBuf};

use ignore::overrides::{Override, OverrideBuilder};
use serde_json::json;

pub use first_results::{FirstResults, PathResult};
pub use glob::GlobTool;
pub use grep::GrepTool;
pub use list::ListTool;
pub use matches::{FileMatches, MatchCollector, MatchInterest, MatchPage};
pub use name_search::{NamePage, NameSearch};

pub use crate::base::text::printable::{printable, printable_line};
pub use run_search::run_search;

use crate::base::error::Kind;
use crate::base::tool_error::ToolError;
pub use crate::host::walk::{
    WalkEntryKind, WalkOptions, WalkStop, WalkStopReason, WalkSummary, walk,
};
use crate::host::workspace::{ResolvedPath, Workspace, WorkspaceError};
use crate::tools::files::suggest_similar_names;
use crate::tools::tool::ToolContext;

/// Bytes of the output limit reserved for the notes after the results.
pub const NOTES_RESERVE: usize = 1024;
/// The largest offset of a page; results further away need a narrower search.
const MAX_OFFSET: u64 = 10_000;
/// The maximum number of results per page.
const MAX_LIMIT: u64 = 1000;

/// The range of results on a page.
#[derive(Debug, Clone, Copy)]
pub struct ResultWindow {
    /// How many results come before the page.
    pub skip: usize,
    pub limit: usize,
}

impl ResultWindow {
    /// The window from the arguments of a call.
    pub fn new(offset: Option<u64>, limit: Option<u64>, default: u64) -> Result<Self, ToolError> {
        let offset = offset.unwrap_or(1).max(1);
        if offset > MAX_OFFSET {
            let message = format!("offset {offset} is too far; it may be {MAX_OFFSET} at most");
            return Err(ToolError::invalid_args(message).with_next_action("narrow the search"));
        }
        let limit = limit.unwrap_or(default).clamp(1, MAX_LIMIT);
        let small = |number| usize::try_from(number).unwrap_or(usize::MAX);
        Ok(Self { skip: small(offset - 1), limit: small(limit) })
    }

    /// How many results are needed to fill the page.
    pub fn end(self) -> usize {
        self.skip + self.limit
    }

    /// Refuses a page that begins after the last result.
    pub fn check_total(self, total: usize, what: &str) -> Result<(), ToolError> {
        if self.skip == 0 || self.skip < total {
            return Ok(());
        }
        let message = format!("there are only {total} {what}");
        Err(ToolError::invalid_args(message).with_details(json!({ "total": total })))
    }

    /// A note about the results on other pages; `total` if it is known.
    pub fn page_note(self, shown: usize, total: Option<usize>, what: &str) -> Option<String> {
        let (first, last) = (self.skip + 1, self.skip + shown);
        let next = last + 1;
        match total {
            Some(total) if last >= total && first == 1 => None,
            Some(total) if last >= total => Some(format!("{what} {first}-{last} of {total}")),
            Some(total) => Some(format!("{what} {first}-{last} of {total}; next: offset {next}")),
            None => Some(format!("{what} {first}-{last}, more follow; next: offset {next}")),
        }
    }
}

/// Locates the start of a search; the error for a missing path suggests similar names.
pub fn locate_start(workspace: &Workspace, path: Option<&Path>) -> Result<ResolvedPath, ToolError> {
    let path = path.unwrap_or(Path::new(""));
    workspace.locate(path).map_err(|error| {
        let is_missing = matches!(error, WorkspaceError::Missing { .. });
        let explained = ToolError::from(error);
        if is_missing {
            suggest_similar_names(explained, workspace, path, "use path")
        } else {
            explained
        }
    })
}

/// Locates the start of a search for names, which must be a folder.
fn locate_start_folder(
    workspace: &Workspace,
    path: Option<&Path>,
) -> Result<ResolvedPath, ToolError> {
    let place = locate_start(workspace, path)?;
    if place.is_folder() {
        return Ok(place);
    }
    let shown = printable(place.path.as_os_str().as_encoded_bytes());
    let what = place.irregular_kind().unwrap_or("a file");
    Err(ToolError::invalid_args(format!("{shown} is {what}, not a folder"))
        .with_details(json!({ "path": shown }))
        .with_next_action(format!("read {shown}, or use its folder")))
}

/// Compiles the globs of a call; a name without a slash matches at any depth.
pub fn compile_globs<'g>(
    patterns: impl IntoIterator<Item = &'g str>,
) -> Result<Override, ToolError> {
    let bad = |error: &ignore::Error| {
        ToolError::invalid_args(format!("invalid glob: {error}"))
            .with_next_action("use *, **, ?, [a-z] and {a,b}; a backslash makes them ordinary")
    };
    let mut builder = OverrideBuilder::new("");
    for pattern in patterns {
        let pattern = pattern.strip_prefix("./").unwrap_or(pattern);
        builder.add(pattern).map_err(|error| bad(&error))?;
    }
    builder.build().map_err(|error| bad(&error))
}

/// Notes for the model about a timeout and unreadable files.
pub fn search_notes(
    summary: &WalkSummary,
    context: &ToolContext,
) -> Result<Vec<String>, ToolError> {
    let mut notes = Vec::new();
    match summary.stopped {
        None => {}
        Some(WalkStopReason::Requested) => {
            return Err(ToolError::new(Kind::Interrupted, "the search was interrupted"));
        }
        Some(WalkStopReason::TimedOut(limit)) => notes.push(format!(
            "stopped after {} s, so this is not all; narrow path or globs",
            limit.as_secs()
        )),
    }
    if summary.unreadable > 0 {
        let some: Vec<String> = summary
            .first_unreadable
            .iter()
            .map(|(path, errno)| format!("{} ({errno})", printable(path)))
            .collect();
        let shown = context.secrets.redact(&some.join(", ")).into_owned();
        notes.push(format!("{} could not be read: {shown}", summary.unreadable));
    }
    Ok(notes)
}

/// A note about hidden and ignored files that were skipped.
pub fn left_out_note(summary: &WalkSummary) -> Option<String> {
    let count = summary.left_out;
    (count > 0).then(|| format!("{count} hidden or ignored left out; all: true includes them"))
}

/// The path of a call, as it is shown to the user.
pub fn shown_path(context: &ToolContext, path: Option<&Path>) -> PathBuf {
    path.map_or_else(|| PathBuf::from("."), |path| context.workspace.display(path).to_owned())
}

/// Inserts a path into the sorted first `most` paths.
pub fn insert_first(kept: &mut Vec<Box<[u8]>>, path: &[u8], most: usize) {
    let place = kept.partition_point(|other| **other < *path);
    if place < most {
        kept.insert(place, path.into());
        kept.truncate(most);
    }
}
