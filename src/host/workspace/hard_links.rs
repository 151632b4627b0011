//! Hard links: a file with several of them is changed in place, so that all names keep the file.
//!
//! Such a write is not atomic like a rename, so for a moment the file is neither old nor new. That is
//! kept short and harmless: a synced copy of the new content exists in the same folder before the first
//! byte changes, the space is allocated beforehand, and after an error the old bytes are restored.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FallocateFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::target::{ReplacedFile, WriteTarget, errno_of};
use super::{OpenFile, Workspace, WorkspaceError, metadata, open_at};
use crate::base::paths::STATE_FOLDER;

/// The maximum size of a file that is changed in place, in bytes.
pub const LARGEST_IN_PLACE: u64 = 1 << 20;

/// The maximum number of files of Pixir's own state that are compared; with more, no file with several
/// names is written.
const COMPARED_FILES: usize = 100_000;

impl Workspace {
    /// Refuses a file that has another name inside Pixir's own state.
    pub(super) fn refuse_alias_of_state(
        &self,
        stat: &Stat,
        path: &Path,
    ) -> Result<(), WorkspaceError> {
        if stat.st_nlink < 2 {
            return Ok(());
        }
        let protected = || WorkspaceError::Protected { path: path.to_owned() };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let state = match open_at(&self.0.folder, Path::new(STATE_FOLDER), flags, Mode::empty()) {
            Ok(state) => state,
            Err(Errno::NOENT) => return Ok(()),
            Err(_) => return Err(protected()),
        };
        match contains_inode(state, (stat.st_dev, stat.st_ino)) {
            Ok(false) => Ok(()),
            Ok(true) | Err(_) => Err(protected()),
        }
    }
}

/// Whether a folder contains the file, at any depth. An entry that cannot be read is an error.
fn contains_inode(folder: OwnedFd, file: (u64, u64)) -> Result<bool, Errno> {
    let mut waiting = vec![folder];
    let mut compared = 0;
    while let Some(folder) = waiting.pop() {
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if [&b"."[..], b".."].contains(&name.to_bytes()) {
                continue;
            }
            compared += 1;
            if compared > COMPARED_FILES {
                return Err(Errno::TOOBIG);
            }
            let stat = match rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(errno),
            };
            if (stat.st_dev, stat.st_ino) == file {
                return Ok(true);
            }
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
                let flags = flags | OFlags::CLOEXEC;
                waiting.push(rustix::fs::openat(&folder, name, flags, Mode::empty())?);
            }
        }
    }
    Ok(false)
}

impl WriteTarget {
    /// Writes into the same inode, so that its other names keep it.
    pub(super) fn overwrite(
        &self,
        existing: &OpenFile,
        content: &[u8],
    ) -> Result<ReplacedFile, WorkspaceError> {
        let size = (content.len() as u64).max(u64::try_from(existing.stat.st_size).unwrap_or(0));
        if size > LARGEST_IN_PLACE {
            let (path, links) = (self.path().to_owned(), existing.stat.st_nlink);
            return Err(WorkspaceError::ManyNames { path, links, size });
        }
        let failed = |errno| self.error_from(errno);
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let descriptor = self.open_file(flags).map_err(failed)?;
        let stat = rustix::fs::fstat(&descriptor).map_err(failed)?;
        if (stat.st_dev, stat.st_ino) != (existing.stat.st_dev, existing.stat.st_ino) {
            return Err(failed(Errno::STALE));
        }
        let old = old_bytes(existing).map_err(|error| failed(errno_of(&error)))?;
        let copy = self.write_spare_copy(content)?;
        let file = File::from(descriptor);
        if let Err(errno) = write_in_place(&file, content, old.len()) {
            let is_back = write_whole(&file, &old).is_ok();
            if is_back {
                copy.remove().ok();
                return Err(failed(errno));
            }
            let (path, copy) = (self.path().to_owned(), copy.path);
            return Err(WorkspaceError::HalfWritten { path, copy, source: errno.into() });
        }
        let mut notes: Vec<String> =
            metadata::copy_mode(&stat, &file).ok().flatten().into_iter().collect();
        if copy.remove().is_err() {
            notes.push(format!("a copy of it was left as {}", copy.path.display()));
        }
        let stat = rustix::fs::fstat(&file).map_err(failed)?;
        Ok(ReplacedFile { stat, notes })
    }
}

pub(super) fn old_bytes(existing: &OpenFile) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut file = existing.file.try_clone()?;
    io::Seek::rewind(&mut file)?;
    file.take(LARGEST_IN_PLACE + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes the content in place; missing space is allocated before the first byte changes.
fn write_in_place(file: &File, content: &[u8], old_length: usize) -> Result<(), Errno> {
    if content.len() > old_length {
        match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, content.len() as u64) {
            // Not every file system supports allocation; the old bytes can still be restored.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(errno) => return Err(errno),
        }
    }
    write_whole(file, content)
}

fn write_whole(file: &File, content: &[u8]) -> Result<(), Errno> {
    file.write_all_at(content, 0).map_err(|error| errno_of(&error))?;
    file.set_len(content.len() as u64).map_err(|error| errno_of(&error))?;
    file.sync_all().map_err(|error| errno_of(&error))
}
