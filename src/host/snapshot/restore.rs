//! Restore: applies a plan to the files of a Workspace, by descriptors below its root.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::parallel::parallel_map;
use super::{ContentStore, FileChange, FileState, RestorePlan, content, survey};
use crate::base::id::is_hex;
use crate::host::workspace::{OpenKind, Workspace, writable_file_name};

/// The maximum number of files that are synced one by one; for more, syncing the whole file system is cheaper.
const ONE_BY_ONE: usize = 64;

/// The number of files in one work item.
const PIECE: usize = 64;

/// The outcome of a restore.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RestoreOutcome {
    pub files: usize,
    /// Paths that failed, with the reason; all others succeeded.
    pub failed: Vec<(PathBuf, String)>,
}

/// The paths whose contents a plan needs but the store does not have.
pub fn missing_contents(plan: &RestorePlan, store: &ContentStore) -> Vec<PathBuf> {
    let pieces: Vec<&[FileChange]> = plan.changes.chunks(PIECE).collect();
    let is_needed = |change: &&FileChange| match &change.to {
        Some(FileState::File { sha256, .. }) => !store.has(sha256),
        Some(FileState::Link { .. }) | None => false,
    };
    let lost = parallel_map(&pieces, |piece| {
        let lost = piece.iter().filter(is_needed).map(|change| change.path.clone());
        lost.collect::<Vec<_>>()
    });
    lost.into_iter().flatten().collect()
}

/// The paths that obstruct a plan: a folder where a file must be put, if it will not be empty, or a file
/// where a folder is needed.
pub fn find_obstacles(plan: &RestorePlan, workspace: &Workspace) -> Vec<PathBuf> {
    let gone = removed_paths(plan);
    let (mut found, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for change in plan.changes.iter().filter(|change| change.to.is_some()) {
        // A folder in `seen` was checked together with all folders above it.
        for above in folders_above(&change.path).take_while(|above| seen.insert(*above)) {
            if is_folder(workspace, above) == Some(false) && !gone.contains(above) {
                found.insert(above.to_owned());
            }
        }
        // A path at which the plan found a file is not a folder.
        if change.from.is_none()
            && is_folder(workspace, &change.path) == Some(true)
            && !is_fully_removed(&change.path, &gone, workspace)
        {
            found.insert(change.path.clone());
        }
    }
    found.into_iter().collect()
}

/// The folders that a plan would remove although they hold other files.
pub fn find_nonempty_folders(plan: &RestorePlan, workspace: &Workspace) -> BTreeSet<PathBuf> {
    let gone = removed_paths(plan);
    let stays = |folder: &&PathBuf| !is_fully_removed(folder, &gone, workspace);
    plan.remove_folders.iter().filter(stays).cloned().collect()
}

/// The paths that a plan removes.
fn removed_paths(plan: &RestorePlan) -> BTreeSet<&Path> {
    let files = plan.changes.iter().filter(|change| change.to.is_none());
    let files = files.map(|change| change.path.as_path());
    files.chain(plan.remove_folders.iter().map(PathBuf::as_path)).collect()
}

fn is_folder(workspace: &Workspace, path: &Path) -> Option<bool> {
    let seen = workspace.stat_no_follow(path).ok()?;
    Some(FileType::from_raw_mode(seen.stat.st_mode) == FileType::Directory)
}

/// Whether the plan removes a folder and everything in it.
fn is_fully_removed(folder: &Path, gone: &BTreeSet<&Path>, workspace: &Workspace) -> bool {
    gone.contains(folder)
        && list_names(workspace, folder).is_some_and(|names| {
            names.iter().all(|name| {
                let path = folder.join(name);
                match is_folder(workspace, &path) {
                    Some(true) => is_fully_removed(&path, gone, workspace),
                    _ => gone.contains(path.as_path()),
                }
            })
        })
}

fn list_names(workspace: &Workspace, folder: &Path) -> Option<Vec<std::ffi::OsString>> {
    let folder = workspace.open_no_follow(folder.as_os_str().as_bytes(), OpenKind::Folder).ok()?;
    let mut names = Vec::new();
    for entry in Dir::new(folder).ok()? {
        let name = entry.ok()?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(std::ffi::OsString::from_vec(name));
        }
    }
    Some(names)
}

/// Applies a plan, in an order in which no step obstructs another.
pub fn restore(plan: &RestorePlan, workspace: &Workspace, store: &ContentStore) -> RestoreOutcome {
    let mut restored = RestoreOutcome::default();
    let (gone, changed): (Vec<&FileChange>, Vec<&FileChange>) =
        plan.changes.iter().partition(|change| change.to.is_none());
    let there = |path: &Path| Ok(open_parent_folder(workspace, path)?.0);
    restored.restore_each(&gone, there, |folder, name, _| remove_file(folder, name));
    for folder in &plan.remove_folders {
        // Removal fails for a folder that is not empty, so files of other programs stay.
        remove_folder(workspace, folder).ok();
    }
    for (folder, mode) in &plan.make_folders {
        let made = make_folders_above(workspace, folder)
            .and_then(|()| make_folder(workspace, folder, *mode));
        restored.record_result(folder, made);
    }
    let is_one_by_one = changed.len() <= ONE_BY_ONE;
    let made = |path: &Path| {
        there(path).or_else(|_| {
            make_folders_above(workspace, path)?;
            there(path)
        })
    };
    restored.restore_each(&changed, made, |folder, name, state| {
        let Some(state) = state else { return Ok(()) };
        let content = load_content(state, store)?;
        replace_file(folder, name, state, content.as_deref(), is_one_by_one)
    });
    for (folder, mode) in &plan.folder_modes {
        restored.record_result(folder, set_folder_mode(workspace, folder, *mode));
    }
    if !is_one_by_one {
        restored.record_result(Path::new(""), sync_all(workspace));
    }
    restored
}

impl RestoreOutcome {
    /// Applies `work` to every file, in parallel, by a descriptor of its folder. A descriptor is used only
    /// for a few files, because the folder may be moved meanwhile.
    fn restore_each(
        &mut self,
        changes: &[&FileChange],
        open: impl Fn(&Path) -> io::Result<OwnedFd> + Sync,
        work: impl Fn(&OwnedFd, &OsStr, Option<&FileState>) -> io::Result<()> + Sync,
    ) {
        let is_in_same_folder =
            |one: &&FileChange, other: &&FileChange| one.path.parent() == other.path.parent();
        let folders = changes.chunk_by(is_in_same_folder);
        let pieces: Vec<&[&FileChange]> = folders.flat_map(|folder| folder.chunks(PIECE)).collect();
        let done = parallel_map(&pieces, |piece| {
            let folder = piece.first().map(|first| open(&first.path));
            let one = |change: &&FileChange| match &folder {
                Some(Ok(folder)) => work(folder, file_name_of(&change.path)?, change.to.as_ref()),
                Some(Err(error)) => Err(io::Error::other(error.to_string())),
                None => Ok(()),
            };
            piece.iter().map(one).collect::<Vec<_>>()
        });
        for (change, done) in changes.iter().zip(done.into_iter().flatten()) {
            self.files += usize::from(self.record_result(&change.path, done));
        }
    }

    fn record_result(&mut self, path: &Path, done: io::Result<()>) -> bool {
        let failed = done.err().map(|error| (path.to_owned(), error.to_string()));
        let is_done = failed.is_none();
        self.failed.extend(failed);
        is_done
    }
}

/// Syncs the whole file system.
fn sync_all(workspace: &Workspace) -> io::Result<()> {
    let root = workspace.open_no_follow(b"", OpenKind::Folder)?;
    Ok(rustix::fs::syncfs(&root)?)
}

fn load_content(state: &FileState, store: &ContentStore) -> io::Result<Option<Vec<u8>>> {
    match state {
        FileState::File { sha256, .. } => store.get(sha256).map(Some),
        FileState::Link { .. } => Ok(None),
    }
}

fn open_parent_folder(
    workspace: &Workspace,
    path: &Path,
) -> io::Result<(OwnedFd, std::ffi::OsString)> {
    workspace.open_parent_no_follow(path).map_err(|error| io::Error::other(error.to_string()))
}

fn file_name_of(path: &Path) -> io::Result<&OsStr> {
    writable_file_name(path).map_err(|error| io::Error::other(error.to_string()))
}

fn remove_file(folder: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn remove_folder(workspace: &Workspace, path: &Path) -> io::Result<()> {
    let (folder, name) = open_parent_folder(workspace, path)?;
    Ok(rustix::fs::unlinkat(&folder, &name, AtFlags::REMOVEDIR)?)
}

fn make_folder(workspace: &Workspace, path: &Path, mode: Option<u32>) -> io::Result<()> {
    let (folder, name) = open_parent_folder(workspace, path)?;
    match (rustix::fs::mkdirat(&folder, &name, Mode::from_raw_mode(0o777)), mode) {
        (Ok(()) | Err(Errno::EXIST), Some(mode)) => set_folder_mode(workspace, path, mode),
        (Ok(()) | Err(Errno::EXIST), None) => Ok(()),
        (Err(errno), _) => Err(errno.into()),
    }
}

fn set_folder_mode(workspace: &Workspace, path: &Path, mode: u32) -> io::Result<()> {
    let (folder, name) = open_parent_folder(workspace, path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::openat(&folder, &name, flags, Mode::empty())?;
    Ok(rustix::fs::fchmod(&folder, Mode::from_raw_mode(mode))?)
}

/// Replaces a file or link atomically, so that on failure the old one still exists.
fn replace_file(
    folder: &OwnedFd,
    name: &OsStr,
    state: &FileState,
    content: Option<&[u8]>,
    is_synced: bool,
) -> io::Result<()> {
    if let (FileState::File { mode, .. }, Some(content)) = (state, content)
        && has_other_names(folder, name)
    {
        return sync_file(&write_file(folder, name, OFlags::TRUNC, content, *mode)?, is_synced);
    }
    let draft = format!(".{:016x}.pixir-undo", fastrand::u64(..));
    let draft = OsStr::new(&draft);
    let made = match (state, content) {
        (FileState::File { mode, .. }, Some(content)) => {
            let new = OFlags::CREATE | OFlags::EXCL;
            write_file(folder, draft, new, content, *mode)
                .and_then(|file| sync_file(&file, is_synced))
        }
        (FileState::Link { target }, _) => {
            rustix::fs::symlinkat(target.as_ref(), folder, draft).map_err(Into::into)
        }
        (FileState::File { .. }, None) => Err(io::Error::other("its content is not known")),
    };
    let placed = made.and_then(|()| Ok(rustix::fs::renameat(folder, draft, folder, name)?));
    if placed.is_err() {
        rustix::fs::unlinkat(folder, draft, AtFlags::empty()).ok();
    }
    placed
}

fn sync_file(file: &File, is_synced: bool) -> io::Result<()> {
    if is_synced { file.sync_data() } else { Ok(()) }
}

fn write_file(
    folder: &impl AsFd,
    name: &OsStr,
    how: OFlags,
    content: &[u8],
    mode: u32,
) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | how;
    let mut file = File::from(rustix::fs::openat(folder, name, flags, Mode::from_raw_mode(0o600))?);
    file.write_all(content)?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
    Ok(file)
}

/// Whether a file has several hard links; it is then written in place, to keep them.
fn has_other_names(folder: &impl AsFd, name: &OsStr) -> bool {
    rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink > 1
    })
}

/// Creates missing folders above a path, with default modes, as a file tool would.
fn make_folders_above(workspace: &Workspace, path: &Path) -> io::Result<()> {
    let above: Vec<&Path> = folders_above(path).collect();
    above.into_iter().rev().try_for_each(|folder| make_folder(workspace, folder, None))
}

/// The folders above a path without the root, innermost first.
fn folders_above(path: &Path) -> impl Iterator<Item = &Path> {
    path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty())
}

/// The current files of a Workspace, for planning.
#[derive(Debug)]
pub struct CurrentFiles<'a> {
    pub workspace: &'a Workspace,
    pub store: &'a ContentStore,
    pub limits: survey::SurveyLimits,
}

impl CurrentFiles<'_> {
    /// The creation time of the file at a path, in nanoseconds since the epoch, if known.
    pub(super) fn created_at(&self, path: &Path) -> Option<u64> {
        self.workspace.creation_time(path)
    }

    /// Loads a Manifest from the store.
    pub(super) fn load_manifest(&self, hash: &super::ContentHash) -> io::Result<super::Manifest> {
        super::Manifest::load(hash, self.store)
    }

    /// The current state of a path.
    pub(super) fn read_state(&self, path: &Path) -> io::Result<Option<FileState>> {
        content::read_state(self.workspace, path, Some(self.store))
    }

    /// The current states of these paths.
    pub(super) fn read_states(&self, paths: &[&Path]) -> io::Result<Vec<Option<FileState>>> {
        let pieces: Vec<&[&Path]> = paths.chunks(PIECE).collect();
        let read_piece =
            |piece: &&[&Path]| piece.iter().map(|path| self.read_state(path)).collect();
        let seen: Vec<io::Result<Vec<_>>> = parallel_map(&pieces, read_piece);
        Ok(seen.into_iter().collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// Temporary files in the folder of this file that a file tool wrote for it but did not rename.
    pub(super) fn find_drafts(&self, path: &Path) -> Vec<PathBuf> {
        let Some(name) = path.file_name() else { return Vec::new() };
        // `.<beginning of the name>.<16 hex>.pixir-new`
        let is_draft = |other: &std::ffi::OsString| {
            let middle = other.to_str().and_then(|other| other.strip_prefix('.'));
            let middle = middle.and_then(|rest| rest.strip_suffix(".pixir-new"));
            middle.and_then(|middle| middle.rsplit_once('.')).is_some_and(|(shown, random)| {
                name.as_bytes().starts_with(shown.as_bytes()) && is_hex(random, 16)
            })
        };
        let names = self.workspace.sibling_names(path).into_iter().filter(is_draft);
        names.map(|name| path.with_file_name(name)).collect()
    }

    /// Surveys the Workspace, including these files, for a Turn whose end was not recorded. Contents are not stored:
    /// those that a restore overwrites are stored when it is planned.
    pub(super) fn take_survey(
        &self,
        known: Option<&super::Manifest>,
        touched: &[PathBuf],
    ) -> Result<super::Manifest, survey::SurveyError> {
        let (workspace, store) = (self.workspace, self.store);
        let limits = self.limits.without_storing();
        survey::Survey { workspace, store, limits }.run_including(known, touched)
    }
}
