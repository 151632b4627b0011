//! Alterations of an open Log by other programs: truncated, removed, moved or replaced under its writer.
//!
//! The lock keeps other Pixir processes away, not `rm`, `mv` or an editor. The file is checked before each
//! append, so that nothing is recorded where no reader will find it.

use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A change of an open Log by another program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Alteration {
    /// The file was deleted.
    Removed,
    /// The file, or a folder above it, was moved or renamed.
    Moved,
    /// Another file has its path.
    Replaced,
    /// The file is shorter than what was written.
    Truncated { written: u64, left: u64 },
    /// The file is longer than what was written.
    Extended { written: u64, found: u64 },
    /// The folder of blobs is gone.
    BlobsRemoved { folder: PathBuf },
}

impl fmt::Display for Alteration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Removed => f.write_str("it was removed"),
            Self::Moved => f.write_str("it, or a folder above it, was moved"),
            Self::Replaced => f.write_str("another file was put in its place"),
            Self::Truncated { written, left } => {
                write!(f, "it was truncated to {left} of {written} bytes")
            }
            Self::Extended { written, found } => {
                write!(f, "another program appended {} bytes to its {written}", found - written)
            }
            Self::BlobsRemoved { folder } => {
                write!(f, "its folder {} was removed or moved", folder.display())
            }
        }
    }
}

impl Alteration {
    /// The next actions for the user.
    pub fn next_actions(&self) -> Vec<String> {
        let actions: [&str; 2] = match self {
            Self::Removed => {
                ["restore it from a backup, then `pixir resume`", "or start a new Session"]
            }
            Self::Moved => [
                "put it back where it was, then `pixir resume`",
                "or go on where it is now: `cd` there, then `pixir resume`",
            ],
            Self::Replaced => {
                ["put it back where it was, then `pixir resume`", "or start a new Session"]
            }
            Self::Truncated { .. } | Self::BlobsRemoved { .. } => [
                "restore it from a backup, then `pixir resume`",
                "or see what is left with `pixir diagnose`, and go on with it: `pixir repair`",
            ],
            Self::Extended { .. } => [
                "see what was added with `pixir verify`, then `pixir resume`",
                "or go on with a cleaned copy: `pixir repair`",
            ],
        };
        actions.map(str::to_owned).into()
    }
}

/// The identity of a file or folder for the kernel: device and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    /// The identity of the file or folder at a path; `None` when there is none.
    pub fn of_path(path: &Path) -> io::Result<Option<Self>> {
        match std::fs::symlink_metadata(path) {
            Ok(found) => Ok(Some(Self::from_metadata(&found))),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
                _ => Err(error),
            },
        }
    }

    fn from_metadata(found: &Metadata) -> Self {
        Self { device: found.dev(), inode: found.ino() }
    }
}

/// The alteration of an open Log to which `written` bytes were written; `None` when it is unchanged.
pub fn find_alteration(file: &File, path: &Path, written: u64) -> io::Result<Option<Alteration>> {
    let own = file.metadata()?;
    let named = FileIdentity::of_path(path)?;
    let found = own.len();
    Ok(match named {
        Some(named) if named != FileIdentity::from_metadata(&own) => Some(Alteration::Replaced),
        None if own.nlink() == 0 => Some(Alteration::Removed),
        None => Some(Alteration::Moved),
        Some(_) if found < written => Some(Alteration::Truncated { written, left: found }),
        Some(_) if found > written => Some(Alteration::Extended { written, found }),
        Some(_) => None,
    })
}
