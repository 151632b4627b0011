//! Searching: what `grep`, `glob` and `list` have in common.
//!
//! One walk over the tree, in parallel and off the async threads; it opens nothing but through the
//! Workspace, stops at once when asked, and what it finds is put in the order of its path.

mod firsts;
mod hits;
mod names;
mod shown;
mod wanted;

use std::path::{Path, PathBuf};

use ignore::overrides::{Override, OverrideBuilder};
use serde_json::json;

pub use firsts::{First, Firsts};
pub use hits::{Hits, InFile, Interest, Page};
pub use names::{NameSearch, Names};
pub use shown::{is_odd, line_of, visible};
pub use wanted::while_wanted;

use super::read::suggest_near;
use super::{ToolContext, ToolError};
use crate::error::Kind;
pub use crate::walk::{Sort, Stop, Stopped, Tally, Walk, walk};
use crate::workspace::{Place, Workspace, WorkspaceError};

/// What the notes after the results may take of the bound.
pub const NOTES_ROOM: usize = 1024;
/// The first result of a page is at most this; what is further away is better found by a narrower
/// search.
const LARGEST_OFFSET: u64 = 10_000;
/// The most results of one page.
const LARGEST_LIMIT: u64 = 1000;

/// Which part of the results is shown.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// How many results come before it.
    pub skip: usize,
    pub limit: usize,
}

impl Window {
    /// The window of a call.
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

    /// How many results must be known to fill it.
    pub fn end(self) -> usize {
        self.skip + self.limit
    }

    /// Refuses a page that begins behind the last result.
    pub fn check(self, total: usize, what: &str) -> Result<(), ToolError> {
        if self.skip == 0 || self.skip < total {
            return Ok(());
        }
        let message = format!("there are only {total} {what}");
        Err(ToolError::invalid(message).details(json!({ "total": total })))
    }

    /// What is said of the results that this page does not show; `total` where it is known.
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

/// Where a search begins; what is missing is told with names like it.
pub fn start(workspace: &Workspace, path: Option<&Path>) -> Result<Place, ToolError> {
    let path = path.unwrap_or(Path::new(""));
    workspace.locate(path).map_err(|error| {
        let is_missing = matches!(error, WorkspaceError::Missing { .. });
        let explained = ToolError::from(error);
        if is_missing { suggest_near(explained, workspace, path, "use path") } else { explained }
    })
}

/// Where a search for names begins: a folder.
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

/// The globs of a call; a name without a slash matches at any depth.
pub fn globs<'g>(patterns: impl IntoIterator<Item = &'g str>) -> Result<Override, ToolError> {
    let bad = |error: &ignore::Error| {
        ToolError::invalid(format!("this is no glob: {error}"))
            .next("use *, **, ?, [a-z] and {a,b}; a backslash makes them ordinary")
    };
    let mut builder = OverrideBuilder::new("");
    for pattern in patterns {
        let pattern = pattern.strip_prefix("./").unwrap_or(pattern);
        builder.add(pattern).map_err(|error| bad(&error))?;
    }
    builder.build().map_err(|error| bad(&error))
}

/// What a search could not see, as notes for the model.
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

/// What is said when a wider search may be wanted.
pub fn left_out(tally: &Tally) -> Option<String> {
    let count = tally.left_out;
    (count > 0).then(|| format!("{count} hidden or ignored left out; all: true includes them"))
}

/// The path of a call, as people should see it.
pub fn shown_path(context: &ToolContext, path: Option<&Path>) -> PathBuf {
    path.map_or_else(|| PathBuf::from("."), |path| context.workspace.display(path).to_owned())
}

/// Keeps the first few paths.
pub fn keep_first(kept: &mut Vec<Box<[u8]>>, path: &[u8], most: usize) {
    let place = kept.partition_point(|other| **other < *path);
    if place < most {
        kept.insert(place, path.into());
        kept.truncate(most);
    }
}
