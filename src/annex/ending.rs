//! How annexes end: what is nowhere else stays, everything else is cleared away.

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
use crate::disk;
use crate::files::StateDir;
use crate::id::SessionId;
use crate::snapshot::Store;

/// A child that has no Log yet may be on its way; after this long it is not.
const NEWBORN: Duration = Duration::from_hours(1);

/// Leases, by the Workspace that they branched off.
type Branched = HashMap<PathBuf, Vec<Lease>>;

impl Annexes {
    /// The child's annex goes when everything in it is in the parent's Workspace as well, and stays
    /// when something is nowhere else.
    pub async fn close(&self, annex: &Annex) -> Result<Closed, AnnexError> {
        self.close_among(annex, &self.branched()).await
    }

    async fn close_among(&self, annex: &Annex, all: &Branched) -> Result<Closed, AnnexError> {
        // What children of the child changed could go nowhere without it.
        for inner in self.within(annex, all) {
            if let Closed::Kept { changes } = Box::pin(self.close_among(&inner, all)).await? {
                return Ok(Closed::Kept { changes });
            }
        }
        // A merge that the Log does not know goes back: what it brought over counts for nothing.
        let _alone = alone().await;
        let own = annex.clone();
        let looked = disk::work(move || own.recover().and_then(|_| own.unmerged())).await;
        let changes = looked.unwrap_or(Err(AnnexError::Crashed))?;
        if changes > 0 {
            return Ok(Closed::Kept { changes });
        }
        self.remove(&annex.lease).await
    }

    /// Clears away what belongs to nobody: annexes that were never finished, and those of children
    /// whose Log is gone. A worktree with something that is not committed stays. Says which child's
    /// annexes went, and which stayed and why.
    pub async fn collect(&self) -> Vec<(SessionId, Result<Closed, AnnexError>)> {
        let mut collected = Vec::new();
        for lease in self.ownerless() {
            collected.push((lease.child.clone(), self.remove(&lease).await));
        }
        collected
    }

    /// The same, and those of children at rest that have nothing which is not in their parent's too.
    pub async fn collect_all(&self) -> Vec<(SessionId, Result<Closed, AnnexError>)> {
        let mut collected = self.collect().await;
        let merged = self.merged();
        let all = self.branched();
        for annex in merged {
            // It may have gone with the one that it branched off, or somebody goes on with it.
            if !annex.folder().is_dir() || !annex.is_at_rest() {
                continue;
            }
            collected.push((annex.child().clone(), self.close_among(&annex, &all).await));
        }
        collected
    }

    /// Names what `collect_all` would clear away.
    pub fn waste(&self) -> Vec<(SessionId, PathBuf)> {
        let home = &self.0.home;
        let merged = self.merged().into_iter().map(|annex| annex.lease);
        let all = self.ownerless().into_iter().chain(merged);
        all.map(|lease| (lease.child.clone(), lease.site(home))).collect()
    }

    /// The annexes of children that nobody is at, when everything in them is merged.
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

    /// The annexes that branched off this one.
    fn within(&self, annex: &Annex, all: &Branched) -> Vec<Annex> {
        let leases = all.get(annex.folder()).into_iter().flatten();
        let there = leases.filter(|lease| lease.base.is_some() && lease.folder.0.is_dir());
        there.map(|lease| self.annex(lease.clone())).collect()
    }

    /// All there are at this moment. Each is a file, so nobody reads them again for every annex.
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
            // A store that does not know the base is not the one where the Log was: the Workspace was
            // moved, and another stands there now.
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
            // What was never finished holds nothing of anybody; and what is merged is not lost.
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

/// Removes a folder with everything in it, also where a folder may only be read.
pub fn remove_tree(folder: &Path) -> io::Result<()> {
    let parent = StateDir::open_root(folder.parent().unwrap_or(Path::new("/")))?;
    remove_below(&parent, folder.file_name().unwrap_or_default())
}

/// The same, for a folder in an open one. No link is followed.
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
