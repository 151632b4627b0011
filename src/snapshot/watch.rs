//! A watch over the folders of a survey: as long as the kernel reports no change in them, the survey
//! holds and need not be taken again.
//!
//! The kernel queues an event before the system call that changes something returns. It reports
//! nothing for a write through a hard link in another folder and for what another machine writes, and a
//! write to mapped memory only when the file is closed. So a watch answers only for folders on one
//! local file system whose files have one name each, and the last survey of a Turn does without it.

use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{FileType, Stat, fstat, fstatfs};
use rustix::io::Errno;

use crate::workspace::{Wanted, Workspace};

/// How many watches one process has; a user has 128 by default, for all programs together.
const MOST_WATCHES: usize = 8;
/// How many folders one watch has; each takes about a kilobyte of the kernel's memory.
const MOST_FOLDERS: usize = 20_000;

/// File systems that report every change made on this machine, by the number in `statfs`, and that no
/// other machine changes: ext2 to ext4, XFS, Btrfs, tmpfs, F2FS, overlayfs, bcachefs, ZFS.
const LOCAL: [u64; 8] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x0102_1994,
    0xf2f5_2010,
    0x794c_7630,
    0xca45_1a4e,
    0x2fc1_2fc1,
];

const CHANGES: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::DONT_FOLLOW);

/// How many watches there are in this process.
static WATCHES: AtomicUsize = AtomicUsize::new(0);

/// Watches the folders of one Workspace.
#[derive(Debug)]
pub struct FolderWatch {
    inotify: OwnedFd,
    device: u64,
    folders: AtomicUsize,
    /// Whether all folders of the last survey are watched and nothing was reported since.
    is_current: AtomicBool,
    _place: Place,
}

/// One of the watches that a process may have.
#[derive(Debug)]
struct Place;

impl Place {
    fn take() -> Option<Self> {
        let more = |count| (count < MOST_WATCHES).then_some(count + 1);
        WATCHES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Self)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        WATCHES.fetch_sub(1, Ordering::Relaxed);
    }
}

impl FolderWatch {
    /// A watch for this Workspace; `None` where its file system cannot be watched.
    pub fn new(workspace: &Workspace) -> Option<Self> {
        let place = Place::take()?;
        let root = workspace.open_exact(b"", Wanted::Folder).ok()?;
        let kind = fstatfs(&root).ok()?.f_type;
        let kind = u64::try_from(kind).ok()? & 0xffff_ffff;
        if !LOCAL.contains(&kind) {
            return None;
        }
        let device = fstat(&root).ok()?.st_dev;
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok()?;
        let (folders, is_current) = (AtomicUsize::new(0), AtomicBool::new(false));
        Some(Self { inotify, device, folders, is_current, _place: place })
    }

    /// A survey of the whole Workspace begins: what was reported so far will be seen by it.
    pub fn begin(&self, workspace: &Workspace) {
        self.has_events();
        self.folders.store(0, Ordering::Relaxed);
        self.is_current.store(true, Ordering::Relaxed);
        match workspace.open_exact(b"", Wanted::Folder) {
            Ok(root) => self.add(root.as_fd(), b"."),
            Err(_) => self.give_up(),
        }
    }

    /// Takes note of what the survey meets in a folder; must be called before it reads a folder that
    /// it meets.
    pub fn meet(&self, folder: BorrowedFd<'_>, name: &[u8], found: &Stat) {
        if !self.is_current.load(Ordering::Relaxed) {
            return;
        }
        if found.st_dev != self.device {
            return self.give_up();
        }
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => self.add(folder, name),
            FileType::RegularFile if found.st_nlink > 1 => self.give_up(),
            _ => {}
        }
    }

    fn add(&self, folder: BorrowedFd<'_>, name: &[u8]) {
        if self.folders.fetch_add(1, Ordering::Relaxed) >= MOST_FOLDERS {
            return self.give_up();
        }
        let mut path = Vec::with_capacity(32 + name.len());
        let written = write!(path, "/proc/self/fd/{}/", folder.as_raw_fd());
        path.extend_from_slice(name);
        if written.is_err() || inotify::add_watch(&self.inotify, &*path, CHANGES).is_err() {
            self.give_up();
        }
    }

    /// Something is not watched or was changed: the last survey does not hold any more.
    pub fn give_up(&self) {
        self.is_current.store(false, Ordering::Relaxed);
    }

    /// Whether nothing was changed since the last survey began, as far as can be told.
    pub fn is_quiet(&self) -> bool {
        if self.is_current.load(Ordering::Relaxed) && self.has_events() {
            self.give_up();
        }
        self.is_current.load(Ordering::Relaxed)
    }

    /// Takes all events; a queue that ran over is one.
    fn has_events(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
        let mut has_some = false;
        loop {
            match rustix::io::read(&self.inotify, &mut buffer) {
                Ok((read, _)) if !read.is_empty() => has_some = true,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return has_some,
                Ok(_) | Err(_) => return true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use tempfile::TempDir;

    use super::super::{Limits, Store, Survey};
    use super::*;
    use crate::config::Undo;
    use crate::files::StateFolder;

    fn folder() -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(".gitignore"), "ignored\n").unwrap();
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        fs::create_dir(folder.path().join("ignored")).unwrap();
        fs::create_dir(folder.path().join(".pixir")).unwrap();
        fs::write(folder.path().join("a/b/file"), "one").unwrap();
        folder
    }

    /// Surveys under a watch; none of the tests runs beside so many others that there is no watch.
    fn watched(folder: &Path) -> FolderWatch {
        let workspace = Workspace::open(folder).unwrap();
        let watch = loop {
            if let Some(watch) = FolderWatch::new(&workspace) {
                break watch;
            }
            std::thread::yield_now();
        };
        survey(&workspace, &watch);
        watch
    }

    fn survey(workspace: &Workspace, watch: &FolderWatch) {
        let store = Store::new(StateFolder::root(workspace.root()).join(".pixir"));
        let limits = Limits::of(Undo::default());
        let survey = Survey { workspace, store: &store, limits };
        survey.take_watched(None, &[], Some(watch)).unwrap();
    }

    #[test]
    fn every_change_in_a_folder_that_is_not_ignored_is_reported() {
        type Deed = fn(&Path);
        let deeds: [(&str, Deed); 10] = [
            ("write", |at| fs::write(at.join("a/b/file"), "two").unwrap()),
            ("make", |at| fs::write(at.join("a/new"), "").unwrap()),
            ("remove", |at| fs::remove_file(at.join("a/b/file")).unwrap()),
            ("rename", |at| fs::rename(at.join("a/b/file"), at.join("ignored/file")).unwrap()),
            ("mode of a file", |at| mode(&at.join("a/b/file"))),
            ("mode of a folder", |at| mode(&at.join("a"))),
            ("mode of the innermost folder", |at| mode(&at.join("a/b"))),
            ("make a folder", |at| fs::create_dir(at.join("a/b/c")).unwrap()),
            ("remove a folder", |at| fs::remove_dir_all(at.join("a")).unwrap()),
            ("link", |at| symlink("nowhere", at.join("a/link")).unwrap()),
        ];
        for (name, deed) in deeds {
            let folder = folder();
            let watch = watched(folder.path());
            assert!(watch.is_quiet(), "{name}");
            deed(folder.path());
            assert!(!watch.is_quiet(), "{name}");
            assert!(!watch.is_quiet(), "{name}: no survey was taken since");
        }
    }

    fn mode(path: &Path) {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
    }

    #[test]
    fn what_is_ignored_is_not_reported_and_new_folders_are_watched_after_the_next_survey() {
        let folder = folder();
        let watch = watched(folder.path());
        fs::write(folder.path().join("ignored/file"), "one").unwrap();
        assert!(watch.is_quiet());
        fs::create_dir(folder.path().join("new")).unwrap();
        survey(&Workspace::open(folder.path()).unwrap(), &watch);
        assert!(watch.is_quiet());
        fs::write(folder.path().join("new/file"), "one").unwrap();
        assert!(!watch.is_quiet());
    }

    #[test]
    fn a_file_with_two_names_and_another_file_system_cannot_be_watched() {
        let folder = folder();
        fs::hard_link(folder.path().join("a/b/file"), folder.path().join("ignored/file")).unwrap();
        assert!(!watched(folder.path()).is_quiet());
        fs::remove_file(folder.path().join("ignored/file")).unwrap();
        assert!(watched(folder.path()).is_quiet());
        let proc = Workspace::open(Path::new("/proc")).unwrap();
        assert!(FolderWatch::new(&proc).is_none());
    }
}
