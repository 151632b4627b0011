//! Files below a folder that holds Pixir's state: the one way to open, write and remove them.
//!
//! A checkout can bring links, and a command can make links, pipes and hard links while Pixir works.
//! So every component below the root is opened relative to the descriptor of its parent, without
//! following a link and without blocking, and the descriptor is checked: the expected type, the
//! user's own. Nothing is truncated or changed in place; a file is created, appended to, or replaced
//! by a new one from the same folder.
#![expect(clippy::disallowed_methods, reason = "the root and its parents are the user's choice")]

mod error;
mod mount_watch;
mod regular;
mod state_path;
#[cfg(test)]
mod tests;
mod tree;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

pub use error::{StateError, UnsafeEntry};
pub use mount_watch::{MountWatch, is_on_local_file_system};
pub use regular::{open_regular, read_regular};
pub use state_path::StatePath;

const COMMON_FLAGS: OFlags =
    OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
const FOLDER_FLAGS: OFlags = COMMON_FLAGS.union(OFlags::DIRECTORY).union(OFlags::RDONLY);
const FILE_MODE: Mode = Mode::from_raw_mode(0o600);
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o700);

/// Whether a written file must outlast a power failure before the call returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteDurability {
    /// The file, and its name in the folder, are forced to the disk.
    Synced,
    /// The operating system writes the file later.
    Lazy,
}

/// The access to a folder of state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StateAccess {
    /// Everything below belongs to the user, and may be changed.
    Own,
    /// Nothing is changed, so what is below may belong to another user.
    ReadOnly,
}

/// An open folder of Pixir's state, with its path for messages; cheap to clone.
#[derive(Debug, Clone)]
pub struct StateDir {
    fd: Arc<OwnedFd>,
    path: PathBuf,
    access: StateAccess,
}

/// An entry of a folder; a link is not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateEntry {
    /// The name in the folder.
    pub name: OsString,
    /// The file type.
    pub kind: FileType,
    /// The size in bytes.
    pub bytes: u64,
    /// Seconds and nanoseconds of the last write.
    pub modified: (i64, i64),
    /// The device number.
    pub device: u64,
    /// The inode number on that device.
    pub inode: u64,
    /// Whether it belongs to the user.
    pub is_own: bool,
}

impl StateDir {
    /// Opens a root that the user chose, such as a Workspace or the Home; links in its path are followed.
    pub fn open_root(path: &Path) -> Result<Self, StateError> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let fd = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|errno| StateError::io(path, errno))?;
        Ok(Self { fd: Arc::new(fd), path: path.to_owned(), access: StateAccess::Own })
    }

    /// This folder with another access, which applies to everything opened below it as well.
    #[must_use]
    pub(super) fn with_access(self, access: StateAccess) -> Self {
        Self { access, ..self }
    }

    /// Opens a root that the user chose, and makes it and its parents when they are missing.
    pub fn create_root(path: &Path) -> Result<Self, StateError> {
        use std::os::unix::fs::DirBuilderExt;
        match Self::open_root(path) {
            Err(error) if error.io_kind() == std::io::ErrorKind::NotFound => {
                let mut builder = std::fs::DirBuilder::new();
                let made = builder.recursive(true).mode(0o700).create(path);
                made.map_err(|source| StateError::io(path, source))?;
                Self::open_root(path)
            }
            opened => opened,
        }
    }

    /// A folder from an open descriptor.
    pub fn from_descriptor(fd: OwnedFd, path: &Path) -> Self {
        Self { fd: Arc::new(fd), path: path.to_owned(), access: StateAccess::Own }
    }

    /// The path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a folder inside; `None` when there is none.
    pub fn open_dir(&self, name: impl AsRef<OsStr>) -> Result<Option<Self>, StateError> {
        let name = self.check_name(name.as_ref())?;
        match rustix::fs::openat(&self.fd, name, FOLDER_FLAGS, Mode::empty()) {
            Ok(fd) => {
                self.check_owner(name, &self.stat_file(&fd, name)?)?;
                Ok(Some(self.child(name, fd)))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.open_error(name, errno, FileType::Directory)),
        }
    }

    /// Opens a folder inside, and makes it when it is missing.
    pub fn create_dir(&self, name: impl AsRef<OsStr>) -> Result<Self, StateError> {
        let name = name.as_ref();
        if let Some(folder) = self.open_dir(name)? {
            return Ok(folder);
        }
        self.check_may_change(name)?;
        match rustix::fs::mkdirat(&self.fd, name, FOLDER_MODE) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(StateError::io(self.path.join(name), errno)),
        }
        let gone = || StateError::io(self.path.join(name), Errno::NOENT);
        self.open_dir(name)?.ok_or_else(gone)
    }

    /// Makes a folder inside that must not be there yet.
    pub fn create_new_dir(&self, name: impl AsRef<OsStr>) -> Result<Self, StateError> {
        let name = self.check_name(name.as_ref())?;
        self.check_may_change(name)?;
        rustix::fs::mkdirat(&self.fd, name, FOLDER_MODE)
            .map_err(|errno| StateError::io(self.path.join(name), errno))?;
        self.create_dir(name)
    }

    /// Opens a file for reading; `None` when there is none.
    pub fn open_file(&self, name: impl AsRef<OsStr>) -> Result<Option<File>, StateError> {
        self.open_with(name.as_ref(), OFlags::RDONLY)
    }

    /// Reads a whole file; `None` when there is none, an error when it has more bytes than `limit`.
    pub fn read(&self, name: impl AsRef<OsStr>, limit: u64) -> Result<Option<Vec<u8>>, StateError> {
        let name = name.as_ref();
        let Some(file) = self.open_file(name)? else { return Ok(None) };
        let path = self.path.join(name);
        let failed = |source| StateError::io(&path, source);
        let length = file.metadata().map_err(failed)?.len();
        if length > limit {
            return Err(StateError::TooLarge { path, limit });
        }
        let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
        file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > limit {
            return Err(StateError::TooLarge { path, limit });
        }
        Ok(Some(bytes))
    }

    /// Opens a file for reading and appending; `None` when there is none. A file with a second name
    /// is refused.
    pub fn open_append(&self, name: impl AsRef<OsStr>) -> Result<Option<File>, StateError> {
        let name = name.as_ref();
        self.check_may_change(name)?;
        let Some(file) = self.open_with(name, OFlags::RDWR | OFlags::APPEND)? else {
            return Ok(None);
        };
        self.check_single_name(name, &file)?;
        Ok(Some(file))
    }

    /// Makes a file for reading and appending that must not be there yet.
    pub fn create_new(&self, name: impl AsRef<OsStr>) -> Result<File, StateError> {
        self.create_with(name.as_ref(), OFlags::RDWR | OFlags::APPEND, FILE_MODE)
    }

    /// Makes a file with this content and mode that must not be there yet.
    pub fn create_file(
        &self,
        name: impl AsRef<OsStr>,
        bytes: &[u8],
        mode: u32,
    ) -> Result<(), StateError> {
        let name = name.as_ref();
        let mut file = self.create_with(name, OFlags::WRONLY, Mode::from_raw_mode(mode))?;
        file.write_all(bytes).map_err(|source| StateError::io(self.path.join(name), source))
    }

    /// Opens a file that only serves as a lock, and makes it when it is missing; it is never written.
    pub fn open_lock(&self, name: impl AsRef<OsStr>) -> Result<File, StateError> {
        let name = self.check_name(name.as_ref())?;
        self.check_may_change(name)?;
        let open = |access: OFlags| {
            rustix::fs::openat(&self.fd, name, COMMON_FLAGS | access | OFlags::CREATE, FILE_MODE)
        };
        // NFS wants the right to write for an exclusive lock; a read-only file system gives none.
        let opened = match open(OFlags::RDWR) {
            Err(Errno::ROFS | Errno::ACCESS) => open(OFlags::RDONLY),
            opened => opened,
        };
        match opened {
            Ok(fd) => {
                let file = self.checked_file(name, fd)?;
                self.check_single_name(name, &file)?;
                Ok(file)
            }
            Err(errno) => Err(self.open_error(name, errno, FileType::RegularFile)),
        }
    }

    /// A new file handle of the folder, for locking.
    pub fn lock_handle(&self) -> Result<File, StateError> {
        let opened = rustix::fs::openat(&self.fd, ".", FOLDER_FLAGS, Mode::empty());
        opened.map(File::from).map_err(|errno| StateError::io(&self.path, errno))
    }

    /// Replaces or makes a file: the content is written to a new file in this folder, which is renamed. A failure
    /// leaves the old file.
    pub fn replace(
        &self,
        name: impl AsRef<OsStr>,
        bytes: &[u8],
        durability: WriteDurability,
    ) -> Result<(), StateError> {
        let write = |file: &mut File| file.write_all(bytes);
        self.replace_with(name, durability, write)
    }

    /// Replaces or makes a file like `replace`; `write` writes the content.
    pub fn replace_with<T>(
        &self,
        name: impl AsRef<OsStr>,
        durability: WriteDurability,
        write: impl FnOnce(&mut File) -> std::io::Result<T>,
    ) -> Result<T, StateError> {
        let name = self.check_name(name.as_ref())?;
        let draft = OsString::from(format!(".{:016x}.pixir-new", fastrand::u64(..)));
        let mut file = self.create_with(&draft, OFlags::WRONLY, FILE_MODE)?;
        let written = write(&mut file).and_then(|written| {
            if durability == WriteDurability::Synced {
                file.sync_all()?;
            }
            rustix::fs::renameat(&self.fd, &draft, &self.fd, name)?;
            Ok(written)
        });
        let written = written.map_err(|source| {
            rustix::fs::unlinkat(&self.fd, &draft, AtFlags::empty()).ok();
            StateError::io(self.path.join(name), source)
        })?;
        if durability == WriteDurability::Synced {
            // The file is in place; some file systems cannot force a folder to the disk.
            self.sync().ok();
        }
        Ok(written)
    }

    /// Moves an entry into another folder, or to another name; a file of that name is replaced.
    pub fn rename(
        &self,
        name: impl AsRef<OsStr>,
        to: &Self,
        new_name: impl AsRef<OsStr>,
    ) -> Result<(), StateError> {
        let name = self.check_name(name.as_ref())?;
        let new_name = to.check_name(new_name.as_ref())?;
        self.check_may_change(name)?;
        to.check_may_change(new_name)?;
        rustix::fs::renameat(&self.fd, name, &to.fd, new_name)
            .map_err(|errno| StateError::io(self.path.join(name), errno))
    }

    /// Makes a hard link to a file of this folder, under a name that must not exist yet.
    pub fn link(
        &self,
        name: impl AsRef<OsStr>,
        new_name: impl AsRef<OsStr>,
    ) -> Result<(), StateError> {
        let name = self.check_name(name.as_ref())?;
        let new_name = self.check_name(new_name.as_ref())?;
        self.check_may_change(new_name)?;
        rustix::fs::linkat(&self.fd, name, &self.fd, new_name, AtFlags::empty())
            .map_err(|errno| StateError::io(self.path.join(new_name), errno))
    }

    /// Makes a hard link in this folder to an open file, under a name that must not exist yet.
    pub fn link_file(&self, file: &File, name: impl AsRef<OsStr>) -> Result<(), StateError> {
        let name = self.check_name(name.as_ref())?;
        self.check_may_change(name)?;
        // By the descriptor: another file may have its old name by now.
        let open_file = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::linkat(CWD, open_file, &self.fd, name, AtFlags::SYMLINK_FOLLOW)
            .map_err(|errno| StateError::io(self.path.join(name), errno))
    }

    /// Removes a file or a link; true when there was one.
    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> Result<bool, StateError> {
        let name = self.check_name(name.as_ref())?;
        self.unlink(name, AtFlags::empty())
    }

    fn unlink(&self, name: &OsStr, flags: AtFlags) -> Result<bool, StateError> {
        self.check_may_change(name)?;
        match rustix::fs::unlinkat(&self.fd, name, flags) {
            Ok(()) => Ok(true),
            // Two processes may remove the same entry at once.
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(StateError::io(self.path.join(name), errno)),
        }
    }

    /// The names of all entries, in no order.
    pub fn names(&self) -> Result<Vec<OsString>, StateError> {
        let failed = |errno| StateError::io(&self.path, errno);
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name().to_bytes().to_vec();
            if !matches!(name.as_slice(), b"." | b"..") {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }

    /// All entries, in no order.
    pub fn entries(&self) -> Result<Vec<StateEntry>, StateError> {
        let names = self.names()?.into_iter();
        names.filter_map(|name| self.stat(name).transpose()).collect()
    }

    /// The entry with this name; `None` when there is none.
    pub fn stat(&self, name: impl AsRef<OsStr>) -> Result<Option<StateEntry>, StateError> {
        let name = self.check_name(name.as_ref())?;
        let stat = match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(StateError::io(self.path.join(name), errno)),
        };
        Ok(Some(StateEntry {
            name: name.to_owned(),
            kind: FileType::from_raw_mode(stat.st_mode),
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            modified: (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0)),
            device: stat.st_dev,
            inode: stat.st_ino,
            is_own: is_own(&stat),
        }))
    }

    /// Gives the user the right to read a file.
    pub fn make_readable(&self, name: impl AsRef<OsStr>) -> Result<(), StateError> {
        let name = self.check_name(name.as_ref())?;
        self.check_may_change(name)?;
        let failed = |errno| StateError::io(self.path.join(name), errno);
        // A file without the right to read it can be opened only as a place.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty()).map_err(failed)?;
        let file = self.checked_file(name, fd)?;
        let mode = Mode::from_raw_mode(self.stat_file(&file, name)?.st_mode) | Mode::RUSR;
        let open_file = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::chmod(open_file, mode).map_err(failed)
    }

    /// Whether the user may make files here.
    pub fn is_writable(&self) -> bool {
        let may = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
        rustix::fs::accessat(&self.fd, ".", may, AtFlags::EACCESS).is_ok()
    }

    /// Forces the names in this folder to the disk.
    pub fn sync(&self) -> Result<(), StateError> {
        rustix::fs::fsync(&self.fd).map_err(|errno| StateError::io(&self.path, errno))
    }

    fn open_with(&self, name: &OsStr, flags: OFlags) -> Result<Option<File>, StateError> {
        let name = self.check_name(name)?;
        match rustix::fs::openat(&self.fd, name, COMMON_FLAGS | flags, Mode::empty()) {
            Ok(fd) => self.checked_file(name, fd).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.open_error(name, errno, FileType::RegularFile)),
        }
    }

    fn create_with(&self, name: &OsStr, flags: OFlags, mode: Mode) -> Result<File, StateError> {
        let name = self.check_name(name)?;
        self.check_may_change(name)?;
        let flags = COMMON_FLAGS | flags | OFlags::CREATE | OFlags::EXCL;
        let opened = rustix::fs::openat(&self.fd, name, flags, mode);
        opened.map(File::from).map_err(|errno| StateError::io(self.path.join(name), errno))
    }

    fn checked_file(&self, name: &OsStr, fd: OwnedFd) -> Result<File, StateError> {
        let stat = self.stat_file(&fd, name)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::RegularFile {
            return Err(self.unsafe_entry(name, UnsafeEntry::from_file_type(kind)));
        }
        self.check_owner(name, &stat)?;
        Ok(File::from(fd))
    }

    fn check_owner(&self, name: &OsStr, stat: &Stat) -> Result<(), StateError> {
        if is_own(stat) || self.access == StateAccess::ReadOnly {
            return Ok(());
        }
        Err(self.unsafe_entry(name, UnsafeEntry::OtherOwner))
    }

    fn check_may_change(&self, name: &OsStr) -> Result<(), StateError> {
        match self.access {
            StateAccess::Own => Ok(()),
            StateAccess::ReadOnly => Err(StateError::io(self.path.join(name), Errno::ROFS)),
        }
    }

    fn child(&self, name: &OsStr, fd: OwnedFd) -> Self {
        Self { fd: Arc::new(fd), path: self.path.join(name), access: self.access }
    }

    fn check_single_name(&self, name: &OsStr, file: &File) -> Result<(), StateError> {
        if self.stat_file(file, name)?.st_nlink <= 1 {
            return Ok(());
        }
        Err(self.unsafe_entry(name, UnsafeEntry::HardLink))
    }

    fn stat_file(&self, file: impl AsFd, name: &OsStr) -> Result<Stat, StateError> {
        rustix::fs::fstat(file).map_err(|errno| StateError::io(self.path.join(name), errno))
    }

    /// The error of a failed open: an unsafe entry, where that is the reason.
    fn open_error(&self, name: &OsStr, errno: Errno, expected: FileType) -> StateError {
        let there = || rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).ok();
        let found = match errno {
            Errno::LOOP | Errno::NOTDIR | Errno::ISDIR | Errno::NXIO => {
                let kind = there().map(|stat| FileType::from_raw_mode(stat.st_mode));
                kind.filter(|kind| *kind != expected).map(UnsafeEntry::from_file_type)
            }
            Errno::ACCESS | Errno::PERM => {
                there().filter(|stat| !is_own(stat)).map(|_| UnsafeEntry::OtherOwner)
            }
            _ => None,
        };
        found.map_or_else(
            || StateError::io(self.path.join(name), errno),
            |found| self.unsafe_entry(name, found),
        )
    }

    fn unsafe_entry(&self, name: &OsStr, found: UnsafeEntry) -> StateError {
        StateError::Unsafe { path: self.path.join(name), found }
    }

    /// Checks that a name stays in this folder.
    fn check_name<'n>(&self, name: &'n OsStr) -> Result<&'n OsStr, StateError> {
        let bytes = name.as_bytes();
        let is_plain = !matches!(bytes, b"" | b"." | b"..") && !bytes.contains(&b'/');
        if is_plain { Ok(name) } else { Err(self.unsafe_entry(name, UnsafeEntry::Name)) }
    }
}

fn is_own(stat: &Stat) -> bool {
    stat.st_uid == rustix::process::geteuid().as_raw()
}

impl AsFd for StateDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
