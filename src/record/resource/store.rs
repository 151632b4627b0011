//! The content-addressed store of Resources in the Session's folder.
//!
//! Bytes are forced to the disk before anything refers to them, readable by their owner alone,
//! and checked against their hash whenever they are read. No link is followed below the folder.

use std::io;
use std::path::PathBuf;

use crate::base::files::{StateError, StatePath, WriteDurability};
use crate::base::id;

/// The Resources of one Session, on disk.
#[derive(Debug, Clone)]
pub struct ResourceStore {
    folder: StatePath,
}

/// Why stored bytes cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ResourceReadError {
    #[error("it is missing")]
    Missing,
    #[error("it is not what was stored")]
    Changed,
    #[error("it cannot be read: {0}")]
    Unreadable(io::Error),
}

impl ResourceStore {
    /// The store of the Session with this folder; no folder is created before something is stored.
    pub fn new(session_folder: &StatePath) -> Self {
        Self { folder: session_folder.join("resources") }
    }

    /// The path of the bytes with this hash.
    pub fn path(&self, sha256: &str) -> PathBuf {
        self.folder.path().join(sha256)
    }

    /// Stores bytes durably, and returns their hash.
    pub fn store_bytes(&self, bytes: &[u8]) -> io::Result<String> {
        let sha256 = id::sha256(bytes);
        if self.read_bytes(&sha256, bytes.len() as u64).is_ok() {
            return Ok(sha256);
        }
        let is_new = self.folder.open()?.is_none();
        let folder = self.folder.create()?;
        folder.replace(&sha256, bytes, WriteDurability::Synced)?;
        if is_new {
            // The names of the new folders must be durable as well.
            let session = self.folder.parent();
            for above in [session.open()?, session.parent().open()?].into_iter().flatten() {
                above.sync()?;
            }
        }
        Ok(sha256)
    }

    /// The bytes with this hash and this length.
    pub fn read_bytes(&self, sha256: &str, length: u64) -> Result<Vec<u8>, ResourceReadError> {
        if !id::is_hex(sha256, 64) {
            return Err(ResourceReadError::Missing);
        }
        // A Log may come from anywhere, and nothing larger was ever stored.
        if length > super::MAX_TURN_BYTES {
            return Err(ResourceReadError::Changed);
        }
        let lost = |error| match error {
            StateError::Unsafe { .. } | StateError::TooLarge { .. } => ResourceReadError::Changed,
            StateError::Io { source, .. } => ResourceReadError::Unreadable(source),
        };
        let folder = self.folder.open().map_err(lost)?.ok_or(ResourceReadError::Missing)?;
        let bytes = folder.read(sha256, length).map_err(lost)?.ok_or(ResourceReadError::Missing)?;
        let is_whole = bytes.len() as u64 == length && id::sha256(&bytes) == sha256;
        if is_whole { Ok(bytes) } else { Err(ResourceReadError::Changed) }
    }

    /// Copies bytes from the store of another Session; missing or changed ones are skipped.
    pub fn copy_from(&self, other: &Self, sha256: &str, length: u64) -> io::Result<()> {
        let Ok(bytes) = other.read_bytes(sha256, length) else { return Ok(()) };
        self.store_bytes(&bytes).map(drop)
    }
}
