//! A write target: the folder held open, the name in it, and how its content is replaced.
//!
//! A file with one link is replaced by a synced temporary and a rename, so a reader sees the old
//! or the new content and a crash loses neither. A file with several links is written in place,
//! because a rename would part it from its other names.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, Gid, Mode, OFlags, RenameFlags, Stat, Uid, XattrFlags};
use rustix::io::Errno;

use super::{
    OpenFile, Workspace, WorkspaceError, irregular, is_still, open_at, or_root, refuse_protected,
};

/// Bits that survive a rewrite; a changed program does not keep the right to act for its owner.
const KEPT_MODE: u32 = 0o1777;

/// Longest list of attributes, and longest attribute, that is carried over.
const ATTRIBUTE_LIMIT: usize = 64 * 1024;

/// A file that may be written: it exists and is open, or its folder does.
#[derive(Debug)]
pub struct Target {
    folder: OwnedFd,
    name: OsString,
    path: PathBuf,
    existing: Option<OpenFile>,
}

impl Workspace {
    /// Opens what a write to `path` would replace, making missing folders.
    pub fn target(&self, path: &Path) -> Result<Target, WorkspaceError> {
        let relative = self.relative(path)?;
        refuse_protected(relative, path)?;
        match self.open_file(path) {
            Ok(existing) => self.existing_target(existing),
            Err(WorkspaceError::Missing { .. }) => self.new_target(relative),
            Err(error) => Err(error),
        }
    }

    fn existing_target(&self, existing: OpenFile) -> Result<Target, WorkspaceError> {
        let path = existing.path.clone();
        let changed = || WorkspaceError::Changed { path: path.clone() };
        let name = path.file_name().ok_or_else(changed)?.to_owned();
        let parent = or_root(path.parent().unwrap_or(Path::new("")));
        let folder = self.open_beneath(parent, OFlags::RDONLY | OFlags::DIRECTORY)?;
        self.refuse_protected_folder(&folder, &path)?;
        if !is_still(&folder, &name, &existing.stat) {
            return Err(changed());
        }
        rustix::fs::accessat(&folder, &name, Access::WRITE_OK, AtFlags::EACCESS)
            .map_err(|errno| write_error(errno, &path))?;
        Ok(Target { folder, name, path, existing: Some(existing) })
    }

    fn new_target(&self, relative: &Path) -> Result<Target, WorkspaceError> {
        let Some(name) = relative.file_name() else {
            return Err(WorkspaceError::Missing { path: relative.to_owned() });
        };
        let parent = or_root(relative.parent().unwrap_or(Path::new("")));
        let folder = self.ensure_folder(parent)?;
        if let Ok(stat) = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            let path = relative.to_owned();
            // A link to nowhere: replacing the link itself is not what a write means.
            return Err(match irregular(&stat) {
                Some(what) => WorkspaceError::NotRegular { path, what },
                None => WorkspaceError::Changed { path },
            });
        }
        let path = self.real_path(&folder, relative)?.join(name);
        Ok(Target { folder, name: name.to_owned(), path, existing: None })
    }

    /// Opens a folder, making what is missing of it, one component after the other.
    fn ensure_folder(&self, relative: &Path) -> Result<OwnedFd, WorkspaceError> {
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
        let above = self.ensure_folder(or_root(parent))?;
        match rustix::fs::mkdirat(&above, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(write_error(errno, relative)),
        }
        let folder = open_at(&above, Path::new(name), flags | OFlags::NOFOLLOW, Mode::empty())
            .map_err(|errno| WorkspaceError::from_errno(errno, relative))?;
        self.refuse_protected_folder(&folder, relative)?;
        Ok(folder)
    }

    fn refuse_protected_folder(&self, folder: &OwnedFd, path: &Path) -> Result<(), WorkspaceError> {
        refuse_protected(&self.real_path(folder, path)?, path)
    }
}

impl Target {
    /// Where it really is, relative to the root.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file that would be replaced.
    pub fn existing(&mut self) -> Option<&mut OpenFile> {
        self.existing.as_mut()
    }

    /// Replaces the content and answers with what the file is now.
    pub fn replace(self, content: &[u8]) -> Result<Stat, WorkspaceError> {
        let replaced = match &self.existing {
            Some(existing) if existing.stat.st_nlink > 1 => self.overwrite(existing, content),
            _ => self.swap(content),
        };
        replaced.map_err(|errno| match errno {
            Errno::EXIST | Errno::STALE => WorkspaceError::Changed { path: self.path.clone() },
            errno => write_error(errno, &self.path),
        })
    }

    /// Writes into the same inode, so that its other names keep it.
    fn overwrite(&self, existing: &OpenFile, content: &[u8]) -> Result<Stat, Errno> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let descriptor = open_at(&self.folder, Path::new(&self.name), flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&descriptor)?;
        if (stat.st_dev, stat.st_ino) != (existing.stat.st_dev, existing.stat.st_ino) {
            return Err(Errno::STALE);
        }
        let file = File::from(descriptor);
        file.write_all_at(content, 0).map_err(|error| errno_of(&error))?;
        file.set_len(content.len() as u64).map_err(|error| errno_of(&error))?;
        file.sync_all().map_err(|error| errno_of(&error))?;
        rustix::fs::fstat(&file)
    }

    /// Writes a temporary beside the file and renames it into place.
    fn swap(&self, content: &[u8]) -> Result<Stat, Errno> {
        let temporary = OsString::from(format!(".{:016x}.pixir-new", fastrand::u64(..)));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        // A new file gets what the umask leaves; an existing one gets its own mode below.
        let mode = if self.existing.is_some() { 0o600 } else { 0o666 };
        let descriptor =
            open_at(&self.folder, Path::new(&temporary), flags, Mode::from_raw_mode(mode))?;
        let swapped = self.fill_and_rename(File::from(descriptor), &temporary, content);
        if swapped.is_err() {
            rustix::fs::unlinkat(&self.folder, &temporary, AtFlags::empty()).ok();
        }
        swapped
    }

    fn fill_and_rename(
        &self,
        mut file: File,
        temporary: &OsStr,
        content: &[u8],
    ) -> Result<Stat, Errno> {
        file.write_all(content).map_err(|error| errno_of(&error))?;
        if let Some(existing) = &self.existing {
            carry_over(existing, &file)?;
        }
        file.sync_all().map_err(|error| errno_of(&error))?;
        match &self.existing {
            Some(existing) if !is_still(&self.folder, &self.name, &existing.stat) => {
                return Err(Errno::STALE);
            }
            Some(_) => rustix::fs::renameat(&self.folder, temporary, &self.folder, &self.name)?,
            None => self.rename_to_new_name(temporary)?,
        }
        // Some file systems cannot sync a folder; the content itself is safe by then.
        rustix::fs::fsync(&self.folder).ok();
        rustix::fs::fstat(&file)
    }

    /// A file that appeared meanwhile is somebody's work and stays.
    fn rename_to_new_name(&self, temporary: &OsStr) -> Result<(), Errno> {
        let (folder, name) = (&self.folder, &self.name);
        match rustix::fs::renameat_with(folder, temporary, folder, name, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS) => {
                rustix::fs::linkat(folder, temporary, folder, name, AtFlags::empty())?;
                rustix::fs::unlinkat(folder, temporary, AtFlags::empty())
            }
            other => other,
        }
    }
}

/// Gives the new file the owner, attributes and mode of the old one. Only the mode must succeed.
fn carry_over(existing: &OpenFile, new: &File) -> Result<(), Errno> {
    let old = &existing.stat;
    let now = rustix::fs::fstat(new)?;
    if (old.st_uid, old.st_gid) != (now.st_uid, now.st_gid) {
        let (owner, group) = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
        if rustix::fs::fchown(new, Some(owner), Some(group)).is_err() {
            rustix::fs::fchown(new, None, Some(group)).ok();
        }
    }
    copy_attributes(&existing.file, new);
    rustix::fs::fchmod(new, Mode::from_raw_mode(old.st_mode & KEPT_MODE))
}

fn copy_attributes(old: &impl AsFd, new: &impl AsFd) {
    let mut names = vec![0; ATTRIBUTE_LIMIT];
    let Ok(length) = rustix::fs::flistxattr(old, &mut names[..]) else { return };
    let mut value = vec![0; ATTRIBUTE_LIMIT];
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        // Rights of a program do not pass to changed content.
        if name == b"security.capability" {
            continue;
        }
        if let Ok(length) = rustix::fs::fgetxattr(old, name, &mut value[..]) {
            rustix::fs::fsetxattr(new, name, &value[..length], XattrFlags::empty()).ok();
        }
    }
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn write_error(errno: Errno, path: &Path) -> WorkspaceError {
    WorkspaceError::Write { path: path.to_owned(), source: errno.into() }
}
