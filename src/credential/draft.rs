//! Drafts: how the store is replaced, and what becomes of a replacement that was cut off.
//!
//! A process may be killed at any moment of it. Whoever takes the lock next looks for the draft that
//! it left, which is either whole and then newer than the store, or tells that a renewal was cut off.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::CredentialError;
use super::store::{Lock, Store, Stored, fields};
use super::token::Tokens;

/// Room that is taken before a renewal, so that a full disk is found before a token is spent.
const ROOM: usize = 64 * 1024;

/// How the name of a draft begins.
const DRAFT: &str = ".auth.";

/// A file beside the store that will replace it; gone when it is not committed.
pub struct Draft<'a> {
    store: &'a Store,
    path: PathBuf,
    is_kept: bool,
}

impl Draft<'_> {
    /// Puts the tokens in the store's place, on the disk before it returns.
    pub fn commit(
        mut self,
        tokens: &Tokens,
        before: Option<&Stored>,
    ) -> Result<(), CredentialError> {
        let path = &self.store.path;
        let unwritable = |source| CredentialError::Unwritable { path: path.clone(), source };
        let mut text = Value::Object(fields(tokens, before)).to_string();
        text.push('\n');
        let opened = OpenOptions::new().write(true).truncate(true).open(&self.path);
        let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(unwritable)?;
        // From here on the draft is what there is, whatever happens to this process or to the store.
        self.is_kept = true;
        self.store.put_in_place(&self.path)
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            fs::remove_file(&self.path).ok();
        }
    }
}

impl Store {
    /// Prepares to write: after this, the disk has room and the folder takes files.
    pub fn draft(&self) -> Result<Draft<'_>, CredentialError> {
        self.make_folder()?;
        let path = self.folder.join(format!("{DRAFT}{:016x}", fastrand::u64(..)));
        let unwritable = |source| CredentialError::Unwritable { path: path.clone(), source };
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(unwritable)?;
        let draft = Draft { store: self, path: path.clone(), is_kept: false };
        file.write_all(&vec![b' '; ROOM]).map_err(unwritable)?;
        Ok(draft)
    }

    /// Takes what a renewal that was killed had already got, and says whether one was killed before
    /// that. With the lock held, a draft is nobody's work any more.
    pub fn salvage(&self, _lock: &Lock) -> Result<bool, CredentialError> {
        let drafts = self.drafts();
        if drafts.is_empty() {
            return Ok(false);
        }
        let mut best: Option<(&PathBuf, Tokens)> = self.read()?.map(|now| (&self.path, now.tokens));
        let mut whole = Vec::new();
        for draft in &drafts {
            // A draft that cannot be read is no reason to fail.
            let bytes = Self::bytes(draft).ok().flatten();
            let Some(found) = bytes.and_then(|bytes| self.understand(&bytes).ok()) else {
                continue;
            };
            whole.push(draft);
            // Tokens of nobody, or of somebody else, are not brought back.
            if best.as_ref().is_some_and(|(_, best)| {
                best.account_id == found.tokens.account_id
                    && best.obtained_at <= found.tokens.obtained_at
            }) {
                best = Some((draft, found.tokens));
            }
        }
        if let Some((path, _)) = best.filter(|(path, _)| **path != self.path) {
            self.put_in_place(path)?;
        }
        for draft in &whole {
            fs::remove_file(draft).ok();
        }
        Ok(whole.len() < drafts.len())
    }

    /// Removes every draft that a killed process left.
    pub fn discard_drafts(&self, _lock: &Lock) {
        for draft in self.drafts() {
            fs::remove_file(draft).ok();
        }
    }

    fn drafts(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let is_draft = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with(DRAFT);
        entries.filter(|entry| is_draft(&entry.file_name())).map(|entry| entry.path()).collect()
    }

    /// Puts a finished draft in the store's place, on the disk before it returns.
    fn put_in_place(&self, draft: &Path) -> Result<(), CredentialError> {
        let replaced = File::open(draft)
            .and_then(|file| file.sync_all())
            .and_then(|()| fs::rename(draft, &self.path));
        let path = || self.path.clone();
        replaced.map_err(|source| CredentialError::Unwritable { path: path(), source })?;
        // The file is in place; a folder that cannot be forced to the disk is no reason to fail.
        File::open(&self.folder).and_then(|folder| folder.sync_all()).ok();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;
    use serde_json::json;

    use super::*;
    use crate::credential::store::tests::{house, tokens};
    use crate::paths::Home;

    /// What a process that was killed at some moment left beside the store.
    fn leave(store: &Store, name: &str, text: &str) {
        fs::write(store.folder.join(format!("{DRAFT}{name}")), text).unwrap();
    }

    fn held(store: &Store) -> String {
        store.read().unwrap().unwrap().tokens.access.expose_secret().to_owned()
    }

    #[test]
    fn a_finished_draft_of_a_killed_process_is_taken_and_a_blank_one_is_told() {
        let (_folder, store) = house();
        store.write(&tokens("old"), None).unwrap();
        let lock = store.lock().unwrap();
        assert!(!store.salvage(&lock).unwrap());
        leave(&store, "blank", &" ".repeat(ROOM));
        leave(&store, "half", "{\"access_token\":\"new\",\"acc");
        assert!(store.salvage(&lock).unwrap());
        assert_eq!((held(&store).as_str(), store.drafts().len()), ("old", 2));
        let whole = |access: &str, account: &str, obtained_ms: i64| {
            json!({"access_token": access, "account_id": account, "obtained_at": obtained_ms})
                .to_string()
        };
        leave(&store, "other", &whole("other", "somebody-else", 99_000));
        leave(&store, "older", &whole("older", "acct", 11_000));
        assert!(store.salvage(&lock).unwrap());
        assert_eq!((held(&store).as_str(), store.drafts().len()), ("old", 2));
        leave(&store, "new", &whole("new", "acct", 13_000));
        leave(&store, "newest", &whole("newest", "acct", 14_000));
        assert!(store.salvage(&lock).unwrap());
        assert_eq!(held(&store), "newest");
        store.discard_drafts(&lock);
        assert!(store.drafts().is_empty() && !store.salvage(&lock).unwrap());
        // After a sign-out nothing is brought back.
        store.clear().unwrap();
        leave(&store, "late", &whole("late", "acct", 15_000));
        assert!(!store.salvage(&lock).unwrap() && store.read().unwrap().is_none());
    }

    #[test]
    fn a_folder_that_takes_no_file_is_found_before_anything_is_spent() {
        let store = Store::new(&Home::new("/proc/nowhere"));
        assert!(matches!(store.draft().err(), Some(CredentialError::Unwritable { .. })));
        let (_folder, store) = house();
        drop(store.draft().unwrap());
        assert_eq!(fs::read_dir(&store.folder).unwrap().count(), 0);
    }
}
