//! JSON files in the Home, changed under a lock; they hold what the user granted.
//!
//! A file is replaced atomically, under a kernel lock, and only its owner can read it. A file that cannot be
//! parsed grants nothing and is never overwritten, so that the user can inspect it.

use std::ffi::OsStr;
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::base::error::{Explain, Explanation, Kind};
use crate::base::files::{StateDir, StateError, WriteDurability};

/// The largest file that is read, in bytes.
const LARGEST: u64 = 4 * 1024 * 1024;

/// The version of the file format.
const VERSION: u32 = 1;

/// A list of entries in a locked JSON file.
#[derive(Debug, Clone)]
pub struct LockedFile<T> {
    path: PathBuf,
    entries: PhantomData<T>,
}

#[derive(Serialize, Deserialize)]
struct LockedFileContent<T> {
    version: u32,
    entries: Vec<T>,
}

impl<T: Serialize + DeserializeOwned> LockedFile<T> {
    /// The list in this file, which need not exist.
    pub fn new(path: PathBuf) -> Self {
        Self { path, entries: PhantomData }
    }

    /// Reads all entries.
    pub fn read(&self) -> Result<Vec<T>, LockedFileError> {
        match StateDir::open_root(self.folder()) {
            Ok(folder) => self.read_in(&folder),
            Err(error) if error.io_kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(self.read_error(error)),
        }
    }

    /// Changes the entries under the lock and returns the result of `change`. Blocks.
    pub fn update<R>(&self, change: impl FnOnce(&mut Vec<T>) -> R) -> Result<R, LockedFileError> {
        let unwritable = |error| self.write_error(error);
        let folder = StateDir::create_root(self.folder()).map_err(unwritable)?;
        let lock_name = self.path.with_extension("lock");
        let lock = folder.open_lock(file_name_of(&lock_name)).map_err(unwritable)?;
        lock.lock().map_err(|source| self.io_write_error(source))?;
        let mut entries = self.read_in(&folder)?;
        let result = change(&mut entries);
        let content = LockedFileContent { version: VERSION, entries };
        let mut text = serde_json::to_string_pretty(&content)
            .map_err(|error| self.io_write_error(error.into()))?;
        text.push('\n');
        folder
            .replace(file_name_of(&self.path), text.as_bytes(), WriteDurability::Synced)
            .map_err(unwritable)?;
        Ok(result)
    }

    fn read_in(&self, folder: &StateDir) -> Result<Vec<T>, LockedFileError> {
        let read = folder.read(file_name_of(&self.path), LARGEST);
        let Some(bytes) = read.map_err(|error| self.read_error(error))? else {
            return Ok(Vec::new());
        };
        let content: LockedFileContent<T> = serde_json::from_slice(&bytes)
            .map_err(|error| self.damage_error(format!("line {}", error.line())))?;
        if content.version != VERSION {
            return Err(self.damage_error(format!("it is of version {}", content.version)));
        }
        Ok(content.entries)
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    fn read_error(&self, error: StateError) -> LockedFileError {
        match error {
            StateError::Io { source, .. } => {
                LockedFileError::Unreadable { path: self.path.clone(), source }
            }
            StateError::TooLarge { .. } => self.damage_error("it is larger than 4 MiB".to_owned()),
            StateError::Unsafe { .. } => LockedFileError::Unsafe(error),
        }
    }

    fn write_error(&self, error: StateError) -> LockedFileError {
        match error {
            StateError::Unsafe { .. } => LockedFileError::Unsafe(error),
            other => self.io_write_error(other.into()),
        }
    }

    fn io_write_error(&self, source: io::Error) -> LockedFileError {
        LockedFileError::Unwritable { path: self.path.clone(), source }
    }

    fn damage_error(&self, reason: String) -> LockedFileError {
        LockedFileError::Damaged { path: self.path.clone(), reason }
    }
}

fn file_name_of(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LockedFileError {
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

impl Explain for LockedFileError {
    fn explain(&self) -> Explanation {
        let explain = |kind: Kind, path: &Path, action: String| {
            kind.with_details(json!({ "file": path.display().to_string() }))
                .with_next_action(action)
        };
        let make_usable =
            |path: &Path| format!("make {} and its folder readable and writable", path.display());
        match self {
            LockedFileError::Unreadable { path, .. } => {
                explain(Kind::ReadFailed, path, make_usable(path))
            }
            LockedFileError::Unwritable { path, .. } => {
                explain(Kind::WriteFailed, path, make_usable(path))
            }
            LockedFileError::Damaged { path, .. } => {
                let action = format!("correct {}, or move it away", path.display());
                explain(Kind::InvalidConfig, path, action)
            }
            LockedFileError::Unsafe(error) => {
                error.explain().with_details(json!({ "file": error.path().display().to_string() }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn locked_file() -> (tempfile::TempDir, LockedFile<String>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("home/granted.json");
        (folder, LockedFile::new(path))
    }

    #[test]
    fn what_is_written_comes_back_from_a_file_for_one_pair_of_eyes() {
        let (_folder, file) = locked_file();
        assert_eq!(file.read().unwrap(), Vec::<String>::new());
        let count = file.update(|entries| {
            entries.push("one".into());
            entries.len()
        });
        assert_eq!(count.unwrap(), 1);
        assert_eq!(file.read().unwrap(), ["one"]);
        let mode = fs::metadata(&file.path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
    }

    #[test]
    fn a_damaged_file_grants_nothing_and_stays() {
        let (_folder, file) = locked_file();
        fs::create_dir_all(file.path.parent().unwrap()).unwrap();
        for text in ["", "{", "[]", r#"{"version":2,"entries":[]}"#, r#"{"version":1}"#] {
            fs::write(&file.path, text).unwrap();
            assert!(file.read().is_err(), "{text}");
            assert!(file.update(|entries| entries.push("x".into())).is_err(), "{text}");
            assert_eq!(fs::read_to_string(&file.path).unwrap(), text);
        }
    }

    #[test]
    fn many_at_once_lose_nothing() {
        let (_folder, file) = locked_file();
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let file = &file;
                scope.spawn(move || {
                    for entry in 0..5 {
                        file.update(|all| all.push(format!("{writer}-{entry}"))).unwrap();
                    }
                });
            }
        });
        let mut all = file.read().unwrap();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 40);
    }
}
