//! Drafts among the user's files: temporary files of a replacement that a killed process did not finish.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ignore::overrides::Override;
use rustix::fs::FileType;

use super::gc_folder::{GcFolder, parent_folder};
use super::{GarbageItem, GarbageKind, garbage_item, is_replacement, is_settled};
use crate::base::paths::STATE_FOLDER;
use crate::host::walk::{WalkEntryKind, WalkOptions, WalkStop, walk};
use crate::host::workspace::Workspace;

/// The time limit of the search; drafts that it does not reach are found the next time.
const WALK_TIMEOUT: Duration = Duration::from_mins(2);

/// Drafts of file tools anywhere in a Workspace, by their name.
pub fn abandoned_drafts(workspace: &Path) -> Vec<GarbageItem> {
    let Ok(workspace) = Workspace::open(workspace) else { return Vec::new() };
    let (stop, globs) = (WalkStop::with_timeout(WALK_TIMEOUT), Override::empty());
    let everywhere = WalkOptions {
        workspace: &workspace,
        stop: &stop,
        start: Path::new(""),
        all: true,
        hidden: true,
        globs: &globs,
        depth: usize::MAX,
        shares_files: false,
    };
    let (found, _) = walk(&everywhere, Vec::new, |found: &mut Vec<PathBuf>, _, seen| {
        let path = Path::new(std::ffi::OsStr::from_bytes(seen.path));
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if seen.kind == WalkEntryKind::File && is_replacement(name) {
            found.push(path.to_owned());
        }
        !matches!(name, STATE_FOLDER | ".git")
    });
    let mut paths: Vec<PathBuf> = found.into_iter().flatten().collect();
    paths.sort();
    paths.iter().filter_map(|path| draft_garbage(&workspace.root().join(path))).collect()
}

fn draft_garbage(path: &Path) -> Option<GarbageItem> {
    let gc_folder = GcFolder::open(&parent_folder(path)?)?;
    let found = gc_folder.stat(path.file_name()?.to_str()?)?;
    let is_ours = found.file_type == FileType::RegularFile && is_settled(&found);
    is_ours.then(|| garbage_item(GarbageKind::Leftover, &gc_folder, &found, None))
}
