//! The AGENTS.md chain, as one developer message that is stable for a Session.
//!
//! The user's own file comes first, then those from the enclosing git root down to the Workspace, so that
//! the nearest file is last. Invisible characters are removed and reported: an instruction that the user
//! cannot see must not reach the model. No failure here is fatal.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::base::files::open_regular;
use crate::base::secret::Secrets;
use crate::base::text::is_invisible;
use crate::host::workspace::{Workspace, WorkspaceError, project_folders};

/// The name of the files.
const FILE_NAME: &str = "AGENTS.md";
/// How many hidden characters are named one by one; more are counted.
const MAX_NAMED_CHARACTERS: usize = 5;

/// The bytes read beyond the limit: they show that the file is cut, and complete a character or a secret
/// at the edge.
const MARGIN: u64 = 8192;

/// The locations of the AGENTS.md files, and the limit of their size.
#[derive(Debug, Clone)]
pub struct AgentsMdSources<'a> {
    /// The Workspace, as an absolute path.
    pub workspace: &'a Path,
    /// The user's instructions for every project.
    pub user_file: &'a Path,
    /// Limit for all files together, in bytes.
    pub limit: usize,
    /// Secrets that are redacted.
    pub secrets: &'a Secrets,
}

/// The text of the AGENTS.md files, and notices about them for the user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentsMd {
    /// `None` if no file has text.
    pub text: Option<Arc<str>>,
    pub notices: Vec<String>,
}

impl AgentsMd {
    /// Reads the chain.
    pub fn load(sources: &AgentsMdSources<'_>) -> Self {
        let mut project = Self::default();
        let mut text = String::new();
        let mut left = sources.limit;
        for (path, root) in candidate_files(sources) {
            let Some(raw) = read_file(&path, root.as_deref(), left, &mut project.notices) else {
                continue;
            };
            // Secrets are replaced before the cut, which could leave half of one.
            let seen = remove_hidden(&path, &raw, &mut project.notices);
            let whole = sources.secrets.redact(&seen);
            let is_cut = whole.len() > left;
            let content = &whole[..whole.floor_char_boundary(left)];
            if content.trim().is_empty() && !is_cut {
                continue;
            }
            left -= content.len();
            let name = path.display().to_string();
            text.extend(["# Instructions from ", &name, "\n\n", content.trim_end(), "\n\n"]);
            if is_cut {
                let (limit, used) = (sources.limit, content.len());
                text.extend([
                    "[cut here: the limit of ",
                    &limit.to_string(),
                    " bytes is reached]\n\n",
                ]);
                project.notices.push(format!(
                    "{name}: only its first {used} bytes are used; \
                     AGENTS.md files may have {limit} bytes in all"
                ));
            }
        }
        if !text.is_empty() {
            project.text = Some(text.trim_end().into());
        }
        project
    }
}

/// The files that may exist, each with the folder it must not lead out of; the user's own file may
/// be a link to anywhere.
fn candidate_files(sources: &AgentsMdSources<'_>) -> Vec<(PathBuf, Option<PathBuf>)> {
    let folders = project_folders(sources.workspace);
    let root = folders.first().copied().unwrap_or(sources.workspace);
    let mut files = vec![(sources.user_file.to_owned(), None)];
    files.extend(folders.iter().map(|folder| (folder.join(FILE_NAME), Some(root.to_owned()))));
    files.dedup_by(|later, earlier| later.0 == earlier.0);
    files
}

/// Reads a file up to the limit and a margin; a failure becomes a notice.
fn read_file(
    path: &Path,
    root: Option<&Path>,
    limit: usize,
    notices: &mut Vec<String>,
) -> Option<String> {
    let mut notice =
        |reason: &str| notices.push(format!("{}: {reason}; it is not used", path.display()));
    if fs::symlink_metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        return None;
    }
    let file = match root {
        Some(root) => open_within(path, root),
        None => open_regular(path).map_err(|error| error.to_string()),
    };
    let mut bytes = Vec::new();
    let enough = limit as u64 + MARGIN;
    let taken = file.and_then(|file| {
        let taken = file.take(enough).read_to_end(&mut bytes);
        taken.map_err(|error| error.to_string())
    });
    if let Err(reason) = taken {
        notice(&reason);
        return None;
    }
    if bytes.contains(&0) {
        notice("it is not text");
        return None;
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Opens a file of the project; a link may lead only to another file of the project.
fn open_within(path: &Path, root: &Path) -> Result<fs::File, String> {
    let opened = Workspace::open(root).and_then(|space| space.open_file(path));
    opened.map(|open| open.file).map_err(|error| match error {
        WorkspaceError::Outside { .. } => "it is a link that leads out of the project".to_owned(),
        WorkspaceError::NotRegular { .. } => "it is not a regular file".to_owned(),
        other => other.to_string(),
    })
}

/// Removes invisible characters, and reports them with line and code point.
fn remove_hidden(path: &Path, content: &str, notices: &mut Vec<String>) -> String {
    let mut kept = String::with_capacity(content.len());
    let mut line = 1usize;
    let mut found = 0usize;
    for (place, c) in content.chars().enumerate() {
        // A byte order mark at the start is written by some editors, and not reported.
        let is_mark = place == 0 && c == '\u{feff}';
        if is_invisible(c) {
            found += usize::from(!is_mark);
            if !is_mark && found <= MAX_NAMED_CHARACTERS {
                let code = u32::from(c);
                let name = path.display();
                notices.push(format!(
                    "{name}: line {line} has the hidden character U+{code:04X}; it was removed"
                ));
            }
            continue;
        }
        line += usize::from(c == '\n');
        kept.push(c);
    }
    if found > MAX_NAMED_CHARACTERS {
        let more = found - MAX_NAMED_CHARACTERS;
        notices.push(format!("{}: {more} more hidden characters were removed", path.display()));
    }
    kept
}

#[cfg(test)]
mod tests;
