//! Workspace: the directory that a Session may touch, and paths that cannot leave it.
//!
//! The kernel resolves a path while it opens it (`openat2` with `RESOLVE_BENEATH`), so neither `..`,
//! nor an absolute path, nor a link, nor a race leaves the directory. No path is checked first and
//! opened later by name.

mod batch;
mod enclosing;
mod extra_roots;
mod hard_links;
mod metadata;
mod no_follow;
mod target;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use serde_json::json;

pub use batch::{BatchError, BatchStep, StepResult, StepRollback, abandon_batch, commit_batch};
pub use enclosing::project_folders;
pub use no_follow::{OpenKind, ResolvedPath, writable_file_name};
pub use target::WriteTarget;

use crate::base::error::{Explain, Explanation, Kind};
use crate::base::paths::STATE_FOLDER;
use crate::settings::bounds::WriteBounds;
use extra_roots::ExtraRoots;

/// The maximum number of attempts to open a path while the kernel detects concurrent renames.
const RENAME_RETRIES: usize = 128;

/// The maximum number of names of a folder that are read for a suggestion.
const NAMES_LIMIT: usize = 2000;

/// An open Workspace, cheap to clone.
#[derive(Debug, Clone)]
pub struct Workspace(Arc<WorkspaceRoot>, Arc<WriteBounds>, Option<Arc<Path>>, Arc<ExtraRoots>);

#[derive(Debug)]
struct WorkspaceRoot {
    /// The absolute path, as spelled by the user.
    given: PathBuf,
    canonical: PathBuf,
    folder: OwnedFd,
}

/// The way in which a directory was chosen as the Workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkspaceChoice {
    /// Named by the user.
    Named,
    /// The directory in which Pixir was started.
    Current,
}

/// A regular file, open for reading.
#[derive(Debug)]
pub struct OpenFile {
    pub file: File,
    /// The path relative to the root, links resolved.
    pub path: PathBuf,
    pub stat: Stat,
}

impl Workspace {
    /// Opens a directory as the Workspace.
    pub fn open(path: &Path) -> Result<Self, WorkspaceError> {
        let read = |source| WorkspaceError::Read { path: path.to_owned(), source };
        let given = std::path::absolute(path).map_err(read)?;
        let canonical = path.canonicalize().map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => WorkspaceError::Missing { path: path.to_owned() },
            _ => read(source),
        })?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(&canonical, flags, Mode::empty())
            .map_err(|errno| WorkspaceError::from_errno(errno, path))?;
        let root = Arc::new(WorkspaceRoot { given, canonical, folder });
        Ok(Self(root, Arc::default(), None, Arc::default()))
    }

    /// This Workspace with write bounds.
    #[must_use]
    pub fn with_bounds(self, bounds: WriteBounds) -> Self {
        Self(self.0, Arc::new(bounds), self.2, self.3)
    }

    /// This Workspace without access to the files of a folder: a Workspace may contain the user's Home,
    /// and with it the tokens of a sign-in.
    #[must_use]
    pub fn with_hidden_folder(self, folder: &Path) -> Self {
        let hidden = folder.canonicalize().ok().filter(|real| real.starts_with(self.root()));
        Self(self.0, self.1, hidden.map(Into::into), self.3)
    }

    /// Whether a file is hidden; `real` is relative, links resolved.
    fn is_hidden(&self, real: &Path) -> bool {
        let parent = || self.root().join(real.parent().unwrap_or(Path::new("")));
        self.2.as_deref().is_some_and(|hidden| parent() == hidden)
    }

    /// The write bounds, which limit where tools may write.
    pub fn bounds(&self) -> &WriteBounds {
        &self.1
    }

    /// Refuses `/`, the user's home and its parents, unless the user named the path.
    pub fn refuse_wide(
        path: &Path,
        home: Option<&Path>,
        choice: WorkspaceChoice,
    ) -> Result<(), WorkspaceError> {
        if choice == WorkspaceChoice::Named {
            return Ok(());
        }
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let (workspace, home) = (real(path), home.map(real));
        let holds_home = home.is_some_and(|home| home.starts_with(&workspace));
        if workspace.parent().is_none() || holds_home {
            return Err(WorkspaceError::TooWide { path: workspace });
        }
        Ok(())
    }

    /// Refuses the user's own Pixir folder and all folders below it, even if the user names one, because
    /// commands could change settings, grants and the state of other Workspaces in it.
    pub fn refuse_home(path: &Path, own_folder: &Path) -> Result<(), WorkspaceError> {
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let workspace = real(path);
        if workspace.starts_with(real(own_folder)) {
            return Err(WorkspaceError::OwnHome { path: workspace });
        }
        Ok(())
    }

    /// The canonical path of the directory.
    pub fn root(&self) -> &Path {
        &self.0.canonical
    }

    /// The path for display: relative to the root if it is beneath it.
    pub fn display<'p>(&self, path: &'p Path) -> &'p Path {
        self.relative(path).unwrap_or(path)
    }

    /// Opens a regular file for reading; other kinds of files are refused and never block.
    pub fn open_file(&self, path: &Path) -> Result<OpenFile, WorkspaceError> {
        if let Some(other) = self.extra_root_for(path) {
            return Ok(other.open_file(path)?.named_in(other));
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let descriptor = self.open_beneath(self.relative(path)?, flags)?;
        self.check_opened(descriptor, path)
    }

    /// Checks that an opened file is a regular one and not hidden.
    fn check_opened(&self, descriptor: OwnedFd, path: &Path) -> Result<OpenFile, WorkspaceError> {
        let stat = rustix::fs::fstat(&descriptor)
            .map_err(|errno| WorkspaceError::from_errno(errno, path))?;
        if let Some(what) = irregular_kind(&stat) {
            return Err(WorkspaceError::NotRegular { path: path.to_owned(), what });
        }
        let real = self.real_path(&descriptor, path)?;
        if self.is_hidden(&real) {
            return Err(WorkspaceError::Hidden { path: path.to_owned() });
        }
        Ok(OpenFile { file: File::from(descriptor), path: real, stat })
    }

    /// The metadata of the file to which a path resolves, without opening the file for reading.
    pub fn metadata(&self, path: &Path) -> Result<Stat, WorkspaceError> {
        if let Some(other) = self.extra_root_for(path) {
            return other.metadata(path);
        }
        let descriptor = self.open_beneath(self.relative(path)?, OFlags::PATH)?;
        rustix::fs::fstat(&descriptor).map_err(|errno| WorkspaceError::from_errno(errno, path))
    }

    /// The names in the parent folder of `path`, for suggestions.
    pub fn sibling_names(&self, path: &Path) -> Vec<OsString> {
        if let Some(other) = self.extra_root_for(path) {
            return other.sibling_names(path);
        }
        let folder = || {
            let parent = or_root(self.relative(path).ok()?.parent()?);
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            Dir::new(self.open_beneath(parent, flags).ok()?).ok()
        };
        let Some(folder) = folder() else { return Vec::new() };
        let names = folder.take(NAMES_LIMIT).filter_map(Result::ok);
        names.map(|entry| os_string(entry.file_name().to_bytes())).collect()
    }

    /// Checks that tools may write a path, without changing anything; `.pixir` is never writable.
    pub fn check_writable(&self, path: &Path) -> Result<(), WorkspaceError> {
        if let Some(other) = self.extra_root_for(path) {
            self.refuse_unbounded_extra_root(path)?;
            return other.check_writable(path);
        }
        let relative = self.relative(path)?;
        refuse_protected(relative, path)?;
        target::refuse_folder_name(path)?;
        self.refuse_unbounded(&self.resolve(path), path)?;
        for ancestor in relative.ancestors() {
            match self.open_beneath(or_root(ancestor), OFlags::PATH) {
                Ok(descriptor) => {
                    refuse_protected(&self.real_path(&descriptor, path)?, path)?;
                    let is_folder = |stat: &Stat| irregular_kind(stat) == Some("a folder");
                    return match rustix::fs::fstat(&descriptor) {
                        Ok(stat) if !is_folder(&stat) => self.refuse_alias_of_state(&stat, path),
                        _ => Ok(()),
                    };
                }
                // The `..` of a missing folder cannot be resolved.
                Err(WorkspaceError::Missing { .. }) if ancestor.file_name().is_some() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Resolves the path of a missing file, relative to the root: the parent with links resolved, and the name.
    pub fn resolve_missing(&self, path: &Path) -> PathBuf {
        if let Some(other) = self.extra_root_for(path) {
            return other.absolute(&other.resolve_missing(path));
        }
        let Ok(relative) = self.relative(path) else { return path.to_owned() };
        let (Some(parent), Some(name)) = (relative.parent(), relative.file_name()) else {
            return relative.to_owned();
        };
        let folder = self.open_beneath(or_root(parent), OFlags::PATH);
        let real = folder.and_then(|folder| self.real_path(&folder, path));
        real.unwrap_or_else(|_| self.resolve_missing(parent)).join(name)
    }

    /// Resolves a path relative to the root, with links resolved as far as it exists.
    pub fn resolve(&self, path: &Path) -> PathBuf {
        if let Some(other) = self.extra_root_for(path) {
            return other.absolute(&other.resolve(path));
        }
        let existing = self
            .relative(path)
            .and_then(|relative| self.open_beneath(relative, OFlags::PATH))
            .and_then(|descriptor| self.real_path(&descriptor, path));
        existing.unwrap_or_else(|_| self.resolve_missing(path))
    }

    /// Refuses a resolved path outside the write bounds.
    fn refuse_unbounded(&self, real: &Path, path: &Path) -> Result<(), WorkspaceError> {
        if self.1.allows(real) {
            return Ok(());
        }
        Err(WorkspaceError::Bounded { path: path.to_owned() })
    }

    /// Refuses a path of an extra root when there are write bounds, which name paths of the Workspace only.
    fn refuse_unbounded_extra_root(&self, path: &Path) -> Result<(), WorkspaceError> {
        if self.1.is_empty() {
            return Ok(());
        }
        Err(WorkspaceError::Bounded { path: path.to_owned() })
    }

    /// Strips the root, as given and canonical; any other absolute path is outside.
    fn relative<'p>(&self, path: &'p Path) -> Result<&'p Path, WorkspaceError> {
        if memchr::memchr(0, path.as_os_str().as_encoded_bytes()).is_some() {
            return Err(WorkspaceError::InvalidPath { reason: "it contains a NUL byte" });
        }
        if path.is_relative() {
            return Ok(or_root(path));
        }
        let rest = path.strip_prefix(&self.0.canonical);
        let rest = rest.or_else(|_| path.strip_prefix(&self.0.given));
        rest.map(or_root).map_err(|_| WorkspaceError::Outside { path: path.to_owned() })
    }

    /// Opens beneath the root. The second attempt is for absolute links whose target is inside; the
    /// kernel resolves the canonical path again.
    fn open_beneath(&self, relative: &Path, flags: OFlags) -> Result<OwnedFd, WorkspaceError> {
        let explain = |errno| WorkspaceError::from_errno(errno, relative);
        match open_at(&self.0.folder, relative, flags, Mode::empty()) {
            Err(Errno::XDEV) => {}
            other => return other.map_err(explain),
        }
        let outside = || WorkspaceError::Outside { path: relative.to_owned() };
        let canonical = self.0.canonical.join(relative).canonicalize().map_err(|_| outside())?;
        let inside = canonical.strip_prefix(&self.0.canonical).map_err(|_| outside())?;
        open_at(&self.0.folder, or_root(inside), flags, Mode::empty()).map_err(explain)
    }

    /// The real path of an open descriptor, relative to the current path of the root.
    fn real_path(&self, descriptor: &impl AsFd, path: &Path) -> Result<PathBuf, WorkspaceError> {
        let read = |source| WorkspaceError::Read { path: path.to_owned(), source };
        let place = descriptor_path(descriptor).map_err(read)?;
        let root = descriptor_path(&self.0.folder).map_err(read)?;
        let inside = place.strip_prefix(&root);
        inside.map(Path::to_owned).map_err(|_| WorkspaceError::Changed { path: path.to_owned() })
    }
}

/// Opens beneath a folder, in one system call, without magic links.
fn open_at(folder: &impl AsFd, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    open_resolved(folder, path, flags | OFlags::CLOEXEC, mode, ResolveFlags::NO_MAGICLINKS)
}

/// Opens beneath a folder; `resolve` adds restrictions to the resolution.
fn open_resolved(
    folder: &impl AsFd,
    path: &Path,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let resolve = resolve | ResolveFlags::BENEATH;
    let mut last = Errno::AGAIN;
    for _ in 0..RENAME_RETRIES {
        match rustix::fs::openat2(folder, path, flags, mode, resolve) {
            // The kernel could not prove that a concurrent rename kept the path inside.
            Err(errno @ (Errno::AGAIN | Errno::INTR)) => last = errno,
            other => return other,
        }
    }
    Err(last)
}

fn descriptor_path(descriptor: &impl AsFd) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd()))
}

/// The path, or `.` for the empty path, which means the root itself.
fn or_root(relative: &Path) -> &Path {
    if relative.as_os_str().is_empty() { Path::new(".") } else { relative }
}

fn os_string(bytes: &[u8]) -> OsString {
    use std::os::unix::ffi::OsStrExt;
    OsStr::from_bytes(bytes).to_owned()
}

/// The kind of a file in words; `None` for a regular file.
fn irregular_kind(stat: &Stat) -> Option<&'static str> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => None,
        FileType::Directory => Some("a folder"),
        FileType::Fifo => Some("a named pipe"),
        FileType::Socket => Some("a socket"),
        FileType::CharacterDevice | FileType::BlockDevice => Some("a device"),
        FileType::Symlink => Some("a link"),
        FileType::Unknown => Some("of an unknown kind"),
    }
}

/// The folder of git's hooks and settings, which can start programs outside of the sandbox.
const GIT_FOLDER: &str = ".git";

/// Refuses a path with a component that belongs to Pixir's own state or to git.
fn refuse_protected(relative: &Path, path: &Path) -> Result<(), WorkspaceError> {
    let is_own =
        |name: &OsStr| [STATE_FOLDER, GIT_FOLDER].iter().any(|own| name.eq_ignore_ascii_case(own));
    let protected =
        relative.components().any(|part| matches!(part, Component::Normal(name) if is_own(name)));
    if protected { Err(WorkspaceError::Protected { path: path.to_owned() }) } else { Ok(()) }
}

/// Whether a name in a folder is still this file, with unchanged content.
fn is_same_file(folder: &impl AsFd, name: &OsStr, stat: &Stat) -> bool {
    rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|now| file_version(&now) == file_version(stat))
}

/// Device, inode, size and modification time of a file: they change with the file or its content.
pub fn file_version(stat: &Stat) -> (u64, u64, i64, i64, u64) {
    (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec)
}

/// Error of a path of the Workspace.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    #[error("{} cannot be a Workspace by default: it is / or contains the home folder", path.display())]
    TooWide { path: PathBuf },
    #[error("{} belongs to Pixir's own folder and cannot be a Workspace", path.display())]
    OwnHome { path: PathBuf },
    #[error("{} is outside the Workspace", path.display())]
    Outside { path: PathBuf },
    #[error("{} is internal state of Pixir or git and cannot be written by tools", path.display())]
    Protected { path: PathBuf },
    #[error("{} is in the user's own Pixir folder and cannot be read by tools", path.display())]
    Hidden { path: PathBuf },
    #[error("{} is outside the write bounds of this Session", path.display())]
    Bounded { path: PathBuf },
    #[error("{} does not exist", path.display())]
    Missing { path: PathBuf },
    #[error("{} is {what}, not a regular file", path.display())]
    NotRegular { path: PathBuf, what: &'static str },
    #[error("{} changed while it was used", path.display())]
    Changed { path: PathBuf },
    #[error("this kernel cannot confine paths: openat2 is missing (Linux 5.6 or later is needed)")]
    Unsupported,
    #[error("cannot open {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot write {}, and {} could not be removed", path.display(), left.display())]
    LeftBehind { path: PathBuf, left: PathBuf, source: io::Error },
    #[error(
        "writing {} failed half-way; the complete new content is in {}",
        path.display(), copy.display()
    )]
    HalfWritten { path: PathBuf, copy: PathBuf, source: io::Error },
    #[error(
        "{} has {links} hard links and {size} bytes: too large to be changed in place",
        path.display()
    )]
    ManyNames { path: PathBuf, links: u64, size: u64 },
    #[error("invalid path: {reason}")]
    InvalidPath { reason: &'static str },
}

impl WorkspaceError {
    fn from_errno(errno: Errno, path: &Path) -> Self {
        let path = path.to_owned();
        match errno {
            Errno::XDEV => Self::Outside { path },
            Errno::NOENT => Self::Missing { path },
            Errno::NOSYS => Self::Unsupported,
            Errno::NXIO => Self::NotRegular { path, what: "a socket or device" },
            Errno::AGAIN => Self::Changed { path },
            Errno::NAMETOOLONG => Self::InvalidPath { reason: "it is too long" },
            _ => Self::Read { path, source: errno.into() },
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Unsupported | Self::InvalidPath { .. } => None,
            Self::TooWide { path }
            | Self::OwnHome { path }
            | Self::Outside { path }
            | Self::Protected { path }
            | Self::Hidden { path }
            | Self::Bounded { path }
            | Self::Missing { path }
            | Self::NotRegular { path, .. }
            | Self::Changed { path }
            | Self::Read { path, .. }
            | Self::LeftBehind { path, .. }
            | Self::HalfWritten { path, .. }
            | Self::ManyNames { path, .. }
            | Self::Write { path, .. } => Some(path),
        }
    }
}

impl Explain for WorkspaceError {
    fn explain(&self) -> Explanation {
        let explained = match self {
            Self::TooWide { .. } => Kind::WorkspaceRefused
                .with_next_action("pass it with --cwd, or start in a project folder"),
            Self::OwnHome { .. } => Kind::WorkspaceRefused
                .with_next_action("start in a project folder; `pixir config` changes settings"),
            Self::Outside { .. } => {
                Kind::OutsideWorkspace.with_next_action("use a path inside the Workspace")
            }
            Self::Hidden { .. } => {
                Kind::ProtectedPath.with_next_action("go on without it, or ask the user")
            }
            Self::Protected { .. } => Kind::ProtectedPath.with_next_action(
                "write outside .pixir and .git; change git's own files with git commands",
            ),
            Self::Bounded { path } => {
                return Kind::PermissionDenied
                    .with_details(json!({ "path": path.to_string_lossy(), "gate": "write_bounds" }))
                    .with_next_action(
                        "write where --allow-write and --deny-write permit it, or tell the user what you need",
                    );
            }
            Self::Changed { .. } => {
                Kind::FileChanged.with_next_action("read the file again and repeat the call")
            }
            Self::LeftBehind { .. } => {
                Kind::WriteFailed.with_next_action("tell the user about the file that was left")
            }
            Self::HalfWritten { .. } => {
                Kind::WriteFailed.with_next_action("copy that file over it with bash and cp")
            }
            Self::ManyNames { .. } => Kind::WriteFailed.with_next_action(
                "change it with bash, or give it one name first: cp it, then mv the copy over it",
            ),
            Self::Missing { .. } => Kind::NotFound.into(),
            Self::NotRegular { .. } | Self::InvalidPath { .. } => Kind::InvalidArgs.into(),
            Self::Unsupported | Self::Read { .. } => Kind::ReadFailed.into(),
            Self::Write { .. } => Kind::WriteFailed.into(),
        };
        let details = self.path().map(|path| json!({ "path": path.to_string_lossy() }));
        explained.with_details(details.unwrap_or_default())
    }

    fn is_write_bounds(&self) -> bool {
        matches!(self, Self::Bounded { .. })
    }
}
