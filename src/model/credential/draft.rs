//! Drafts: atomic replacement of the token store, and recovery after an interrupted replacement.
//!
//! A process may be killed at any moment. The next holder of the lock looks for a draft that it left: a complete one
//! is newer than the store and replaces it; an incomplete one shows that a renewal was interrupted.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};

use serde_json::Value;

use super::CredentialError;
use super::store::{StoredTokens, TokenStore, TokenStoreLock, to_fields, unwritable};
use super::token::SubscriptionTokens;
use crate::base::files::{StateDir, StateError};
use crate::base::paths::Home;

/// The bytes reserved before a renewal, so that a full disk is noticed before the refresh token is used.
const RESERVED_BYTES: usize = 64 * 1024;

/// The prefix of a draft's file name.
const DRAFT_PREFIX: &str = ".auth.";

/// A file that will replace the store, in the same folder; removed on drop unless it was committed.
pub struct StoreDraft<'a> {
    store: &'a TokenStore,
    folder: StateDir,
    name: OsString,
    file: File,
    is_committed: bool,
}

impl StoreDraft<'_> {
    /// Replaces the store by these tokens, synced to disk on return.
    pub fn commit(
        mut self,
        tokens: &SubscriptionTokens,
        before: Option<&StoredTokens>,
    ) -> Result<(), CredentialError> {
        let path = &self.store.path;
        let unwritable = |source| CredentialError::Unwritable { path: path.clone(), source };
        let mut text = Value::Object(to_fields(tokens, before)).to_string();
        text.push('\n');
        let emptied = self.file.set_len(0);
        let written = emptied.and_then(|()| self.file.write_all(text.as_bytes()));
        written.map_err(unwritable)?;
        // From here on the draft may be the only copy of the tokens, so it is not removed on drop.
        self.is_committed = true;
        self.store.install_draft(&self.folder, &self.name)
    }
}

impl Drop for StoreDraft<'_> {
    fn drop(&mut self) {
        if !self.is_committed {
            self.folder.remove_file(&self.name).ok();
        }
    }
}

impl TokenStore {
    /// Creates a draft; on success the disk has room and the folder is writable.
    pub fn create_draft(&self) -> Result<StoreDraft<'_>, CredentialError> {
        let folder = self.make_folder()?;
        let name = OsString::from(format!("{DRAFT_PREFIX}{:016x}", fastrand::u64(..)));
        let path = folder.path().join(&name);
        let created = folder.create_new(&name);
        let file = created.map_err(|error| unwritable(path.clone(), error))?;
        let mut draft = StoreDraft { store: self, folder, name, file, is_committed: false };
        let filled = draft.file.write_all(&vec![b' '; RESERVED_BYTES]);
        filled.map_err(|source| CredentialError::Unwritable { path, source })?;
        Ok(draft)
    }

    /// Installs the newest complete draft of a killed process; returns whether there is an incomplete one, whose renewal
    /// was interrupted. While the lock is held, no other process uses a draft.
    pub fn recover_drafts(&self, _lock: &TokenStoreLock) -> Result<bool, CredentialError> {
        let Some(folder) = self.open_folder()? else { return Ok(false) };
        let drafts = draft_names(&folder);
        if drafts.is_empty() {
            return Ok(false);
        }
        let mut best: Option<(Option<&OsString>, SubscriptionTokens)> =
            self.read()?.map(|now| (None, now.tokens));
        let mut whole = Vec::new();
        for draft in &drafts {
            // A draft that cannot be read counts as incomplete.
            let bytes = Self::read_bytes(&folder, draft).ok().flatten();
            let Some(found) = bytes.and_then(|bytes| self.parse_tokens(&bytes).ok()) else {
                continue;
            };
            whole.push(draft);
            // Drafts are not installed after a sign-out, or for another account.
            if best.as_ref().is_some_and(|(_, best)| {
                best.account_id == found.tokens.account_id
                    && best.obtained_at <= found.tokens.obtained_at
            }) {
                best = Some((Some(draft), found.tokens));
            }
        }
        if let Some((Some(draft), _)) = best {
            self.install_draft(&folder, draft)?;
        }
        for draft in &whole {
            folder.remove_file(draft).ok();
        }
        Ok(whole.len() < drafts.len())
    }

    /// Removes all drafts of killed processes.
    pub fn discard_drafts(&self, _lock: &TokenStoreLock) {
        let Ok(Some(folder)) = self.open_folder() else { return };
        for draft in draft_names(&folder) {
            folder.remove_file(draft).ok();
        }
    }

    /// Renames a complete draft to the store, synced to disk on return.
    fn install_draft(&self, folder: &StateDir, draft: &OsStr) -> Result<(), CredentialError> {
        let replaced =
            sync_file(folder, draft).and_then(|()| folder.rename(draft, folder, Home::AUTH));
        replaced.map_err(|error| unwritable(self.path.clone(), error))?;
        // The file is in place; a folder that cannot be synced is no reason to fail.
        folder.sync().ok();
        Ok(())
    }
}

/// The file names of all drafts, including those of other processes.
fn draft_names(folder: &StateDir) -> Vec<OsString> {
    let names = folder.names().unwrap_or_default().into_iter();
    names.filter(|name| name.to_string_lossy().starts_with(DRAFT_PREFIX)).collect()
}

/// Syncs the content of a draft to disk.
fn sync_file(folder: &StateDir, name: &OsStr) -> Result<(), StateError> {
    let failed = |source: io::Error| StateError::Io { path: folder.path().join(name), source };
    let file = folder.open_file(name)?.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    file.sync_all().map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use secrecy::ExposeSecret;
    use serde_json::json;

    use super::*;
    use crate::base::paths::Home;
    use crate::model::credential::store::tests::{test_store, tokens};

    /// Writes a draft as a killed process would have left it.
    fn leave(store: &TokenStore, name: &str, text: &str) {
        fs::write(store.folder.join(format!("{DRAFT_PREFIX}{name}")), text).unwrap();
    }

    /// The number of drafts.
    fn left(store: &TokenStore) -> usize {
        draft_names(&store.open_folder().unwrap().unwrap()).len()
    }

    fn held(store: &TokenStore) -> String {
        store.read().unwrap().unwrap().tokens.access.expose_secret().to_owned()
    }

    #[test]
    fn a_finished_draft_of_a_killed_process_is_used_and_a_blank_one_is_reported() {
        let (_folder, store) = test_store();
        store.write(&tokens("old"), None).unwrap();
        let lock = store.lock().unwrap();
        assert!(!store.recover_drafts(&lock).unwrap());
        leave(&store, "blank", &" ".repeat(RESERVED_BYTES));
        leave(&store, "half", "{\"access_token\":\"new\",\"acc");
        assert!(store.recover_drafts(&lock).unwrap());
        assert_eq!((held(&store).as_str(), left(&store)), ("old", 2));
        let whole = |access: &str, account: &str, obtained_ms: i64| {
            json!({"access_token": access, "account_id": account, "obtained_at": obtained_ms})
                .to_string()
        };
        leave(&store, "other", &whole("other", "somebody-else", 99_000));
        leave(&store, "older", &whole("older", "acct", 11_000));
        assert!(store.recover_drafts(&lock).unwrap());
        assert_eq!((held(&store).as_str(), left(&store)), ("old", 2));
        leave(&store, "new", &whole("new", "acct", 13_000));
        leave(&store, "newest", &whole("newest", "acct", 14_000));
        assert!(store.recover_drafts(&lock).unwrap());
        assert_eq!(held(&store), "newest");
        store.discard_drafts(&lock);
        assert!(left(&store) == 0 && !store.recover_drafts(&lock).unwrap());
        // After a sign-out no draft is installed.
        store.clear().unwrap();
        leave(&store, "late", &whole("late", "acct", 15_000));
        assert!(!store.recover_drafts(&lock).unwrap() && store.read().unwrap().is_none());
    }

    #[test]
    fn a_draft_that_is_a_link_is_neither_read_nor_put_in_place() {
        let (folder, store) = test_store();
        store.write(&tokens("old"), None).unwrap();
        let outside = folder.path().join("outside.json");
        let newer = json!({"access_token": "planted", "account_id": "acct", "obtained_at": 99_000});
        fs::write(&outside, newer.to_string()).unwrap();
        let draft = store.folder.join(format!("{DRAFT_PREFIX}link"));
        std::os::unix::fs::symlink(&outside, &draft).unwrap();
        let lock = store.lock().unwrap();
        assert!(store.recover_drafts(&lock).unwrap());
        assert_eq!(held(&store), "old");
        store.discard_drafts(&lock);
        assert!(fs::symlink_metadata(&draft).is_err() && outside.exists());
    }

    #[test]
    fn a_folder_that_takes_no_file_is_found_before_anything_is_spent() {
        let store = TokenStore::new(&Home::new("/proc/nowhere"));
        assert!(matches!(store.create_draft().err(), Some(CredentialError::Unwritable { .. })));
        let (_folder, store) = test_store();
        drop(store.create_draft().unwrap());
        assert_eq!(fs::read_dir(&store.folder).unwrap().count(), 0);
    }
}
