//! A nook: one folder of Pixir's state, opened by descriptor through no link, looked into and cleared
//! name by name.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

const FOLDER: OFlags =
    OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::RDONLY);

/// An open folder.
pub struct Nook {
    fd: OwnedFd,
    path: PathBuf,
}

/// A name in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub name: String,
    pub sort: FileType,
    pub bytes: u64,
    /// Seconds and nanoseconds of the last write.
    pub written: (i64, i64),
}

impl Nook {
    /// Opens a folder by its path; the last step is through no link.
    pub fn open(path: &Path) -> Option<Self> {
        let fd = rustix::fs::open(path, FOLDER, Mode::empty()).ok()?;
        Some(Self { fd, path: path.to_owned() })
    }

    /// A folder inside.
    pub fn inner(&self, name: &str) -> Option<Self> {
        let fd = rustix::fs::openat(&self.fd, name, FOLDER, Mode::empty()).ok()?;
        Some(Self { fd, path: self.path.join(name) })
    }

    /// Where it is, for people.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Every name that is text; others are nobody's of ours.
    pub fn names(&self) -> Vec<Found> {
        let Ok(folder) = Dir::read_from(&self.fd) else { return Vec::new() };
        let name = |entry: rustix::fs::DirEntry| entry.file_name().to_str().map(str::to_owned).ok();
        let names = folder.flatten().filter_map(name);
        names
            .filter(|name| !matches!(name.as_str(), "." | ".."))
            .filter_map(|name| self.look(&name))
            .collect()
    }

    /// How a name looks at this moment.
    pub fn look(&self, name: &str) -> Option<Found> {
        let found = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(Found {
            name: name.to_owned(),
            sort: FileType::from_raw_mode(found.st_mode),
            bytes: u64::try_from(found.st_size).unwrap_or(0),
            written: (found.st_mtime, i64::try_from(found.st_mtime_nsec).unwrap_or(0)),
        })
    }

    /// A file inside, opened for reading.
    pub fn file(&self, name: &str) -> Option<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = File::from(rustix::fs::openat(&self.fd, name, flags, Mode::empty()).ok()?);
        file.metadata().ok()?.is_file().then_some(file)
    }

    /// Removes a file or a link; one that is gone already is fine.
    pub fn remove_file(&self, name: &str) -> io::Result<()> {
        gone_is_fine(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()))
    }

    /// Removes a folder with everything in it, through no link.
    pub fn remove_all(&self, name: &str) -> io::Result<()> {
        let Some(inner) = self.inner(name) else {
            // No folder: a link or a file by that name goes as what it is.
            return self.remove_file(name);
        };
        remove_content(&inner.fd)?;
        gone_is_fine(rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR))
    }

    /// How many bytes lie in a folder inside.
    pub fn bytes_of(&self, name: &str) -> u64 {
        let Some(inner) = self.inner(name) else { return 0 };
        let sizes = inner.names().into_iter().map(|found| match found.sort {
            FileType::Directory => inner.bytes_of(&found.name),
            _ => found.bytes,
        });
        sizes.sum()
    }
}

fn remove_content(folder: &impl AsFd) -> io::Result<()> {
    let names: Vec<CString> = Dir::read_from(folder)?
        .flatten()
        .map(|entry| entry.file_name().to_owned())
        .filter(|name| !matches!(name.to_bytes(), b"." | b".."))
        .collect();
    for name in names {
        match rustix::fs::openat(folder, &name, FOLDER, Mode::empty()) {
            Ok(inner) => {
                remove_content(&inner)?;
                gone_is_fine(rustix::fs::unlinkat(folder, &name, AtFlags::REMOVEDIR))?;
            }
            Err(_) => gone_is_fine(rustix::fs::unlinkat(folder, &name, AtFlags::empty()))?,
        }
    }
    Ok(())
}

/// Two may clear at once.
fn gone_is_fine(removed: rustix::io::Result<()>) -> io::Result<()> {
    match removed {
        Err(rustix::io::Errno::NOENT) => Ok(()),
        other => Ok(other?),
    }
}
