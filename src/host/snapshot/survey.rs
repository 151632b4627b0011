//! Survey: a walk over the Workspace that records the state of every file and stores contents that are
//! new since the last survey.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ignore::overrides::Override;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use super::content::{fingerprint, invalidate_if_recent, read_content};
use super::folder_watch::FolderWatch;
use super::manifest::{FileFingerprint, ManifestEntry};
use super::parallel::parallel_map;
use super::path_order::merge_sorted;
use super::store::{BatchLimits, ContentBatch, StoreContentError};
use super::survey_progress::SurveyProgress;
use super::{ContentHash, ContentStore, FileState, Manifest, RawPath};
use crate::base::git_index::{self, IndexStamp};
use crate::host::walk::{WalkEntryKind, WalkOptions, WalkStop, WalkStopReason, walk};
use crate::host::workspace::{OpenKind, Workspace};
use crate::settings::config::UndoLimits;

/// The time limit for reading one folder.
const LIST_TIMEOUT: Duration = Duration::from_secs(2);

/// The number of files in one work item.
const PIECE: usize = 32;

/// The minimum number of new files whose contents are stored as a batch.
const BATCH: usize = 64;

/// Limits of a survey: size, number of files, time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SurveyLimits {
    /// The largest file that is stored, in bytes.
    pub file: u64,
    /// The size of all files if files in git count, else the size of the whole store, in bytes.
    pub total: u64,
    /// The number of files.
    pub files: usize,
    pub time: Duration,
    /// Whether files in git count.
    pub is_git_counted: bool,
    /// Whether contents are stored; else they are only hashed.
    pub is_stored: bool,
    /// An earlier survey that had too many files outside git; it is not repeated in vain.
    pub refused: Option<RefusedSurvey>,
}

/// The Workspace in which a survey had too many files outside git.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedSurvey {
    pub files: usize,
    /// git's index. When it is another one, git may hold more of the files.
    pub index: Option<IndexStamp>,
}

impl SurveyLimits {
    /// The limits from the `undo` settings.
    pub fn from_undo_settings(settings: UndoLimits) -> Self {
        let UndoLimits { largest_file: file, max_bytes: total, max_files: files, .. } = settings;
        let time = Duration::from_secs(30);
        Self { file, total, files, time, is_git_counted: false, is_stored: true, refused: None }
    }

    /// The limits of a survey that stores nothing.
    #[must_use]
    pub(super) fn without_storing(self) -> Self {
        Self { total: u64::MAX, files: usize::MAX, is_stored: false, refused: None, ..self }
    }

    /// The limits of a batch; if files in git count, all files were counted before.
    fn batch_limits(self) -> BatchLimits {
        if self.is_git_counted {
            BatchLimits { files: usize::MAX, bytes: u64::MAX }
        } else {
            BatchLimits { files: self.files, bytes: self.total }
        }
    }
}

/// The reason why a survey failed.
#[derive(Debug, thiserror::Error)]
pub enum SurveyError {
    #[error("the files that are not ignored are too large: {bytes} bytes, limit {limit}")]
    TooMuch { bytes: u64, limit: u64 },
    #[error("the files that are not ignored are too many: {count}, limit {limit}")]
    TooMany { count: usize, limit: usize },
    #[error(
        "the files that are neither ignored nor in the objects of the repository's own .git folder are more than \
         {limit} (setting undo.max_files)"
    )]
    TooManyOutsideGit { limit: usize },
    #[error(
        "the contents for undo would take more than {limit} bytes (setting undo.max_bytes); \
         `pixir gc` removes what no Session needs"
    )]
    StoreFull { limit: u64 },
    #[error("recording was skipped")]
    Skipped,
    #[error("the survey of all files took longer than {} s", limit.as_secs())]
    TooSlow { limit: Duration },
    #[error("{} could not be stored: {source}", path.display())]
    Storage { path: PathBuf, source: io::Error },
}

/// A survey of a Workspace, and the store for contents.
#[derive(Debug)]
pub struct Survey<'a> {
    pub workspace: &'a Workspace,
    pub store: &'a ContentStore,
    pub limits: SurveyLimits,
}

/// A path that the walk found.
struct SurveyedPath {
    path: PathBuf,
    fingerprint: FileFingerprint,
    link: Option<PathBuf>,
    kind: WalkEntryKind,
}

impl AsRef<Path> for SurveyedPath {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

/// The results of one thread of the walk. Paths in one folder are visited in succession, so the folder is
/// opened once, following no link, and its files are examined by descriptor.
struct SurveyWorker<'w> {
    workspace: &'w Workspace,
    watch: Option<&'w FolderWatch>,
    folder: Option<(Vec<u8>, OwnedFd)>,
    found: Vec<SurveyedPath>,
    unread: UnreadablePaths,
}

/// Unreadable paths, with the reason.
type UnreadablePaths = Vec<(PathBuf, String)>;

impl SurveyWorker<'_> {
    fn examine(&mut self, path: &[u8], kind: WalkEntryKind) -> Result<(), Errno> {
        let end = memchr::memrchr(b'/', path).map_or(0, |slash| slash + 1);
        let (above, name) = path.split_at(end);
        let above = above.strip_suffix(b"/").unwrap_or_default();
        let folder = match self.folder.take() {
            Some((own, folder)) if own == above => (own, folder),
            _ => (above.to_vec(), self.workspace.open_no_follow(above, OpenKind::Folder)?),
        };
        let (_, folder) = self.folder.insert(folder);
        let stat = rustix::fs::statat(&*folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        self.watch.inspect(|watch| watch.observe_path(folder.as_fd(), path, &stat));
        let link = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&*folder, name, Vec::new())?;
                Some(PathBuf::from(OsStr::from_bytes(target.to_bytes())))
            }
            _ => None,
        };
        let path = PathBuf::from(OsStr::from_bytes(path));
        self.found.push(SurveyedPath { path, fingerprint: fingerprint(&stat), link, kind });
        Ok(())
    }
}

impl Survey<'_> {
    /// Surveys all files that are not ignored. Files with the same fingerprint as in `known` are not read
    /// again.
    pub fn run(&self, known: Option<&Manifest>) -> Result<Manifest, SurveyError> {
        let progress = SurveyProgress::new(self.limits.time);
        Ok(self.scan(known, None, &progress)?.unwrap_or_else(|| known.cloned().unwrap_or_default()))
    }

    /// Surveys all files that are not ignored; `None` when nothing differs from `known`.
    fn scan(
        &self,
        known: Option<&Manifest>,
        watch: Option<&FolderWatch>,
        progress: &SurveyProgress,
    ) -> Result<Option<Manifest>, SurveyError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (found, mut not_read) = self.list_paths(watch, progress.stop())?;
        if not_read.is_empty() && known.is_some_and(|known| self.is_same(known, &found)) {
            return Ok(None);
        }
        self.check_refused(&found, progress)?;
        self.check_total(&found, known)?;
        let (mut entries, mut folders, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
        let mut unread = Vec::new();
        // Both lists are sorted, so they are compared in one pass.
        let mut before = known.into_iter().flat_map(|known| &known.entries).peekable();
        for SurveyedPath { path, fingerprint, link, kind } in found {
            match (kind, link) {
                (WalkEntryKind::Folder, _) => folders.push((path, fingerprint.mode)),
                (_, Some(target)) => {
                    let state = FileState::Link { target: RawPath(target) };
                    entries.push((path, ManifestEntry { state, fingerprint }));
                }
                (WalkEntryKind::File, None) if fingerprint.size > self.limits.file => {
                    left_out.push((path, fingerprint));
                }
                (WalkEntryKind::File, None) => {
                    while before.next_if(|(own, _)| **own < path).is_some() {}
                    let same = before
                        .next_if(|(own, entry)| **own == path && entry.fingerprint == fingerprint);
                    if let Some((_, entry)) = same {
                        entries.push((path, entry.clone()));
                    } else {
                        unread.push(path);
                    }
                }
                (WalkEntryKind::Link | WalkEntryKind::Other, None) => {}
            }
        }
        for (path, kept) in self.store_files(unread, progress)? {
            match kept {
                StoreFileResult::Stored(state, fingerprint) => {
                    let fingerprint = invalidate_if_recent(fingerprint, now);
                    entries.push((path, ManifestEntry { state, fingerprint }));
                }
                StoreFileResult::Missing => {}
                StoreFileResult::Unreadable(errno) => not_read.push((path, errno.to_string())),
            }
        }
        let entries = entries.into_iter().collect();
        let (folders, left_out) = (folders.into_iter().collect(), left_out.into_iter().collect());
        Ok(Some(Manifest {
            entries,
            folders,
            too_large: left_out,
            unreadable: not_read.into_iter().collect(),
        }))
    }

    /// Whether a Manifest equals the found paths. Both lists are sorted.
    fn is_same(&self, known: &Manifest, found: &[SurveyedPath]) -> bool {
        let mut entries = known.entries.iter();
        let mut folders = known.folders.iter();
        let mut left_out = known.too_large.iter();
        let is_same = |found: &SurveyedPath| match (found.kind, &found.link) {
            (WalkEntryKind::Folder, _) => {
                folders.next().is_some_and(|own| own == (&found.path, &found.fingerprint.mode))
            }
            (WalkEntryKind::Link | WalkEntryKind::Other, None) => true,
            (WalkEntryKind::File, None) if found.fingerprint.size > self.limits.file => {
                left_out.next().is_some_and(|own| own == (&found.path, &found.fingerprint))
            }
            (_, link) => entries.next().is_some_and(|(path, entry)| {
                let target = match &entry.state {
                    FileState::Link { target } => Some(&target.0),
                    FileState::File { .. } => None,
                };
                *path == found.path
                    && entry.fingerprint == found.fingerprint
                    && target == link.as_ref()
            }),
        };
        found.iter().all(is_same)
            && entries.next().is_none()
            && folders.next().is_none()
            && left_out.next().is_none()
            && known.unreadable.is_empty()
    }

    /// Surveys all files that are not ignored, and `files` even if they are ignored.
    pub fn run_including(
        &self,
        known: Option<&Manifest>,
        files: &[PathBuf],
    ) -> Result<Manifest, SurveyError> {
        let progress = SurveyProgress::new(self.limits.time);
        let taken = self.run_watched(known, files, None, &progress)?;
        Ok(taken.unwrap_or_else(|| known.cloned().unwrap_or_default()))
    }

    /// Surveys like `run_including`, and makes `watch` report changes from now on; `None` when nothing
    /// differs from `known`.
    pub fn run_watched(
        &self,
        known: Option<&Manifest>,
        files: &[PathBuf],
        watch: Option<&FolderWatch>,
        progress: &SurveyProgress,
    ) -> Result<Option<Manifest>, SurveyError> {
        let taken = self.scan(known, watch, progress)?;
        let Some(seen) = taken.as_ref().or(known) else { return Ok(taken) };
        let is_unseen = |path: &&PathBuf| !seen.entries.contains_key(*path);
        let ignored: Vec<PathBuf> = files.iter().filter(is_unseen).cloned().collect();
        if ignored.is_empty() {
            return Ok(taken);
        }
        // Ignored folders are not watched.
        watch.inspect(|watch| watch.invalidate());
        let mut manifest = taken.unwrap_or_else(|| known.cloned().unwrap_or_default());
        self.add_paths(&mut manifest, &ignored)?;
        Ok(Some(manifest))
    }

    fn list_paths(
        &self,
        watch: Option<&FolderWatch>,
        stop: &WalkStop,
    ) -> Result<(Vec<SurveyedPath>, UnreadablePaths), SurveyError> {
        watch.inspect(|watch| watch.begin_survey(self.workspace));
        let everything = WalkOptions {
            workspace: self.workspace,
            stop,
            start: Path::new(""),
            all: false,
            hidden: true,
            globs: &Override::empty(),
            depth: usize::MAX,
            shares_files: true,
        };
        let worker = || SurveyWorker {
            workspace: self.workspace,
            watch,
            folder: None,
            found: Vec::new(),
            unread: Vec::new(),
        };
        let named =
            |path: &[u8], errno: Errno| (PathBuf::from(OsStr::from_bytes(path)), errno.to_string());
        let (workers, summary) =
            walk(&everything, worker, |worker: &mut SurveyWorker<'_>, _, name| {
                if let Err(errno) = worker.examine(name.path, name.kind)
                    && !is_missing_error(errno)
                {
                    watch.inspect(|watch| watch.invalidate());
                    worker.unread.push(named(name.path, errno));
                }
                true
            });
        self.check_time(stop)?;
        let places = summary.first_unreadable.iter();
        let mut unread: UnreadablePaths = places.map(|(path, errno)| named(path, *errno)).collect();
        let mut lists = Vec::new();
        for worker in workers {
            lists.push(Mutex::new(worker.found));
            unread.extend(worker.unread);
        }
        Ok((merge_sorted(&lists), unread))
    }

    /// Refuses the files of an earlier survey that was refused, before they are read again.
    fn check_refused(
        &self,
        found: &[SurveyedPath],
        progress: &SurveyProgress,
    ) -> Result<(), SurveyError> {
        progress.set_found(found.iter().filter(|one| one.kind != WalkEntryKind::Folder).count());
        let git = self.workspace.root().join(".git");
        let is_as_before = self.limits.refused.is_some_and(|refused| {
            progress.found() >= refused.files && git_index::index_stamp(&git) == refused.index
        });
        let limit = self.limits.files;
        if is_as_before { Err(SurveyError::TooManyOutsideGit { limit }) } else { Ok(()) }
    }

    fn check_total(
        &self,
        found: &[SurveyedPath],
        known: Option<&Manifest>,
    ) -> Result<(), SurveyError> {
        let files = found
            .iter()
            .filter(|found| matches!(found.kind, WalkEntryKind::File | WalkEntryKind::Link));
        let (count, limit) = (files.clone().count(), self.limits.files);
        if !self.limits.is_git_counted {
            // Only files that git does not hold count. If there are too many of them even when all entries of
            // git's index are subtracted, nothing is read.
            let in_git = git_index::entry_count(&self.workspace.root().join(".git"));
            if count.saturating_sub(in_git) <= limit {
                return Ok(());
            }
            // What the last survey knows is stored already, also under another name.
            let identity = |fingerprint: &FileFingerprint| {
                (fingerprint.inode, fingerprint.size, fingerprint.modified)
            };
            let stored: HashSet<_> = known
                .into_iter()
                .flat_map(|known| known.entries.values())
                .map(|entry| identity(&entry.fingerprint))
                .collect();
            let new = files.filter(|found| !stored.contains(&identity(&found.fingerprint))).count();
            let is_certain = new.saturating_sub(in_git) > limit;
            return if is_certain { Err(SurveyError::TooManyOutsideGit { limit }) } else { Ok(()) };
        }
        if count > limit {
            return Err(SurveyError::TooMany { count, limit });
        }
        let sizes = found.iter().filter(|found| found.kind == WalkEntryKind::File);
        let sizes =
            sizes.map(|found| found.fingerprint.size).filter(|size| *size <= self.limits.file);
        let (bytes, limit) = (sizes.sum(), self.limits.total);
        if bytes > limit { Err(SurveyError::TooMuch { bytes, limit }) } else { Ok(()) }
    }

    /// Adds paths that the walk left out, with the folders above them. Missing and unreadable paths are
    /// skipped.
    pub fn add_paths(&self, manifest: &mut Manifest, paths: &[PathBuf]) -> Result<(), SurveyError> {
        let SurveyLimits { is_git_counted, .. } = self.limits;
        let (mut count, mut bytes) = (0, 0);
        if is_git_counted {
            count = manifest.entries.len();
            bytes = manifest.entries.values().map(|entry| entry.fingerprint.size).sum();
        }
        for path in paths {
            let Ok(seen) = self.workspace.stat_no_follow(path) else { continue };
            let own = fingerprint(&seen.stat);
            let state = match seen.link {
                Some(target) => FileState::Link { target: RawPath(target) },
                None if own.size > self.limits.file => {
                    manifest.too_large.insert(path.clone(), own);
                    continue;
                }
                None => match self.store_file(path, None)? {
                    StoreFileResult::Stored(state, _) => state,
                    StoreFileResult::Missing | StoreFileResult::Unreadable(_) => continue,
                },
            };
            bytes += own.size;
            count += 1;
            let SurveyLimits { total, files: limit, .. } = self.limits;
            // Elsewhere the size of the store counts.
            if is_git_counted && bytes > total {
                return Err(SurveyError::TooMuch { bytes, limit: total });
            }
            if count > limit {
                return Err(if is_git_counted {
                    SurveyError::TooMany { count, limit }
                } else {
                    SurveyError::TooManyOutsideGit { limit }
                });
            }
            for folder in path.ancestors().skip(1).filter(|folder| *folder != Path::new("")) {
                if !manifest.folders.contains_key(folder)
                    && let Ok(seen) = self.workspace.stat_no_follow(folder)
                {
                    manifest.folders.insert(folder.to_owned(), fingerprint(&seen.stat).mode);
                }
            }
            // The fingerprint may be too recent, so it is made invalid and every survey reads the file.
            let fingerprint = FileFingerprint { changed: i128::MIN, ..own };
            manifest.entries.insert(path.clone(), ManifestEntry { state, fingerprint });
        }
        Ok(())
    }

    /// Reads these files and stores their contents.
    fn store_files(
        &self,
        paths: Vec<PathBuf>,
        progress: &SurveyProgress,
    ) -> Result<Vec<(PathBuf, StoreFileResult)>, SurveyError> {
        let failed = |source| SurveyError::Storage { path: PathBuf::new(), source };
        let begin = || ContentBatch::new(self.store, self.workspace, self.limits.batch_limits());
        let is_batch = paths.len() >= BATCH && self.limits.is_stored;
        let batch = is_batch.then(begin).transpose().map_err(failed)?;
        progress.set_total(paths.len());
        let pieces: Vec<&[PathBuf]> = paths.chunks(PIECE).collect();
        let kept = parallel_map(&pieces, |piece| {
            self.check_time(progress.stop())?;
            let kept = piece.iter().map(|path| self.store_file(path, batch.as_ref()));
            let kept = kept.collect::<Result<Vec<_>, _>>();
            progress.add_done(piece.len());
            // An error stops the other threads.
            kept.inspect_err(|_| progress.stop().request())
        });
        let refused =
            |kept: &Result<_, SurveyError>| !matches!(kept, Ok(_) | Err(SurveyError::Skipped));
        let mut all = Vec::with_capacity(paths.len());
        let mut kept = kept;
        if let Some(place) = kept.iter().position(refused) {
            return kept.swap_remove(place).map(|_| Vec::new());
        }
        for kept in kept {
            all.extend(kept?);
        }
        let has_batch = batch.is_some();
        if has_batch {
            self.store.forget_size();
        }
        let summary = batch.map(ContentBatch::finish).transpose().map_err(failed)?;
        if has_batch {
            let bytes = self.store.unshared_pin_bytes().map_err(failed)?;
            progress.set_large_pins(bytes, self.limits.total);
        }
        summary.flatten().inspect(|summary| progress.set_first_batch(*summary));
        Ok(paths.into_iter().zip(all).collect())
    }

    /// Fails when the time limit has passed or the survey was skipped.
    pub fn check_time(&self, stop: &WalkStop) -> Result<(), SurveyError> {
        stop.is_due();
        match stop.reason() {
            None => Ok(()),
            Some(WalkStopReason::Requested) => Err(SurveyError::Skipped),
            Some(WalkStopReason::TimedOut(_)) => {
                Err(SurveyError::TooSlow { limit: self.limits.time })
            }
        }
    }

    /// Stores the content of a file.
    fn store_file(
        &self,
        path: &Path,
        batch: Option<&ContentBatch<'_>>,
    ) -> Result<StoreFileResult, SurveyError> {
        let (bytes, fingerprint) = match read_content(self.workspace, path, self.limits.file) {
            Ok(Some(read)) => read,
            Err(errno) if !is_missing_error(errno) => {
                return Ok(StoreFileResult::Unreadable(errno));
            }
            Ok(None) | Err(_) => return Ok(StoreFileResult::Missing),
        };
        let sha256 = self.store_content(&bytes, batch).map_err(|refused| match refused {
            StoreContentError::TooManyFiles => {
                SurveyError::TooManyOutsideGit { limit: self.limits.files }
            }
            StoreContentError::TooManyBytes => SurveyError::StoreFull { limit: self.limits.total },
            StoreContentError::Io(source) => SurveyError::Storage { path: path.to_owned(), source },
        })?;
        Ok(StoreFileResult::Stored(FileState::File { sha256, mode: fingerprint.mode }, fingerprint))
    }

    fn store_content(
        &self,
        bytes: &[u8],
        batch: Option<&ContentBatch<'_>>,
    ) -> Result<ContentHash, StoreContentError> {
        match batch {
            Some(batch) => batch.add(bytes),
            None if self.limits.is_stored => {
                self.store.put_within(bytes, self.limits.batch_limits().bytes)
            }
            None => Ok(ContentHash::digest(bytes)),
        }
    }
}

/// The result of storing a file.
enum StoreFileResult {
    Stored(FileState, FileFingerprint),
    /// The path was removed or is not a file.
    Missing,
    Unreadable(Errno),
}

/// Whether the error means that the file was removed or replaced meanwhile.
fn is_missing_error(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::INVAL | Errno::ISDIR)
}

/// Whether a survey covers this path, that is, whether it is not ignored.
pub fn is_covered(workspace: &Workspace, path: &Path) -> bool {
    let stop = WalkStop::with_timeout(LIST_TIMEOUT);
    let globs = Override::empty();
    let start = path.parent().unwrap_or(Path::new(""));
    let beside = WalkOptions {
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
