//! Scratch folder: the private temp folder of a Session's commands, removed when the Session ends.
//!
//! Its owner holds a lock on it. The kernel drops the lock when the owner dies, so the next process
//! can recognise abandoned folders and remove them.
#![expect(clippy::disallowed_methods, reason = "the private folder of a command")]

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::FlockOperation;

use crate::base::files::StateDir;

/// The prefix of the names of scratch folders.
const SCRATCH_PREFIX: &str = "pixir-scratch-";
/// The minimum age of a folder that is removed, because a younger one may not be locked yet.
const LEAST_AGE: Duration = Duration::from_mins(1);

/// A private temp folder; removed when dropped.
#[derive(Debug)]
pub struct ScratchFolder {
    folder: PathBuf,
    _lock: File,
}

impl ScratchFolder {
    /// Creates a scratch folder in the temp folder of the machine.
    pub fn new(parent: &Path) -> io::Result<Self> {
        remove_abandoned(parent);
        let folder = parent.join(format!("{SCRATCH_PREFIX}{:016x}", fastrand::u64(..)));
        let private = |path: &Path| DirBuilder::new().mode(0o700).create(path);
        private(&folder)?;
        let lock = File::open(&folder)?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        let scratch = Self { folder: folder.canonicalize()?, _lock: lock };
        private(&temp_folder(&folder))?;
        private(&layers_folder(&folder))?;
        DirBuilder::new().mode(0o0).create(empty_folder(&folder))?;
        fs::OpenOptions::new().write(true).create_new(true).mode(0o0).open(empty_file(&folder))?;
        Ok(scratch)
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.folder
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        remove_scratch(&self.folder);
    }
}

/// The temp folder of commands.
pub fn temp_folder(scratch: &Path) -> PathBuf {
    scratch.join("tmp")
}
/// The folder with layers for overlays.
pub fn layers_folder(scratch: &Path) -> PathBuf {
    scratch.join("layers")
}
/// An unreadable folder that is mounted over hidden folders.
pub fn empty_folder(scratch: &Path) -> PathBuf {
    scratch.join("empty")
}
/// An unreadable file that is mounted over hidden files.
pub fn empty_file(scratch: &Path) -> PathBuf {
    scratch.join("nothing")
}

/// Removes the folders of owners that have died.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    let own = rustix::process::geteuid().as_raw();
    for entry in entries.filter_map(Result::ok) {
        let is_scratch = |name: &OsStr| name.to_string_lossy().starts_with(SCRATCH_PREFIX);
        let Some(found) = Some(entry).filter(|entry| is_scratch(&entry.file_name())) else {
            continue;
        };
        let Ok(metadata) = found.metadata() else { continue };
        let age =
            metadata.modified().ok().and_then(|then| SystemTime::now().duration_since(then).ok());
        let is_old = age.is_some_and(|age| age > LEAST_AGE);
        if !metadata.is_dir() || metadata.uid() != own || !is_old {
            continue;
        }
        let Ok(folder) = File::open(found.path()) else { continue };
        if rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok() {
            remove_scratch(&found.path());
        }
    }
}

/// Removes a folder, even one in which a command removed rights of the owner.
fn remove_scratch(folder: &Path) {
    let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else { return };
    let removed = StateDir::open_root(parent).and_then(|parent| parent.remove_tree(name));
    if let Err(error) = removed {
        tracing::warn!(folder = %folder.display(), %error, "scratch folder not removed");
    }
}
