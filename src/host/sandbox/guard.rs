//! Protected files: after a command, restores and reports the files that the kernel could not keep it from
//! changing.
//!
//! A Session has one [`Guard`]. The state that it records when no command runs is the right one; commands that run
//! side by side are all compared with it, so that none can pass its change off as the state that another
//! one found. A file whose identity, size and times are the same has not changed: the kernel sets
//! the change time itself. Only the others are read.
#![expect(clippy::disallowed_methods, reason = "copies in the private folder of a command")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat};

use super::pinned::Pinned;
use super::spec::Spec;

/// The start of the name of the folder with copies, beside the folders that commands may write.
const COPIES: &str = "guard";
/// With more entries than this no command runs.
const MOST_ENTRIES: usize = 1_000_000;
/// The folder whose files Pixir itself appends to while commands run; only their earlier content must stay.
const GROWING: &str = "sessions";

/// The protected files of a Session, with copies to restore them from.
#[derive(Debug)]
pub struct Guard {
    copies: PathBuf,
    /// The protected paths; everything beneath is protected too.
    roots: BTreeSet<PathBuf>,
    /// Folders that commands write, in which they may have replaced a folder by something else.
    writable: Vec<PathBuf>,
    known: BTreeMap<PathBuf, Known>,
    next: u64,
    /// How many commands run.
    running: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    stamp: Stamp,
    what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Folder,
    Link(PathBuf),
    /// A file, by the number of its copy.
    File(u64),
    /// A socket, pipe or device; it cannot be restored.
    Odd,
}

/// Inode, size, mode and times of a file: they change with its content or attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    inode: u64,
    size: i64,
    mode: u32,
    modified: (i64, u64),
    changed: (i64, u64),
}

impl Stamp {
    pub fn of(found: &Stat) -> Self {
        // The size and times of a folder say only that something in it changed.
        let is_folder = kind(found) == FileType::Directory;
        let unless_folder = |pair: (i64, u64)| if is_folder { (0, 0) } else { pair };
        Self {
            inode: found.st_ino,
            size: if is_folder { 0 } else { found.st_size },
            mode: found.st_mode,
            modified: unless_folder((found.st_mtime, found.st_mtime_nsec)),
            changed: unless_folder((found.st_ctime, found.st_ctime_nsec)),
        }
    }

    /// Kind and permissions, as the kernel has them.
    pub fn mode(&self) -> u32 {
        self.mode
    }
}

/// The file type in a `stat`.
pub fn kind(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

fn stat(path: &Path) -> Option<Stat> {
    Pinned::at(path).ok()?.stat()
}

impl Guard {
    /// A guard that keeps its copies in a scratch folder.
    pub fn new(scratch: &Path) -> io::Result<Self> {
        let copies = scratch.join(format!("{COPIES}-{:08x}", fastrand::u32(..)));
        fs::DirBuilder::new().mode(0o700).recursive(true).create(&copies)?;
        let (roots, known) = (BTreeSet::new(), BTreeMap::new());
        Ok(Self { copies, roots, writable: Vec::new(), known, next: 0, running: 0 })
    }

    /// Records the protected files before a command; copies only those that changed since the last time. While
    /// other commands run, only paths that were not protected yet are recorded.
    pub fn look(&mut self, spec: &Spec) -> io::Result<()> {
        let is_quiet = self.running == 0;
        let roots: BTreeSet<PathBuf> = spec.kept.iter().cloned().collect();
        self.writable.clone_from(&spec.writable);
        let is_news = |root: &&PathBuf| is_quiet || !self.roots.contains(*root);
        let news: Vec<PathBuf> = roots.iter().filter(is_news).cloned().collect();
        let mut seen = BTreeMap::new();
        for root in news {
            for (path, found) in beneath(&root)? {
                let stamp = Stamp::of(&found);
                let known = match self.known.remove(&path).filter(|known| known.stamp == stamp) {
                    Some(known) => known,
                    None => Known { stamp, what: self.learn(&path, &found)? },
                };
                seen.insert(path, known);
            }
        }
        if is_quiet {
            for forgotten in std::mem::replace(&mut self.known, seen).into_values() {
                if let What::File(copy) = forgotten.what {
                    fs::remove_file(self.copy(copy)).ok();
                }
            }
            self.roots = roots;
        } else {
            self.known.extend(seen);
            self.roots.extend(roots);
        }
        self.running += 1;
        Ok(())
    }

    fn learn(&mut self, path: &Path, found: &Stat) -> io::Result<What> {
        Ok(match kind(found) {
            FileType::Directory => What::Folder,
            FileType::Symlink => What::Link(fs::read_link(path)?),
            FileType::RegularFile => {
                self.next += 1;
                let mut copy = File::create_new(self.copy(self.next))?;
                io::copy(&mut Pinned::at(path)?.open()?, &mut copy)?;
                What::File(self.next)
            }
            _ => What::Odd,
        })
    }

    fn copy(&self, number: u64) -> PathBuf {
        self.copies.join(number.to_string())
    }

    /// Restores what commands changed, when one of them has ended; returns the changed paths.
    pub fn check(&mut self) -> Vec<PathBuf> {
        self.running = self.running.saturating_sub(1);
        let make_way = |root: &PathBuf| Pinned::making_way(root, self.top_of(root)).ok()?.1;
        let ways = self.roots.iter().filter_map(make_way);
        let mut mended: Vec<PathBuf> = ways.collect();
        mended.dedup();
        // Folders come before their entries, so that a closed one is open when it is read.
        let mut renewed = Vec::new();
        for (path, known) in &self.known {
            let found = stat(path);
            if found.as_ref().is_none_or(|found| Stamp::of(found) != known.stamp) {
                match self.amend(path, known, found.as_ref()) {
                    Ok(false) => {}
                    Ok(true) => {
                        mended.push(path.clone());
                        renewed.push(path.clone());
                    }
                    Err(error) => {
                        tracing::warn!(path = %path.display(), %error, "cannot be restored");
                        mended.push(path.clone());
                    }
                }
            }
            if known.what == What::Folder {
                self.remove_strangers(path, &mut mended);
            }
        }
        // A restored file has new times, which are now the right ones.
        for path in renewed {
            let found = stat(&path);
            if let (Some(known), Some(found)) = (self.known.get_mut(&path), found) {
                known.stamp = Stamp { mode: known.stamp.mode, ..Stamp::of(&found) };
            }
        }
        mended
    }

    /// The outermost writable folder that contains a path.
    fn top_of(&self, path: &Path) -> &Path {
        let around = self.writable.iter().filter(|root| path.starts_with(root));
        let outermost = around.min_by_key(|root| root.components().count());
        outermost.map_or(Path::new("/"), PathBuf::as_path)
    }

    /// Restores one entry; false when it needs no change.
    fn amend(&self, path: &Path, known: &Known, found: Option<&Stat>) -> io::Result<bool> {
        let mode = known.stamp.mode & 0o7777;
        let put_back = || -> io::Result<()> {
            let (place, _) = Pinned::making_way(path, self.top_of(path))?;
            match &known.what {
                What::Folder => place.make_folder(mode),
                What::Link(target) => place.make_link(target),
                What::File(copy) => {
                    let content = File::open(self.copy(*copy))?;
                    // Pixir has its Log open, so the same inode is written: a replacement would leave it without a name.
                    let is_same =
                        |found: &Stat| found.st_ino == known.stamp.inode && found.st_nlink == 1;
                    if is_growing(path) && found.is_some_and(is_same) {
                        place.refill(content, mode)
                    } else {
                        place.make_file(content, mode)
                    }
                }
                What::Odd => Ok(()),
            }
        };
        let has_grown = is_growing(path) && self.has_only_grown(path, known);
        if has_grown && found.is_some_and(|found| found.st_mode == known.stamp.mode) {
            return Ok(false);
        }
        if has_grown { set_mode(path, mode) } else { put_back() }.map(|()| true)
    }

    /// Removes new entries of a protected folder.
    fn remove_strangers(&self, folder: &Path, mended: &mut Vec<PathBuf>) {
        let Ok(place) = Pinned::at(folder) else { return };
        for path in place.names().into_iter().map(|name| folder.join(name)) {
            if !self.known.contains_key(&path) && !is_growing(&path) {
                remove(&path);
                mended.push(path);
            }
        }
    }

    /// Whether a file still begins with its recorded content, or a folder is still a folder.
    fn has_only_grown(&self, path: &Path, known: &Known) -> bool {
        let What::File(copy) = known.what else {
            return known.what == What::Folder
                && stat(path).is_some_and(|found| kind(&found) == FileType::Directory);
        };
        let same = || -> io::Result<bool> {
            // Opened without following a link.
            let (old, mut new) = (File::open(self.copy(copy))?, Pinned::at(path)?.open()?);
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
    let place = Pinned::at(path)?;
    if place.kind() == Some(FileType::Directory) {
        return place.make_folder(mode);
    }
    Ok(rustix::fs::fchmod(place.open()?, rustix::fs::Mode::from_raw_mode(mode))?)
}

/// Whether none of the paths exists that must be absent.
pub fn is_expelled(spec: &Spec) -> bool {
    come_to_be(spec).is_empty()
}

/// Removes the new files that would change where git looks; returns their paths.
pub fn expel(spec: &Spec) -> Vec<PathBuf> {
    let found = come_to_be(spec);
    for path in &found {
        remove(path);
    }
    found
}

/// The paths that must be absent and exist, without following a link in a folder above.
fn come_to_be(spec: &Spec) -> Vec<PathBuf> {
    let mut found = Vec::new();
    // Names of one folder stand beside each other in the list, and the folder is opened once for them.
    for names in spec.absent.chunk_by(|one, other| one.parent() == other.parent()) {
        let Some(mut place) = names.first().and_then(|first| Pinned::at(first).ok()) else {
            continue;
        };
        for path in names {
            place.point_at(path);
            if place.stat().is_some() {
                found.push(path.clone());
            }
        }
    }
    found
}

fn is_growing(path: &Path) -> bool {
    let mut parts = path.iter().rev().skip_while(|part| *part != GROWING);
    parts.nth(1).is_some_and(|parent| parent == crate::base::paths::STATE_FOLDER)
}

fn remove(path: &Path) {
    if let Err(error) = Pinned::at(path).and_then(|place| place.remove()) {
        tracing::warn!(path = %path.display(), %error, "cannot be removed");
    }
}

/// A path and everything beneath it; links are not followed.
fn beneath(path: &Path) -> io::Result<Vec<(PathBuf, Stat)>> {
    let mut found = Vec::new();
    let mut waiting = vec![path.to_owned()];
    while let Some(path) = waiting.pop() {
        let Ok(place) = Pinned::at(&path) else { continue };
        let Some(stat) = place.stat() else { continue };
        if kind(&stat) == FileType::Directory {
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
