//! Seen: what a Session knows about files, so that a change by somebody else is noticed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::Stat;
use sha2::{Digest, Sha256};

/// Files up to this size are known by their content.
pub const HASHED_SIZE: u64 = 16 << 20;

/// The files this Session has read or written, by their real path.
#[derive(Debug, Clone, Default)]
pub struct Seen(Arc<Mutex<HashMap<PathBuf, Print>>>);

/// What a file was when it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Print {
    Content([u8; 32]),
    /// For large files: size, time of change and inode.
    Stat(i64, i64, u64, u64),
}

impl Print {
    /// The print of a file with this content.
    pub fn of(content: &[u8], stat: &Stat) -> Self {
        if content.len() as u64 <= HASHED_SIZE {
            Self::Content(Sha256::digest(content).into())
        } else {
            Self::of_large(stat)
        }
    }

    /// The print of a file too large to be hashed.
    pub fn of_large(stat: &Stat) -> Self {
        Self::Stat(stat.st_size, stat.st_mtime, stat.st_mtime_nsec, stat.st_ino)
    }
}

impl Seen {
    /// Remembers a file as it is now.
    pub fn note(&self, path: &Path, print: Print) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned(), print);
    }

    /// Whether the file was seen and is different now; a file never seen cannot be stale.
    pub fn is_stale(&self, path: &Path, now: &Print) -> bool {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(path).is_some_and(|then| then != now)
    }
}
