//! Read tracker: the files that a Session has read or written, to detect changes from outside.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::Stat;

use crate::base::id::{is_hex, sha256};
use crate::record::event::{Canonical, FileResult};
use crate::record::history::History;

/// Files up to this size are compared by a hash of their content.
pub const MAX_HASHED_BYTES: u64 = 16 << 20;

/// The files this Session has read or written, by their real path.
#[derive(Debug, Clone, Default)]
pub struct ReadTracker(Arc<Mutex<HashMap<PathBuf, ReadFingerprint>>>);

/// The state of a file when it was read or written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadFingerprint {
    /// The SHA-256 of the content, in hex.
    Content(String),
    /// For large files: size, modification time (seconds, nanoseconds) and inode.
    Stat(i64, i64, u64, u64),
}

impl ReadFingerprint {
    /// The fingerprint of a file with this content.
    pub fn new(content: &[u8], stat: &Stat) -> Self {
        if content.len() as u64 <= MAX_HASHED_BYTES {
            Self::from_content(content)
        } else {
            Self::from_stat(stat)
        }
    }

    /// The fingerprint of a content, on disk or in an editor.
    pub fn from_content(content: &[u8]) -> Self {
        Self::Content(sha256(content))
    }

    /// The fingerprint of a file that is too large to be hashed.
    pub fn from_stat(stat: &Stat) -> Self {
        Self::Stat(stat.st_size, stat.st_mtime, stat.st_mtime_nsec, stat.st_ino)
    }

    /// The SHA-256 in hex, for the Log; `None` for a large file.
    pub fn sha256(&self) -> Option<String> {
        match self {
            Self::Content(hash) => Some(hash.clone()),
            Self::Stat(..) => None,
        }
    }

    fn from_sha256(hex: &str) -> Option<Self> {
        is_hex(hex, 64).then(|| Self::Content(hex.to_ascii_lowercase()))
    }
}

impl ReadTracker {
    /// The tracker of a resumed Session, from the tool results in its History.
    pub fn from_history(history: &History) -> Self {
        let tracker = Self::default();
        // Results of rewound Turns do not count.
        let live: Vec<&Canonical> = history.live_backwards().map(|(_, fact)| fact).collect();
        for fact in live.into_iter().rev() {
            let Canonical::ToolResult(result) = fact else { continue };
            result.files().for_each(|file| tracker.apply_fact(file));
        }
        tracker
    }

    /// Applies the fact about one file in a result; a deleted file has no hash.
    fn apply_fact(&self, file: FileResult<'_>) {
        let path = Path::new(file.path);
        if let Some(fingerprint) = file.sha256.and_then(ReadFingerprint::from_sha256) {
            self.record_file(path, fingerprint);
        } else if file.is_deleted {
            self.forget_file(path);
        }
    }

    /// Records the current state of a file.
    pub fn record_file(&self, path: &Path, fingerprint: ReadFingerprint) {
        self.0.lock().insert(path.to_owned(), fingerprint);
    }

    /// Removes a file whose absence the model knows.
    pub fn forget_file(&self, path: &Path) {
        self.0.lock().remove(path);
    }

    /// Whether the file was recorded with another state; an unknown file is never stale.
    pub fn is_stale(&self, path: &Path, now: &ReadFingerprint) -> bool {
        self.0.lock().get(path).is_some_and(|then| then != now)
    }

    /// Whether the file was recorded.
    pub fn contains(&self, path: &Path) -> bool {
        self.0.lock().contains_key(path)
    }
}
