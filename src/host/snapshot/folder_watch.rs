//! Folder watch: watches the folders of a survey with inotify. While the kernel reports no change, the survey
//! is current and need not be repeated.
//!
//! The kernel queues an event before the system call that makes a change returns. It does not report
//! writes through a hard link in another folder or writes by another machine, and reports a write to mapped
//! memory only when the file is closed. So a watch covers only folders on one local file system whose files
//! have one hard link each, and the survey at the end of a Turn does not use it. Ignore rules also
//! depend on files outside of the survey and on mounts: those are compared.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{AtFlags, FileType, Stat, fstat, lstat, statat};
use rustix::io::Errno;

use crate::base::files::{MountWatch, is_on_local_file_system};
use crate::host::walk::rule_files_outside;
use crate::host::workspace::{OpenKind, Workspace};

/// The maximum number of watches of one process; a user has 128 by default, for all programs together.
const MOST_WATCHES: usize = 8;
/// The maximum number of folders of one watch; each takes about a kilobyte of kernel memory.
const MOST_FOLDERS: usize = 20_000;

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

/// The number of watches in this process.
static WATCHES: AtomicUsize = AtomicUsize::new(0);

/// A watch on the folders of one Workspace.
#[derive(Debug)]
pub struct FolderWatch {
    inotify: OwnedFd,
    /// Reports mounts and unmounts.
    mounts: MountWatch,
    root: PathBuf,
    device: u64,
    /// Whether all folders of the last survey are watched and nothing was reported since.
    is_current: AtomicBool,
    watched: Mutex<WatchedFolders>,
    _permit: WatchPermit,
}

/// The watched folders and the reported changes.
#[derive(Debug, Default)]
struct WatchedFolders {
    /// The folder of each inotify watch descriptor.
    folders: HashMap<i32, PathBuf>,
    /// Files with ignore rules outside of the watched folders, with their stamps.
    rules: Vec<(PathBuf, Option<RuleFileStamp>)>,
    /// Changes reported before the last survey.
    before: ReportedChanges,
    since: ReportedChanges,
}

/// The paths of reported changes.
#[derive(Debug, Default)]
struct ReportedChanges {
    paths: BTreeSet<PathBuf>,
    /// Whether a folder was moved or events were lost, so that any path may have changed.
    is_vague: bool,
}

impl ReportedChanges {
    fn contains(&self, path: &Path) -> bool {
        self.is_vague || self.paths.contains(path)
    }
}

/// The stamp of a file with ignore rules: inode, and unless the path is a folder, size and change time.
type RuleFileStamp = (u64, i64, i64, u64);

fn stamp_rule_file(path: &Path) -> Option<RuleFileStamp> {
    let found = lstat(path).ok()?;
    if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
        return Some((found.st_ino, 0, 0, 0));
    }
    Some((found.st_ino, found.st_size, found.st_ctime, found.st_ctime_nsec))
}

/// The right to one of the process's watches; released on drop.
#[derive(Debug)]
struct WatchPermit;

impl WatchPermit {
    fn acquire() -> Option<Self> {
        let more = |count| (count < MOST_WATCHES).then_some(count + 1);
        WATCHES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Self)
    }
}

impl Drop for WatchPermit {
    fn drop(&mut self) {
        WATCHES.fetch_sub(1, Ordering::Relaxed);
    }
}

impl FolderWatch {
    /// A watch for this Workspace; `None` where its file system cannot be watched.
    pub fn new(workspace: &Workspace) -> Option<Self> {
        let place = WatchPermit::acquire()?;
        let root = workspace.open_no_follow(b"", OpenKind::Folder).ok()?;
        if !is_on_local_file_system(&root) {
            return None;
        }
        Some(Self {
            inotify: inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok()?,
            mounts: MountWatch::start(),
            root: workspace.root().to_owned(),
            device: fstat(&root).ok()?.st_dev,
            is_current: AtomicBool::new(false),
            watched: Mutex::default(),
            _permit: place,
        })
    }

    /// Starts to watch before a survey of the whole Workspace, which includes all changes reported so far.
    pub fn begin_survey(&self, workspace: &Workspace) {
        self.mounts.take_change();
        self.take_events();
        {
            let mut known = self.watched.lock();
            known.before = std::mem::take(&mut known.since);
            let rules = rule_files_outside(workspace).into_iter();
            let stamped = |path: PathBuf| {
                let stamp = stamp_rule_file(&path);
                (path, stamp)
            };
            known.rules = rules.map(stamped).collect();
        }
        self.is_current.store(true, Ordering::Relaxed);
        match workspace.open_no_follow(b"", OpenKind::Folder) {
            Ok(root) => self.add_folder(root.as_fd(), b".", Path::new("")),
            Err(_) => self.invalidate(),
        }
    }

    /// Adds a path that the survey found; must be called before the survey reads the folder at that path.
    pub fn observe_path(&self, folder: BorrowedFd<'_>, path: &[u8], found: &Stat) {
        if !self.is_current.load(Ordering::Relaxed) {
            return;
        }
        if found.st_dev != self.device {
            return self.invalidate();
        }
        let path = Path::new(OsStr::from_bytes(path));
        let name = path.file_name().unwrap_or_default().as_bytes();
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => {
                self.add_folder(folder, name, path);
                let nested = [name, b"/.git"].concat();
                if statat(folder, nested, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                    let rules = self.root.join(path).join(".git/info/exclude");
                    self.watched.lock().rules.push((rules.clone(), stamp_rule_file(&rules)));
                }
            }
            FileType::RegularFile if found.st_nlink > 1 => self.invalidate(),
            _ => {}
        }
    }

    fn add_folder(&self, folder: BorrowedFd<'_>, name: &[u8], path: &Path) {
        let mut place = Vec::with_capacity(32 + name.len());
        let written = write!(place, "/proc/self/fd/{}/", folder.as_raw_fd());
        place.extend_from_slice(name);
        let added = inotify::add_watch(&self.inotify, &*place, CHANGES);
        let mut known = self.watched.lock();
        match added {
            Ok(number) if written.is_ok() && known.folders.len() < MOST_FOLDERS => {
                known.folders.insert(number, path.to_owned());
            }
            _ => self.invalidate(),
        }
    }

    /// Marks the last survey as outdated, because something changed or cannot be watched.
    pub fn invalidate(&self) {
        self.is_current.store(false, Ordering::Relaxed);
    }

    /// Whether no change was reported since the last survey began.
    pub fn is_quiet(&self) -> bool {
        if self.is_current.load(Ordering::Relaxed)
            && (self.take_events() || self.mounts.take_change() || self.have_rules_changed())
        {
            self.invalidate();
        }
        self.is_current.load(Ordering::Relaxed)
    }

    /// Whether a change of this path was reported since the survey before the last one.
    pub fn was_reported(&self, path: &Path) -> bool {
        if self.take_events() {
            self.invalidate();
        }
        let known = self.watched.lock();
        known.before.contains(path) || known.since.contains(path)
    }

    fn have_rules_changed(&self) -> bool {
        self.watched.lock().rules.iter().any(|(path, was)| stamp_rule_file(path) != *was)
    }

    /// Reads all events; true when there were events, or the queue overflowed.
    fn take_events(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut has_some = false;
        let mut known = self.watched.lock();
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return has_some,
                Err(_) => {
                    known.since.is_vague = true;
                    return true;
                }
            };
            has_some = true;
            let flags = event.events();
            let is_of_folder = flags.contains(ReadFlags::ISDIR)
                && flags.intersects(ReadFlags::MOVED_FROM | ReadFlags::MOVED_TO);
            let folder = known.folders.get(&event.wd());
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
            match folder.zip(name).map(|(folder, name)| folder.join(name)) {
                Some(path) if !is_of_folder => drop(known.since.paths.insert(path)),
                None if flags.intersects(ReadFlags::ATTRIB | ReadFlags::DELETE_SELF) => {}
                _ => known.since.is_vague = true,
            }
            if flags.contains(ReadFlags::IGNORED) {
                known.folders.remove(&event.wd());
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

    use super::super::survey_progress::SurveyProgress;
    use super::super::{ContentStore, Survey, SurveyLimits};
    use super::*;
    use crate::base::files::StatePath;
    use crate::settings::config::UndoLimits;

    fn folder() -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(".gitignore"), "ignored\n").unwrap();
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        fs::create_dir(folder.path().join("ignored")).unwrap();
        fs::create_dir(folder.path().join(".pixir")).unwrap();
        fs::write(folder.path().join("a/b/file"), "one").unwrap();
        folder
    }

    /// Surveys under a watch; waits for a permit while other tests hold all of them.
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
        let store = ContentStore::new(StatePath::root(workspace.root()).join(".pixir"));
        let limits = SurveyLimits::from_undo_settings(UndoLimits::default());
        let survey = Survey { workspace, store: &store, limits };
        let progress = SurveyProgress::new(limits.time);
        survey.run_watched(None, &[], Some(watch), &progress).unwrap();
    }

    #[test]
    fn every_change_in_a_folder_that_is_not_ignored_is_reported() {
        type WatchedAction = fn(&Path);
        let actions: [(&str, WatchedAction); 10] = [
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
        for (name, action) in actions {
            let folder = folder();
            let watch = watched(folder.path());
            assert!(watch.is_quiet(), "{name}");
            action(folder.path());
            assert!(!watch.is_quiet(), "{name}");
            assert!(!watch.is_quiet(), "{name}: no survey was taken since");
        }
    }

    fn mode(path: &Path) {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
    }

    #[test]
    fn rules_that_lie_elsewhere_count_and_what_was_reported_is_known_by_name() {
        let folder = folder();
        let (inner, top) = (folder.path().join("a"), folder.path().join(".git/info"));
        fs::create_dir_all(inner.join("b/.git/info")).unwrap();
        fs::create_dir_all(&top).unwrap();
        fs::create_dir(inner.join(".pixir")).unwrap();
        for rules in [top.join("exclude"), inner.join("b/.git/info/exclude")] {
            let watch = watched(&inner);
            assert!(watch.is_quiet());
            fs::write(&rules, "x\n").unwrap();
            assert!(!watch.is_quiet(), "{}", rules.display());
        }
        let watch = watched(&inner);
        fs::write(folder.path().join(".gitignore"), "y\n").unwrap();
        assert!(!watch.is_quiet());
        fs::write(inner.join("b/file"), "two").unwrap();
        assert!(watch.was_reported(Path::new("b/file")));
        assert!(!watch.was_reported(Path::new("b/other")));
        survey(&Workspace::open(&inner).unwrap(), &watch);
        assert!(watch.is_quiet() && watch.was_reported(Path::new("b/file")));
        survey(&Workspace::open(&inner).unwrap(), &watch);
        assert!(!watch.was_reported(Path::new("b/file")));
        fs::rename(inner.join("b"), inner.join("c")).unwrap();
        assert!(watch.was_reported(Path::new("c/file")), "a folder was moved");
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
