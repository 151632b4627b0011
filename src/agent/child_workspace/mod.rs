//! Child Workspaces: children that work in a copy or a git worktree, and the merge of their changes.
//!
//! The child's Log stays beside its parent's; only its files are elsewhere. The files that it started from,
//! its base, are in the parent's content store. So its changes can be computed at any time (`changes`) and
//! merged into the parent's present files (`merge_plan`, `merge_transaction`), all or none.

mod base;
mod changes;
mod copy;
mod deed;
mod ending;
mod error;
mod git;
mod lease;
mod lines;
mod merge;
mod merge_child;
mod put_back;
#[cfg(test)]
mod tests;
mod tracked;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use changes::{Changes, shown};
pub use deed::{Deed, Done, Recovered, Step, alone, is_pending, recover};
pub use error::AnnexError;
pub use merge::{Conflict, Merge};
pub use merge_child::{MergeChild, diff, merged, taken_back};

use crate::base::blocking;
use crate::base::files::StateDir;
use crate::base::id::SessionId;
use crate::base::paths::Home;
use crate::host::process::Commands;
use crate::host::sandbox::Profile;
use crate::host::snapshot::{Limits, Manifest, RawPath, Store, Tracker};
use crate::host::workspace::Workspace;
use crate::record::event::{Canonical, PermissionMode};
use crate::record::history::History;
use crate::record::log;
use crate::record::log::holder;
use crate::record::state_dir::{SessionFolder, StateRoot};
use crate::settings::config::{Config, Durability};
use base::{Base, Bases};
use changes::Scene;
use git::Git;
use lease::{Lease, Woven};
use merge::Ground;

/// How many copies are made at once; more would wait for the same disk.
const COPIERS: usize = 4;

/// The kind of a child Workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// A copy of all files that are not ignored.
    Isolated,
    /// A git worktree on its own branch.
    Worktree,
}

impl Mode {
    /// Its name in tool calls and in the Log.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Isolated => "isolated",
            Mode::Worktree => "worktree",
        }
    }
}

/// All child Workspaces of this user; cheap to clone.
#[derive(Debug, Clone)]
pub struct Annexes(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    home: Home,
    commands: Commands,
    limits: Limits,
    /// The sandbox profile of git.
    profile: Profile,
    /// Whether a copy is synced to the disk before it counts as complete.
    is_synced: bool,
    bases: Bases,
    /// Limits the copies that are made at once: each takes a thread.
    copying: Semaphore,
    /// Whether this process has removed ownerless child Workspaces.
    is_swept: AtomicBool,
}

/// The request for a child Workspace.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub child: SessionId,
    pub parent: SessionId,
    /// The Subagent id that the parent uses for the child.
    pub subagent: Option<String>,
    /// The state folder for the Logs of parent and child.
    pub logs: StateRoot,
    /// The parent's Workspace.
    pub workspace: Workspace,
    pub mode: Mode,
}

/// The outcome of closing a child Workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Closed {
    /// It was removed. A branch with commits stays, under this name.
    Removed { branch: Option<String> },
    /// It stays, because it has this many unmerged changes.
    Kept { changes: usize },
}

impl Annexes {
    /// Child Workspaces in the Home folder of this configuration; touches no file.
    pub fn new(config: &Config, commands: Commands) -> Self {
        Self(Arc::new(Shared {
            home: config.home.clone(),
            commands,
            limits: base::limits(&config.workspaces),
            profile: Profile::of(config.sandbox.level, &PermissionMode::Auto),
            is_synced: config.durability != Durability::None,
            bases: Bases::default(),
            copying: Semaphore::new(COPIERS),
            is_swept: AtomicBool::new(false),
        }))
    }

    /// Creates a child Workspace. When this fails or is dropped, it stays incomplete, and
    /// `remove_ownerless` removes it later.
    pub async fn make(&self, wanted: Wanted) -> Result<Annex, AnnexError> {
        if !self.0.is_swept.swap(true, Ordering::Relaxed) {
            for (child, closed) in self.collect().await {
                tracing::info!(%child, ?closed, "removed an ownerless child Workspace");
            }
        }
        let made = match wanted.mode {
            Mode::Isolated => {
                let (own, wished) = (self.clone(), Instant::now());
                // The semaphore is never closed.
                let _turn = self.0.copying.acquire().await.ok();
                let made = move || own.copy(&wanted, wished);
                blocking::work(made).await.unwrap_or(Err(AnnexError::Crashed))?
            }
            Mode::Worktree => self.worktree(wanted).await?,
        };
        Ok(self.annex(made))
    }

    fn copy(&self, wanted: &Wanted, wished: Instant) -> Result<Lease, AnnexError> {
        let Shared { home, limits, bases, .. } = &*self.0;
        let store = Store::new(wanted.logs.snapshots());
        let base = bases.take(&wanted.workspace, &store, *limits, wished)?;
        let site = home.annexes().join(wanted.child.as_str());
        let mut lease = lease_of(wanted, site.clone());
        let making = lease.begin(home).map_err(AnnexError::Keep)?;
        let is_synced = self.0.is_synced;
        let synced = |made: StateDir| if is_synced { copy::sync(&made) } else { Ok(()) };
        let copied = lease::create_folder(home)
            .map_err(io::Error::from)
            .and_then(|annexes| copy::copy(&base, &annexes, wanted.child.as_str().as_ref()))
            .and_then(synced);
        let whole = copied.and_then(|()| {
            lease.base = Some(base.hash);
            lease.keep_base()?;
            lease.write(home)
        });
        drop(making);
        if let Err(error) = whole {
            lease.remove_site(home).ok();
            lease.remove(home).ok();
            return Err(AnnexError::Copy(error));
        }
        Ok(lease)
    }

    async fn worktree(&self, wanted: Wanted) -> Result<Lease, AnnexError> {
        let Shared { home, limits, .. } = &*self.0;
        let site = home.annexes().join(wanted.child.as_str());
        let git = self.git(&site);
        let place = git.place(wanted.workspace.root()).await?;
        let (folder, branch) = git.branch(&place, &wanted.child);
        let mut lease = lease_of(&wanted, folder.clone());
        lease.branch = Some(branch.clone());
        let making = lease.begin(home).map_err(AnnexError::Keep)?;
        let made = async {
            let annexes = lease::create_folder(home);
            let made = annexes.and_then(|annexes| annexes.create_new_dir(wanted.child.as_str()));
            made.map_err(|error| AnnexError::Keep(error.into()))?;
            git.add(&branch, &wanted.child).await?;
            let workspace = Workspace::open(&folder)
                .map_err(|_| AnnexError::NotInRepository { workspace: folder.clone() })?;
            let store = Store::new(wanted.logs.snapshots());
            let limits = *limits;
            let survey = move || Base::of(&workspace, store, limits, None);
            let base = blocking::work(survey).await;
            lease.base = Some(base.unwrap_or(Err(AnnexError::Crashed))?.hash);
            lease.keep_base().and_then(|()| lease.write(home)).map_err(AnnexError::Keep)
        };
        let made = made.await;
        drop(making);
        if let Err(error) = made {
            // A branch that existed before must not be removed.
            let is_others =
                matches!(&error, AnnexError::Git { said, .. } if said.contains("already exists"));
            if !is_others {
                git.remove(&branch, true).await.ok();
            }
            lease.remove_site(home).ok();
            lease.remove(home).ok();
            return Err(error);
        }
        Ok(lease)
    }

    /// The Workspace of a child whose Log is in this state; `None` when the child works in the shared
    /// Workspace.
    pub fn find(&self, logs: &StateRoot, child: &SessionId) -> Result<Option<Annex>, AnnexError> {
        let Shared { home, .. } = &*self.0;
        let lease = Lease::read(home, child).map_err(AnnexError::Keep)?;
        let own = lease.map(|lease| lease.brought_to(logs, home));
        let Some(lease) = own.transpose().map_err(AnnexError::Keep)?.flatten() else {
            return Ok(None);
        };
        if lease.base.is_none() {
            return Err(AnnexError::Unfinished { is_being_made: lease.is_being_made(home) });
        }
        if !lease.folder.0.is_dir() {
            return Err(AnnexError::Gone { folder: lease.folder.0 });
        }
        Ok(Some(self.annex(lease)))
    }

    /// The child Workspace of a Session, by its History. A Session that had its own Workspace never works
    /// in another one: an error when it is gone.
    pub fn place(
        &self,
        logs: &StateRoot,
        child: &SessionId,
        history: &History,
    ) -> Result<Option<Annex>, AnnexError> {
        let found = self.find(logs, child)?;
        let Some(Canonical::SessionStarted(first)) = history.facts().next() else {
            return Ok(found);
        };
        let mode = first.extra.get("workspace_mode").and_then(|mode| mode.as_str());
        match found {
            None if mode.is_some_and(|mode| mode != "shared") => {
                Err(AnnexError::Closed { child: child.clone() })
            }
            found => Ok(found),
        }
    }

    /// The child Workspaces of all children whose Logs are in this state, ordered by the child's id.
    pub fn of_workspace(&self, logs: &StateRoot) -> Vec<Annex> {
        let home = &self.0.home;
        let leases = Lease::all(home).into_iter().filter(|lease| lease.base.is_some());
        let own = leases.filter_map(|lease| lease.brought_to(logs, home).ok().flatten());
        own.map(|lease| self.annex(lease)).collect()
    }

    /// The child Workspaces of the children of a Session.
    pub fn of_parent(&self, logs: &StateRoot, parent: &SessionId) -> Vec<Annex> {
        let mut annexes = self.of_workspace(logs);
        annexes.retain(|annex| annex.parent() == parent);
        annexes
    }

    fn git<'a>(&'a self, site: &'a Path) -> Git<'a> {
        Git { commands: &self.0.commands, profile: self.0.profile, site }
    }

    fn annex(&self, lease: Lease) -> Annex {
        Annex { lease, limits: self.0.limits, home: self.0.home.clone() }
    }
}

fn lease_of(wanted: &Wanted, folder: PathBuf) -> Lease {
    Lease {
        child: wanted.child.clone(),
        parent: wanted.parent.clone(),
        subagent: wanted.subagent.clone(),
        mode: wanted.mode,
        logs: RawPath(wanted.logs.workspace().to_owned()),
        state: lease::elsewhere(&wanted.logs),
        workspace: RawPath(wanted.workspace.root().to_owned()),
        folder: RawPath(folder),
        base: None,
        branch: None,
        woven: Vec::new(),
    }
}

/// The Workspace of one child.
#[derive(Debug, Clone)]
pub struct Annex {
    lease: Lease,
    limits: Limits,
    home: Home,
}

impl Annex {
    pub fn child(&self) -> &SessionId {
        &self.lease.child
    }

    pub fn parent(&self) -> &SessionId {
        &self.lease.parent
    }

    /// The Subagent id that the parent uses for the child.
    pub fn subagent(&self) -> Option<&str> {
        self.lease.subagent.as_deref()
    }

    pub fn mode(&self) -> Mode {
        self.lease.mode
    }

    /// The folder of the child's Workspace.
    pub fn folder(&self) -> &Path {
        self.lease.folder.as_ref()
    }

    /// The parent's Workspace.
    pub fn parent_workspace(&self) -> &Path {
        self.lease.workspace.as_ref()
    }

    /// The branch of a worktree.
    pub fn branch(&self) -> Option<&str> {
        self.lease.branch.as_ref().map(|branch| branch.name.as_str())
    }

    /// The store with the contents of the base.
    pub fn store(&self) -> Store {
        Store::new(self.lease.state_root().snapshots())
    }

    /// The folder of the parent's Session.
    pub fn parent_folder(&self) -> SessionFolder {
        self.lease.state_root().session_folder(&self.lease.parent)
    }

    /// Refuses while the child is running: its changes are not final.
    pub fn refuse_busy(&self) -> Result<(), AnnexError> {
        match self.writer_of(&self.lease.child) {
            Some(pid) => Err(AnnexError::Busy { child: self.lease.child.clone(), pid }),
            None => Ok(()),
        }
    }

    /// Whether neither the child nor its parent is open in any process.
    fn is_at_rest(&self) -> bool {
        [&self.lease.child, &self.lease.parent].into_iter().all(|id| self.writer_of(id).is_none())
    }

    fn writer_of(&self, id: &SessionId) -> Option<u32> {
        holder(&log::open_file(&self.lease.state_root(), id).ok()?)
    }

    /// The changes since the base; `parent` says what is ignored.
    pub fn changes(&self, parent: &Workspace) -> Result<Changes, AnnexError> {
        let store = self.store();
        let base = self.lease.base.ok_or(AnnexError::Unfinished { is_being_made: false })?;
        let base = Manifest::kept(&base, &store).map_err(AnnexError::Lost)?;
        let annex = Workspace::open(self.folder())
            .map_err(|_| AnnexError::Gone { folder: self.folder().to_owned() })?;
        Changes::since(&base, &Scene { annex: &annex, parent, store: &store, limits: self.limits })
    }

    /// Plans the merge of these changes into the parent.
    pub fn merge(
        &self,
        changes: &Changes,
        parent: &Workspace,
        is_unsaved: &dyn Fn(&Path) -> bool,
    ) -> Result<Merge, AnnexError> {
        let store = self.store();
        let woven = &self.lease.woven;
        let ground = Ground { workspace: parent, store: &store, woven, is_unsaved };
        Merge::of(changes, &ground).map_err(AnnexError::Keep)
    }

    /// Applies a merge to the parent's Workspace, all of it or none.
    pub fn carry_out(
        &self,
        merge: &Merge,
        changes: &Changes,
        parent: &Workspace,
        tracker: Option<&Tracker>,
        stop: &CancellationToken,
    ) -> Result<Done, AnnexError> {
        if !merge.conflicts.is_empty() {
            return Err(AnnexError::Conflicts(merge.conflicts.clone()));
        }
        let deed = Deed::of(merge, self.child(), parent);
        let done = deed.carry_out(parent, &self.store(), &self.parent_folder(), tracker, stop);
        let done = done.map_err(AnnexError::Broken)?;
        if let Err(error) = self.remember(merge, changes) {
            // This merge will never be recorded, so it is rolled back at once.
            drop(done);
            recover(parent, &self.store(), &self.parent_folder()).map_err(AnnexError::Keep)?;
            return Err(AnnexError::Keep(error));
        }
        Ok(done)
    }

    /// Notes in the registration which files were merged by line.
    fn remember(&self, merge: &Merge, changes: &Changes) -> io::Result<()> {
        if merge.woven.is_empty() {
            return Ok(());
        }
        let mut lease = self.lease.clone();
        for path in &merge.woven {
            let left = changes.files.iter().find(|change| change.path == *path);
            let result = merge.files.iter().find(|change| change.path == *path);
            let left = left.and_then(|change| change.to.clone());
            let result = result.and_then(|change| change.to.clone());
            let (Some(left), Some(result)) = (left, result) else { continue };
            lease.woven.retain(|woven| woven.path.0 != *path);
            lease.woven.push(Woven { path: RawPath(path.clone()), left, result });
        }
        lease.write(&self.home)
    }

    /// Rolls back a merge of the parent that is not in its Log.
    fn recover(&self) -> Result<Option<Recovered>, AnnexError> {
        let parent = Workspace::open(self.parent_workspace())
            .map_err(|_| AnnexError::Gone { folder: self.parent_workspace().to_owned() })?;
        recover(&parent, &self.store(), &self.parent_folder()).map_err(AnnexError::Keep)
    }

    /// How many changes are not in the parent's Workspace.
    fn unmerged(&self) -> Result<usize, AnnexError> {
        let parent = Workspace::open(self.parent_workspace())
            .map_err(|_| AnnexError::Gone { folder: self.parent_workspace().to_owned() })?;
        let changes = self.changes(&parent)?;
        if changes.is_empty() {
            return Ok(0);
        }
        let merge = self.merge(&changes, &parent, &|_| false)?;
        Ok(merge.files.len() + merge.folders.len() + merge.conflicts.len())
    }
}
