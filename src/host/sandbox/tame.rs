//! Neutralising of repositories: removes new settings and hooks by which git would start a program.
//!
//! Removed files are kept beside the old place under another name, in case the user made them meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FileType, Stat, lstat};

use super::git::{included_name, pointer};
use super::git_config::{AllowedSettings, harmless, included};
use super::guard::{Stamp, kind};
use super::links::resolve;
use super::pinned::Pinned;

/// Settings and hooks longer than this are not recorded to be restored.
const LONGEST: u64 = 1024 * 1024;
/// How many files settings may include.
const MOST_INCLUDED: usize = 64;
/// How deep folders of hooks are searched.
const DEEPEST: usize = 8;
/// A file that changed this recently may change again with the same stamp.
const TICK: Duration = Duration::from_millis(50);
/// The content of a config file that had to be rewritten without a known state.
const PLAIN: &str = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n";

/// The suffix for the names of files that git must not find.
pub const ASIDE: &str = ".untamed";

/// The recorded state of the files by which git could start programs.
#[derive(Debug, Default)]
pub struct KnownFiles {
    files: BTreeMap<PathBuf, KnownFile>,
    /// The targets of the names of settings.
    ends: BTreeMap<PathBuf, PathBuf>,
    /// The user's home folder, by which settings may name others.
    home: Option<PathBuf>,
    /// The files that were recorded since the last [`KnownFiles::forget_others`].
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
    /// A folder, a special file, or a file that is too long.
    Other,
}

impl KnownFile {
    fn is_link(&self) -> bool {
        matches!(self.content, Content::Link(_))
    }
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
    /// No files yet; `home` is what `~` means in settings.
    pub fn new(home: Option<PathBuf>) -> Self {
        Self { home, ..Self::default() }
    }

    /// Records the settings and hooks of a repository.
    pub fn learn(&mut self, repository: &Path) {
        for name in ["config", "config.worktree", "commondir"] {
            self.learn_name(repository, Path::new(name));
        }
        self.learn_included(&settings_of(repository));
        for path in hooks_of(repository) {
            self.learn_file(&path);
        }
    }

    /// Records settings outside of repositories, and the files that they include.
    pub fn learn_settings(&mut self, names: &[PathBuf]) {
        for name in names {
            self.learn_name(Path::new("/"), name);
        }
        self.learn_included(names);
    }

    fn learn_included(&mut self, settings: &[PathBuf]) {
        // Each round records what the files of the one before include.
        let mut learned = usize::MAX;
        while learned != self.seen.len() {
            learned = self.seen.len();
            for name in self.included_by(settings) {
                self.learn_name(Path::new("/"), &name);
            }
        }
    }

    /// Records the file that a name leads to, and the links on the way.
    fn learn_name(&mut self, folder: &Path, name: &Path) {
        let resolved = resolve(folder, name);
        for place in resolved.places() {
            self.learn_file(place);
        }
        self.ends.insert(folder.join(name), resolved.end);
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

    /// Forgets files that were not recorded since the last call.
    pub fn forget_others(&mut self) {
        let seen = std::mem::take(&mut self.seen);
        self.files.retain(|path, _| seen.contains(path));
        self.ends.retain(|_, end| seen.contains(end));
    }

    /// The names of files that settings included when they were recorded, also through one another.
    fn included_by(&self, settings: &[PathBuf]) -> Vec<PathBuf> {
        let mut waiting = settings.to_vec();
        let mut found = Vec::new();
        while let Some(config) = waiting.pop() {
            let Some(folder) = config.parent() else { continue };
            for path in included(self.text_of(&config)) {
                let path = included_name(folder, self.home.as_deref(), &path);
                if !found.contains(&path) && found.len() < MOST_INCLUDED {
                    found.push(path.clone());
                    waiting.push(path);
                }
            }
        }
        found
    }

    /// The text of the settings that a name led to when they were recorded.
    fn text_of(&self, name: &Path) -> &str {
        let known = self.ends.get(name).and_then(|end| self.files.get(end));
        known.and_then(|known| known.content.text()).unwrap_or_default()
    }

    /// Whether a link has its recorded target: at this path, or where its folder was moved from.
    fn is_known_link(&self, path: &Path) -> bool {
        let Ok(found) = lstat(path) else { return false };
        let known = self.before(path, &found);
        known.is_some_and(|known| known.content == Content::read(path, &found))
    }

    /// Whether a file is unchanged.
    fn is_same(&self, path: &Path, found: &Stat) -> bool {
        let Some(known) = self.files.get(path) else { return false };
        known.stamp == Stamp::of(found)
            && (known.is_settled || known.content == Content::read(path, found))
    }

    /// The recorded state of a file: at this path, or where its folder was moved from.
    fn before(&self, path: &Path, found: &Stat) -> Option<&KnownFile> {
        let stamp = Stamp::of(found);
        let is_moved = |(own, known): &(&PathBuf, &KnownFile)| {
            known.stamp == stamp && own.file_name() == path.file_name()
        };
        let moved = || self.files.iter().find(is_moved).map(|(_, known)| known);
        self.files.get(path).or_else(moved)
    }
}

/// The settings of a repository.
fn settings_of(repository: &Path) -> [PathBuf; 2] {
    ["config", "config.worktree"].map(|name| repository.join(name))
}

fn is_settled(found: &Stat) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = u64::try_from(found.st_ctime).unwrap_or_default();
    let nanoseconds = u32::try_from(found.st_ctime_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds) < now.saturating_sub(TICK)
}

/// The folder of hooks and everything in it that git could run.
fn hooks_of(repository: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![(repository.join("hooks"), DEEPEST)];
    while let Some((path, depth)) = waiting.pop() {
        let Ok(stat) = lstat(&path) else { continue };
        if kind(&stat) == FileType::Directory && depth > 0 {
            // A folder that its owner cannot list is opened: git does not list it either.
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

/// Removes from one repository, after a command, new settings and hooks that start programs.
pub struct Tame<'a> {
    pub repository: &'a Path,
    /// The folder that must contain its work tree.
    pub root: &'a Path,
    pub known: &'a KnownFiles,
    /// Folders that the command could write.
    pub writable: &'a [PathBuf],
    /// Paths that the sandbox protected.
    pub kept: &'a [PathBuf],
}

impl Tame<'_> {
    /// Removes new settings and hooks that start programs; returns the changed files.
    pub fn mend(&self) -> Vec<PathBuf> {
        let mut mended = Vec::new();
        for name in ["config", "config.worktree"] {
            self.mend_settings(self.repository, Path::new(name), &mut mended);
        }
        for name in self.known.included_by(&settings_of(self.repository)) {
            self.mend_settings(Path::new("/"), &name, &mut mended);
        }
        self.mend_common(&mut mended);
        for path in hooks_of(self.repository) {
            self.mend_hook(&path, &mut mended);
        }
        mended
    }

    /// Removes new settings that start programs from files outside of repositories, and from those that they include.
    pub fn mend_named(&self, names: &[PathBuf]) -> Vec<PathBuf> {
        let mut mended = Vec::new();
        for name in names.iter().chain(&self.known.included_by(names)) {
            self.mend_settings(Path::new("/"), name, &mut mended);
        }
        mended
    }

    /// The `stat` of a path that the command may have changed; `None` when it is unchanged.
    fn changed(&self, path: &Path) -> Option<Stat> {
        if !self.is_in_reach(path) {
            return None;
        }
        lstat(path).ok().filter(|found| !self.known.is_same(path, found))
    }

    /// Whether the command could change a path.
    fn is_in_reach(&self, path: &Path) -> bool {
        let is_in = |list: &[PathBuf]| list.iter().any(|own| path.starts_with(own));
        is_in(self.writable) && !is_in(self.kept)
    }

    /// Follows a name as git does. New links on the way are replaced by what was there before; a new link in place of
    /// the settings themselves is returned as the end.
    fn follow(&self, folder: &Path, name: &Path, mended: &mut Vec<PathBuf>) -> PathBuf {
        let is_new = |link: &&PathBuf| self.is_in_reach(link) && !self.known.is_known_link(link);
        for _ in 0..MOST_INCLUDED {
            let resolved = resolve(folder, name);
            let Some(link) = resolved.links.iter().find(is_new) else { return resolved.end };
            let was_link = self.known.files.get(link).is_some_and(KnownFile::is_link);
            let is_last = resolve(folder, name.parent().unwrap_or(name)).end
                == link.parent().unwrap_or(folder)
                && link.file_name() == name.file_name();
            if is_last && !was_link {
                return link.clone();
            }
            let Ok(found) = lstat(link) else { break };
            self.put_back(link, &found, mended);
        }
        folder.join(name)
    }

    fn mend_settings(&self, folder: &Path, name: &Path, mended: &mut Vec<PathBuf>) {
        let path = &self.follow(folder, name, mended);
        let Some(found) = self.changed(path) else { return };
        let before = self.known.before(path, &found);
        let Ok(place) = Pinned::at(path) else { return };
        let bytes = read(&place).ok();
        let text = bytes.as_deref().and_then(|bytes| std::str::from_utf8(bytes).ok());
        let kept = match (text, before.map(|before| &before.content)) {
            (Some(text), before) => {
                let known = before.and_then(Content::text).unwrap_or_default();
                let known = format!("{known}\n{}", self.known.text_of(&folder.join(name)));
                let allowed = AllowedSettings::known(&known);
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

    /// Checks `commondir`, which takes settings from another folder: only a worktree may have one.
    fn mend_common(&self, mended: &mut Vec<PathBuf>) {
        let path = self.follow(self.repository, Path::new("commondir"), mended);
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
        // The entries of a folder are checked one by one.
        if !is_moved && kind(&found) != FileType::Directory {
            self.put_back(path, &found, mended);
        }
    }

    /// Restores the recorded content of a file, or sets a new file aside.
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
            tracing::warn!(path = %path.display(), %error, "cannot be restored");
        }
        mended.push(path.to_owned());
    }
}
