//! Taming: takes from a repository's folder the settings and hooks by which git would start a
//! program, unless they were there before.
//!
//! What had to go lies beside it under another name, in case it was the user who made it meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FileType, Stat, lstat};

use super::git::pointer;
use super::git_config::{AllowedSettings, harmless, included};
use super::guard::{Stamp, kind};
use super::pinned::Pinned;

/// Settings and hooks longer than this are not kept to be put back.
const LONGEST: u64 = 1024 * 1024;
/// How many files settings may include.
const MOST_INCLUDED: usize = 64;
/// How deep folders of hooks are looked at.
const DEEPEST: usize = 8;
/// What changed this shortly before may change again without looking different.
const TICK: Duration = Duration::from_millis(50);
/// What stands in settings that had to be written again.
const PLAIN: &str = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n";

/// What is put behind the name of what git must not find.
pub const ASIDE: &str = ".untamed";

/// The files of repositories by which git could start programs, as they should be.
#[derive(Debug, Default)]
pub struct KnownFiles {
    files: BTreeMap<PathBuf, KnownFile>,
    /// Those that the last look has seen.
    seen: BTreeSet<PathBuf>,
}

#[derive(Debug)]
struct KnownFile {
    stamp: Stamp,
    /// Whether a change would show in the stamp.
    is_settled: bool,
    content: Content,
}

#[derive(Debug, PartialEq, Eq)]
enum Content {
    Bytes(Vec<u8>),
    Link(PathBuf),
    /// A folder, something odd, or too long.
    Other,
}

impl Content {
    fn read(path: &Path, found: &Stat) -> Self {
        let place = Pinned::at(path);
        let content = match kind(found) {
            FileType::RegularFile => place.and_then(|place| read(&place)).map(Self::Bytes),
            FileType::Symlink => {
                return place.ok().and_then(|place| place.link()).map_or(Self::Other, Self::Link);
            }
            _ => return Self::Other,
        };
        content.unwrap_or(Self::Other)
    }

    fn text(&self) -> Option<&str> {
        match self {
            Self::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            Self::Link(_) | Self::Other => None,
        }
    }
}

fn read(place: &Pinned) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    place.open()?.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes) }
}

impl KnownFiles {
    /// Learns what a repository's folder holds.
    pub fn learn(&mut self, repository: &Path) {
        for name in ["config", "config.worktree", "commondir"] {
            self.learn_file(&repository.join(name));
        }
        // Each round learns what the files of the one before include.
        let mut learned = usize::MAX;
        while learned != self.seen.len() {
            learned = self.seen.len();
            for path in self.included_by(repository) {
                self.learn_file(&path);
            }
        }
        for path in hooks_of(repository) {
            self.learn_file(&path);
        }
    }

    fn learn_file(&mut self, path: &Path) {
        let Ok(found) = lstat(path) else { return };
        self.seen.insert(path.to_owned());
        let stamp = Stamp::of(&found);
        let is_same = |known: &KnownFile| known.stamp == stamp && known.is_settled;
        if !self.files.get(path).is_some_and(is_same) {
            let content = Content::read(path, &found);
            let is_settled = is_settled(&found);
            self.files.insert(path.to_owned(), KnownFile { stamp, is_settled, content });
        }
    }

    /// Forgets what was not learned since the last time.
    pub fn forget_others(&mut self) {
        let seen = std::mem::take(&mut self.seen);
        self.files.retain(|path, _| seen.contains(path));
    }

    /// The files that the settings of a repository included when they were learned, also through one
    /// another.
    fn included_by(&self, repository: &Path) -> Vec<PathBuf> {
        let mut waiting = vec![repository.join("config"), repository.join("config.worktree")];
        let mut found = Vec::new();
        while let Some(config) = waiting.pop() {
            let known = self.files.get(&config);
            let text = known.and_then(|known| known.content.text()).unwrap_or_default();
            let folder = config.parent().unwrap_or(repository);
            for path in included(text).into_iter().filter(|path| !path.starts_with('~')) {
                let path = plain(&folder.join(path));
                if !found.contains(&path) && found.len() < MOST_INCLUDED {
                    found.push(path.clone());
                    waiting.push(path);
                }
            }
        }
        found
    }

    /// Whether a file is as it was.
    fn is_same(&self, path: &Path, found: &Stat) -> bool {
        let Some(known) = self.files.get(path) else { return false };
        known.stamp == Stamp::of(found)
            && (known.is_settled || known.content == Content::read(path, found))
    }

    /// What a file was: here, or where its folder was moved from.
    fn before(&self, path: &Path, found: &Stat) -> Option<&KnownFile> {
        let stamp = Stamp::of(found);
        let is_moved = |(own, known): &(&PathBuf, &KnownFile)| {
            known.stamp == stamp && own.file_name() == path.file_name()
        };
        let moved = || self.files.iter().find(is_moved).map(|(_, known)| known);
        self.files.get(path).or_else(moved)
    }
}

fn is_settled(found: &Stat) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = u64::try_from(found.st_ctime).unwrap_or_default();
    let nanoseconds = u32::try_from(found.st_ctime_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds) < now.saturating_sub(TICK)
}

/// A path without `.` and `..`, by its words alone.
pub fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

/// The folder of hooks and everything in it that git could run.
fn hooks_of(repository: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![(repository.join("hooks"), DEEPEST)];
    while let Some((path, depth)) = waiting.pop() {
        let Ok(stat) = lstat(&path) else { continue };
        if kind(&stat) == FileType::Directory && depth > 0 {
            // A folder that is closed against its owner is opened: git does not list it either.
            let names = Pinned::at(&path).map(|place| place.names()).unwrap_or_default();
            let names = names.into_iter().filter(|name| !is_idle(name));
            waiting.extend(names.map(|name| (path.join(name), depth - 1)));
        }
        found.push(path);
    }
    found
}

/// Whether git never runs a hook of this name.
fn is_idle(name: &OsStr) -> bool {
    let ending = Path::new(name).extension();
    ending.is_some_and(|ending| ending == "sample" || ending == &ASIDE[1..])
}

/// One repository's folder to be looked at after a command.
pub struct Tame<'a> {
    pub repository: &'a Path,
    /// Where its work tree may be.
    pub root: &'a Path,
    pub known: &'a KnownFiles,
    /// What the sandbox kept as it was.
    pub kept: &'a [PathBuf],
}

impl Tame<'_> {
    /// Takes away what starts programs and was not there before; says which files that were.
    pub fn mend(&self) -> Vec<PathBuf> {
        let mut mended = Vec::new();
        for name in ["config", "config.worktree"] {
            self.mend_settings(&self.repository.join(name), &mut mended);
        }
        let included = self.known.included_by(self.repository).into_iter();
        for path in included.filter(|path| path.starts_with(self.root)) {
            self.mend_settings(&path, &mut mended);
        }
        self.mend_common(&mut mended);
        for path in hooks_of(self.repository) {
            self.mend_hook(&path, &mut mended);
        }
        mended
    }

    /// What stands at a path, if it may have to be mended.
    fn changed(&self, path: &Path) -> Option<Stat> {
        if self.kept.iter().any(|kept| path.starts_with(kept)) {
            return None;
        }
        lstat(path).ok().filter(|found| !self.known.is_same(path, found))
    }

    fn mend_settings(&self, path: &Path, mended: &mut Vec<PathBuf>) {
        let Some(found) = self.changed(path) else { return };
        let before = self.known.before(path, &found);
        let Ok(place) = Pinned::at(path) else { return };
        let bytes = read(&place).ok();
        let text = bytes.as_deref().and_then(|bytes| std::str::from_utf8(bytes).ok());
        let kept = match (text, before.map(|before| &before.content)) {
            (Some(text), before) => {
                let known = before.and_then(Content::text).unwrap_or_default();
                let allowed = AllowedSettings::known(known);
                harmless(text, &allowed.with_work_trees(self.repository, self.root)).into_bytes()
            }
            (None, Some(Content::Bytes(known))) => known.clone(),
            (None, _) if path.ends_with("config") => PLAIN.as_bytes().to_vec(),
            (None, _) => Vec::new(),
        };
        if bytes.as_ref() == Some(&kept) {
            return;
        }
        place.set_aside(ASIDE).ok();
        if let Err(error) = place.make_file(kept.as_slice(), 0o644) {
            tracing::warn!(path = %path.display(), %error, "settings cannot be written");
        }
        mended.push(path.to_owned());
    }

    /// A repository takes its settings from elsewhere only where git itself says so: in a worktree.
    fn mend_common(&self, mended: &mut Vec<PathBuf>) {
        let path = self.repository.join("commondir");
        let Some(found) = self.changed(&path) else { return };
        let shared = || {
            let worktrees = self.repository.parent()?;
            worktrees.ends_with("worktrees").then_some(())?;
            worktrees.parent()?.canonicalize().ok()
        };
        let target = || self.repository.join(pointer(&path)?.trim()).canonicalize().ok();
        let is_own = kind(&found) == FileType::RegularFile && target().is_some();
        if !(is_own && shared() == target()) {
            self.put_back(&path, &found, mended);
        }
    }

    fn mend_hook(&self, path: &Path, mended: &mut Vec<PathBuf>) {
        let Some(found) = self.changed(path) else { return };
        let before = self.known.before(path, &found);
        let is_moved = before.is_some_and(|before| before.stamp == Stamp::of(&found));
        // Of a folder, what is in it counts.
        if !is_moved && kind(&found) != FileType::Directory {
            self.put_back(path, &found, mended);
        }
    }

    /// Gives a file the content that it had, or another name.
    fn put_back(&self, path: &Path, found: &Stat, mended: &mut Vec<PathBuf>) {
        let Ok(place) = Pinned::at(path) else { return };
        let before = self.known.files.get(path);
        let mode = |before: &KnownFile| before.stamp.mode() & 0o7777;
        if let Some(before) = before
            && before.content == Content::read(path, found)
            && before.content != Content::Other
            && mode(before) == found.st_mode & 0o7777
        {
            return;
        }
        let done = place.set_aside(ASIDE).or_else(|_| place.remove());
        let done = done.and_then(|()| match before.map(|before| (&before.content, mode(before))) {
            Some((Content::Bytes(bytes), mode)) => place.make_file(bytes.as_slice(), mode),
            Some((Content::Link(target), _)) => place.make_link(target),
            Some((Content::Other, _)) | None => Ok(()),
        });
        if let Err(error) = done {
            tracing::warn!(path = %path.display(), %error, "cannot be put back");
        }
        mended.push(path.to_owned());
    }
}
