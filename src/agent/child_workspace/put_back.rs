//! Reverts what Pixir's own checks left in a child's Workspace beside the child's work.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{Annex, AnnexError, Changes};
use crate::host::snapshot::{Change, Manifest, Plan, Restored, State, restore};
use crate::host::workspace::Workspace;

impl Annex {
    /// Restores every path to its state in `before`, except those for which `is_its_own` is true.
    pub fn put_back(
        &self,
        before: &Changes,
        parent: &Workspace,
        is_its_own: &dyn Fn(&Path) -> bool,
    ) -> Result<Restored, AnnexError> {
        let store = self.store();
        let base = self.lease.base.ok_or(AnnexError::Unfinished { is_being_made: false })?;
        let base = Manifest::kept(&base, &store).map_err(AnnexError::Lost)?;
        let now = self.changes(parent)?;
        let plan = plan(&base, before, &now, is_its_own);
        let annex = Workspace::open(self.folder())
            .map_err(|_| AnnexError::Gone { folder: self.folder().to_owned() })?;
        Ok(restore(&plan, &annex, &store))
    }
}

/// The plan to get from `now` to `before`, which are both differences to the base.
fn plan(
    base: &Manifest,
    before: &Changes,
    now: &Changes,
    is_its_own: &dyn Fn(&Path) -> bool,
) -> Plan {
    let mut plan = Plan::default();
    let (files_before, files_now) = (files_of(before), files_of(now));
    let file = |changed: &BTreeMap<&Path, &Change>, path: &Path| -> Option<State> {
        let own = changed.get(path);
        own.map_or_else(|| base.state(path).cloned(), |change| change.to.clone())
    };
    let folder = |changes: &Changes, path: &Path| -> Option<u32> {
        let own = changes.folders.iter().find(|change| change.path == path);
        own.map_or_else(|| base.folders.get(path).copied(), |change| change.to)
    };
    let files: BTreeSet<&Path> = files_before.keys().chain(files_now.keys()).copied().collect();
    for path in files.into_iter().filter(|path| !is_its_own(path)) {
        let (from, to) = (file(&files_now, path), file(&files_before, path));
        if from != to {
            plan.changes.push(Change { path: path.to_owned(), from, to });
        }
    }
    // Files that became too large or unreadable since.
    let unseen: BTreeSet<&PathBuf> = before.unreadable.iter().map(|(path, _)| path).collect();
    for (path, _) in &now.unreadable {
        if !is_its_own(path) && !unseen.contains(path) {
            let to = file(&files_before, path);
            plan.changes.push(Change { path: path.clone(), from: None, to });
        }
    }
    let folders: BTreeSet<&PathBuf> =
        before.folders.iter().chain(&now.folders).map(|change| &change.path).collect();
    for path in folders.into_iter().filter(|path| !is_its_own(path)) {
        match (folder(now, path), folder(before, path)) {
            (Some(_), None) => plan.remove.push(path.clone()),
            (None, Some(mode)) => plan.make.push((path.clone(), Some(mode))),
            (Some(from), Some(to)) if from != to => plan.modes.push((path.clone(), to)),
            _ => {}
        }
    }
    // Innermost folders first.
    plan.remove.reverse();
    plan
}

fn files_of(changes: &Changes) -> BTreeMap<&Path, &Change> {
    changes.files.iter().map(|change| (change.path.as_path(), change)).collect()
}
