//! A folder of Pixir's state, opened for garbage collection: entries that cannot be read, and names that are not
//! UTF-8, are left out.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use crate::base::files::{StateDir, StateEntry, StatePath};
use crate::record::log;

/// An open folder and its path.
pub struct GcFolder {
    dir: StateDir,
    state_folder: StatePath,
}

/// An entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderEntry {
    pub name: String,
    pub file_type: FileType,
    pub bytes: u64,
    /// Seconds and nanoseconds of the last write.
    pub written: (i64, i64),
}

impl GcFolder {
    /// Opens a folder of state.
    pub fn open(place: &StatePath) -> Option<Self> {
        let dir = place.open().ok()??;
        Some(Self { dir, state_folder: place.clone() })
    }

    /// Opens a folder inside.
    pub fn open_folder(&self, name: &str) -> Option<Self> {
        let dir = self.dir.open_dir(name).ok()??;
        Some(Self { dir, state_folder: self.state_folder.join(name) })
    }

    /// The path, for messages.
    pub fn path(&self) -> PathBuf {
        self.state_folder.path()
    }

    /// The folder's location, to be opened again.
    pub fn state_folder(&self) -> &StatePath {
        &self.state_folder
    }

    /// Every entry with a UTF-8 name.
    pub fn entries(&self) -> Vec<FolderEntry> {
        self.dir
            .entries()
            .unwrap_or_default()
            .into_iter()
            .filter_map(FolderEntry::from_entry)
            .collect()
    }

    /// The entry with a name, as it is now.
    pub fn stat(&self, name: &str) -> Option<FolderEntry> {
        self.dir.stat(name).ok().flatten().and_then(FolderEntry::from_entry)
    }

    /// Opens a file inside for reading; `None` also when it is larger than any Log.
    pub fn open_file(&self, name: &str) -> Option<File> {
        let file = self.dir.open_file(name).ok().flatten()?;
        let is_readable = file.metadata().is_ok_and(|facts| facts.len() <= log::LARGEST);
        is_readable.then_some(file)
    }

    /// Removes a file or a link; one that is gone already is fine.
    pub fn remove_file(&self, name: &str) -> io::Result<()> {
        self.dir.remove_file(name).map(drop).map_err(Into::into)
    }

    /// Removes a folder with everything in it, through no link.
    pub fn remove_folder(&self, name: &str) -> io::Result<()> {
        self.dir.remove_tree(name).map(drop).map_err(Into::into)
    }

    /// The size of a folder inside, in bytes.
    pub fn folder_bytes(&self, name: &str) -> u64 {
        self.dir.tree_bytes(name)
    }
}

impl FolderEntry {
    fn from_entry(entry: StateEntry) -> Option<Self> {
        let name = entry.name.into_string().ok()?;
        Some(Self { name, file_type: entry.kind, bytes: entry.bytes, written: entry.modified })
    }
}

/// The folder that contains a path which the user chose, such as a file of a Workspace.
pub fn parent_folder(path: &Path) -> Option<StatePath> {
    path.parent().map(StatePath::root)
}
