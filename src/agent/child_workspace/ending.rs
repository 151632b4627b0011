//! Closes and garbage-collects child Workspaces: one with unmerged changes stays, all others are removed.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::deed::{alone, is_pending};
use super::lease::Lease;
use super::{Annex, AnnexError, Annexes, Closed, Shared};
use crate::base::blocking;
use crate::base::files::StateDir;
use crate::base::id::SessionId;
use crate::host::snapshot::Store;

/// The minimum age of a child Workspace without a Log before it counts as abandoned.
const NEWBORN: Duration = Duration::from_hours(1);

/// Registrations by the parent's Workspace.
type Branched = HashMap<PathBuf, Vec<Lease>>;

impl Annexes {
    /// Removes a child Workspace when all its changes are in the parent's Workspace, and keeps it
    /// otherwise.
    pub async fn close(&self, annex: &Annex) -> Result<Closed, AnnexError> {
        self.close_among(annex, &self.branched()).await
    }

    async fn close_among(&self, annex: &Annex, all: &Branched) -> Result<Closed, AnnexError> {
        // Changes of the child's own children could be merged nowhere without it.
        for inner in self.within(annex, all) {
            if let Closed::Kept { changes } = Box::pin(self.close_among(&inner, all)).await? {
                return Ok(Closed::Kept { changes });
            }
        }
        // An unrecorded merge is rolled back first: what it wrote does not count as merged.
        let _alone = alone().await;
        let own = annex.clone();
        let looked = blocking::work(move || own.recover().and_then(|_| own.unmerged())).await;
        let changes = looked.unwrap_or(Err(AnnexError::Crashed))?;
        if changes > 0 {
            return Ok(Closed::Kept { changes });
        }
        self.remove(&annex.lease).await
    }

    /// Removes ownerless child Workspaces: those that were never finished, and those of children whose Log
    /// is gone. A worktree with uncommitted changes stays. Returns the outcome for each child.
    pub async fn collect(&self) -> Vec<(SessionId, Result<Closed, AnnexError>)> {
        let mut collected = Vec::new();
        for lease in self.ownerless() {
            collected.push((lease.child.clone(), self.remove(&lease).await));
        }
        collected
    }

    /// Removes ownerless child Workspaces, and those of idle children whose changes are all merged.
    pub async fn collect_all(&self) -> Vec<(SessionId, Result<Closed, AnnexError>)> {
        let mut collected = self.collect().await;
        let merged = self.merged();
        let all = self.branched();
        for annex in merged {
            // It may have been removed with its parent, or be in use again.
            if !annex.folder().is_dir() || !annex.is_at_rest() {
                continue;
            }
            collected.push((annex.child().clone(), self.close_among(&annex, &all).await));
        }
        collected
    }

    /// Lists what `remove_merged` would remove.
    pub fn waste(&self) -> Vec<(SessionId, PathBuf)> {
        let home = &self.0.home;
        let merged = self.merged().into_iter().map(|annex| annex.lease);
        let all = self.ownerless().into_iter().chain(merged);
        all.map(|lease| (lease.child.clone(), lease.site(home))).collect()
    }

    /// The child Workspaces of idle children whose changes are all merged.
    fn merged(&self) -> Vec<Annex> {
        let home = &self.0.home;
        let is_old = |lease: &Lease| {
            lease.base.is_some() && lease.has_log() == Some(true) && lease.age(home) > NEWBORN
        };
        let all = self.branched();
        let old = all.values().flatten().filter(|lease| is_old(lease));
        let mut old: Vec<Annex> = old.map(|lease| self.annex(lease.clone())).collect();
        old.retain(|annex| self.is_merged(annex, &all));
        old.sort_by(|one, other| one.child().cmp(other.child()));
        old
    }

    fn is_merged(&self, annex: &Annex, all: &Branched) -> bool {
        let is_settled = annex.is_at_rest() && !is_pending(&annex.parent_folder());
        let is_own = is_settled && matches!(annex.unmerged(), Ok(0));
        is_own && self.within(annex, all).iter().all(|inner| self.is_merged(inner, all))
    }

    /// The child Workspaces whose parent Workspace is this one.
    fn within(&self, annex: &Annex, all: &Branched) -> Vec<Annex> {
        let leases = all.get(annex.folder()).into_iter().flatten();
        let there = leases.filter(|lease| lease.base.is_some() && lease.folder.0.is_dir());
        there.map(|lease| self.annex(lease.clone())).collect()
    }

    /// All present registrations. Each is a file, so they are read once, not once per child Workspace.
    fn branched(&self) -> Branched {
        let mut all = Branched::new();
        for lease in Lease::all(&self.0.home) {
            all.entry(lease.workspace.0.clone()).or_default().push(lease);
        }
        all
    }

    fn ownerless(&self) -> Vec<Lease> {
        let Shared { home, .. } = &*self.0;
        let is_dead = |lease: &Lease| match lease.base {
            None => !lease.is_being_made(home),
            // A store without the base is not the one where the Log was: the Workspace was moved, and
            // another one has its path now.
            Some(base) => {
                let store = Store::new(lease.state_root().snapshots());
                lease.has_log() == Some(false) && lease.age(home) > NEWBORN && store.has(&base)
            }
        };
        Lease::all(home).into_iter().filter(is_dead).collect()
    }

    async fn remove(&self, lease: &Lease) -> Result<Closed, AnnexError> {
        let Shared { home, .. } = &*self.0;
        let site = lease.site(home);
        let mut branch = None;
        if let Some(own) = lease.branch.as_ref().filter(|own| own.top.0.is_dir()) {
            // An unfinished worktree has no work in it, and merged work is not lost.
            let is_saved = lease.base.is_none()
                || self.annex(lease.clone()).unmerged().is_ok_and(|count| count == 0);
            if site.is_dir() {
                let git = self.git(&site);
                if lease.base.is_some() {
                    git.refuse_loose(own).await?;
                }
                branch = git.remove(own, is_saved).await?;
            }
        }
        match lease.remove_site(home) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(AnnexError::Keep(error));
            }
            _ => {}
        }
        lease.remove(home).map_err(AnnexError::Keep)?;
        Ok(Closed::Removed { branch })
    }
}

/// Removes a folder with everything in it, also where folders are read-only.
pub fn remove_tree(folder: &Path) -> io::Result<()> {
    let parent = StateDir::open_root(folder.parent().unwrap_or(Path::new("/")))?;
    remove_below(&parent, folder.file_name().unwrap_or_default())
}

/// Removes a folder, given by name in an open one, with everything in it. No link is followed.
pub fn remove_below(parent: &StateDir, name: &OsStr) -> io::Result<()> {
    let removed = match parent.remove_tree(name) {
        Err(error) if error.io_kind() == io::ErrorKind::PermissionDenied => {
            make_writable(parent, name)?;
            parent.remove_tree(name)?
        }
        removed => removed?,
    };
    if removed { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// Lets the owner write in a folder and in all folders below it.
fn make_writable(parent: &StateDir, name: &OsStr) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let held = match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Ok(held) => held,
        Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    // A folder that its owner may not read cannot be opened for `fchmod`, and `chmod` by name would
    // follow a link that took its place meanwhile.
    rustix::fs::chmod(format!("/proc/self/fd/{}", held.as_raw_fd()), Mode::RWXU)?;
    let Some(folder) = parent.open_dir(name)? else { return Ok(()) };
    for inner in folder.names()? {
        make_writable(&folder, &inner)?;
    }
    Ok(())
}
