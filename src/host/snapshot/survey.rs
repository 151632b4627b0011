//! A survey: a walk over the Workspace that records the state of every file and stores contents that are
//! new since the last survey.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ignore::overrides::Override;
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use super::content::{look, read};
use super::crew::spread;
use super::manifest::{Entry, Look};
use super::progress::SurveyProgress;
use super::store::{BatchLimits, ContentBatch, NotKept};
use super::watch::FolderWatch;
use super::{Hash, Manifest, RawPath, State, Store};
use crate::base::git_index;
use crate::host::walk::{Sort, Stop, Stopped, Walk, walk};
use crate::host::workspace::{Wanted, Workspace};
use crate::settings::config::Undo;

/// A file that changed within this time before a survey may change again without a new fingerprint.
const TICK: Duration = Duration::from_millis(50);

/// The time limit for reading one folder.
const SEE_TIME: Duration = Duration::from_secs(2);

/// How many files one work item has.
const PIECE: usize = 32;

/// From this many new files on, contents are stored as a batch.
const BATCH: usize = 64;

/// Limits of a survey: size, number of files, time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The largest file that is stored, in bytes.
    pub file: u64,
    /// The size of all files; or, without files in git, the size of the whole store.
    pub total: u64,
    /// The number of files.
    pub files: usize,
    pub time: Duration,
    /// Whether files in git count.
    pub is_git_counted: bool,
}

impl Limits {
    /// The limits from the `undo` settings.
    pub fn of(settings: Undo) -> Self {
        let Undo { largest_file: file, max_bytes: total, max_files: files, .. } = settings;
        Self { file, total, files, time: Duration::from_secs(30), is_git_counted: false }
    }
}

impl Limits {
    /// The limits of a batch; where files in git count, all files were counted before.
    fn of_batch(self) -> BatchLimits {
        if self.is_git_counted {
            BatchLimits { files: usize::MAX, bytes: u64::MAX }
        } else {
            BatchLimits { files: self.files, bytes: self.total }
        }
    }
}

/// Why a survey failed.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("the files that are not ignored are too many: {bytes} bytes of {limit}")]
    TooMuch { bytes: u64, limit: u64 },
    #[error("the files that are not ignored are too many: {count} of {limit}")]
    TooMany { count: usize, limit: usize },
    #[error(
        "the files that are neither ignored nor in git are more than {limit} (setting undo.max_files)"
    )]
    TooManyOutsideGit { limit: usize },
    #[error(
        "what is kept for undo would take more than {limit} bytes (setting undo.max_bytes); \
         `pixir gc` removes what no Session needs"
    )]
    StoreFull { limit: u64 },
    #[error("recording was skipped")]
    Skipped,
    #[error("looking at all files took longer than {} s", limit.as_secs())]
    TooSlow { limit: Duration },
    #[error("{} could not be kept: {source}", path.display())]
    Keep { path: PathBuf, source: io::Error },
}

/// A survey of a Workspace, and the store for contents.
#[derive(Debug)]
pub struct Survey<'a> {
    pub workspace: &'a Workspace,
    pub store: &'a Store,
    pub limits: Limits,
}

/// A path that the walk found.
struct Found {
    path: PathBuf,
    look: Look,
    link: Option<PathBuf>,
    sort: Sort,
}

/// The results of one thread of the walk. Paths in one folder come in succession, so the folder is opened
/// once, following no link, and its files are examined by descriptor.
struct Eye<'w> {
    workspace: &'w Workspace,
    watch: Option<&'w FolderWatch>,
    folder: Option<(Vec<u8>, OwnedFd)>,
    found: Vec<Found>,
    unread: Unread,
}

/// Unreadable paths, with the reason.
type Unread = Vec<(PathBuf, String)>;

impl Eye<'_> {
    fn look(&mut self, path: &[u8], sort: Sort) -> Result<(), Errno> {
        let end = memchr::memrchr(b'/', path).map_or(0, |slash| slash + 1);
        let (above, name) = path.split_at(end);
        let above = above.strip_suffix(b"/").unwrap_or_default();
        let folder = match self.folder.take() {
            Some((own, folder)) if own == above => (own, folder),
            _ => (above.to_vec(), self.workspace.open_exact(above, Wanted::Folder)?),
        };
        let (_, folder) = self.folder.insert(folder);
        let stat = rustix::fs::statat(&*folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        self.watch.inspect(|watch| watch.meet(folder.as_fd(), path, &stat));
        let link = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&*folder, name, Vec::new())?;
                Some(PathBuf::from(OsStr::from_bytes(target.to_bytes())))
            }
            _ => None,
        };
        let path = PathBuf::from(OsStr::from_bytes(path));
        self.found.push(Found { path, look: look(&stat), link, sort });
        Ok(())
    }
}

impl Survey<'_> {
    /// Surveys everything that is not ignored. Files with the same fingerprint as in `known` are not read
    /// again.
    pub fn take(&self, known: Option<&Manifest>) -> Result<Manifest, Refused> {
        let progress = SurveyProgress::new(self.limits.time);
        Ok(self.look(known, None, &progress)?.unwrap_or_else(|| known.cloned().unwrap_or_default()))
    }

    /// Surveys everything; `None` when nothing differs from `known`.
    fn look(
        &self,
        known: Option<&Manifest>,
        watch: Option<&FolderWatch>,
        progress: &SurveyProgress,
    ) -> Result<Option<Manifest>, Refused> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let fresh = i128::try_from(now.saturating_sub(TICK).as_nanos()).unwrap_or(i128::MAX);
        let (found, mut not_read) = self.names(watch, progress.stop())?;
        if not_read.is_empty() && known.is_some_and(|known| self.is_same(known, &found)) {
            return Ok(None);
        }
        self.check_total(&found)?;
        let (mut entries, mut folders, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
        let mut unread = Vec::new();
        let mut unread_bytes = 0;
        // Both lists are sorted, so they are compared in one pass.
        let mut before = known.into_iter().flat_map(|known| &known.entries).peekable();
        for Found { path, look, link, sort } in found {
            match (sort, link) {
                (Sort::Folder, _) => folders.push((path, look.mode)),
                (_, Some(target)) => {
                    let state = State::Link { target: RawPath(target) };
                    entries.push((path, Entry { state, look }));
                }
                (Sort::File, None) if look.size > self.limits.file => left_out.push((path, look)),
                (Sort::File, None) => {
                    while before.next_if(|(own, _)| **own < path).is_some() {}
                    let same = before.next_if(|(own, entry)| **own == path && entry.look == look);
                    if let Some((_, entry)) = same {
                        entries.push((path, entry.clone()));
                    } else {
                        unread_bytes += look.size;
                        unread.push(path);
                    }
                }
                (Sort::Link | Sort::Other, None) => {}
            }
        }
        // A batch checks the limits itself, without contents in git.
        if unread.len() < BATCH && !self.limits.is_git_counted && unread_bytes > self.limits.total {
            return Err(Refused::StoreFull { limit: self.limits.total });
        }
        for (path, kept) in self.keep_all(unread, progress)? {
            match kept {
                Kept::Yes(state, look) => {
                    let look = settled(look, fresh);
                    entries.push((path, Entry { state, look }));
                }
                Kept::Gone => {}
                Kept::Unread(errno) => not_read.push((path, errno.to_string())),
            }
        }
        let entries = entries.into_iter().collect();
        let (folders, left_out) = (folders.into_iter().collect(), left_out.into_iter().collect());
        Ok(Some(Manifest { entries, folders, left_out, unread: not_read.into_iter().collect() }))
    }

    /// Whether a Manifest still holds. Both lists are sorted.
    fn is_same(&self, known: &Manifest, found: &[Found]) -> bool {
        let mut entries = known.entries.iter();
        let mut folders = known.folders.iter();
        let mut left_out = known.left_out.iter();
        let is_same = |found: &Found| match (found.sort, &found.link) {
            (Sort::Folder, _) => {
                folders.next().is_some_and(|own| own == (&found.path, &found.look.mode))
            }
            (Sort::Link | Sort::Other, None) => true,
            (Sort::File, None) if found.look.size > self.limits.file => {
                left_out.next().is_some_and(|own| own == (&found.path, &found.look))
            }
            (_, link) => entries.next().is_some_and(|(path, entry)| {
                let target = match &entry.state {
                    State::Link { target } => Some(&target.0),
                    State::File { .. } => None,
                };
                *path == found.path && entry.look == found.look && target == link.as_ref()
            }),
        };
        found.iter().all(is_same)
            && entries.next().is_none()
            && folders.next().is_none()
            && left_out.next().is_none()
            && known.unread.is_empty()
    }

    /// Surveys everything that is not ignored, and these files even when they are ignored.
    pub fn take_with(
        &self,
        known: Option<&Manifest>,
        files: &[PathBuf],
    ) -> Result<Manifest, Refused> {
        let progress = SurveyProgress::new(self.limits.time);
        let taken = self.take_watched(known, files, None, &progress)?;
        Ok(taken.unwrap_or_else(|| known.cloned().unwrap_or_default()))
    }

    /// Surveys like `run_including`, and lets `watch` report changes from now on; `None` when nothing
    /// differs from `known`.
    pub fn take_watched(
        &self,
        known: Option<&Manifest>,
        files: &[PathBuf],
        watch: Option<&FolderWatch>,
        progress: &SurveyProgress,
    ) -> Result<Option<Manifest>, Refused> {
        let taken = self.look(known, watch, progress)?;
        let Some(seen) = taken.as_ref().or(known) else { return Ok(taken) };
        let is_unseen = |path: &&PathBuf| !seen.entries.contains_key(*path);
        let ignored: Vec<PathBuf> = files.iter().filter(is_unseen).cloned().collect();
        if ignored.is_empty() {
            return Ok(taken);
        }
        // Ignored folders are not watched.
        watch.inspect(|watch| watch.give_up());
        let mut manifest = taken.unwrap_or_else(|| known.cloned().unwrap_or_default());
        self.add(&mut manifest, &ignored)?;
        Ok(Some(manifest))
    }

    fn names(
        &self,
        watch: Option<&FolderWatch>,
        stop: &Stop,
    ) -> Result<(Vec<Found>, Unread), Refused> {
        watch.inspect(|watch| watch.begin(self.workspace));
        let everything = Walk {
            workspace: self.workspace,
            stop,
            start: Path::new(""),
            all: false,
            hidden: true,
            globs: &Override::empty(),
            depth: usize::MAX,
            shares_files: true,
        };
        let eye = || Eye {
            workspace: self.workspace,
            watch,
            folder: None,
            found: Vec::new(),
            unread: Vec::new(),
        };
        let named =
            |path: &[u8], errno: Errno| (PathBuf::from(OsStr::from_bytes(path)), errno.to_string());
        let (eyes, tally) = walk(&everything, eye, |eye: &mut Eye<'_>, _, name| {
            if let Err(errno) = eye.look(name.path, name.sort)
                && !is_gone(errno)
            {
                watch.inspect(|watch| watch.give_up());
                eye.unread.push(named(name.path, errno));
            }
            true
        });
        self.check_time(stop)?;
        let places = tally.first_unreadable.iter();
        let mut unread: Unread = places.map(|(path, errno)| named(path, *errno)).collect();
        let mut lists = Vec::new();
        for eye in eyes {
            lists.push(Mutex::new(eye.found));
            unread.extend(eye.unread);
        }
        Ok((sorted(&lists), unread))
    }

    fn check_total(&self, found: &[Found]) -> Result<(), Refused> {
        let files = found.iter().filter(|found| matches!(found.sort, Sort::File | Sort::Link));
        let (count, limit) = (files.count(), self.limits.files);
        if !self.limits.is_git_counted {
            // Files that git does not hold count; when even the largest possible number in git leaves too
            // many, nothing is read.
            let in_git = git_index::entry_count(&self.workspace.root().join(".git"));
            let is_certain = count.saturating_sub(in_git) > limit;
            return if is_certain { Err(Refused::TooManyOutsideGit { limit }) } else { Ok(()) };
        }
        if count > limit {
            return Err(Refused::TooMany { count, limit });
        }
        let sizes = found.iter().filter(|found| found.sort == Sort::File);
        let sizes = sizes.map(|found| found.look.size).filter(|size| *size <= self.limits.file);
        let (bytes, limit) = (sizes.sum(), self.limits.total);
        if bytes > limit { Err(Refused::TooMuch { bytes, limit }) } else { Ok(()) }
    }

    /// Adds paths that the walk left out, with the folders above them. Missing and unreadable paths are
    /// skipped.
    pub fn add(&self, manifest: &mut Manifest, paths: &[PathBuf]) -> Result<(), Refused> {
        let mut bytes: u64 = manifest.entries.values().map(|entry| entry.look.size).sum();
        for path in paths {
            let Ok(seen) = self.workspace.look_exact(path) else { continue };
            let own = look(&seen.stat);
            let state = match seen.link {
                Some(target) => State::Link { target: RawPath(target) },
                None if own.size > self.limits.file => {
                    manifest.left_out.insert(path.clone(), own);
                    continue;
                }
                None => match self.keep(path, None)? {
                    Kept::Yes(state, _) => state,
                    Kept::Gone | Kept::Unread(_) => continue,
                },
            };
            bytes += own.size;
            let (count, limits) = (manifest.entries.len() + 1, self.limits);
            if bytes > limits.total {
                return Err(Refused::TooMuch { bytes, limit: limits.total });
            }
            if count > limits.files {
                return Err(Refused::TooMany { count, limit: limits.files });
            }
            for folder in path.ancestors().skip(1).filter(|folder| *folder != Path::new("")) {
                if !manifest.folders.contains_key(folder)
                    && let Ok(seen) = self.workspace.look_exact(folder)
                {
                    manifest.folders.insert(folder.to_owned(), look(&seen.stat).mode);
                }
            }
            // It is read in every survey: its fingerprint may be too recent to rely on.
            let look = Look { changed: i128::MIN, ..own };
            manifest.entries.insert(path.clone(), Entry { state, look });
        }
        Ok(())
    }

    /// Reads these files and stores their contents.
    fn keep_all(
        &self,
        paths: Vec<PathBuf>,
        progress: &SurveyProgress,
    ) -> Result<Vec<(PathBuf, Kept)>, Refused> {
        let failed = |source| Refused::Keep { path: PathBuf::new(), source };
        let begin = || ContentBatch::begin(self.store, self.workspace, self.limits.of_batch());
        let batch = (paths.len() >= BATCH).then(begin).transpose().map_err(failed)?;
        progress.expect(paths.len());
        let pieces: Vec<&[PathBuf]> = paths.chunks(PIECE).collect();
        let kept = spread(&pieces, |piece| {
            self.check_time(progress.stop())?;
            let kept = piece.iter().map(|path| self.keep(path, batch.as_ref()));
            let kept = kept.collect::<Result<Vec<_>, _>>();
            progress.advance(piece.len());
            // Stop the other threads.
            kept.inspect_err(|_| progress.stop().ask())
        });
        let refused = |kept: &Result<_, Refused>| !matches!(kept, Ok(_) | Err(Refused::Skipped));
        let mut all = Vec::with_capacity(paths.len());
        let mut kept = kept;
        if let Some(place) = kept.iter().position(refused) {
            return kept.swap_remove(place).map(|_| Vec::new());
        }
        for kept in kept {
            all.extend(kept?);
        }
        let summary = batch.map(ContentBatch::finish).transpose().map_err(failed)?;
        summary.flatten().inspect(|summary| progress.note_first_batch(*summary));
        Ok(paths.into_iter().zip(all).collect())
    }

    /// Fails when the time limit has passed or the survey was skipped.
    pub fn check_time(&self, stop: &Stop) -> Result<(), Refused> {
        stop.is_due();
        match stop.reason() {
            None => Ok(()),
            Some(Stopped::Asked) => Err(Refused::Skipped),
            Some(Stopped::Late(_)) => Err(Refused::TooSlow { limit: self.limits.time }),
        }
    }

    /// Stores the content of a file.
    fn keep(&self, path: &Path, batch: Option<&ContentBatch<'_>>) -> Result<Kept, Refused> {
        let (bytes, look) = match read(self.workspace, path, self.limits.file) {
            Ok(Some(read)) => read,
            Err(errno) if !is_gone(errno) => return Ok(Kept::Unread(errno)),
            Ok(None) | Err(_) => return Ok(Kept::Gone),
        };
        let sha256 = self.keep_content(&bytes, batch).map_err(|refused| match refused {
            NotKept::TooManyFiles => Refused::TooManyOutsideGit { limit: self.limits.files },
            NotKept::TooManyBytes => Refused::StoreFull { limit: self.limits.total },
            NotKept::Io(source) => Refused::Keep { path: path.to_owned(), source },
        })?;
        Ok(Kept::Yes(State::File { sha256, mode: look.mode }, look))
    }

    fn keep_content(
        &self,
        bytes: &[u8],
        batch: Option<&ContentBatch<'_>>,
    ) -> Result<Hash, NotKept> {
        match batch {
            Some(batch) => batch.add(bytes),
            None => Ok(self.store.put(bytes)?),
        }
    }
}

/// Sorts the list of each thread in parallel, and merges them.
fn sorted(lists: &[Mutex<Vec<Found>>]) -> Vec<Found> {
    let taken = |list: &Mutex<Vec<Found>>| {
        std::mem::take(&mut *list.lock().unwrap_or_else(PoisonError::into_inner))
    };
    let mut lists = spread(lists, |list| {
        let mut list = taken(list);
        list.sort_unstable_by(|one, other| by_components(&one.path, &other.path));
        list
    });
    // A stable sort merges lists that are in order already.
    let mut all: Vec<Found> = lists.drain(..).flatten().collect();
    all.sort_by(|one, other| by_components(&one.path, &other.path));
    all
}

/// The order of `Path` for relative paths without `.` and doubled slashes, several times faster: a slash
/// sorts before any byte of a name.
fn by_components(one: &Path, other: &Path) -> Ordering {
    let rank = |byte: &u8| if *byte == b'/' { 0 } else { *byte };
    let one = one.as_os_str().as_bytes();
    let other = other.as_os_str().as_bytes();
    let differs = one.iter().zip(other).position(|(own, its)| own != its);
    match differs.and_then(|at| Some((one.get(at)?, other.get(at)?))) {
        Some((own, its)) => rank(own).cmp(&rank(its)),
        None => one.len().cmp(&other.len()),
    }
}

/// The result of storing a file.
enum Kept {
    Yes(State, Look),
    /// It was removed or is not a file.
    Gone,
    Unread(Errno),
}

/// Whether the error means that the file was removed or replaced meanwhile.
fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::INVAL | Errno::ISDIR)
}

/// Whether a survey covers this path, that is, whether it is not ignored.
pub fn sees(workspace: &Workspace, path: &Path) -> bool {
    let stop = Stop::after(SEE_TIME);
    let globs = Override::empty();
    let start = path.parent().unwrap_or(Path::new(""));
    let beside = Walk {
        workspace,
        stop: &stop,
        start,
        all: false,
        hidden: true,
        globs: &globs,
        depth: 1,
        shares_files: false,
    };
    let (found, _) = walk(
        &beside,
        || false,
        |found, _, name| {
            *found |= name.path == path.as_os_str().as_bytes();
            false
        },
    );
    found.contains(&true)
}

/// A fingerprint for the next survey; that of a file that changed just now is made invalid, so that it is
/// read again.
fn settled(look: Look, fresh: i128) -> Look {
    if look.changed < fresh { look } else { Look { changed: i128::MIN, ..look } }
}

/// Files that changed between two surveys but were too large to be kept.
pub fn unkept(before: &Manifest, after: &Manifest) -> Vec<PathBuf> {
    let looks: BTreeMap<&PathBuf, &Look> = before.left_out.iter().collect();
    let changed = after.left_out.iter().filter(|(path, look)| looks.get(path) != Some(look));
    let gone = before.left_out.keys().filter(|path| !after.left_out.contains_key(*path));
    changed.map(|(path, _)| path.clone()).chain(gone.cloned()).collect()
}
