//! The token store: `auth.json`, readable by its owner alone, replaced as a whole or not at all.
//!
//! A file that cannot be understood is an error and stays where it is; what it holds may be all
//! that somebody has. Keys we do not know survive. A process may be killed while it replaces the
//! file: whoever takes the lock next looks for the draft that it left, which is either whole and
//! then newer than the store, or tells that a renewal was cut off.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};

use super::CredentialError;
use super::token::Tokens;
use crate::paths::Home;

/// No sane sign-in is larger.
const LARGEST: u64 = 1024 * 1024;

/// Room that is taken before a renewal, so that a full disk is found before a token is spent.
const ROOM: usize = 64 * 1024;

/// How the name of a draft begins.
const DRAFT: &str = ".auth.";

/// Where a user's tokens are kept.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
    path: PathBuf,
    lock: PathBuf,
}

/// What was found.
#[derive(Clone)]
pub struct Stored {
    pub tokens: Tokens,
    /// Everything in the file, for what we do not know.
    all: Map<String, Value>,
}

/// The hold on the store; the kernel lets go when it is dropped, or when its process dies.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Store {
    /// The store of this user.
    pub fn new(home: &Home) -> Self {
        Self { folder: home.folder().to_owned(), path: home.auth(), lock: home.auth_lock() }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the tokens; `None` when nobody is signed in.
    pub fn read(&self) -> Result<Option<Stored>, CredentialError> {
        let Some(bytes) = Self::bytes(&self.path)? else { return Ok(None) };
        self.understand(&bytes).map(Some)
    }

    fn understand(&self, bytes: &[u8]) -> Result<Stored, CredentialError> {
        let damaged = |reason: &str| CredentialError::Damaged {
            path: self.path.clone(),
            reason: reason.to_owned(),
        };
        // The parser's own words could repeat a part of the content.
        let json: Value = serde_json::from_slice(bytes).map_err(|_| damaged("it is not JSON"))?;
        let Value::Object(all) = json else { return Err(damaged("it is not an object")) };
        let text = |name: &str| all.get(name).and_then(Value::as_str).filter(|t| !t.is_empty());
        let seconds = |name: &str| all.get(name).and_then(Value::as_i64).map(|ms| ms / 1000);
        let access = text("access_token").ok_or_else(|| damaged("it has no access_token"))?;
        let account_id = text("account_id").ok_or_else(|| damaged("it has no account_id"))?;
        let tokens = Tokens {
            access: access.into(),
            refresh: text("refresh_token").map(SecretString::from),
            id: text("id_token").map(SecretString::from),
            account_id: account_id.to_owned(),
            obtained_at: seconds("obtained_at").unwrap_or(0),
            stated_end: seconds("expires_at"),
        };
        tokens.check().map_err(|_| damaged("a token in it cannot be a header"))?;
        Ok(Stored { tokens, all })
    }

    fn bytes(path: &Path) -> Result<Option<Vec<u8>>, CredentialError> {
        let unreadable = |source| CredentialError::Unreadable { path: path.to_owned(), source };
        // Without NONBLOCK, opening a pipe would wait for its writer.
        let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
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
            return Err(unreadable(io::Error::other("it is larger than 1 MiB")));
        }
        Ok(Some(bytes))
    }

    /// Waits until nobody else renews or replaces the tokens. Blocks; not for async code.
    pub fn lock(&self) -> Result<Lock, CredentialError> {
        self.make_folder()?;
        let unwritable = |source| CredentialError::Unwritable { path: self.lock.clone(), source };
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&self.lock)
            .map_err(unwritable)?;
        file.lock().map_err(unwritable)?;
        Ok(Lock { _file: file })
    }

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

    /// Stores tokens; what else `before` held is kept.
    pub fn write(&self, tokens: &Tokens, before: Option<&Stored>) -> Result<(), CredentialError> {
        self.draft()?.commit(tokens, before)
    }

    /// Moves a damaged file out of the way, and says where to.
    pub fn put_aside(&self) -> Result<PathBuf, CredentialError> {
        let aside = self.path.with_extension("json.damaged");
        let moved = fs::rename(&self.path, &aside)
            .and_then(|()| fs::set_permissions(&aside, Permissions::from_mode(0o600)));
        moved.map_err(|source| CredentialError::Unwritable { path: aside.clone(), source })?;
        Ok(aside)
    }

    /// Forgets the tokens, whatever the file looks like. Says whether there was one.
    pub fn clear(&self) -> Result<bool, CredentialError> {
        match fs::remove_file(&self.path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(CredentialError::Unwritable { path: self.path.clone(), source }),
        }
    }

    fn make_folder(&self) -> Result<(), CredentialError> {
        let unwritable = |source| CredentialError::Unwritable { path: self.folder.clone(), source };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)
            .map_err(unwritable)?;
        let mode = fs::metadata(&self.folder).map_err(unwritable)?.permissions().mode();
        if mode & 0o077 != 0 {
            // It now holds tokens. The file protects itself, so a refusal is no reason to stop.
            fs::set_permissions(&self.folder, Permissions::from_mode(0o700)).ok();
        }
        Ok(())
    }
}

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

fn fields(tokens: &Tokens, before: Option<&Stored>) -> Map<String, Value> {
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
mod tests {
    use super::*;
    use crate::error::Explain;

    fn tokens(access: &str) -> Tokens {
        Tokens {
            access: access.into(),
            refresh: Some("refresh".into()),
            id: None,
            account_id: "acct".to_owned(),
            obtained_at: 12,
            stated_end: Some(3600),
        }
    }

    fn house() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(&Home::new(folder.path().join("home")));
        (folder, store)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn tokens_come_back_from_a_file_for_one_pair_of_eyes() {
        let (folder, store) = house();
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
        let (folder, store) = house();
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
        let (folder, store) = house();
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
