//! The guard: looks after a command at what the kernel could not keep it from changing, puts it
//! back, and tells.
//!
//! A file whose identity, size and times are the same has not changed: the kernel sets the change
//! time itself. Only the others are read.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::spec::Spec;

/// Where copies are kept, beside what commands may write.
const COPIES: &str = "guard";
/// More entries than this are not looked at.
const MOST_ENTRIES: usize = 100_000;
/// What Pixir itself adds to while commands run; there, only what was said before must stay.
const GROWING: &str = "sessions";

/// What must stay as it is, and copies of it.
#[derive(Debug)]
pub struct Guard {
    copies: PathBuf,
    known: BTreeMap<PathBuf, Known>,
    next: u64,
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
    /// The name of its copy.
    File(u64),
    /// A socket or pipe; nobody could put it back.
    Odd,
}

/// What tells one state of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    mode: u32,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(found: &fs::Metadata) -> Self {
        // The size and times of a folder say only that something in it changed.
        let is_folder = found.is_dir();
        let unless_folder = |pair: (i64, i64)| if is_folder { (0, 0) } else { pair };
        Self {
            inode: found.ino(),
            size: if is_folder { 0 } else { found.size() },
            mode: found.mode(),
            modified: unless_folder((found.mtime(), found.mtime_nsec())),
            changed: unless_folder((found.ctime(), found.ctime_nsec())),
        }
    }
}

impl Guard {
    /// A guard that keeps its copies in a scratch folder.
    pub fn new(scratch: &Path) -> io::Result<Self> {
        let copies = scratch.join(format!("{COPIES}-{:08x}", fastrand::u32(..)));
        fs::DirBuilder::new().mode(0o700).recursive(true).create(&copies)?;
        Ok(Self { copies, known: BTreeMap::new(), next: 0 })
    }

    /// Learns how things are before a command; copies only what is new since the last time.
    pub fn look(&mut self, spec: &Spec) -> io::Result<()> {
        let mut seen = BTreeMap::new();
        for path in spec.kept.iter().flat_map(|path| beneath(path)) {
            let Ok(found) = fs::symlink_metadata(&path) else { continue };
            let stamp = Stamp::of(&found);
            let known = match self.known.remove(&path).filter(|known| known.stamp == stamp) {
                Some(known) => known,
                None => Known { stamp, what: self.learn(&path, &found)? },
            };
            seen.insert(path, known);
        }
        for forgotten in std::mem::replace(&mut self.known, seen).into_values() {
            if let What::File(copy) = forgotten.what {
                fs::remove_file(self.copy(copy)).ok();
            }
        }
        Ok(())
    }

    fn learn(&mut self, path: &Path, found: &fs::Metadata) -> io::Result<What> {
        let kind = found.file_type();
        Ok(if kind.is_dir() {
            What::Folder
        } else if kind.is_symlink() {
            What::Link(fs::read_link(path)?)
        } else if kind.is_file() {
            self.next += 1;
            fs::copy(path, self.copy(self.next))?;
            What::File(self.next)
        } else {
            What::Odd
        })
    }

    fn copy(&self, number: u64) -> PathBuf {
        self.copies.join(number.to_string())
    }

    /// Puts back what a command changed; says what that was.
    pub fn check(&mut self, spec: &Spec) -> Vec<PathBuf> {
        let mut mended: Vec<PathBuf> =
            spec.kept.iter().filter_map(|path| clear_way(path)).collect();
        mended.dedup();
        for path in spec.kept.iter().flat_map(|path| beneath(path)) {
            if !self.known.contains_key(&path) && !is_growing(&path) {
                remove(&path);
                mended.push(path);
            }
        }
        // Folders come before what is in them.
        for (path, known) in &self.known {
            let found = fs::symlink_metadata(path).ok();
            if found.as_ref().is_some_and(|found| Stamp::of(found) == known.stamp) {
                continue;
            }
            if is_growing(path) && self.has_only_grown(path, known) {
                let mode = known.stamp.mode;
                if found.is_none_or(|found| found.mode() == mode) {
                    continue;
                }
                fs::set_permissions(path, Permissions::from_mode(mode & 0o7777)).ok();
                mended.push(path.clone());
                continue;
            }
            if let Err(error) = self.put_back(path, known) {
                tracing::warn!(path = %path.display(), %error, "cannot be put back");
            }
            mended.push(path.clone());
        }
        mended
    }

    /// Whether everything that was there is still there, at the beginning.
    fn has_only_grown(&self, path: &Path, known: &Known) -> bool {
        let What::File(copy) = known.what else { return path.is_dir() };
        let same = || -> io::Result<bool> {
            let (old, mut new) = (File::open(self.copy(copy))?, File::open(path)?);
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
        // A link in its place is not the file.
        fs::symlink_metadata(path).is_ok_and(|found| found.is_file()) && same().unwrap_or(false)
    }

    fn put_back(&self, path: &Path, known: &Known) -> io::Result<()> {
        let mode = Permissions::from_mode(known.stamp.mode & 0o7777);
        let now = fs::symlink_metadata(path).ok();
        match &known.what {
            What::Folder => {
                if !now.is_some_and(|found| found.is_dir()) {
                    remove(path);
                    fs::create_dir(path)?;
                }
                fs::set_permissions(path, mode)
            }
            What::Link(target) => {
                remove(path);
                symlink(target, path)
            }
            What::File(copy) => {
                if !now.is_some_and(|found| found.is_file() && found.nlink() == 1) {
                    remove(path);
                }
                fs::copy(self.copy(*copy), path)?;
                fs::set_permissions(path, mode)
            }
            What::Odd => Ok(()),
        }
    }
}

/// A command may have put a link or a file where a folder was on the way to a path; what is mended
/// must not go through it to somewhere else. Gives what stood in the way.
fn clear_way(path: &Path) -> Option<PathBuf> {
    let parent = path.parent()?;
    let mut removed = None;
    for part in parent.ancestors().collect::<Vec<_>>().into_iter().rev() {
        let is_folder = |found: &fs::Metadata| found.is_dir();
        if fs::symlink_metadata(part).is_ok_and(|found| !is_folder(&found)) {
            fs::remove_file(part).ok();
            removed.get_or_insert_with(|| part.to_owned());
        }
    }
    fs::create_dir_all(parent).ok();
    removed
}

/// Takes away what would change where git looks and was not there; says what it was.
pub fn expel(spec: &Spec) -> Vec<PathBuf> {
    // Only where it is meant, not where a link leads now.
    let is_there = |path: &&PathBuf| {
        let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
        parent.as_deref() == path.parent() && fs::symlink_metadata(path).is_ok()
    };
    let found: Vec<PathBuf> = spec.absent.iter().filter(is_there).cloned().collect();
    for path in &found {
        remove(path);
    }
    found
}

fn is_growing(path: &Path) -> bool {
    let mut parts = path.iter().rev().skip_while(|part| *part != GROWING);
    parts.nth(1).is_some_and(|parent| parent == crate::paths::STATE_FOLDER)
}

fn remove(path: &Path) {
    let is_folder = fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) }.ok();
}

/// A path and everything beneath it; links are not followed.
fn beneath(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![path.to_owned()];
    while let Some(path) = waiting.pop() {
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        if metadata.is_dir() {
            let entries = fs::read_dir(&path).into_iter().flatten().filter_map(Result::ok);
            waiting.extend(entries.map(|entry| entry.path()));
        }
        found.push(path);
        if found.len() >= MOST_ENTRIES {
            break;
        }
    }
    found
}
