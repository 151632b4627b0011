//! A JSON file in the user's own folder, changed under a lock: holds what the user granted.
//!
//! It is replaced atomically, under a kernel lock, and only its owner can read it. A file that cannot be
//! parsed grants nothing and is never overwritten, so that the user can inspect it.

use std::ffi::OsStr;
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::base::error::{Explain, Kind};
use crate::base::files::{Durability, StateDir, StateError};

/// The largest file that is read, in bytes.
const LARGEST: u64 = 4 * 1024 * 1024;

/// The version of the file format.
const VERSION: u32 = 1;

/// A list of entries in a locked JSON file.
#[derive(Debug, Clone)]
pub struct Ledger<T> {
    path: PathBuf,
    entries: PhantomData<T>,
}

#[derive(Serialize, Deserialize)]
struct Content<T> {
    version: u32,
    entries: Vec<T>,
}

impl<T: Serialize + DeserializeOwned> Ledger<T> {
    /// The list in this file, which need not exist.
    pub fn at(path: PathBuf) -> Self {
        Self { path, entries: PhantomData }
    }

    /// Reads all entries.
    pub fn read(&self) -> Result<Vec<T>, LedgerError> {
        match StateDir::open_root(self.folder()) {
            Ok(folder) => self.read_in(&folder),
            Err(error) if error.io_kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(self.unreadable(error)),
        }
    }

    /// Changes the entries under the lock and returns the result of `change`. Blocks.
    pub fn change<R>(&self, change: impl FnOnce(&mut Vec<T>) -> R) -> Result<R, LedgerError> {
        let unwritable = |error| self.unwritable(error);
        let folder = StateDir::create_root(self.folder()).map_err(unwritable)?;
        let lock_name = self.path.with_extension("lock");
        let lock = folder.open_lock(name_of(&lock_name)).map_err(unwritable)?;
        lock.lock().map_err(|source| self.not_written(source))?;
        let mut entries = self.read_in(&folder)?;
        let result = change(&mut entries);
        let content = Content { version: VERSION, entries };
        let mut text = serde_json::to_string_pretty(&content)
            .map_err(|error| self.not_written(error.into()))?;
        text.push('\n');
        folder
            .replace(name_of(&self.path), text.as_bytes(), Durability::Synced)
            .map_err(unwritable)?;
        Ok(result)
    }

    fn read_in(&self, folder: &StateDir) -> Result<Vec<T>, LedgerError> {
        let read = folder.read(name_of(&self.path), LARGEST);
        let Some(bytes) = read.map_err(|error| self.unreadable(error))? else {
            return Ok(Vec::new());
        };
        let content: Content<T> = serde_json::from_slice(&bytes)
            .map_err(|error| self.damaged(format!("line {}", error.line())))?;
        if content.version != VERSION {
            return Err(self.damaged(format!("it is of version {}", content.version)));
        }
        Ok(content.entries)
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    fn unreadable(&self, error: StateError) -> LedgerError {
        match error {
            StateError::Io { source, .. } => {
                LedgerError::Unreadable { path: self.path.clone(), source }
            }
            StateError::TooLarge { .. } => self.damaged("it is larger than 4 MiB".to_owned()),
            StateError::Unsafe { .. } => LedgerError::Unsafe(error),
        }
    }

    fn unwritable(&self, error: StateError) -> LedgerError {
        match error {
            StateError::Unsafe { .. } => LedgerError::Unsafe(error),
            other => self.not_written(other.into()),
        }
    }

    fn not_written(&self, source: io::Error) -> LedgerError {
        LedgerError::Unwritable { path: self.path.clone(), source }
    }

    fn damaged(&self, reason: String) -> LedgerError {
        LedgerError::Damaged { path: self.path.clone(), reason }
    }
}

fn name_of(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("{} cannot be read", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{} cannot be written", path.display())]
    Unwritable { path: PathBuf, source: io::Error },
    #[error("{} cannot be understood: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
    /// The file or its lock is a link, a special file, or another user's.
    #[error(transparent)]
    Unsafe(StateError),
}

impl Explain for LedgerError {
    fn kind(&self) -> Kind {
        match self {
            LedgerError::Unreadable { .. } => Kind::ReadFailed,
            LedgerError::Unwritable { .. } => Kind::WriteFailed,
            LedgerError::Damaged { .. } => Kind::InvalidConfig,
            LedgerError::Unsafe(error) => error.kind(),
        }
    }
    fn details(&self) -> Value {
        let path = match self {
            LedgerError::Unreadable { path, .. }
            | LedgerError::Unwritable { path, .. }
            | LedgerError::Damaged { path, .. } => path,
            LedgerError::Unsafe(error) => error.path(),
        };
        json!({ "file": path.display().to_string() })
    }
    fn next_actions(&self) -> Vec<String> {
        match self {
            LedgerError::Damaged { path, .. } => {
                vec![format!("correct {}, or move it away", path.display())]
            }
            LedgerError::Unreadable { path, .. } | LedgerError::Unwritable { path, .. } => {
                vec![format!("make {} and its folder readable and writable", path.display())]
            }
            LedgerError::Unsafe(error) => error.next_actions(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn ledger() -> (tempfile::TempDir, Ledger<String>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("home/granted.json");
        (folder, Ledger::at(path))
    }

    #[test]
    fn what_is_written_comes_back_from_a_file_for_one_pair_of_eyes() {
        let (_folder, ledger) = ledger();
        assert_eq!(ledger.read().unwrap(), Vec::<String>::new());
        let count = ledger.change(|entries| {
            entries.push("one".into());
            entries.len()
        });
        assert_eq!(count.unwrap(), 1);
        assert_eq!(ledger.read().unwrap(), ["one"]);
        let mode = fs::metadata(&ledger.path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
    }

    #[test]
    fn a_ledger_that_cannot_be_understood_grants_nothing_and_stays() {
        let (_folder, ledger) = ledger();
        fs::create_dir_all(ledger.path.parent().unwrap()).unwrap();
        for text in ["", "{", "[]", r#"{"version":2,"entries":[]}"#, r#"{"version":1}"#] {
            fs::write(&ledger.path, text).unwrap();
            assert!(ledger.read().is_err(), "{text}");
            assert!(ledger.change(|entries| entries.push("x".into())).is_err(), "{text}");
            assert_eq!(fs::read_to_string(&ledger.path).unwrap(), text);
        }
    }

    #[test]
    fn many_at_once_lose_nothing() {
        let (_folder, ledger) = ledger();
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let ledger = &ledger;
                scope.spawn(move || {
                    for entry in 0..5 {
                        ledger.change(|all| all.push(format!("{writer}-{entry}"))).unwrap();
                    }
                });
            }
        });
        let mut all = ledger.read().unwrap();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 40);
    }
}
