//! Content batch: contents that one survey stores together, as a segment.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};

use super::checked_segments::CheckedSegments;
use super::pinned_repository::{GitLocation, PinnedRepository};
use super::segment::{Location, Segment};
use super::{ContentStore, SEGMENTS};
use crate::base::files::{StateDir, WriteDurability};
use crate::host::git_objects::ObjectId;
use crate::host::snapshot::ContentHash;
use crate::host::snapshot::survey_progress::BatchSummary;
use crate::host::workspace::Workspace;

/// The maximum size of a content in a segment; a larger one gets its own file.
const LARGEST_PACKED: usize = 1 << 20;
/// The size of the write buffer, in bytes.
const WRITE_BUFFER: usize = 256 << 10;

/// Limits on what a batch may copy.
#[derive(Debug, Clone, Copy)]
pub struct BatchLimits {
    /// The number of files that git does not hold.
    pub files: usize,
    /// The size of the whole store, in bytes.
    pub bytes: u64,
}

/// The reason why a content was not stored.
#[derive(Debug)]
pub enum StoreContentError {
    TooManyFiles,
    TooManyBytes,
    Io(io::Error),
}

impl From<io::Error> for StoreContentError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Contents to be stored, added by several threads. They are in the store after `finish`.
#[derive(Debug)]
pub struct ContentBatch<'b> {
    store: &'b ContentStore,
    repository: Option<PinnedRepository<'b>>,
    known: CheckedSegments,
    limits: BatchLimits,
    pending: Mutex<PendingContents>,
}

#[derive(Debug, Default)]
struct PendingContents {
    rows: HashMap<ContentHash, Location>,
    loose: Vec<ObjectId>,
    data: Option<DataFile>,
    /// Files that were copied.
    files: usize,
    copied_bytes: u64,
    /// The size of the store, in bytes.
    bytes: u64,
}

impl<'b> ContentBatch<'b> {
    /// A batch for files of this Workspace. Contents in its git repository are pinned and not copied.
    pub fn new(
        store: &'b ContentStore,
        workspace: &'b Workspace,
        limits: BatchLimits,
    ) -> io::Result<Self> {
        let bytes = store.size()?;
        let copy_limit = limits.bytes.saturating_sub(bytes);
        let repository = PinnedRepository::open(workspace, &store.folder, copy_limit);
        // Damaged pins were replaced, where that was possible.
        let known = store.check_segments()?;
        let pending = PendingContents { bytes, ..PendingContents::default() };
        Ok(Self { store, repository, known, limits, pending: Mutex::new(pending) })
    }

    /// Adds a content.
    pub fn add(&self, content: &[u8]) -> Result<ContentHash, StoreContentError> {
        let hash = ContentHash::digest(content);
        let is_pending = self.pending.lock().rows.contains_key(&hash);
        if is_pending || self.known.holds(&hash, content) {
            return Ok(hash);
        }
        if let Some(found) = self.repository.as_ref().and_then(|own| own.find_content(content)) {
            self.pending.lock().add_git_content(hash, found);
            return Ok(hash);
        }
        let is_kept = self.store.refresh_if_whole(&hash, content.len() as u64);
        // A content that is in the store already adds nothing to its size.
        let more_bytes = if is_kept { 0 } else { content.len() as u64 };
        let of_packs = self.repository.as_ref().map_or(0, PinnedRepository::copied_bytes);
        let rest = self.limits.bytes.saturating_sub(of_packs);
        let limits = BatchLimits { bytes: rest, ..self.limits };
        self.pending.lock().count_copied(more_bytes, limits)?;
        if is_kept {
            return Ok(hash);
        }
        if content.len() > LARGEST_PACKED {
            return Ok(self.store.put_with_hash(hash, content)?);
        }
        let mut pending = self.pending.lock();
        if !pending.rows.contains_key(&hash) {
            let location = pending.open_data_file(self.store)?.append(content)?;
            pending.rows.insert(hash, location);
        }
        Ok(hash)
    }

    /// Writes the segment. Returns a summary if this is the first batch of the store.
    pub fn finish(self) -> io::Result<Option<BatchSummary>> {
        let Self { store, repository, known, pending, .. } = self;
        let mut pending = pending.into_inner();
        let rows = std::mem::take(&mut pending.rows);
        if rows.is_empty() {
            return Ok(None);
        }
        let is_copied = |location: &&Location| matches!(location, Location::Data { .. });
        let summary = BatchSummary {
            copied_files: pending.files,
            copied_bytes: pending.copied_bytes,
            in_git: rows.len() - rows.values().filter(is_copied).count(),
        };
        let name = format!("{:016x}", fastrand::u64(..));
        if let Some(data) = pending.data.take() {
            data.finish(&format!("{name}.data"))?;
        }
        let packs = repository.map(|own| own.pack_names()).unwrap_or_default();
        let table = Segment::new(packs, std::mem::take(&mut pending.loose), rows);
        let folder = store.folder.join(SEGMENTS).create()?;
        folder.replace(format!("{name}.index"), &table.encode()?, WriteDurability::Lazy)?;
        store.add_segment(name, table);
        Ok(known.is_empty().then_some(summary))
    }
}

impl PendingContents {
    fn add_git_content(&mut self, hash: ContentHash, found: GitLocation) {
        let location = match found {
            GitLocation::Pack { pack, position } => Location::Pack { pack, position },
            GitLocation::Loose(id) => {
                self.loose.push(id);
                Location::Loose { object: self.loose.len() - 1 }
            }
        };
        self.rows.insert(hash, location);
    }

    /// Counts a copied file against the limits.
    fn count_copied(&mut self, bytes: u64, limits: BatchLimits) -> Result<(), StoreContentError> {
        self.files += 1;
        self.bytes += bytes;
        self.copied_bytes += bytes;
        if self.files > limits.files {
            return Err(StoreContentError::TooManyFiles);
        }
        if self.bytes > limits.bytes {
            return Err(StoreContentError::TooManyBytes);
        }
        Ok(())
    }

    fn open_data_file(&mut self, store: &ContentStore) -> io::Result<&mut DataFile> {
        let data = match self.data.take() {
            Some(data) => data,
            None => DataFile::create(store.folder.join(SEGMENTS).create()?)?,
        };
        Ok(self.data.insert(data))
    }
}

/// The data file of a segment while it is written; removed again unless it is finished.
#[derive(Debug)]
struct DataFile {
    folder: StateDir,
    draft: OsString,
    out: Option<BufWriter<File>>,
    length: u64,
}

impl DataFile {
    fn create(folder: StateDir) -> io::Result<Self> {
        let draft = OsString::from(format!(".{:016x}.pixir-new", fastrand::u64(..)));
        let out = Some(BufWriter::with_capacity(WRITE_BUFFER, folder.create_new(&draft)?));
        Ok(Self { folder, draft, out, length: 0 })
    }

    fn append(&mut self, content: &[u8]) -> io::Result<Location> {
        let location = Location::Data { offset: self.length, length: content.len() as u64 };
        self.out.as_mut().ok_or_else(super::not_found_error)?.write_all(content)?;
        self.length += content.len() as u64;
        Ok(location)
    }

    fn finish(mut self, name: &str) -> io::Result<()> {
        let out = self.out.as_mut().ok_or_else(super::not_found_error)?;
        out.flush()?;
        // The table is written only once its contents are on the disk.
        out.get_ref().sync_data()?;
        self.folder.rename(&self.draft, &self.folder, name)?;
        self.out = None;
        Ok(())
    }
}

impl Drop for DataFile {
    fn drop(&mut self) {
        if self.out.is_some() {
            // Buffered bytes need not be written.
            self.folder.remove_file(&self.draft).ok();
        }
    }
}
