//! Search in the file tree: shared by the tools `grep`, `glob` and `list`.
//!
//! One parallel walk over the tree, off the async threads. It opens files only through the Workspace
//! and can be stopped at any time; its results are sorted by path.

mod firsts;
mod glob;
mod grep;
mod hits;
mod list;
mod names;
mod wanted;

use std::path::{Path, PathBuf};

use ignore::overrides::{Override, OverrideBuilder};
use serde_json::json;

pub use firsts::{First, Firsts};
pub use glob::Glob;
pub use grep::Grep;
pub use hits::{Hits, InFile, Interest, Page};
pub use list::List;
pub use names::{NameSearch, Names};

pub use crate::base::text::printable::{is_odd, line_of, visible};
pub use wanted::while_wanted;

use crate::base::error::Kind;
use crate::base::tool_error::ToolError;
pub use crate::host::walk::{Sort, Stop, Stopped, Tally, Walk, walk};
use crate::host::workspace::{Place, Workspace, WorkspaceError};
use crate::tools::files::suggest_near;
use crate::tools::tool::ToolContext;

/// Bytes of the output limit reserved for the notes after the results.
pub const NOTES_ROOM: usize = 1024;
/// The largest offset of a page; results further away need a narrower search.
const LARGEST_OFFSET: u64 = 10_000;
/// The maximum number of results per page.
const LARGEST_LIMIT: u64 = 1000;

/// The range of results on a page.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// How many results come before the page.
    pub skip: usize,
    pub limit: usize,
}

impl Window {
    /// The window from the arguments of a call.
    pub fn new(offset: Option<u64>, limit: Option<u64>, default: u64) -> Result<Self, ToolError> {
        let offset = offset.unwrap_or(1).max(1);
        if offset > LARGEST_OFFSET {
            let message = format!("offset {offset} is too far; it may be {LARGEST_OFFSET} at most");
            return Err(ToolError::invalid(message).next("narrow the search"));
        }
        let limit = limit.unwrap_or(default).clamp(1, LARGEST_LIMIT);
        let small = |number| usize::try_from(number).unwrap_or(usize::MAX);
        Ok(Self { skip: small(offset - 1), limit: small(limit) })
    }

    /// How many results are needed to fill the page.
    pub fn end(self) -> usize {
        self.skip + self.limit
    }

    /// Refuses a page that begins after the last result.
    pub fn check(self, total: usize, what: &str) -> Result<(), ToolError> {
        if self.skip == 0 || self.skip < total {
            return Ok(());
        }
        let message = format!("there are only {total} {what}");
        Err(ToolError::invalid(message).details(json!({ "total": total })))
    }

    /// A note about the results on other pages; `total` if it is known.
    pub fn note(self, shown: usize, total: Option<usize>, what: &str) -> Option<String> {
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
pub fn start(workspace: &Workspace, path: Option<&Path>) -> Result<Place, ToolError> {
    let path = path.unwrap_or(Path::new(""));
    workspace.locate(path).map_err(|error| {
        let is_missing = matches!(error, WorkspaceError::Missing { .. });
        let explained = ToolError::from(error);
        if is_missing { suggest_near(explained, workspace, path, "use path") } else { explained }
    })
}

/// Locates the start of a search for names, which must be a folder.
fn start_folder(workspace: &Workspace, path: Option<&Path>) -> Result<Place, ToolError> {
    let place = start(workspace, path)?;
    if place.is_folder() {
        return Ok(place);
    }
    let shown = visible(place.path.as_os_str().as_encoded_bytes());
    let what = place.irregular().unwrap_or("a file");
    Err(ToolError::invalid(format!("{shown} is {what}, not a folder"))
        .details(json!({ "path": shown }))
        .next(format!("read {shown}, or use the folder that holds it")))
}

/// Compiles the globs of a call; a name without a slash matches at any depth.
pub fn globs<'g>(patterns: impl IntoIterator<Item = &'g str>) -> Result<Override, ToolError> {
    let bad = |error: &ignore::Error| {
        ToolError::invalid(format!("invalid glob: {error}"))
            .next("use *, **, ?, [a-z] and {a,b}; a backslash makes them ordinary")
    };
    let mut builder = OverrideBuilder::new("");
    for pattern in patterns {
        let pattern = pattern.strip_prefix("./").unwrap_or(pattern);
        builder.add(pattern).map_err(|error| bad(&error))?;
    }
    builder.build().map_err(|error| bad(&error))
}

/// Notes for the model about a timeout and unreadable files.
pub fn notes(tally: &Tally, context: &ToolContext) -> Result<Vec<String>, ToolError> {
    let mut notes = Vec::new();
    match tally.stopped {
        None => {}
        Some(Stopped::Asked) => {
            return Err(ToolError::new(Kind::Interrupted, "the search was interrupted"));
        }
        Some(Stopped::Late(limit)) => notes.push(format!(
            "stopped after {} s, so this is not all; narrow path or globs",
            limit.as_secs()
        )),
    }
    if tally.unreadable > 0 {
        let some: Vec<String> = tally
            .first_unreadable
            .iter()
            .map(|(path, errno)| format!("{} ({errno})", visible(path)))
            .collect();
        let shown = context.secrets.clean(&some.join(", ")).into_owned();
        notes.push(format!("{} could not be read: {shown}", tally.unreadable));
    }
    Ok(notes)
}

/// A note about hidden and ignored files that were skipped.
pub fn left_out(tally: &Tally) -> Option<String> {
    let count = tally.left_out;
    (count > 0).then(|| format!("{count} hidden or ignored left out; all: true includes them"))
}

/// The path of a call, as it is shown to the user.
pub fn shown_path(context: &ToolContext, path: Option<&Path>) -> PathBuf {
    path.map_or_else(|| PathBuf::from("."), |path| context.workspace.display(path).to_owned())
}

/// Inserts a path into the sorted first `most` paths.
pub fn keep_first(kept: &mut Vec<Box<[u8]>>, path: &[u8], most: usize) {
    let place = kept.partition_point(|other| **other < *path);
    if place < most {
        kept.insert(place, path.into());
        kept.truncate(most);
    }
}
