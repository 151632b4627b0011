//! Record of file system entries, for a cheap check whether they are still the same.
//!
//! Creating, removing or replacing an entry sets the change time of its folder, which no program can choose.
//! So if the change time of a folder on a local file system is the recorded one, its entries are too, and
//! one `stat` checks all of them. Mounts change no time: after any change of the mount table, and where a
//! folder changed, each entry is compared.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, lstat, openat};

use super::folder_tree::{FolderStamp, settled_before};
use super::name_cache::NameEntry;
use crate::base::files::{MountWatch, is_on_local_file_system};

/// The recorded entries of the file system by name.
#[derive(Debug)]
pub struct NameRecord {
    folders: Vec<RecordedFolder>,
    mounts: MountWatch,
}

/// The recorded names of one folder.
#[derive(Debug, Default)]
struct RecordedFolder {
    path: PathBuf,
    entries: Vec<(PathBuf, NameEntry)>,
    /// All names in the folder, if they were read.
    listing: Option<FolderNames>,
    /// The stamp of the folder at the last comparison of its entries.
    stamp: Mutex<Option<FolderStamp>>,
}

/// All names in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderNames {
    folder: PathBuf,
    names: HashSet<OsString>,
}

impl FolderNames {
    /// Reads the names in a folder; `None` when it cannot be read.
    pub fn read(folder: &Path) -> Option<Self> {
        let names = fs::read_dir(folder).ok()?.map(|entry| Some(entry.ok()?.file_name()));
        Some(Self { folder: folder.to_owned(), names: names.collect::<Option<_>>()? })
    }

    /// Whether a path may exist; false only for paths in the folder whose first name is not in the list.
    pub fn may_contain(&self, path: &Path) -> bool {
        let Ok(inside) = path.strip_prefix(&self.folder) else { return true };
        inside.components().next().is_none_or(|first| self.names.contains(first.as_os_str()))
    }
}

impl NameRecord {
    /// Records entries by their paths, and the names of one folder.
    pub fn new(entries: Vec<(PathBuf, NameEntry)>, listing: Option<FolderNames>) -> Self {
        let mut folders: BTreeMap<PathBuf, RecordedFolder> = BTreeMap::new();
        for (path, entry) in entries {
            let folder = path.parent().unwrap_or(&path).to_owned();
            folders.entry(folder).or_default().entries.push((path, entry));
        }
        if let Some(listing) = listing {
            let folder = folders.entry(listing.folder.clone()).or_default();
            folder.listing = Some(listing);
        }
        let named = |(path, folder): (PathBuf, RecordedFolder)| RecordedFolder { path, ..folder };
        let folders = folders.into_iter().map(named).collect();
        Self { folders, mounts: MountWatch::start() }
    }

    /// Whether all recorded entries are still the same.
    pub fn is_current(&self) -> bool {
        if self.mounts.take_change() {
            self.folders.iter().for_each(RecordedFolder::forget_stamp);
        }
        let settled = settled_before();
        self.folders.iter().all(|folder| folder.is_current(settled))
    }
}

impl RecordedFolder {
    fn is_current(&self, settled: Duration) -> bool {
        let known = *self.stamp.lock();
        if known.is_some() && known == self.stamp_now() {
            return true;
        }
        let before = self.stamp_if_local(settled);
        let is_listed =
            |listing: &FolderNames| FolderNames::read(&self.path).as_ref() == Some(listing);
        let holds = self.listing.as_ref().is_none_or(is_listed)
            && self.entries.iter().all(|(path, entry)| NameEntry::read(path) == *entry);
        *self.stamp.lock() = before.filter(|_| holds);
        holds
    }

    fn stamp_now(&self) -> Option<FolderStamp> {
        lstat(&self.path).ok().map(|found| FolderStamp::from_stat(&found))
    }

    /// The stamp of a folder, if its next change will change the stamp; otherwise `None`.
    fn stamp_if_local(&self, settled: Duration) -> Option<FolderStamp> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = openat(CWD, &self.path, flags, Mode::empty()).ok()?;
        let found = fstat(&folder).ok()?;
        let is_folder = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
        let stamp = FolderStamp::from_stat(&found);
        (is_folder && stamp.is_before(settled) && is_on_local_file_system(&folder)).then_some(stamp)
    }

    fn forget_stamp(&self) {
        *self.stamp.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::name_cache::NameCache;
    use super::*;

    /// A folder whose next change will change its change time.
    fn settled_folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/file"), "").unwrap();
        symlink("b", root.join("a/link")).unwrap();
        while !FolderStamp::from_stat(&lstat(root.join("a")).unwrap()).is_before(settled_before()) {
            std::thread::yield_now();
        }
        (folder, root)
    }

    fn recorded(root: &Path) -> NameRecord {
        let names = NameCache::with_listing(Some(root));
        for name in ["a/file", "a/link/x", "a/missing", "a/b/missing/deep"] {
            names.canonical(&root.join(name));
        }
        let record = names.into_record();
        assert!(record.is_current() && record.is_current());
        let stamped = |folder: &&RecordedFolder| folder.path == root.join("a");
        let folder = record.folders.iter().find(stamped).unwrap();
        assert!(folder.stamp.lock().is_some(), "the second check uses the change time");
        record
    }

    #[test]
    fn a_record_notices_every_change_of_its_names() {
        type Change = fn(&Path);
        let changes: [(&str, Change); 8] = [
            ("a file is removed", |root| fs::remove_file(root.join("a/file")).unwrap()),
            ("a file is replaced", |root| {
                fs::write(root.join("a/new"), "").unwrap();
                fs::rename(root.join("a/new"), root.join("a/file")).unwrap();
            }),
            ("a link gets another target", |root| {
                fs::remove_file(root.join("a/link")).unwrap();
                symlink("file", root.join("a/link")).unwrap();
            }),
            ("a missing name is created", |root| fs::write(root.join("a/missing"), "").unwrap()),
            ("a folder is created", |root| fs::create_dir(root.join("a/b/missing")).unwrap()),
            ("a folder is moved aside", |root| {
                fs::rename(root.join("a"), root.join("aside")).unwrap();
                fs::create_dir(root.join("a")).unwrap();
            }),
            ("a folder becomes a link", |root| {
                fs::rename(root.join("a"), root.join("aside")).unwrap();
                symlink("aside", root.join("a")).unwrap();
            }),
            ("a name is added to the listing", |root| fs::write(root.join("new"), "").unwrap()),
        ];
        for (what, change) in changes {
            let (_folder, root) = settled_folder();
            let record = recorded(&root);
            change(&root);
            assert!(!record.is_current(), "{what}");
        }
    }

    #[test]
    fn changes_beside_the_names_do_not_count() {
        let (_folder, root) = settled_folder();
        let record = recorded(&root);
        fs::write(root.join("a/other"), "").unwrap();
        fs::write(root.join("a/file"), "content").unwrap();
        assert!(record.is_current());
        fs::remove_file(root.join("a/file")).unwrap();
        assert!(!record.is_current(), "a folder that changed a moment ago is not relied on");
    }
}
