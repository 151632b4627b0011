//! Opening without links: files and folders of a Workspace are opened from the root without following any link.
//!
//! A walk over the tree reads names first and opens them later. At each open the kernel checks again
//! that the whole path is beneath the root and that no part of it has become a link since its name
//! was read.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, StatxFlags, statx};
use rustix::io::Errno;

use super::{
    Workspace, WorkspaceError, irregular_kind, open_resolved, or_root, os_string, refuse_protected,
};

/// A path of the Workspace with its links resolved.
#[derive(Debug)]
pub struct ResolvedPath {
    /// The path relative to the root, links resolved; empty for the root itself.
    pub path: PathBuf,
    pub(super) stat: Stat,
}

impl ResolvedPath {
    /// Whether the path is a folder.
    pub fn is_folder(&self) -> bool {
        FileType::from_raw_mode(self.stat.st_mode) == FileType::Directory
    }

    /// The kind of the file in words; `None` for a regular file.
    pub fn irregular_kind(&self) -> Option<&'static str> {
        irregular_kind(&self.stat)
    }
}

/// An entry of the file system; a link is not followed.
#[derive(Debug)]
pub struct NoFollowEntry {
    pub stat: Stat,
    /// The target of a link.
    pub link: Option<PathBuf>,
}

/// The kind of file that is to be opened for reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenKind {
    Folder,
    /// A regular file; other kinds are refused and never block.
    File,
}

impl Workspace {
    /// Resolves a path, following links that stay inside; opens no file for reading.
    pub fn locate(&self, path: &Path) -> Result<ResolvedPath, WorkspaceError> {
        if let Some(other) = self.extra_root_for(path) {
            return Ok(other.locate(path)?.named_in(other));
        }
        let descriptor = self.open_beneath(self.relative(path)?, OFlags::PATH)?;
        let stat = rustix::fs::fstat(&descriptor)
            .map_err(|errno| WorkspaceError::from_errno(errno, path))?;
        Ok(ResolvedPath { path: self.real_path(&descriptor, path)?, stat })
    }

    /// Reads the entry at a path relative to the root; a link is not followed.
    pub fn stat_no_follow(&self, path: &Path) -> Result<NoFollowEntry, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = self.open_path_no_follow(or_root(path), flags)?;
        let stat = rustix::fs::fstat(&descriptor)?;
        let link = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&descriptor, "", Vec::new())?;
                Some(PathBuf::from(os_string(target.to_bytes())))
            }
            _ => None,
        };
        Ok(NoFollowEntry { stat, link })
    }

    /// Checks that the entry at this path may be replaced; for a link, the link itself is checked, not its
    /// target.
    pub fn check_replaceable(&self, path: &Path) -> Result<(), WorkspaceError> {
        refuse_protected(path, path)?;
        self.refuse_unbounded(path, path)?;
        match self.stat_no_follow(path) {
            Ok(seen) if seen.link.is_none() => self.refuse_alias_of_state(&seen.stat, path),
            _ => Ok(()),
        }
    }

    /// Opens the parent of a path, without following links, and returns it with the file name. Paths in
    /// Pixir's own state or git's are refused.
    pub fn open_parent_no_follow(
        &self,
        path: &Path,
    ) -> Result<(OwnedFd, OsString), WorkspaceError> {
        let name = writable_file_name(path)?;
        let parent = or_root(path.parent().unwrap_or(Path::new("")));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = self.open_path_no_follow(parent, flags);
        let folder = folder.map_err(|errno| WorkspaceError::from_errno(errno, path))?;
        Ok((folder, name.to_owned()))
    }

    /// Opens a path without following any link.
    fn open_path_no_follow(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        open_resolved(&self.0.folder, path, flags, Mode::empty(), resolve)
    }

    /// The creation time of the entry at this path, in nanoseconds since the epoch, if known.
    pub fn creation_time(&self, path: &Path) -> Option<u64> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = self.open_path_no_follow(or_root(path), flags).ok()?;
        let found = statx(&descriptor, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok()?;
        let is_known = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
        let seconds = u64::try_from(found.stx_btime.tv_sec).ok().filter(|_| is_known)?;
        Some(seconds * 1_000_000_000 + u64::from(found.stx_btime.tv_nsec))
    }

    /// Opens the file or folder at this path, relative to the root, for reading.
    pub fn open_no_follow(&self, path: &[u8], kind: OpenKind) -> Result<OwnedFd, Errno> {
        if let Some((other, root)) = self.split_extra_root(path) {
            let inside = path.get(root + 1..).unwrap_or_default();
            return other.open_no_follow(inside, kind);
        }
        let path = if path.is_empty() { b"." } else { path };
        if kind == OpenKind::File && self.is_hidden(Path::new(OsStr::from_bytes(path))) {
            return Err(Errno::ACCESS);
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let flags = if kind == OpenKind::Folder { flags | OFlags::DIRECTORY } else { flags };
        let descriptor = self.open_path_no_follow(Path::new(OsStr::from_bytes(path)), flags)?;
        if kind == OpenKind::File {
            let mode = rustix::fs::fstat(&descriptor)?.st_mode;
            if FileType::from_raw_mode(mode) != FileType::RegularFile {
                return Err(Errno::INVAL);
            }
        }
        Ok(descriptor)
    }
}

/// The file name of a path. Paths in Pixir's own state or git's are refused.
pub fn writable_file_name(path: &Path) -> Result<&OsStr, WorkspaceError> {
    refuse_protected(path, path)?;
    path.file_name().ok_or(WorkspaceError::InvalidPath { reason: "it has no name" })
}
