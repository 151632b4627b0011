//! Content store: file contents by hash.
//!
//! A content is in its own file, or in a segment with all contents that a survey stored at once. Contents
//! that are in the Workspace's git repository are not copied.

mod batch;
mod checked_segments;
mod git_pins;
mod open_segment;
mod pinned_repository;
mod segment;
mod size_limit;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::fs::{File, TryLockError};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::ContentHash;
use crate::base::files::{StateDir, StatePath, WriteDurability};
use crate::record::state_dir::SessionFolder;
pub use batch::{BatchLimits, ContentBatch, StoreContentError};
use checked_segments::CheckedSegments;
use git_pins::{GIT_PINS_FOLDER, GitPins};
pub use open_segment::OpenSegment;
use parking_lot::Mutex;
pub use segment::Location as SegmentLocation;
use segment::Segment;
use size_limit::MeasuredSize;

/// The maximum size of a content that is read, in bytes.
const LARGEST: u64 = 16 << 30;
/// The file with the hash of the Manifest of the last survey.
const LAST_MANIFEST_FILE: &str = "last";
/// The folder of segments.
const SEGMENTS: &str = "segments";
/// The maximum size of a segment's table that is read, in bytes.
const LARGEST_TABLE: u64 = 256 << 20;
/// The interval between two attempts to take the lock.
const LOCK_RETRY: Duration = Duration::from_millis(5);

/// A store of immutable contents; cheap to clone.
#[derive(Debug, Clone)]
pub struct ContentStore {
    folder: StatePath,
    /// The segments that were read so far, by name.
    loaded: Arc<Mutex<BTreeMap<String, Arc<OpenSegment>>>>,
    /// The size of the store, if it was measured.
    measured: Arc<Mutex<Option<MeasuredSize>>>,
}

/// A lock on the store, released when dropped or when the process dies. A holder of the shared lock blocks
/// garbage collection until the contents that it stored are referenced.
#[derive(Debug)]
pub struct StoreLock(#[expect(dead_code, reason = "closing the file releases the lock")] File);

impl ContentStore {
    /// A store in this folder, which is created when needed.
    pub fn new(folder: StatePath) -> Self {
        Self { folder, loaded: Arc::default(), measured: Arc::default() }
    }

    /// The store of a Session, in the state folder of its Log, even if the Session works in another folder.
    pub fn for_session(session_folder: &SessionFolder) -> Self {
        Self::new(session_folder.root().snapshots())
    }

    /// The path of the store.
    pub fn path(&self) -> PathBuf {
        self.folder.path()
    }

    /// Opens the file of a content; `None` when the content is in a segment.
    pub fn open_content_file(&self, hash: &ContentHash) -> io::Result<Option<File>> {
        let name = hash.to_string();
        Ok(self.open_shard(&name)?.map(|shard| shard.open_file(&name)).transpose()?.flatten())
    }

    /// Takes the shared lock, which blocks garbage collection.
    pub fn lock_shared(&self) -> io::Result<StoreLock> {
        let folder = self.folder.create()?.lock_handle()?;
        folder.lock_shared()?;
        Ok(StoreLock(folder))
    }

    /// Takes the shared lock; `None` when `is_stopped` becomes true first.
    pub fn lock_shared_unless(
        &self,
        is_stopped: impl Fn() -> bool,
    ) -> io::Result<Option<StoreLock>> {
        let folder = self.folder.create()?.lock_handle()?;
        loop {
            match folder.try_lock_shared() {
                Ok(()) => return Ok(Some(StoreLock(folder))),
                Err(TryLockError::Error(error)) => return Err(error),
                Err(TryLockError::WouldBlock) if is_stopped() => return Ok(None),
                // A blocking lock could not be interrupted.
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_RETRY),
            }
        }
    }

    /// Tries to take the exclusive lock of garbage collection; `None` while the store is in use.
    pub fn try_lock_exclusive(&self) -> Option<StoreLock> {
        let folder = self.folder.open().ok()??.lock_handle().ok()?;
        folder.try_lock().ok().map(|()| StoreLock(folder))
    }

    /// Stores these bytes atomically.
    pub fn put(&self, bytes: &[u8]) -> io::Result<ContentHash> {
        self.put_with_hash(ContentHash::digest(bytes), bytes)
    }

    fn put_with_hash(&self, hash: ContentHash, bytes: &[u8]) -> io::Result<ContentHash> {
        // A file of another length was truncated by a power failure.
        if self.refresh_if_whole(&hash, bytes.len() as u64) {
            return Ok(hash);
        }
        let name = hash.to_string();
        let shard = self.folder.create()?.create_dir(&name[..2])?;
        shard.replace(&name, bytes, WriteDurability::Lazy)?;
        self.add_to_size(bytes.len() as u64);
        Ok(hash)
    }

    /// Whether a content of this length has its own file; updates the time of that file, because garbage
    /// collection removes old unreferenced files.
    pub fn refresh_if_whole(&self, hash: &ContentHash, length: u64) -> bool {
        let name = hash.to_string();
        let shard = self.open_shard(&name).ok().flatten();
        let there = shard.and_then(|shard| shard.open_append(&name).ok().flatten());
        let is_whole = |there: &File| there.metadata().is_ok_and(|own| own.len() == length);
        let Some(there) = there.filter(is_whole) else { return false };
        there.set_modified(std::time::SystemTime::now()).ok();
        true
    }

    /// Reads a content; an error when it is missing or its hash is wrong.
    pub fn get(&self, hash: &ContentHash) -> io::Result<Vec<u8>> {
        if let Some(content) = self.get_from_loaded(hash)? {
            return Ok(content);
        }
        let name = hash.to_string();
        let read = |shard: StateDir| Ok::<_, io::Error>(shard.read(&name, LARGEST)?);
        let Some(bytes) = self.open_shard(&name)?.map(read).transpose()?.flatten() else {
            self.segments()?;
            return self.get_from_loaded(hash)?.ok_or_else(not_found_error);
        };
        if ContentHash::digest(&bytes) != *hash {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its content was changed"));
        }
        Ok(bytes)
    }

    /// Reads a content from the segments that are loaded.
    fn get_from_loaded(&self, hash: &ContentHash) -> io::Result<Option<Vec<u8>>> {
        let loaded: Vec<Arc<OpenSegment>> = self.loaded.lock().values().cloned().collect();
        let mut failed = None;
        for segment in loaded {
            match segment.read(hash) {
                Ok(Some(content)) => return Ok(Some(content)),
                Ok(None) => {}
                // Another segment, or a separate file, may have it too.
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if !self.has_own_file(hash) => Err(error),
            _ => Ok(None),
        }
    }

    /// Whether a content can be read back.
    pub fn has(&self, hash: &ContentHash) -> bool {
        self.has_own_file(hash) || self.get(hash).is_ok()
    }

    fn has_own_file(&self, hash: &ContentHash) -> bool {
        self.open_content_file(hash).is_ok_and(|file| file.is_some())
    }

    /// All segments, including those of other processes; unreadable segments are skipped.
    pub fn segments(&self) -> io::Result<Vec<Arc<OpenSegment>>> {
        let Some(folder) = self.folder.join(SEGMENTS).open()? else { return Ok(Vec::new()) };
        let names = folder.names()?;
        let names = names.iter().filter_map(|name| name.to_str()?.strip_suffix(".index"));
        let mut segments = Vec::new();
        for name in names {
            let known = self.loaded.lock().get(name).cloned();
            let segment = known.or_else(|| {
                let bytes = folder.read(format!("{name}.index"), LARGEST_TABLE).ok()??;
                let table = Segment::decode(&bytes).ok()?;
                Some(self.add_segment(name.to_owned(), table))
            });
            segments.extend(segment);
        }
        Ok(segments)
    }

    /// Checks the files of all segments.
    fn check_segments(&self) -> io::Result<CheckedSegments> {
        CheckedSegments::new(self)
    }

    /// Those of these contents that were in a segment and are lost, because its files were truncated or overwritten.
    pub fn find_lost_contents<'h>(
        &self,
        hashes: impl Iterator<Item = &'h ContentHash>,
    ) -> io::Result<HashSet<ContentHash>> {
        let segments = self.check_segments()?;
        if !segments.has_doubts() {
            return Ok(HashSet::new());
        }
        let is_lost = |hash: &&ContentHash| segments.has_lost(hash) && !self.has_own_file(hash);
        Ok(hashes.filter(is_lost).copied().collect())
    }

    fn add_segment(&self, name: String, table: Segment) -> Arc<OpenSegment> {
        let segment = Arc::new(OpenSegment::new(self.folder.clone(), name.clone(), table));
        self.loaded.lock().insert(name, Arc::clone(&segment));
        segment
    }

    /// The folder of git's pinned packs and objects, if there are any.
    pub fn git_pins_path(&self) -> Option<PathBuf> {
        let folder = self.folder.join(GIT_PINS_FOLDER);
        let has_some = folder.open().ok().flatten()?.names().is_ok_and(|names| !names.is_empty());
        has_some.then(|| folder.path())
    }

    /// The size of pinned packs that git itself no longer has, in bytes.
    pub fn unshared_pin_bytes(&self) -> io::Result<u64> {
        GitPins::open(&self.folder)?.map_or(Ok(0), |pins| pins.unshared_bytes())
    }

    /// The size of the store in bytes, without hard links to git's files.
    pub fn size(&self) -> io::Result<u64> {
        let Some(folder) = self.folder.open()? else { return Ok(0) };
        let mut bytes = GitPins::open(&self.folder)?.map_or(Ok(0), |pins| pins.copied_bytes())?;
        for name in folder.names()? {
            if name.len() != 2 && name != SEGMENTS {
                continue;
            }
            let inner = folder.open_dir(&name)?;
            let entries = inner.map(|inner| inner.entries()).transpose()?.unwrap_or_default();
            bytes += entries.iter().map(|entry| entry.bytes).sum::<u64>();
        }
        Ok(bytes)
    }

    /// The hash of the Manifest of the last survey.
    pub fn last_manifest_hash(&self) -> Option<ContentHash> {
        let bytes = self.folder.open().ok()??.read(LAST_MANIFEST_FILE, 64).ok()??;
        let text = String::from_utf8(bytes).ok()?;
        serde_json::from_value(text.into()).ok()
    }

    /// Sets the hash of the Manifest of the last survey.
    pub fn set_last_manifest_hash(&self, hash: &ContentHash) -> io::Result<()> {
        let folder = self.folder.create()?;
        Ok(folder.replace(
            LAST_MANIFEST_FILE,
            hash.to_string().as_bytes(),
            WriteDurability::Lazy,
        )?)
    }

    /// Removes the hash of the Manifest of the last survey, so that the next survey reads all files.
    pub fn forget_last_manifest(&self) -> io::Result<()> {
        let folder = self.folder.open()?;
        folder.map(|folder| folder.remove_file(LAST_MANIFEST_FILE)).transpose()?;
        Ok(())
    }

    fn open_shard(&self, name: &str) -> io::Result<Option<StateDir>> {
        let folder = self.folder.open()?;
        let shard = folder.map(|folder| folder.open_dir(&name[..2])).transpose()?;
        Ok(shard.flatten())
    }
}

fn not_found_error() -> io::Error {
    rustix::io::Errno::NOENT.into()
}
