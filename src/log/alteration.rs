//! Alterations of an open Log by other programs: truncated, removed, moved or replaced under its writer.
//!
//! The lock keeps other writers of Pixir away, not `rm`, `mv` or an editor. Looked at before each append,
//! so that nothing is recorded where no reader will find it.

use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What another program did to an open Log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Alteration {
    /// The file has no name any more.
    Removed,
    /// Its name is gone, or a folder above it is; the file itself is elsewhere.
    Moved,
    /// Another file has its name.
    Replaced,
    /// The file is shorter than what was written.
    Truncated { written: u64, left: u64 },
    /// The file is longer than what was written.
    Extended { written: u64, found: u64 },
    /// The folder with its large payloads is gone.
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
    /// What the user can do about it.
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

/// A file or folder as the kernel knows it, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    /// The identity of what has this path now; `None` when nothing has.
    pub fn at(path: &Path) -> io::Result<Option<Self>> {
        match std::fs::symlink_metadata(path) {
            Ok(found) => Ok(Some(Self::of(&found))),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
                _ => Err(error),
            },
        }
    }

    fn of(found: &Metadata) -> Self {
        Self { device: found.dev(), inode: found.ino() }
    }
}

/// What was done to an open Log of which `written` bytes are known; `None` when it is as it was left.
pub fn find_alteration(file: &File, path: &Path, written: u64) -> io::Result<Option<Alteration>> {
    let own = file.metadata()?;
    let named = FileIdentity::at(path)?;
    let found = own.len();
    Ok(match named {
        Some(named) if named != FileIdentity::of(&own) => Some(Alteration::Replaced),
        None if own.nlink() == 0 => Some(Alteration::Removed),
        None => Some(Alteration::Moved),
        Some(_) if found < written => Some(Alteration::Truncated { written, left: found }),
        Some(_) if found > written => Some(Alteration::Extended { written, found }),
        Some(_) => None,
    })
}
