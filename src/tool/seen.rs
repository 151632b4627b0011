//! Seen: what a Session knows about files, so that a change by somebody else is noticed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::Stat;

use crate::event::{Canonical, FileFact};
use crate::history::History;
use crate::id::sha256;

/// Files up to this size are known by their content.
pub const HASHED_SIZE: u64 = 16 << 20;

/// The files this Session has read or written, by their real path.
#[derive(Debug, Clone, Default)]
pub struct Seen(Arc<Mutex<HashMap<PathBuf, Print>>>);

/// What a file was when it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Print {
    /// The SHA-256 of its bytes, in hex.
    Content(String),
    /// For large files: size, time of change and inode.
    Stat(i64, i64, u64, u64),
}

impl Print {
    /// The print of a file with this content.
    pub fn of(content: &[u8], stat: &Stat) -> Self {
        if content.len() as u64 <= HASHED_SIZE {
            Self::of_text(content)
        } else {
            Self::of_large(stat)
        }
    }

    /// The print of a file with this content, wherever it is kept.
    pub fn of_text(content: &[u8]) -> Self {
        Self::Content(sha256(content))
    }

    /// The print of a file too large to be hashed.
    pub fn of_large(stat: &Stat) -> Self {
        Self::Stat(stat.st_size, stat.st_mtime, stat.st_mtime_nsec, stat.st_ino)
    }

    /// The SHA-256 in hex, for the record; a large file has none.
    pub fn sha256(&self) -> Option<String> {
        match self {
            Self::Content(hash) => Some(hash.clone()),
            Self::Stat(..) => None,
        }
    }

    fn from_sha256(hex: &str) -> Option<Self> {
        let is_hash = hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hash.then(|| Self::Content(hex.to_ascii_lowercase()))
    }
}

impl Seen {
    /// What the results in a History say about files: the knowledge of a resumed Session.
    pub fn from_history(history: &History) -> Self {
        let seen = Self::default();
        // What was taken back is not there any more.
        let live: Vec<&Canonical> = history.live_backwards().map(|(_, fact)| fact).collect();
        for fact in live.into_iter().rev() {
            let Canonical::ToolResult(result) = fact else { continue };
            result.files().for_each(|file| seen.learn(file));
        }
        seen
    }

    /// Takes what a result says about one file; a file that was deleted has no hash.
    fn learn(&self, file: FileFact<'_>) {
        let path = Path::new(file.path);
        if let Some(print) = file.sha256.and_then(Print::from_sha256) {
            self.note(path, print);
        } else if file.is_deleted {
            self.forget(path);
        }
    }

    /// Remembers a file as it is now.
    pub fn note(&self, path: &Path, print: Print) {
        self.files().insert(path.to_owned(), print);
    }

    /// Forgets a file that the model knows to be gone.
    pub fn forget(&self, path: &Path) {
        self.files().remove(path);
    }

    /// Whether the file was seen and is different now; a file never seen cannot be stale.
    pub fn is_stale(&self, path: &Path, now: &Print) -> bool {
        self.files().get(path).is_some_and(|then| then != now)
    }

    /// Whether the file was seen.
    pub fn knows(&self, path: &Path) -> bool {
        self.files().contains_key(path)
    }

    fn files(&self) -> MutexGuard<'_, HashMap<PathBuf, Print>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
