//! Cache slots: folders below Pixir's home that hold the private layers of commands over package caches.
//!
//! A slot belongs to one supervisor at a time, which holds a lock on it as long as its mounts exist. The
//! kernel drops the lock when the supervisor dies. While a supervisor releases its slot, which takes longer
//! than Pixir waits at exit, the lock is shared, and the next supervisor waits for it. The most recently
//! used slot is locked first, so that the next command, also of another Session, finds what the last one
//! downloaded. Workspaces share no slots: files that a command of one of them wrote would be built into
//! programs of the other.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, FlockOperation, Timespec, Timestamps, UTIME_NOW};

use crate::base::files::{StateDir, StateError, StatePath};
use crate::base::id::sha256;

/// The maximum number of free slots that are kept.
const KEPT_SLOTS: usize = 16;
/// The maximum number of attempts to create a new slot; another process may remove it before it is locked.
const ATTEMPTS: usize = 8;
/// Time limit for a slot that another supervisor is releasing.
const RETURN_TIMEOUT: Duration = Duration::from_millis(500);
/// The interval between two attempts to lock a slot that is being released.
const RETURN_POLL: Duration = Duration::from_micros(500);
/// The name of an overlay's work folder. It is removed with the mount: where it still exists, the
/// supervisor died first, and the content of the slot is not used again.
pub const WORK_FOLDER: &str = "work";
/// The name of the folder with the private folders that replace caches.
pub const PRIVATE_FOLDER: &str = "private";

/// A slot, locked by this process.
#[derive(Debug)]
pub struct CacheSlot {
    /// The folder of all slots.
    pub parent: StateDir,
    pub folder: StateDir,
    pub name: OsString,
    lock: File,
}

/// A slot that no supervisor uses.
#[derive(Debug)]
pub struct FreeSlot {
    pub name: OsString,
    pub bytes: u64,
    /// Time of the last use, in seconds and nanoseconds.
    pub used: (i64, i64),
}

impl CacheSlot {
    /// Locks the most recently used free slot of an owner, or a new one.
    pub fn lock_or_create(folder: &StatePath, owner: &str) -> Result<Self, StateError> {
        let all = folder.create_with_root()?;
        let is_own = |name: &OsString| name.to_str().is_some_and(|name| name.starts_with(owner));
        for name in slots_by_last_use(&all)?.into_iter().filter(is_own) {
            if let Some(slot) = Self::try_lock(&all, &name, RETURN_TIMEOUT)
                && slot.was_unmounted()
            {
                mark_used(&slot.folder);
                return Ok(slot);
            }
        }
        for _ in 0..ATTEMPTS {
            let name = OsString::from(format!("{owner}-{:016x}", fastrand::u64(..)));
            all.create_new_dir(&name)?;
            if let Some(slot) = Self::try_lock(&all, &name, Duration::ZERO) {
                return Ok(slot);
            }
        }
        Err(StateError::io(all.path(), rustix::io::Errno::BUSY))
    }

    /// Converts the lock to a shared one, which shows other processes that the slot is being released. False when
    /// another process has the lock: the kernel may drop it during the conversion.
    pub fn share_lock(&self) -> bool {
        rustix::fs::flock(&self.lock, FlockOperation::NonBlockingLockShared).is_ok()
    }

    /// Locks one slot; `None` when it is in use, missing, or not a folder that the user owns. Waits up to
    /// `timeout` for a slot that is being released.
    fn try_lock(all: &StateDir, name: &OsStr, timeout: Duration) -> Option<Self> {
        let folder = all.open_dir(name).ok()??;
        let lock = folder.lock_handle().ok()?;
        if !acquire_lock(&lock, timeout) {
            return None;
        }
        // The slot may have been removed, and created again, before it was locked.
        let own = rustix::fs::fstat(&lock).ok()?;
        let there = all.stat(name).ok()??;
        let is_same = (own.st_dev, own.st_ino) == (there.device, there.inode);
        is_same.then(|| Self { parent: all.clone(), folder, name: name.to_owned(), lock })
    }

    /// Whether the last supervisor that used the slot has unmounted everything.
    fn was_unmounted(&self) -> bool {
        let Ok(names) = self.folder.names() else { return false };
        names.iter().all(|name| match self.folder.open_dir(name) {
            Ok(Some(inner)) => matches!(inner.stat(WORK_FOLDER), Ok(None)),
            _ => false,
        })
    }
}

/// Acquires the lock of a slot, unless another process holds it. Waits up to `timeout` while that process
/// releases the slot.
fn acquire_lock(lock: &File, timeout: Duration) -> bool {
    let is_granted = |operation| rustix::fs::flock(lock, operation).is_ok();
    let deadline = Instant::now() + timeout;
    loop {
        if is_granted(FlockOperation::NonBlockingLockExclusive) {
            return true;
        }
        let is_returned = is_granted(FlockOperation::NonBlockingLockShared);
        // The shared lock is dropped while sleeping, because it would block other waiting processes.
        rustix::fs::flock(lock, FlockOperation::NonBlockingUnlock).ok();
        if !is_returned || Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(RETURN_POLL);
    }
}

/// Sets the time of the last use of a slot to now.
pub fn mark_used(folder: &StateDir) {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    rustix::fs::futimens(folder, &times).ok();
}

/// The name of a cache's folder in a slot.
pub fn cache_name(cache: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let mut name = sha256(cache.as_os_str().as_bytes());
    name.truncate(16);
    name
}

/// All slots, the most recently used first.
fn slots_by_last_use(all: &StateDir) -> Result<Vec<OsString>, StateError> {
    let mut slots = all.entries()?;
    slots.retain(|entry| entry.kind == FileType::Directory && entry.is_own);
    slots.sort_by_key(|entry| std::cmp::Reverse(entry.modified));
    Ok(slots.into_iter().map(|entry| entry.name).collect())
}

/// Removes free slots that are too many, too large, or were left by a supervisor that died.
pub fn prune_slots(all: &StateDir, max_bytes: u64) {
    for (place, name) in slots_by_last_use(all).unwrap_or_default().into_iter().enumerate() {
        // The size is measured before the slot is locked, so that a command can use the slot meanwhile.
        let is_useless = place >= KEPT_SLOTS || all.tree_bytes(&name) > max_bytes;
        let Some(slot) = CacheSlot::try_lock(all, &name, Duration::ZERO) else { continue };
        if (is_useless || !slot.was_unmounted())
            && let Err(error) = all.remove_tree(&name)
        {
            tracing::debug!(%error, "a cache slot was not removed");
        }
    }
}

/// The slots that no supervisor uses.
pub fn free_slots(folder: &StatePath) -> Vec<FreeSlot> {
    let Ok(Some(all)) = folder.open() else { return Vec::new() };
    let names = slots_by_last_use(&all).unwrap_or_default().into_iter();
    let free = names.filter(|name| CacheSlot::try_lock(&all, name, RETURN_TIMEOUT).is_some());
    let with_size = free.filter_map(|name| {
        let used = all.stat(&name).ok()??.modified;
        Some(FreeSlot { bytes: all.tree_bytes(&name), name, used })
    });
    with_size.collect()
}

/// Removes a slot unless a supervisor uses it; true when it was removed.
pub fn remove_slot(folder: &StatePath, name: &OsStr) -> Result<bool, StateError> {
    let Some(all) = folder.open()? else { return Ok(false) };
    match CacheSlot::try_lock(&all, name, RETURN_TIMEOUT) {
        Some(_slot) => all.remove_tree(name),
        None => Ok(false),
    }
}
