//! Closes and garbage-collects child Workspaces: one with unmerged changes stays, all others are removed.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::merge_transaction::{has_pending_merge, merge_lock};
use super::registration::Registration;
use super::{ChildWorkspace, ChildWorkspaceError, ChildWorkspaces, CloseOutcome, Shared};
use crate::base::blocking;
use crate::base::files::StateDir;
use crate::base::id::SessionId;
use crate::host::snapshot::ContentStore;

/// The minimum age of a child Workspace without a Log before it counts as abandoned.
const MIN_COLLECT_AGE: Duration = Duration::from_hours(1);

/// Registrations by the parent's Workspace.
type RegistrationsByWorkspace = HashMap<PathBuf, Vec<Registration>>;

impl ChildWorkspaces {
    /// Removes a child Workspace when all its changes are in the parent's Workspace, and keeps it
    /// otherwise.
    pub async fn close(
        &self,
        child_workspace: &ChildWorkspace,
    ) -> Result<CloseOutcome, ChildWorkspaceError> {
        self.close_with_nested(child_workspace, &self.registrations_by_workspace()).await
    }

    async fn close_with_nested(
        &self,
        child_workspace: &ChildWorkspace,
        all: &RegistrationsByWorkspace,
    ) -> Result<CloseOutcome, ChildWorkspaceError> {
        // Without this Workspace, changes of the child's own children could not be merged.
        for inner in self.nested_workspaces(child_workspace, all) {
            if let CloseOutcome::Kept { changes } =
                Box::pin(self.close_with_nested(&inner, all)).await?
            {
                return Ok(CloseOutcome::Kept { changes });
            }
        }
        // An unrecorded merge is rolled back first: what it wrote does not count as merged.
        let _alone = merge_lock().await;
        let own = child_workspace.clone();
        let counted =
            blocking::run_blocking(move || own.recover_merge().and_then(|_| own.count_unmerged()))
                .await;
        let changes = counted.unwrap_or(Err(ChildWorkspaceError::TaskPanicked))?;
        if changes > 0 {
            return Ok(CloseOutcome::Kept { changes });
        }
        self.remove_workspace(&child_workspace.registration).await
    }

    /// Removes ownerless child Workspaces: those that were never finished, and those of children whose Log
    /// is gone. A worktree with uncommitted changes stays. Returns the outcome for each child.
    pub async fn remove_ownerless(
        &self,
    ) -> Vec<(SessionId, Result<CloseOutcome, ChildWorkspaceError>)> {
        let mut collected = Vec::new();
        for registration in self.ownerless_registrations() {
            collected
                .push((registration.child.clone(), self.remove_workspace(&registration).await));
        }
        collected
    }

    /// Removes ownerless child Workspaces, and those of idle children whose changes are all merged.
    pub async fn remove_merged(
        &self,
    ) -> Vec<(SessionId, Result<CloseOutcome, ChildWorkspaceError>)> {
        let mut collected = self.remove_ownerless().await;
        let merged = self.merged_workspaces();
        let all = self.registrations_by_workspace();
        for child_workspace in merged {
            // The child Workspace may have been removed with its parent, or be in use again.
            if !child_workspace.folder().is_dir() || !child_workspace.is_idle() {
                continue;
            }
            collected.push((
                child_workspace.child().clone(),
                self.close_with_nested(&child_workspace, &all).await,
            ));
        }
        collected
    }

    /// Lists what `remove_merged` would remove.
    pub fn list_garbage(&self) -> Vec<(SessionId, PathBuf)> {
        let home = &self.0.home;
        let merged = self
            .merged_workspaces()
            .into_iter()
            .map(|child_workspace| child_workspace.registration);
        let all = self.ownerless_registrations().into_iter().chain(merged);
        all.map(|registration| (registration.child.clone(), registration.directory(home))).collect()
    }

    /// The child Workspaces of idle children whose changes are all merged.
    fn merged_workspaces(&self) -> Vec<ChildWorkspace> {
        let home = &self.0.home;
        let is_old = |registration: &Registration| {
            registration.base.is_some()
                && registration.has_log() == Some(true)
                && registration.age(home) > MIN_COLLECT_AGE
        };
        let all = self.registrations_by_workspace();
        let old = all.values().flatten().filter(|registration| is_old(registration));
        let mut old: Vec<ChildWorkspace> =
            old.map(|registration| self.child_workspace(registration.clone())).collect();
        old.retain(|child_workspace| self.is_merged(child_workspace, &all));
        old.sort_by(|one, other| one.child().cmp(other.child()));
        old
    }

    fn is_merged(&self, child_workspace: &ChildWorkspace, all: &RegistrationsByWorkspace) -> bool {
        let is_settled =
            child_workspace.is_idle() && !has_pending_merge(&child_workspace.parent_folder());
        let is_own = is_settled && matches!(child_workspace.count_unmerged(), Ok(0));
        is_own
            && self
                .nested_workspaces(child_workspace, all)
                .iter()
                .all(|inner| self.is_merged(inner, all))
    }

    /// The child Workspaces whose parent works in this one.
    fn nested_workspaces(
        &self,
        child_workspace: &ChildWorkspace,
        all: &RegistrationsByWorkspace,
    ) -> Vec<ChildWorkspace> {
        let registrations = all.get(child_workspace.folder()).into_iter().flatten();
        let there = registrations
            .filter(|registration| registration.base.is_some() && registration.folder.0.is_dir());
        there.map(|registration| self.child_workspace(registration.clone())).collect()
    }

    /// All present registrations. Each is a file, so they are read once, not once per child Workspace.
    fn registrations_by_workspace(&self) -> RegistrationsByWorkspace {
        let mut all = RegistrationsByWorkspace::new();
        for registration in Registration::read_all(&self.0.home) {
            all.entry(registration.workspace.0.clone()).or_default().push(registration);
        }
        all
    }

    fn ownerless_registrations(&self) -> Vec<Registration> {
        let Shared { home, .. } = &*self.0;
        let is_dead = |registration: &Registration| match registration.base {
            None => !registration.is_being_created(home),
            // A store without the base is not the one where the Log was: the Workspace was moved, and
            // another one has its path now.
            Some(base) => {
                let store = ContentStore::new(registration.state_root().snapshots());
                registration.has_log() == Some(false)
                    && registration.age(home) > MIN_COLLECT_AGE
                    && store.has(&base)
            }
        };
        Registration::read_all(home).into_iter().filter(is_dead).collect()
    }

    async fn remove_workspace(
        &self,
        registration: &Registration,
    ) -> Result<CloseOutcome, ChildWorkspaceError> {
        let Shared { home, .. } = &*self.0;
        let directory = registration.directory(home);
        let mut branch = None;
        if let Some(own) = registration.branch.as_ref().filter(|own| own.top.0.is_dir()) {
            // An unfinished worktree has no work in it, and merged work is not lost.
            let is_saved = registration.base.is_none()
                || self
                    .child_workspace(registration.clone())
                    .count_unmerged()
                    .is_ok_and(|count| count == 0);
            if directory.is_dir() {
                let git = self.git_worktree(&directory);
                if registration.base.is_some() {
                    git.refuse_unreferenced_commit(own).await?;
                }
                branch = git.remove_worktree(own, is_saved).await?;
            }
        }
        match registration.remove_directory(home) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(ChildWorkspaceError::Storage(error));
            }
            _ => {}
        }
        registration.remove(home).map_err(ChildWorkspaceError::Storage)?;
        Ok(CloseOutcome::Removed { branch })
    }
}

/// Removes a folder with everything in it, also where folders are read-only.
pub fn remove_tree(folder: &Path) -> io::Result<()> {
    let parent = StateDir::open_root(folder.parent().unwrap_or(Path::new("/")))?;
    remove_tree_at(&parent, folder.file_name().unwrap_or_default())
}

/// Removes a folder, given by name in an open one, with everything in it. No link is followed.
pub fn remove_tree_at(parent: &StateDir, name: &OsStr) -> io::Result<()> {
    if parent.remove_tree(name)? { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}
