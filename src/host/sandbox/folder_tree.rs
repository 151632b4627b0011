//! Folder tree of a Workspace: finds repositories and files that programs outside the sandbox run. The
//! tree is read once, and then only where it changed.
//!
//! Creating, removing or renaming an entry changes the change time of its folder, which no command can
//! set. So one `stat` per folder shows which have to be read again, at a tenth of the cost of reading
//! all of them. Ignored folders belong to the tree; links are not followed.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;

use super::program_files;
use crate::base::paths::STATE_FOLDER;

/// The resolution of change times: a folder may change again within this time and keep its change time.
const TICK: Duration = Duration::from_millis(50);

/// The time before which a change time is settled: a later change sets a different one.
pub fn settled_before() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(TICK)
}

/// The maximum number of folders of a Workspace; a larger one is not searched.
pub const MOST_FOLDERS: usize = 200_000;

const LIST_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The folders beneath a root.
#[derive(Debug)]
pub struct FolderTree {
    root: PathBuf,
    top: TreeFolder,
    count: usize,
}

/// One folder of the tree.
#[derive(Debug, Default)]
struct TreeFolder {
    name: Box<[u8]>,
    stamp: Option<FolderStamp>,
    marks: Vec<FolderMark>,
    folders: Vec<TreeFolder>,
}

/// Device, inode and change time of a folder: they change with its list of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FolderStamp {
    device: u64,
    inode: u64,
    changed: (i64, u64),
}

/// A mark on a folder: a repository in it, or a file that programs outside the sandbox run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FolderMark {
    /// An entry that git treats as a repository.
    DotGit(OsString),
    /// The folder itself has the layout of a repository.
    Layout,
    /// A file that other programs run or read programs from.
    Program(OsString),
}

/// Handling of folders whose mode locks out their owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClosedFolders {
    /// Left as they are, because they are the user's.
    Leave,
    /// Made accessible, because a command closed them.
    Open,
}

/// The error for a tree with too many folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge;

impl FolderTree {
    /// Reads the whole tree.
    pub fn new(root: &Path) -> Result<Self, TooLarge> {
        let mut tree = Self { root: root.to_owned(), top: TreeFolder::default(), count: 0 };
        tree.refresh(ClosedFolders::Leave, MOST_FOLDERS)?;
        Ok(tree)
    }

    /// The number of folders.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Reads the changed folders again.
    pub fn update(&mut self, closed: ClosedFolders) {
        // Folders that commands created are searched without a limit.
        self.refresh(closed, usize::MAX).ok();
    }

    fn refresh(&mut self, closed: ClosedFolders, most: usize) -> Result<(), TooLarge> {
        let Ok(root) = openat(CWD, &self.root, OFlags::PATH | LIST_FLAGS, Mode::empty()) else {
            self.top = TreeFolder::default();
            return Ok(());
        };
        let settled = settled_before();
        let mut pass = TreePass { root, settled, closed, count: 0, most };
        let mut path = Vec::new();
        pass.visit(&mut self.top, &mut path);
        self.count = pass.count;
        if pass.count > most { Err(TooLarge) } else { Ok(()) }
    }

    /// All marks, each with the folder that has it.
    pub fn marks(&self) -> Vec<(PathBuf, &FolderMark)> {
        let mut found = Vec::new();
        self.top.collect_marks(&mut self.root.clone(), &mut found);
        found
    }
}

/// One pass over the whole tree.
struct TreePass {
    root: OwnedFd,
    /// See [`settled_before`].
    settled: Duration,
    closed: ClosedFolders,
    count: usize,
    most: usize,
}

impl TreePass {
    fn visit(&mut self, folder: &mut TreeFolder, path: &mut Vec<u8>) {
        self.count += 1;
        if self.count > self.most {
            return;
        }
        let Ok(found) = self.stat(path) else { return *folder = TreeFolder::missing(folder) };
        if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
            return *folder = TreeFolder::missing(folder);
        }
        if folder.stamp != Some(FolderStamp::from_stat(&found)) {
            self.read_names(folder, path, &found);
        }
        let length = path.len();
        for child in &mut folder.folders {
            if length > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(&child.name);
            self.visit(child, path);
            path.truncate(length);
        }
    }

    fn stat(&self, path: &[u8]) -> Result<Stat, Errno> {
        if path.is_empty() {
            return fstat(&self.root);
        }
        statat(&self.root, OsStr::from_bytes(path), AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Reads the names of a folder; the state of folders that are still there is kept.
    fn read_names(&self, folder: &mut TreeFolder, path: &[u8], found: &Stat) {
        let before = std::mem::take(&mut folder.folders);
        folder.marks.clear();
        let Ok(list) = self.open_folder(path, found) else {
            folder.stamp = Some(FolderStamp::from_stat(found));
            return;
        };
        // The stamp is that of the opened folder, because the name may denote another one by now.
        let found = fstat(&list).unwrap_or(*found);
        let mut seen = FolderScan { is_top: path.is_empty(), ..FolderScan::default() };
        let in_program_folder = program_files::is_program_folder(path);
        for entry in Dir::read_from(&list).into_iter().flatten().filter_map(Result::ok) {
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => statat(&list, name, AtFlags::SYMLINK_NOFOLLOW)
                    .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
                kind => kind,
            };
            seen.record_name(name, kind, in_program_folder);
        }
        folder.marks = seen.take_marks();
        folder.folders = seen.folders.into_iter().map(TreeFolder::named).collect();
        folder.keep_known_children(before);
        folder.stamp =
            Some(FolderStamp::from_stat(&found)).filter(|stamp| stamp.is_before(self.settled));
    }

    fn open_folder(&self, path: &[u8], found: &Stat) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { b"." } else { path };
        let open = || openat(&self.root, OsStr::from_bytes(path), LIST_FLAGS, Mode::empty());
        match open() {
            Err(Errno::ACCESS) if self.closed == ClosedFolders::Open => {
                let walk = OFlags::PATH | LIST_FLAGS;
                let folder = openat(&self.root, OsStr::from_bytes(path), walk, Mode::empty())?;
                grant_owner_access(folder.as_fd(), found);
                open()
            }
            outcome => outcome,
        }
    }
}

/// Gives the owner of a folder all rights in it.
fn grant_owner_access(folder: std::os::fd::BorrowedFd<'_>, found: &Stat) {
    if found.st_uid == rustix::process::geteuid().as_raw() {
        let mode = Mode::from_raw_mode(found.st_mode & 0o7777 | 0o700);
        // fchmod does not work on an `O_PATH` descriptor, but chmod on its name in `/proc` does.
        rustix::fs::chmod(format!("/proc/self/fd/{}", folder.as_raw_fd()), mode).ok();
    }
}

impl FolderStamp {
    pub fn from_stat(found: &Stat) -> Self {
        let changed = (found.st_ctime, found.st_ctime_nsec);
        Self { device: found.st_dev, inode: found.st_ino, changed }
    }

    pub fn is_before(&self, moment: Duration) -> bool {
        let seconds = u64::try_from(self.changed.0).unwrap_or_default();
        let nanoseconds = u32::try_from(self.changed.1).unwrap_or_default();
        Duration::new(seconds, nanoseconds) < moment
    }
}

impl TreeFolder {
    fn named(name: Box<[u8]>) -> Self {
        Self { name, ..Self::default() }
    }

    /// An empty folder in place of one that is missing.
    fn missing(folder: &mut Self) -> Self {
        Self::named(std::mem::take(&mut folder.name))
    }

    fn collect_marks<'a>(&'a self, path: &mut PathBuf, found: &mut Vec<(PathBuf, &'a FolderMark)>) {
        found.extend(self.marks.iter().map(|mark| (path.clone(), mark)));
        for child in &self.folders {
            path.push(OsStr::from_bytes(&child.name));
            child.collect_marks(path, found);
            path.pop();
        }
    }

    /// Keeps the state of folders that are still there.
    fn keep_known_children(&mut self, mut before: Vec<Self>) {
        before.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        for child in &mut self.folders {
            if let Ok(place) = before.binary_search_by(|known| known.name.cmp(&child.name)) {
                std::mem::swap(child, &mut before[place]);
                // No entry is swapped twice, because names in a folder are unique.
            }
        }
    }
}

/// Scan of the names in one folder, filled while they are read.
#[derive(Default)]
struct FolderScan {
    is_top: bool,
    folders: Vec<Box<[u8]>>,
    marks: Vec<FolderMark>,
    /// Whether each name of [`LAYOUT`] exists.
    layout: [bool; 4],
}

/// The names by which git recognises a repository's folder.
const LAYOUT: [&[u8]; 4] = [b"HEAD", b"commondir", b"objects", b"refs"];

impl FolderScan {
    fn record_name(&mut self, name: &[u8], kind: FileType, in_program_folder: bool) {
        let own = || OsStr::from_bytes(name).to_owned();
        // The comparison ignores case, because the file system may do so too.
        if name.eq_ignore_ascii_case(b".git") {
            self.marks.push(FolderMark::DotGit(own()));
            return;
        }
        if let Some(place) = LAYOUT.iter().position(|own| *own == name) {
            self.layout[place] = true;
        }
        if kind == FileType::Directory {
            if !(self.is_top && name == STATE_FOLDER.as_bytes()) {
                self.folders.push(name.into());
            }
        } else if in_program_folder || program_files::is_program_file(name) {
            self.marks.push(FolderMark::Program(own()));
        }
    }

    fn take_marks(&mut self) -> Vec<FolderMark> {
        let mut marks = std::mem::take(&mut self.marks);
        let [head, common, objects, refs] = self.layout;
        if head && (common || objects && refs) {
            marks.push(FolderMark::Layout);
        }
        marks
    }
}
