//! The store: contents by their hash.

use std::fs::File;
use std::io;

use super::Hash;
use crate::files::{Durability, StateDir, StateFolder};
use crate::state::SessionFolder;

/// The largest content that is read back.
const LARGEST: u64 = 16 << 30;
/// The file that names the Manifest of the last survey.
const LAST: &str = "last";

/// Contents of files, written once and never changed.
#[derive(Debug, Clone)]
pub struct Store {
    folder: StateFolder,
}

/// While this lives, nobody clears contents away: who keeps some and has not said yet that they are
/// needed holds it. The kernel's lock goes with its holder.
#[derive(Debug)]
pub struct Hold(#[expect(dead_code, reason = "the lock goes when this is closed")] File);

impl Store {
    /// The store in this folder, which is made when something is kept.
    pub fn new(folder: StateFolder) -> Self {
        Self { folder }
    }

    /// The store that serves the Session of this folder: it lies beside the Logs, also when the
    /// Session works elsewhere.
    pub fn beside(session_folder: &SessionFolder) -> Self {
        Self::new(session_folder.root().snapshots())
    }

    /// The file that holds the content of that hash.
    pub fn open(&self, hash: &Hash) -> io::Result<File> {
        let name = hash.to_string();
        let file = self.drawer(&name)?.map(|drawer| drawer.open_file(&name)).transpose()?.flatten();
        file.ok_or_else(gone)
    }

    /// Keeps everybody from clearing away.
    pub fn hold(&self) -> io::Result<Hold> {
        let folder = self.folder.create()?.lock_handle()?;
        folder.lock_shared()?;
        Ok(Hold(folder))
    }

    /// Keeps everybody else from taking something up, to clear away; `None` while somebody does.
    pub fn clearing(&self) -> Option<Hold> {
        let folder = self.folder.open().ok()??.lock_handle().ok()?;
        folder.try_lock().ok().map(|()| Hold(folder))
    }

    /// Keeps these bytes. They are whole under their name, or not there.
    pub fn put(&self, bytes: &[u8]) -> io::Result<Hash> {
        let hash = Hash::of(bytes);
        // One of another length was cut by a power failure.
        if self.renew(&hash, bytes.len() as u64) {
            return Ok(hash);
        }
        let name = hash.to_string();
        let drawer = self.folder.create()?.create_dir(&name[..2])?;
        drawer.replace(&name, bytes, Durability::Lazy)?;
        Ok(hash)
    }

    /// Whether there are so many bytes of that hash. Somebody refers to them anew: whoever clears away
    /// what is old must see that.
    pub fn renew(&self, hash: &Hash, length: u64) -> bool {
        let name = hash.to_string();
        let drawer = self.drawer(&name).ok().flatten();
        let there = drawer.and_then(|drawer| drawer.open_append(&name).ok().flatten());
        let is_whole = |there: &File| there.metadata().is_ok_and(|own| own.len() == length);
        let Some(there) = there.filter(is_whole) else { return false };
        there.set_modified(std::time::SystemTime::now()).ok();
        true
    }

    /// The bytes of that hash; an error when they are gone, or are not these any more.
    pub fn get(&self, hash: &Hash) -> io::Result<Vec<u8>> {
        let name = hash.to_string();
        let drawer = self.drawer(&name)?.ok_or_else(gone)?;
        let bytes = drawer.read(&name, LARGEST)?.ok_or_else(gone)?;
        if Hash::of(&bytes) != *hash {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its content was changed"));
        }
        Ok(bytes)
    }

    /// Whether there is something of that hash.
    pub fn has(&self, hash: &Hash) -> bool {
        self.open(hash).is_ok()
    }

    /// The Manifest of the last survey of this Workspace.
    pub fn last(&self) -> Option<Hash> {
        let bytes = self.folder.open().ok()??.read(LAST, 64).ok()??;
        let text = String::from_utf8(bytes).ok()?;
        serde_json::from_value(text.into()).ok()
    }

    /// Names the Manifest of the last survey.
    pub fn set_last(&self, hash: &Hash) -> io::Result<()> {
        let folder = self.folder.create()?;
        Ok(folder.replace(LAST, hash.to_string().as_bytes(), Durability::Lazy)?)
    }

    fn drawer(&self, name: &str) -> io::Result<Option<StateDir>> {
        let folder = self.folder.open()?;
        let drawer = folder.map(|folder| folder.open_dir(&name[..2])).transpose()?;
        Ok(drawer.flatten())
    }
}

fn gone() -> io::Error {
    rustix::io::Errno::NOENT.into()
}
