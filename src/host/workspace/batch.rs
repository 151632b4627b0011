//! Batch of file changes that are made together, or not at all.
//!
//! Everything that needs space or time comes first, in new files beside the old ones. Then come renames,
//! one per file, so each file is old or new whenever the process dies. An old file keeps its inode until
//! all steps are done; when a step fails, the others are rolled back.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{AtFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::links::{LARGEST_IN_PLACE, old_bytes};
use super::target::{MadeFolder, Target, errno_of, name_beside, rename_new};
use super::{OpenFile, WorkspaceError, carry, is_still};

/// One change of one file.
#[derive(Debug)]
pub enum Step {
    /// Writes this content. A new file may take over the mode and owner of another.
    Put { target: Target, content: Vec<u8>, like: Option<OpenFile> },
    /// Removes the file.
    Remove(Target),
    /// Renames the file.
    Rename { from: Target, to: Target },
}

/// The result of one step of a batch that succeeded.
#[derive(Debug, Default)]
pub struct Done {
    /// The file as it is now; `None` when it was removed.
    pub stat: Option<Stat>,
    pub notes: Vec<String>,
}

/// Error of a batch: the step that failed, and the rollback of the others.
#[derive(Debug)]
pub struct Broken {
    /// The step that failed.
    pub at: usize,
    pub error: WorkspaceError,
    /// The result of the rollback for every step.
    pub fates: Vec<Fate>,
}

/// The result of the rollback for one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// The step was not made.
    Untouched,
    /// The step was undone.
    PutBack,
    /// The step could not be undone, for this reason.
    Left(String),
}

/// A prepared step, with its new content in a file beside the target.
struct Ready {
    step: Step,
    beside: Option<Beside>,
    undo: Option<Undo>,
    done: Done,
}

struct Beside {
    file: File,
    name: OsString,
    path: PathBuf,
}

/// How a step is undone.
enum Undo {
    /// The old file is beside the new one, under this name.
    Exchanged(OsString),
    /// The old file has no name any more, but is still open.
    Replaced,
    Created,
    Overwritten(Vec<u8>),
    Aside(OsString),
    Renamed,
}

/// Makes all steps, or none.
pub fn commit(steps: Vec<Step>) -> Result<Vec<Done>, Broken> {
    let count = steps.len();
    let mut ready: Vec<Ready> = steps
        .into_iter()
        .map(|step| Ready { step, beside: None, undo: None, done: Done::default() })
        .collect();
    let broken = (0..count).find_map(|at| ready[at].prepare().err().map(|error| (at, error)));
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|at| ready[*at].rank());
    let mut placed = Vec::new();
    let broken = broken.or_else(|| {
        order.into_iter().find_map(|at| {
            placed.push(at);
            ready[at].place().err().map(|error| (at, error))
        })
    });
    let Some((at, error)) = broken else {
        let done = ready.iter_mut().map(Ready::settle).collect();
        sync_folders(&ready);
        return Ok(done);
    };
    let mut fates = vec![Fate::Untouched; count];
    for at in placed.into_iter().rev() {
        fates[at] = ready[at].take_back();
    }
    for (step, fate) in ready.iter().zip(&fates).rev() {
        // The leftovers of a step that was not undone are the only copy of the old file.
        if !matches!(fate, Fate::Left(_)) {
            step.clear_away();
        }
    }
    Err(Broken { at, error, fates })
}

/// Drops steps that were not started, and removes the folders that were made for them.
pub fn abandon(steps: &[Step]) {
    for step in steps.iter().rev() {
        step.target().made.iter().rev().for_each(MadeFolder::remove);
    }
}

/// Syncs every folder once. Some file systems cannot do that; the content itself is safe by then.
fn sync_folders(ready: &[Ready]) {
    let mut synced = BTreeSet::new();
    for Ready { step, .. } in ready {
        let left = match step {
            Step::Rename { from, .. } => Some(&from.folder),
            Step::Put { .. } | Step::Remove(_) => None,
        };
        for folder in std::iter::once(&step.target().folder).chain(left) {
            let stat = rustix::fs::fstat(folder);
            if stat.is_ok_and(|stat| synced.insert((stat.st_dev, stat.st_ino))) {
                rustix::fs::fsync(folder).ok();
            }
        }
    }
}

impl Step {
    /// The file that the step is about.
    fn target(&self) -> &Target {
        match self {
            Self::Put { target, .. } | Self::Remove(target) => target,
            Self::Rename { to, .. } => to,
        }
    }
}

impl Ready {
    /// The order of steps: those that are easiest to undo first, and removals last.
    fn rank(&self) -> u8 {
        match &self.step {
            Step::Put { target, .. } => match &target.existing {
                None => 0,
                Some(existing) if existing.stat.st_nlink < 2 => 1,
                Some(_) => 2,
            },
            Step::Rename { .. } => 3,
            Step::Remove(_) => 4,
        }
    }

    /// Writes the new content beside the file.
    fn prepare(&mut self) -> Result<(), WorkspaceError> {
        let Step::Put { target, content, like } = &self.step else { return Ok(()) };
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
        let (file, temporary, notes) = target.write_beside(content, like)?;
        self.beside = Some(Beside { file, name: temporary.name, path: temporary.path });
        self.done.notes = notes;
        Ok(())
    }

    /// Makes the step: one rename, or a write in place.
    fn place(&mut self) -> Result<(), WorkspaceError> {
        let undo = match (&self.step, &self.beside) {
            (Step::Put { target, .. }, Some(beside)) => match &target.existing {
                None => {
                    let folder = &target.folder;
                    rename_new((folder, &beside.name), (folder, &target.name))
                        .map(|()| Undo::Created)
                }
                Some(existing) => exchange(target, existing, &beside.name),
            }
            .map_err(|errno| target.explain(errno))?,
            (Step::Put { target, content, .. }, None) => {
                let Some(existing) = &target.existing else { return Ok(()) };
                let old = old_bytes(existing).map_err(|error| target.explain(errno_of(&error)))?;
                let replaced = target.overwrite(existing, content)?;
                self.done.notes.extend(replaced.notes);
                self.done.stat = Some(replaced.stat);
                Undo::Overwritten(old)
            }
            (Step::Remove(target), _) => {
                let aside = name_beside(&target.name, "pixir-old");
                move_itself(target, &target.folder, &aside)
                    .map_err(|errno| target.explain(errno))?;
                Undo::Aside(aside)
            }
            (Step::Rename { from, to }, _) => {
                move_itself(from, &to.folder, &to.name).map_err(|errno| to.explain(errno))?;
                Undo::Renamed
            }
        };
        self.undo = Some(undo);
        Ok(())
    }

    /// Finishes a step of a successful batch: removes the old file beside the target.
    fn settle(&mut self) -> Done {
        let target = self.step.target();
        match &self.undo {
            Some(Undo::Exchanged(name) | Undo::Aside(name)) => {
                if rustix::fs::unlinkat(&target.folder, name, AtFlags::empty()).is_err() {
                    let left = target.path().with_file_name(name);
                    self.done.notes.push(format!("its old content was left as {}", left.display()));
                }
            }
            Some(Undo::Replaced | Undo::Created | Undo::Overwritten(_) | Undo::Renamed) | None => {}
        }
        if let Step::Rename { from, .. } = &self.step {
            self.done.stat = from.existing.as_ref().map(|existing| existing.stat);
        }
        if let Some(beside) = &self.beside {
            self.done.stat = rustix::fs::fstat(&beside.file).ok();
        }
        std::mem::take(&mut self.done)
    }

    fn take_back(&mut self) -> Fate {
        let Some(undo) = self.undo.take() else { return Fate::Untouched };
        let Err(error) = self.undone(&undo) else { return Fate::PutBack };
        let kept = match &undo {
            Undo::Exchanged(name) | Undo::Aside(name) => {
                let path = self.step.target().path().with_file_name(name);
                format!("; its old content is in {}", path.display())
            }
            Undo::Replaced | Undo::Created | Undo::Overwritten(_) | Undo::Renamed => String::new(),
        };
        Fate::Left(format!("{error}{kept}"))
    }

    fn undone(&self, undo: &Undo) -> Result<(), WorkspaceError> {
        let target = self.step.target();
        let explain = |errno| target.explain(errno);
        let (folder, name) = (&target.folder, &target.name);
        match undo {
            // Afterwards the file beside the target is the new one, and is removed with the other leftovers.
            Undo::Exchanged(beside) => {
                // A file that another process has put there since is not removed.
                let own = self.beside.as_ref().and_then(|own| rustix::fs::fstat(&own.file).ok());
                if !own.is_some_and(|own| is_still(folder, name, &own)) {
                    return Err(explain(Errno::STALE));
                }
                rustix::fs::renameat_with(folder, beside, folder, name, RenameFlags::EXCHANGE)
                    .map_err(explain)
            }
            Undo::Replaced => write_back(target),
            Undo::Created => {
                let own = self.beside.as_ref().and_then(|own| rustix::fs::fstat(&own.file).ok());
                if !own.is_some_and(|own| is_still(folder, name, &own)) {
                    return Err(explain(Errno::STALE));
                }
                rustix::fs::unlinkat(folder, name, AtFlags::empty()).map_err(explain)
            }
            Undo::Overwritten(old) => match &target.existing {
                Some(existing) => target.overwrite(existing, old).map(drop),
                None => Ok(()),
            },
            Undo::Aside(aside) => rename_new((folder, aside), (folder, name)).map_err(explain),
            Undo::Renamed => match &self.step {
                Step::Rename { from, .. } => {
                    rename_new((folder, name), (&from.folder, &from.name)).map_err(explain)
                }
                Step::Put { .. } | Step::Remove(_) => Ok(()),
            },
        }
    }

    /// Removes the files and folders that a failed step has made.
    fn clear_away(&self) {
        let target = self.step.target();
        if let Some(beside) = &self.beside {
            rustix::fs::unlinkat(&target.folder, &beside.name, AtFlags::empty()).ok();
            tracing::debug!(left = %beside.path.display(), "cleared away");
        }
        target.made.iter().rev().for_each(MadeFolder::remove);
    }
}

/// Writes the old file again from its open descriptor.
fn write_back(target: &Target) -> Result<(), WorkspaceError> {
    let explain = |errno| target.explain(errno);
    let Some(existing) = &target.existing else { return Ok(()) };
    let (mut file, temporary) = target.temporary(0o600).map_err(explain)?;
    let mut copy = || {
        let mut old = existing.file.try_clone()?;
        std::io::Seek::rewind(&mut old)?;
        std::io::copy(&mut old, &mut file)?;
        carry::carry_over(existing, &file)?;
        file.sync_all()?;
        let folder = &target.folder;
        Ok(rustix::fs::renameat(folder, &temporary.name, folder, &target.name)?)
    };
    let copied: std::io::Result<()> = copy();
    copied.map_err(|error| temporary.give_up(explain(errno_of(&error))))
}

/// Exchanges the new file and the old one, which gets the name of the temporary.
fn exchange(target: &Target, existing: &OpenFile, beside: &OsStr) -> Result<Undo, Errno> {
    let (folder, name) = (&target.folder, &target.name);
    if !is_still(folder, name, &existing.stat) {
        return Err(Errno::STALE);
    }
    let swap = || rustix::fs::renameat_with(folder, beside, folder, name, RenameFlags::EXCHANGE);
    match swap() {
        Ok(()) => {}
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            rustix::fs::renameat(folder, beside, folder, name)?;
            return Ok(Undo::Replaced);
        }
        Err(errno) => return Err(errno),
    }
    // Another process may have replaced the file just before; its file is put back.
    if !is_still(folder, beside, &existing.stat) {
        swap()?;
        return Err(Errno::STALE);
    }
    Ok(Undo::Exchanged(beside.to_owned()))
}

/// Renames a file, unless it is not the file that was opened.
fn move_itself(target: &Target, folder: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    let Some(existing) = &target.existing else { return Err(Errno::NOENT) };
    if !is_still(&target.folder, &target.name, &existing.stat) {
        return Err(Errno::STALE);
    }
    rename_new((&target.folder, &target.name), (folder, name))?;
    if !is_still(folder, name, &existing.stat) {
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

    /// On file systems that cannot exchange two names.
    #[test]
    fn what_cannot_be_put_back_is_kept_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "old").unwrap();
        let workspace = Workspace::open(folder.path()).unwrap();
        let step = Step::Remove(workspace.target_itself(Path::new("a")).unwrap());
        let mut ready = Ready { step, beside: None, undo: None, done: Done::default() };
        ready.place().unwrap();
        // Another process takes the name before it can be restored.
        fs::write(&path, "theirs").unwrap();
        let Fate::Left(reason) = ready.take_back() else { panic!("it was put back") };
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
        let target = workspace.target(Path::new("a")).unwrap();
        let step = Step::Put { target, content: b"new".into(), like: None };
        let mut ready = Ready { step, beside: None, undo: None, done: Done::default() };
        ready.prepare().unwrap();
        fs::rename(folder.path().join(&ready.beside.as_ref().unwrap().name), &path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        ready.undo = Some(Undo::Replaced);
        assert_eq!(ready.take_back(), Fate::PutBack);
        ready.clear_away();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o751);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
