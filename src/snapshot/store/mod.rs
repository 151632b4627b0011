//! The store: contents by their hash.
//!
//! A content is in a file of its own, or in a segment, where a survey keeps many at once. Those that the git
//! repository of the Workspace holds are not copied.

mod batch;
mod git_pins;
mod open_segment;
mod segment;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Hash;
use crate::files::{Durability, StateDir, StateFolder};
use crate::state::SessionFolder;
pub use batch::{BatchLimits, ContentBatch, NotKept};
pub use open_segment::OpenSegment;
use segment::Segment;

/// The largest content that is read back.
const LARGEST: u64 = 16 << 30;
/// The file that names the Manifest of the last survey.
const LAST: &str = "last";
/// The folder of segments.
const SEGMENTS: &str = "segments";
/// The largest table of a segment that is read.
const LARGEST_TABLE: u64 = 256 << 20;
/// How long a wait for the lock lasts between two looks at whether it is still wanted.
const LOCK_RETRY: Duration = Duration::from_millis(5);

/// Contents of files, written once and never changed; cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    folder: StateFolder,
    /// The segments that were read so far, by name.
    loaded: Arc<Mutex<BTreeMap<String, Arc<OpenSegment>>>>,
}

/// While this lives, nobody clears contents away: who keeps some and has not said yet that they are
/// needed holds it. The kernel's lock goes with its holder.
#[derive(Debug)]
pub struct Hold(#[expect(dead_code, reason = "the lock goes when this is closed")] File);

impl Store {
    /// The store in this folder, which is made when something is kept.
    pub fn new(folder: StateFolder) -> Self {
        Self { folder, loaded: Arc::default() }
    }

    /// The store that serves the Session of this folder: it lies beside the Logs, also when the
    /// Session works elsewhere.
    pub fn beside(session_folder: &SessionFolder) -> Self {
        Self::new(session_folder.root().snapshots())
    }

    /// Where the store is.
    pub fn path(&self) -> std::path::PathBuf {
        self.folder.path()
    }

    /// The file of its own that holds the content of that hash; `None` when it is in a segment.
    pub fn open(&self, hash: &Hash) -> io::Result<Option<File>> {
        let name = hash.to_string();
        Ok(self.drawer(&name)?.map(|drawer| drawer.open_file(&name)).transpose()?.flatten())
    }

    /// Keeps everybody from clearing away.
    pub fn hold(&self) -> io::Result<Hold> {
        let folder = self.folder.create()?.lock_handle()?;
        folder.lock_shared()?;
        Ok(Hold(folder))
    }

    /// The same, unless `is_stopped` says meanwhile that it is not wanted any more.
    pub fn hold_unless(&self, is_stopped: impl Fn() -> bool) -> io::Result<Option<Hold>> {
        let folder = self.folder.create()?.lock_handle()?;
        loop {
            match folder.try_lock_shared() {
                Ok(()) => return Ok(Some(Hold(folder))),
                Err(TryLockError::Error(error)) => return Err(error),
                Err(TryLockError::WouldBlock) if is_stopped() => return Ok(None),
                // The kernel's own waiting could not be ended by an interrupt.
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_RETRY),
            }
        }
    }

    /// Keeps everybody else from taking something up, to clear away; `None` while somebody does.
    pub fn clearing(&self) -> Option<Hold> {
        let folder = self.folder.open().ok()??.lock_handle().ok()?;
        folder.try_lock().ok().map(|()| Hold(folder))
    }

    /// Keeps these bytes. They are whole under their name, or not there.
    pub fn put(&self, bytes: &[u8]) -> io::Result<Hash> {
        self.put_with_hash(Hash::of(bytes), bytes)
    }

    fn put_with_hash(&self, hash: Hash, bytes: &[u8]) -> io::Result<Hash> {
        // One of another length was cut by a power failure.
        if self.renew(&hash, bytes.len() as u64) {
            return Ok(hash);
        }
        let name = hash.to_string();
        let drawer = self.folder.create()?.create_dir(&name[..2])?;
        drawer.replace(&name, bytes, Durability::Lazy)?;
        Ok(hash)
    }

    /// Whether there are so many bytes of that hash. Somebody refers to them anew: whoever clears away
    /// what is old must see that.
    pub fn renew(&self, hash: &Hash, length: u64) -> bool {
        let name = hash.to_string();
        let drawer = self.drawer(&name).ok().flatten();
        let there = drawer.and_then(|drawer| drawer.open_append(&name).ok().flatten());
        let is_whole = |there: &File| there.metadata().is_ok_and(|own| own.len() == length);
        let Some(there) = there.filter(is_whole) else { return false };
        there.set_modified(std::time::SystemTime::now()).ok();
        true
    }

    /// The bytes of that hash; an error when they are gone, or are not these any more.
    pub fn get(&self, hash: &Hash) -> io::Result<Vec<u8>> {
        if let Some(content) = self.get_loaded(hash)? {
            return Ok(content);
        }
        let name = hash.to_string();
        let read = |drawer: StateDir| Ok::<_, io::Error>(drawer.read(&name, LARGEST)?);
        let Some(bytes) = self.drawer(&name)?.map(read).transpose()?.flatten() else {
            self.segments()?;
            return self.get_loaded(hash)?.ok_or_else(gone);
        };
        if Hash::of(&bytes) != *hash {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its content was changed"));
        }
        Ok(bytes)
    }

    /// The same from the segments that were read so far.
    fn get_loaded(&self, hash: &Hash) -> io::Result<Option<Vec<u8>>> {
        let loaded: Vec<Arc<OpenSegment>> = self.loaded().values().cloned().collect();
        let mut failed = None;
        for segment in loaded {
            match segment.read(hash) {
                Ok(Some(content)) => return Ok(Some(content)),
                Ok(None) => {}
                // Another segment, or a file of its own, may have it too.
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if !self.has_own_file(hash) => Err(error),
            _ => Ok(None),
        }
    }

    /// Whether the content of that hash can be brought back.
    pub fn has(&self, hash: &Hash) -> bool {
        self.has_own_file(hash) || self.get(hash).is_ok()
    }

    fn has_own_file(&self, hash: &Hash) -> bool {
        self.open(hash).is_ok_and(|file| file.is_some())
    }

    /// All segments, those of other processes too. One that cannot be read is left out.
    pub fn segments(&self) -> io::Result<Vec<Arc<OpenSegment>>> {
        let Some(folder) = self.folder.join(SEGMENTS).open()? else { return Ok(Vec::new()) };
        let names = folder.names()?;
        let names = names.iter().filter_map(|name| name.to_str()?.strip_suffix(".index"));
        let mut segments = Vec::new();
        for name in names {
            let known = self.loaded().get(name).cloned();
            let segment = known.or_else(|| {
                let bytes = folder.read(format!("{name}.index"), LARGEST_TABLE).ok()??;
                let table = Segment::decode(&bytes).ok()?;
                Some(self.add_segment(name.to_owned(), table))
            });
            segments.extend(segment);
        }
        Ok(segments)
    }

    fn add_segment(&self, name: String, table: Segment) -> Arc<OpenSegment> {
        let segment = Arc::new(OpenSegment::new(self.folder.clone(), name.clone(), table));
        self.loaded().insert(name, Arc::clone(&segment));
        segment
    }

    fn loaded(&self) -> MutexGuard<'_, BTreeMap<String, Arc<OpenSegment>>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the store takes on the disk, in bytes, without what is pinned in git.
    pub fn size(&self) -> io::Result<u64> {
        let Some(folder) = self.folder.open()? else { return Ok(0) };
        let mut bytes = 0;
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

    /// The Manifest of the last survey of this Workspace.
    pub fn last(&self) -> Option<Hash> {
        let bytes = self.folder.open().ok()??.read(LAST, 64).ok()??;
        let text = String::from_utf8(bytes).ok()?;
        serde_json::from_value(text.into()).ok()
    }

    /// Names the Manifest of the last survey.
    pub fn set_last(&self, hash: &Hash) -> io::Result<()> {
        let folder = self.folder.create()?;
        Ok(folder.replace(LAST, hash.to_string().as_bytes(), Durability::Lazy)?)
    }

    fn drawer(&self, name: &str) -> io::Result<Option<StateDir>> {
        let folder = self.folder.open()?;
        let drawer = folder.map(|folder| folder.open_dir(&name[..2])).transpose()?;
        Ok(drawer.flatten())
    }
}

fn gone() -> io::Error {
    rustix::io::Errno::NOENT.into()
}
