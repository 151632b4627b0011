//! Neutraliser of repositories: removes new settings and hooks by which git would start a program.
//!
//! Removed files are kept in their folder under another name, in case the user created them meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FileType, Stat, lstat};

use super::git::{included_path, read_pointer};
use super::git_config::{AllowedSettings, filter_harmless, included_paths};
use super::guard::{FileStamp, file_type};
use super::name_cache::resolve;
use super::pinned_path::PinnedPath;

/// The maximum size of settings and hooks whose content is recorded for restoring.
const LONGEST_RECORDED: u64 = 1024 * 1024;
/// The maximum number of included settings files.
const MOST_INCLUDED: usize = 64;
/// The maximum depth of folders of hooks.
const DEEPEST_HOOKS: usize = 8;
/// The time within which a file may change again and keep its stamp.
const TICK: Duration = Duration::from_millis(50);
/// The content of a rewritten config file whose earlier state is unknown.
const DEFAULT_CONFIG: &str =
    "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n";

/// The suffix of the names of removed files, so that git does not find them.
pub const ASIDE_SUFFIX: &str = ".untamed";

/// The recorded state of the files by which git could start programs.
#[derive(Debug, Default)]
pub struct KnownFiles {
    files: BTreeMap<PathBuf, KnownFile>,
    /// The targets to which names of settings resolve.
    ends: BTreeMap<PathBuf, PathBuf>,
    /// The user's home folder, for `~` in settings.
    home: Option<PathBuf>,
    /// The files that were recorded since the last [`KnownFiles::forget_others`].
    seen: BTreeSet<PathBuf>,
}

#[derive(Debug)]
struct KnownFile {
    stamp: FileStamp,
    /// Whether a later change would change the stamp.
    is_settled: bool,
    content: KnownContent,
}

#[derive(Debug, PartialEq, Eq)]
enum KnownContent {
    Bytes(Vec<u8>),
    Link(PathBuf),
    /// A folder, a special file, or a file that is too long.
    Other,
}

impl KnownFile {
    fn is_link(&self) -> bool {
        matches!(self.content, KnownContent::Link(_))
    }
}

impl KnownContent {
    fn read(path: &Path, found: &Stat) -> Self {
        let place = PinnedPath::open_parent(path);
        let content = match file_type(found) {
            FileType::RegularFile => place.and_then(|place| read_file(&place)).map(Self::Bytes),
            FileType::Symlink => {
                return place
                    .ok()
                    .and_then(|place| place.read_link())
                    .map_or(Self::Other, Self::Link);
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

fn read_file(place: &PinnedPath) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    place.open_file()?.take(LONGEST_RECORDED + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST_RECORDED {
        Err(io::ErrorKind::FileTooLarge.into())
    } else {
        Ok(bytes)
    }
}

impl KnownFiles {
    /// An empty record; `home` is the folder for `~` in settings.
    pub fn new(home: Option<PathBuf>) -> Self {
        Self { home, ..Self::default() }
    }

    /// Records the settings and hooks of a repository.
    pub fn record_repository(&mut self, repository: &Path) {
        for name in ["config", "config.worktree", "commondir"] {
            self.record_name(repository, Path::new(name));
        }
        self.record_included(&settings_paths(repository));
        for path in hook_paths(repository) {
            self.record_file(&path);
        }
    }

    /// Records settings outside of repositories, and the files that they include.
    pub fn record_settings(&mut self, names: &[PathBuf]) {
        for name in names {
            self.record_name(Path::new("/"), name);
        }
        self.record_included(names);
    }

    fn record_included(&mut self, settings: &[PathBuf]) {
        // Each round records the files that those of the previous round include.
        let mut recorded = usize::MAX;
        while recorded != self.seen.len() {
            recorded = self.seen.len();
            for name in self.included_by(settings) {
                self.record_name(Path::new("/"), &name);
            }
        }
    }

    /// Records the file to which a name resolves, and the links on the way.
    fn record_name(&mut self, folder: &Path, name: &Path) {
        let resolved = resolve(folder, name);
        for place in resolved.links_and_end() {
            self.record_file(place);
        }
        self.ends.insert(folder.join(name), resolved.end);
    }

    fn record_file(&mut self, path: &Path) {
        let Ok(found) = lstat(path) else { return };
        self.seen.insert(path.to_owned());
        let stamp = FileStamp::from_stat(&found);
        let is_same = |known: &KnownFile| known.stamp == stamp && known.is_settled;
        if !self.files.get(path).is_some_and(is_same) {
            let content = KnownContent::read(path, &found);
            let is_settled = is_settled(&found);
            self.files.insert(path.to_owned(), KnownFile { stamp, is_settled, content });
        }
    }

    /// Drops the records of files that were not recorded since the last call.
    pub fn forget_others(&mut self) {
        let seen = std::mem::take(&mut self.seen);
        self.files.retain(|path, _| seen.contains(path));
        self.ends.retain(|_, end| seen.contains(end));
    }

    /// The names of files that settings included, directly or indirectly, when they were recorded.
    fn included_by(&self, settings: &[PathBuf]) -> Vec<PathBuf> {
        let mut waiting = settings.to_vec();
        let mut found = Vec::new();
        while let Some(config) = waiting.pop() {
            let Some(folder) = config.parent() else { continue };
            for path in included_paths(self.settings_text(&config)) {
                let path = included_path(folder, self.home.as_deref(), &path);
                if !found.contains(&path) && found.len() < MOST_INCLUDED {
                    found.push(path.clone());
                    waiting.push(path);
                }
            }
        }
        found
    }

    /// The recorded text of the settings to which a name resolved.
    fn settings_text(&self, name: &Path) -> &str {
        let known = self.ends.get(name).and_then(|end| self.files.get(end));
        known.and_then(|known| known.content.text()).unwrap_or_default()
    }

    /// Whether a link has its recorded target: at this path, or at its path before its folder was moved.
    fn is_known_link(&self, path: &Path) -> bool {
        let Ok(found) = lstat(path) else { return false };
        let known = self.known_file(path, &found);
        known.is_some_and(|known| known.content == KnownContent::read(path, &found))
    }

    /// Whether a file is unchanged.
    fn is_same(&self, path: &Path, found: &Stat) -> bool {
        let Some(known) = self.files.get(path) else { return false };
        known.stamp == FileStamp::from_stat(found)
            && (known.is_settled || known.content == KnownContent::read(path, found))
    }

    /// The recorded state of a file: at this path, or at its path before its folder was moved.
    fn known_file(&self, path: &Path, found: &Stat) -> Option<&KnownFile> {
        let stamp = FileStamp::from_stat(found);
        let is_moved = |(own, known): &(&PathBuf, &KnownFile)| {
            known.stamp == stamp && own.file_name() == path.file_name()
        };
        let moved = || self.files.iter().find(is_moved).map(|(_, known)| known);
        self.files.get(path).or_else(moved)
    }
}

/// The settings files of a repository.
fn settings_paths(repository: &Path) -> [PathBuf; 2] {
    ["config", "config.worktree"].map(|name| repository.join(name))
}

fn is_settled(found: &Stat) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = u64::try_from(found.st_ctime).unwrap_or_default();
    let nanoseconds = u32::try_from(found.st_ctime_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds) < now.saturating_sub(TICK)
}

/// The folder of hooks and all entries in it that git could run.
fn hook_paths(repository: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![(repository.join("hooks"), DEEPEST_HOOKS)];
    while let Some((path, depth)) = waiting.pop() {
        let Ok(stat) = lstat(&path) else { continue };
        if file_type(&stat) == FileType::Directory && depth > 0 {
            // A folder that its owner cannot list is opened, because git runs hooks without listing it.
            let names =
                PinnedPath::open_parent(&path).map(|place| place.names()).unwrap_or_default();
            let names = names.into_iter().filter(|name| !is_never_run(name));
            waiting.extend(names.map(|name| (path.join(name), depth - 1)));
        }
        found.push(path);
    }
    found
}

/// Whether a name has an extension that git never runs as a hook.
fn is_never_run(name: &OsStr) -> bool {
    let ending = Path::new(name).extension();
    ending.is_some_and(|ending| ending == "sample" || ending == &ASIDE_SUFFIX[1..])
}

/// Removes from one repository, after a command, new settings and hooks that start programs.
pub struct Neutraliser<'a> {
    pub repository: &'a Path,
    /// The folder that must contain the work tree of the repository.
    pub root: &'a Path,
    pub known: &'a KnownFiles,
    /// Folders that the command could write.
    pub writable: &'a [PathBuf],
    /// Paths that the sandbox protected.
    pub protected: &'a [PathBuf],
}

impl Neutraliser<'_> {
    /// Removes new settings and hooks that start programs; returns the changed files.
    pub fn neutralise(&self) -> Vec<PathBuf> {
        let mut changed_paths = Vec::new();
        for name in ["config", "config.worktree"] {
            self.neutralise_settings(self.repository, Path::new(name), &mut changed_paths);
        }
        for name in self.known.included_by(&settings_paths(self.repository)) {
            self.neutralise_settings(Path::new("/"), &name, &mut changed_paths);
        }
        self.neutralise_commondir(&mut changed_paths);
        for path in hook_paths(self.repository) {
            self.neutralise_hook(&path, &mut changed_paths);
        }
        changed_paths
    }

    /// Removes new settings that start programs from files outside of repositories, and from those that they include.
    pub fn neutralise_settings_files(&self, names: &[PathBuf]) -> Vec<PathBuf> {
        let mut changed_paths = Vec::new();
        for name in names.iter().chain(&self.known.included_by(names)) {
            self.neutralise_settings(Path::new("/"), name, &mut changed_paths);
        }
        changed_paths
    }

    /// The `stat` of a path that the command may have changed; `None` when it is unchanged.
    fn changed_stat(&self, path: &Path) -> Option<Stat> {
        if !self.is_in_reach(path) {
            return None;
        }
        lstat(path).ok().filter(|found| !self.known.is_same(path, found))
    }

    /// Whether the command could change a path.
    fn is_in_reach(&self, path: &Path) -> bool {
        let is_in = |list: &[PathBuf]| list.iter().any(|own| path.starts_with(own));
        is_in(self.writable) && !is_in(self.protected)
    }

    /// Follows a name as git does. New links on the way are replaced by the recorded entries; a new link in place of
    /// the settings themselves is returned as the end.
    fn follow_links(
        &self,
        folder: &Path,
        name: &Path,
        changed_paths: &mut Vec<PathBuf>,
    ) -> PathBuf {
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
            self.restore_file(link, &found, changed_paths);
        }
        folder.join(name)
    }

    fn neutralise_settings(&self, folder: &Path, name: &Path, changed_paths: &mut Vec<PathBuf>) {
        let path = &self.follow_links(folder, name, changed_paths);
        let Some(found) = self.changed_stat(path) else { return };
        let before = self.known.known_file(path, &found);
        let Ok(place) = PinnedPath::open_parent(path) else { return };
        let bytes = read_file(&place).ok();
        let text = bytes.as_deref().and_then(|bytes| std::str::from_utf8(bytes).ok());
        let kept = match (text, before.map(|before| &before.content)) {
            (Some(text), before) => {
                let known = before.and_then(KnownContent::text).unwrap_or_default();
                let known = format!("{known}\n{}", self.known.settings_text(&folder.join(name)));
                let allowed = AllowedSettings::from_text(&known);
                filter_harmless(text, &allowed.with_work_trees(self.repository, self.root))
                    .into_bytes()
            }
            (None, Some(KnownContent::Bytes(known))) => known.clone(),
            (None, _) if path.ends_with("config") => DEFAULT_CONFIG.as_bytes().to_vec(),
            (None, _) => Vec::new(),
        };
        if bytes.as_ref() == Some(&kept) {
            return;
        }
        place.set_aside(ASIDE_SUFFIX).ok();
        if let Err(error) = place.make_file(kept.as_slice(), 0o644) {
            tracing::warn!(path = %path.display(), %error, "settings cannot be written");
        }
        changed_paths.push(path.to_owned());
    }

    /// Checks `commondir`, which makes git read settings from another folder: only a worktree may have one.
    fn neutralise_commondir(&self, changed_paths: &mut Vec<PathBuf>) {
        let path = self.follow_links(self.repository, Path::new("commondir"), changed_paths);
        let Some(found) = self.changed_stat(&path) else { return };
        let shared = || {
            let worktrees = self.repository.parent()?;
            worktrees.ends_with("worktrees").then_some(())?;
            worktrees.parent()?.canonicalize().ok()
        };
        let target = || self.repository.join(read_pointer(&path)?.trim()).canonicalize().ok();
        let is_own = file_type(&found) == FileType::RegularFile && target().is_some();
        if !(is_own && shared() == target()) {
            self.restore_file(&path, &found, changed_paths);
        }
    }

    fn neutralise_hook(&self, path: &Path, changed_paths: &mut Vec<PathBuf>) {
        let Some(found) = self.changed_stat(path) else { return };
        let before = self.known.known_file(path, &found);
        let is_moved = before.is_some_and(|before| before.stamp == FileStamp::from_stat(&found));
        // The entries of a folder are checked one by one.
        if !is_moved && file_type(&found) != FileType::Directory {
            self.restore_file(path, &found, changed_paths);
        }
    }

    /// Restores the recorded content of a file, or sets a new file aside.
    fn restore_file(&self, path: &Path, found: &Stat, changed_paths: &mut Vec<PathBuf>) {
        let Ok(place) = PinnedPath::open_parent(path) else { return };
        let before = self.known.files.get(path);
        let mode = |before: &KnownFile| before.stamp.mode() & 0o7777;
        if let Some(before) = before
            && before.content == KnownContent::read(path, found)
            && before.content != KnownContent::Other
            && mode(before) == found.st_mode & 0o7777
        {
            return;
        }
        let done = place.set_aside(ASIDE_SUFFIX).or_else(|_| place.remove());
        let done = done.and_then(|()| match before.map(|before| (&before.content, mode(before))) {
            Some((KnownContent::Bytes(bytes), mode)) => place.make_file(bytes.as_slice(), mode),
            Some((KnownContent::Link(target), _)) => place.make_link(target),
            Some((KnownContent::Other, _)) | None => Ok(()),
        });
        if let Err(error) = done {
            tracing::warn!(path = %path.display(), %error, "cannot be restored");
        }
        changed_paths.push(path.to_owned());
    }
}
