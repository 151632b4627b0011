//! Entries of a folder at one moment, to detect later whether they have changed.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{CWD, Dir, Mode, OFlags};

/// The names in a folder, and their inodes.
#[derive(Debug)]
pub struct FolderEntries {
    /// A descriptor of the folder, which stays valid when another mount covers its path.
    folder: OwnedFd,
    entries: Vec<(OsString, u64)>,
    /// Names that are left out of the comparison.
    ignored: Vec<OsString>,
}

impl FolderEntries {
    /// A record of a folder with these entries, without those whose names are ignored.
    pub fn new(
        folder: &Path,
        mut entries: Vec<(OsString, u64)>,
        ignored: Vec<OsString>,
    ) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(CWD, folder, flags, Mode::empty())?;
        entries.sort();
        Ok(Self { folder, entries, ignored })
    }

    /// Whether the folder has other entries now.
    pub fn has_changed(&self) -> bool {
        let Ok(list) = Dir::read_from(&self.folder) else { return true };
        let mut entries = Vec::with_capacity(self.entries.len());
        for entry in list {
            let Ok(entry) = entry else { return true };
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let is_itself = name == "." || name == "..";
            if !is_itself && !self.ignored.iter().any(|ignored| ignored == name) {
                entries.push((name.to_owned(), entry.ino()));
            }
        }
        entries.sort();
        entries != self.entries
    }
}
