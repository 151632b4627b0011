//! Size limit of the content store for contents that are stored one by one.

use std::io;
use std::time::{Duration, Instant};

use super::{ContentStore, OpenSegment, StoreContentError};
use crate::host::snapshot::ContentHash;

/// How long a measured size counts, because other processes add to the store too.
const MAX_AGE: Duration = Duration::from_mins(1);

/// The size of the store when it was measured, with what was added since.
#[derive(Debug, Clone, Copy)]
pub(super) struct MeasuredSize {
    bytes: u64,
    measured_at: Instant,
}

impl ContentStore {
    /// Stores these bytes atomically, unless the store would become larger than `limit` bytes.
    pub fn put_within(&self, bytes: &[u8], limit: u64) -> Result<ContentHash, StoreContentError> {
        let hash = ContentHash::digest(bytes);
        let length = bytes.len() as u64;
        if self.refresh_if_whole(&hash, length) {
            return Ok(hash);
        }
        // A damaged segment has the row only.
        let can_read = |segment: &OpenSegment| segment.read(&hash).is_ok_and(|own| own.is_some());
        if self.segments()?.iter().any(|segment| can_read(segment)) {
            return Ok(hash);
        }
        if !self.has_room(length, limit)? {
            return Err(StoreContentError::TooManyBytes);
        }
        Ok(self.put_with_hash(hash, bytes)?)
    }

    /// Whether the store stays within `limit` with `more` bytes. It is measured when that is not certain:
    /// garbage collection may have removed contents.
    fn has_room(&self, more: u64, limit: u64) -> io::Result<bool> {
        if limit == u64::MAX {
            return Ok(true);
        }
        let fits = |size: &MeasuredSize| size.bytes.saturating_add(more) <= limit;
        let is_recent = |size: &MeasuredSize| size.measured_at.elapsed() < MAX_AGE;
        let mut known = self.measured.lock();
        if known.as_ref().is_some_and(|size| is_recent(size) && fits(size)) {
            return Ok(true);
        }
        let size = MeasuredSize { bytes: self.size()?, measured_at: Instant::now() };
        *known = Some(size);
        Ok(fits(&size))
    }

    /// Adds to the measured size.
    pub(super) fn add_to_size(&self, bytes: u64) {
        if let Some(size) = self.measured.lock().as_mut() {
            size.bytes += bytes;
        }
    }

    /// Forgets the measured size, because a batch was stored.
    pub fn forget_size(&self) {
        *self.measured.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::files::StatePath;

    #[test]
    fn contents_that_are_stored_one_by_one_stay_within_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = StatePath::root(folder.path()).join("store");
        let store = ContentStore::new(path.clone());
        let is_full = |stored| matches!(stored, Err(StoreContentError::TooManyBytes));
        store.put_within(&[1; 60], 100).unwrap();
        assert!(is_full(store.put_within(&[2; 60], 100)));
        store.put_within(&[1; 60], 100).unwrap();
        // Contents of file tools are stored in any case, and count.
        let hash = store.put(&[3; 30]).unwrap();
        assert!(is_full(store.put_within(&[4; 20], 100)));
        assert_eq!(store.size().unwrap(), 90);
        let name = hash.to_string();
        let shard = path.open().unwrap().unwrap().open_dir(&name[..2]).unwrap().unwrap();
        shard.remove_file(&name).unwrap();
        store.put_within(&[4; 20], 100).unwrap();
        assert_eq!(store.size().unwrap(), 80);
    }
}
