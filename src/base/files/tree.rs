//! Whole trees below a state folder: their size, and their removal.
//!
//! A command may have made the tree: it can have more levels than a process has descriptors, and its folders may
//! deny access to their owner.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{COMMON_FLAGS, FOLDER_FLAGS, StateDir, StateError, is_own};

/// How many levels are open at once; each costs a descriptor.
const DEEPEST_TREE: usize = 100;

impl StateDir {
    /// Removes an entry with everything in it, following no link; true when there was one.
    pub fn remove_tree(&self, name: impl AsRef<OsStr>) -> Result<bool, StateError> {
        let name = self.check_name(name.as_ref())?;
        let folder = match self.open_to_remove(name)? {
            EntryToRemove::Folder(folder) => folder,
            EntryToRemove::Missing => return Ok(false),
            EntryToRemove::Other => return self.unlink(name, AtFlags::empty()),
        };
        // Folders that were too deep have been moved up, and are found by the next pass.
        loop {
            let inside = folder.names()?;
            if inside.is_empty() {
                return self.unlink(name, AtFlags::REMOVEDIR);
            }
            for inner in inside {
                folder.remove_level(&inner, DEEPEST_TREE, &folder)?;
            }
        }
    }

    fn remove_level(&self, name: &OsStr, depth: usize, top: &Self) -> Result<(), StateError> {
        let folder = match self.open_to_remove(name)? {
            EntryToRemove::Folder(folder) => folder,
            EntryToRemove::Missing => return Ok(()),
            EntryToRemove::Other => return self.unlink(name, AtFlags::empty()).map(drop),
        };
        if depth == 0 {
            return self.rename(name, top, format!("{:016x}", fastrand::u64(..)));
        }
        for inner in folder.names()? {
            folder.remove_level(&inner, depth - 1, top)?;
        }
        self.unlink(name, AtFlags::REMOVEDIR).map(drop)
    }

    /// Opens a folder that is to be removed, and gives its owner all rights in it.
    fn open_to_remove(&self, name: &OsStr) -> Result<EntryToRemove, StateError> {
        let open = |flags| rustix::fs::openat(&self.fd, name, flags, Mode::empty());
        let opened = match open(FOLDER_FLAGS) {
            Err(Errno::ACCESS) => {
                open(COMMON_FLAGS | OFlags::DIRECTORY | OFlags::PATH).and_then(|fd| {
                    // A descriptor that only names a folder cannot be used to change it, but its name can.
                    let name = format!("/proc/self/fd/{}", fd.as_raw_fd());
                    grant_owner_access(&fd, |mode| rustix::fs::chmod(name, mode))?;
                    open(FOLDER_FLAGS)
                })
            }
            opened => opened,
        };
        match opened {
            Ok(fd) => {
                let opened = grant_owner_access(&fd, |mode| rustix::fs::fchmod(&fd, mode));
                opened.map_err(|errno| StateError::io(self.path.join(name), errno))?;
                Ok(EntryToRemove::Folder(self.child(name, fd)))
            }
            Err(Errno::NOENT) => Ok(EntryToRemove::Missing),
            Err(Errno::LOOP | Errno::NOTDIR | Errno::NXIO) => Ok(EntryToRemove::Other),
            Err(errno) => Err(StateError::io(self.path.join(name), errno)),
        }
    }

    /// The total size in bytes of the files in a folder inside, without those that cannot be opened or are nested too
    /// deep.
    pub fn tree_bytes(&self, name: impl AsRef<OsStr>) -> u64 {
        self.level_bytes(name.as_ref(), DEEPEST_TREE)
    }

    fn level_bytes(&self, name: &OsStr, depth: usize) -> u64 {
        let opened = if depth == 0 { Ok(None) } else { self.open_dir(name) };
        let Ok(Some(folder)) = opened else { return 0 };
        let entries = folder.entries().unwrap_or_default().into_iter();
        let sizes = entries.map(|entry| match entry.kind {
            FileType::Directory => folder.level_bytes(&entry.name, depth - 1),
            _ => entry.bytes,
        });
        sizes.fold(0, u64::saturating_add)
    }
}

/// An entry that is to be removed.
enum EntryToRemove {
    Missing,
    Folder(StateDir),
    Other,
}

/// Gives the owner of a folder all rights in it.
fn grant_owner_access(
    folder: &OwnedFd,
    change: impl FnOnce(Mode) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let found = rustix::fs::fstat(folder)?;
    if found.st_mode & 0o700 == 0o700 || !is_own(&found) {
        return Ok(());
    }
    change(Mode::from_raw_mode(found.st_mode & 0o7777 | 0o700))
}
