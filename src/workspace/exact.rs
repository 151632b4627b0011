//! What stands at exactly one place: opened from the root, through no link at all.
//!
//! A walk over the tree learns names first and opens them later. Here the kernel proves again, at
//! every single open, that the whole path is beneath the root and that no part of it has become a
//! link since its name was seen.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::{RENAME_RETRIES, Workspace, WorkspaceError, irregular};

/// Where a path leads.
#[derive(Debug)]
pub struct Place {
    /// Relative to the root, links resolved; empty for the root itself.
    pub path: PathBuf,
    pub(super) stat: Stat,
}

impl Place {
    /// Whether it is a folder.
    pub fn is_folder(&self) -> bool {
        FileType::from_raw_mode(self.stat.st_mode) == FileType::Directory
    }

    /// Names what it is when it is not a regular file.
    pub fn irregular(&self) -> Option<&'static str> {
        irregular(&self.stat)
    }
}

/// What is to be opened for reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    Folder,
    /// A regular file; anything else is refused and never blocks.
    File,
}

impl Workspace {
    /// Says where a path leads, links that stay inside included; opens nothing for reading.
    pub fn locate(&self, path: &Path) -> Result<Place, WorkspaceError> {
        if let Some(other) = self.elsewhere(path) {
            return Ok(other.locate(path)?.beneath(other));
        }
        let descriptor = self.open_beneath(self.relative(path)?, OFlags::PATH)?;
        let stat = rustix::fs::fstat(&descriptor)
            .map_err(|errno| WorkspaceError::from_errno(errno, path))?;
        Ok(Place { path: self.real_path(&descriptor, path)?, stat })
    }

    /// Opens what stands at this place, relative to the root, for reading.
    pub fn open_exact(&self, path: &[u8], wanted: Wanted) -> Result<OwnedFd, Errno> {
        if let Some((other, root)) = self.told(path) {
            let inside = path.get(root + 1..).unwrap_or_default();
            return other.open_exact(inside, wanted);
        }
        let path = if path.is_empty() { b"." } else { path };
        if wanted == Wanted::File && self.is_hidden(Path::new(OsStr::from_bytes(path))) {
            return Err(Errno::ACCESS);
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let flags = if wanted == Wanted::Folder { flags | OFlags::DIRECTORY } else { flags };
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let mut last = Errno::AGAIN;
        for _ in 0..RENAME_RETRIES {
            let opened = rustix::fs::openat2(&self.0.folder, path, flags, Mode::empty(), resolve);
            match opened {
                Err(errno @ (Errno::AGAIN | Errno::INTR)) => last = errno,
                Ok(descriptor) if wanted == Wanted::File => {
                    let mode = rustix::fs::fstat(&descriptor)?.st_mode;
                    let is_regular = FileType::from_raw_mode(mode) == FileType::RegularFile;
                    return if is_regular { Ok(descriptor) } else { Err(Errno::INVAL) };
                }
                other => return other,
            }
        }
        Err(last)
    }
}
