//! Directory walk: visits every name beneath a folder, with several threads, in no particular order.
//!
//! Each folder is opened from the root of the Workspace, without following links, just before it is
//! visited, and its names are read from that descriptor. A folder that was replaced by a link meanwhile
//! is not entered, and links are never followed, so there are no loops either.

mod ignore_rules;
mod stop;

use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use ignore::overrides::Override;
use parking_lot::{Condvar, Mutex};
use rustix::fs::{AtFlags, FileType, RawDir};
use rustix::io::Errno;

pub use stop::{WalkStop, WalkStopReason};

use crate::base::paths::STATE_FOLDER;
use crate::host::workspace::{OpenKind, Workspace};
pub use ignore_rules::rule_files_outside;
use ignore_rules::{DOT_GIT, IgnoreRules, IgnoreVerdict, RuleFiles};

/// The maximum number of threads; more do not make a walk faster, and ripgrep has the same limit.
const MOST_THREADS: usize = 12;
/// The number of files of one folder in one task.
const FILES_PER_TASK: usize = 32;
/// The size of the buffer for names from the kernel, in bytes.
const NAMES_BUFFER: usize = 32 * 1024;
/// The number of names of a folder that are read between two checks of the clock.
const NAMES_PER_CHECK: usize = 256;
/// The maximum number of unreadable paths that are reported by name.
const MOST_REPORTED: usize = 3;

/// Options of a walk.
pub struct WalkOptions<'w> {
    pub workspace: &'w Workspace,
    pub stop: &'w WalkStop,
    /// The folder to start from, relative to the root; no link is followed.
    pub start: &'w Path,
    /// Visit hidden and ignored names as well.
    pub all: bool,
    /// Visit hidden names as well, unless they are ignored.
    pub hidden: bool,
    /// Visit only files that these globs match; paths are matched relative to `start`.
    pub globs: &'w Override,
    /// The number of levels of folders to read; 1 is the start folder alone.
    pub depth: usize,
    /// Whether the files of one folder are shared among threads, because visiting one is expensive.
    pub shares_files: bool,
}

/// The type of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalkEntryKind {
    File,
    Folder,
    Link,
    /// A pipe, a socket, a device.
    Other,
}

/// An entry that a walk found.
#[derive(Debug, Clone, Copy)]
pub struct WalkEntry<'p> {
    /// The path, relative to the root of the Workspace.
    pub path: &'p [u8],
    pub kind: WalkEntryKind,
}

/// Summary of a walk: what was left out or unreadable, and why it ended early.
#[derive(Debug, Default)]
pub struct WalkSummary {
    /// Hidden or ignored names; a folder counts once.
    pub left_out: u64,
    pub unreadable: u64,
    /// The first unreadable paths, sorted by path.
    pub first_unreadable: Vec<(Box<[u8]>, Errno)>,
    pub stopped: Option<WalkStopReason>,
}

impl WalkSummary {
    /// Records a path that could not be opened or read, unless it was removed or replaced since its name was
    /// read.
    pub fn add_unreadable(&mut self, path: &[u8], errno: Errno) {
        if matches!(errno, Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::INVAL | Errno::NXIO)
        {
            return;
        }
        self.unreadable += 1;
        let place = self.first_unreadable.partition_point(|(other, _)| **other < *path);
        if place < MOST_REPORTED {
            self.first_unreadable.insert(place, (path.into(), errno));
            self.first_unreadable.truncate(MOST_REPORTED);
        }
    }

    fn merge(&mut self, other: Self) {
        self.left_out += other.left_out;
        let more = other.unreadable - other.first_unreadable.len() as u64;
        for (path, errno) in other.first_unreadable {
            self.add_unreadable(&path, errno);
        }
        self.unreadable += more;
    }
}

/// Walks and calls `visit` for every entry; its result decides whether a folder is entered. Each thread
/// has its own state; all states are returned.
pub fn walk<S: Send>(
    walk: &WalkOptions<'_>,
    state: impl Fn() -> S + Sync,
    visit: impl Fn(&mut S, &mut WalkSummary, WalkEntry<'_>) -> bool + Sync,
) -> (Vec<S>, WalkSummary) {
    let shared = SharedWalk::new(walk);
    let work = || {
        let mut worker = WalkWorker::new(&shared, state());
        while let Some((task, _busy)) = shared.queue.next_task() {
            if walk.stop.is_due() {
                shared.queue.clear();
            } else {
                worker.run_task(task, &visit);
            }
        }
        (worker.state, worker.summary)
    };
    let threads = if walk.depth == 1 { 1 } else { threads() };
    let results: Vec<(S, WalkSummary)> = std::thread::scope(|scope| {
        // If no thread can be started, this one does all the work.
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
        let others: Vec<_> = (1..threads).map_while(start).collect();
        let own = work();
        let joined = others.into_iter().map(|other| match other.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        std::iter::once(own).chain(joined).collect()
    });
    let mut total = WalkSummary { stopped: walk.stop.reason(), ..WalkSummary::default() };
    let states = results.into_iter().map(|(state, summary)| {
        total.merge(summary);
        state
    });
    (states.collect(), total)
}

/// Whether the ignore rules leave out a path or a folder above it; the path need not exist.
pub fn is_ignored(workspace: &Workspace, path: &Path) -> bool {
    let (mut rules, mut total) = IgnoreRules::above_workspace(workspace);
    let before = total.len();
    let count = path.iter().count();
    for (place, part) in path.iter().enumerate() {
        let folder = total[before..].strip_suffix(b"/").unwrap_or_default().to_vec();
        rules = rules.in_folder(workspace, &folder, RuleFiles::UNKNOWN, total.len());
        total.extend_from_slice(part.as_bytes());
        if rules.verdict(&total, place + 1 < count) == IgnoreVerdict::Ignored {
            return true;
        }
        total.push(b'/');
    }
    false
}

/// The number of threads of a walk: the available parallelism, limited by `MOST_THREADS`.
pub fn threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    let count = || std::thread::available_parallelism().map_or(1, usize::from);
    (*THREADS.get_or_init(count)).min(MOST_THREADS)
}

/// The state that all threads of a walk share.
struct SharedWalk<'w> {
    walk: &'w WalkOptions<'w>,
    queue: WalkQueue,
    /// Length of the prefix that leads from the repository root to the Workspace, in bytes.
    prefix_length: usize,
    /// Length of the start folder in a path, in bytes; globs match the rest.
    start_length: usize,
}

impl<'w> SharedWalk<'w> {
    fn new(walk: &'w WalkOptions<'w>) -> Self {
        // In an extra root, paths are absolute and begin with it.
        let top = walk.workspace.root_length(walk.start);
        let (mut rules, mut path) = if walk.all || top > 0 {
            (IgnoreRules::default(), Vec::new())
        } else {
            IgnoreRules::above_workspace(walk.workspace)
        };
        let prefix_length = path.len();
        if !walk.all {
            // The folders between the root and the start folder have rules too.
            let start = walk.start.as_os_str().as_bytes();
            let ends = memchr::memchr_iter(b'/', start).map(|slash| (slash, slash + 1));
            let ends = ends.filter(|(end, _)| *end > top || top == 0);
            let root = (start.len() > top).then_some((top, if top == 0 { 0 } else { top + 1 }));
            for (end, next) in root.into_iter().chain(ends) {
                let folder = &start[..end];
                rules = rules.in_folder(
                    walk.workspace,
                    folder,
                    RuleFiles::UNKNOWN,
                    prefix_length + next,
                );
            }
        }
        path.extend_from_slice(walk.start.as_os_str().as_bytes());
        let below = walk.start.as_os_str().len();
        let start_length = if below == 0 { 0 } else { below + 1 };
        let queue = WalkQueue::new(WalkTask::Folder { path, rules, depth: 1 });
        Self { walk, queue, prefix_length, start_length }
    }
}

/// One thread of a walk: its state and its reused buffers.
struct WalkWorker<'w, S> {
    shared: &'w SharedWalk<'w>,
    state: S,
    summary: WalkSummary,
    buffer: Box<[MaybeUninit<u8>]>,
    names: Vec<u8>,
    entries: Vec<(usize, FileType)>,
}

impl<'w, S> WalkWorker<'w, S> {
    fn new(shared: &'w SharedWalk<'w>, state: S) -> Self {
        let buffer = Box::new_uninit_slice(NAMES_BUFFER);
        let (names, entries) = (Vec::new(), Vec::new());
        Self { shared, state, summary: WalkSummary::default(), buffer, names, entries }
    }

    fn run_task(
        &mut self,
        task: WalkTask,
        visit: impl Fn(&mut S, &mut WalkSummary, WalkEntry<'_>) -> bool,
    ) {
        match task {
            WalkTask::Files(files) => self.visit_files(&files, visit),
            WalkTask::Folder { path, rules, depth } => self.visit_folder(path, rules, depth, visit),
        }
    }

    fn visit_files(
        &mut self,
        files: &[NonFolder],
        visit: impl Fn(&mut S, &mut WalkSummary, WalkEntry<'_>) -> bool,
    ) {
        for (path, kind) in files {
            if self.shared.walk.stop.is_set() {
                return;
            }
            visit(&mut self.state, &mut self.summary, WalkEntry { path, kind: *kind });
        }
    }

    fn visit_folder(
        &mut self,
        mut path: Vec<u8>,
        rules: IgnoreRules,
        depth: usize,
        visit: impl Fn(&mut S, &mut WalkSummary, WalkEntry<'_>) -> bool,
    ) {
        let SharedWalk { walk, queue, prefix_length: before, start_length: below } = self.shared;
        let present = match self.read_names(&path[*before..]) {
            Ok(present) => present,
            Err(errno) => return self.summary.add_unreadable(&path[*before..], errno),
        };
        let end = path.len();
        if !path.is_empty() && !path.ends_with(b"/") {
            path.push(b'/');
        }
        let start = path.len();
        let rules = if walk.all {
            rules
        } else {
            rules.in_folder(walk.workspace, &path[*before..end.max(*before)], present, start)
        };
        let mut folders = Vec::new();
        let mut files: Vec<NonFolder> = Vec::new();
        let mut from = 0;
        for &(to, kind) in &self.entries {
            let name = &self.names[from..to];
            from = to;
            if walk.stop.is_set() {
                return;
            }
            // `.git` and `.pixir` are not text of the project; they are walked only as the start folder.
            if name == DOT_GIT.as_bytes() || name == STATE_FOLDER.as_bytes() {
                continue;
            }
            path.truncate(start);
            path.extend_from_slice(name);
            let is_folder = kind == FileType::Directory;
            if !walk.all {
                let verdict = rules.verdict(&path, is_folder);
                let is_hidden =
                    !walk.hidden && name.starts_with(b".") && verdict == IgnoreVerdict::Unmatched;
                if is_hidden || verdict == IgnoreVerdict::Ignored {
                    self.summary.left_out += 1;
                    continue;
                }
            }
            let inside = &path[*before..];
            let judged = Path::new(std::ffi::OsStr::from_bytes(&inside[*below..]));
            if walk.globs.matched(judged, is_folder).is_ignore() {
                continue;
            }
            match kind {
                FileType::Directory => {
                    let found = WalkEntry { path: inside, kind: WalkEntryKind::Folder };
                    if visit(&mut self.state, &mut self.summary, found) && depth < walk.depth {
                        folders.push(path.clone());
                    }
                }
                FileType::RegularFile => files.push((inside.into(), WalkEntryKind::File)),
                FileType::Symlink => files.push((inside.into(), WalkEntryKind::Link)),
                _ => files.push((inside.into(), WalkEntryKind::Other)),
            }
        }
        // The queue is a stack, so that early paths are visited early.
        folders.sort_unstable_by(|one, other| other.cmp(one));
        let folder = |path| WalkTask::Folder { path, rules: rules.clone(), depth: depth + 1 };
        queue.push_all(folders.into_iter().map(folder));
        if walk.shares_files && files.len() > FILES_PER_TASK {
            queue.push_all(
                files.chunks(FILES_PER_TASK).rev().map(|piece| WalkTask::Files(piece.to_vec())),
            );
        } else {
            self.visit_files(&files, visit);
        }
    }

    /// Reads the names of a folder, and records which files with ignore rules it has.
    fn read_names(&mut self, path: &[u8]) -> Result<RuleFiles, Errno> {
        let WalkOptions { workspace, stop, .. } = self.shared.walk;
        self.names.clear();
        self.entries.clear();
        let mut present = RuleFiles::default();
        let descriptor = workspace.open_no_follow(path, OpenKind::Folder)?;
        let mut folder = RawDir::new(&descriptor, &mut self.buffer);
        while let Some(entry) = folder.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => {
                    rustix::fs::statat(&descriptor, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
                        .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode))
                }
                known => known,
            };
            present.record_name(name);
            self.names.extend_from_slice(name);
            self.entries.push((self.names.len(), kind));
            if self.entries.len().is_multiple_of(NAMES_PER_CHECK) && stop.is_due() {
                break;
            }
        }
        Ok(present)
    }
}

/// The path and type of an entry that is not a folder.
type NonFolder = (Box<[u8]>, WalkEntryKind);

/// A task of a walk.
enum WalkTask {
    Folder { path: Vec<u8>, rules: IgnoreRules, depth: usize },
    Files(Vec<NonFolder>),
}

/// The waiting tasks, and the number of running ones, which may still add more.
struct WalkQueue {
    pending: Mutex<PendingTasks>,
    has_changed: Condvar,
}

struct PendingTasks {
    tasks: Vec<WalkTask>,
    busy: usize,
}

/// Guard of a running task; the task counts as done when the guard is dropped, also by a panic.
struct BusyGuard<'q>(&'q WalkQueue);

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        let mut left = self.0.pending.lock();
        left.busy -= 1;
        if left.busy == 0 && left.tasks.is_empty() {
            self.0.has_changed.notify_all();
        }
    }
}

impl WalkQueue {
    fn new(first: WalkTask) -> Self {
        Self {
            pending: Mutex::new(PendingTasks { tasks: vec![first], busy: 0 }),
            has_changed: Condvar::new(),
        }
    }

    /// Waits for the next task; `None` when there will be no more.
    fn next_task(&self) -> Option<(WalkTask, BusyGuard<'_>)> {
        let mut left = self.pending.lock();
        loop {
            if let Some(task) = left.tasks.pop() {
                left.busy += 1;
                return Some((task, BusyGuard(self)));
            }
            if left.busy == 0 {
                return None;
            }
            self.has_changed.wait(&mut left);
        }
    }

    fn push_all(&self, tasks: impl Iterator<Item = WalkTask>) {
        let mut left = self.pending.lock();
        let count = left.tasks.len();
        left.tasks.extend(tasks);
        match left.tasks.len() - count {
            0 => 0,
            1 => usize::from(self.has_changed.notify_one()),
            _ => self.has_changed.notify_all(),
        };
    }

    fn clear(&self) {
        self.pending.lock().tasks.clear();
    }
}
