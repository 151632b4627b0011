//! Child Workspaces: children that work in a copy or a git worktree, and the merge of their changes.
//!
//! The child's Log stays next to its parent's; only its files are elsewhere. The files that it started from,
//! its base, are in the parent's content store. So its changes can be computed at any time (`changes`) and
//! merged into the parent's present files (`merge_plan`, `merge_transaction`), all or none.

mod base;
mod changes;
mod cleanup;
mod copy;
mod error;
mod git_tracked;
mod git_worktree;
mod line_merge;
mod merge_child;
mod merge_plan;
mod merge_transaction;
mod registration;
mod side_effects;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use changes::{ChildChanges, escape_path};
pub use error::ChildWorkspaceError;
pub use merge_child::{MergeChild, full_diff, merge_taken_back_event, merged_event};
pub use merge_plan::{MergeConflict, MergePlan};
pub use merge_transaction::{
    AppliedMerge, MergeStep, MergeTransaction, RecoveredMerge, has_pending_merge, merge_lock,
    recover_merge,
};

use crate::base::blocking;
use crate::base::files::StateDir;
use crate::base::id::SessionId;
use crate::base::names::names;
use crate::base::paths::Home;
use crate::host::process::CommandRunner;
use crate::host::sandbox::Profile;
use crate::host::snapshot::{ContentStore, Manifest, RawPath, SurveyLimits, TurnTracker};
use crate::host::workspace::Workspace;
use crate::record::event::{Canonical, PermissionMode};
use crate::record::history::History;
use crate::record::log;
use crate::record::log::lock_holder;
use crate::record::state_dir::{SessionFolder, StateRoot};
use crate::settings::config::{Config, LogDurability};
use base::{BaseCache, BaseManifest};
use changes::CompareContext;
use git_worktree::GitWorktree;
use merge_plan::MergeTarget;
use registration::{LineMergedFile, Registration};

/// How many copies are made at once; more would wait for the same disk.
const MAX_PARALLEL_COPIES: usize = 4;

/// The kind of a child Workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildWorkspaceMode {
    /// A copy of all files that are not ignored.
    Isolated,
    /// A git worktree on its own branch.
    Worktree,
}

names!(ChildWorkspaceMode { Isolated = "isolated", Worktree = "worktree" });

/// All child Workspaces of this user; cheap to clone.
#[derive(Debug, Clone)]
pub struct ChildWorkspaces(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    home: Home,
    commands: CommandRunner,
    limits: SurveyLimits,
    /// The sandbox profile of git.
    profile: Profile,
    /// Whether a copy is synced to the disk before it counts as complete.
    is_synced: bool,
    bases: BaseCache,
    /// Limits the copies that are made at once: each takes a thread.
    copying: Semaphore,
    /// Whether this process has removed ownerless child Workspaces.
    has_collected: AtomicBool,
}

/// The request for a child Workspace.
#[derive(Debug, Clone)]
pub struct ChildWorkspaceRequest {
    pub child: SessionId,
    pub parent: SessionId,
    /// The Subagent id that the parent uses for the child.
    pub subagent: Option<String>,
    /// The state folder for the Logs of parent and child.
    pub logs: StateRoot,
    /// The parent's Workspace.
    pub workspace: Workspace,
    pub mode: ChildWorkspaceMode,
}

/// The outcome of closing a child Workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CloseOutcome {
    /// The Workspace was removed. A branch with commits stays, under this name.
    Removed { branch: Option<String> },
    /// The Workspace stays, because it has this many unmerged changes.
    Kept { changes: usize },
}

impl ChildWorkspaces {
    /// Child Workspaces in the Home folder of this configuration; touches no file.
    pub fn new(config: &Config, commands: CommandRunner) -> Self {
        Self(Arc::new(Shared {
            home: config.home.clone(),
            commands,
            limits: base::survey_limits(&config.workspaces),
            profile: Profile::for_mode(config.sandbox.level, &PermissionMode::Auto),
            is_synced: config.durability != LogDurability::None,
            bases: BaseCache::default(),
            copying: Semaphore::new(MAX_PARALLEL_COPIES),
            has_collected: AtomicBool::new(false),
        }))
    }

    /// Creates a child Workspace. When this fails or is dropped, it stays incomplete, and
    /// `remove_ownerless` removes it later.
    pub async fn create(
        &self,
        request: ChildWorkspaceRequest,
    ) -> Result<ChildWorkspace, ChildWorkspaceError> {
        if !self.0.has_collected.swap(true, Ordering::Relaxed) {
            for (child, closed) in self.remove_ownerless().await {
                tracing::info!(%child, ?closed, "removed an ownerless child Workspace");
            }
        }
        let made = match request.mode {
            ChildWorkspaceMode::Isolated => {
                let (own, requested_at) = (self.clone(), Instant::now());
                // The semaphore is never closed.
                let _turn = self.0.copying.acquire().await.ok();
                let made = move || own.create_copy(&request, requested_at);
                blocking::run_blocking(made)
                    .await
                    .unwrap_or(Err(ChildWorkspaceError::TaskPanicked))?
            }
            ChildWorkspaceMode::Worktree => self.create_worktree(request).await?,
        };
        Ok(self.child_workspace(made))
    }

    fn create_copy(
        &self,
        request: &ChildWorkspaceRequest,
        requested_at: Instant,
    ) -> Result<Registration, ChildWorkspaceError> {
        let Shared { home, limits, bases, .. } = &*self.0;
        let store = ContentStore::new(request.logs.snapshots());
        let base = bases.get_or_survey(&request.workspace, &store, *limits, requested_at)?;
        let directory = home.child_workspaces().join(request.child.as_str());
        let mut registration = new_registration(request, directory.clone());
        let creation_lock = registration.create(home).map_err(ChildWorkspaceError::Storage)?;
        let is_synced = self.0.is_synced;
        let synced =
            |made: StateDir| if is_synced { copy::sync_file_system(&made) } else { Ok(()) };
        let copied = registration::create_registrations_folder(home)
            .map_err(io::Error::from)
            .and_then(|child_workspaces| {
                copy::copy_workspace(&base, &child_workspaces, request.child.as_str().as_ref())
            })
            .and_then(synced);
        let whole = copied.and_then(|()| {
            registration.base = Some(base.hash);
            registration.write_base_reference()?;
            registration.write(home)
        });
        drop(creation_lock);
        if let Err(error) = whole {
            registration.remove_directory(home).ok();
            registration.remove(home).ok();
            return Err(ChildWorkspaceError::Copy(error));
        }
        Ok(registration)
    }

    async fn create_worktree(
        &self,
        request: ChildWorkspaceRequest,
    ) -> Result<Registration, ChildWorkspaceError> {
        let Shared { home, limits, .. } = &*self.0;
        let directory = home.child_workspaces().join(request.child.as_str());
        let git = self.git_worktree(&directory);
        let place = git.locate_workspace(request.workspace.root()).await?;
        let (folder, branch) = git.plan_branch(&place, &request.child);
        let mut registration = new_registration(&request, folder.clone());
        registration.branch = Some(branch.clone());
        let creation_lock = registration.create(home).map_err(ChildWorkspaceError::Storage)?;
        let made = async {
            let child_workspaces = registration::create_registrations_folder(home);
            let made = child_workspaces.and_then(|child_workspaces| {
                child_workspaces.create_new_dir(request.child.as_str())
            });
            made.map_err(|error| ChildWorkspaceError::Storage(error.into()))?;
            git.add_worktree(&branch, &request.child).await?;
            let workspace = Workspace::open(&folder)
                .map_err(|_| ChildWorkspaceError::NotInRepository { workspace: folder.clone() })?;
            let store = ContentStore::new(request.logs.snapshots());
            let limits = *limits;
            let survey = move || BaseManifest::survey(&workspace, store, limits, None);
            let base = blocking::run_blocking(survey).await;
            registration.base = Some(base.unwrap_or(Err(ChildWorkspaceError::TaskPanicked))?.hash);
            registration
                .write_base_reference()
                .and_then(|()| registration.write(home))
                .map_err(ChildWorkspaceError::Storage)
        };
        let made = made.await;
        drop(creation_lock);
        if let Err(error) = made {
            // A branch that existed before must not be removed.
            let is_others = matches!(&error, ChildWorkspaceError::Git { output, .. } if output.contains("already exists"));
            if !is_others {
                git.remove_worktree(&branch, true).await.ok();
            }
            registration.remove_directory(home).ok();
            registration.remove(home).ok();
            return Err(error);
        }
        Ok(registration)
    }

    /// The Workspace of a child whose Log is in this state folder; `None` when the child works in the
    /// shared Workspace.
    pub fn find(
        &self,
        logs: &StateRoot,
        child: &SessionId,
    ) -> Result<Option<ChildWorkspace>, ChildWorkspaceError> {
        let Shared { home, .. } = &*self.0;
        let registration = Registration::read(home, child).map_err(ChildWorkspaceError::Storage)?;
        let own = registration.map(|registration| registration.relocated_to(logs, home));
        let Some(registration) = own.transpose().map_err(ChildWorkspaceError::Storage)?.flatten()
        else {
            return Ok(None);
        };
        if registration.base.is_none() {
            return Err(ChildWorkspaceError::Unfinished {
                is_being_made: registration.is_being_created(home),
            });
        }
        if !registration.folder.0.is_dir() {
            return Err(ChildWorkspaceError::FolderMissing { folder: registration.folder.0 });
        }
        Ok(Some(self.child_workspace(registration)))
    }

    /// The child Workspace of a Session, by its History. A Session that had its own Workspace never works
    /// in another one: an error when it is gone.
    pub fn find_for_session(
        &self,
        logs: &StateRoot,
        child: &SessionId,
        history: &History,
    ) -> Result<Option<ChildWorkspace>, ChildWorkspaceError> {
        let found = self.find(logs, child)?;
        let Some(Canonical::SessionStarted(first)) = history.facts().next() else {
            return Ok(found);
        };
        let mode = first.extra.get("workspace_mode").and_then(|mode| mode.as_str());
        match found {
            None if mode.is_some_and(|mode| mode != "shared") => {
                Err(ChildWorkspaceError::AlreadyClosed { child: child.clone() })
            }
            found => Ok(found),
        }
    }

    /// The child Workspaces of all children whose Logs are in this state folder, ordered by child id.
    pub fn list_for_workspace(&self, logs: &StateRoot) -> Vec<ChildWorkspace> {
        let home = &self.0.home;
        let registrations = Registration::read_all(home)
            .into_iter()
            .filter(|registration| registration.base.is_some());
        let own = registrations
            .filter_map(|registration| registration.relocated_to(logs, home).ok().flatten());
        own.map(|registration| self.child_workspace(registration)).collect()
    }

    /// The child Workspaces of the children of a Session.
    pub fn list_for_parent(&self, logs: &StateRoot, parent: &SessionId) -> Vec<ChildWorkspace> {
        let mut child_workspaces = self.list_for_workspace(logs);
        child_workspaces.retain(|child_workspace| child_workspace.parent() == parent);
        child_workspaces
    }

    fn git_worktree<'a>(&'a self, directory: &'a Path) -> GitWorktree<'a> {
        GitWorktree { commands: &self.0.commands, profile: self.0.profile, directory }
    }

    fn child_workspace(&self, registration: Registration) -> ChildWorkspace {
        ChildWorkspace { registration, limits: self.0.limits, home: self.0.home.clone() }
    }
}

fn new_registration(request: &ChildWorkspaceRequest, folder: PathBuf) -> Registration {
    Registration {
        child: request.child.clone(),
        parent: request.parent.clone(),
        subagent: request.subagent.clone(),
        mode: request.mode,
        logs: RawPath(request.logs.workspace().to_owned()),
        state: registration::external_state_folder(&request.logs),
        workspace: RawPath(request.workspace.root().to_owned()),
        folder: RawPath(folder),
        base: None,
        branch: None,
        merged_by_line: Vec::new(),
    }
}

/// The Workspace of one child.
#[derive(Debug, Clone)]
pub struct ChildWorkspace {
    registration: Registration,
    limits: SurveyLimits,
    home: Home,
}

impl ChildWorkspace {
    pub fn child(&self) -> &SessionId {
        &self.registration.child
    }

    pub fn parent(&self) -> &SessionId {
        &self.registration.parent
    }

    /// The Subagent id that the parent uses for the child.
    pub fn subagent(&self) -> Option<&str> {
        self.registration.subagent.as_deref()
    }

    pub fn mode(&self) -> ChildWorkspaceMode {
        self.registration.mode
    }

    /// The folder of the child's Workspace.
    pub fn folder(&self) -> &Path {
        self.registration.folder.as_ref()
    }

    /// The parent's Workspace.
    pub fn parent_workspace(&self) -> &Path {
        self.registration.workspace.as_ref()
    }

    /// The branch of a worktree.
    pub fn branch(&self) -> Option<&str> {
        self.registration.branch.as_ref().map(|branch| branch.name.as_str())
    }

    /// The store with the contents of the base.
    pub fn store(&self) -> ContentStore {
        ContentStore::new(self.registration.state_root().snapshots())
    }

    /// The folder of the parent's Session.
    pub fn parent_folder(&self) -> SessionFolder {
        self.registration.state_root().session_folder(&self.registration.parent)
    }

    /// Refuses while the child is running: its changes are not final.
    pub fn refuse_busy(&self) -> Result<(), ChildWorkspaceError> {
        match self.writer_pid(&self.registration.child) {
            Some(pid) => {
                Err(ChildWorkspaceError::Busy { child: self.registration.child.clone(), pid })
            }
            None => Ok(()),
        }
    }

    /// Whether neither the child nor its parent is open in any process.
    fn is_idle(&self) -> bool {
        [&self.registration.child, &self.registration.parent]
            .into_iter()
            .all(|id| self.writer_pid(id).is_none())
    }

    fn writer_pid(&self, id: &SessionId) -> Option<u32> {
        lock_holder(&log::open_file(&self.registration.state_root(), id).ok()?)
    }

    /// The changes since the base; `parent` has the ignore rules.
    pub fn find_changes(&self, parent: &Workspace) -> Result<ChildChanges, ChildWorkspaceError> {
        let (store, child) = (self.store(), &open_folder(self.folder())?);
        let context = CompareContext { child, parent, store: &store, limits: self.limits };
        ChildChanges::compare_with_base(&self.base(&store)?, &context)
    }

    /// The files that the child started from.
    fn base(&self, store: &ContentStore) -> Result<Manifest, ChildWorkspaceError> {
        let base = self.registration.base;
        let base = base.ok_or(ChildWorkspaceError::Unfinished { is_being_made: false })?;
        Manifest::load(&base, store).map_err(ChildWorkspaceError::BaseMissing)
    }

    /// Plans the merge of these changes into the parent.
    pub fn plan_merge(
        &self,
        changes: &ChildChanges,
        parent: &Workspace,
        is_unsaved: &dyn Fn(&Path) -> bool,
    ) -> Result<MergePlan, ChildWorkspaceError> {
        let store = self.store();
        let merged_by_line = &self.registration.merged_by_line;
        let target = MergeTarget { workspace: parent, store: &store, merged_by_line, is_unsaved };
        MergePlan::for_changes(changes, &target).map_err(ChildWorkspaceError::Storage)
    }

    /// Applies a merge to the parent's Workspace, all of it or none.
    pub fn apply_merge(
        &self,
        merge: &MergePlan,
        changes: &ChildChanges,
        parent: &Workspace,
        tracker: Option<&TurnTracker>,
        stop: &CancellationToken,
    ) -> Result<AppliedMerge, ChildWorkspaceError> {
        if !merge.conflicts.is_empty() {
            return Err(ChildWorkspaceError::Conflicts(merge.conflicts.clone()));
        }
        let transaction = MergeTransaction::from_merge(merge, self.child(), parent);
        let done = transaction.apply(parent, &self.store(), &self.parent_folder(), tracker, stop);
        let done = done.map_err(ChildWorkspaceError::MergeFailed)?;
        if let Err(error) = self.record_line_merges(merge, changes) {
            // This merge will never be recorded, so it is rolled back at once.
            drop(done);
            recover_merge(parent, &self.store(), &self.parent_folder())
                .map_err(ChildWorkspaceError::Storage)?;
            return Err(ChildWorkspaceError::Storage(error));
        }
        Ok(done)
    }

    /// Records in the registration which files were merged by line.
    fn record_line_merges(&self, merge: &MergePlan, changes: &ChildChanges) -> io::Result<()> {
        if merge.merged_by_line.is_empty() {
            return Ok(());
        }
        let mut registration = self.registration.clone();
        for path in &merge.merged_by_line {
            let left = changes.files.iter().find(|change| change.path == *path);
            let result = merge.files.iter().find(|change| change.path == *path);
            let left = left.and_then(|change| change.to.clone());
            let result = result.and_then(|change| change.to.clone());
            let (Some(left), Some(result)) = (left, result) else { continue };
            registration.merged_by_line.retain(|merged| merged.path.0 != *path);
            registration.merged_by_line.push(LineMergedFile {
                path: RawPath(path.clone()),
                left,
                result,
            });
        }
        registration.write(&self.home)
    }

    /// Rolls back a merge of the parent that is not in its Log.
    fn recover_merge(&self) -> Result<Option<RecoveredMerge>, ChildWorkspaceError> {
        let parent = open_folder(self.parent_workspace())?;
        recover_merge(&parent, &self.store(), &self.parent_folder())
            .map_err(ChildWorkspaceError::Storage)
    }

    /// How many changes are not in the parent's Workspace.
    fn count_unmerged(&self) -> Result<usize, ChildWorkspaceError> {
        let parent = open_folder(self.parent_workspace())?;
        let changes = self.find_changes(&parent)?;
        if changes.is_empty() {
            return Ok(0);
        }
        let merge = self.plan_merge(&changes, &parent, &|_| false)?;
        Ok(merge.files.len() + merge.folders.len() + merge.conflicts.len())
    }
}

fn open_folder(folder: &Path) -> Result<Workspace, ChildWorkspaceError> {
    Workspace::open(folder)
        .map_err(|_| ChildWorkspaceError::FolderMissing { folder: folder.to_owned() })
}
