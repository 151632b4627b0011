//! Errors of files and folders of Pixir's state.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use serde_json::json;

use crate::base::error::{Explain, Explanation, Kind};

/// An entry that Pixir does not use where a file or folder of its state is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UnsafeEntry {
    /// A symbolic link; none is followed.
    Link,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character or block device.
    Device,
    /// A folder where a file is expected.
    Folder,
    /// A file where a folder is expected.
    File,
    /// An entry that belongs to another user.
    OtherOwner,
    /// The file has a second name, and writing would change what that name shows.
    HardLink,
    /// The name is empty, is `.` or `..`, or contains a slash.
    Name,
    /// An entry that git tracks: it came with a checkout.
    Tracked,
}

impl UnsafeEntry {
    pub fn from_file_type(kind: FileType) -> Self {
        match kind {
            FileType::Symlink => Self::Link,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            FileType::Directory => Self::Folder,
            FileType::RegularFile => Self::File,
            _ => Self::Device,
        }
    }

    /// The description in messages.
    pub fn description(self) -> &'static str {
        match self {
            Self::Link => "a symbolic link",
            Self::Fifo => "a named pipe",
            Self::Socket => "a socket",
            Self::Device => "a device",
            Self::Folder => "a folder where a file is expected",
            Self::File => "a file where a folder is expected",
            Self::OtherOwner => "owned by another user",
            Self::HardLink => "a file with a second name (a hard link)",
            Self::Name => "not a plain file name",
            Self::Tracked => "tracked by git",
        }
    }
}

/// Why a file or folder of Pixir's state cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The entry is of another kind than Pixir's state, or not the user's own.
    #[error("{} is {}: Pixir does not use it for its state", path.display(), found.description())]
    Unsafe {
        /// The path of the entry.
        path: PathBuf,
        /// The kind of the entry.
        found: UnsafeEntry,
    },
    /// The file has more bytes than Pixir reads.
    #[error("{} has more than {limit} bytes", path.display())]
    TooLarge {
        /// The path of the file.
        path: PathBuf,
        /// The largest number of bytes that is read.
        limit: u64,
    },
    /// A system call failed.
    #[error("{} cannot be used", path.display())]
    Io {
        /// The path passed to the call.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

impl StateError {
    pub fn io(path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Self {
        Self::Io { path: path.into(), source: source.into() }
    }

    /// The path of the file or folder.
    pub fn path(&self) -> &Path {
        match self {
            Self::Unsafe { path, .. } | Self::TooLarge { path, .. } | Self::Io { path, .. } => path,
        }
    }

    /// The kind of the system's error; `Other` when no system call failed.
    pub fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::Io { source, .. } => source.kind(),
            Self::Unsafe { .. } | Self::TooLarge { .. } => io::ErrorKind::Other,
        }
    }
}

/// Conversion for callers whose error holds an `io::Error`.
impl From<StateError> for io::Error {
    fn from(error: StateError) -> Self {
        match error {
            StateError::Io { source, .. } => source,
            other => io::Error::other(other),
        }
    }
}

impl Explain for StateError {
    fn explain(&self) -> Explanation {
        let (path, shown) = (self.path().to_string_lossy(), self.path().display());
        match self {
            Self::Unsafe { found, .. } => Kind::UnsafeStatePath
                .with_details(json!({ "path": path, "found": found.description() }))
                .with_next_action(match found {
                    UnsafeEntry::OtherOwner => {
                        format!("make it your own with `chown`, or remove {shown}, then try again")
                    }
                    UnsafeEntry::HardLink => {
                        format!("replace {shown} by a copy of itself, then try again")
                    }
                    _ => format!("inspect {shown}, remove it, then try again"),
                }),
            Self::TooLarge { limit, .. } => Kind::ReadFailed
                .with_details(json!({ "path": path, "limit": limit }))
                .with_next_action(format!("inspect {shown}, remove it, then try again")),
            Self::Io { .. } => Kind::WriteFailed
                .with_details(json!({ "path": path }))
                .with_next_action(format!("check the permissions of {shown} and the free space")),
        }
    }
}
