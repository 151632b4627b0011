//! The files of a Workspace by name, for completion; ignored and hidden ones are left out.

use std::path::Path;
use std::time::Duration;

use ignore::overrides::Override;

use crate::host::walk::{WalkEntryKind, WalkOptions, WalkStop, walk};
use crate::host::workspace::Workspace;

/// How long a Workspace is walked; what was found until then is used.
const TIME_LIMIT: Duration = Duration::from_secs(3);

/// The most names, so that a huge Workspace costs bounded memory.
const MOST_NAMES: usize = 200_000;

/// How deep folders are read.
const DEPTH: usize = 64;

/// The names of files and folders relative to the Workspace, sorted; those of folders end with a slash. Names that
/// are not UTF-8 are left out. Blocks on the disk.
pub fn workspace_files(folder: &Path) -> Vec<String> {
    let Ok(workspace) = Workspace::open(folder) else { return Vec::new() };
    let stop = WalkStop::with_timeout(TIME_LIMIT);
    let options = WalkOptions {
        workspace: &workspace,
        stop: &stop,
        start: Path::new(""),
        all: false,
        hidden: false,
        globs: &Override::empty(),
        depth: DEPTH,
        shares_files: false,
    };
    let (found, _) = walk(&options, Vec::new, |names: &mut Vec<String>, _, entry| {
        if let Ok(name) = std::str::from_utf8(entry.path)
            && names.len() < MOST_NAMES
        {
            let end = if entry.kind == WalkEntryKind::Folder { "/" } else { "" };
            names.push(format!("{name}{end}"));
        }
        true
    });
    let mut names = found.concat();
    names.sort_unstable();
    names.truncate(MOST_NAMES);
    names
}
