//! Reverts the side effects of Pixir's own checks in a child's Workspace.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{ChildChanges, ChildWorkspace, ChildWorkspaceError, open_folder};
use crate::host::snapshot::{
    FileChange, FileState, Manifest, RestoreOutcome, RestorePlan, restore,
};
use crate::host::workspace::Workspace;

impl ChildWorkspace {
    /// Restores every path to its state in `before`, except those for which `is_its_own` is true.
    pub fn revert_side_effects(
        &self,
        before: &ChildChanges,
        parent: &Workspace,
        is_its_own: &dyn Fn(&Path) -> bool,
    ) -> Result<RestoreOutcome, ChildWorkspaceError> {
        let store = self.store();
        let now = self.find_changes(parent)?;
        let plan = plan_revert(&self.base(&store)?, before, &now, is_its_own);
        Ok(restore(&plan, &open_folder(self.folder())?, &store))
    }
}

/// The plan to restore `before` from `now`; both are changes since the base.
fn plan_revert(
    base: &Manifest,
    before: &ChildChanges,
    now: &ChildChanges,
    is_its_own: &dyn Fn(&Path) -> bool,
) -> RestorePlan {
    let mut plan = RestorePlan::default();
    let (files_before, files_now) = (files_by_path(before), files_by_path(now));
    let file = |changed: &BTreeMap<&Path, &FileChange>, path: &Path| -> Option<FileState> {
        let own = changed.get(path);
        own.map_or_else(|| base.state(path).cloned(), |change| change.to.clone())
    };
    let folder = |changes: &ChildChanges, path: &Path| -> Option<u32> {
        let own = changes.folders.iter().find(|change| change.path == path);
        own.map_or_else(|| base.folders.get(path).copied(), |change| change.to)
    };
    let files: BTreeSet<&Path> = files_before.keys().chain(files_now.keys()).copied().collect();
    for path in files.into_iter().filter(|path| !is_its_own(path)) {
        let (from, to) = (file(&files_now, path), file(&files_before, path));
        if from != to {
            plan.changes.push(FileChange { path: path.to_owned(), from, to });
        }
    }
    // Files that became too large or unreadable since.
    let unseen: BTreeSet<&PathBuf> = before.unreadable.iter().map(|(path, _)| path).collect();
    for (path, _) in &now.unreadable {
        if !is_its_own(path) && !unseen.contains(path) {
            let to = file(&files_before, path);
            plan.changes.push(FileChange { path: path.clone(), from: None, to });
        }
    }
    let folders: BTreeSet<&PathBuf> =
        before.folders.iter().chain(&now.folders).map(|change| &change.path).collect();
    for path in folders.into_iter().filter(|path| !is_its_own(path)) {
        match (folder(now, path), folder(before, path)) {
            (Some(_), None) => plan.remove_folders.push(path.clone()),
            (None, Some(mode)) => plan.make_folders.push((path.clone(), Some(mode))),
            (Some(from), Some(to)) if from != to => plan.folder_modes.push((path.clone(), to)),
            _ => {}
        }
    }
    // Innermost folders first.
    plan.remove_folders.reverse();
    plan
}

fn files_by_path(changes: &ChildChanges) -> BTreeMap<&Path, &FileChange> {
    changes.files.iter().map(|change| (change.path.as_path(), change)).collect()
}
