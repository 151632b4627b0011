//! Annexes: Workspaces of children's own, and how their changes come back.
//!
//! An annex is a copy of the parent's Workspace, or a worktree of its repository. The child's Log
//! stays beside its parent's; only its files are elsewhere. What it found is kept by hash in the
//! parent's store, so that at any time its changes are the difference to that (`changes`), and
//! can be merged into whatever the parent has by then (`merge`, `deed`), all of them or none.

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

use crate::config::{Config, Durability};
use crate::disk;
use crate::event::{Canonical, PermissionMode};
use crate::files::StateDir;
use crate::history::History;
use crate::id::SessionId;
use crate::log::{self, holder};
use crate::paths::Home;
use crate::sandbox::Profile;
use crate::snapshot::{Limits, Manifest, RawPath, Store, Tracker};
use crate::state::{SessionFolder, StateRoot};
use crate::tool::Commands;
use crate::workspace::Workspace;
use base::{Base, Bases};
use changes::Scene;
use git::Git;
use lease::{Lease, Woven};
use merge::Ground;

/// How many copies are made at the same time; more only wait for the same disk.
const COPIERS: usize = 4;

/// What kind of annex.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// A copy of all files that are not ignored.
    Isolated,
    /// A worktree on a branch of its own.
    Worktree,
}

impl Mode {
    /// The word for it, in calls and in the Log.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Isolated => "isolated",
            Mode::Worktree => "worktree",
        }
    }
}

/// The annexes of this user; cheap to clone.
#[derive(Debug, Clone)]
pub struct Annexes(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    home: Home,
    commands: Commands,
    limits: Limits,
    /// What git is confined to.
    profile: Profile,
    /// Whether a copy is forced to the disk before it counts.
    is_synced: bool,
    bases: Bases,
    /// How many copies are made at the same time: each of them takes a thread.
    copying: Semaphore,
    /// Somebody in this process has cleared away what others left.
    is_swept: AtomicBool,
}

/// An annex to be made.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub child: SessionId,
    pub parent: SessionId,
    /// The name under which the parent knows the child.
    pub subagent: Option<String>,
    /// The state that holds the Logs of both.
    pub logs: StateRoot,
    /// The parent's Workspace.
    pub workspace: Workspace,
    pub mode: Mode,
}

/// What became of an annex that nobody needs any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Closed {
    /// It is gone. A branch that has commits stays, by this name.
    Removed { branch: Option<String> },
    /// It stays: it has changes that are nowhere else.
    Kept { changes: usize },
}

impl Annexes {
    /// Knows where annexes are; touches nothing yet.
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

    /// Makes an annex. When this fails, or is dropped, nothing of it counts, and what is left is
    /// cleared away by `collect`.
    pub async fn make(&self, wanted: Wanted) -> Result<Annex, AnnexError> {
        if !self.0.is_swept.swap(true, Ordering::Relaxed) {
            for (child, closed) in self.collect().await {
                tracing::info!(%child, ?closed, "an annex of nobody");
            }
        }
        let made = match wanted.mode {
            Mode::Isolated => {
                let (own, wished) = (self.clone(), Instant::now());
                // Nobody closes it, so there is always a turn.
                let _turn = self.0.copying.acquire().await.ok();
                let made = move || own.copy(&wanted, wished);
                disk::work(made).await.unwrap_or(Err(AnnexError::Crashed))?
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
            let base = disk::work(survey).await;
            lease.base = Some(base.unwrap_or(Err(AnnexError::Crashed))?.hash);
            lease.keep_base().and_then(|()| lease.write(home)).map_err(AnnexError::Keep)
        };
        let made = made.await;
        drop(making);
        if let Err(error) = made {
            // A branch of that name that was there before is not ours to remove.
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

    /// The annex of a child whose Log is in this Workspace; `None` when it works there itself.
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

    /// The annex of a Session with this History. One that had its own never works anywhere else.
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

    /// The annexes of all children whose Logs are in this Workspace, by the child's id.
    pub fn of_workspace(&self, logs: &StateRoot) -> Vec<Annex> {
        let home = &self.0.home;
        let leases = Lease::all(home).into_iter().filter(|lease| lease.base.is_some());
        let own = leases.filter_map(|lease| lease.brought_to(logs, home).ok().flatten());
        own.map(|lease| self.annex(lease)).collect()
    }

    /// The annexes whose parent is this Session.
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

/// The annex of one child.
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

    /// The name under which the parent knows the child.
    pub fn subagent(&self) -> Option<&str> {
        self.lease.subagent.as_deref()
    }

    pub fn mode(&self) -> Mode {
        self.lease.mode
    }

    /// Where the child works.
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

    /// Where contents are kept.
    pub fn store(&self) -> Store {
        Store::new(self.lease.state_root().snapshots())
    }

    /// The folder of the parent's Session.
    pub fn parent_folder(&self) -> SessionFolder {
        self.lease.state_root().session_folder(&self.lease.parent)
    }

    /// Refuses while the child is at work: what it leaves is not known yet.
    pub fn refuse_busy(&self) -> Result<(), AnnexError> {
        match self.writer_of(&self.lease.child) {
            Some(pid) => Err(AnnexError::Busy { child: self.lease.child.clone(), pid }),
            None => Ok(()),
        }
    }

    /// Whether neither the child nor its parent is open anywhere.
    fn is_at_rest(&self) -> bool {
        [&self.lease.child, &self.lease.parent].into_iter().all(|id| self.writer_of(id).is_none())
    }

    fn writer_of(&self, id: &SessionId) -> Option<u32> {
        holder(&log::open_file(&self.lease.state_root(), id).ok()?)
    }

    /// What the child made of what it found; `parent` says what is ignored.
    pub fn changes(&self, parent: &Workspace) -> Result<Changes, AnnexError> {
        let store = self.store();
        let base = self.lease.base.ok_or(AnnexError::Unfinished { is_being_made: false })?;
        let base = Manifest::kept(&base, &store).map_err(AnnexError::Lost)?;
        let annex = Workspace::open(self.folder())
            .map_err(|_| AnnexError::Gone { folder: self.folder().to_owned() })?;
        Changes::since(&base, &Scene { annex: &annex, parent, store: &store, limits: self.limits })
    }

    /// What it takes to bring these changes to the parent.
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

    /// Brings the changes to the parent, all of them or none.
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
            // Nobody will record it, so it is not left for whoever comes next.
            drop(done);
            recover(parent, &self.store(), &self.parent_folder()).map_err(AnnexError::Keep)?;
            return Err(AnnexError::Keep(error));
        }
        Ok(done)
    }

    /// Notes which texts were made from two.
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

    /// Takes back what a merge of the parent's had written that the Log does not know.
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
