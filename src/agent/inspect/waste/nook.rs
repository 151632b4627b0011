//! A folder of Pixir's state, opened for garbage collection: entries that cannot be read, and names that are not
//! UTF-8, are left out.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use crate::base::files::{StateDir, StateEntry, StateFolder};
use crate::record::log;

/// An open folder and its path.
pub struct Nook {
    dir: StateDir,
    place: StateFolder,
}

/// An entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub name: String,
    pub sort: FileType,
    pub bytes: u64,
    /// Seconds and nanoseconds of the last write.
    pub written: (i64, i64),
}

impl Nook {
    /// Opens a folder of state.
    pub fn open(place: &StateFolder) -> Option<Self> {
        let dir = place.open().ok()??;
        Some(Self { dir, place: place.clone() })
    }

    /// Opens a folder inside.
    pub fn inner(&self, name: &str) -> Option<Self> {
        let dir = self.dir.open_dir(name).ok()??;
        Some(Self { dir, place: self.place.join(name) })
    }

    /// The path, for messages.
    pub fn path(&self) -> PathBuf {
        self.place.path()
    }

    /// The folder's location, to be opened again.
    pub fn place(&self) -> &StateFolder {
        &self.place
    }

    /// Every entry with a UTF-8 name.
    pub fn names(&self) -> Vec<Found> {
        self.dir.entries().unwrap_or_default().into_iter().filter_map(Found::of).collect()
    }

    /// The entry with a name, as it is now.
    pub fn look(&self, name: &str) -> Option<Found> {
        self.dir.stat(name).ok().flatten().and_then(Found::of)
    }

    /// Opens a file inside for reading; `None` also when it is larger than any Log.
    pub fn file(&self, name: &str) -> Option<File> {
        let file = self.dir.open_file(name).ok().flatten()?;
        let is_readable = file.metadata().is_ok_and(|facts| facts.len() <= log::LARGEST);
        is_readable.then_some(file)
    }

    /// Removes a file or a link; one that is gone already is fine.
    pub fn remove_file(&self, name: &str) -> io::Result<()> {
        self.dir.remove_file(name).map(drop).map_err(Into::into)
    }

    /// Removes a folder with everything in it, through no link.
    pub fn remove_all(&self, name: &str) -> io::Result<()> {
        self.dir.remove_tree(name).map(drop).map_err(Into::into)
    }

    /// The size of a folder inside, in bytes.
    pub fn bytes_of(&self, name: &str) -> u64 {
        self.dir.tree_bytes(name)
    }
}

impl Found {
    fn of(entry: StateEntry) -> Option<Self> {
        let name = entry.name.into_string().ok()?;
        Some(Self { name, sort: entry.kind, bytes: entry.bytes, written: entry.modified })
    }
}

/// The folder that contains a path which the user chose, such as a file of a Workspace.
pub fn around(path: &Path) -> Option<StateFolder> {
    path.parent().map(StateFolder::root)
}
