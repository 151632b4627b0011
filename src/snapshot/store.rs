//! The store: contents by their hash.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::Hash;

/// Contents of files, written once and never changed.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

/// While this lives, nobody clears contents away: who keeps some and has not said yet that they are
/// needed holds it. The kernel's lock goes with its holder.
#[derive(Debug)]
pub struct Hold(#[expect(dead_code, reason = "the lock goes when this is closed")] File);

impl Store {
    /// The store in this folder, which is made when something is kept.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The store that serves the Session of this folder: it lies beside the Logs, also when the
    /// Session works elsewhere.
    pub fn beside(session_folder: &Path) -> Self {
        let state = session_folder.parent().and_then(Path::parent).unwrap_or(session_folder);
        Self::new(crate::paths::snapshots_in(state))
    }

    /// The file that holds the content of that hash.
    pub fn open(&self, hash: &Hash) -> io::Result<File> {
        File::open(self.place(hash))
    }

    /// Where everything is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Keeps everybody from clearing away.
    pub fn hold(&self) -> io::Result<Hold> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let folder = File::open(&self.folder)?;
        folder.lock_shared()?;
        Ok(Hold(folder))
    }

    /// Keeps everybody else from taking something up, to clear away; `None` while somebody does.
    pub fn clearing(&self) -> Option<Hold> {
        let folder = File::open(&self.folder).ok()?;
        folder.try_lock().ok().map(|()| Hold(folder))
    }

    /// Keeps these bytes. They are whole under their name, or not there.
    pub fn put(&self, bytes: &[u8]) -> io::Result<Hash> {
        let hash = Hash::of(bytes);
        let place = self.place(&hash);
        // One of another length was cut by a power failure.
        if self.renew(&hash, bytes.len() as u64) {
            return Ok(hash);
        }
        let drawer = place.parent().unwrap_or(&self.folder);
        DirBuilder::new().recursive(true).mode(0o700).create(drawer)?;
        let draft = drawer.join(format!("draft-{:016x}", fastrand::u64(..)));
        let written = (|| {
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
            file.write_all(bytes)?;
            fs::rename(&draft, &place)
        })();
        if written.is_err() {
            fs::remove_file(&draft).ok();
        }
        written.map(|()| hash)
    }

    /// Whether there are so many bytes of that hash. Somebody refers to them anew: whoever clears away
    /// what is old must see that.
    pub fn renew(&self, hash: &Hash, length: u64) -> bool {
        let there = OpenOptions::new().append(true).open(self.place(hash));
        let is_whole = |there: &File| there.metadata().is_ok_and(|own| own.len() == length);
        let Some(there) = there.ok().filter(is_whole) else { return false };
        there.set_modified(std::time::SystemTime::now()).ok();
        true
    }

    /// The bytes of that hash; an error when they are gone, or are not these any more.
    pub fn get(&self, hash: &Hash) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.place(hash))?.read_to_end(&mut bytes)?;
        if Hash::of(&bytes) != *hash {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its content was changed"));
        }
        Ok(bytes)
    }

    /// Whether there is something of that hash.
    pub fn has(&self, hash: &Hash) -> bool {
        self.place(hash).exists()
    }

    fn place(&self, hash: &Hash) -> PathBuf {
        let name = hash.to_string();
        self.folder.join(&name[..2]).join(name)
    }
}
