//! Guard of protected files: after a command, restores and reports those that the kernel could not keep the
//! command from changing.
//!
//! A Session has one [`Guard`]. The state that it records while no command runs is the reference; commands that run
//! at the same time are all compared with it, so that a change of one command is not recorded as the state before
//! another one. A file whose identity, size and times are the same has not changed, because the kernel sets the
//! change time itself. Only the other files are read.
#![expect(clippy::disallowed_methods, reason = "copies in the private folder of a command")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat};

use super::pinned_path::PinnedPath;
use super::spec::SandboxSpec;

/// The prefix of the name of the folder with copies, which is next to the folders that commands may write.
const COPIES_PREFIX: &str = "guard";
/// The maximum number of protected entries; with more of them no command runs.
const MOST_ENTRIES: usize = 1_000_000;
/// The folder of files to which Pixir itself appends while commands run; only their earlier content is protected.
const APPENDED_FOLDER: &str = "sessions";

/// The protected files of a Session, with copies to restore them from.
#[derive(Debug)]
pub struct Guard {
    copies: PathBuf,
    /// The protected paths; everything beneath is protected too.
    roots: BTreeSet<PathBuf>,
    /// Folders that commands can write, in which they may have replaced a folder by another entry.
    writable: Vec<PathBuf>,
    entries: BTreeMap<PathBuf, GuardedEntry>,
    next_copy: u64,
    /// The number of running commands.
    running: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct GuardedEntry {
    stamp: FileStamp,
    content: GuardedContent,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum GuardedContent {
    Folder,
    Link(PathBuf),
    /// A file, by the number of its copy.
    File(u64),
    /// A socket, pipe or device; it cannot be restored.
    Special,
}

/// Inode, size, mode and times of a file: they change with its content or attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStamp {
    inode: u64,
    size: i64,
    mode: u32,
    modified: (i64, u64),
    changed: (i64, u64),
}

impl FileStamp {
    pub fn from_stat(found: &Stat) -> Self {
        // The size and times of a folder show only that one of its entries changed.
        let is_folder = file_type(found) == FileType::Directory;
        let unless_folder = |pair: (i64, u64)| if is_folder { (0, 0) } else { pair };
        Self {
            inode: found.st_ino,
            size: if is_folder { 0 } else { found.st_size },
            mode: found.st_mode,
            modified: unless_folder((found.st_mtime, found.st_mtime_nsec)),
            changed: unless_folder((found.st_ctime, found.st_ctime_nsec)),
        }
    }

    /// The file type and permission bits, as in `st_mode`.
    pub fn mode(&self) -> u32 {
        self.mode
    }
}

/// The file type in a `stat`.
pub fn file_type(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

fn stat_pinned(path: &Path) -> Option<Stat> {
    PinnedPath::open_parent(path).ok()?.stat()
}

impl Guard {
    /// A guard that keeps its copies in a scratch folder.
    pub fn new(scratch: &Path) -> io::Result<Self> {
        let copies = scratch.join(format!("{COPIES_PREFIX}-{:08x}", fastrand::u32(..)));
        fs::DirBuilder::new().mode(0o700).recursive(true).create(&copies)?;
        let (roots, known) = (BTreeSet::new(), BTreeMap::new());
        Ok(Self { copies, roots, writable: Vec::new(), entries: known, next_copy: 0, running: 0 })
    }

    /// Records the protected files before a command; copies only those that changed since the last record. While
    /// other commands run, only paths that were not protected yet are recorded.
    pub fn record_state(&mut self, spec: &SandboxSpec) -> io::Result<()> {
        let is_quiet = self.running == 0;
        let roots: BTreeSet<PathBuf> = spec.protected.iter().cloned().collect();
        self.writable.clone_from(&spec.writable);
        let is_new = |root: &&PathBuf| is_quiet || !self.roots.contains(*root);
        let new_roots: Vec<PathBuf> = roots.iter().filter(is_new).cloned().collect();
        let mut seen = BTreeMap::new();
        for root in new_roots {
            for (path, found) in walk_entries(&root)? {
                let stamp = FileStamp::from_stat(&found);
                let known = match self.entries.remove(&path).filter(|known| known.stamp == stamp) {
                    Some(known) => known,
                    None => GuardedEntry { stamp, content: self.copy_content(&path, &found)? },
                };
                seen.insert(path, known);
            }
        }
        if is_quiet {
            for forgotten in std::mem::replace(&mut self.entries, seen).into_values() {
                if let GuardedContent::File(copy) = forgotten.content {
                    fs::remove_file(self.copy_path(copy)).ok();
                }
            }
            self.roots = roots;
        } else {
            self.entries.extend(seen);
            self.roots.extend(roots);
        }
        self.running += 1;
        Ok(())
    }

    fn copy_content(&mut self, path: &Path, found: &Stat) -> io::Result<GuardedContent> {
        Ok(match file_type(found) {
            FileType::Directory => GuardedContent::Folder,
            FileType::Symlink => GuardedContent::Link(fs::read_link(path)?),
            FileType::RegularFile => {
                self.next_copy += 1;
                let mut copy = File::create_new(self.copy_path(self.next_copy))?;
                io::copy(&mut PinnedPath::open_parent(path)?.open_file()?, &mut copy)?;
                GuardedContent::File(self.next_copy)
            }
            _ => GuardedContent::Special,
        })
    }

    fn copy_path(&self, number: u64) -> PathBuf {
        self.copies.join(number.to_string())
    }

    /// Restores what commands changed, after one of them has ended; returns the changed paths.
    pub fn restore_changes(&mut self) -> Vec<PathBuf> {
        self.running = self.running.saturating_sub(1);
        let make_way = |root: &PathBuf| {
            PinnedPath::open_clearing_way(root, self.outermost_writable(root)).ok()?.1
        };
        let ways = self.roots.iter().filter_map(make_way);
        let mut restored_paths: Vec<PathBuf> = ways.collect();
        restored_paths.dedup();
        // Folders come before their entries, so that a folder without permissions is restored before it is read.
        let mut restored = Vec::new();
        for (path, known) in &self.entries {
            let found = stat_pinned(path);
            if found.as_ref().is_none_or(|found| FileStamp::from_stat(found) != known.stamp) {
                match self.restore_entry(path, known, found.as_ref()) {
                    Ok(false) => {}
                    Ok(true) => {
                        restored_paths.push(path.clone());
                        restored.push(path.clone());
                    }
                    Err(error) => {
                        tracing::warn!(path = %path.display(), %error, "cannot be restored");
                        restored_paths.push(path.clone());
                    }
                }
            }
            if known.content == GuardedContent::Folder {
                self.remove_new_entries(path, &mut restored_paths);
            }
        }
        // A restored file has new times, which become the reference.
        for path in restored {
            let found = stat_pinned(&path);
            if let (Some(known), Some(found)) = (self.entries.get_mut(&path), found) {
                known.stamp = FileStamp { mode: known.stamp.mode, ..FileStamp::from_stat(&found) };
            }
        }
        restored_paths
    }

    /// The outermost writable folder that contains a path.
    fn outermost_writable(&self, path: &Path) -> &Path {
        let around = self.writable.iter().filter(|root| path.starts_with(root));
        let outermost = around.min_by_key(|root| root.components().count());
        outermost.map_or(Path::new("/"), PathBuf::as_path)
    }

    /// Restores one entry; false when it needs no change.
    fn restore_entry(
        &self,
        path: &Path,
        known: &GuardedEntry,
        found: Option<&Stat>,
    ) -> io::Result<bool> {
        let mode = known.stamp.mode & 0o7777;
        let put_back = || -> io::Result<()> {
            let (place, _) = PinnedPath::open_clearing_way(path, self.outermost_writable(path))?;
            match &known.content {
                GuardedContent::Folder => place.make_folder(mode),
                GuardedContent::Link(target) => place.make_link(target),
                GuardedContent::File(copy) => {
                    let content = File::open(self.copy_path(*copy))?;
                    // Pixir has its Log open, so the same inode is written: a replacement would unlink the open file.
                    let is_same =
                        |found: &Stat| found.st_ino == known.stamp.inode && found.st_nlink == 1;
                    if is_appended(path) && found.is_some_and(is_same) {
                        place.overwrite(content, mode)
                    } else {
                        place.make_file(content, mode)
                    }
                }
                GuardedContent::Special => Ok(()),
            }
        };
        let has_grown = is_appended(path) && self.has_only_grown(path, known);
        if has_grown && found.is_some_and(|found| found.st_mode == known.stamp.mode) {
            return Ok(false);
        }
        if has_grown { set_mode(path, mode) } else { put_back() }.map(|()| true)
    }

    /// Removes new entries of a protected folder.
    fn remove_new_entries(&self, folder: &Path, restored_paths: &mut Vec<PathBuf>) {
        let Ok(place) = PinnedPath::open_parent(folder) else { return };
        for path in place.names().into_iter().map(|name| folder.join(name)) {
            if !self.entries.contains_key(&path) && !is_appended(&path) {
                remove_path(&path);
                restored_paths.push(path);
            }
        }
    }

    /// Whether a file still begins with its recorded content, or a folder is still a folder.
    fn has_only_grown(&self, path: &Path, known: &GuardedEntry) -> bool {
        let GuardedContent::File(copy) = known.content else {
            return known.content == GuardedContent::Folder
                && stat_pinned(path).is_some_and(|found| file_type(&found) == FileType::Directory);
        };
        let same = || -> io::Result<bool> {
            // No link is followed.
            let (old, mut new) =
                (File::open(self.copy_path(copy))?, PinnedPath::open_parent(path)?.open_file()?);
            let mut old = io::BufReader::new(old);
            let mut buffers = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
            loop {
                let count = old.read(&mut buffers.0)?;
                if count == 0 {
                    return Ok(true);
                }
                new.read_exact(&mut buffers.1[..count])?;
                if buffers.0[..count] != buffers.1[..count] {
                    return Ok(false);
                }
            }
        };
        same().unwrap_or(false)
    }
}

/// Restores the mode of an entry that only grew.
fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    let place = PinnedPath::open_parent(path)?;
    if place.kind() == Some(FileType::Directory) {
        return place.make_folder(mode);
    }
    Ok(rustix::fs::fchmod(place.open_file()?, rustix::fs::Mode::from_raw_mode(mode))?)
}

/// Whether none of the paths exists that must be absent.
pub fn none_appeared(spec: &SandboxSpec) -> bool {
    appeared_paths(spec).is_empty()
}

/// Removes new files that would make git read or run other files; returns their paths.
pub fn remove_appeared(spec: &SandboxSpec) -> Vec<PathBuf> {
    let found = appeared_paths(spec);
    for path in &found {
        remove_path(path);
    }
    found
}

/// The paths that must be absent and exist, without following a link in a folder above.
fn appeared_paths(spec: &SandboxSpec) -> Vec<PathBuf> {
    let mut found = Vec::new();
    // The names of one folder are adjacent in the list, so the folder is opened once for them.
    for names in spec.must_be_absent.chunk_by(|one, other| one.parent() == other.parent()) {
        let Some(mut place) = names.first().and_then(|first| PinnedPath::open_parent(first).ok())
        else {
            continue;
        };
        for path in names {
            place.set_name(path);
            if place.stat().is_some() {
                found.push(path.clone());
            }
        }
    }
    found
}

fn is_appended(path: &Path) -> bool {
    let mut parts = path.iter().rev().skip_while(|part| *part != APPENDED_FOLDER);
    parts.nth(1).is_some_and(|parent| parent == crate::base::paths::STATE_FOLDER)
}

fn remove_path(path: &Path) {
    if let Err(error) = PinnedPath::open_parent(path).and_then(|place| place.remove()) {
        tracing::warn!(path = %path.display(), %error, "cannot be removed");
    }
}

/// A path and everything beneath it; links are not followed.
fn walk_entries(path: &Path) -> io::Result<Vec<(PathBuf, Stat)>> {
    let mut found = Vec::new();
    let mut waiting = vec![path.to_owned()];
    while let Some(path) = waiting.pop() {
        let Ok(place) = PinnedPath::open_parent(&path) else { continue };
        let Some(stat) = place.stat() else { continue };
        if file_type(&stat) == FileType::Directory {
            waiting.extend(place.names().into_iter().map(|name| path.join(name)));
        }
        found.push((path, stat));
        if found.len() > MOST_ENTRIES {
            let message = "too many files in .pixir or .git/hooks to protect";
            return Err(io::Error::other(message));
        }
    }
    Ok(found)
}
