//! The token store: `auth.json`, readable by its owner alone, replaced atomically.
//!
//! A file that cannot be parsed is an error and is left as it is, because it may hold the user's only tokens. Unknown
//! keys are kept.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};

use super::CredentialError;
use super::token::SubscriptionTokens;
use crate::base::files::{StateDir, StateError};
use crate::base::paths::Home;

/// The largest store that is read, in bytes.
const MAX_STORE_BYTES: u64 = 1024 * 1024;

/// The file with a user's tokens, and its folder.
#[derive(Debug, Clone)]
pub struct TokenStore {
    pub(super) folder: PathBuf,
    pub(super) path: PathBuf,
}

/// The content of the store.
#[derive(Clone)]
pub struct StoredTokens {
    pub tokens: SubscriptionTokens,
    /// All keys of the file, so that unknown ones are kept.
    all: Map<String, Value>,
}

/// The lock of the store; the kernel releases it when it is dropped, or when the process ends.
#[derive(Debug)]
pub struct TokenStoreLock {
    _file: File,
}

impl TokenStore {
    /// The store in the user's Pixir folder.
    pub fn new(home: &Home) -> Self {
        Self { folder: home.path().to_owned(), path: home.auth() }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the tokens; `None` when not signed in.
    pub fn read(&self) -> Result<Option<StoredTokens>, CredentialError> {
        let Some(folder) = self.open_folder()? else { return Ok(None) };
        let Some(bytes) = Self::read_bytes(&folder, Home::AUTH.as_ref())? else { return Ok(None) };
        self.parse_tokens(&bytes).map(Some)
    }

    pub(super) fn parse_tokens(&self, bytes: &[u8]) -> Result<StoredTokens, CredentialError> {
        let damaged = |reason: &str| CredentialError::Damaged {
            path: self.path.clone(),
            reason: reason.to_owned(),
        };
        // The parser's message is not used, because it could repeat a part of the content.
        let json: Value = serde_json::from_slice(bytes).map_err(|_| damaged("it is not JSON"))?;
        let Value::Object(all) = json else { return Err(damaged("it is not an object")) };
        let text = |name: &str| all.get(name).and_then(Value::as_str).filter(|t| !t.is_empty());
        let seconds = |name: &str| all.get(name).and_then(Value::as_i64).map(|ms| ms / 1000);
        let access = text("access_token").ok_or_else(|| damaged("it has no access_token"))?;
        let account_id = text("account_id").ok_or_else(|| damaged("it has no account_id"))?;
        let tokens = SubscriptionTokens {
            access: access.into(),
            refresh: text("refresh_token").map(SecretString::from),
            id: text("id_token").map(SecretString::from),
            account_id: account_id.to_owned(),
            obtained_at: seconds("obtained_at").unwrap_or(0),
            stated_end: seconds("expires_at"),
        };
        tokens.check_header_text().map_err(|_| damaged("a token in it cannot be a header"))?;
        Ok(StoredTokens { tokens, all })
    }

    /// Reads the store or a draft; `None` when there is no such file.
    pub(super) fn read_bytes(
        folder: &StateDir,
        name: &OsStr,
    ) -> Result<Option<Vec<u8>>, CredentialError> {
        folder
            .read(name, MAX_STORE_BYTES)
            .map_err(|error| unreadable(folder.path().join(name), error))
    }

    /// Opens the folder of the store; `None` when it does not exist.
    pub(super) fn open_folder(&self) -> Result<Option<StateDir>, CredentialError> {
        match StateDir::open_root(&self.folder) {
            Ok(folder) => Ok(Some(folder)),
            Err(error) if error.io_kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unreadable(self.folder.clone(), error)),
        }
    }

    /// Waits for the lock under which tokens are renewed or replaced. Blocks; not for async code.
    pub fn lock(&self) -> Result<TokenStoreLock, CredentialError> {
        let (file, path) = self.open_lock()?;
        file.lock().map_err(|source| CredentialError::Unwritable { path, source })?;
        Ok(TokenStoreLock { _file: file })
    }

    fn open_lock(&self) -> Result<(File, PathBuf), CredentialError> {
        let folder = self.make_folder()?;
        let path = folder.path().join(Home::AUTH_LOCK);
        match folder.open_lock(Home::AUTH_LOCK) {
            Ok(file) => Ok((file, path)),
            Err(error) => Err(unwritable(path, error)),
        }
    }

    /// Checks before a sign-in that its tokens can be stored: the folder is writable, and the store and its lock can be
    /// replaced. A damaged store can be, because it is moved aside.
    pub fn check_writable(&self) -> Result<(), CredentialError> {
        drop(self.create_draft()?);
        self.open_lock()?;
        match self.read() {
            Ok(_) | Err(CredentialError::Damaged { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Stores tokens; other keys of `before` are kept.
    pub fn write(
        &self,
        tokens: &SubscriptionTokens,
        before: Option<&StoredTokens>,
    ) -> Result<(), CredentialError> {
        self.create_draft()?.commit(tokens, before)
    }

    /// Moves a damaged file aside; returns its new path.
    pub fn move_damaged_aside(&self) -> Result<PathBuf, CredentialError> {
        let folder = self.make_folder()?;
        let aside = self.path.with_extension("json.damaged");
        let moved = rename_damaged(&folder, aside.file_name().unwrap_or_default());
        moved.map_err(|error| unwritable(aside.clone(), error))?;
        Ok(aside)
    }

    /// Removes the file, even a damaged one; returns whether there was one.
    pub fn clear(&self) -> Result<bool, CredentialError> {
        let Some(folder) = self.open_folder()? else { return Ok(false) };
        folder.remove_file(Home::AUTH).map_err(|error| unwritable(self.path.clone(), error))
    }

    pub(super) fn make_folder(&self) -> Result<StateDir, CredentialError> {
        let unwritable = |error| unwritable(self.folder.clone(), error);
        let folder = StateDir::create_root(&self.folder).map_err(unwritable)?;
        let handle = folder.lock_handle().map_err(unwritable)?;
        let is_open = |found: std::fs::Metadata| found.permissions().mode() & 0o077 != 0;
        if handle.metadata().is_ok_and(is_open) {
            // The folder now holds tokens. The file has its own permissions, so a failure here is no reason to stop.
            handle.set_permissions(Permissions::from_mode(0o700)).ok();
        }
        Ok(folder)
    }
}

/// Renames a damaged store, and makes it private.
fn rename_damaged(folder: &StateDir, aside: &OsStr) -> Result<(), StateError> {
    if let Some(file) = folder.open_file(Home::AUTH)? {
        file.set_permissions(Permissions::from_mode(0o600)).ok();
    }
    folder.rename(Home::AUTH, folder, aside)
}

fn unreadable(path: PathBuf, error: StateError) -> CredentialError {
    match error {
        StateError::Unsafe { .. } => CredentialError::Unsafe(error),
        StateError::TooLarge { .. } => {
            let source = io::Error::other("it is larger than 1 MiB");
            CredentialError::Unreadable { path, source }
        }
        StateError::Io { source, .. } => CredentialError::Unreadable { path, source },
    }
}

pub(super) fn unwritable(path: PathBuf, error: StateError) -> CredentialError {
    match error {
        StateError::Unsafe { .. } => CredentialError::Unsafe(error),
        other => CredentialError::Unwritable { path, source: other.into() },
    }
}

/// The keys of the file for these tokens, with the other keys of `before`.
pub(super) fn to_fields(
    tokens: &SubscriptionTokens,
    before: Option<&StoredTokens>,
) -> Map<String, Value> {
    let mut all = before.map(|stored| stored.all.clone()).unwrap_or_default();
    let own = |token: &SecretString| Value::from(token.expose_secret());
    let ours = [
        ("kind", json!("subscription")),
        ("access_token", own(&tokens.access)),
        ("refresh_token", tokens.refresh.as_ref().map_or(Value::Null, own)),
        ("id_token", tokens.id.as_ref().map_or(Value::Null, own)),
        ("account_id", json!(tokens.account_id)),
        ("expires_at", json!(tokens.ends_at().map(|seconds| seconds.saturating_mul(1000)))),
        ("obtained_at", json!(tokens.obtained_at.saturating_mul(1000))),
    ];
    all.extend(ours.map(|(name, value)| (name.to_owned(), value)));
    all
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use super::*;
    use crate::base::error::Explain;

    pub fn tokens(access: &str) -> SubscriptionTokens {
        SubscriptionTokens {
            access: access.into(),
            refresh: Some("refresh".into()),
            id: None,
            account_id: "acct".to_owned(),
            obtained_at: 12,
            stated_end: Some(3600),
        }
    }

    pub fn test_store() -> (tempfile::TempDir, TokenStore) {
        let folder = tempfile::tempdir().unwrap();
        let store = TokenStore::new(&Home::new(folder.path().join("home")));
        (folder, store)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn tokens_come_back_from_a_file_for_one_pair_of_eyes() {
        let (folder, store) = test_store();
        assert!(store.read().unwrap().is_none());
        store.write(&tokens("one"), None).unwrap();
        let stored = store.read().unwrap().unwrap();
        assert_eq!(stored.tokens.access.expose_secret(), "one");
        assert_eq!((stored.tokens.obtained_at, stored.tokens.ends_at()), (12, Some(3600)));
        assert_eq!((mode(store.path()), mode(&folder.path().join("home"))), (0o600, 0o700));
        assert!(store.clear().unwrap() && !store.clear().unwrap());
    }

    #[test]
    fn a_wide_open_file_and_folder_are_closed_and_other_keys_survive() {
        let (folder, store) = test_store();
        let home = folder.path().join("home");
        fs::create_dir(&home).unwrap();
        fs::set_permissions(&home, Permissions::from_mode(0o755)).unwrap();
        let old = r#"{"access_token":"a","account_id":"acct","future":{"x":1}}"#;
        fs::write(store.path(), old).unwrap();
        fs::set_permissions(store.path(), Permissions::from_mode(0o644)).unwrap();
        let before = store.read().unwrap();
        store.write(&tokens("two"), before.as_ref()).unwrap();
        let text = fs::read_to_string(store.path()).unwrap();
        assert!(text.contains(r#""future":{"x":1}"#), "{text}");
        assert_eq!((mode(store.path()), mode(&home)), (0o600, 0o700));
        assert_eq!(fs::read_dir(&home).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn a_damaged_file_is_named_never_quoted_and_never_touched() {
        let (folder, store) = test_store();
        fs::create_dir(folder.path().join("home")).unwrap();
        for text in [
            "",
            "{",
            "[]",
            "{\"access_token\":\"secret-value\"}",
            "secret-value",
            "{\"access_token\":\"secret value\",\"account_id\":\"a\"}",
        ] {
            fs::write(store.path(), text).unwrap();
            let error = store.read().err().unwrap();
            assert!(matches!(error, CredentialError::Damaged { .. }), "{text}: {error:?}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{text}");
            assert!(error.next_actions().join(" ").contains("pixir login"));
            assert_eq!(fs::read_to_string(store.path()).unwrap(), text);
        }
    }
}
