//! Write target: a file to be written, with its open folder, and the replacement of its content.
//!
//! A file with one name is replaced by a synced temporary and a rename, so a reader sees the old
//! or the new content and a crash loses neither. For a file with several names see `hard_links`.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::{
    OpenFile, Workspace, WorkspaceError, irregular_kind, is_same_file, metadata, open_at, or_root,
    os_string, refuse_protected,
};

/// The maximum length of a name's part in the name of its temporary, in bytes.
const LONGEST_NAME_PART: usize = 200;

/// A file that may be written: its folder is open, and so is the file if it exists.
#[derive(Debug)]
pub struct WriteTarget {
    pub(super) folder: OwnedFd,
    pub(super) name: OsString,
    path: PathBuf,
    pub(super) existing: Option<OpenFile>,
    /// The folders that were created for the file, the outermost first.
    pub(super) created_folders: Vec<CreatedFolder>,
}

/// A folder that was created for a target.
#[derive(Debug)]
pub(super) struct CreatedFolder {
    above: OwnedFd,
    name: OsString,
}

impl CreatedFolder {
    /// Removes the folder, unless it has entries meanwhile.
    pub(super) fn remove(&self) {
        rustix::fs::unlinkat(&self.above, &self.name, AtFlags::REMOVEDIR).ok();
    }
}

/// The result of replacing a file.
#[derive(Debug)]
pub struct ReplacedFile {
    pub stat: Stat,
    /// Notes about lost metadata and files that were left behind.
    pub notes: Vec<String>,
}

impl Workspace {
    /// Opens the target of a write to `path`, and creates missing folders.
    pub fn open_target(&self, path: &Path) -> Result<WriteTarget, WorkspaceError> {
        if let Some(other) = self.extra_root_for(path) {
            self.refuse_unbounded_extra_root(path)?;
            return Ok(other.open_target(path)?.named_in(other));
        }
        let relative = self.relative(path)?;
        refuse_protected(relative, path)?;
        refuse_folder_name(path)?;
        // Checked before a folder is created, and again with the resolved path.
        self.refuse_unbounded(&self.resolve(path), path)?;
        match self.open_file(path) {
            Ok(existing) => self.existing_target(existing),
            Err(WorkspaceError::Missing { .. }) => self.new_target(relative),
            Err(error) => Err(error),
        }
    }

    /// Opens a file that is to be removed or renamed; a link is refused, because the change would affect the link.
    pub fn open_target_no_follow(&self, path: &Path) -> Result<WriteTarget, WorkspaceError> {
        if let Some(other) = self.extra_root_for(path) {
            self.refuse_unbounded_extra_root(path)?;
            return Ok(other.open_target_no_follow(path)?.named_in(other));
        }
        let relative = self.relative(path)?;
        refuse_protected(relative, path)?;
        refuse_folder_name(path)?;
        let missing = || WorkspaceError::Missing { path: path.to_owned() };
        let name = relative.file_name().ok_or_else(missing)?;
        let parent = or_root(relative.parent().unwrap_or(Path::new("")));
        let folder = self.open_beneath(parent, OFlags::PATH | OFlags::DIRECTORY)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
        let descriptor = open_at(&folder, Path::new(name), flags, Mode::empty()).map_err(
            |errno| match errno {
                Errno::LOOP => WorkspaceError::NotRegular { path: path.to_owned(), what: "a link" },
                errno => WorkspaceError::from_errno(errno, path),
            },
        )?;
        self.existing_target(self.check_opened(descriptor, path)?)
    }

    /// Whether a path's last part is a link.
    pub fn is_link(&self, path: &Path) -> bool {
        if let Some(other) = self.extra_root_for(path) {
            return other.is_link(path);
        }
        let stat_path = || {
            let relative = self.relative(path).ok()?;
            let parent = or_root(relative.parent()?);
            let folder = self.open_beneath(parent, OFlags::PATH | OFlags::DIRECTORY).ok()?;
            let name = relative.file_name()?;
            rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).ok()
        };
        stat_path().is_some_and(|stat| irregular_kind(&stat) == Some("a link"))
    }

    fn existing_target(&self, existing: OpenFile) -> Result<WriteTarget, WorkspaceError> {
        let path = existing.path.clone();
        let changed = || WorkspaceError::Changed { path: path.clone() };
        let name = path.file_name().ok_or_else(changed)?.to_owned();
        let parent = or_root(path.parent().unwrap_or(Path::new("")));
        let folder = self.open_beneath(parent, OFlags::RDONLY | OFlags::DIRECTORY)?;
        self.refuse_protected_folder(&folder, &path)?;
        refuse_protected(&path, &path)?;
        self.refuse_unbounded(&path, &path)?;
        if !is_same_file(&folder, &name, &existing.stat) {
            return Err(changed());
        }
        self.refuse_alias_of_state(&existing.stat, &path)?;
        rustix::fs::accessat(&folder, &name, Access::WRITE_OK, AtFlags::EACCESS)
            .map_err(|errno| write_error(errno, &path))?;
        Ok(WriteTarget {
            folder,
            name,
            path,
            existing: Some(existing),
            created_folders: Vec::new(),
        })
    }

    fn new_target(&self, relative: &Path) -> Result<WriteTarget, WorkspaceError> {
        let Some(name) = relative.file_name() else {
            return Err(WorkspaceError::Missing { path: relative.to_owned() });
        };
        let parent = or_root(relative.parent().unwrap_or(Path::new("")));
        let mut made = Vec::new();
        let folder = self.ensure_folder(parent, &mut made)?;
        if let Ok(stat) = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            let path = relative.to_owned();
            // An entry without a target is a dangling link, and a write does not replace the link itself.
            return Err(match irregular_kind(&stat) {
                Some(what) => WorkspaceError::NotRegular { path, what },
                None => WorkspaceError::Changed { path },
            });
        }
        let path = self.real_path(&folder, relative)?.join(name);
        self.refuse_unbounded(&path, relative)?;
        Ok(WriteTarget {
            folder,
            name: name.to_owned(),
            path,
            existing: None,
            created_folders: made,
        })
    }

    /// Opens a folder, and creates missing components one after the other.
    fn ensure_folder(
        &self,
        relative: &Path,
        made: &mut Vec<CreatedFolder>,
    ) -> Result<OwnedFd, WorkspaceError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let missing = match self.open_beneath(relative, flags) {
            Ok(folder) => {
                self.refuse_protected_folder(&folder, relative)?;
                return Ok(folder);
            }
            Err(error @ WorkspaceError::Missing { .. }) => error,
            Err(error) => return Err(error),
        };
        let (Some(parent), Some(name)) = (relative.parent(), relative.file_name()) else {
            return Err(missing);
        };
        let above = self.ensure_folder(or_root(parent), made)?;
        let is_made = match rustix::fs::mkdirat(&above, name, Mode::from_raw_mode(0o777)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(write_error(errno, relative)),
        };
        let folder = open_at(&above, Path::new(name), flags | OFlags::NOFOLLOW, Mode::empty())
            .map_err(|errno| WorkspaceError::from_errno(errno, relative))?;
        self.refuse_protected_folder(&folder, relative)?;
        if is_made {
            made.push(CreatedFolder { above, name: name.to_owned() });
        }
        Ok(folder)
    }

    fn refuse_protected_folder(&self, folder: &OwnedFd, path: &Path) -> Result<(), WorkspaceError> {
        refuse_protected(&self.real_path(folder, path)?, path)
    }
}

impl WriteTarget {
    /// The resolved path, relative to the root.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets the path in messages; the file that is written does not depend on it.
    pub(super) fn set_path(&mut self, path: PathBuf) {
        self.path = path;
    }

    /// The file that would be replaced.
    pub fn existing(&mut self) -> Option<&mut OpenFile> {
        self.existing.as_mut()
    }

    /// The `stat` of the existing file.
    pub fn stat(&self) -> Option<Stat> {
        self.existing.as_ref().map(|existing| existing.stat)
    }

    /// Replaces the content.
    pub fn replace(self, content: &[u8]) -> Result<ReplacedFile, WorkspaceError> {
        let replaced = match &self.existing {
            Some(existing) if existing.stat.st_nlink > 1 => self.overwrite(existing, content),
            _ => self.replace_by_rename(content),
        };
        if replaced.is_err() {
            self.created_folders.iter().rev().for_each(CreatedFolder::remove);
        }
        replaced
    }

    /// Opens the file by its name in the folder.
    pub(super) fn open_file(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        open_at(&self.folder, Path::new(&self.name), flags, Mode::empty())
    }

    pub(super) fn error_from(&self, errno: Errno) -> WorkspaceError {
        match errno {
            Errno::EXIST | Errno::STALE => WorkspaceError::Changed { path: self.path.clone() },
            errno => write_error(errno, &self.path),
        }
    }

    /// Writes a temporary in the same folder and renames it into place.
    fn replace_by_rename(&self, content: &[u8]) -> Result<ReplacedFile, WorkspaceError> {
        let (file, temporary, notes) = self.write_temporary(content, self.existing.as_ref())?;
        let (folder, name) = (&self.folder, &self.name);
        let placed = match &self.existing {
            Some(existing) if !is_same_file(folder, name, &existing.stat) => Err(Errno::STALE),
            Some(_) => rustix::fs::renameat(folder, &temporary.name, folder, name),
            None => rename_new((folder, &temporary.name), (folder, name)),
        };
        let stat = placed.and_then(|()| {
            // Some file systems cannot sync a folder; the content itself is safe by then.
            rustix::fs::fsync(folder).ok();
            rustix::fs::fstat(&file)
        });
        let stat = stat.map_err(|errno| temporary.remove_after_failure(self.error_from(errno)))?;
        Ok(ReplacedFile { stat, notes })
    }

    /// Writes and syncs the content to a temporary in the same folder, with the metadata of `like`; returns notes
    /// about metadata that could not be copied. Without `like` the umask decides the mode.
    pub(super) fn write_temporary(
        &self,
        content: &[u8],
        like: Option<&OpenFile>,
    ) -> Result<(File, TemporaryFile<'_>, Vec<String>), WorkspaceError> {
        let mode = if like.is_some() { 0o600 } else { 0o666 };
        let (mut file, temporary) =
            self.create_temporary(mode).map_err(|errno| self.error_from(errno))?;
        let mut write_and_sync = || {
            file.write_all(content)?;
            let notes = like.map(|like| metadata::copy_metadata(like, &file)).transpose()?;
            file.sync_all()?;
            Ok(notes.unwrap_or_default())
        };
        let written: io::Result<Vec<String>> = write_and_sync();
        match written {
            Ok(notes) => Ok((file, temporary, notes)),
            Err(error) => Err(temporary.remove_after_failure(self.error_from(errno_of(&error)))),
        }
    }

    /// Writes a synced copy of the new content to the same folder, for the time in which the file is
    /// neither old nor new.
    pub(super) fn write_spare_copy(
        &self,
        content: &[u8],
    ) -> Result<TemporaryFile<'_>, WorkspaceError> {
        let (mut file, temporary) =
            self.create_temporary(0o600).map_err(|errno| self.error_from(errno))?;
        if let Err(error) = file.write_all(content).and_then(|()| file.sync_all()) {
            return Err(temporary.remove_after_failure(self.error_from(errno_of(&error))));
        }
        rustix::fs::fsync(&self.folder).ok();
        Ok(temporary)
    }

    pub(super) fn create_temporary(&self, mode: u32) -> Result<(File, TemporaryFile<'_>), Errno> {
        let name = temporary_name(&self.name, "pixir-new");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let descriptor = open_at(&self.folder, Path::new(&name), flags, Mode::from_raw_mode(mode))?;
        let path = self.path.with_file_name(&name);
        Ok((File::from(descriptor), TemporaryFile { folder: &self.folder, name, path }))
    }
}

/// A temporary file in the folder of the target.
pub(super) struct TemporaryFile<'t> {
    folder: &'t OwnedFd,
    pub name: OsString,
    pub path: PathBuf,
}

impl TemporaryFile<'_> {
    pub(super) fn remove(&self) -> Result<(), Errno> {
        rustix::fs::unlinkat(self.folder, &self.name, AtFlags::empty())
    }

    /// Removes the temporary after a failure; if that fails too, as in an append-only folder, the error reports it.
    pub(super) fn remove_after_failure(&self, error: WorkspaceError) -> WorkspaceError {
        match (self.remove(), error) {
            (Err(errno), WorkspaceError::Write { path, source }) if errno != Errno::NOENT => {
                WorkspaceError::LeftBehind { path, left: self.path.clone(), source }
            }
            (_, error) => error,
        }
    }
}

/// A random name for a temporary file of the file with this name.
pub(super) fn temporary_name(name: &OsStr, ending: &str) -> OsString {
    let shown = &name.as_bytes()[..name.len().min(LONGEST_NAME_PART)];
    let random = format!(".{:016x}.{ending}", fastrand::u64(..));
    os_string(&[b".", shown, random.as_bytes()].concat())
}

/// Renames without replacing: a file that appeared meanwhile stays.
pub(super) fn rename_new(
    (from, old): (&OwnedFd, &OsStr),
    (to, new): (&OwnedFd, &OsStr),
) -> Result<(), Errno> {
    match rustix::fs::renameat_with(from, old, to, new, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::linkat(from, old, to, new, AtFlags::empty())?;
            rustix::fs::unlinkat(from, old, AtFlags::empty())
        }
        other => other,
    }
}

/// Refuses a path whose end (`/` or `/.`) denotes a folder.
pub(super) fn refuse_folder_name(path: &Path) -> Result<(), WorkspaceError> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.ends_with(b"/") || bytes.ends_with(b"/.") {
        return Err(WorkspaceError::NotRegular { path: path.to_owned(), what: "a folder" });
    }
    Ok(())
}

pub(super) fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn write_error(errno: Errno, path: &Path) -> WorkspaceError {
    WorkspaceError::Write { path: path.to_owned(), source: errno.into() }
}
