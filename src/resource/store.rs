//! The store: bytes under their own hash in the Session's folder.
//!
//! Written and forced to the disk before anything refers to them, readable by their owner alone,
//! and checked against their name whenever they are read. No link is followed below the folder.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

const FOLDER: OFlags =
    OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::RDONLY);

/// The Resources of one Session, on disk.
#[derive(Debug, Clone)]
pub struct Store {
    session: PathBuf,
}

/// Why stored bytes cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    #[error("it is missing")]
    Missing,
    #[error("it is not what was stored")]
    Changed,
    #[error("it cannot be read: {0}")]
    Unreadable(io::Error),
}

impl Store {
    /// The store of the Session with this folder; nothing is made before there is something to keep.
    pub fn new(session_folder: PathBuf) -> Self {
        Self { session: session_folder }
    }

    /// Where the bytes with this hash are.
    pub fn path(&self, sha256: &str) -> PathBuf {
        self.session.join("resources").join(sha256)
    }

    /// Keeps bytes durably and gives their hash.
    pub fn put(&self, bytes: &[u8]) -> io::Result<String> {
        let sha256 = digest(bytes);
        if self.get(&sha256, bytes.len() as u64).is_ok() {
            return Ok(sha256);
        }
        let folder = self.make_folder()?;
        let temporary = format!("{sha256}.{:08x}", fastrand::u32(..));
        let written = write_durably(&folder, &temporary, bytes).and_then(|()| {
            rustix::fs::renameat(&folder, &temporary, &folder, &sha256).map_err(io::Error::from)
        });
        if let Err(error) = written {
            rustix::fs::unlinkat(&folder, &temporary, AtFlags::empty()).ok();
            return Err(error);
        }
        rustix::fs::fsync(&folder)?;
        Ok(sha256)
    }

    /// The bytes with this hash and this length.
    pub fn get(&self, sha256: &str, length: u64) -> Result<Vec<u8>, Lost> {
        let is_hash = sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_hash {
            return Err(Lost::Missing);
        }
        let lost = |errno: Errno| match errno {
            Errno::NOENT => Lost::Missing,
            Errno::LOOP | Errno::NOTDIR => Lost::Changed,
            errno => Lost::Unreadable(errno.into()),
        };
        let folder = self.open_folder().map_err(lost)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&folder, sha256, flags, Mode::empty()).map_err(lost)?;
        let file = File::from(file);
        let facts = file.metadata().map_err(Lost::Unreadable)?;
        // A Log may come from anywhere; nothing that was ever stored is larger.
        if !facts.is_file() || facts.len() != length || length > super::LARGEST_SUM {
            return Err(Lost::Changed);
        }
        let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
        file.take(length).read_to_end(&mut bytes).map_err(Lost::Unreadable)?;
        if digest(&bytes) == sha256 { Ok(bytes) } else { Err(Lost::Changed) }
    }

    /// Takes over what another Session has stored, as far as it is sound.
    pub fn copy_from(&self, other: &Self, sha256: &str, length: u64) -> io::Result<()> {
        let Ok(bytes) = other.get(sha256, length) else { return Ok(()) };
        self.put(&bytes).map(drop)
    }

    fn open_folder(&self) -> Result<OwnedFd, Errno> {
        let session = rustix::fs::open(&self.session, FOLDER, Mode::empty())?;
        rustix::fs::openat(&session, "resources", FOLDER, Mode::empty())
    }

    fn make_folder(&self) -> io::Result<OwnedFd> {
        if let Ok(folder) = self.open_folder() {
            return Ok(folder);
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.session)?;
        let session = rustix::fs::open(&self.session, FOLDER, Mode::empty())?;
        match rustix::fs::mkdirat(&session, "resources", Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        rustix::fs::fsync(&session)?;
        // The folder's own name must last as well.
        File::open(self.session.parent().unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(self.open_folder()?)
    }
}

fn write_durably(folder: &OwnedFd, name: &str, bytes: &[u8]) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, name, flags, Mode::from_raw_mode(0o600))?;
    let mut file = File::from(file);
    file.write_all(bytes)?;
    file.sync_all()
}

/// The lowercase hex SHA-256 of some bytes.
pub fn digest(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        write!(text, "{byte:02x}").ok();
        text
    })
}
