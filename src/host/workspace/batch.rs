//! Batch of file changes that are applied together, or not at all.
//!
//! New contents are first written to temporary files in the folders of the old ones. Then come renames, one
//! per file, so each file is old or new whenever the process dies. An old file keeps its inode until all
//! steps are done; when a step fails, the others are rolled back.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{AtFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::hard_links::{LARGEST_IN_PLACE, old_bytes};
use super::target::{CreatedFolder, WriteTarget, errno_of, rename_new, temporary_name};
use super::{OpenFile, WorkspaceError, is_same_file, metadata};

/// One change of one file.
#[derive(Debug)]
pub enum BatchStep {
    /// Writes this content. A new file may copy the mode and owner of another one.
    Write { target: WriteTarget, content: Vec<u8>, like: Option<OpenFile> },
    /// Removes the file.
    Remove(WriteTarget),
    /// Renames the file.
    Rename { from: WriteTarget, to: WriteTarget },
}

/// The result of one step of a batch that succeeded.
#[derive(Debug, Default)]
pub struct StepResult {
    /// The file as it is now; `None` when it was removed.
    pub stat: Option<Stat>,
    pub notes: Vec<String>,
}

/// Error of a batch: the step that failed, and the rollback of the others.
#[derive(Debug)]
pub struct BatchError {
    /// The step that failed.
    pub failed_step: usize,
    pub error: WorkspaceError,
    /// The result of the rollback for every step.
    pub rollbacks: Vec<StepRollback>,
}

/// The result of the rollback for one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepRollback {
    /// The step was not applied.
    Untouched,
    /// The step was undone.
    Undone,
    /// The step could not be undone, for this reason.
    Failed(String),
}

/// A prepared step, with its new content in a temporary file in the target's folder.
struct PreparedStep {
    step: BatchStep,
    staged: Option<StagedFile>,
    undo: Option<StepUndo>,
    result: StepResult,
}

struct StagedFile {
    file: File,
    name: OsString,
    path: PathBuf,
}

/// The data to undo a step.
enum StepUndo {
    /// The old file is in the same folder, under this name.
    Exchanged(OsString),
    /// The old file has no name any more, but is still open.
    Replaced,
    Created,
    Overwritten(Vec<u8>),
    SetAside(OsString),
    Renamed,
}

/// Applies all steps, or none.
pub fn commit_batch(steps: Vec<BatchStep>) -> Result<Vec<StepResult>, BatchError> {
    let count = steps.len();
    let mut ready: Vec<PreparedStep> = steps
        .into_iter()
        .map(|step| PreparedStep { step, staged: None, undo: None, result: StepResult::default() })
        .collect();
    let broken = (0..count).find_map(|at| ready[at].prepare().err().map(|error| (at, error)));
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|at| ready[*at].order());
    let mut placed = Vec::new();
    let broken = broken.or_else(|| {
        order.into_iter().find_map(|at| {
            placed.push(at);
            ready[at].apply().err().map(|error| (at, error))
        })
    });
    let Some((at, error)) = broken else {
        let done = ready.iter_mut().map(PreparedStep::finish).collect();
        sync_folders(&ready);
        return Ok(done);
    };
    let mut rollbacks = vec![StepRollback::Untouched; count];
    for at in placed.into_iter().rev() {
        rollbacks[at] = ready[at].roll_back();
    }
    for (step, rollback) in ready.iter().zip(&rollbacks).rev() {
        // The leftovers of a step that could not be undone are the only copy of the old file.
        if !matches!(rollback, StepRollback::Failed(_)) {
            step.remove_leftovers();
        }
    }
    Err(BatchError { failed_step: at, error, rollbacks })
}

/// Drops steps that were not started, and removes the folders that were created for them.
pub fn abandon_batch(steps: &[BatchStep]) {
    for step in steps.iter().rev() {
        step.target().created_folders.iter().rev().for_each(CreatedFolder::remove);
    }
}

/// Syncs every folder once. Some file systems cannot do that; the content itself is safe by then.
fn sync_folders(ready: &[PreparedStep]) {
    let mut synced = BTreeSet::new();
    for PreparedStep { step, .. } in ready {
        let left = match step {
            BatchStep::Rename { from, .. } => Some(&from.folder),
            BatchStep::Write { .. } | BatchStep::Remove(_) => None,
        };
        for folder in std::iter::once(&step.target().folder).chain(left) {
            let stat = rustix::fs::fstat(folder);
            if stat.is_ok_and(|stat| synced.insert((stat.st_dev, stat.st_ino))) {
                rustix::fs::fsync(folder).ok();
            }
        }
    }
}

impl BatchStep {
    /// The file that the step changes.
    fn target(&self) -> &WriteTarget {
        match self {
            Self::Write { target, .. } | Self::Remove(target) => target,
            Self::Rename { to, .. } => to,
        }
    }
}

impl PreparedStep {
    /// The order of steps: those that are easiest to undo first, and removals last.
    fn order(&self) -> u8 {
        match &self.step {
            BatchStep::Write { target, .. } => match &target.existing {
                None => 0,
                Some(existing) if existing.stat.st_nlink < 2 => 1,
                Some(_) => 2,
            },
            BatchStep::Rename { .. } => 3,
            BatchStep::Remove(_) => 4,
        }
    }

    /// Writes the new content to a temporary file in the target's folder.
    fn prepare(&mut self) -> Result<(), WorkspaceError> {
        let BatchStep::Write { target, content, like } = &self.step else { return Ok(()) };
        if let Some(existing) = &target.existing
            && existing.stat.st_nlink > 1
        {
            let old = u64::try_from(existing.stat.st_size).unwrap_or(0);
            let size = old.max(content.len() as u64);
            let (path, links) = (target.path().to_owned(), existing.stat.st_nlink);
            let too_large = size > LARGEST_IN_PLACE;
            return if too_large {
                Err(WorkspaceError::ManyNames { path, links, size })
            } else {
                Ok(())
            };
        }
        let like = target.existing.as_ref().or(like.as_ref());
        let (file, temporary, notes) = target.write_temporary(content, like)?;
        self.staged = Some(StagedFile { file, name: temporary.name, path: temporary.path });
        self.result.notes = notes;
        Ok(())
    }

    /// Applies the step: one rename, or a write in place.
    fn apply(&mut self) -> Result<(), WorkspaceError> {
        let undo = match (&self.step, &self.staged) {
            (BatchStep::Write { target, .. }, Some(beside)) => match &target.existing {
                None => {
                    let folder = &target.folder;
                    rename_new((folder, &beside.name), (folder, &target.name))
                        .map(|()| StepUndo::Created)
                }
                Some(existing) => exchange_files(target, existing, &beside.name),
            }
            .map_err(|errno| target.error_from(errno))?,
            (BatchStep::Write { target, content, .. }, None) => {
                let Some(existing) = &target.existing else { return Ok(()) };
                let old =
                    old_bytes(existing).map_err(|error| target.error_from(errno_of(&error)))?;
                let replaced = target.overwrite(existing, content)?;
                self.result.notes.extend(replaced.notes);
                self.result.stat = Some(replaced.stat);
                StepUndo::Overwritten(old)
            }
            (BatchStep::Remove(target), _) => {
                let aside = temporary_name(&target.name, "pixir-old");
                rename_checked(target, &target.folder, &aside)
                    .map_err(|errno| target.error_from(errno))?;
                StepUndo::SetAside(aside)
            }
            (BatchStep::Rename { from, to }, _) => {
                rename_checked(from, &to.folder, &to.name).map_err(|errno| to.error_from(errno))?;
                StepUndo::Renamed
            }
        };
        self.undo = Some(undo);
        Ok(())
    }

    /// Finishes a step of a successful batch: removes the old file from the target's folder.
    fn finish(&mut self) -> StepResult {
        let target = self.step.target();
        match &self.undo {
            Some(StepUndo::Exchanged(name) | StepUndo::SetAside(name)) => {
                if rustix::fs::unlinkat(&target.folder, name, AtFlags::empty()).is_err() {
                    let left = target.path().with_file_name(name);
                    self.result
                        .notes
                        .push(format!("its old content was left as {}", left.display()));
                }
            }
            Some(
                StepUndo::Replaced
                | StepUndo::Created
                | StepUndo::Overwritten(_)
                | StepUndo::Renamed,
            )
            | None => {}
        }
        if let BatchStep::Rename { from, .. } = &self.step {
            self.result.stat = from.existing.as_ref().map(|existing| existing.stat);
        }
        if let Some(beside) = &self.staged {
            self.result.stat = rustix::fs::fstat(&beside.file).ok();
        }
        std::mem::take(&mut self.result)
    }

    fn roll_back(&mut self) -> StepRollback {
        let Some(undo) = self.undo.take() else { return StepRollback::Untouched };
        let Err(error) = self.try_undo(&undo) else { return StepRollback::Undone };
        let kept = match &undo {
            StepUndo::Exchanged(name) | StepUndo::SetAside(name) => {
                let path = self.step.target().path().with_file_name(name);
                format!("; its old content is in {}", path.display())
            }
            StepUndo::Replaced
            | StepUndo::Created
            | StepUndo::Overwritten(_)
            | StepUndo::Renamed => String::new(),
        };
        StepRollback::Failed(format!("{error}{kept}"))
    }

    fn try_undo(&self, undo: &StepUndo) -> Result<(), WorkspaceError> {
        let target = self.step.target();
        let explain = |errno| target.error_from(errno);
        let (folder, name) = (&target.folder, &target.name);
        match undo {
            // After the exchange the temporary is the new file, which is removed with the other leftovers.
            StepUndo::Exchanged(beside) => {
                // A file that another process has created under the name since is not removed.
                let own = self.staged.as_ref().and_then(|own| rustix::fs::fstat(&own.file).ok());
                if !own.is_some_and(|own| is_same_file(folder, name, &own)) {
                    return Err(explain(Errno::STALE));
                }
                rustix::fs::renameat_with(folder, beside, folder, name, RenameFlags::EXCHANGE)
                    .map_err(explain)
            }
            StepUndo::Replaced => restore_content(target),
            StepUndo::Created => {
                let own = self.staged.as_ref().and_then(|own| rustix::fs::fstat(&own.file).ok());
                if !own.is_some_and(|own| is_same_file(folder, name, &own)) {
                    return Err(explain(Errno::STALE));
                }
                rustix::fs::unlinkat(folder, name, AtFlags::empty()).map_err(explain)
            }
            StepUndo::Overwritten(old) => match &target.existing {
                Some(existing) => target.overwrite(existing, old).map(drop),
                None => Ok(()),
            },
            StepUndo::SetAside(aside) => {
                rename_new((folder, aside), (folder, name)).map_err(explain)
            }
            StepUndo::Renamed => match &self.step {
                BatchStep::Rename { from, .. } => {
                    rename_new((folder, name), (&from.folder, &from.name)).map_err(explain)
                }
                BatchStep::Write { .. } | BatchStep::Remove(_) => Ok(()),
            },
        }
    }

    /// Removes the files and folders that a failed step has created.
    fn remove_leftovers(&self) {
        let target = self.step.target();
        if let Some(beside) = &self.staged {
            rustix::fs::unlinkat(&target.folder, &beside.name, AtFlags::empty()).ok();
            tracing::debug!(left = %beside.path.display(), "removed a leftover");
        }
        target.created_folders.iter().rev().for_each(CreatedFolder::remove);
    }
}

/// Restores the old file from its open descriptor.
fn restore_content(target: &WriteTarget) -> Result<(), WorkspaceError> {
    let explain = |errno| target.error_from(errno);
    let Some(existing) = &target.existing else { return Ok(()) };
    let (mut file, temporary) = target.create_temporary(0o600).map_err(explain)?;
    let mut copy = || {
        let mut old = existing.file.try_clone()?;
        std::io::Seek::rewind(&mut old)?;
        std::io::copy(&mut old, &mut file)?;
        metadata::copy_metadata(existing, &file)?;
        file.sync_all()?;
        let folder = &target.folder;
        Ok(rustix::fs::renameat(folder, &temporary.name, folder, &target.name)?)
    };
    let copied: std::io::Result<()> = copy();
    copied.map_err(|error| temporary.remove_after_failure(explain(errno_of(&error))))
}

/// Exchanges the new file and the old one, which gets the name of the temporary.
fn exchange_files(
    target: &WriteTarget,
    existing: &OpenFile,
    beside: &OsStr,
) -> Result<StepUndo, Errno> {
    let (folder, name) = (&target.folder, &target.name);
    if !is_same_file(folder, name, &existing.stat) {
        return Err(Errno::STALE);
    }
    let swap = || rustix::fs::renameat_with(folder, beside, folder, name, RenameFlags::EXCHANGE);
    match swap() {
        Ok(()) => {}
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            rustix::fs::renameat(folder, beside, folder, name)?;
            return Ok(StepUndo::Replaced);
        }
        Err(errno) => return Err(errno),
    }
    // Another process may have replaced the file just before the exchange; its file is restored.
    if !is_same_file(folder, beside, &existing.stat) {
        swap()?;
        return Err(Errno::STALE);
    }
    Ok(StepUndo::Exchanged(beside.to_owned()))
}

/// Renames a file, unless another file has replaced the one that was opened.
fn rename_checked(target: &WriteTarget, folder: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    let Some(existing) = &target.existing else { return Err(Errno::NOENT) };
    if !is_same_file(&target.folder, &target.name, &existing.stat) {
        return Err(Errno::STALE);
    }
    rename_new((&target.folder, &target.name), (folder, name))?;
    if !is_same_file(folder, name, &existing.stat) {
        rename_new((folder, name), (&target.folder, &target.name))?;
        return Err(Errno::STALE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::super::Workspace;
    use super::*;

    /// The case of file systems that cannot exchange two names.
    #[test]
    fn what_cannot_be_put_back_is_kept_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "old").unwrap();
        let workspace = Workspace::open(folder.path()).unwrap();
        let step = BatchStep::Remove(workspace.open_target_no_follow(Path::new("a")).unwrap());
        let mut ready =
            PreparedStep { step, staged: None, undo: None, result: StepResult::default() };
        ready.apply().unwrap();
        // Another process takes the name before it can be restored.
        fs::write(&path, "theirs").unwrap();
        let StepRollback::Failed(reason) = ready.roll_back() else { panic!("it was put back") };
        let kept = reason.rsplit(' ').next().unwrap();
        assert_eq!(fs::read_to_string(folder.path().join(kept)).unwrap(), "old", "{reason}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
    }

    #[test]
    fn an_old_file_without_a_name_is_written_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o751)).unwrap();
        let workspace = Workspace::open(folder.path()).unwrap();
        let target = workspace.open_target(Path::new("a")).unwrap();
        let step = BatchStep::Write { target, content: b"new".into(), like: None };
        let mut ready =
            PreparedStep { step, staged: None, undo: None, result: StepResult::default() };
        ready.prepare().unwrap();
        fs::rename(folder.path().join(&ready.staged.as_ref().unwrap().name), &path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        ready.undo = Some(StepUndo::Replaced);
        assert_eq!(ready.roll_back(), StepRollback::Undone);
        ready.remove_leftovers();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o751);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
