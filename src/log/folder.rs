//! The folder of Logs: made and opened one component at a time, following no link.
//!
//! A repository could bring `.pixir` as a link to somewhere else; Pixir's own state never goes
//! through one.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::LogError;
use crate::id::SessionId;
use crate::paths;

const FOLDER: OFlags =
    OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::RDONLY);

/// An open `.pixir/sessions`.
#[derive(Debug)]
pub struct Folder {
    sessions: OwnedFd,
    path: PathBuf,
}

impl Folder {
    /// Opens the folder of a Workspace, making what is missing.
    pub fn create(workspace: &Path) -> Result<Self, LogError> {
        let root = open_root(workspace)?;
        let state = paths::state(workspace);
        make(&root, paths::STATE_FOLDER, &state)?;
        let state_fd = step(&root, paths::STATE_FOLDER, &state)?;
        let path = paths::sessions(workspace);
        if make(&state_fd, "sessions", &path)? {
            write_gitignore(&state_fd);
        }
        let sessions = step(&state_fd, "sessions", &path)?;
        Ok(Self { sessions, path })
    }

    /// Opens the folder of a Workspace; `None` when there is none yet.
    pub fn open(workspace: &Path) -> Result<Option<Self>, LogError> {
        let root = open_root(workspace)?;
        let state = paths::state(workspace);
        let path = paths::sessions(workspace);
        let opened = step(&root, paths::STATE_FOLDER, &state)
            .and_then(|state_fd| step(&state_fd, "sessions", &path));
        match opened {
            Ok(sessions) => Ok(Some(Self { sessions, path })),
            Err(LogError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a new Log file; refuses one that is already there.
    pub fn create_log(&self, id: &SessionId) -> Result<File, LogError> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL;
        self.open_log(id, flags)
    }

    /// Opens a Log for appending.
    pub fn append_log(&self, id: &SessionId) -> Result<File, LogError> {
        self.open_log(id, OFlags::RDWR | OFlags::APPEND)
    }

    /// Opens a Log for reading.
    pub fn read_log(&self, id: &SessionId) -> Result<File, LogError> {
        self.open_log(id, OFlags::RDONLY)
    }

    /// Makes a new file durable as a name.
    pub fn sync(&self) -> Result<(), LogError> {
        rustix::fs::fsync(&self.sessions).map_err(|errno| write_error(&self.path, errno))
    }

    fn open_log(&self, id: &SessionId, flags: OFlags) -> Result<File, LogError> {
        let path = self.path.join(format!("{id}.ndjson"));
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let name = format!("{id}.ndjson");
        let opened = rustix::fs::openat(&self.sessions, name, flags, Mode::from_raw_mode(0o600));
        let file = File::from(opened.map_err(|errno| match errno {
            Errno::NOENT => LogError::NotFound { id: id.clone() },
            Errno::EXIST => LogError::AlreadyExists { id: id.clone() },
            Errno::LOOP => LogError::UnsafePath { path: path.clone() },
            errno if flags.contains(OFlags::APPEND) => write_error(&path, errno),
            errno => LogError::Io { path: path.clone(), source: errno.into() },
        })?);
        let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
        if is_file { Ok(file) } else { Err(LogError::UnsafePath { path }) }
    }
}

fn open_root(workspace: &Path) -> Result<OwnedFd, LogError> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
    rustix::fs::open(workspace, flags, Mode::empty())
        .map_err(|errno| LogError::Io { path: workspace.to_owned(), source: errno.into() })
}

/// Makes a folder; true when it was not there before.
fn make(parent: &impl AsFd, name: &str, path: &Path) -> Result<bool, LogError> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o700)) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(errno) => Err(write_error(path, errno)),
    }
}

fn step(parent: &impl AsFd, name: &str, path: &Path) -> Result<OwnedFd, LogError> {
    rustix::fs::openat(parent, name, FOLDER, Mode::empty()).map_err(|errno| match errno {
        Errno::LOOP | Errno::NOTDIR => LogError::UnsafePath { path: path.to_owned() },
        errno => LogError::Io { path: path.to_owned(), source: errno.into() },
    })
}

/// Keeps Pixir's own state out of the user's commits. Best effort: a Session without it works.
fn write_gitignore(state: &impl AsFd) {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    if let Ok(fd) = rustix::fs::openat(state, ".gitignore", flags, Mode::from_raw_mode(0o644)) {
        File::from(fd).write_all(paths::GITIGNORE.as_bytes()).ok();
    }
}

fn write_error(path: &Path, errno: Errno) -> LogError {
    LogError::Write { path: path.to_owned(), source: errno.into() }
}
