//! A Ledger: a file of the user's own folder that holds what they granted.
//!
//! It is replaced whole, under a lock that the kernel gives back, for one pair of eyes. A Ledger
//! that cannot be understood grants nothing and is never overwritten: somebody may want to look.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::marker::PhantomData;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{Explain, Kind};

/// No sane Ledger is larger.
const LARGEST: u64 = 4 * 1024 * 1024;

/// The form of the file.
const VERSION: u32 = 1;

/// A list of entries in a file.
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
    /// The Ledger in this file, which need not exist.
    pub fn at(path: PathBuf) -> Self {
        Self { path, entries: PhantomData }
    }

    /// Everything in it.
    pub fn read(&self) -> Result<Vec<T>, LedgerError> {
        let Some(bytes) = self.bytes()? else { return Ok(Vec::new()) };
        let content: Content<T> = serde_json::from_slice(&bytes)
            .map_err(|error| self.damaged(format!("line {}", error.line())))?;
        if content.version != VERSION {
            return Err(self.damaged(format!("it is of version {}", content.version)));
        }
        Ok(content.entries)
    }

    /// Changes it while nobody else does; what `change` returns is handed through. Blocks.
    pub fn change<R>(&self, change: impl FnOnce(&mut Vec<T>) -> R) -> Result<R, LedgerError> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let unwritable = |source| LedgerError::Unwritable { path: self.path.clone(), source };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(unwritable)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(self.path.with_extension("lock"))
            .map_err(unwritable)?;
        lock.lock().map_err(unwritable)?;
        let mut entries = self.read()?;
        let result = change(&mut entries);
        self.replace(folder, entries).map_err(unwritable)?;
        Ok(result)
    }

    fn replace(&self, folder: &Path, entries: Vec<T>) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(&Content { version: VERSION, entries })?;
        text.push('\n');
        let name = format!(".ledger.{:016x}", fastrand::u64(..));
        let temporary = folder.join(name);
        let write = || {
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(&temporary)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &self.path)
        };
        write().inspect_err(|_| {
            fs::remove_file(&temporary).ok();
        })?;
        // The file is in place; a folder that cannot be forced to the disk is no reason to fail.
        File::open(folder).and_then(|folder| folder.sync_all()).ok();
        Ok(())
    }

    fn bytes(&self) -> Result<Option<Vec<u8>>, LedgerError> {
        let unreadable = |source| LedgerError::Unreadable { path: self.path.clone(), source };
        // Without NONBLOCK, opening a pipe would wait for its writer.
        let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(error)),
        };
        if !file.metadata().map_err(unreadable)?.is_file() {
            return Err(unreadable(io::Error::other("it is not a regular file")));
        }
        let mut bytes = Vec::new();
        file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > LARGEST {
            return Err(self.damaged("it is larger than 4 MiB".to_owned()));
        }
        Ok(Some(bytes))
    }

    fn damaged(&self, reason: String) -> LedgerError {
        LedgerError::Damaged { path: self.path.clone(), reason }
    }
}

/// Why a Ledger does not serve.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("{} cannot be read", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{} cannot be written", path.display())]
    Unwritable { path: PathBuf, source: io::Error },
    #[error("{} cannot be understood: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
}

impl Explain for LedgerError {
    fn kind(&self) -> Kind {
        match self {
            LedgerError::Unreadable { .. } => Kind::ReadFailed,
            LedgerError::Unwritable { .. } => Kind::WriteFailed,
            LedgerError::Damaged { .. } => Kind::InvalidConfig,
        }
    }
    fn details(&self) -> Value {
        let (LedgerError::Unreadable { path, .. }
        | LedgerError::Unwritable { path, .. }
        | LedgerError::Damaged { path, .. }) = self;
        json!({ "file": path.display().to_string() })
    }
    fn next_actions(&self) -> Vec<String> {
        match self {
            LedgerError::Damaged { path, .. } => {
                vec![format!("correct {}, or move it away", path.display())]
            }
            LedgerError::Unreadable { .. } | LedgerError::Unwritable { .. } => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
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
